"""Tests for whoever writes a storage: one class that holds it to every rule of a table.

Needs pytest. In a test file of your own:

    from recollect.testing import StorageConformance

    class TestMyStorage(StorageConformance):
        def make_storage(self):
            return MyStorage()

See `StorageConformance` for what may be adapted.
"""

import pytest

# Before they are imported, so that a failing assertion says what was compared.
for _module in (
    "base", "cases", "lives", "model", "pair", "payload_suite", "query_suite", "rollout_suite",
    "selector_suite", "table_suite",
):  # fmt: skip
    pytest.register_assert_rewrite(f"{__name__}.{_module}")

from recollect.testing.conformance import StorageConformance  # noqa: E402

__all__ = ["StorageConformance"]

"""`StorageConformance`: all the tests of a storage in one class."""

from __future__ import annotations

from recollect.testing.payload_suite import PayloadTests
from recollect.testing.query_suite import QueryTests
from recollect.testing.rollout_suite import RolloutTests
from recollect.testing.selector_suite import SelectorTests
from recollect.testing.table_suite import TableTests


class StorageConformance(SelectorTests, QueryTests, TableTests, PayloadTests, RolloutTests):
    """Every rule of tables and rollout buffers, tested on a storage. Derive from it for pytest.

    Only `make_storage` must be given. `self.folder` is an empty folder for each test, and
    `dispose` is called with every storage that a test made when it is over.

        class TestMyStorage(StorageConformance):
            def make_storage(self):
                return MyStorage(self.folder / f"{uuid4()}.db")

    Attributes:
        lives: How many random lives of a table are compared with a plain list, at 20 and at
            least 4; more find more, and a storage that takes milliseconds for a call may want
            fewer.
        steps: How many calls there are in each of them, at 50.
        draws: How often items are drawn where frequencies are tested, at 4000.
        every: 1 tries every sampler with every query and every remover; n tries every n-th of
            these combinations, other ones with each sampler.
        can_save: Whether `Store.save` takes tables of this storage. Where not, it must say so,
            with the name of the table, and that is tested in its place.
    """

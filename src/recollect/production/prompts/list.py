"""`ListPrompts`: prompts that a program has in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recollect.errors import InvalidValue, shown
from recollect.production.prompts.indexed import IndexedPrompts
from recollect.production.prompts.source_rows import RowReader


class ListPrompts(IndexedPrompts):
    """A list of prompts, drawn in an order by seed, epoch after epoch.

    >>> from recollect.production import ListPrompts
    >>> prompts = ListPrompts(["1 + 1 =", "2 + 2 ="], n=4, seed=None)
    >>> group = prompts.next()
    >>> group.prompt, len(group), group.status
    ('1 + 1 =', 4, <Status.INIT: 'INIT'>)

    Args:
        rows: Texts, lists of tokens, lists of messages, or mappings with columns.
        n: Rollouts of a group.
        seed: Of the order; None keeps that of the list.
        epochs: How many there are; None for no end.
        columns: The names of columns, and a tokenizer: see `RowReader`.
    """

    def __init__(
        self,
        rows: Sequence[Any],
        n: int = 1,
        *,
        seed: int | None = 0,
        epochs: int | None = None,
        **columns: Any,
    ) -> None:
        if isinstance(rows, str | bytes) or not isinstance(rows, Sequence):
            raise InvalidValue(f"rows: expected a list of prompts, got {shown(rows)}")
        self._rows = rows
        super().__init__(len(rows), n, seed=seed, epochs=epochs, reading=RowReader(**columns))

    def row(self, index: int) -> Any:
        return self._rows[index]

    def describe(self) -> str:
        return f"the list of {len(self._rows)} prompts"

"""What of a source's row becomes what of a group: the one place that knows the names of columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recollect.base.arguments import names
from recollect.errors import InvalidValue, shown
from recollect.rollouts.group import Group
from recollect.rollouts.rollout import Rollout

Tokenize = Callable[[Any], Any]


@dataclass(frozen=True)
class RowReader:
    """How rows are read: the names of their columns, and what makes tokens of a prompt.

    A row is text (the prompt), a list of tokens, a list of messages, or a mapping with these
    columns; of a mapping, columns that are not named are left out.

    Args:
        prompt: The column of the prompt, text or messages.
        prompt_ids: The column of its tokens.
        ground_truth: The column of what an answer is compared with.
        extras: Columns that go along as the group's extras.
        blobs: The column of a mapping from names to lists of bytes, such as images.
        tokenize: Makes the tokens of a prompt, where a row has none.
    """

    prompt: str = "prompt"
    prompt_ids: str = "prompt_ids"
    ground_truth: str = "ground_truth"
    extras: Sequence[str] = ()
    blobs: str = "blobs"
    tokenize: Tokenize | None = None

    def __post_init__(self) -> None:
        names("extras", self.extras)
        if self.tokenize is not None and not callable(self.tokenize):
            raise InvalidValue(
                f"tokenize: expected a function of a prompt, got {shown(self.tokenize)}"
            )

    def group(self, row: Any, group_id: str, n: int, where: str) -> Group:
        """The prompt that a row is; `where` names it in messages."""
        parts = self._parts(row, where)
        if parts["prompt_ids"] is None and self.tokenize is not None:
            parts["prompt_ids"] = self.tokenize(parts["prompt"])
        try:
            return Group([Rollout() for _ in range(n)], group_id=group_id, **parts)
        except InvalidValue as wrong:
            raise InvalidValue(f"{where}: {wrong}") from None

    def _parts(self, row: Any, where: str) -> dict[str, Any]:
        if isinstance(row, str):
            return {"prompt": row, "prompt_ids": None}
        if isinstance(row, Mapping):
            return self._columns(row, where)
        if isinstance(row, np.ndarray) or (isinstance(row, Sequence) and len(row)):
            messages = not isinstance(row, np.ndarray) and isinstance(row[0], Mapping)
            return {"prompt": row, "prompt_ids": None} if messages else {"prompt_ids": row}
        raise InvalidValue(
            f"{where}: expected text, tokens, messages or a mapping, got {shown(row)}"
        )

    def _columns(self, row: Mapping[str, Any], where: str) -> dict[str, Any]:
        prompt, tokens = row.get(self.prompt), row.get(self.prompt_ids)
        if prompt is None and tokens is None:
            raise InvalidValue(
                f"{where}: it has neither {self.prompt!r} nor {self.prompt_ids!r}; its columns "
                f"are {', '.join(map(str, row)) or 'none'}; name the right one with prompt="
            )
        missing = [name for name in self.extras if name not in row]
        if missing:
            raise InvalidValue(
                f"{where}: it has no column {missing[0]!r}, which extras= names; its columns are "
                f"{', '.join(map(str, row))}"
            )
        return {
            "prompt": prompt,
            "prompt_ids": tokens,
            "ground_truth": row.get(self.ground_truth),
            "extras": {name: row[name] for name in self.extras},
            "blobs": row.get(self.blobs),
        }

"""`HuggingFacePrompts`: prompts in a dataset of the library `datasets`, or anything like one."""

from __future__ import annotations

from typing import Any

from recollect.errors import InvalidValue, shown
from recollect.production.prompts.indexed import IndexedPrompts
from recollect.production.prompts.source_rows import RowReader


class HuggingFacePrompts(IndexedPrompts):
    """A Hugging Face dataset of prompts, drawn in an order by seed, epoch after epoch.

    >>> from recollect.production import HuggingFacePrompts
    >>> dataset = [{"question": "1 + 1 =", "answer": 2}]  # or datasets.load_dataset(...)["train"]
    >>> prompts = HuggingFacePrompts(dataset, n=4, prompt="question", ground_truth="answer")
    >>> prompts.next().ground_truth
    2

    Args:
        dataset: A dataset with a length, whose rows are found by number. Of one that can only be
            read in order, make such a one first.
        n: Rollouts of a group.
        seed: Of the order; None keeps that of the dataset.
        epochs: How many there are; None for no end.
        columns: The names of columns, and a tokenizer: see `RowReader`.
    """

    def __init__(
        self,
        dataset: Any,
        n: int = 1,
        *,
        seed: int | None = 0,
        epochs: int | None = None,
        **columns: Any,
    ) -> None:
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise InvalidValue(
                "dataset: expected one with a length and rows by number, got "
                f"{shown(type(dataset).__name__)}; a stream can be drawn from only once, so "
                "download it, or take a part of it"
            )
        if hasattr(dataset, "keys"):
            raise InvalidValue(
                "dataset: expected one split, got several; choose one, such as dataset['train']"
            )
        self._dataset = dataset
        super().__init__(len(dataset), n, seed=seed, epochs=epochs, reading=RowReader(**columns))

    def row(self, index: int) -> Any:
        return self._dataset[index]

    def describe(self) -> str:
        return f"the dataset of {len(self._dataset)} prompts"

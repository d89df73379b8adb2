"""`IndexedPrompts`: what sources share whose rows have numbers. A source adds how a row is read.

Those whose rows a program has already are here, too: `ListPrompts` and `HuggingFacePrompts`.

The id of a group is `prefix-epoch-index`. The prefix is drawn once per run and saved, so an id is
never used twice, and it says by itself where its prompt is found again: in a checkpoint, in a
buffer, in a journal.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from recollect.base.arguments import whole
from recollect.errors import InvalidValue, OutOfPrompts, SnapshotError, shown
from recollect.production.prompts.base import prompt_of
from recollect.production.prompts.saved import Saved, from_saved, reference, to_saved
from recollect.production.prompts.source_rows import RowReader
from recollect.rollouts.group import Group
from recollect.rollouts.rollout import Status

FORMAT = 1


class IndexedPrompts(ABC):
    """A source of `count` rows, drawn in an order by seed, epoch after epoch."""

    def __init__(
        self, count: int, n: int, *, seed: int | None, epochs: int | None, reading: RowReader
    ) -> None:
        if count < 1:
            raise InvalidValue(f"{type(self).__name__}: there is no prompt in it")
        self.n = whole("n", n, 1)
        self._seed = None if seed is None else whole("seed", seed, -(1 << 62))
        self._epochs = None if epochs is None else whole("epochs", epochs, 1)
        self._reading = reading
        self._count = count
        self._prefix = secrets.token_hex(6)
        self._epoch = self._position = 0
        self._order: tuple[int, Any] | None = None  # of an epoch
        self._given_back: OrderedDict[str, Group] = OrderedDict()
        self._excluded: set[int] = set()
        self._withdrawn: set[tuple[int, int]] = set()  # not drawn yet, and there already
        self._fingerprint: dict[str, Any] | None = None

    @abstractmethod
    def row(self, index: int) -> Any:
        """One row, as `RowReader` takes it."""

    @abstractmethod
    def describe(self) -> str:
        """What it is, in messages."""

    def __len__(self) -> int:
        """How many prompts an epoch has, those that are excluded included."""
        return self._count

    @property
    def epoch(self) -> int:
        """How many epochs have been drawn from completely."""
        return self._epoch

    # -- drawing ----------------------------------------------------------------------------------
    def next(self) -> Group:
        """The next prompt; those given back come first."""
        if self._given_back:
            return self._given_back.popitem(last=False)[1]
        while True:
            if self._position == self._count:
                self._epoch, self._position = self._epoch + 1, 0
            self._check_there_is_more()
            index = int(self._order_now()[self._position])
            self._position += 1
            if index in self._excluded:
                continue
            if (self._epoch, index) in self._withdrawn:
                self._withdrawn.remove((self._epoch, index))
                continue
            return self._group(self._epoch, index)

    def _check_there_is_more(self) -> None:
        if self._epochs is not None and self._epoch >= self._epochs:
            raise OutOfPrompts(
                f"{self.describe()}: its {self._epochs} epochs of {self._count} prompts are over; "
                "raise epochs=, or leave it out to go on for ever"
            )
        if len(self._excluded) == self._count:
            raise OutOfPrompts(f"{self.describe()}: all of its {self._count} prompts are excluded")

    def _order_now(self) -> Any:
        if self._order is None or self._order[0] != self._epoch:
            self._order = (self._epoch, order_of(self._count, self._seed, self._epoch))
        return self._order[1]

    def _group(self, epoch: int, index: int) -> Group:
        where = f"{self.describe()}, prompt {index}"
        return self._reading.group(
            self.row(index), f"{self._prefix}-{epoch}-{index}", self.n, where
        )

    # -- what was drawn ---------------------------------------------------------------------------
    def give_back(self, group: Group) -> None:
        """It comes again, before new ones and after those that were given back earlier."""
        prompt = group if group.status is Status.INIT else prompt_of(group)
        self._given_back[group.group_id] = prompt

    def exclude(self, group: Group) -> None:
        """Its row is not drawn any more, in no epoch."""
        self._given_back.pop(group.group_id, None)
        place = self._place(group.group_id)
        if place is not None:
            self._excluded.add(place[1])
            for group_id in [each for each in self._given_back if self._is_row(each, place[1])]:
                del self._given_back[group_id]

    def has(self, group_id: str) -> bool:
        """Whether `find` would find it; no row is read."""
        return self._place(group_id) is not None

    def find(self, group_id: str) -> Group | None:
        """The prompt of an id that this source made, as it was drawn first."""
        place = self._place(group_id)
        return None if place is None else self._group(*place)

    def withdraw(self, group_id: str) -> bool:
        """The group of an id is there already: it is not handed out again."""
        if self._given_back.pop(group_id, None) is not None:
            return True
        place = self._place(group_id)
        if place is None:
            return False
        if place[0] >= self._epoch:
            self._withdrawn.add(place)
        return True

    def _place(self, group_id: str) -> tuple[int, int] | None:
        """Epoch and index of an id, None where it is of another source."""
        prefix, _, rest = group_id.partition("-")
        epoch, _, index = rest.partition("-")
        if prefix != self._prefix or not (epoch.isdecimal() and index.isdecimal()):
            return None
        place = int(epoch), int(index)
        if place[1] >= self._count or group_id != f"{prefix}-{place[0]}-{place[1]}":
            return None
        return place

    def _is_row(self, group_id: str, index: int) -> bool:
        place = self._place(group_id)
        return place is not None and place[1] == index

    # -- saving -----------------------------------------------------------------------------------
    def fingerprint(self) -> dict[str, Any]:
        """What a source must have in common with the one whose state it goes on from."""
        if self._fingerprint is None:
            told = ""
            for index in dict.fromkeys((0, self._count // 2, self._count - 1)):
                group = self._group(0, index)
                told += f"{shown(group.prompt)} {shown(group.prompt_ids.tolist())}\n"
            digest = xxhash.xxh3_64_hexdigest(told.encode(errors="surrogatepass"))
            self._fingerprint = {"count": self._count, "seed": self._seed, "rows": digest}
        return dict(self._fingerprint)

    def state(self) -> dict[str, Any]:
        """All that decides what comes next, as JSON."""
        late = (place for place in self._withdrawn if place[0] >= self._epoch)
        return {
            "format": FORMAT,
            "source": self.fingerprint(),
            "prefix": self._prefix,
            "epoch": self._epoch,
            "position": self._position,
            "given_back": [self._saved(group) for group in self._given_back.values()],
            "excluded": sorted(self._excluded),
            "withdrawn": sorted(map(list, late)),
        }

    def _saved(self, group: Group) -> Saved:
        if self._place(group.group_id) is None:
            return to_saved(group)
        return reference(group.group_id, group.attempt)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        if not isinstance(state, Mapping) or state.get("format") != FORMAT:
            raise SnapshotError(
                f"{self.describe()}: expected what state() returned, got {shown(state)}"
            )
        mine, source = self.fingerprint(), state["source"]
        for name, what in (("count", "prompts"), ("seed", "as seed"), ("rows", "as digest")):
            if source[name] != mine[name]:
                raise SnapshotError(
                    f"{self.describe()} is not what was saved: it had {source[name]} {what} and "
                    f"has {mine[name]}; give the same rows in the same order, with the same seed"
                )
        self._prefix = state["prefix"]
        self._epoch, self._position = state["epoch"], state["position"]
        self._excluded = set(state["excluded"])
        self._withdrawn = {(epoch, index) for epoch, index in state["withdrawn"]}
        self._given_back = OrderedDict()
        for saved in state["given_back"]:
            group = from_saved(saved, self, saved.get("task", "default"))
            assert group is not None  # whole, or of a row that is there
            self._given_back[group.group_id] = group

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.describe()}, epoch {self._epoch})"


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


def order_of(count: int, seed: int | None, epoch: int) -> NDArray[np.int64]:
    """The indices of an epoch in the order in which they come; without a seed as they are.

    It has to be the same when a run is resumed years later, so it is made of integer arithmetic and
    a stable sort: the streams of NumPy's generators may change between versions.

    >>> from recollect.production.prompts.indexed import order_of
    >>> order_of(5, 7, 0).tolist(), order_of(5, 7, 1).tolist(), order_of(5, None, 1).tolist()
    ([3, 2, 0, 1, 4], [4, 2, 3, 1, 0], [0, 1, 2, 3, 4])
    """
    if seed is None:
        return np.arange(count, dtype=np.int64)
    key = _mixed(np.array([seed & 0xFFFFFFFFFFFFFFFF], np.uint64))
    key = _mixed(key + np.uint64(epoch & 0xFFFFFFFFFFFFFFFF))
    return np.argsort(_mixed(np.arange(count, dtype=np.uint64) ^ key), kind="stable")


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64: one-to-one, and every bit depends on every bit."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))

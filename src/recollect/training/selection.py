"""`Selection`: the rollouts of some groups, one row each, and which of them train with what weight.

Everything between the buffer and the optimizer works on one selection, so that all its arrays
have the same length: advantages, filters, importance weights, packs and metrics. Nothing is ever
cut out of it. A rollout that a filter drops has `keep` False, one that it masks has weight 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from recollect.base.arguments import many
from recollect.data.batch import Batch
from recollect.data.column_data import ColumnData
from recollect.data.info import Info, info_arrays
from recollect.data.ragged import Ragged, offsets_of
from recollect.errors import InvalidValue, shown
from recollect.rollouts.group import Group
from recollect.rollouts.groups import Groups, TakenBatch
from recollect.rollouts.rollout import Rollout

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]

ARRAYS = "arrays."


def sums(numbers: Ints, values: NDArray[Any], count: int) -> Floats:
    """For each number below `count`, the sum of the values that have it."""
    found: NDArray[Any] = np.bincount(numbers, weights=values, minlength=count)
    return found


class Selection:
    """Rollouts of whole groups, in order. A trajectory in several segments is several rows.

    >>> import recollect as rc
    >>> from recollect import training
    >>> rollouts = [rc.Rollout([1], [2, 3], reward=r, finish_reason="stop") for r in (0, 1)]
    >>> selection = training.select([rc.Group(rollouts)])
    >>> selection.rows, selection.rewards, selection.lengths
    (2, array([0., 1.]), array([2, 2]))

    Args:
        batch: Row columns as `Groups.batch` has them; `batch.info.row_offsets` says which rows
            are a group's.
        keep: Which rows have not been dropped; all where None.
        weights: The weight of each row in the loss, 0 where it is masked; 1 where None.
    """

    def __init__(
        self, batch: Batch, keep: Flags | None = None, weights: Floats | None = None
    ) -> None:
        self.batch = batch
        self.keep: Flags = np.ones(batch.rows, np.bool_) if keep is None else keep
        self.weights: Floats = np.ones(batch.rows) if weights is None else weights

    def changed(self, *, keep: Flags | None = None, weights: Floats | None = None) -> Selection:
        """The same rollouts with other flags or weights."""
        return Selection(
            self.batch,
            self.keep if keep is None else keep,
            self.weights if weights is None else weights,
        )

    def of_groups(self, wanted: Flags) -> Selection:
        """The rollouts of some groups only."""
        rows = wanted[self.group]
        batch = self.batch
        arrays = {
            name: array[wanted]
            for name, array in info_arrays(batch.info).items()
            if name != "row_offsets"
        }
        arrays["row_offsets"] = offsets_of(np.diff(self.row_offsets)[wanted])
        columns = {name: column[rows] for name, column in batch.columns.items()}
        present = {name: flags[rows] for name, flags in batch.present.items()}
        info = Info(arrays, batch.info.table_size, batch.info.lease)
        part = Batch._make(columns, info, None, present)
        return Selection(part, self.keep[rows], self.weights[rows])

    # -- rows -----------------------------------------------------------------------------------
    @property
    def rows(self) -> int:
        """Rollouts, or segments of them; dropped ones included."""
        return self.batch.rows

    @cached_property
    def prompts(self) -> Ragged:
        """The prompt of each row."""
        return self._ragged("prompt_ids")

    @cached_property
    def responses(self) -> Ragged:
        """The response of each row."""
        return self._ragged("response_ids")

    @cached_property
    def masks(self) -> Ragged:
        """Which response tokens train."""
        return self._ragged("loss_mask")

    @cached_property
    def lengths(self) -> Ints:
        """Response tokens of each row."""
        return self.responses.lengths

    @cached_property
    def group(self) -> Ints:
        """The number of each row's group."""
        return np.repeat(np.arange(self.groups), np.diff(self.row_offsets))

    @property
    def row_offsets(self) -> Ints:
        """Where the rows of each group start, and last their number."""
        return self.batch.info.row_offsets

    @property
    def groups(self) -> int:
        """Groups, those that were dropped included."""
        return self.batch.num_items

    @cached_property
    def group_kept(self) -> Flags:
        """Which groups have a row that was not dropped."""
        return np.bincount(self.group[self.keep], minlength=self.groups) > 0

    @cached_property
    def rollout_ids(self) -> list[str]:
        """The rollout id of each row."""
        ids: list[str] = self._ragged("rollout_id").to_list()
        return ids

    def says(self, name: str, text: str) -> Flags:
        """In which rows a column of text is exactly this; no loop over rows."""
        column, code = self._ragged(name), np.frombuffer(text.encode(), np.uint8)
        same: Flags = column.lengths == code.size
        here = self.batch.present.get(name)
        if here is not None:
            same &= here
        starts = column.offsets[:-1][same]
        cells = column.values[starts[:, None] + np.arange(code.size)]
        same[same] = (cells == code).all(axis=1)
        return same

    def _ragged(self, name: str) -> Ragged:
        column = self.batch.columns.get(name)
        if not isinstance(column, Ragged):
            raise InvalidValue(f"rollouts: there is no column {name!r} of tokens or text")
        return column

    # -- trajectories ---------------------------------------------------------------------------
    @cached_property
    def trajectory(self) -> Ints:
        """The number of each row's trajectory: segments of one rollout share it."""
        if not np.any(self.batch["segment"]):
            return np.arange(self.rows)
        numbers: dict[tuple[int, str], int] = {}
        rows = zip(self.group.tolist(), self.rollout_ids, strict=True)
        return np.array([numbers.setdefault(row, len(numbers)) for row in rows], np.int64)

    @cached_property
    def first(self) -> Ints:
        """The first row of each trajectory."""
        return np.unique(self.trajectory, return_index=True)[1]

    @property
    def trajectories(self) -> int:
        """Rollouts, each counted once."""
        return self.first.size

    @cached_property
    def _last(self) -> Ints:
        """The row with the last segment of each trajectory."""
        if self.trajectories == self.rows:
            return np.arange(self.rows)
        order = np.lexsort((self.batch["segment"], self.trajectory))
        ends = np.searchsorted(self.trajectory[order], np.arange(self.trajectories), "right") - 1
        return order[ends]

    def any_segment(self, flags: Flags) -> Flags:
        """Per trajectory, whether a flag holds in one of its rows."""
        return np.bincount(self.trajectory[flags], minlength=self.trajectories) > 0

    def total(self, values: NDArray[Any]) -> Floats:
        """Per trajectory, the sum over its rows."""
        return sums(self.trajectory, values, self.trajectories)

    @cached_property
    def has_reward(self) -> Flags:
        """Which trajectories have a reward."""
        here = self.batch.present.get("reward")
        return self.any_segment(np.ones(self.rows, np.bool_) if here is None else here)

    @cached_property
    def rewards(self) -> Floats:
        """The reward of each trajectory, of its last segment that has one; NaN where none has."""
        column = np.asarray(self.batch.columns["reward"], np.float64)
        here = self.batch.present.get("reward")
        if here is None or here.all():
            return column[self._last]
        found = np.full(self.trajectories, np.nan)
        order = np.lexsort((self.batch["segment"], self.trajectory))
        order = order[here[order]]
        found[self.trajectory[order]] = column[order]  # the last one that is written stays
        return found

    def needed_rewards(self, what: str) -> Floats:
        """The rewards, or an error that names a kept rollout that has none."""
        lacking = self.kept & ~self.has_reward
        if lacking.any():
            row = int(self.first[int(lacking.argmax())])
            raise InvalidValue(
                f"{what}: rollout {self.rollout_ids[row]!r} has no reward; give the buffer "
                "needs=('reward',), so that groups wait for it"
            )
        return self.rewards

    @cached_property
    def kept(self) -> Flags:
        """Which trajectories have not been dropped."""
        return self.any_segment(self.keep)

    @cached_property
    def trajectory_group(self) -> Ints:
        """The number of each trajectory's group."""
        return self.group[self.first]

    @cached_property
    def truncated(self) -> Flags:
        """Which trajectories ended because they were too long."""
        return self.any_segment(self.says("finish_reason", "length"))

    @cached_property
    def trajectory_lengths(self) -> Ints:
        """Response tokens of each trajectory."""
        return self.total(self.lengths).astype(np.int64)

    @cached_property
    def oldest_versions(self) -> Ints:
        """The lowest version of a token in each trajectory, -1 where no token has one."""
        from recollect.kernels import load as kernels

        versions = self._ragged("versions")
        lowest = np.empty(self.rows, np.int64)
        values = np.ascontiguousarray(versions.values, np.int32)
        kernels.load_tokens().tokens.oldest(values, versions.offsets, lowest)
        found = np.full(self.trajectories, 1 << 40)
        np.minimum.at(found, self.trajectory, np.where(lowest < 0, 1 << 40, lowest))
        return np.where(found == 1 << 40, -1, found)

    def __repr__(self) -> str:
        kept = int(self.kept.sum())
        return (
            f"Selection({many(self.groups, 'group')}, {many(self.trajectories, 'rollout')}, "
            f"{kept} kept)"
        )


Rollouts: TypeAlias = "Selection | Groups | TakenBatch | Batch | Iterable[Group]"


def select(rollouts: Rollouts) -> Selection:
    """The rollouts of what a buffer returned, or of groups that were not stored yet."""
    if isinstance(rollouts, Selection):
        return rollouts
    if isinstance(rollouts, Groups | TakenBatch):
        return Selection(rollouts.batch)
    if isinstance(rollouts, Batch):
        return Selection(rollouts)
    if isinstance(rollouts, Iterable):
        groups = list(rollouts)
        if all(isinstance(group, Group) for group in groups):
            return Selection(_batch_of(groups))
    raise InvalidValue(f"rollouts: expected groups of rollouts, got {shown(rollouts)}")


def join(parts: Sequence[Selection]) -> Selection:
    """Several selections as one, in order."""
    if len(parts) == 1:
        return parts[0]
    batches = [part.batch for part in parts]
    names = dict.fromkeys(name for batch in batches for name in batch.columns)
    columns: dict[str, ColumnData] = {}
    present: dict[str, Flags] = {}
    for name in names:
        columns[name] = _concatenated([_column(batch, name, batches) for batch in batches])
        here = [_present(batch, name) for batch in batches]
        if any(name in batch.present or name not in batch.columns for batch in batches):
            present[name] = np.concatenate(here)
    counts = [np.diff(batch.info.row_offsets) for batch in batches]
    known = dict.fromkeys(
        name for batch in batches for name in info_arrays(batch.info) if name != "row_offsets"
    )
    arrays = {
        name: np.concatenate([getattr(batch.info, name) for batch in batches]) for name in known
    }
    arrays["row_offsets"] = offsets_of(np.concatenate(counts))
    info = Info(arrays, batches[-1].info.table_size)
    return Selection(
        Batch._make(columns, info, None, present),
        np.concatenate([part.keep for part in parts]),
        np.concatenate([part.weights for part in parts]),
    )


def _column(batch: Batch, name: str, batches: Sequence[Batch]) -> ColumnData:
    """A batch's column, of absent cells where only others have it."""
    column = batch.columns.get(name)
    if column is not None:
        return column
    like = next(other.columns[name] for other in batches if name in other.columns)
    if isinstance(like, Ragged):
        return Ragged._make(like.values[:0], np.zeros(batch.rows + 1, np.int64), like.kind)
    return np.zeros((batch.rows, *like.shape[1:]), like.dtype)


def _present(batch: Batch, name: str) -> Flags:
    here = batch.present.get(name)
    return np.full(batch.rows, name in batch.columns) if here is None else here


def _concatenated(columns: Sequence[ColumnData]) -> ColumnData:
    first = columns[0]
    if isinstance(first, Ragged):
        ragged = [column for column in columns if isinstance(column, Ragged)]
        values = np.concatenate([column.values for column in ragged])
        lengths = np.concatenate([column.lengths for column in ragged])
        return Ragged._make(values, offsets_of(lengths), first.kind)
    return np.concatenate([np.asarray(column) for column in columns])


def _batch_of(groups: Sequence[Group]) -> Batch:
    """Groups that no buffer collated, as the same columns."""
    rollouts = [rollout for group in groups for rollout in group]
    columns: dict[str, ColumnData] = {}
    present: dict[str, Flags] = {}
    for name, dtype in (("logprobs", np.float32), ("versions", np.int32)):
        cells = [getattr(rollout, name) for rollout in rollouts]
        columns[name] = _cells(cells, dtype)
        present[name] = np.array([cell is not None for cell in cells], np.bool_)
    for name in dict.fromkeys(name for rollout in rollouts for name in rollout.arrays):
        cells = [rollout.arrays.get(name) for rollout in rollouts]
        columns[ARRAYS + name] = _cells(cells, None)
        present[ARRAYS + name] = np.array([cell is not None for cell in cells], np.bool_)
    columns["loss_mask"] = _cells([_mask_of(rollout) for rollout in rollouts], np.int8)
    columns["prompt_ids"] = _cells([rollout.prompt_ids for rollout in rollouts], np.int32)
    columns["response_ids"] = _cells([rollout.response_ids for rollout in rollouts], np.int32)
    rewards = [rollout.reward for rollout in rollouts]
    columns["reward"] = np.array([0.0 if r is None else r for r in rewards], np.float64)
    present["reward"] = np.array([reward is not None for reward in rewards], np.bool_)
    reasons = [rollout.finish_reason for rollout in rollouts]
    columns["finish_reason"] = Ragged.from_list([reason or "" for reason in reasons], dtype=str)
    present["finish_reason"] = np.array([reason is not None for reason in reasons], np.bool_)
    columns["rollout_id"] = Ragged.from_list([r.rollout_id for r in rollouts], dtype=str)
    columns["segment"] = np.array([rollout.segment for rollout in rollouts], np.int32)
    columns["status"] = np.array([rollout.status.code for rollout in rollouts], np.int8)
    arrays = {
        "task": np.array([group.task for group in groups], object),
        "times_sampled": np.array([group.times_used for group in groups], np.int64),
        "deliveries": np.array([group.deliveries for group in groups], np.int64),
        "row_offsets": offsets_of([len(group) for group in groups]),
    }
    return Batch._make(columns, Info(arrays, 0), None, present)


def _mask_of(rollout: Rollout) -> NDArray[np.int8]:
    """As a buffer fills it in: without a mask, what some weights generated trains."""
    if rollout.loss_mask is not None:
        return rollout.loss_mask
    mask = np.ones(rollout.num_tokens, np.int8)
    if rollout.versions is not None:
        mask[: len(rollout.versions)] = rollout.versions >= 0
    return mask


def _cells(cells: Sequence[NDArray[Any] | None], dtype: Any) -> Ragged:
    """One ragged column; an absent cell is empty."""
    there = [cell for cell in cells if cell is not None]
    kind = there[0].dtype if there and dtype is None else dtype
    inner = there[0].shape[1:] if there else ()
    values = np.concatenate([np.zeros((0, *inner), kind), *there])
    return Ragged._make(values, offsets_of([0 if cell is None else len(cell) for cell in cells]))

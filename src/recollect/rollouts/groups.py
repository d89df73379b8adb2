"""`Groups`: what comes out of a buffer, one collated batch that reads as a sequence of groups.

The batch is made in one pass over its tokens: `loss_mask` becomes the stored mask AND fresh, and
versions that were stored as one stamp are spread. `Group` and `Rollout` objects are made when
they are asked for, and their arrays are views into the batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from recollect.base.arguments import many
from recollect.base.arrays import Ints
from recollect.base.leases import LeaseLike
from recollect.data.arrow import ArrowBatch
from recollect.data.batch import Batch
from recollect.data.info import Info, info_arrays
from recollect.data.ragged import Ragged
from recollect.kernels import load as kernels
from recollect.rollouts import tabular
from recollect.rollouts.group import Group
from recollect.rollouts.group_columns import ARRAYS
from recollect.rollouts.public_batch import visible
from recollect.rollouts.rollout import CODES, NO_TOKENS, STATUSES, Rollout, Status
from recollect.storage.buffers import BufferPool

if TYPE_CHECKING:
    import pandas as pd

Flags = NDArray[np.bool_]

KEPT = 16 << 20  # bytes of masks and versions that are kept for the next batch
ARCHIVED = CODES[Status.ARCHIVED]

_nothing = np.zeros(0, np.int8)
_no_versions = np.zeros(0, np.int32)


class GroupParts(NamedTuple):
    """What groups are made of, as it travels: columns as Arrow, who has a mask, blobs."""

    batch: ArrowBatch
    masked: Flags
    blobs: Mapping[str, bytes]


class Groups(Sequence[Group]):
    """Groups that a buffer returned: a sequence over one collated `batch`.

    Row columns of `batch` have a row per rollout: `prompt_ids`, `response_ids`, `logprobs`,
    `loss_mask` (what trains now), `versions`, `reward`, ... and `arrays.NAME`; `batch.shared` has
    a cell per group: `prompt_ids` and `group_id`; `info` says what the buffer knew of each group.

    >>> import recollect as rc
    >>> buffer = rc.RolloutBuffer().sync
    >>> _ = buffer.put(rc.Group([rc.Rollout([1], [2, 3], finish_reason="stop")], task="math"))
    >>> groups = buffer.take(8)
    >>> len(groups), groups[0].task, groups.batch["loss_mask"].to_list()
    (1, 'math', [array([1, 1], dtype=int8)])
    """

    __slots__ = ("_batch", "_begin", "_blobs", "_end", "_masked", "_whole")

    def __init__(
        self,
        batch: Batch,
        masked: Flags,
        blobs: Mapping[str, bytes],
        begin: int = 0,
        end: int | None = None,
    ) -> None:
        self._whole = batch
        self._masked = masked
        self._blobs = blobs
        self._begin = begin
        self._end = batch.num_items if end is None else end
        self._batch: Batch | None = None

    @property
    def batch(self) -> Batch:
        """All of it as columns, made when first asked for."""
        if self._batch is None:
            self._batch = visible(self._part())
        return self._batch

    def _part(self) -> Batch:
        if self._begin == 0 and self._end == self._whole.num_items:
            return self._whole
        return _between(self._whole, self._begin, self._end)

    @property
    def info(self) -> Info:
        """What the buffer knew of each group: keys, versions, priorities, weights, deliveries."""
        return self._part().info if self._batch is None else self._batch.info

    @property
    def keys(self) -> NDArray[np.uint64]:
        """The key of each group."""
        return self._whole.info.keys[self._begin : self._end]

    @property
    def lease(self) -> LeaseLike | None:
        """The lease, or the claim, that the groups are under."""
        return self._whole.info.lease

    def forget_lease(self) -> None:
        """Whoever has the groups keeps them: they are under no lease any more."""
        self._whole.info.lease = None

    @property
    def group_ids(self) -> list[str]:
        """The id of each group."""
        ids: list[str] = self._whole.shared["group_id"][self._begin : self._end].to_list()
        return ids

    def to_parts(self) -> GroupParts:
        """A batch's groups as another process gets them; `from_parts` makes the same there."""
        return GroupParts(self._whole.to_arrow(), self._masked, self._blobs)

    @staticmethod
    def from_parts(parts: GroupParts) -> Groups:
        """What `to_parts` made, without a copy of its numbers."""
        return Groups(Batch.from_arrow(parts.batch), parts.masked, parts.blobs)

    def __len__(self) -> int:
        return self._end - self._begin

    @overload
    def __getitem__(self, place: int) -> Group: ...
    @overload
    def __getitem__(self, place: slice) -> Groups: ...
    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            begin, end, step = place.indices(len(self))
            if step != 1:
                return [self[each] for each in range(begin, end, step)]
            first, last = self._begin + begin, self._begin + max(begin, end)
            return Groups(self._whole, self._masked, self._blobs, first, last)
        count = len(self)
        if not -count <= place < count:
            raise IndexError(f"group {place} is out of range for {count} groups")
        return decode(self._whole, self._begin + place % count, self._masked, self._blobs)

    def __iter__(self) -> Iterator[Group]:
        for place in range(self._begin, self._end):
            yield decode(self._whole, place, self._masked, self._blobs)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Groups | list):
            return len(self) == len(other) and all(
                mine.equals(theirs) for mine, theirs in zip(self, other, strict=True)
            )
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def to_dicts(self) -> list[dict[str, Any]]:
        """A dict per rollout; `from_dicts` makes groups of them again."""
        return tabular.to_dicts(self)

    def to_pandas(self) -> pd.DataFrame:
        """A DataFrame with a row per rollout; `from_pandas` makes groups of it again."""
        return tabular.to_pandas(self)

    def to_dataset(self) -> Any:
        """A Hugging Face dataset with a row per rollout; `from_dataset` makes groups of it."""
        return tabular.to_dataset(self)

    @staticmethod
    def from_dicts(rows: Iterable[Mapping[str, Any]]) -> list[Group]:
        """Groups to put, of a dict per rollout; those with one `group_id` make a group.

        >>> import recollect as rc
        >>> row = {"prompt_ids": [1], "response_ids": [2, 3], "finish_reason": "stop"}
        >>> rc.Groups.from_dicts([{**row, "group_id": "g"}, {**row, "group_id": "g"}])
        [Group('g', task='default', 2 rollouts, COMPLETED)]
        """
        return tabular.from_dicts(rows)

    @staticmethod
    def from_pandas(frame: pd.DataFrame) -> list[Group]:
        """Groups to put, of a DataFrame with a row per rollout."""
        return tabular.from_pandas(frame)

    @staticmethod
    def from_dataset(dataset: Any) -> list[Group]:
        """Groups to put, of a Hugging Face dataset with a row per rollout."""
        return tabular.from_dataset(dataset)

    def __repr__(self) -> str:
        rows = self._whole.info.row_offsets
        count = int(rows[self._end] - rows[self._begin])
        return f"Groups({many(len(self), 'group')}, {many(count, 'rollout')})"


class TakenBatch:
    """What `take_batch` took: `groups` by task, in the order of the sizes, over one `batch`."""

    __slots__ = ("all", "groups")

    def __init__(self, groups: Groups, sizes: Mapping[str, int]) -> None:
        self.all = groups
        self.groups: dict[str, Groups] = {}
        begin = 0
        for task, size in sizes.items():
            self.groups[task] = groups[begin : begin + size]
            begin += size

    @property
    def batch(self) -> Batch:
        """All groups as columns, task after task."""
        return self.all.batch

    @property
    def info(self) -> Info:
        """What the buffer knew of each group."""
        return self.all.info

    @property
    def keys(self) -> NDArray[np.uint64]:
        """The key of each group."""
        return self.all.keys

    @property
    def lease(self) -> LeaseLike | None:
        """The lease, None where the groups were removed at once."""
        return self.all.lease

    def __len__(self) -> int:
        return len(self.all)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{task}: {len(groups)}" for task, groups in self.groups.items())
        return f"TakenBatch({sizes})"


# -- making the batch -----------------------------------------------------------------------------
_pool = BufferPool(KEPT)


def finished(
    batch: Batch,
    limits: Ints | int,
    blobs: Mapping[str, bytes],
    copied: Callable[[], None] | None = None,
    *,
    archive: bool = True,
) -> Groups:
    """Make of a batch as it was stored the groups that train.

    `limits` is the lowest version whose tokens are fresh: one for all, or one per group. A rollout
    that was stored without a mask has one in the batch. Its object has one only where some token
    is stale, because a rollout without a mask may still grow. `copied` waits for tokens that are
    being copied. `archive` says whether some groups may be archived.
    """
    columns, present = batch.columns, batch.present
    offsets = _ragged(batch, "response_ids").offsets
    mask, versions = _ragged(batch, "loss_mask"), _ragged(batch, "versions")
    stamps = columns.pop("stamp")
    assert isinstance(stamps, np.ndarray)
    stored_mask, stored_versions = present["loss_mask"], present["versions"]
    rows = stamps.size
    aging = bool(np.any(limits)) if isinstance(limits, np.ndarray) else limits != 0
    stamped = stamps >= 0
    spreads = np.count_nonzero(stamped) > 0 or 0 < np.count_nonzero(stored_versions) < rows
    masks = aging or np.count_nonzero(stored_mask) < rows
    masked = stored_mask
    if (spreads or masks) and offsets[-1]:
        if copied is not None:
            copied()
            copied = None
        per_row = limits
        if not isinstance(limits, int):
            per_row = np.repeat(limits, np.diff(batch.info.row_offsets))
        mask_out = _pool.array((int(offsets[-1]),), np.int8) if masks else _nothing
        version_out = _pool.array((int(offsets[-1]),), np.int32) if spreads else _no_versions
        whole = np.ones(rows, np.int8)
        kernels.load_tokens().tokens.train_mask(
            offsets, mask.values, mask.offsets, versions.values, versions.offsets, stamps,
            np.broadcast_to(per_row, stamps.shape).astype(np.int64), mask_out, whole, version_out,
        )  # fmt: skip
        if masks:
            columns["loss_mask"] = Ragged._make(mask_out, offsets)
            masked = stored_mask | (whole == 0)
        if spreads:
            columns["versions"] = Ragged._make(version_out, offsets)
    if masks:
        present["loss_mask"] = np.ones_like(stored_mask)
    present["versions"] = stored_versions | stamped
    if archive and Status.ARCHIVED.value in batch.info.status.tolist():
        _mark_archived(batch)
    groups = Groups(batch, masked, blobs)
    if copied is not None:
        if np.count_nonzero(present["own_prompt_ids"]) == 0:
            groups._batch = visible(batch)
        copied()
    return groups


def _ragged(batch: Batch, name: str) -> Ragged:
    column = batch.columns[name]
    assert isinstance(column, Ragged)
    return column


def _mark_archived(batch: Batch) -> None:
    """Archiving a group changes its status, and not those of its rows: they get it here."""
    archived = batch.info.status == Status.ARCHIVED.value
    codes = batch.columns["status"]
    assert isinstance(codes, np.ndarray)
    of_rows = np.repeat(archived, np.diff(batch.info.row_offsets))
    batch.columns["status"] = np.where(of_rows, np.int8(ARCHIVED), codes)


def _between(batch: Batch, begin: int, end: int) -> Batch:
    """Some of a batch's items, as a batch."""
    starts = batch.info.row_offsets
    first, last = int(starts[begin]), int(starts[end])
    arrays = {
        name: array[begin:end]
        for name, array in info_arrays(batch.info).items()
        if name != "row_offsets"
    }
    arrays["row_offsets"] = starts[begin : end + 1] - first
    info = Info(arrays, batch.info.table_size, batch.info.lease)
    return Batch._make(
        {name: column[first:last] for name, column in batch.columns.items()},
        info,
        {name: column[begin:end] for name, column in batch.shared.columns.items()},
        {name: flags[first:last] for name, flags in batch.present.items()},
        {name: flags[begin:end] for name, flags in batch.shared.present.items()},
    )


# -- objects --------------------------------------------------------------------------------------
def decode(batch: Batch, item: int, masked: Flags, blobs: Mapping[str, bytes]) -> Group:
    """One group of a finished batch."""
    info, shared, here = batch.info, batch.shared, batch.shared.present
    group = Group.__new__(Group)
    group.task = info.task[item]
    group.group_id = shared["group_id"][item]
    group.prompt_ids = shared["prompt_ids"][item]
    about = json.loads(shared["about"][item]) if here["about"][item] else {}
    group.prompt = about.get("prompt")
    group.ground_truth = about.get("ground_truth")
    group.extras = about.get("extras", {})
    group.blobs = {}
    if here["shared_blobs"][item]:
        group.blobs = _blobs(shared["shared_blobs"][item], blobs)
    group.key = int(info.keys[item])
    group.priority = float(info.priority[item])
    group.times_used = int(info.times_sampled[item])
    group.deliveries = int(info.deliveries[item])
    first, last = int(info.row_offsets[item]), int(info.row_offsets[item + 1])
    group.rollouts = [_rollout(batch, row, group, masked, blobs) for row in range(first, last)]
    return group


def _rollout(
    batch: Batch, row: int, group: Group, masked: Flags, blobs: Mapping[str, bytes]
) -> Rollout:
    columns, present = batch.columns, batch.present

    def cell(name: str) -> Any:
        return columns[name][row] if present[name][row] else None

    def parsed(name: str) -> Any:
        text = cell(name)
        return None if text is None else json.loads(text)

    rollout = Rollout.__new__(Rollout)
    own = cell("own_prompt_ids")
    rollout.prompt_ids = group.prompt_ids if own is None else own
    response: Any = columns["response_ids"][row]
    rollout.response_ids = response if len(response) else NO_TOKENS
    rollout.logprobs = cell("logprobs")
    rollout.loss_mask = cell("loss_mask") if masked[row] else None
    rollout.versions = cell("versions")
    dispatch = int(columns["dispatch_version"][row])
    rollout.dispatch_version = dispatch if dispatch >= 0 else None
    reward = cell("reward")
    rollout.reward = None if reward is None else float(reward)
    rollout.rewards = parsed("rewards")
    rollout.finish_reason = cell("finish_reason")
    rollout.status = STATUSES[int(columns["status"][row])]
    rollout.error = cell("error")
    rollout.group_id, rollout.task = group.group_id, group.task
    rollout.rollout_id = columns["rollout_id"][row]
    rollout.segment = int(columns["segment"][row])
    rollout.attempt = int(columns["attempt"][row])
    rollout.turns = parsed("turns")
    rollout.extras = parsed("extras") or {}
    rollout.blobs = {}
    if present["blobs"][row]:
        rollout.blobs = _blobs(columns["blobs"][row], blobs)
    rollout.arrays = {
        name[len(ARRAYS) :]: column[row]
        for name, column in columns.items()
        if name.startswith(ARRAYS) and present[name][row]
    }
    return rollout


def _blobs(text: Any, blobs: Mapping[str, bytes]) -> dict[str, list[bytes]]:
    return {name: [blobs[each] for each in each_of] for name, each_of in json.loads(text).items()}

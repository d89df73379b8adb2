"""Putting groups of the common layout: from their objects into segments, in two kernel calls.

Most groups look alike: all rollouts are completed for one reason, each has tokens and, like its
siblings, logprobs, a mask, versions and a reward, or none of them, and nothing that few rollouts
have.
`ShortPut.recognize` says whether a group is one of these, and `store` copies it. Everything else,
every error, and every storage but the one in memory, goes by way of `encoding.encode`, which this
file must agree with.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from recollect.base.arrays import Ints
from recollect.kernels import load as kernels
from recollect.kernels.layout import (
    GROUP_BLOCK,
    GROUP_PAYLOAD,
    GROUP_STORED,
    HAS_LOGPROBS,
    HAS_MASK,
    HAS_REWARD,
    HAS_VERSIONS,
    OLDEST,
    SHARED_PAYLOAD,
    SHARED_STORED,
    SOME_NAN,
    TOGETHER,
)
from recollect.rollouts.cell_columns import to_json
from recollect.rollouts.encoding import described, tag_of
from recollect.rollouts.entries import GroupEntry
from recollect.rollouts.group import Group
from recollect.rollouts.group_columns import ROWS
from recollect.rollouts.rollout import CODES, Rollout, Status
from recollect.rollouts.staleness import NEVER, NONE, Staleness
from recollect.rules.query import FieldType
from recollect.rules.selectors import Ordered
from recollect.storage.base import Storage

LARGEST = (1 << 31) - 1  # the highest version that tokens can have
COMPLETED = Status.COMPLETED.value  # looking it up in the enum is slow
ONE_DIGIT = 1 << 30  # from here on, an int has two of them
DIGIT = (1 << 32) - 1
NO_VERSIONS = np.zeros(0, np.int64)
PARTS = (
    "response_ids", "logprobs", "loss_mask", "versions", "reward", "prompt_ids", "segment",
    "attempt", "error", "rewards", "turns", "extras", "blobs", "arrays", "_status",
    "_finish_reason", "dispatch_version",
)  # fmt: skip


class CommonGroup(NamedTuple):
    """A group of the common layout: what `store` needs beside the objects."""

    rollouts: list[Rollout]
    ids: list[str]
    prompt: Any
    reason: str | None
    about: str | None
    stamp: int
    dispatch: int
    each: Ints
    found: Ints
    sizes: tuple[int, ...]
    fields: dict[str, Any]
    expires: int
    entry: GroupEntry

    @property
    def columns(self) -> list[Any]:
        """For each column, something where the group has cells in it, and None where not."""
        sizes = self.sizes
        here = {
            "response_ids": 1, "logprobs": sizes[HAS_LOGPROBS], "loss_mask": sizes[HAS_MASK],
            "reward": sizes[HAS_REWARD], "versions": sizes[HAS_VERSIONS],
        }  # fmt: skip
        return [here.get(name) or None for name in ROWS]


class ShortPut:
    """The short way into one buffer's table."""

    def __init__(self, storage: Storage) -> None:
        from recollect.storage.memory.single_item import DirectInserts
        from recollect.storage.memory.storage import MemoryStorage

        family = kernels.load_tokens()
        self._kernels = family.groups
        # What the kernels must know of objects; None where every group goes the long way.
        self.objects = object_layout() if type(storage) is MemoryStorage else None
        if isinstance(storage, MemoryStorage):
            self._inserts = DirectInserts(storage, family.single)

    def recognize(
        self, group: Group, version: int | None, rule: Staleness, tags: Mapping[str, FieldType]
    ) -> CommonGroup | None:
        """What is stored of a group of the common layout; None for any other group."""
        rollouts, task, group_id = group.rollouts, group.task, group.group_id
        if (
            self.objects is None
            or type(rollouts) is not list
            or not rollouts
            or type(group.blobs) is not dict
            or group.blobs
            or type(group.extras) is not dict
            or not isinstance(task, str)
            or not task
            or type(group_id) is not str
            or not group_id
            or rule.max_token_staleness is not None
        ):
            return None
        first = rollouts[0]
        try:
            ids = [rollout.rollout_id for rollout in rollouts]
            unique = set(ids)
            if first.status is not Status.COMPLETED or len(unique) != len(ids) or "" in unique:
                return None
            reason = first.finish_reason
        except (AttributeError, TypeError):
            return None
        about = described(group)
        text = to_json(about) if about else None
        prompt = group.prompt_ids
        found = np.empty(GROUP_BLOCK, np.int64)
        if not self._kernels.look(
            id(rollouts), id(prompt), id(ids), id(reason), id(group_id), id(text),
            version is not None, self._inserts.columns[0], self.objects, found,
        ):  # fmt: skip
            return None
        sizes = tuple(found.tolist())
        dated = _dated(rollouts, sizes, version, rule)
        if dated is None:
            return None
        counted, lowest, each = dated
        expires = rule.expires_at(counted) if counted >= 0 else NEVER
        fields = {
            "task": task,
            "status": COMPLETED,
            "version": counted if counted >= 0 else None,
            "expires": expires if expires < NEVER else None,
        }
        for name, kind in tags.items():
            fields[name] = tag_of(name, kind, group)
        stamp = NONE if version is None or sizes[HAS_VERSIONS] else version
        return CommonGroup(
            rollouts, ids, prompt, reason, text, stamp, lowest, each, found, sizes, fields,
            expires, GroupEntry(group_id, task, counted, 0.0),
        )  # fmt: skip

    def store(self, common: CommonGroup, now: float) -> int | None:
        """Under the lock: copy a group; returns its key, None where it has changed meanwhile."""
        rows, shared = self._inserts.columns
        kernel, objects = self._kernels.write, self.objects
        entry, sizes = common.entry, common.sizes

        def write(place: Ints) -> bool:
            done: bool = kernel(
                id(common.rollouts), id(common.prompt), id(common.ids), id(common.reason),
                id(entry.group_id), id(common.about), common.stamp, common.dispatch, common.each,
                rows, shared, objects, common.found, place,
            )  # fmt: skip
            return done

        count = len(common.ids)
        stored = sizes[GROUP_STORED], sizes[SHARED_STORED]
        payload = sizes[GROUP_PAYLOAD], sizes[SHARED_PAYLOAD]
        return self._inserts.insert(count, stored, payload, common.fields, now, write)

    def ever_archived(self) -> bool:
        """Whether a group may be archived."""
        return self._inserts.ever("status", Status.ARCHIVED.value)

    def evict(self, order: Ordered) -> int:
        """Under the lock: the first group by an order leaves; returns its key."""
        return self._inserts.evict(order)


def _dated(
    rollouts: list[Rollout], sizes: tuple[int, ...], version: int | None, rule: Staleness
) -> tuple[int, int, Ints] | None:
    """The version that counts for a group, and its dispatch versions as `_dispatched` has them.

    None where rollouts differ in what counts, or some tokens are tool output.
    """
    sent = _dispatched(rollouts, sizes[TOGETHER] == 1, version)
    if sent is None:
        return None
    lowest, each = sent
    oldest = NONE if version is None else version
    if sizes[HAS_VERSIONS]:
        oldest = sizes[OLDEST]
        if oldest < 0:  # tool output
            return None
        if rule.measure == "dispatch" and each.size and each.min() < 0:
            return None  # for some rollouts the dispatch counts, for others their tokens
    elif sizes[SOME_NAN]:  # tool output among tokens that are to be stamped
        return None
    if oldest >= 0 and (rule.measure == "oldest_token" or lowest < 0):
        return oldest, lowest, each
    return lowest, lowest, each


def _dispatched(
    rollouts: list[Rollout], together: bool, version: int | None
) -> tuple[int, Ints] | None:
    """The lowest version at which rollouts were dispatched, -1 for none, and that of each one.

    The latter is empty where all have the same. None where some version is not a plain int.
    """
    default = NONE if version is None else version
    first = rollouts[0].dispatch_version
    if together and first is None:
        return default, NO_VERSIONS
    if together and type(first) is int and 0 <= first < ONE_DIGIT:
        return first, NO_VERSIONS
    each = [rollout.dispatch_version for rollout in rollouts]
    if not all(one is None or (type(one) is int and 0 <= one <= LARGEST) for one in each):
        return None
    cells = [default if one is None else one for one in each]
    return min((one for one in cells if one >= 0), default=NONE), np.array(cells, np.int64)


# -- how objects are laid out ---------------------------------------------------------------------
@cache
def object_layout() -> Ints | None:
    """What the kernels must know of objects, None where this interpreter lays them out otherwise.

    A rollout whose parts are all different shows where it keeps each of them.
    """
    reading = kernels.load_tokens().rows.data_address  # the word 16 bytes after an address
    probe = object.__new__(Rollout)
    for name in Rollout.__slots__:
        setattr(probe, name, object())
    words = [reading(id(probe) + at - 16) for at in range(16, Rollout.__basicsize__, 8)]
    places = []
    for name in PARTS:
        if words.count(id(getattr(probe, name))) != 1:
            return None
        places.append(16 + 8 * words.index(id(getattr(probe, name))))
    data = sys.getsizeof("") - 1
    for text in ("rollout-1", "x" * 100):
        if reading(id(text)) != len(text):
            return None
        if reading(id(text) + data - 16) != int.from_bytes(text[:8].encode(), "little"):
            return None
        if not _is_plain(reading, text):
            return None
    if any(_is_plain(reading, text) for text in ("größe", "大きさ", "\U0001f600")):
        return None
    sample: list[Any] = [0.5, [1, 2, 3], {}, {"a": 1}]
    expected = [int(np.float64(0.5).view(np.int64)), 3, 0, 1]
    if [reading(id(one)) for one in sample] != expected:
        return None
    sevens, others = [int("700"), int("7000") // 10], (701, -700, 1 << 40, 1 << 70)
    digits = [(reading(id(one)), reading(id(one) + 8) & DIGIT) for one in (*sevens, *others)]
    if digits[0] != digits[1] or digits[0] in digits[2:]:
        return None
    types = (np.ndarray, np.dtype(np.int32), np.dtype(np.float32), np.dtype(np.int8), float, str)
    ids = [id(Rollout), id(None), *map(id, types), id(dict), id(list), id(0), data]
    return np.array([*ids, *places, CODES[Status.COMPLETED], id(int)], np.int64)


def _is_plain(reading: Any, text: str) -> bool:
    plain: bool = reading(id(text) + 32 - 16) & (3 << 5) == 3 << 5
    return plain

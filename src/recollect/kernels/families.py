"""What callers know of kernels: their names and arguments, by family.

Compiled kernels check nothing, so types are the only guard at a call. A test compares this file
with the signatures that kernels are compiled for. Tables of numbers are arrays of two dimensions;
an ellipsis stands where callers hand over arguments in a list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Floats = NDArray[np.float64]
Int32s = NDArray[np.int32]
Int8s = NDArray[np.int8]
Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]
Float32s = NDArray[np.float32]
State = NDArray[Any]  # of random numbers: four words


class ItemKernels(Protocol):
    """What happens to the items of a table: `kernels.items`."""

    add_slots: Callable[[Ints, int], None]
    rebuild_hash: Callable[[Ints], None]
    find_slots: Callable[[Ints, Words, Ints], int]
    list_free: Callable[[Ints, int, Int32s], None]
    settle_maxima: Callable[[Ints], None]
    rebuild_maxima: Callable[[Ints], None]
    write_priorities: Callable[[Ints, Ints, Floats, int], int]
    update_priorities: Callable[[Ints, Words, Floats, Ints, Flags], int]
    range_of: Callable[[Floats], tuple[float, float]]
    allocate: Callable[[Ints, int, Ints, Int32s, Ints, Floats, Int32s, float, Words, Ints], None]
    release: Callable[[Ints, Ints, int], None]
    arrange: Callable[[Ints, Ints, Ints, int, int, int, Ints], None]
    rebuild_trees: Callable[[Ints], None]
    recycle: Callable[[
        Ints, Ints, int, int, Ints, Ints, Floats, float, Words, Ints, Ints, int, Ints, int
    ], None]  # fmt: skip
    choose: Callable[[
        Ints, Ints, Ints, int, int, int, int, Any, int, State, Ints, Floats, Ints
    ], int]  # fmt: skip
    probabilities: Callable[[Ints, Ints, Ints, Ints, Floats], None]


class RowKernels(Protocol):
    """Rows into segments and out of them: `kernels.rows`."""

    data_address: Callable[[int], int]
    rows_that_fit: Callable[[int, Ints], int]
    append_fixed: Callable[[int, int, int, int, int, Ints, int], None]
    place_fixed: Callable[[int, int, int, int, int, Ints, int], None]
    take_fixed: Callable[[int, int, int, int, int, Ints, int], None]
    append_varying: Callable[[int, int, int, int, int, int, Ints, Ints], int]
    measure_input: Callable[[Ints, Ints, Int32s, int, Ints, Ints], None]
    count_up: Callable[[Ints, int, int, int], None]
    expand: Callable[[Ints, Int32s, Ints], None]
    gather: Callable[..., None]
    measure: Callable[[Ints, Ints, Ints, Ints, Ints, Int8s], None]
    gather_cells: Callable[..., None]


class CaptureKernels(Protocol):
    """Records as snapshots need them: `kernels.captures`."""

    fill_records: Callable[..., None]
    fill_index: Callable[[Ints, Ints, Ints, Ints], None]
    count_displaced: Callable[[Ints], int]
    differing: Callable[[Ints, Ints, int, int, Int32s, Ints], int]


class CopyKernels(Protocol):
    """A copy that two threads share: `kernels.shared_copy`."""

    prepare: Callable[[Ints], None]
    serve: Callable[[Ints], None]
    begin_cells: Callable[..., None]
    begin_rows: Callable[..., None]
    end: Callable[[Ints, bool], None]


class StepKernels(Protocol):
    """Steps into rings: `kernels.steps`."""

    check: Callable[[Ints, Ints, Ints, int], tuple[int, int]]
    append: Callable[[Ints, Ints, Ints, Ints, Ints, int, int, float, Words], int]


class EpisodeKernels(Protocol):
    """Where episodes begin and end: `kernels.steps_episodes`."""

    episodes_of: Callable[[Ints, Ints, Ints, Ints], None]
    list_episodes: Callable[[Ints, int, Ints], int]


class ReadingKernels(Protocol):
    """What is read of steps: `kernels.steps_reading`."""

    plan_transitions: Callable[[Ints, Ints, int, Ints, Ints, int, int], None]
    plan_runs: Callable[[Ints, Ints, Ints, int, int, Ints, Int8s, Ints, int, int], None]
    gather: Callable[[Ints, Ints], None]


class StartKernels(Protocol):
    """Steps that may begin a draw: `kernels.steps_starts`."""

    build: Callable[[Ints, Ints], None]
    list_starts: Callable[[Ints, Ints, Ints], int]
    draw: Callable[[Ints, Ints, int, int, int, int, int, State, Ints, Floats, Ints, Floats], None]
    write_priorities: Callable[[Ints, Ints, Words, Floats, Int8s], None]
    rows_at: Callable[[Ints, Ints, Ints], None]


class TokenKernels(Protocol):
    """Versions and masks of tokens: `kernels.tokens`."""

    oldest: Callable[[Int32s, Ints, Ints], None]
    newest_trainable: Callable[[Ints, Int8s, Ints, Int32s, Ints, Any, Ints], None]
    train_mask: Callable[[Ints, Int8s, Ints, Int32s, Ints, Ints, Ints, Int8s, Int8s, Int32s], None]


class GroupKernels(Protocol):
    """Groups from their objects into segments: `kernels.group_rows`."""

    look: Callable[[int, int, int, int, int, int, bool, Ints, Ints, Ints], bool]
    write: Callable[[
        int, int, int, int, int, int, int, int, Ints, Ints, Ints, Any, Ints, Ints
    ], bool]  # fmt: skip


class SingleKernels(Protocol):
    """One item that comes, one that leaves: `kernels.single`."""

    enter: Callable[[
        Ints, Ints, int, int, int, int, int, float, int, float, Ints, int, Ints, Ints
    ], int]  # fmt: skip
    leave: Callable[[Ints, Ints, int, Ints, Ints], int]


class PackKernels(Protocol):
    """Rollouts packed for ranks: `kernels.packs`."""

    divide: Callable[[Floats, Ints, Floats, Ints], None]
    first_fit: Callable[[Ints, Ints, Ints, int, Ints, Ints, Ints], None]
    write_tokens: Callable[[
        Ints, Ints, Ints, Int32s, Ints, Int32s, Ints, Int8s, Ints, Int8s, Float32s, Ints, Floats,
        Int32s, Int32s, Int8s, Float32s, Float32s
    ], int]  # fmt: skip
    write_cells: Callable[[Ints, Ints, Ints, Ints, Bytes, Ints, int, Bytes], None]


class Kernels(Protocol):
    """What every family has."""

    rows: RowKernels


class TableKernels(Kernels, Protocol):
    """The kernels of tables."""

    items: ItemKernels
    captures: CaptureKernels
    shared_copy: CopyKernels | None  # only on Linux


class ReplayKernels(Kernels, Protocol):
    """The kernels of steps and episodes."""

    steps: StepKernels
    episodes: EpisodeKernels
    reading: ReadingKernels
    starts: StartKernels


class RolloutKernels(Kernels, Protocol):
    """The kernels of rollouts."""

    tokens: TokenKernels
    groups: GroupKernels
    single: SingleKernels


class PackingKernels(Kernels, Protocol):
    """The kernels that pack rollouts for ranks."""

    packing: PackKernels


class DealingKernels(Kernels, Protocol):
    """The kernel that deals saved shards out to new ones."""

    deal: Callable[[Ints, Ints, int, Ints], None]

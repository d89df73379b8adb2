"""Passes over the tokens of rollouts: their lowest and highest versions, and which of them train.

Columns come as values and offsets; a row whose cell is absent is empty there. A stamp is the
version of all tokens of a row, -1 where the row has versions of its own, or none.
"""

from __future__ import annotations

import numpy as np

from recollect.kernels.machine.compile import kernel

LARGEST = 2**31 - 1  # version


@kernel("void(int32[::1], ints, ints)", nogil=True)
def oldest(versions, offsets, out):
    """The lowest version of each row, tokens without one (-1) left out; -1 where none is left."""
    for row in range(offsets.size - 1):
        lowest = 1 << 40
        for place in range(offsets[row], offsets[row + 1]):
            # without a branch, so that it becomes vector code: -1 turns into a large number
            lowest = min(lowest, (versions[place] & 0xFFFFFFFF))
        out[row] = lowest if lowest < 0x80000000 else -1


@kernel("void(ints, int8[::1], ints, int32[::1], ints, ints, ints)", nogil=True)
def newest_trainable(offsets, mask, mask_offsets, versions, version_offsets, stamps, out):
    """The highest version of each row's trainable tokens, -1 where it has none.

    Without a mask every token trains.
    """
    for row in range(offsets.size - 1):
        length = offsets[row + 1] - offsets[row]
        masked = mask_offsets[row + 1] - mask_offsets[row] == length
        versioned = version_offsets[row + 1] - version_offsets[row] == length
        m, v = mask_offsets[row], version_offsets[row]
        highest = -1
        if versioned:
            for k in range(length):
                if not masked or mask[m + k] != 0:
                    highest = max(highest, versions[v + k])
        elif stamps[row] >= 0:
            for k in range(length):
                if not masked or mask[m + k] != 0:
                    highest = stamps[row]
                    break
        out[row] = highest


@kernel(
    "void(ints, int8[::1], ints, int32[::1], ints, ints, ints, int8[::1], int8[::1], int32[::1])",
    nogil=True,
)
def train_mask(
    offsets,
    mask,
    mask_offsets,
    versions,
    version_offsets,
    stamps,
    limits,
    mask_out,
    whole_out,
    versions_out,
):
    """loss_mask AND fresh for every token, and its version, in one pass.

    A token of row r is stale where its version is below `limits[r]`; one without a version is
    not. Where there is no stored mask, the tokens that have no version (tool output) do not
    train in rows that have versions. `whole_out` says in which rows no
    token is stale. An empty output is not wanted.
    """
    for row in range(offsets.size - 1):
        begin, end = offsets[row], offsets[row + 1]
        length = end - begin
        # Slices, because loops over `begin + k` do not become vector code.
        stored = mask[mask_offsets[row] : mask_offsets[row + 1]]
        own = versions[version_offsets[row] : version_offsets[row + 1]]
        masked, versioned = stored.size == length, own.size == length
        limit, stamp = np.int32(min(limits[row], LARGEST)), np.int32(stamps[row])
        if mask_out.size:
            out = mask_out[begin:end]
            whole = True
            if versioned and masked:
                for k in range(length):
                    out[k] = stored[k] if (own[k] >= limit) | (own[k] < 0) else 0
            elif versioned:
                for k in range(length):
                    out[k] = (own[k] >= limit) & (own[k] >= 0)
                    whole &= (own[k] >= limit) | (own[k] < 0)
            elif 0 <= stamp < limit:
                out[:] = 0
                whole = False
            elif masked:
                out[:] = stored
            else:
                out[:] = 1
            whole_out[row] = whole
        if versions_out.size:
            if versioned:
                versions_out[begin:end] = own
            else:
                versions_out[begin:end] = stamp

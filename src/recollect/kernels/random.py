"""Random numbers inside kernels: xoshiro256++, four words of state that a snapshot can hold."""

from __future__ import annotations

import numpy as np

from recollect.kernels.machine.compile import inner


@inner("uint64(words)")
def next_word(state):
    a, b, c, d = state[0], state[1], state[2], state[3]
    total = a + d
    word = ((total << np.uint64(23)) | (total >> np.uint64(41))) + a
    shifted = b << np.uint64(17)
    c ^= a
    d ^= b
    b ^= c
    a ^= d
    c ^= shifted
    d = (d << np.uint64(45)) | (d >> np.uint64(19))
    state[0], state[1], state[2], state[3] = a, b, c, d
    return word


@inner("float64(words)")
def next_unit(state):
    """A float64 in [0, 1) with 53 random bits."""
    return np.float64(next_word(state) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@inner("int64(words, int64)")
def next_below(state, bound):
    """An int64 in [0, bound)."""
    chosen = np.int64(next_unit(state) * bound)
    return chosen if chosen < bound else bound - 1

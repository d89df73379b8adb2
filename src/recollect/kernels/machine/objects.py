"""Where CPython and NumPy keep what kernels read of objects, which are given by their `id`.

`load` makes sure that arrays and lists are laid out so, `rollouts.short_put` that rollouts are.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from recollect.kernels.machine.compile import inner
from recollect.kernels.machine.memory import int64_at, word_at

OBJECT_TYPE = 8
OBJECT_SIZE = 16  # of a list, a text or a dict: how many it has; the number itself in a float
LIST_ITEMS = 24
ARRAY_DATA = 16
ARRAY_DIMENSIONS = 24  # int32
ARRAY_SHAPE = 32
ARRAY_DTYPE = 56
ARRAY_FLAGS = 64  # int32
CONTIGUOUS = 1
TEXT_STATE = 32  # int32
PLAIN_TEXT = 3 << 5  # the bits that say that a text is ASCII, and follows its head
INT_DIGIT = 24  # int32: the number itself, where it has one digit


@njit
def items_of_list(list_id):
    """The ids of the objects in a list."""
    return int64_at(word_at(list_id + LIST_ITEMS))


@inner("int64(int64)")
def data_of(array_id):
    """The data address of an array; 0 for 0."""
    return word_at(array_id + ARRAY_DATA) if array_id != 0 else np.int64(0)


@inner("void(int64, ints)")
def data_of_all(list_id, targets):
    """The data addresses of the arrays in a list; of what is no array, a number of no meaning."""
    objects = items_of_list(list_id)
    for k in range(targets.size):
        targets[k] = data_of(objects[k])

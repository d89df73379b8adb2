"""Groups of the common layout, from their objects straight into segments.

A group is put as a list of `Rollout` objects, which have a few arrays and many attributes that are
empty. Looking at all of them in Python takes longer than copying the arrays, so these kernels read
the objects themselves: `look` says whether a group has the common layout and how large it is, and
`write` looks again and copies, in one call under the GIL, so that nothing can change between its
look and its copy. `rollouts.short_put` checks that objects are laid out as is assumed here.
"""

from __future__ import annotations

import numpy as np

from recollect.kernels.layout import (
    CELL,
    FIXED,
    GROUP_PAYLOAD,
    GROUP_STORED,
    HAS_LOGPROBS,
    HAS_MASK,
    HAS_REWARD,
    HAS_VERSIONS,
    OFFSET,
    OLDEST,
    SHARED_PAYLOAD,
    SHARED_STORED,
    SIZE,
    SOME_NAN,
    TOGETHER,
)
from recollect.kernels.machine.compile import inner, kernel
from recollect.kernels.machine.memory import (
    fence,
    int8_at,
    int32_at,
    int64_at,
    store_bytes,
    word_at,
)
from recollect.kernels.machine.objects import (
    ARRAY_DIMENSIONS,
    ARRAY_DTYPE,
    ARRAY_FLAGS,
    ARRAY_SHAPE,
    CONTIGUOUS,
    INT_DIGIT,
    OBJECT_SIZE,
    OBJECT_TYPE,
    PLAIN_TEXT,
    TEXT_STATE,
    data_of,
    items_of_list,
)
from recollect.kernels.rows import round_up

# What `about` holds: ids of types, dtypes and singletons, then where a rollout keeps each
# thing, and the code of a status.
(
    ROLLOUT, NOTHING, ARRAY, INT32, FLOAT32, INT8, FLOAT, TEXT, DICT, LIST, ZERO, TEXT_DATA,
    RESPONSE, LOGPROBS, MASK, VERSIONS, REWARD, PROMPT, SEGMENT, ATTEMPT, ERROR, REWARDS, TURNS,
    EXTRAS, BLOBS, ARRAYS, STATUS, REASON, DISPATCH, COMPLETED, INT,
) = range(31)  # fmt: skip

# What `write` gets and changes: where the next record and the last cell of two segments are.
BASE, STRIDE, TAIL, ROW, SHARED_BASE, SHARED_STRIDE, SHARED_TAIL, SHARED_ROW = range(8)

# The order of columns that `write` fills, see `encoding.ROWS` and `encoding.SHARED`.
C_RESPONSE, C_LOGPROBS, C_MASK, C_VERSIONS, C_STAMP, C_DISPATCH, C_REWARD = range(7)
C_STATUS, C_SEGMENT, C_ATTEMPT, C_ID, C_REASON = 7, 8, 9, 10, 11
S_PROMPT, S_ID, S_ABOUT = 0, 1, 2


@inner("int64(int64, int64, ints)")
def _length(array, dtype, about):
    """Entries of a flat, contiguous array of a dtype, -1 where an object is not one."""
    if (
        word_at(array + OBJECT_TYPE) != about[ARRAY]
        or word_at(array + ARRAY_DTYPE) != dtype
        or int32_at(array + ARRAY_DIMENSIONS)[0] != 1
        or int32_at(array + ARRAY_FLAGS)[0] & CONTIGUOUS == 0
    ):
        return np.int64(-1)
    return word_at(word_at(array + ARRAY_SHAPE))


@inner("int64(int64, ints)")
def _text_length(text, about):
    """Characters of a text of ASCII, -1 where an object is not one."""
    if (
        word_at(text + OBJECT_TYPE) != about[TEXT]
        or int32_at(text + TEXT_STATE)[0] & PLAIN_TEXT != PLAIN_TEXT
    ):
        return np.int64(-1)
    return word_at(text + OBJECT_SIZE)


@inner("boolean(int64, int64, ints)")
def _same_text(a, b, about):
    """Whether two objects are one, or the same text of ASCII."""
    if a == b:
        return True
    n = _text_length(a, about)
    if n < 0 or n != _text_length(b, about):
        return False
    ours, theirs = int8_at(a + about[TEXT_DATA]), int8_at(b + about[TEXT_DATA])
    differ = np.int8(0)
    for k in range(n):
        differ |= ours[k] ^ theirs[k]
    return differ == 0


@inner("boolean(int64, int64, ints)")
def _same_int(a, b, about):
    """Whether two objects are one, or the same int of one digit."""
    return a == b or (
        word_at(a + OBJECT_TYPE) == about[INT]
        and word_at(b + OBJECT_TYPE) == about[INT]
        and word_at(a + OBJECT_SIZE) == word_at(b + OBJECT_SIZE)
        and int32_at(a + INT_DIGIT)[0] == int32_at(b + INT_DIGIT)[0]
    )


@inner("boolean(int64, int64)")
def _empty(rollout, place):
    return word_at(word_at(rollout + place) + OBJECT_SIZE) == 0


@inner("boolean(int64, int64, ints)")
def _same_prompt(own, prompt, about):
    """Whether a rollout has the group's prompt: that array, or one with the same tokens."""
    if own == prompt:
        return True
    n = _length(own, about[INT32], about)
    if n < 0 or n != _length(prompt, about[INT32], about):
        return False
    ours = int32_at(data_of(own))
    theirs = int32_at(data_of(prompt))
    differ = np.int32(0)
    for k in range(n):
        differ |= ours[k] ^ theirs[k]
    return differ == 0


@inner("boolean(int64, int64, ints, ints, boolean)")
def _has_layout(rollout, prompt, about, found, first):
    """Whether a rollout has the common layout, and the optional arrays that the first one has."""
    if word_at(rollout + OBJECT_TYPE) != about[ROLLOUT]:
        return False
    nothing = about[NOTHING]
    own = word_at(rollout + about[PROMPT])
    for place in (ERROR, REWARDS, TURNS):
        if word_at(rollout + about[place]) != nothing:
            return False
    for place in (EXTRAS, BLOBS, ARRAYS):
        value = word_at(rollout + about[place])
        if word_at(value + OBJECT_TYPE) != about[DICT] or not _empty(rollout, about[place]):
            return False
    if (
        not _same_prompt(own, prompt, about)
        or word_at(rollout + about[SEGMENT]) != about[ZERO]
        or word_at(rollout + about[ATTEMPT]) != about[ZERO]
    ):
        return False
    tokens = _length(word_at(rollout + about[RESPONSE]), about[INT32], about)
    if tokens <= 0:
        return False
    logprobs = word_at(rollout + about[LOGPROBS])
    mask = word_at(rollout + about[MASK])
    versions = word_at(rollout + about[VERSIONS])
    reward = word_at(rollout + about[REWARD])
    if first:
        found[HAS_VERSIONS] = versions != nothing
        found[HAS_LOGPROBS] = logprobs != nothing
        found[HAS_MASK] = mask != nothing
        found[HAS_REWARD] = reward != nothing
    if found[HAS_LOGPROBS] == 0:
        if logprobs != nothing:
            return False
    elif _length(logprobs, about[FLOAT32], about) != tokens:
        return False
    if found[HAS_MASK] == 0:
        if mask != nothing:
            return False
    elif _length(mask, about[INT8], about) != tokens:
        return False
    if found[HAS_VERSIONS] == 0:
        if versions != nothing:
            return False
    elif _length(versions, about[INT32], about) != tokens:
        return False
    if found[HAS_REWARD] == 0:
        return reward == nothing
    return word_at(reward + OBJECT_TYPE) == about[FLOAT]


@inner("boolean(int64, int64)")
def _only_flags(values, n):
    """Whether n bytes are 0 or 1."""
    bits = np.int8(0)
    bytes_ = int8_at(values)
    for k in range(n):
        bits |= bytes_[k]
    return bits & ~np.int8(1) == 0


@inner("boolean(int64, int64)")
def _some_nan(values, n):
    """Whether one of n float32 is not a number: by its bits, so that it becomes vector code."""
    highest = np.int32(0)
    bits = int32_at(values)
    for k in range(n):
        highest = max(highest, bits[k] & np.int32(0x7FFFFFFF))
    return highest > np.int32(0x7F800000)


@inner("int64(int64, int64)")
def _lowest(values, n):
    """The lowest of n int32, of which there is one."""
    numbers = int32_at(values)
    lowest = numbers[0]
    for k in range(n):
        lowest = min(lowest, numbers[k])
    return np.int64(lowest)


@inner("int64(int64, int64, int64, int64, int64, int64, table, ints, ints)")
def _measure(rollouts, prompt, ids, reason, group_id, shared, rows, about, found):
    """How many rollouts a group of the common layout has, -1 for any other; and its sizes."""
    n = word_at(rollouts + OBJECT_SIZE)
    prompts, named = _length(prompt, about[INT32], about), _text_length(group_id, about)
    said = told = np.int64(0)
    if reason != about[NOTHING]:
        said = _text_length(reason, about)
    if shared != about[NOTHING]:
        told = _text_length(shared, about)
    if (
        word_at(rollouts + OBJECT_TYPE) != about[LIST]
        or n == 0
        or word_at(ids + OBJECT_SIZE) != n
        or min(prompts, named, said, told) < 0
    ):
        return np.int64(-1)
    objects = items_of_list(rollouts)
    texts = items_of_list(ids)
    payload = stored = np.int64(0)
    found[TOGETHER] = 1
    for row in range(n):
        letters = _text_length(texts[row], about)
        if letters < 0 or not _has_layout(objects[row], prompt, about, found, row == 0):
            return np.int64(-1)
        first, one = objects[0], objects[row]
        status = word_at(one + about[STATUS])
        said_here = word_at(one + about[REASON])
        if status != word_at(first + about[STATUS]) or not _same_text(said_here, reason, about):
            return np.int64(-1)
        sent, sent_here = word_at(first + about[DISPATCH]), word_at(one + about[DISPATCH])
        found[TOGETHER] &= _same_int(sent_here, sent, about)
        tokens = _length(word_at(objects[row] + about[RESPONSE]), about[INT32], about)
        arrays = 1 + found[HAS_LOGPROBS] + found[HAS_VERSIONS]
        payload += tokens * (4 * arrays + found[HAS_MASK]) + letters
        stored += round_up(4 * tokens) * arrays + round_up(tokens) * found[HAS_MASK]
        stored += round_up(letters)
    for c in range(rows.shape[0]):
        if rows[c, CELL] == FIXED:
            payload += n * rows[c, SIZE]
    found[GROUP_PAYLOAD] = payload + n * (8 * found[HAS_REWARD] + said)
    found[GROUP_STORED] = stored + n * (8 * found[HAS_REWARD] + round_up(said))
    found[SHARED_PAYLOAD] = 4 * prompts + named + told
    found[SHARED_STORED] = round_up(4 * prompts) + round_up(named) + round_up(told)
    return n


@kernel("boolean(int64, int64, int64, int64, int64, int64, boolean, table, ints, ints)")
def look(rollouts, prompt, ids, reason, group_id, shared, nans, rows, about, found):
    """Whether a group has the common layout; `found` then says how large it is.

    Objects are given by their ids: the list of rollouts, the array of the prompt, the list of
    rollout ids, the finish reason or None, the group's id, and what it shares as JSON or None.
    `rows` are the columns of rows; `nans` asks for a look at logprobs.
    """
    n = _measure(rollouts, prompt, ids, reason, group_id, shared, rows, about, found)
    found[SOME_NAN] = 0
    found[OLDEST] = np.int64(1) << 40
    for row in range(n):
        rollout = items_of_list(rollouts)[row]
        length = _length(word_at(rollout + about[RESPONSE]), about[INT32], about)
        if found[HAS_MASK]:
            mask = data_of(word_at(rollout + about[MASK]))
            if not _only_flags(mask, length):
                return False
        if nans and found[HAS_LOGPROBS]:
            logprobs = data_of(word_at(rollout + about[LOGPROBS]))
            found[SOME_NAN] |= _some_nan(logprobs, length)
        if found[HAS_VERSIONS]:
            versions = data_of(word_at(rollout + about[VERSIONS]))
            found[OLDEST] = min(found[OLDEST], _lowest(versions, length))
    return n > 0


@inner("int64(int64, int64, int64, int64, int64, int64, int64)")
def _put_cell(base, tail, record, offset, source, length, size):
    """Copy a cell in front of the last one, note it in its record, and return where it begins."""
    if length > 0:
        tail -= round_up(length * size)
        store_bytes(base + tail, source, length * size)
    descriptor = int32_at(record + offset)
    descriptor[0] = tail >> 3
    descriptor[1] = length
    return tail


@inner("Tuple((int64, int64))(int64, int64, int64, int64, ints, ints)", hot=True)
def _cell_of(c, rollout, text, reason, about, found):
    """Where the cell of a column begins in a rollout's objects, and how many elements it has: -1
    where there is none.
    """
    array = np.int64(0)
    if c == C_RESPONSE:
        array = word_at(rollout + about[RESPONSE])
    elif c == C_LOGPROBS and found[HAS_LOGPROBS]:
        array = word_at(rollout + about[LOGPROBS])
    elif c == C_MASK and found[HAS_MASK]:
        array = word_at(rollout + about[MASK])
    elif c == C_VERSIONS and found[HAS_VERSIONS]:
        array = word_at(rollout + about[VERSIONS])
    elif c == C_REWARD and found[HAS_REWARD]:
        return word_at(rollout + about[REWARD]) + OBJECT_SIZE, np.int64(1)
    elif c == C_ID:
        return text + about[TEXT_DATA], word_at(text + OBJECT_SIZE)
    elif c == C_REASON and reason != about[NOTHING]:
        return reason + about[TEXT_DATA], word_at(reason + OBJECT_SIZE)
    if array == 0:
        return np.int64(0), np.int64(-1)
    return data_of(array), word_at(word_at(array + ARRAY_SHAPE))


@inner("void(int64, int64, int64, int64, int64, int64, ints, table, ints, ints, ints)", hot=True)
def _write_rollouts(n, rollouts, ids, reason, stamp, dispatch, each, rows, about, found, place):
    """Copy the rollouts: a record for each, and its cells before those that are there already."""
    objects = items_of_list(rollouts)
    texts = items_of_list(ids)
    base, tail = place[BASE], place[TAIL]
    record = base + place[ROW] * place[STRIDE]
    for row in range(n):
        for c in range(rows.shape[0]):
            x = rows[c]
            if x[CELL] != FIXED:
                source, elements = _cell_of(c, objects[row], texts[row], reason, about, found)
                tail = _put_cell(base, tail, record, x[OFFSET], source, elements, x[SIZE])
        sent = each[row] if each.size else dispatch
        int64_at(record + rows[C_STAMP, OFFSET])[0] = stamp
        int64_at(record + rows[C_DISPATCH, OFFSET])[0] = sent
        int8_at(record + rows[C_STATUS, OFFSET])[0] = about[COMPLETED]
        int32_at(record + rows[C_SEGMENT, OFFSET])[0] = 0
        int32_at(record + rows[C_ATTEMPT, OFFSET])[0] = 0
        record += place[STRIDE]
    place[TAIL] = tail


@inner("void(int64, int64, int64, table, ints, ints)", hot=True)
def _write_shared(prompt, group_id, shared, others, about, place):
    """Copy what all rollouts share."""
    base, tail = place[SHARED_BASE], place[SHARED_TAIL]
    record = base + place[SHARED_ROW] * place[SHARED_STRIDE]
    for c in range(others.shape[0]):
        source, elements = np.int64(0), np.int64(-1)
        if c == S_PROMPT:
            source, elements = data_of(prompt), _length(prompt, about[INT32], about)
        elif c == S_ID:
            source, elements = group_id + about[TEXT_DATA], word_at(group_id + OBJECT_SIZE)
        elif c == S_ABOUT and shared != about[NOTHING]:
            source, elements = shared + about[TEXT_DATA], word_at(shared + OBJECT_SIZE)
        tail = _put_cell(base, tail, record, others[c, OFFSET], source, elements, others[c, SIZE])
    place[SHARED_TAIL] = tail


@kernel(
    "boolean(int64, int64, int64, int64, int64, int64, int64, int64, ints, table, table, ints, "
    "ints, ints)"
)
def write(
    rollouts, prompt, ids, reason, group_id, shared, stamp, dispatch, each, rows, others, about,
    found, place,
):  # fmt: skip
    """Copy a group that `look` found fit; False, and nothing is stored, where it has changed since.

    `stamp` is the version of all tokens, `dispatch` that at which rollouts were dispatched, or
    `each` where they differ. They are completed, of segment 0 and at their first attempt.
    """
    parts = found[HAS_LOGPROBS], found[HAS_MASK], found[HAS_REWARD], found[HAS_VERSIONS]
    payload, others_payload = found[GROUP_PAYLOAD], found[SHARED_PAYLOAD]
    stored, others_stored = found[GROUP_STORED], found[SHARED_STORED]
    n = _measure(rollouts, prompt, ids, reason, group_id, shared, rows, about, found)
    if (
        n < 0
        or parts != (found[HAS_LOGPROBS], found[HAS_MASK], found[HAS_REWARD], found[HAS_VERSIONS])
        or (payload, stored) != (found[GROUP_PAYLOAD], found[GROUP_STORED])
        or (others_payload, others_stored) != (found[SHARED_PAYLOAD], found[SHARED_STORED])
    ):
        return False
    _write_rollouts(n, rollouts, ids, reason, stamp, dispatch, each, rows, about, found, place)
    _write_shared(prompt, group_id, shared, others, about, place)
    fence()
    return True

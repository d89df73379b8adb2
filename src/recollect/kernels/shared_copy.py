"""A copy that two threads share, without the GIL from its beginning to its end.

The second thread sleeps at a semaphore and never returns to Python: if it did, it would wait for
the GIL before each part of a copy, while the holder of the GIL may be about to wait for the copy. A
job is a block of int64. A counter hands out its parts, so nobody waits for more than one of them.
Once a job is closed no thread is in it, and its arrays may be freed.
"""

from __future__ import annotations

import numpy as np

from recollect.kernels.layout import (
    COLUMN_BLOCK,
    DIRECTORY_BLOCK,
    JOB_CELLS,
    JOB_CLOSED,
    JOB_COLUMNS,
    JOB_DIRECTORY,
    JOB_LOCATIONS,
    JOB_NEXT,
    JOB_OFFSETS,
    JOB_PARTS,
    JOB_ROWS,
    JOB_SEGMENTS,
    JOB_SEMAPHORE,
    JOB_TARGETS,
    JOB_VARYING,
    JOB_WHOLE,
    JOB_WITHIN,
)
from recollect.kernels.machine.atomics import (
    atomic_add,
    atomic_and,
    atomic_or,
    sched_yield,
    sem_init,
    sem_post,
    sem_wait,
)
from recollect.kernels.machine.compile import inner, kernel
from recollect.kernels.machine.memory import ints_at, table_at
from recollect.kernels.machine.objects import data_of_all
from recollect.kernels.rows import copy_fixed, copy_varying


@inner("int64(ints, int64)")
def _address(job, word):
    return job.ctypes.data + 8 * word


@inner("void(ints)")
def _work(job):
    """Copy one part after the other, until all are handed out."""
    rows, cells, fixed = job[JOB_ROWS], max(job[JOB_CELLS], np.int64(0)), job[JOB_CELLS] < 0
    directory = table_at(job[JOB_DIRECTORY], job[JOB_SEGMENTS], DIRECTORY_BLOCK)
    locations = ints_at(job[JOB_LOCATIONS], rows)
    columns = table_at(job[JOB_COLUMNS], job[JOB_WHOLE], COLUMN_BLOCK)
    varying = ints_at(job[JOB_VARYING], cells)
    offsets = table_at(job[JOB_OFFSETS], cells, rows + 1)
    targets = ints_at(job[JOB_TARGETS], job[JOB_WHOLE] if fixed else cells)
    parts = job[JOB_PARTS]
    while True:
        part = atomic_add(_address(job, JOB_NEXT), 1)
        if part >= parts:
            return
        first, last = rows * part // parts, rows * (part + 1) // parts
        if fixed:
            copy_fixed(directory, locations, columns, targets, first, last)
        else:
            copy_varying(directory, locations, columns, varying, offsets, targets, first, last)


@kernel("void(ints)", nogil=True)
def prepare(job):
    """Make a block ready for its first job."""
    sem_init(_address(job, JOB_SEMAPHORE), 0, 0)
    job[JOB_WITHIN] = JOB_CLOSED


@kernel("void(ints)", nogil=True)
def serve(job):
    """Help with every job, for ever."""
    while True:
        if sem_wait(_address(job, JOB_SEMAPHORE)) != 0:
            continue  # a signal came
        if atomic_add(_address(job, JOB_WITHIN), 1) < JOB_CLOSED:
            _work(job)
        atomic_add(_address(job, JOB_WITHIN), -1)


@inner("void(ints, table, ints, table, ints, int64)")
def _open(job, directory, locations, columns, targets, parts):
    """Open a job, after its cells have been noted, and wake the other thread."""
    job[JOB_NEXT], job[JOB_PARTS], job[JOB_ROWS] = 0, parts, locations.size
    job[JOB_DIRECTORY], job[JOB_SEGMENTS] = directory.ctypes.data, directory.shape[0]
    job[JOB_COLUMNS], job[JOB_WHOLE] = columns.ctypes.data, columns.shape[0]
    job[JOB_LOCATIONS], job[JOB_TARGETS] = locations.ctypes.data, targets.ctypes.data
    atomic_and(_address(job, JOB_WITHIN), JOB_CLOSED - 1)
    sem_post(_address(job, JOB_SEMAPHORE))


@kernel("void(ints, table, ints, table, ints, table, int64, ints, int64)")
def begin_cells(job, directory, locations, columns, varying, offsets, list_id, targets, parts):
    """Begin a job that is `gather_cells` in parts."""
    data_of_all(list_id, targets)
    job[JOB_VARYING], job[JOB_CELLS] = varying.ctypes.data, varying.size
    job[JOB_OFFSETS] = offsets.ctypes.data
    _open(job, directory, locations, columns, targets, parts)


@kernel("void(ints, table, ints, table, int64, ints, int64)")
def begin_rows(job, directory, locations, columns, list_id, targets, parts):
    """Begin a job that is `gather` in parts."""
    data_of_all(list_id, targets)
    job[JOB_CELLS] = -1
    _open(job, directory, locations, columns, targets, parts)


@kernel("void(ints, boolean)", nogil=True)
def end(job, help_first):
    """Close a job, after doing the rest of it if `help_first`; returns once no thread is in it."""
    if help_first:
        _work(job)
    else:
        atomic_add(_address(job, JOB_NEXT), job[JOB_PARTS])
    atomic_or(_address(job, JOB_WITHIN), JOB_CLOSED)
    while atomic_add(_address(job, JOB_WITHIN), 0) != JOB_CLOSED:
        sched_yield()

"""A second thread takes parts of large copies; what is copied does not depend on it."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

import recollect as rc
from recollect.storage import helping, rows


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(helping, "cores", lambda: 2)
    monkeypatch.setattr(rows, "MANY_CELLS", 0)


def test_every_stretch_is_copied_once_by_one_of_two_threads(two_cores):
    done, threads = [], set()

    def copy(name, begin, end):
        time.sleep(0.02)
        done.append((name, begin, end))
        threads.add(threading.get_ident())

    helping.in_parts(copy, [0, 1, 1, 4, 9], "x")
    assert sorted(done) == [("x", 0, 1), ("x", 1, 1), ("x", 1, 4), ("x", 4, 9)]
    assert len(threads) == 2


def test_an_error_of_the_other_thread_is_raised_here(two_cores):
    me = threading.get_ident()

    def copy(begin, end):
        if threading.get_ident() != me:
            raise RuntimeError("broken")
        time.sleep(0.05)

    with pytest.raises(RuntimeError, match="broken"):
        helping.in_parts(copy, range(9))
    helping.in_parts(lambda begin, end: None, range(9))  # and nothing is held afterwards


def test_who_finds_it_busy_copies_alone(two_cores):
    threads = set()
    with helping._busy:
        helping.in_parts(lambda begin, end: threads.add(threading.get_ident()), range(9))
    assert threads == {threading.get_ident()}


def test_one_core_makes_no_thread(monkeypatch):
    monkeypatch.setattr(helping, "cores", lambda: 1)
    monkeypatch.setattr(helping, "_pool", None)
    helping.in_parts(lambda begin, end: None, range(9))
    assert helping._pool is None


def test_a_forked_process_has_a_thread_of_its_own(two_cores):
    helping.in_parts(lambda begin, end: None, range(9))
    child = os.fork()
    if child == 0:
        threads = set()

        def copy(begin, end):
            time.sleep(0.02)
            threads.add(threading.get_ident())

        helping.in_parts(copy, range(9))
        os._exit(len(threads))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


def _batch(items):
    table = rc.Table("t", capacity=items, seed=3, sampler=rc.Fifo())
    lengths = np.random.default_rng(items).integers(0, 9, items)
    ragged = rc.Ragged.from_list([np.arange(n) for n in lengths])
    table.insert({"x": np.arange(3 * items).reshape(-1, 3), "r": ragged, "s": ragged})
    return table.sample(items)


@pytest.mark.parametrize("items", [1, 2, 7, 8, 9, 100, 1000])
def test_batches_are_the_same_in_parts(items, monkeypatch, two_cores):
    parts = _batch(items)
    monkeypatch.undo()
    whole = _batch(items)
    assert np.array_equal(parts["x"], whole["x"])
    for name in ("r", "s"):
        assert np.array_equal(parts[name].values, whole[name].values)
        assert np.array_equal(parts[name].offsets, whole[name].offsets)

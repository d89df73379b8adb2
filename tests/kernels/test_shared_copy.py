"""A second thread takes parts of large copies; what is copied does not depend on it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import recollect as rc
from recollect.kernels import layout
from recollect.storage import copy_thread as helping
from recollect.storage import row_reader


@pytest.fixture
def two_cores(monkeypatch):
    """As on a machine with two cores, however few bytes there are."""
    monkeypatch.setattr(helping, "cores", lambda: 2)
    monkeypatch.setattr(row_reader, "MANY_CELLS", 0)


def ragged_table(items, seed=0, longest=400):
    """A table of cells whose content says which item they are of."""
    table = rc.Table("t", capacity=items, seed=seed)
    lengths = np.random.default_rng(seed).integers(0, longest, items)
    table.insert(
        {
            "x": np.arange(items),
            "r": rc.Ragged.from_list([np.full(n, i) for i, n in enumerate(lengths)]),
            "s": rc.Ragged.from_list([np.full(n, -i, np.int16) for i, n in enumerate(lengths)]),
        }
    )
    return table, lengths


def check_whole(batch, lengths):
    """Every cell is that of its row."""
    x = batch["x"]
    np.testing.assert_array_equal(batch["r"].lengths, lengths[x])
    np.testing.assert_array_equal(batch["r"].values, np.repeat(x, lengths[x]))
    np.testing.assert_array_equal(batch["s"].values, np.repeat(-x, lengths[x]).astype(np.int16))


def begun(table, items):
    """A copy of a batch that has begun and is not finished."""
    chosen = table.core.storage.sample(table.core.rules.sampler, items, None, True, 0)
    return chosen._reader.begin(np.empty)


def test_the_other_thread_copies_while_this_one_holds_the_gil(two_cores):
    table, lengths = ragged_table(500)
    table.sample(500)
    crew = helping._crew
    gathering = begun(table, 500)
    deadline = time.monotonic() + 20.0
    switching = sys.getswitchinterval()
    sys.setswitchinterval(60.0)  # nobody gets the GIL of this thread
    try:
        while crew.job[layout.JOB_NEXT] <= helping.PARTS and time.monotonic() < deadline:
            pass
        assert crew.job[layout.JOB_NEXT] > helping.PARTS  # all parts, by the other thread alone
    finally:
        sys.setswitchinterval(switching)
    columns, _ = gathering.columns()
    gathering.finish()
    check_whole(columns, lengths)


def test_a_copy_that_is_given_up_lets_the_other_thread_go(two_cores):
    table, lengths = ragged_table(300)
    table.sample(1)
    for _ in range(200):
        gathering = begun(table, 300)
        assert helping._crew._owner is not None
        del gathering
        assert helping._crew._owner is None
        assert helping._crew.held is None
        assert helping._crew.job[layout.JOB_WITHIN] == layout.JOB_CLOSED
    check_whole(table.sample(300), lengths)


def test_a_copy_whose_end_was_interrupted_is_ended_by_the_next(two_cores, monkeypatch):
    """The handler of a signal may raise where a copy is given up: what it used stays until then."""
    table, lengths = ragged_table(300)
    table.sample(1)
    crew = helping._crew

    def interrupted(turn):
        raise KeyboardInterrupt

    for _ in range(50):
        gathering = begun(table, 300)
        with monkeypatch.context() as patch:
            patch.setattr(crew, "give_up", interrupted, raising=False)
            patch.setattr(sys, "unraisablehook", lambda unraisable: None)
            del gathering
        assert crew.held is not None
        assert crew.job[layout.JOB_WITHIN] < layout.JOB_CLOSED  # still open
        check_whole(table.sample(300), lengths)
        assert crew.held is None
        assert crew._owner is None


def test_a_copy_that_is_collected_late_leaves_the_next_one_alone(two_cores):
    """References to what is in a cycle die before it is told, and meanwhile another has begun."""
    table, lengths = ragged_table(3000)
    table.sample(1)

    class Slow:
        """In a cycle with a copy, and told first: the next copy begins meanwhile."""

        def __del__(self):
            batches.append(begun(table, 3000))

    for _ in range(20):
        batches = []
        slow = Slow()
        slow.itself, slow.copy = slow, begun(table, 3000)
        del slow
        gc.collect()
        (gathering,) = batches
        assert gathering.shared
        columns, _ = gathering.columns()
        gathering.finish()
        check_whole(columns, lengths)


def test_who_finds_the_other_thread_copying_copies_alone(two_cores):
    table, lengths = ragged_table(300)
    table.sample(1)
    first = begun(table, 300)
    owner = helping._crew._owner
    check_whole(table.sample(300), lengths)
    assert helping._crew._owner is owner
    columns, _ = first.columns()
    first.finish()
    check_whole(columns, lengths)
    assert helping._crew._owner is None


class Late:
    """A copy of which nothing is done before its end: what is read too early is wrong."""

    shared = True

    def __init__(self, kernels, arguments, values, held, *, worth):
        self._copy, self._arguments, self._values = kernels.rows.gather_cells, arguments, values
        for array, length in zip(values, arguments[4][:, -1], strict=True):
            if length == len(array):
                array.fill(77)

    def finish(self):
        self._copy(*self._arguments, id(self._values))


@pytest.mark.parametrize("masked", [True, False], ids=["masks", "no masks"])
@pytest.mark.parametrize("version", [None, 3], ids=["no version", "a version"])
@pytest.mark.parametrize("prompt", ["shared", "own", "none"])
def test_groups_are_whole_however_late_their_tokens_are_copied(
    monkeypatch, prompt, version, masked
):
    def group(number):
        shared = np.full(0 if prompt == "none" else 3, number, np.int32)
        rollouts = []
        for place in range(3):
            response = np.arange(5 + number + place, dtype=np.int32)
            own = np.full(4, number + place, np.int32) if prompt == "own" and place else shared
            mask = np.arange(response.size, dtype=np.int8) % 2 if masked else None
            rollout = rc.Rollout(
                own, response, logprobs=np.zeros(response.size, np.float32), loss_mask=mask,
                reward=1.0, dispatch_version=2, finish_reason="stop",
            )  # fmt: skip
            rollouts.append(rollout)
        return rc.Group(rollouts, prompt_ids=shared, group_id=f"g{number}", task="math")

    groups = [group(number) for number in range(6)]
    plain, late = (rc.RolloutBuffer(seed=0).sync for _ in range(2))
    for one in groups:
        plain.put(one, version=version)
        late.put(one, version=version)
    expected = plain.take_batch({"math": 6})
    monkeypatch.setattr(row_reader, "SharedCopy", Late)
    taken = late.take_batch({"math": 6})
    assert taken.batch.equals(expected.batch)
    assert taken.all == list(expected.all)
    assert [len(each) for each in taken.batch["response_ids"].to_list()] == [
        5 + number + place for number in range(6) for place in range(3)
    ]


def test_where_no_thread_can_be_made_one_copies_alone(two_cores, monkeypatch):
    def refused(self):
        raise RuntimeError("can't start new thread")

    table, lengths = ragged_table(300)
    monkeypatch.setattr(helping, "_crew", None)
    monkeypatch.setattr(threading.Thread, "start", refused)
    check_whole(table.sample(300), lengths)
    assert helping._crew is None


def test_threads_that_copy_at_once_all_get_whole_batches(two_cores):
    table, lengths = ragged_table(400, longest=900)
    errors = []

    def draw():
        try:
            for _ in range(150):
                check_whole(table.sample(200), lengths)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=draw) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_one_core_copies_alone(monkeypatch):
    monkeypatch.setattr(row_reader, "MANY_CELLS", 0)
    monkeypatch.setattr(helping, "cores", lambda: 1)
    monkeypatch.setattr(helping, "_crew", None)
    table, lengths = ragged_table(300)
    check_whole(table.sample(300), lengths)
    assert helping._crew is None


def test_a_forked_process_copies_with_a_thread_of_its_own(two_cores):
    table, lengths = ragged_table(300)
    check_whole(table.sample(300), lengths)
    parent = helping._crew
    child = os.fork()
    if child == 0:
        try:
            check_whole(table.sample(300), lengths)
            fine = helping._crew is not None and helping._crew is not parent
            os._exit(0 if fine else 3)
        except BaseException:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_process_that_forks_within_a_copy_finishes_it_twice(two_cores):
    table, lengths = ragged_table(300)
    table.sample(1)
    for _ in range(5):
        gathering = begun(table, 300)
        child = os.fork()
        columns, _ = gathering.columns()
        gathering.finish()
        if child == 0:
            try:
                check_whole(columns, lengths)
                os._exit(0)
            except BaseException:
                os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        check_whole(columns, lengths)


def test_a_process_ends_though_the_thread_never_does():
    code = """
import numpy as np, recollect as rc
from recollect.storage import copy_thread as helping
helping.cores = lambda: 2
table = rc.Table("t", capacity=64)
table.insert({"r": rc.Ragged.from_list([np.zeros(20_000) for _ in range(64)])})
table.sample(64)
print(helping._crew is not None)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout.strip()) == (0, "True"), ended.stderr


class Together:
    """Compares nothing; whoever of two threads comes first waits until the other has come too."""

    def __init__(self):
        self.done, self.threads = [], set()
        self._both = threading.Barrier(2, timeout=20)

    def __call__(self, begin, end):
        if threading.get_ident() not in self.threads:
            self._both.wait()
            self.threads.add(threading.get_ident())
        self.done.append((begin, end))


def test_every_stretch_is_compared_once_by_one_of_two_threads(two_cores):
    compare = Together()
    helping.in_parts(compare, [0, 1, 1, 4, 9])
    assert sorted(compare.done) == [(0, 1), (1, 1), (1, 4), (4, 9)]
    assert len(compare.threads) == 2


def test_an_error_of_the_other_thread_is_raised_here(two_cores):
    me = threading.get_ident()
    came = threading.Event()

    def copy(begin, end):
        if threading.get_ident() != me:
            came.set()
            raise RuntimeError("broken")
        came.wait(20)

    with pytest.raises(RuntimeError, match="broken"):
        helping.in_parts(copy, range(9))
    helping.in_parts(lambda begin, end: None, range(9))  # and nothing is held afterwards


def test_who_finds_it_busy_copies_alone(two_cores):
    threads = set()
    with helping._busy_comparing:
        helping.in_parts(lambda begin, end: threads.add(threading.get_ident()), range(9))
    assert threads == {threading.get_ident()}


def test_one_core_makes_no_thread(monkeypatch):
    monkeypatch.setattr(helping, "cores", lambda: 1)
    monkeypatch.setattr(helping, "_comparing", None)
    helping.in_parts(lambda begin, end: None, range(9))
    assert helping._comparing is None


def test_a_forked_process_has_a_thread_of_its_own(two_cores):
    helping.in_parts(lambda begin, end: None, range(9))
    child = os.fork()
    if child == 0:
        compare = Together()
        try:
            helping.in_parts(compare, range(9))
        finally:
            os._exit(len(compare.threads))
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

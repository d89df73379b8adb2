"""The counts of both sides."""

from __future__ import annotations

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import recollect as rc
from recollect.production import Handed, Progress, Window
from recollect.production.context import Consumption


def observed(progress, task="math", *, confirmed=0, leased=0, completed=0):
    return progress.observe(task, Handed(confirmed, leased, completed))


def test_it_begins_with_nothing_planned():
    progress = Progress(["math", "code"])
    assert (progress.future_step, progress.consumer_step, progress.target_step) == (1, 1, 0)
    assert [(c.target, c.consumed, c.shortage) for c in progress.values()] == [(0, 0, 0)] * 2


def test_the_target_is_the_sum_of_the_allocations():
    progress = Progress(["math", "code"])
    assert progress.plan({"math": 5, "code": 2}) == 1
    assert progress.plan({"math": 1}) == 2
    assert (progress["math"].target, progress["code"].target) == (6, 2)
    assert progress.allocation(2) == {"math": 1, "code": 0}
    assert progress.target_step == 2
    assert progress.future_step == 1  # planned is not produced
    progress.produced()
    assert progress.future_step == 3


def test_taking_is_no_shortage_and_expiring_is():
    progress = Progress(["math"])
    progress.plan({"math": 4})
    assert observed(progress, completed=4).shortage == 0
    assert observed(progress, leased=4).shortage == 0  # taken
    assert observed(progress, confirmed=4).shortage == 0  # trained
    progress.plan({"math": 4})
    assert observed(progress, confirmed=4, completed=4).shortage == 0
    assert observed(progress, confirmed=4, completed=1).shortage == 3  # three expired


def test_giving_back_a_batch_counts_it_once():
    progress = Progress(["math"])
    progress.plan({"math": 4})
    assert observed(progress, leased=4).consumed == 4
    assert observed(progress, completed=4).consumed == 0
    assert progress["math"].available == 4
    progress.plan({"math": 4})
    assert progress["math"].shortage == 4  # the next step still gets its batch


def test_the_buffer_counts_from_its_own_beginning():
    progress = Progress(["math"])
    state = progress.state()
    state["tasks"]["math"]["consumed"] = 10
    progress.restore(state, {"math": Handed(3, 0, 0)})  # 3 of another life
    assert progress["math"].consumed == 10
    assert observed(progress, confirmed=5, leased=1).consumed == 13


def test_a_trainer_that_asks_for_more_than_was_planned_raises_the_target():
    progress = Progress(["math"])
    progress.plan({"math": 4})
    assert not progress.ask({"math": 4})
    assert progress.ask({"math": 6})
    assert progress["math"].target == 6
    progress.plan({"math": 4})  # and the next step comes on top
    assert progress["math"].target == 10


def test_a_trainer_that_begins_later_is_planned_for_from_there():
    progress = Progress(["math"])
    progress.consume(101)
    assert (progress.target_step, progress.future_step) == (100, 101)
    assert progress.plan({"math": 4}) == 101
    assert progress["math"].target == 4


def test_windows_are_read_once():
    progress = Progress(["math", "code"])
    progress.begin(10.0)
    progress["math"].window.tokens += 7
    progress["math"].window.times.append(2.0)
    windows = progress.read(13.0)
    assert (windows["math"].tokens, windows["math"].seconds) == (7, 3.0)
    assert windows["code"].seconds == 3.0
    again = progress.read(14.0)["math"]
    assert (again.tokens, again.times, again.seconds) == (0, [], 1.0)


def test_windows_of_tasks_add_up():
    one = Window(1, 8, 100, 2.0, 8, 1, 2, 0, [1.0], 5.0, 3.0)
    two = Window(2, 16, 50, 4.0, 16, 0, 1, 1, [2.0], 4.0, 4.0)
    both = one + two
    assert (both.groups, both.rollouts, both.tokens, both.failed, both.filtered) == (
        3,
        24,
        150,
        1,
        3,
    )
    assert both.reward_mean == 0.25
    assert both.times == [1.0, 2.0]
    assert (both.began, both.seconds) == (4.0, 4.0)


def test_without_the_buffer_the_plan_is_cut_back_to_what_was_consumed():
    progress = Progress(["math"])
    for _ in range(3):
        progress.plan({"math": 4})
    progress.produced()
    observed(progress, confirmed=4, leased=4, completed=4)
    progress.consume(3)
    before = progress.summary()
    saved = json.loads(json.dumps(progress.state(include_buffer=False)))
    assert progress.summary() == before  # saving changes nothing that is live
    again = Progress(["math"])
    again.restore(saved, {"math": Handed(0, 0, 0)})
    assert (again.future_step, again.consumer_step, again.target_step) == (3, 3, 2)
    assert again["math"].target == again["math"].consumed == 4
    assert again["math"].shortage == 0


def test_with_the_buffer_everything_goes_on():
    progress = Progress(["math"])
    for _ in range(3):
        progress.plan({"math": 4})
    progress.produced()
    observed(progress, confirmed=4, leased=4, completed=4)
    progress.consume(3)
    again = Progress(["math"])
    again.restore(json.loads(json.dumps(progress.state())), {"math": Handed(4, 0, 8)})
    assert (again.future_step, again.consumer_step, again.target_step) == (4, 3, 3)
    assert again["math"].consumed == 4  # leases do not survive
    assert again["math"].shortage == 0
    assert again.allocation(3) == {"math": 4}


def test_confirmed_groups_of_later_steps_are_not_in_a_checkpoint():
    progress = Progress(["math"])
    progress.plan({"math": 4})
    observed(progress, confirmed=4)
    assert progress.state(consumed_less={"math": 3})["tasks"]["math"]["consumed"] == 1
    without = progress.state(include_buffer=False, consumed_less={"math": 3})
    assert without["tasks"]["math"] == {"target": 1, "consumed": 1}


def test_unknown_tasks_and_states_are_named():
    progress = Progress(["math"])
    with pytest.raises(rc.InvalidValue, match=r"no task 'code'; there are math"):
        progress.plan({"code": 1})
    with pytest.raises(rc.InvalidValue, match=r"expected what Progress.state\(\) returned"):
        progress.restore({}, {})


# -- what the buffer says -------------------------------------------------------------------------
def group(name, status="COMPLETED"):
    reason = {"COMPLETED": "stop", "ABORTED": "abort"}[status]
    rollout = rc.Rollout([1], [2], finish_reason=reason)
    return rc.Group([rollout], task="math", group_id=name)


class Books(RuleBasedStateMachine):
    """However a trainer takes, gives back and confirms, the numbers are those of a list."""

    def __init__(self):
        super().__init__()
        self.clock = rc.ManualClock()
        self.buffer = rc.RolloutBuffer(clock=self.clock).sync
        self.face = rc.RolloutBuffer.__new__(rc.RolloutBuffer)
        self.face._core, self.face.sync = self.buffer.core, self.buffer
        self.consumption = Consumption(self.face)
        self.names = 0
        self.stored = {"COMPLETED": 0, "ABORTED": 0}
        self.leases = {}  # lease -> (groups, deadline)
        self.trained = 0

    @rule(status=st.sampled_from(["COMPLETED", "ABORTED"]))
    def put(self, status):
        self.buffer.put(group(f"g{self.names}", status))
        self.names += 1
        self.stored[status] += 1

    @rule(n=st.integers(1, 4), span=st.sampled_from([True, 10.0]))
    def lease(self, n, span):
        taken = self.buffer.take(n, "math", lease=span)
        self.stored["COMPLETED"] -= len(taken)
        if len(taken):
            ends = float("inf") if span is True else self.clock.monotonic() + span
            self.leases[taken.lease.id] = (taken.lease, len(taken), ends)

    @rule(n=st.integers(1, 3))
    def take_for_good(self, n):
        taken = self.buffer.take(n, "math")
        self.stored["COMPLETED"] -= len(taken)
        self.trained += len(taken)

    @rule(n=st.integers(1, 3))
    def retake(self, n):
        pairs = self.consumption.retake(n, "math", rc.Status.ABORTED)
        assert len(pairs) == min(n, self.stored["ABORTED"])
        assert all(one is not other and one.equals(other) for one, other in pairs)
        self.stored["ABORTED"] -= len(pairs)

    @rule(confirms=st.booleans())
    def settle(self, confirms):
        if self.leases:
            lease, count, _ = self.leases.pop(next(iter(self.leases)))
            if confirms:
                self.buffer.confirm(lease)
                self.trained += count
            else:
                self.buffer.give_back(lease)
                self.stored["COMPLETED"] += count

    @rule(seconds=st.sampled_from([1.0, 11.0]))
    def wait(self, seconds):
        self.clock.advance(seconds)
        now = self.clock.monotonic()
        for number in [n for n, (_, _, ends) in self.leases.items() if ends <= now]:
            self.stored["COMPLETED"] += self.leases.pop(number)[1]

    @invariant()
    def agrees(self):
        leased = sum(count for _, count, _ in self.leases.values())
        expected = Handed(self.trained, leased, self.stored["COMPLETED"])
        assert self.consumption.look("math") == expected


Books.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestBooks = Books.TestCase

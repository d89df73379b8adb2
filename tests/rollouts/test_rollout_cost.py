"""Cost does not grow with what is stored, and memory does not grow with what has passed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable

import numpy as np
import pytest

import recollect as rc

SMALL, LARGE = 1_000, 100_000


def small_group(n: int) -> rc.Group:
    return rc.Group(
        [rc.Rollout(None, np.array([n % 100], np.int32), finish_reason="stop")],
        task="math" if n % 4 else "code",
    )


def filled(groups: int, order: rc.Selector) -> rc.RolloutBuffer:
    """A buffer in which nothing expires for long; the versions come in any order."""
    buffer = rc.RolloutBuffer(order=order, staleness=rc.Staleness(max_staleness=10**6), max_uses=0)
    versions = np.random.default_rng(0).permutation(groups)
    for n in range(groups):
        buffer.sync.put(small_group(n), version=int(versions[n]))
    return buffer


def count(buffer: rc.RolloutBuffer) -> None:
    buffer.count("math", "COMPLETED")


def counts(buffer: rc.RolloutBuffer) -> None:
    buffer.counts()


def is_ready(buffer: rc.RolloutBuffer) -> None:
    assert buffer.is_ready({"math": 48, "code": 16})


def take_batch(buffer: rc.RolloutBuffer) -> None:
    taken = buffer.sync.take_batch({"math": 48, "code": 16}, timeout=0, lease=True)
    buffer.sync.give_back(taken.lease)


def take(buffer: rc.RolloutBuffer) -> None:
    taken = buffer.sync.take(64, "math", lease=True)
    buffer.sync.give_back(taken.lease)


def advance_that_expires_nothing(buffer: rc.RolloutBuffer) -> None:
    assert buffer.sync.advance(buffer.train_step + 1) == {}


def sample(buffer: rc.RolloutBuffer) -> None:
    buffer.sync.sample(64, timeout=0)


def put_and_discard(buffer: rc.RolloutBuffer) -> None:
    key = buffer.sync.put(small_group(1), version=10**5)
    buffer.sync.discard([key])


def reserve_and_give_back(buffer: rc.RolloutBuffer) -> None:
    assert buffer.sync.reserve_all(3, "math", timeout=0) == buffer.unreserve(3, "math")


def stats(buffer: rc.RolloutBuffer) -> None:
    buffer.stats()


VERBS = [
    count,
    counts,
    is_ready,
    take_batch,
    take,
    advance_that_expires_nothing,
    sample,
    put_and_discard,
    reserve_and_give_back,
    stats,
]
HANDS_OUT = (take_batch, take, sample)


def visits_of(verb: Callable[[rc.RolloutBuffer], None], buffer: rc.RolloutBuffer) -> float:
    """Index entries that one call touches, on average over a few."""
    for _ in range(3):  # what the first call of a kind makes is there
        verb(buffer)
    storage = buffer.table.core.storage
    before = storage.visits
    for _ in range(4):
        verb(buffer)
    return (storage.visits - before) / 4


def calls_of(verb: Callable[[rc.RolloutBuffer], None], buffer: rc.RolloutBuffer) -> int:
    """Python calls that a verb makes: a loop over what is stored would show in them."""
    calls = 0

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        verb(buffer)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize(
    ("order", "large"), [(rc.StalestFirst(), LARGE), (rc.Fifo(), LARGE // 5)], ids=repr
)
def test_operations_do_not_grow_with_what_is_stored(order: rc.Selector, large: int) -> None:
    """One test for all verbs: filling the large buffer takes most of the time."""
    few, many = filled(SMALL, order), filled(large, order)
    # a heap of eight children a node has 4 levels at 1,000 and 6 at 100,000
    deeper = 1 if isinstance(order, rc.Fifo) else 6 / 4
    for verb in VERBS:
        here, there = visits_of(verb, few), visits_of(verb, many)
        assert there <= 2 * deeper * here + 16, f"{verb.__name__}: {here:.0f}, then {there:.0f}"
        assert verb not in HANDS_OUT or here >= 64, f"{verb.__name__} is not counted: {here:.0f}"
        calls, more_calls = calls_of(verb, few), calls_of(verb, many)
        assert more_calls <= 1.5 * calls + 100, f"{verb.__name__}: {calls}, then {more_calls}"


@pytest.mark.parametrize("on_expire", ["retry", "discard"])
def test_advance_costs_what_expires(on_expire) -> None:
    def cost(groups: int) -> int:
        rule = rc.Staleness(max_staleness=99, on_expire=on_expire)
        buffer = rc.RolloutBuffer(staleness=rule)
        for n in range(groups):
            buffer.sync.put(small_group(n), version=50 if n >= 20 else n % 2)
        assert buffer.sync.advance(101) == {"math": 5, "code": 5}
        storage = buffer.table.core.storage
        before = storage.visits
        assert buffer.sync.advance(102) == {"math": 10}
        return storage.visits - before

    few, many = cost(1000), cost(10_000)
    assert many <= 3 * few + 64, f"{few} at 1,000 groups, {many} at 10,000"


CHURN = """
    import gc, sys
    import numpy as np, psutil
    import recollect as rc

    CAPACITY, SIZE = 400, 8
    rng = np.random.default_rng(0)

    def resident():
        gc.collect()
        return psutil.Process().memory_info().rss

    def group(n):
        rollouts = []
        for length in np.minimum(rng.lognormal(np.log(1500), 0.7, SIZE), 8192).astype(int):
            rollouts.append(
                rc.Rollout(
                    None,
                    rng.integers(0, 50_000, length).astype(np.int32),
                    logprobs=rng.random(length).astype(np.float32),
                    loss_mask=np.ones(length, np.int8),
                    reward=float(n),
                    finish_reason="stop",
                )
            )
        blobs = {"image": [bytes([n % 256]) * 20_000]}
        return rc.Group(rollouts, task="math", prompt_ids=np.arange(200), blobs=blobs)

    mode = sys.argv[1]
    rule = rc.Staleness(max_staleness=CAPACITY, on_expire="retry" if mode == "retry" else "discard")
    buffer = rc.RolloutBuffer(
        capacity=CAPACITY, overflow="drop_stalest", staleness=rule, max_uses=4,
        order=rc.Uniform() if mode == "sample" else rc.StalestFirst(), seed=0, needs=("ref",),
    ).sync
    def annotated(n):
        one = group(n)
        buffer.put(one, version=n)
        arrays = {"ref": [np.zeros(len(r.response_ids), np.float32) for r in one]}
        buffer.annotate([r.rollout_id for r in one], 0, arrays=arrays)
    annotated(0)
    buffer.sample(1)
    before = resident()
    worst = 0.0
    for n in range(1, 10 * CAPACITY):
        annotated(n)
        if mode == "sample" and n > CAPACITY // 2:
            buffer.sample(2)
        if mode == "lease" and n % 8 == 0:
            taken = buffer.take_batch({"math": 4}, lease=True)
            buffer.give_back(taken.lease) if n % 16 else buffer.confirm(taken.lease)
            del taken
        if mode == "retry" and n % 50 == 0:
            buffer.advance(n + CAPACITY - 100)
            buffer.take(20, status="EXPIRED")
        if n > CAPACITY and n % 100 == 0:
            allowed = 1.25 * buffer.nbytes + (64 << 20)
            worst = max(worst, (resident() - before) / allowed)
    stored = buffer.nbytes
    for status in rc.Status:
        buffer.take(CAPACITY, status=status)
    print(worst, (resident() - before) / (64 << 20), stored / 2**20, len(buffer), buffer.nbytes)
"""


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["put", "sample", "lease", "retry"])
def test_resident_memory_stays_within_the_bound_after_ten_times_the_capacity(mode) -> None:
    script = textwrap.dedent(CHURN)
    run = subprocess.run(
        [sys.executable, "-c", script, mode], capture_output=True, text=True, check=True
    )
    worst, empty, stored, left, nbytes = map(float, run.stdout.split())
    print(f"{mode}: {worst:.2f} of the bound with {stored:.0f} MiB stored, {empty:.2f} when empty")
    assert worst < 1.0
    assert empty < 1.0
    assert (left, nbytes) == (0, 0)

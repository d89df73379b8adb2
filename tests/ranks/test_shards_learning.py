"""Training that is resumed on another number of ranks goes on, and learns: real processes."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from checkpoint_ranks import Ranks

from recollect.ranks.shard_sets import find_sets

PROGRAM = str(Path(__file__).parents[1] / "support" / "dqn_ranks.py")
STEPS = 300
LEARNED = 0.9  # of what walks from all cells could be worth


def copy(source: Path, folder: Path) -> None:
    folder.mkdir()
    shutil.copytree(source / "saved", folder / "saved")
    shutil.copy(source / "model.npz", folder)


def resume(source: Path, folder: Path, count: int, **options: object) -> list[dict]:
    """Go on from a copy of a run's folder; returns what each rank said at its end."""
    copy(source, folder)
    with Ranks(folder, count, PROGRAM, seed=50, steps=STEPS, **options) as ranks:
        for rank in range(count):
            assert ranks.status(rank) == 0, ranks.everything()
        return [
            {"first": ranks.lines(rank)[1], "last": ranks.lines(rank)[-1]} for rank in range(count)
        ]


def test_three_ranks_stopped_by_a_request_go_on_as_two_and_as_five(tmp_path: Path) -> None:
    first = tmp_path / "three"
    options = {"seed": 3, "steps": 1000, "request": [2, 40], "stop_when_saved": True}
    with Ranks(first, 3, PROGRAM, **options) as ranks:
        for rank in range(3):
            assert ranks.status(rank) == 0, ranks.everything()
        ends = [ranks.lines(rank)[-1] for rank in range(3)]
        saved = [ranks.told(rank, "saved") for rank in range(3)]
        assert saved[0] == saved[1] == saved[2]
        (step,) = saved[0]
        answers = [answer for rank in range(3) for answer in ranks.told(rank, "answer")]
        assert answers == [f"step-{step:012d}"]
        sizes = sum(ranks.told(rank, "size")[-1] for rank in range(3))
        before = max(one["score"] for one in ends if "score" in one)
    assert step < 200
    assert before < LEARNED  # it was stopped before it had learned
    for count in (2, 5):
        said = resume(first, tmp_path / str(count), count)
        assert {one["first"]["loaded"] for one in said} == {step}
        assert sum(one["first"]["size"] for one in said) == sizes
        assert len({one["first"]["calls"] for one in said}) == 1  # the schedule goes on
        assert said[0]["first"]["calls"] > 0
        assert {one["last"]["done"] for one in said} == {STEPS}
        assert min(one["last"]["score"] for one in said) >= LEARNED


def test_a_run_that_crashed_goes_on_and_so_does_one_that_was_told_to_end(tmp_path: Path) -> None:
    first = tmp_path / "three"
    with Ranks(first, 3, PROGRAM, seed=4, steps=10_000, fail=[1, 60]) as ranks:
        assert ranks.status(1) == 1
        crash = ranks.wait_for(
            lambda: [one for one in find_sets(first / "saved") if not one.missing]
        )[0]
        assert crash.steps == {0: 60, 1: 60, 2: 60}  # the others hang in the collective of step 61
        assert crash.committed
        assert not ranks.ended(0)
        for rank in (0, 2):
            ranks.signal(rank, signal.SIGTERM)
        for rank in (0, 2):
            assert ranks.status(rank) in (-signal.SIGTERM, 128 + signal.SIGTERM)
    second = tmp_path / "two"
    copy(first, second)
    with Ranks(second, 2, PROGRAM, seed=5, steps=100_000) as ranks:
        ranks.wait_for(lambda: all(ranks.step(rank) >= 80 for rank in range(2)))
        assert [ranks.told(rank, "loaded") for rank in range(2)] == [[60], [60]]
        for rank in range(2):
            ranks.signal(rank, signal.SIGTERM)
        for rank in range(2):
            assert ranks.status(rank) in (-signal.SIGTERM, 128 + signal.SIGTERM)
    crash = find_sets(second / "saved")[-1]
    assert crash.world_size == 2
    assert not crash.missing
    assert crash.step >= 80
    said = resume(second, tmp_path / "four", 4, allow_partial=True)
    assert {one["first"]["loaded"] for one in said} == {crash.step}
    assert min(one["last"]["score"] for one in said) >= LEARNED

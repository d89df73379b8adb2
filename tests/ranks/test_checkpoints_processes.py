"""Checkpoints between real processes: requests, ranks that stop, die or fail, and signals."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from checkpoint_ranks import Ranks

import recollect as rc
from recollect.ranks.shard_sets import find_sets


def post(address: Any, path: str = "/checkpoint", **headers: str) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(
        f"http://{address[0]}:{address[1]}{path}", method="POST", headers=headers
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def items_by_rank(folder: Path, ranks: int, **options: Any) -> dict[int, list[int]]:
    """The steps whose items were saved, by the rank that inserted them."""
    table = rc.Table("t", capacity=100_000, sampler=rc.Fifo())
    rc.load_shards(folder / "saved", table, 0, 1, **options)
    batch = table.sample(len(table))
    return {r: batch["x"][batch["rank"] == r].tolist() for r in range(ranks)}


def test_every_rank_saves_at_the_same_step_whoever_asks_and_however(tmp_path: Path) -> None:
    with Ranks(tmp_path, 3, http=0, lead=7, timeout=5.0) as ranks:
        ranks.wait_for(lambda: all(ranks.step(rank) > 20 for rank in range(3)))
        answers = []
        ranks.tell(2, do="request")
        answers += ranks.wait_for(lambda: ranks.told(2, "answer"))
        ranks.signal(1, signal.SIGUSR2)
        ranks.wait_for(lambda: all(len(ranks.told(rank, "path")) == 2 for rank in range(3)))
        code, body = post(ranks.told(0, "address")[0])
        assert code == 200
        assert body["committed"]
        answers.append(Path(body["path"]).name)
        ranks.wait_for(lambda: all(len(ranks.told(rank, "path")) == 3 for rank in range(3)))
        saved = [ranks.told(rank, "saved") for rank in range(3)]
        assert saved[0] == saved[1] == saved[2]
        assert len(saved[0]) == 3
        assert answers == [f"step-{saved[0][0]:012d}", f"step-{saved[0][2]:012d}"]
        assert [one.step for one in find_sets(tmp_path / "saved") if one.committed] == saved[0]
        found = items_by_rank(tmp_path, 3, step=saved[0][1])
        for rank, steps in found.items():  # all that a rank had at that step, and no more
            assert steps == list(range(7 * rank + 1, saved[0][1] + 1))

        assert post(ranks.told(0, "address")[0], "/other")[0] == 404
        assert post(ranks.told(0, "address")[0], Origin="http://somewhere")[0] == 403

        # a rank that does not answer costs the timeout, and the others go on
        ranks.stop(1)
        code, body = post(ranks.told(0, "address")[0])
        assert code == 504
        assert "rank 1 did not answer within 5 s" in body["error"]
        before = ranks.step(0)
        ranks.wait_for(lambda: ranks.step(0) > before + 20)
        ranks.signal(1, signal.SIGCONT)
        ranks.wait_for(lambda: post(ranks.told(0, "address")[0])[0] == 200)

        # a child that was forked has nothing to do with it
        ranks.tell(2, do="fork")
        assert ranks.wait_for(lambda: ranks.told(2, "child")) == [-signal.SIGTERM]
        assert not list((tmp_path / "saved").glob("crash-*"))

        # a rank that is killed: the others write their shards, and go on
        ranks.signal(1, signal.SIGKILL)
        crash = ranks.wait_for(lambda: list((tmp_path / "saved").glob("crash-*/partial.json")))[0]
        ranks.wait_for(lambda: json.loads(crash.read_text())["missing"] == [1])
        code, body = post(ranks.told(0, "address")[0])
        assert code == 500
        assert "rank 1 crashed or ended" in body["error"]
        before = ranks.step(2)
        ranks.wait_for(lambda: ranks.step(2) > before + 20)
        latest = find_sets(tmp_path / "saved")
        partial = [one for one in latest if not one.committed]
        assert [one.missing for one in partial] == [[1]]
        whole = items_by_rank(tmp_path, 3)
        assert len(whole[1]) > 0
        some = items_by_rank(tmp_path, 3, allow_partial=True)
        assert some[1] == []
        assert some[0][: len(whole[0])] == whole[0]


def test_an_exception_on_one_rank_lets_every_rank_save(tmp_path: Path) -> None:
    with Ranks(tmp_path, 3) as ranks:
        ranks.wait_for(lambda: all(ranks.step(rank) > 20 for rank in range(3)))
        ranks.tell(2, do="hang")  # it would never come to its next step
        hangs = ranks.wait_for(lambda: ranks.told(2, "hangs"))[0]
        ranks.tell(1, do="raise")
        assert ranks.status(1) == 1
        assert "told to fail" in (tmp_path / "stderr").read_text()
        crash = [one for one in find_sets(tmp_path / "saved") if "crash" in one.path.name]
        assert len(crash) == 1
        ranks.wait_for(lambda: not find_sets(tmp_path / "saved")[-1].missing)
        found = find_sets(tmp_path / "saved")[-1]
        assert not found.committed  # they were not at the same step
        assert found.steps[2] == hangs - 1  # its last completed one
        partial = found.path / "partial.json"
        ranks.wait_for(lambda: "steps differ" in json.loads(partial.read_text())["why"])
        with pytest.raises(rc.SnapshotError, match="steps differ"):
            items_by_rank(tmp_path, 3)
        items = items_by_rank(tmp_path, 3, allow_partial=True)
        for rank in (0, 1):
            assert len(items[rank]) in (found.steps[rank], found.steps[rank] + 1)
        assert not ranks.ended(0)

        # the others are told to end: one in the middle of its work, one that hangs in C
        for rank in (0, 2):
            ranks.signal(rank, signal.SIGTERM)
        assert ranks.status(0) == -signal.SIGTERM
        assert ranks.status(2) == 128 + signal.SIGTERM


def test_sigterm_saves_what_all_ranks_have_even_if_one_hangs(tmp_path: Path) -> None:
    with Ranks(tmp_path, 2, pace=0.02) as ranks:
        ranks.wait_for(lambda: all(ranks.step(rank) >= 10 for rank in range(2)))
        ranks.tell(0, do="hang")
        hangs = ranks.wait_for(lambda: ranks.told(0, "hangs"))[0]
        for rank in range(2):
            ranks.signal(rank, signal.SIGTERM)
        assert ranks.status(0) == 128 + signal.SIGTERM
        assert ranks.status(1) == -signal.SIGTERM
        found = find_sets(tmp_path / "saved")
        assert len(found) == 1
        assert not found[0].missing
        assert found[0].steps[0] == hangs - 1
        items = items_by_rank(tmp_path, 2, allow_partial=True)
        assert items[0] == list(
            range(1, hangs + 1)
        )  # its item of the step that it did not complete
        assert items[1] == list(range(1, found[0].steps[1] + 1))


def test_ranks_agree_through_torch_distributed(tmp_path: Path) -> None:
    with Ranks(tmp_path, 2, exchange="torch", lead=5, keep_last=1, interval=400) as ranks:
        ranks.wait_for(lambda: all(ranks.step(rank) > 20 for rank in range(2)), 90)
        assert {ranks.told(rank, "kind")[0] for rank in range(2)} == {"ThroughGathers"}
        ranks.tell(1, do="request")
        first = ranks.wait_for(lambda: ranks.told(1, "answer"))[0]
        ranks.wait_for(lambda: all(ranks.told(rank, "path") for rank in range(2)))
        assert [ranks.told(rank, "path")[0] for rank in range(2)] == [first, first]
        ranks.tell(0, do="request")
        second = ranks.wait_for(lambda: ranks.told(0, "answer"))[0]
        left = ranks.wait_for(
            lambda: [p.name for p in (tmp_path / "saved").glob("step-*")] == [second]
        )
        assert left
        ranks.tell(1, do="raise")
        assert ranks.status(1) == 1
        ranks.wait_for(
            lambda: list((tmp_path / "saved").glob("crash-*/shard-00000-*/manifest.json"))
        )
        ranks.signal(0, signal.SIGTERM)
        assert ranks.status(0) == -signal.SIGTERM

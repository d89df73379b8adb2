"""`recollect reshard`: a checkpoint for another number of ranks, without a run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from shard_contents import arrival, items_of
from test_shards import fill, make_table
from test_shards_rollouts import fill as fill_groups
from test_shards_rollouts import groups_of
from test_shards_rollouts import make as make_groups
from test_shards_steps import contents
from test_shards_steps import fill as fill_steps
from test_shards_steps import make as make_steps

import recollect as rc
from recollect.cli import main
from recollect.ranks.shard_sets import find_sets


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict:
    assert main(["reshard", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_what_is_written_is_what_ranks_would_have_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(2)
    for rank in range(3):
        table = make_table()
        fill(table, rank, random)
        rc.save_shard(tmp_path / "a", table, rank, 3, step=12)
    told = run(capsys, tmp_path / "a", tmp_path / "b", "--shards", 4)
    assert told["step"] == 12
    assert told["saved"] == 3
    for rank in range(4):
        online, offline = make_table(), make_table()
        rc.load_shards(tmp_path / "a", online, rank, 4)
        done = rc.load_shards(tmp_path / "b", offline, rank, 4)
        assert done.saved == 4
        assert items_of(offline) == items_of(online)
        assert arrival(offline) == arrival(online)
        assert offline.stats() == online.stats()
        assert offline.sample(5).info.keys.tolist() == online.sample(5).info.keys.tolist()
        assert told["shards"][rank] == {"train": len(online)}
    path = find_sets(tmp_path / "b")[0].path
    assert main(["verify", str(path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 4  # each shard of the set
    with pytest.raises(rc.SnapshotError, match="checkpoint of 4 shards; load it"):
        rc.Store([make_table()]).load(path)


def test_steps_and_groups_and_back_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(4)
    buffers = [make_steps(48) for _ in range(3)]
    groups = [make_groups() for _ in range(3)]
    for rank in range(3):
        fill_steps(buffers[rank], rank, random)
        rc.save_shard(tmp_path / "steps", buffers[rank], rank, 3, step=1)
        fill_groups(groups[rank], rank, 9)
        rc.save_shard(tmp_path / "groups", groups[rank], rank, 3, step=1)
    told = run(capsys, tmp_path / "steps", tmp_path / "steps-5", "--shards", 5, "--num-envs", 3)
    assert told["incomplete"]["steps"]["episodes"] > 0
    run(capsys, tmp_path / "steps-5", tmp_path / "steps-2", "--shards", 2, "--num-envs", 2)
    parts = [make_steps() for _ in range(2)]
    for rank, part in enumerate(parts):
        rc.load_shards(tmp_path / "steps-2", part, rank, 2)
    assert contents(parts) == contents(buffers)
    manifest = json.loads((find_sets(tmp_path / "steps-2")[0].path / "manifest.json").read_bytes())
    assert manifest["state"]["incomplete"]["episodes"] > 0

    run(capsys, tmp_path / "groups", tmp_path / "groups-2", "--shards", 2)
    pieces = [make_groups() for _ in range(2)]
    for rank, piece in enumerate(pieces):
        rc.load_shards(tmp_path / "groups-2", piece, rank, 2)
    before = {key: group for one in groups for key, group in groups_of(one).items()}
    assert {key: group for one in pieces for key, group in groups_of(one).items()} == before


def test_incomplete_and_partial_and_wrong_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(2):
        buffer = rc.ReplayBuffer(20)
        buffer.extend(obs=np.zeros((9, 1)), reward=np.ones(9), terminated=np.arange(9) == 5)
        rc.save_shard(tmp_path / "a", buffer, rank, 3, step=1)
    assert main(["reshard", str(tmp_path / "a"), str(tmp_path / "b"), "--shards", "1"]) == 1
    assert "2 are missing" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()
    arguments = ["--shards", "1", "--allow-partial", "--incomplete", "drop"]
    assert main(["reshard", str(tmp_path / "a"), str(tmp_path / "b"), *arguments]) == 0
    told = capsys.readouterr().out
    assert "step 1, 2 shards are 1 now" in told
    assert "2 incomplete episodes of 'steps', 6 steps: dropped" in told
    part = rc.ReplayBuffer(20)
    rc.load_shards(tmp_path / "b", part, 0, 1)
    assert len(part) == 12
    assert main(["reshard", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert main(["reshard", str(tmp_path / "a"), str(tmp_path / "b"), "--shards", "0"]) == 2

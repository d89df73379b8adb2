"""`recollect inspect`, `verify`, `export` and `diff`: what they print, and their exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recollect as rc
from recollect.cli import main


def store() -> rc.Store:
    table = rc.Table("train", capacity=50, tags={"score": float})
    return rc.Store(
        [table, rc.Table("eval", capacity=50), rc.Table("x", capacity=1, checkpoint=False)]
    )


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, rc.Store]:
    tables = store()
    tables["train"].insert(
        {"x": np.arange(12.0).reshape(6, 2), "text": list("abcdef")},
        shared={"prompt": ["p", "q", "r"]},
        rows_per_item=2,
        task=["math", "code", "math"],
        status="done",
        version=[3, 5, 4],
        score=[0.1, None, 0.9],
    )
    tables["eval"].insert({"n": [1, 2]})
    tables.save(tmp_path / "step-7", step=7, files={"model.pt": b"123"})
    return tmp_path / "step-7", tables


def test_inspect_tells_what_is_inside(saved: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = saved
    assert main(["inspect", str(path)]) == 0
    told = capsys.readouterr().out
    for words in (
        "store, step 7, format 2", "table 'train'", "3 with 6 rows", "code 1, math 2", "done 3",
        "3 to 5", "left out  x", "model.pt", "x float64[2], text str", "3 inserts",
    ):  # fmt: skip
        assert words in told
    assert main(["inspect", str(path.parent), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["tables"]["train"]["task"] == {"code": 1, "math": 2}
    assert data["tables"]["train"]["version"] == {"lowest": 3, "highest": 5}
    assert data["tables"]["eval"]["items"] == 2
    assert data["step"] == 7


def test_inspect_of_steps_and_of_rollouts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    buffer = rc.ReplayBuffer(20, num_envs=2)
    for t in range(4):
        buffer.extend(obs=[[t], [t]], reward=[0.0, 1.0], terminated=[t == 3, False])
    buffer.save(tmp_path / "steps")
    groups = rc.RolloutBuffer()
    groups.sync.put(rc.Group([rc.Rollout([1], [2], finish_reason="stop")], task="math"), version=2)
    groups.save(tmp_path / "groups")
    assert main(["inspect", str(tmp_path / "steps")]) == 0
    assert "8 of 2 environments" in (told := capsys.readouterr().out)
    assert "2 begun, 1 over" in told
    prioritized = rc.ReplayBuffer(20, sampler=rc.Prioritized(), n_step=3)
    prioritized.extend(obs=np.zeros((5, 1)), reward=np.zeros(5), env_ids=[0] * 5)
    prioritized.save(tmp_path / "prioritized")
    assert main(["inspect", str(tmp_path / "prioritized")]) == 0
    assert "priority     1 to 1\n" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "groups")]) == 0
    assert "math 1" in capsys.readouterr().out


def test_verify_finds_damage_and_says_so_in_its_code(
    saved: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path, tables = saved
    assert main(["verify", str(path)]) == 0
    assert "ok" in capsys.readouterr().out
    tables["train"].insert({"x": np.zeros((1, 2)), "text": ["g"]}, shared={"prompt": ["s"]})
    tables.save(path.parent / "step-8", step=8)
    model = path / "model.pt"
    model.write_bytes(b"124")
    assert main(["verify", str(path)]) == 1
    assert "model.pt is damaged" in capsys.readouterr().err
    assert main(["verify", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False
    assert main(["verify", str(path.parent)]) == 0  # the latest
    assert main(["verify", str(path.parent), "--step", "7"]) == 1


def test_export_writes_rows_with_the_fields_of_their_items(
    saved: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = saved
    out = tmp_path / "out.parquet"
    assert main(["export", str(path), str(out), "--table", "train"]) == 0
    assert capsys.readouterr().out == f"{out}: 6 rows\n"
    table = pq.read_table(out)
    assert table["text"].to_pylist() == list("abcdef")
    assert table["x"].to_pylist()[5] == [10.0, 11.0]
    assert table["shared.prompt"].to_pylist() == ["p", "p", "q", "q", "r", "r"]
    assert table["item.task"].to_pylist()[::2] == ["math", "code", "math"]
    assert table["item.version"].to_pylist()[::2] == [3, 5, 4]
    where = "task = 'math' and score > 0.5"
    out = tmp_path / "some.arrow"
    assert main(["export", str(path), str(out), "--table", "train", "--where", where]) == 0
    assert pa.ipc.open_file(out).read_all()["text"].to_pylist() == ["e", "f"]


def test_export_and_read_again_gives_the_same_rows(tmp_path: Path) -> None:
    table = rc.Table("t", capacity=500)
    rng = np.random.default_rng(0)
    for _ in range(5):  # several segments, some of whose items have gone
        keys = table.insert({"a": rng.random((100, 3)), "b": [f"{k}" for k in range(100)]})
        table.delete(keys[::3])
    rc.Store([table]).save(tmp_path / "s")
    assert main(["export", str(tmp_path / "s"), str(tmp_path / "t.parquet")]) == 0
    again = rc.Batch.from_arrow(pq.read_table(tmp_path / "t.parquet").select(["a", "b"]))
    stored = table.get(sorted(table.counts("key")))
    np.testing.assert_array_equal(again["a"], stored["a"])
    assert again["b"].to_list() == stored["b"].to_list()


def test_export_chooses_as_the_table_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also by fields that nobody has set, and by those that are stored only where items differ."""
    table = rc.Table("t", capacity=9, tags={"good": bool})
    table.insert({"x": np.zeros((3, 2), "float32")}, priority=[1.0, 2.0, 3.0])
    rc.Store([table]).save(tmp_path / "s")
    for where in (
        "task = 'math'", "task != 'math'", "task is absent", "version > 2", "good = true",
        "rows = 1", "rows > 1", "nbytes = 8", "priority >= 2",
    ):  # fmt: skip
        expected = table.count(rc.parse(where))
        command = ["export", str(tmp_path / "s"), str(tmp_path / "o.arrow"), "--json"]
        assert main([*command, "--where", where]) == (0 if expected else 2), where
        if expected:
            assert json.loads(capsys.readouterr().out)["rows"] == expected


def test_diff_counts_what_differs(saved: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path, tables = saved
    assert main(["diff", str(path), str(path)]) == 0
    assert capsys.readouterr().out == "no difference\n"
    train = tables["train"]
    keys = np.sort(np.array(list(train.counts("key")), np.uint64))
    train.update(keys[:2], priority=5.0)
    train.update(keys[:1], status="seen")
    train.delete(keys[2:])
    train.insert({"x": np.zeros((2, 2)), "text": ["g", "h"]}, shared={"prompt": ["s", "t"]})
    tables.save(path.parent / "other")
    assert main(["diff", str(path), str(path.parent / "other"), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)["tables"]
    assert list(told) == ["train"]
    assert told["train"]["only_in_first"] == 1
    assert told["train"]["only_in_second"] == 2
    assert told["train"]["fields_differ"] == {"priority": 2, "status": 1}
    assert told["train"]["rows_differ"] == 0
    assert told["train"]["same"] == 0
    assert told["train"]["counts"]["inserts"] == [3, 5]
    assert main(["diff", str(path), str(path.parent / "other")]) == 1
    assert "only in B       2 items" in capsys.readouterr().out


def test_diff_sees_rows_that_differ_under_one_key(tmp_path: Path) -> None:
    """Two runs go on from one snapshot, and give the same keys to other rows."""
    table = rc.Table("t", capacity=9)
    table.insert({"x": [1, 2]})
    rc.Store([table]).save(tmp_path / "start")
    for name, value in (("a", 3), ("b", 4)):
        run = rc.Table("t", capacity=9)
        rc.Store([run]).load(tmp_path / "start")
        run.insert({"x": [7, value, 8]})
        rc.Store([run]).save(tmp_path / name)
    from recollect.durability.snapshot.contents import difference
    from recollect.durability.snapshot.reader import open_snapshot

    found = difference(open_snapshot(tmp_path / "a"), open_snapshot(tmp_path / "b"))
    assert found["tables"]["t"]["rows_differ"] == 1
    assert found["tables"]["t"]["same"] <= 4


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["inspect"], 2, "recollect inspect: the following arguments are required: PATH"),
        (["inspect", "nowhere"], 2, "PATH: nowhere does not exist; name a snapshot"),
        (["inspect", "FOLDER"], 1, "holds no snapshot: there is no manifest.json in it"),
        (["inspect", "FILE"], 2, "is a file, and a snapshot is a folder"),
        (["inspect", ""], 2, "PATH: expected a path, got an empty one"),
        (["inspect", "ABOVE", "--step", "8"], 1, "holds no snapshot of step 8; there are 7"),
        (["verify", "nowhere", "--json"], 2, "PATH: nowhere does not exist"),
        (["verify", "nowhere", "--step", "x"], 2, "invalid int value: 'x'; see"),
        (["export", "SAVED", "out.txt"], 2, "expected a name that ends with .parquet"),
        (["export", "nowhere", "out.arrow"], 2, "PATH: nowhere does not exist"),
        (["export", "SAVED", "nowhere/o.arrow"], 2, "the folder nowhere does not exist"),
        (["export", "SAVED", "FOLDER.arrow", "--table", "eval"], 2, "is a folder; name a file"),
        (["export", "SAVED", "out.parquet"], 2, "there are eval, train; name one"),
        (["export", "SAVED", "o.arrow", "--table", "z"], 2, "there is no 'z'"),
        (
            ["export", "SAVED", "o.arrow", "--table", "eval", "--where", "key < 0"],
            2,
            "table 'eval' has no item that meets --where, so nothing was written",
        ),
        (
            ["export", "SAVED", "o.arrow", "--table", "eval", "--where", "colour = 1"],
            2,
            "--where: unknown field 'colour'",
        ),
        (["diff", "SAVED", "nowhere"], 2, "B: nowhere does not exist"),
        (["diff", "FILE", "SAVED"], 2, "is a file, and a snapshot is a folder"),
        (["diff", "SAVED", "FOLDER"], 2, "is no snapshot: it has no manifest.json"),
        (["reshard", "nowhere", "to", "--shards", "2"], 2, "SRC: nowhere does not exist"),
        (["reshard", "FOLDER", "to", "--shards", "2"], 1, "rc.save_shard writes one"),
    ],
)
def test_wrong_use_is_one_sentence(
    arguments: list[str], code: int, said: str, saved: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = saved
    empty, arrow = path.parent / "empty", path.parent / "empty.arrow"
    empty.mkdir(exist_ok=True)
    arrow.mkdir(exist_ok=True)
    stands = {"SAVED": path, "FILE": path / "manifest.json", "FOLDER": empty,
              "FOLDER.arrow": arrow, "ABOVE": path.parent}  # fmt: skip
    assert main([str(stands.get(word, word)) for word in arguments]) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_query_that_cannot_be_read_is_shown(
    saved: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = saved
    assert main(["export", str(path), "o.arrow", "--table", "eval", "--where", "key ="]) == 2
    assert "expected a value at position 6" in capsys.readouterr().err


def test_it_runs_as_a_module(saved: Any) -> None:
    path, _ = saved
    command = [sys.executable, "-m", "recollect", "verify", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ok" in done.stdout


def test_why_there_is_no_manifest_is_said(tmp_path: Path) -> None:
    from recollect.durability.snapshot.manifest import read_manifest

    (tmp_path / "file").write_text("x")
    for path, said in (
        (tmp_path / "nowhere", "does not exist; give the path of a snapshot"),
        (tmp_path / "file", "is a file, and a snapshot is a folder"),
        (tmp_path, "is no snapshot: it has no manifest.json"),
    ):
        with pytest.raises(rc.SnapshotError) as caught:
            read_manifest(path)
        assert str(caught.value).startswith(f"{path} {said}")

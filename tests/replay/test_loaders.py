"""Files of steps: what is written and read again has the same steps, episodes and keys."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from replay_starts import start_keys

import recollect as rc
from recollect.replay import file_writer as writing
from recollect.replay import minari as minari_datasets
from recollect.replay import step_files as files

FORMATS = ("arrow", "parquet")


def played(
    capacity: int = 400, num_envs: int = 3, steps: int = 300, seed: int = 0, **options: Any
) -> rc.ReplayBuffer:
    """Environments that take turns by chance; episodes end in every way, or are cut short."""
    rng = np.random.default_rng(seed)
    buffer = rc.ReplayBuffer(capacity, num_envs=num_envs, seed=seed, **options)
    fresh = [True] * num_envs
    after = buffer.reward_at == "next"

    def observed() -> dict[str, Any]:
        return {
            "image": rng.integers(0, 255, (2, 3), dtype=np.uint8),
            "speed": np.float32(rng.normal()),
        }

    for number in range(steps):
        env = int(rng.integers(0, num_envs))
        ends: dict[str, Any] = {}
        if not (after and fresh[env]):
            kind = rng.integers(0, 12)
            if kind in (0, 1):
                ends["terminated"] = True
            elif kind in (2, 3):
                ends["truncated"] = True
            if kind in (0, 2) and not after:
                ends["final_obs"] = observed()
        first = fresh[env] or rng.integers(0, 25) == 0
        if after and first and ends:
            ends = {}
        buffer.add(
            env_id=env,
            obs=observed(),
            action=number,
            reward=np.float32(rng.normal()),
            done_before=bool(rng.integers(0, 2)),
            first=bool(first),
            **ends,
        )
        fresh[env] = "terminated" in ends or "truncated" in ends
    return buffer


def write(buffer: rc.ReplayBuffer, kind: str, path: Path, **options: Any) -> None:
    getattr(buffer, f"to_{kind}")(path, **options)


def read(kind: str, path: Any, **options: Any) -> rc.ReplayBuffer:
    made: rc.ReplayBuffer = getattr(rc.ReplayBuffer, f"from_{kind}")(path, **options)
    return made


def transitions(buffer: rc.ReplayBuffer) -> rc.Batch:
    """All that can be drawn, in order of key."""
    count = len(start_keys(buffer))
    if not count:
        return rc.Batch({})
    batch = buffer.sample(count, replace=False, timeout=0)
    order = np.argsort(batch.info.keys)
    columns = {name: column[order] for name, column in batch.columns.items()}  # type: ignore[index]
    return rc.Batch._make({**columns, "key": batch.info.keys[order]}, None)


def assert_same(left: rc.ReplayBuffer, right: rc.ReplayBuffer) -> None:
    assert left.episodes().equals(right.episodes())
    assert transitions(left).equals(transitions(right))
    for length, mode in ((3, "pad"), (4, "reset"), (2, "stop")):
        starts = [start_keys(b, length, across_episodes=mode).tolist() for b in (left, right)]
        assert starts[0] == starts[1]
    assert {n: str(c) for n, c in left.columns.items()} == {
        n: str(c) for n, c in right.columns.items()
    }


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("reward_at", ["this", "next"])
@pytest.mark.parametrize("steps", [1, 40, 350, 2000])
def test_what_is_read_is_what_was_written(
    tmp_path: Path, kind: str, reward_at: str, steps: int
) -> None:
    """Rings that are empty, filled and overwritten: heads that are cut stay cut."""
    buffer = played(steps=steps, reward_at=reward_at)
    write(buffer, kind, tmp_path / "steps")
    again = read(kind, tmp_path / "steps", seed=1)
    assert (again.capacity, again.num_envs, again.reward_at) == (400, 3, reward_at)
    assert_same(buffer, again)
    write(again, kind, tmp_path / "again")
    third = read(kind, tmp_path / "again")
    assert_same(buffer, third)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("piece", [1, 2, 7, 64])
def test_pieces_do_not_show(
    tmp_path: Path, kind: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A final observation may come a piece later than its step, and an environment may be split."""
    buffer = played(steps=900, seed=3)
    monkeypatch.setattr(files, "PIECE_ROWS", piece)
    write(buffer, kind, tmp_path / "steps")
    assert_same(buffer, read(kind, tmp_path / "steps"))


def test_stacks_know_a_cut_head_in_a_file(tmp_path: Path) -> None:
    cuts = 0
    for seed in range(8):
        buffer = played(steps=900, frame_stack=3, num_envs=2, capacity=60, seed=seed)
        buffer.to_arrow(tmp_path / "steps")
        again = rc.ReplayBuffer.from_arrow(tmp_path / "steps", frame_stack=3)
        assert_same(buffer, again)
        cuts += buffer.episodes()["cut"].sum()
    assert cuts


def test_a_loaded_buffer_goes_on() -> None:
    """Adding to both has the same effect, where an episode is open and when rings go round."""
    buffer = played(steps=900)
    again = rc.ReplayBuffer.from_arrow(buffer.to_arrow())
    rng = np.random.default_rng(0)
    for number in range(500):
        step = {
            "env_id": int(rng.integers(0, 3)),
            "obs": {"image": np.full((2, 3), number % 256, np.uint8), "speed": np.float32(number)},
            "action": number,
            "reward": np.float32(number),
            "done_before": False,
            "terminated": number % 7 == 0,
        }
        assert buffer.add(**step) == again.add(**step)
    assert_same(buffer, again)


def test_a_large_step_number_costs_nothing() -> None:
    table = played(steps=50, num_envs=1).to_arrow()
    step = table["step"].to_numpy() + 10**12
    table = table.set_column(table.schema.get_field_index("step"), "step", pa.array(step))
    again = rc.ReplayBuffer.from_arrow(table)
    assert int(again.sample(1).info.steps[0]) >= 10**12


def test_the_steps_of_a_file_are_those_of_one_moment(tmp_path: Path) -> None:
    """Inserts between two pieces do not show, though they overwrite everything."""
    buffer = played(steps=400)
    expected = buffer.to_arrow()
    exported = writing.Exported(buffer.core)
    exported._piece = 50
    pieces = exported.pieces()
    found = [next(pieces)]
    rng = np.random.default_rng(0)
    for number in range(2000):
        buffer.add(
            env_id=int(rng.integers(0, 3)),
            obs={"image": np.zeros((2, 3), np.uint8), "speed": np.float32(0)},
            action=number, reward=np.float32(0), done_before=False,
        )  # fmt: skip
    found += pieces
    assert pa.Table.from_batches(found).equals(expected)


# -- what others see, and what others write -------------------------------------------------------


def test_other_readers_see_plain_columns(tmp_path: Path) -> None:
    buffer = played(steps=100)
    buffer.to_arrow(tmp_path / "steps.feather")
    buffer.to_parquet(tmp_path / "steps.parquet")
    table = pa.feather.read_table(tmp_path / "steps.feather")
    assert table.equals(pa.parquet.read_table(tmp_path / "steps.parquet"))
    assert table.column_names[-6:] == [
        "env_id", "step", "first", "terminated", "truncated", "final",
    ]  # fmt: skip
    assert table.schema.field("terminated").type == pa.bool_()
    steps = table.filter(pa.compute.invert(table["final"]))
    assert steps.num_rows == len(buffer)
    total = np.sum(steps["reward"].to_numpy(), dtype=np.float64)
    assert total == pytest.approx(buffer.episodes()["return"].sum())
    finals = table.filter(table["final"])
    assert finals.num_rows > 0
    assert not finals["action"].to_numpy().any()


@pytest.mark.parametrize("compression", ["zstd", "lz4", None])
@pytest.mark.parametrize("kind", FORMATS)
def test_compressions(tmp_path: Path, kind: str, compression: str | None) -> None:
    buffer = played(steps=50)
    write(buffer, kind, tmp_path / "steps", compression=compression)
    assert_same(buffer, read(kind, tmp_path / "steps"))


def foreign(**columns: Any) -> pa.Table:
    count = 6
    plain = {"obs": np.arange(count, dtype=np.float32), "reward": np.ones(count)}
    return pa.table({**plain, **columns})


def test_a_table_without_marks_is_one_open_episode() -> None:
    buffer = rc.ReplayBuffer.from_arrow(foreign())
    assert buffer.capacity == 6
    assert buffer.episodes()["length"].tolist() == [6]
    assert not buffer.episodes()["complete"].any()


def test_environments_may_take_turns() -> None:
    done = [False, True, False, False, False, True]
    table = foreign(env_id=[0, 2, 0, 2, 0, 0], terminated=done)
    buffer = rc.ReplayBuffer.from_arrow(table)
    assert (buffer.num_envs, buffer.capacity) == (3, 12)
    listed = buffer.episodes()
    assert listed["env"].tolist() == [0, 2, 2]
    assert listed["length"].tolist() == [4, 1, 1]
    obs = buffer.sample(9, where=rc.field("env_id") == 0)["obs"]
    assert set(obs.tolist()) <= {0.0, 2.0, 4.0, 5.0}


def test_next_observations_of_others_become_final_ones() -> None:
    table = foreign(
        next_obs=np.array([1, 2, 30, 4, 5, 60], np.float32),
        terminated=np.array([0, 0, 1, 0, 0, 0], np.int8),
        truncated=np.array([0, 0, 0, 0, 0, 1], np.uint8),
    )
    buffer = rc.ReplayBuffer.from_arrow(table)
    batch = buffer.sample(6, replace=False, timeout=0)
    order = np.argsort(batch.info.steps)
    assert batch["next_obs"][order].tolist() == [1, 2, 30, 4, 5, 60]
    assert (batch["discount"][order] == [0.99, 0.99, 0, 0.99, 0.99, 0.99]).all()


def test_nested_and_fixed_columns_of_others() -> None:
    table = pa.table(
        {
            "obs": pa.array([{"a": 1.0, "b": [1, 2]}, {"a": 2.0, "b": [3, 4]}],
                            pa.struct([("a", pa.float32()), ("b", pa.list_(pa.int64(), 2))])),
            "reward": [1.0, 2.0],
        }
    )  # fmt: skip
    buffer = rc.ReplayBuffer.from_arrow(table)
    assert set(buffer.columns) == {"obs.a", "obs.b", "reward"}
    assert buffer.sample(1)["next_obs.b"].tolist() == [[3, 4]]


def test_streams_readers_and_batches_are_read(tmp_path: Path) -> None:
    table = foreign()
    with pa.ipc.new_stream(tmp_path / "stream", table.schema) as writer:
        writer.write_table(table)
    sources = [tmp_path / "stream", str(tmp_path / "stream"), table.to_reader(),
               table.to_batches()[0], table]  # fmt: skip
    for source in sources:
        assert len(rc.ReplayBuffer.from_arrow(source)) == 6


def test_options_win_over_what_the_file_says() -> None:
    table = played(steps=300).to_arrow()
    buffer = rc.ReplayBuffer.from_arrow(
        table, capacity=60, num_envs=6, n_step=3, sampler=rc.Prioritized(), seed=3
    )
    assert (buffer.capacity, buffer.num_envs, buffer.n_step) == (60, 6, 3)
    assert len(buffer) <= 30
    assert buffer.sample(5).num_items == 5


# -- what is wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (foreign(step=[0, 1, 3, 4, 5, 6]), {}, "from step 1 to 3 within an episode"),
        (foreign(step=[0, 1, 2, 2, 3, 4]), {}, "from step 2 to 2 within an episode"),
        (foreign(env_id=[0, 0, 0, 5, 5, 5]), {"num_envs": 2}, "steps of environment 5"),
        (foreign(env_id=[0.5] * 6), {}, "column 'env_id': expected whole numbers"),
        (foreign(env_id=[-1] * 6), {}, "numbered from 0"),
        (foreign(env_id=[0, 0, 0, 0, 0, None]), {}, "column 'env_id'"),
        (foreign(terminated=[0, 1, 2, 0, 0, 0]), {}, "column 'terminated': expected booleans"),
        (foreign(terminated=["a"] * 6), {}, "terminated"),
        (foreign(final=[True] + [False] * 5), {}, "column 'final': environment 0"),
        (foreign(final=[False, True] + [False] * 4), {}, "column 'final': environment 0"),
        (foreign(extra=[1, None, 1, 1, 1, 1]), {}, "column 'extra' has nulls"),
        (foreign(extra=[[1], [1, 2], [], [1], [1], [1]]), {}, "different lengths"),
        (foreign(extra=["a"] * 6), {}, "column 'extra'"),
        (pa.table({"reward": [1.0]}), {}, "next_from_row names 'obs'"),
        (pa.table({"obs": [1.0]}), {}, "column 'reward'"),
        (
            foreign(first=[True] + [False] * 5, terminated=[False, True] + [False] * 4),
            {},
            "its episode is over",
        ),
    ],
)
def test_a_table_that_is_no_record_of_steps_says_why(
    table: pa.Table, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(rc.InvalidValue, match=message):
        rc.ReplayBuffer.from_arrow(table, **options)


@pytest.mark.parametrize("kind", FORMATS)
def test_files_that_are_not_there_or_something_else(tmp_path: Path, kind: str) -> None:
    (tmp_path / "text").write_text("hello, this is no file of that kind " * 9)
    for path in (tmp_path / "missing", tmp_path / "text", tmp_path, 5):
        with pytest.raises(rc.InvalidValue, match=r"path|source"):
            read(kind, path)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_is_whole_or_the_old_one(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "steps"
    old = played(steps=40)
    write(old, kind, path)

    def fails(self: Any) -> Any:
        raise OSError("disk full")

    monkeypatch.setattr(writing.Exported, "pieces", fails)
    with pytest.raises(OSError, match="disk full"):
        write(played(steps=90), kind, path)
    assert [p.name for p in tmp_path.iterdir()] == ["steps"]
    assert_same(old, read(kind, path))


def test_what_cannot_be_written_says_why(tmp_path: Path) -> None:
    with pytest.raises(rc.InvalidValue, match="no columns yet"):
        rc.ReplayBuffer(9).to_arrow()
    taken = rc.ReplayBuffer(9)
    taken.add(obs=0.0, reward=0.0, step=3)
    with pytest.raises(rc.InvalidValue, match="column 'step'"):
        taken.to_arrow()
    with pytest.raises(rc.InvalidValue, match="compression"):
        played(steps=9).to_parquet(tmp_path / "steps", compression="zip")
    assert not list(tmp_path.iterdir())


def test_a_progress_bar_shows_where_it_is_asked_for_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    buffer = played(steps=90)
    buffer.to_arrow(tmp_path / "a")
    rc.ReplayBuffer.from_arrow(tmp_path / "a")
    assert capsys.readouterr() == ("", "")
    buffer.to_parquet(tmp_path / "b", progress=True)
    rc.ReplayBuffer.from_parquet(tmp_path / "b", progress=True)
    shown = capsys.readouterr().err
    assert "steps written" in shown
    assert "steps read" in shown
    with pytest.raises(rc.InvalidValue, match="progress"):
        buffer.to_arrow(tmp_path / "c", progress=1)  # type: ignore[arg-type]


def test_a_terminal_gets_a_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    rc.ReplayBuffer.from_arrow(foreign())
    assert "steps read" in screen.getvalue()


# -- Minari ---------------------------------------------------------------------------------------


@pytest.fixture
def minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Minari with an empty folder of datasets."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    return pytest.importorskip("minari", reason="needs the extra minari")


def record(minari: Any, lengths: list[int], form: str = "array", **options: Any) -> Any:
    """Make a dataset with Minari's own calls; an observation says of which episode and step."""
    from gymnasium import spaces
    from minari.data_collector import EpisodeBuffer

    box = spaces.Box(-1, 1000, (2,), np.float32)
    space = {
        "array": box,
        "dict": spaces.Dict({"where": box, "count": spaces.Discrete(500)}),
        "tuple": spaces.Tuple((box, spaces.Discrete(500))),
    }[form]
    buffers = []
    for episode, length in enumerate(lengths):
        where = np.array([[episode, t] for t in range(length + 1)], np.float32)
        count = np.arange(length + 1)
        obs = {"array": where, "dict": {"where": where, "count": count}, "tuple": (where, count)}
        buffers.append(
            EpisodeBuffer(
                id=episode,
                observations=obs[form],
                actions=np.arange(length) % 3,
                rewards=list(np.arange(length) + episode / 4),
                terminations=[t == length - 1 and episode % 2 == 0 for t in range(length)],
                truncations=[t == length - 1 and episode % 2 == 1 for t in range(length)],
                infos={},
            )
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is no environment to evaluate in
        return minari.create_dataset_from_buffers(
            "test/walk-v0", buffers, observation_space=space, action_space=spaces.Discrete(3),
            algorithm_name="walk", author="a", author_email="a@b.c", code_permalink="none",
            description="none", **options,
        )  # fmt: skip


@pytest.mark.parametrize("form", ["array", "dict", "tuple"])
@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_a_minari_dataset_keeps_its_episodes_and_last_observations(
    minari: Any, form: str, data_format: str
) -> None:
    lengths = [3, 1, 7, 4]
    dataset = record(minari, lengths, form, data_format=data_format)
    buffer = rc.load_minari(dataset, seed=0)
    assert len(buffer) == sum(lengths)
    assert buffer.capacity == sum(lengths) + len(lengths)
    assert buffer.episodes()["length"].tolist() == lengths
    assert buffer.episodes()["complete"].all()
    batch = buffer.sample(sum(lengths), replace=False, timeout=0)
    name = {"array": "obs", "dict": "obs.where", "tuple": "obs.0"}[form]
    here, after = batch[name], batch[f"next_{name}"]
    assert (here[:, 0] == after[:, 0]).all()
    assert (here[:, 1] + 1 == after[:, 1]).all()
    assert (batch["action"] == here[:, 1] % 3).all()
    assert batch["reward"].dtype == np.float32
    assert (batch["reward"] == here[:, 1] + here[:, 0] / 4).all()
    last = here[:, 1] == np.array(lengths)[here[:, 0].astype(int)] - 1
    over = last & (here[:, 0] % 2 == 0)
    assert (batch["discount"] == np.where(over, 0, np.float32(0.99))).all()
    if form != "array":
        count = "count" if form == "dict" else "1"
        assert (batch[f"obs.{count}"] == here[:, 1]).all()


def test_a_dataset_by_its_id_and_by_its_folder(minari: Any, tmp_path: Path) -> None:
    record(minari, [3, 4])
    folder = tmp_path / "datasets" / "test" / "walk-v0"
    for dataset in ("test/walk-v0", folder, str(folder), folder / "data"):
        assert len(rc.load_minari(dataset)) == 7


def test_a_filtered_dataset_and_options_of_the_buffer(minari: Any) -> None:
    dataset = record(minari, [3, 4, 9]).filter_episodes(lambda episode: len(episode) > 3)
    buffer = rc.load_minari(dataset, n_step=3, sampler=rc.Prioritized(), seed=1)
    assert buffer.episodes()["length"].tolist() == [4, 9]
    assert buffer.n_step == 3
    small = rc.load_minari(dataset, capacity=5)
    assert len(small) <= 5


def test_an_episode_without_an_end_counts_as_truncated(minari: Any) -> None:
    class Episode:
        id = 0
        observations = np.zeros((4, 2), np.float32)
        actions, rewards = np.zeros(3), np.ones(3)
        terminations = truncations = np.zeros(3, bool)

    buffer = rc.ReplayBuffer(9, seed=0)
    minari_datasets._add_episode(buffer, Episode)
    minari_datasets._add_episode(buffer, Episode)
    assert buffer.episodes()["complete"].tolist() == [True, True]
    assert (buffer.sample(6, replace=False, timeout=0)["discount"] > 0).all()


def test_a_dataset_mixes_with_what_a_recorder_writes(minari: Any) -> None:
    offline = rc.load_minari(record(minari, [9, 9]), seed=0)
    online = rc.ReplayBuffer(99, seed=0)
    online.extend(
        obs=np.zeros((9, 2), np.float32), action=np.zeros(9, int), reward=np.zeros(9, np.float32)
    )
    assert rc.mix([(offline, 1), (online, 1)]).sample(8).num_items == 8


def test_datasets_that_are_not_there_say_so(minari: Any, tmp_path: Path) -> None:
    for dataset in ("test/none-v0", "no id at all", tmp_path / "none", tmp_path, 5):
        with pytest.raises(rc.InvalidValue, match="dataset"):
            rc.load_minari(dataset)
    with pytest.raises(rc.InvalidValue, match="num_envs"):
        rc.load_minari(record(minari, [3]), num_envs=2)
    with pytest.raises(rc.InvalidValue, match="reward_at"):
        rc.load_minari("test/walk-v0", reward_at="next")


def test_without_minari_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import recollect.base.optional

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(recollect.base.optional, "import_module", missing)
    with pytest.raises(ImportError, match=r"pip install 'recollect\[minari\]'"):
        rc.load_minari("test/walk-v0")

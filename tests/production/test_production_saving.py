"""Checkpoints of managers: one commit, with and without the buffer; restore; rewind."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty_files import Faulty

import recollect as rc
from recollect.cli import main as command
from recollect.durability.snapshot.manifest import MANIFEST, read_manifest, to_bytes
from recollect.errors import InvalidValue, ProductionError, SnapshotError
from recollect.production import save as saving
from recollect.production.colocated import ColocatedManager
from recollect.production.disaggregated import DisaggregatedManager
from recollect.production.generators.base import to_generate
from recollect.production.prompts.base import prompt_of
from recollect.production.prompts.indexed import ListPrompts
from recollect.production.restore import latest_checkpoint
from recollect.production.results import State
from recollect.production.strategies import AsyncStrategy, SyncStrategy
from recollect.production.task import Task
from recollect.simulation import VirtualClock, run


class Answers:
    """Answers at once, or when it is told to; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.version = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def generate(self, group: rc.Group, *, keep_partial: bool) -> rc.Group:
        self.asked.append(group.group_id)
        await self.gate.wait()
        for rollout in to_generate(group):
            rollout.response_ids = np.array([7, 8], np.int32)
            rollout.versions = np.array([self.version] * 2, np.int32)
            rollout.finish_reason = "stop"
        return group

    async def pause(self) -> None:
        pass

    async def continue_(self, version: int) -> None:
        self.version = version

    async def set_version(self, version: int) -> None:
        self.version = version


class Plain:
    """A source of somebody else: it cannot look up what it made."""

    def __init__(self) -> None:
        self.made = 0
        self.back: list[rc.Group] = []

    def next(self) -> rc.Group:
        if self.back:
            return self.back.pop(0)
        self.made += 1
        return rc.Group([rc.Rollout(), rc.Rollout()], prompt_ids=[self.made], prompt="own")

    def give_back(self, group: rc.Group) -> None:
        self.back.append(prompt_of(group))

    def exclude(self, group: rc.Group) -> None:
        pass

    def state(self) -> dict[str, Any]:
        assert not self.back
        return {"made": self.made}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.made, self.back = state["made"], []


def prompts(count: int = 100, **options: Any) -> ListPrompts:
    return ListPrompts([[index] for index in range(count)], n=2, seed=None, **options)


class Life:
    """A manager with one or more tasks, as a program would make them after each start."""

    def __init__(
        self,
        *names: str,
        kind: Any = ColocatedManager,
        strategy: Any = None,
        sources: Mapping[str, Any] | None = None,
        checkpoints: Any = None,
        **options: Any,
    ) -> None:
        self.answers = Answers()
        options.setdefault("staleness", rc.Staleness(max_staleness=100))
        self.buffer = rc.RolloutBuffer(clock=VirtualClock(), **options)
        names = names or ("math",)
        self.tasks = [
            Task(
                name,
                (sources or {}).get(name) or prompts(100 + place),
                self.answers,
                strategy=strategy or SyncStrategy(),
            )
            for place, name in enumerate(names)
        ]
        self.manager = kind(self.tasks, self.buffer, checkpoints=checkpoints)

    async def train(self, first: int, last: int, size: int = 4) -> list[list[str]]:
        """Train some steps; returns the groups of each."""
        trained = []
        for step in range(first, last + 1):
            result = await self.manager.produce_batch(size, step)
            trained.append(ids(result))
            await self.manager.confirm(result)
        return trained

    async def fill(self, n: int, version: int = 0, task: str = "math") -> list[str]:
        """Put groups of new prompts into the buffer, as an over-sampling producer leaves them."""
        names = []
        source = next(each for each in self.tasks if each.name == task).prompts
        for _ in range(n):
            group = source.next()
            group.task = task
            self.answers.version = version
            for rollout in group:
                rollout.task = task
            await self.buffer.put(await self.answers.generate(group, keep_partial=False))
            names.append(group.group_id)
        return names


def ids(result: Any) -> list[str]:
    return [group.group_id for groups in result.groups.values() for group in groups]


def stored(life: Life) -> list[str]:
    entries = life.buffer.core.entries
    return [entry.group_id for _, entry in sorted(entries.items()) if not entry.trained]


async def save(life: Life, path: Path, step: int, block: Coroutine[Any, Any, None]) -> None:
    """A checkpoint with a file in it, and with something that happens meanwhile."""
    async with life.manager.checkpoint(path, step) as checkpoint:
        (checkpoint.dir / "model.pt").write_bytes(b"weights")
        await block


def virtual(main: Coroutine[Any, Any, None]) -> None:
    run(main)


# -- one commit -----------------------------------------------------------------------------------
def test_prompts_buffer_progress_and_the_trainers_files_are_one_commit(tmp_path: Path) -> None:
    async def main() -> None:
        life = Life()
        await life.train(1, 3)
        waiting = await life.fill(2)
        async with life.manager.checkpoint(tmp_path / "step-3", 3) as checkpoint:
            assert not (tmp_path / "step-3").exists()
            (checkpoint.dir / "model.pt").write_bytes(b"weights" * 1000)
            (checkpoint.dir / "optimizer").mkdir()
            (checkpoint.dir / "optimizer" / "rank-0").write_bytes(b"momentum")
        assert checkpoint.saved is not None
        assert checkpoint.saved.items == 2
        assert [path.name for path in tmp_path.iterdir()] == ["step-3"]
        folder = tmp_path / "step-3"
        assert (folder / "model.pt").read_bytes() == b"weights" * 1000
        assert (folder / "optimizer" / "rank-0").read_bytes() == b"momentum"
        assert set(read_manifest(folder)["others"]) == {"model.pt", "optimizer/rank-0"}

        again = Life()
        assert await again.manager.restore(folder) == 3
        assert stored(again) == waiting
        assert again.tasks[0].prompts.state() == life.tasks[0].prompts.state()
        assert again.manager.progress.state() == life.manager.progress.state()

    virtual(main())


def test_a_block_that_raises_commits_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    async def wrong() -> None:
        raise RuntimeError("out of memory")

    async def main() -> None:
        life = Life()
        with pytest.raises(RuntimeError, match="out of memory"):
            await save(life, tmp_path / "a", 0, wrong())
        assert list(tmp_path.iterdir()) == []
        async with life.manager.checkpoint(tmp_path / "a", 0):
            pass
        with pytest.raises(RuntimeError, match="out of memory"):
            await save(life, tmp_path / "a", 1, wrong())
        assert read_manifest(tmp_path / "a")["step"] == 0

    virtual(main())


def test_a_full_disk_commits_nothing_and_the_next_save_works(tmp_path: Path) -> None:
    async def main() -> None:
        life = Life(checkpoints=tmp_path)
        await life.train(1, 2)
        await life.fill(3)
        async with life.manager.checkpoint(step=1) as checkpoint:
            (checkpoint.dir / "model.pt").write_bytes(b"1")
        failed = 0
        for fault in range(1, 200):
            files = Faulty(fault, "full")
            try:
                async with life.manager.checkpoint(None, 2, files=files) as checkpoint:
                    (checkpoint.dir / "model.pt").write_bytes(b"2")
            except SnapshotError:
                failed += 1
                found = latest_checkpoint(tmp_path)
                assert found is not None
                assert found.step == 1
                assert len(list(tmp_path.iterdir())) == 1
                assert life.buffer.count("math", rc.Status.ARCHIVED) == 4  # step 2 is still kept
            else:
                break
        assert failed > 5
        found = latest_checkpoint(tmp_path)
        assert found is not None
        assert (found.step, (found.dir / "model.pt").read_bytes()) == (2, b"2")
        assert life.buffer.count("math", rc.Status.ARCHIVED) == 0

    virtual(main())


def test_what_a_killed_save_left_behind_is_no_checkpoint_and_goes(tmp_path: Path) -> None:
    async def main() -> None:
        life = Life(checkpoints=tmp_path)
        target = saving._target(life.manager, None, 5)
        left = target.with_name(f".{target.name}.files-0badcafe")
        left.mkdir(parents=True)
        (left / "model.pt").write_bytes(b"half")
        assert latest_checkpoint(tmp_path) is None
        async with life.manager.checkpoint(step=5):
            assert not left.exists()
        assert len(list(tmp_path.iterdir())) == 1

    virtual(main())


def test_checkpoints_in_a_folder_are_found_by_their_steps(tmp_path: Path) -> None:
    async def main() -> None:
        life = Life(checkpoints=tmp_path)
        trained = []
        for step in (1, 2, 3):
            trained += await life.train(step, step)
            async with life.manager.checkpoint(step=step, include_buffer=step != 2) as checkpoint:
                (checkpoint.dir / "model").write_text(str(step))
        found = latest_checkpoint(tmp_path)
        assert found is not None
        assert found.step == 3
        for step in (1, 2, 3):
            again = Life(checkpoints=tmp_path)
            assert await again.manager.restore(step=step) == step
            older = latest_checkpoint(tmp_path, step)
            assert older is not None
            assert (older.dir / "model").read_text() == str(step)
            assert await again.train(step + 1, step + 1) == trained[step : step + 1] or step == 3
        assert latest_checkpoint(tmp_path, 9) is None
        assert latest_checkpoint(tmp_path / "nowhere") is None
        assert await Life(checkpoints=tmp_path).manager.restore() == 3

    virtual(main())


def test_the_last_checkpoints_are_kept(tmp_path: Path) -> None:
    async def main() -> None:
        life = Life(checkpoints=tmp_path)
        for step in range(1, 6):
            await life.train(step, step)
            async with life.manager.checkpoint(step=step, keep_last=2):
                pass
        assert len(list(tmp_path.iterdir())) == 2
        assert latest_checkpoint(tmp_path, 4) is not None

    virtual(main())


def test_without_a_path_or_a_step_it_says_what_is_missing(tmp_path: Path) -> None:
    async def main() -> None:
        life = Life()
        with pytest.raises(InvalidValue, match="give a path, or the manager a folder"):
            life.manager.checkpoint(None, 1)
        with pytest.raises(InvalidValue, match="step= says which weights it has"):
            life.manager.checkpoint(tmp_path)
        with pytest.raises(InvalidValue, match="in_flight: expected 'refuse' or 'give_back'"):
            life.manager.checkpoint(tmp_path, 1, in_flight="wait")
        with pytest.raises(InvalidValue, match="give a path, or the manager a folder"):
            await life.manager.restore()
        with pytest.raises(InvalidValue, match="future: expected 'give_back' or 'keep'"):
            await life.manager.restore(tmp_path, future="drop")

    virtual(main())


def test_commands_understand_a_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        life = Life()
        await life.train(1, 1)
        await life.fill(3)
        for name, include in (("with", True), ("without", False)):
            async with life.manager.checkpoint(tmp_path / name, 1, include) as checkpoint:
                (checkpoint.dir / "model.pt").write_bytes(b"weights")

    virtual(main())
    for name in ("with", "without"):
        capsys.readouterr()
        assert command(["inspect", str(tmp_path / name), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["kind"] == "production"
        assert command(["verify", str(tmp_path / name)]) == 0
    (tmp_path / "with" / "model.pt").write_bytes(b"wEights")
    assert command(["verify", str(tmp_path / "with")]) == 1
    assert "model.pt is damaged" in capsys.readouterr().err


# -- what runs ------------------------------------------------------------------------------------
def test_a_running_manager_is_refused_and_what_runs_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        life = Life("math", "code")
        life.answers.gate.clear()
        producing = asyncio.create_task(life.manager.produce_batch({"math": 3, "code": 1}, 1))
        await asyncio.sleep(1)
        with pytest.raises(
            ProductionError, match=r"call pause\(\) first; math: 3 in flight, code: 1"
        ):
            async with life.manager.checkpoint(tmp_path / "a", 0):
                raise AssertionError("the block must not begin")
        with pytest.raises(ProductionError, match=r"restore: call pause\(\) first; .*math: 3"):
            await life.manager.restore(tmp_path / "a")
        assert not (tmp_path / "a").exists()
        life.answers.gate.set()
        await producing

    virtual(main())


def test_generations_that_begin_during_the_block_are_noticed(tmp_path: Path) -> None:
    async def main() -> None:
        life = Life()
        running: list[Any] = []

        async def begin() -> None:
            life.answers.gate.clear()
            running.append(asyncio.create_task(life.manager.produce_batch(2, 1)))
            await asyncio.sleep(1)

        with pytest.raises(ProductionError, match=r"call pause\(\) first"):
            await save(life, tmp_path / "a", 0, begin())
        assert list(tmp_path.iterdir()) == []
        life.answers.gate.set()
        assert len(ids(await running[0])) == 2

    virtual(main())


def test_running_groups_are_noted_as_given_back_and_go_on_running(tmp_path: Path) -> None:
    async def main() -> None:
        life = Life()
        await life.train(1, 2)
        life.answers.gate.clear()
        producing = asyncio.create_task(life.manager.produce_batch(4, 3))
        await asyncio.sleep(1)
        flying = [flight.group_id for flight in life.manager.in_flight["math"]]
        async with life.manager.checkpoint(tmp_path / "a", 2, in_flight="give_back"):
            pass
        life.answers.gate.set()
        assert ids(await producing) == flying

        again = Life()
        assert await again.manager.restore(tmp_path / "a") == 2
        assert again.answers.asked == []
        assert await again.train(3, 3) == [flying]
        assert again.answers.asked == flying
        assert not set((await again.train(4, 4))[0]) & set(flying)

    virtual(main())


# -- restoring ------------------------------------------------------------------------------------
@pytest.mark.parametrize("include_buffer", [True, False])
def test_restoring_generates_nothing_until_told(include_buffer: bool, tmp_path: Path) -> None:
    async def main() -> None:
        life = Life(kind=DisaggregatedManager, strategy=AsyncStrategy())
        life.manager.start(4)
        result = await life.manager.get_batch(4, 1)
        await life.manager.confirm(result)
        await life.manager.pause()
        async with life.manager.checkpoint(tmp_path / "a", 1, include_buffer):
            pass
        await life.manager.shutdown()

        again = Life(kind=DisaggregatedManager, strategy=AsyncStrategy())
        version = await again.manager.restore(tmp_path / "a")
        again.manager.start(4)
        await asyncio.sleep(1000)
        assert again.manager.state is State.PAUSED
        assert again.answers.asked == []
        await again.manager.continue_(version)
        result = await again.manager.get_batch(4, 2)
        assert len(ids(result)) == 4
        await again.manager.shutdown()

    virtual(main())


def test_without_the_buffer_exactly_the_prompts_of_its_groups_are_generated(tmp_path: Path) -> None:
    async def main() -> None:
        life = Life("math", "code")
        await life.train(1, 2, 6)
        waiting = await life.fill(3) + await life.fill(2, task="code")
        life.manager.look()
        before = life.manager.progress.state()
        state = {task.name: task.prompts.state() for task in life.tasks}
        async with life.manager.checkpoint(tmp_path / "a", 2, include_buffer=False):
            pass
        assert life.manager.progress.state() == before  # the live ones are not changed
        assert {task.name: task.prompts.state() for task in life.tasks} == state
        assert sorted(stored(life)) == sorted(waiting)

        again = Life("math", "code")
        await again.manager.restore(tmp_path / "a")
        progress = again.manager.progress
        assert progress.future_step == progress.consumer_step == 3
        assert progress.target_step == 2
        assert {task: counts.consumed for task, counts in progress.items()} == {
            "math": 6,
            "code": 6,
        }
        assert all(counts.shortage == 0 for counts in progress.values())
        assert len(again.buffer) == 0
        result = await again.manager.produce_batch({"math": 3, "code": 2}, 3)
        assert sorted(ids(result)) == sorted(waiting)
        assert sorted(again.answers.asked) == sorted(waiting)
        assert {group.attempt for groups in result.groups.values() for group in groups} == {1}

    virtual(main())


def test_a_checkpoint_that_does_not_say_whether_it_has_the_buffer_has_it(tmp_path: Path) -> None:
    async def main() -> None:
        life = Life()
        waiting = await life.fill(2)
        async with life.manager.checkpoint(tmp_path / "a", 0):
            pass
        manifest = read_manifest(tmp_path / "a")
        del manifest["state"]["include_buffer"], manifest["xxh3"]
        (tmp_path / "a" / MANIFEST).write_bytes(to_bytes(manifest))
        again = Life()
        await again.manager.restore(tmp_path / "a")
        assert stored(again) == waiting

    virtual(main())


def test_one_without_the_buffer_is_refused_where_groups_are_stored(tmp_path: Path) -> None:
    async def main() -> None:
        life = Life()
        async with life.manager.checkpoint(tmp_path / "a", 0, include_buffer=False):
            pass
        again = Life()
        waiting = await again.fill(2)
        state = again.tasks[0].prompts.state()
        with pytest.raises(SnapshotError, match="saved without the buffer, and 2 groups are in it"):
            await again.manager.restore(tmp_path / "a")
        assert stored(again) == waiting
        assert again.tasks[0].prompts.state() == state  # as if nobody had asked

    virtual(main())


def test_one_with_the_buffer_is_refused_where_groups_are_stored_and_no_journal_is(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        life = Life()
        await life.fill(1)
        async with life.manager.checkpoint(tmp_path / "a", 0):
            pass
        again = Life()
        await again.fill(1)
        with pytest.raises(SnapshotError, match="is not empty"):
            await again.manager.restore(tmp_path / "a")

    virtual(main())


def test_other_prompts_are_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    async def main() -> None:
        life = Life("math", "code")
        await life.fill(2)
        async with life.manager.checkpoint(tmp_path / "a", 0):
            pass
        again = Life("math", "code", sources={"code": prompts(7)})
        before = [task.prompts.state() for task in again.tasks]
        with pytest.raises(SnapshotError, match="it had 101 prompts and has 7"):
            await again.manager.restore(tmp_path / "a")
        assert [task.prompts.state() for task in again.tasks] == before
        assert len(again.buffer) == 0

    virtual(main())


def test_other_snapshots_and_damaged_ones_are_named(tmp_path: Path) -> None:
    async def main() -> None:
        life = Life()
        life.buffer.save(tmp_path / "buffer", step=1)
        with pytest.raises(
            SnapshotError, match="no checkpoint of a manager but of kind 'rollouts'"
        ):
            await life.manager.restore(tmp_path / "buffer")
        with pytest.raises(SnapshotError, match="does not exist"):
            await life.manager.restore(tmp_path / "nothing")
        await life.fill(3)
        async with life.manager.checkpoint(tmp_path / "a", 0):
            pass
        segment = next((tmp_path / "a").glob("*.arrow"))
        data = bytearray(segment.read_bytes())
        data[len(data) // 2] ^= 1
        segment.write_bytes(bytes(data))
        again = Life()
        with pytest.raises(SnapshotError, match=segment.name):
            await again.manager.restore(tmp_path / "a")
        assert len(again.buffer) == 0

    virtual(main())


# -- tasks that changed ---------------------------------------------------------------------------
def test_added_removed_and_renamed_tasks_are_named(tmp_path: Path) -> None:
    async def main() -> None:
        life = Life("math", "code")
        async with life.manager.checkpoint(tmp_path / "a", 0):
            pass
        for names, sources, told in (
            (("math", "code", "chat"), {}, "chat was added"),
            (("math",), {}, "code was removed"),
            (("math", "programs"), {}, "code is called programs now"),
            (("math", "logic"), {"logic": prompts(5)}, "logic was added; code was removed"),
        ):
            again = Life(*names, sources=sources)
            with pytest.raises(SnapshotError, match=told):
                await again.manager.restore(tmp_path / "a")

    virtual(main())


def test_changed_tasks_are_accepted_when_told(tmp_path: Path) -> None:
    async def main() -> None:
        life = Life("math", "code", "logic")
        await life.train(1, 2, 6)
        math, code = await life.fill(2), await life.fill(2, task="code")
        await life.fill(1, task="logic")
        async with life.manager.checkpoint(tmp_path / "a", 2):
            pass
        sources = {"programs": prompts(101), "chat": prompts(5)}
        again = Life("math", "programs", "chat", sources=sources)
        await again.manager.restore(tmp_path / "a", allow_task_change=True)
        assert stored(again) == math
        consumed = {task: counts.consumed for task, counts in again.manager.progress.items()}
        assert consumed == {"math": 4, "programs": 4, "chat": 0}
        result = await again.manager.produce_batch({"math": 2, "programs": 2, "chat": 2}, 3)
        names = {
            task: [group.group_id for group in groups] for task, groups in result.groups.items()
        }
        assert names["math"] == math
        assert names["programs"] == code  # by another name, the same prompts
        assert not set(names["chat"]) & {*math, *code}

    virtual(main())


# -- sources of others ----------------------------------------------------------------------------
@pytest.mark.parametrize("include_buffer", [True, False])
def test_prompts_that_cannot_be_looked_up_are_saved_whole(
    include_buffer: bool, tmp_path: Path
) -> None:
    async def main() -> None:
        life = Life(sources={"math": Plain()})
        await life.train(1, 1, 2)
        waiting = await life.fill(3)
        life.answers.gate.clear()
        producing = asyncio.create_task(life.manager.produce_batch(5, 2))
        await asyncio.sleep(1)
        flying = [flight.group_id for flight in life.manager.in_flight["math"]]
        assert len(flying) == 2
        async with life.manager.checkpoint(tmp_path / "a", 1, include_buffer, "give_back"):
            pass
        life.answers.gate.set()
        await producing
        again = Life(sources={"math": Plain()})
        await again.manager.restore(tmp_path / "a")
        result = await again.manager.produce_batch(5, 2)
        assert sorted(ids(result)) == sorted([*waiting, *flying])
        assert again.answers.asked == (flying if include_buffer else [*waiting, *flying])
        assert Counter(g.prompt_ids[0] for g in result.groups["math"]) == Counter(range(3, 8))
        assert {group.prompt for group in result.groups["math"]} == {"own"}

    virtual(main())


# -- rewinding ------------------------------------------------------------------------------------
def journaled(tmp_path: Path, *names: str, **options: Any) -> Life:
    journal = rc.Journal(tmp_path / "journal", sync="always")
    return Life(*names, journal=journal, checkpoints=tmp_path / "checkpoints", **options)


@pytest.mark.parametrize("include_buffer", [True, False])
def test_weights_older_than_the_journal_get_again_what_they_have_not_seen(
    include_buffer: bool, tmp_path: Path
) -> None:
    async def main() -> None:
        life = journaled(tmp_path)
        await life.train(1, 2)
        waiting = await life.fill(4, version=0)
        async with life.manager.checkpoint(step=2, include_buffer=include_buffer):
            pass
        assert life.buffer.count("math", rc.Status.ARCHIVED) == 0  # what it covers has gone
        later = await life.train(3, 3)
        assert later == [waiting]
        good = await life.fill(4, version=1)
        late = await life.fill(2, version=3)
        leased = await life.buffer.take_batch({"math": 2}, train_step=4, lease=True)
        assert [group.group_id for group in leased.all] == good[:2]
        assert life.buffer.count("math", rc.Status.ARCHIVED) == 4
        life.buffer.close()  # a crash, with everything on the disk

        again = journaled(tmp_path)
        assert len(again.buffer) == 10
        assert await again.manager.restore() == 2
        assert stored(again) == [*waiting, *good]
        assert again.answers.asked == []
        first = await again.manager.produce_batch(4, 3)
        assert ids(first) == waiting
        assert all(group.redelivered for group in first.groups["math"])
        await again.manager.confirm(first)
        second = await again.manager.produce_batch(4, 4)
        assert ids(second) == good
        assert [group.redelivered for group in second.groups["math"]] == [True, True, False, False]
        assert again.answers.asked == []  # nothing is generated twice that is still good
        third = await again.manager.produce_batch(2, 5)
        assert ids(third) == late  # their prompts, by the weights that there are
        assert again.answers.asked == late
        fresh = await again.manager.produce_batch(2, 6)
        assert not set(ids(fresh)) & {*waiting, *good, *late}
        again.buffer.close()

    virtual(main())


def test_groups_of_weights_that_were_lost_may_be_kept_with_lag_0(tmp_path: Path) -> None:
    async def main() -> None:
        life = journaled(tmp_path)
        async with life.manager.checkpoint(step=0):
            pass
        late = await life.fill(3, version=5)
        life.buffer.close()
        again = journaled(tmp_path)
        await again.manager.restore(future="keep")
        assert stored(again) == late
        result = await again.manager.produce_batch(3, 1)
        versions = [r.versions.tolist() for group in result.groups["math"] for r in group]
        assert versions == [[0, 0]] * 6
        assert again.answers.asked == []
        again.buffer.close()

    virtual(main())


def test_a_restore_may_be_repeated_after_a_crash(tmp_path: Path) -> None:
    async def main() -> None:
        life = journaled(tmp_path)
        async with life.manager.checkpoint(step=0):
            pass
        trained = await life.train(1, 2)
        life.buffer.close()
        for _ in range(3):
            again = journaled(tmp_path)
            await again.manager.restore()
            assert stored(again) == trained[0]  # version 0; the others are of weights 1
            assert again.answers.asked == []
            again.buffer.close()

    virtual(main())


def test_a_journal_that_let_go_of_what_an_old_checkpoint_needs_is_loaded_over(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        life = journaled(tmp_path)
        waiting = await life.fill(2)
        for step, include in ((0, True), (1, False)):
            async with life.manager.checkpoint(step=step, include_buffer=include):
                pass
        assert await life.train(2, 2, 2) == [waiting]
        async with life.manager.checkpoint(step=2):  # lets go of what step 2 trained
            pass
        await life.fill(1)
        life.buffer.close()
        again = journaled(tmp_path)
        with pytest.raises(SnapshotError, match="saved without the buffer, and 1 group"):
            await again.manager.restore(step=1)
        await again.manager.restore(step=0)
        assert stored(again) == waiting
        again.buffer.close()
        last = journaled(tmp_path)
        assert stored(last) == waiting  # the journal was rewound with it
        last.buffer.close()

    virtual(main())


def test_the_journal_of_another_run_is_not_taken_for_this_one(tmp_path: Path) -> None:
    async def main() -> None:
        life = Life(checkpoints=tmp_path / "checkpoints")
        waiting = await life.fill(2)
        async with life.manager.checkpoint(step=0):
            pass
        other = journaled(tmp_path)
        await other.fill(3)
        await other.manager.restore()
        assert stored(other) == waiting
        other.buffer.close()

    virtual(main())


def test_what_the_weights_have_is_not_trained_again_though_nobody_confirmed_it(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        life = journaled(tmp_path)
        result = await life.manager.produce_batch(3, 1)
        async with life.manager.checkpoint(step=1):  # trained, and not confirmed yet
            pass
        await life.manager.confirm(result)
        life.buffer.close()
        again = journaled(tmp_path)
        await again.manager.restore()
        assert stored(again) == []
        assert again.manager.progress["math"].consumed == 3
        assert not set((await again.train(2, 2))[0]) & set(ids(result))
        again.buffer.close()

        without = Life(checkpoints=tmp_path / "checkpoints")
        await without.manager.restore()
        assert stored(without) == []
        assert without.manager.progress["math"].consumed == 3

    virtual(main())


def test_a_checkpoint_of_older_weights_gives_back_what_was_trained_since(tmp_path: Path) -> None:
    async def main() -> None:
        life = Life(checkpoints=tmp_path)
        trained = await life.train(1, 3)
        leased = await life.manager.produce_batch(4, 4)
        async with life.manager.checkpoint(step=1, include_buffer=False):
            pass
        again = Life(checkpoints=tmp_path)
        await again.manager.restore()
        assert again.manager.progress["math"].consumed == 4
        names = await again.train(2, 4)
        assert names == [trained[1], trained[2], ids(leased)]

    virtual(main())


def test_a_step_that_was_let_go_of_cannot_be_saved(tmp_path: Path) -> None:
    async def main() -> None:
        life = Life()
        await life.train(1, 3)
        with pytest.raises(ProductionError, match="step 2 cannot be saved: groups of step 3"):
            async with life.manager.checkpoint(tmp_path / "a", 2):
                pass
        async with life.manager.checkpoint(tmp_path / "a", 3):
            pass

    virtual(main())


def test_own_prompts_drawn_after_the_checkpoint_are_generated_again(tmp_path: Path) -> None:
    async def main() -> None:
        life = journaled(tmp_path, sources={"math": Plain()})
        before = await life.fill(2)
        async with life.manager.checkpoint(step=0):
            pass
        after = await life.fill(2)
        life.buffer.close()
        again = journaled(tmp_path, sources={"math": Plain()})
        await again.manager.restore()
        assert stored(again) == before  # nobody could tell the source that it has the others
        result = await again.manager.produce_batch(4, 1)
        assert sorted(int(g.prompt_ids[0]) for g in result.groups["math"]) == [1, 2, 3, 4]
        assert not set(ids(result)) & set(after)
        again.buffer.close()

    virtual(main())


def test_a_running_process_goes_back_too(tmp_path: Path) -> None:
    """A loss that exploded: the same manager, its journal and older weights."""

    async def main() -> None:
        life = journaled(tmp_path, kind=DisaggregatedManager, strategy=AsyncStrategy())
        manager = life.manager
        manager.start(4)
        trained: dict[int, list[str]] = {}
        for step in range(1, 6):
            result = await manager.get_batch(4, step)
            trained[step] = ids(result)
            await manager.confirm(result)
            await manager.set_version(step)
            if step == 2:
                await manager.pause()
                async with manager.checkpoint(step=2):
                    pass
                await manager.continue_(2)
        await manager.pause()
        assert await manager.restore() == 2
        assert manager.state is State.PAUSED
        asked = len(life.answers.asked)
        await asyncio.sleep(100)
        assert len(life.answers.asked) == asked
        await manager.continue_(2)
        again = []
        for step in range(3, 8):
            result = await manager.get_batch(4, step)
            again += ids(result)
            assert all(r.versions.max() < step for g in result.groups["math"] for r in g)
            await manager.confirm(result)
            await manager.set_version(step)
        assert again[:12] == trained[3] + trained[4] + trained[5]
        assert len(set(again)) == 20
        assert not set(again) & {*trained[1], *trained[2]}
        await manager.shutdown()
        life.buffer.close()

    virtual(main())


@pytest.mark.parametrize("storage", ["frame", "sqlite"])
def test_other_storages_are_saved_without_the_buffer(storage: str, tmp_path: Path) -> None:
    def stored_in(name: str) -> Any:
        if storage == "frame":
            return rc.FrameStorage()
        return rc.SqlStorage(f"sqlite:///{tmp_path / name}.db")

    async def main() -> None:
        life = Life(storage=stored_in("a"), checkpoints=tmp_path / "checkpoints")
        await life.train(1, 2)
        waiting = await life.fill(3)
        with pytest.raises(SnapshotError, match="only tables in memory can be saved"):
            async with life.manager.checkpoint(tmp_path / "x", 2):
                pass
        async with life.manager.checkpoint(step=2, include_buffer=False):
            pass
        life.buffer.close()
        again = Life(storage=stored_in("b"), checkpoints=tmp_path / "checkpoints")
        assert await again.manager.restore() == 2
        assert await again.train(3, 3, 3) == [waiting]
        again.buffer.close()

    virtual(main())


def test_a_folder_for_checkpoints_is_a_path() -> None:
    async def main() -> None:
        with pytest.raises(InvalidValue, match="checkpoints: expected the path of a folder, got 3"):
            Life(checkpoints=3)

    virtual(main())


# -- threads --------------------------------------------------------------------------------------
def test_a_trainer_in_a_thread_saves_and_restores(tmp_path: Path) -> None:
    async def answer(group: rc.Group) -> rc.Group:
        for rollout in group:
            rollout.response_ids, rollout.finish_reason = np.array([1], np.int32), "stop"
        return group

    def life() -> DisaggregatedManager:
        from recollect.production.generators.function import FunctionGenerator

        task = Task("math", prompts(), FunctionGenerator(answer))
        buffer = rc.RolloutBuffer(staleness=rc.Staleness(max_staleness=3))
        return DisaggregatedManager([task], buffer, checkpoints=tmp_path)

    manager = life()
    manager.sync.start(4)
    trained = []
    for step in (1, 2):
        result = manager.sync.get_batch(4, step)
        trained += ids(result)
        manager.sync.confirm(result)
    manager.sync.pause()
    with manager.sync.checkpoint(step=2) as checkpoint:
        (checkpoint.dir / "model").write_text("2")
    manager.sync.shutdown()
    again = life()
    assert again.sync.restore() == 2
    again.sync.start(4)
    again.sync.continue_(2)
    result = again.sync.get_batch(4, 3)
    assert len(ids(result)) == 4
    assert not set(ids(result)) & set(trained)
    again.sync.shutdown()

"""Checkpoints of a manager: prompts, buffer, progress and the trainer's files in one commit.

    async with manager.checkpoint(path, step=100) as checkpoint:
        torch.save(model.state_dict(), checkpoint.dir / "model.pt")

The block writes the trainer's files beside the checkpoint's place. When it ends, everything else
is captured at one moment: on the manager's event loop, so nobody produces meanwhile, and under
the buffer's lock. Files are written in a thread, and one rename commits all of it, or none.

What a checkpoint of step s knows is seen from the weights of step s. Groups that those have been
trained on are done with; all other prompts that were drawn are *held*: in the buffer, or on their
way. `held` names each of them, so that whoever restores can account for every prompt.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from recollect.base.arguments import flag, one_of, whole
from recollect.durability.files import LOCAL
from recollect.durability.snapshot.manifest import new_run
from recollect.durability.snapshot.saver import SavedSnapshot, SnapshotSaving
from recollect.errors import InvalidValue, JournalError, ProductionError, SnapshotError, shown
from recollect.production.pending import Flight
from recollect.production.progress import Handed, Progress
from recollect.production.prompts.base import Indexed, Prompts
from recollect.production.prompts.indexed import IndexedPrompts
from recollect.production.prompts.saved import Saved, reference, to_saved
from recollect.production.task import Task
from recollect.ranks.shard_sets import step_folder
from recollect.rollouts import rewind
from recollect.rollouts.buffer import RolloutBuffer
from recollect.rollouts.groups import finished
from recollect.rollouts.rewind import Holding
from recollect.storage.base import Chosen
from recollect.storage.memory.storage import MemoryStorage
from recollect.table.member import member_of

T = TypeVar("T")

KIND = "production"
FORMAT = 1
IN_FLIGHT = ("refuse", "give_back")


def begin(buffer: RolloutBuffer, checkpoints: str | os.PathLike[str] | None) -> None:
    """A manager begins with a buffer: trained groups are kept where a rewind may need them.

    That is where a journal can outlive the weights, or where a checkpoint of an earlier step than
    the last may be saved. Else nobody would ever let go of them.
    """
    if checkpoints is not None and not isinstance(checkpoints, str | os.PathLike):
        raise InvalidValue(f"checkpoints: expected the path of a folder, got {shown(checkpoints)}")
    if buffer.core.table.journal is not None or checkpoints is not None:
        rewind.keep_trained(buffer.core)


class Checkpointed(Protocol):
    """What a checkpoint needs of a manager, which says what each is."""

    buffer: RolloutBuffer
    progress: Progress
    checkpoints: str | os.PathLike[str] | None

    @property
    def tasks(self) -> Mapping[str, Task]: ...
    @property
    def in_flight(self) -> Mapping[str, list[Flight]]: ...
    def look(self) -> Mapping[str, Handed]: ...


@dataclass
class Checkpoint:
    """What the block of a checkpoint gets.

    Attributes:
        dir: An empty folder for the trainer's own files; they commit with the rest.
        path: Where the checkpoint will be.
        step: The train step whose weights it has.
        saved: What was written, once it is committed.
    """

    dir: Path
    path: Path
    step: int
    saved: SavedSnapshot | None = None


class CheckpointSaving:
    """`manager.checkpoint(...)`, which says what its arguments are; saves when its block ends."""

    def __init__(
        self,
        manager: Checkpointed,
        path: str | os.PathLike[str] | None,
        step: int | None,
        include_buffer: bool,
        in_flight: str,
        **options: Any,
    ) -> None:
        if step is None:
            raise InvalidValue("checkpoint: step= says which weights it has")
        step = whole("step", step, 0)
        one_of("in_flight", in_flight, IN_FLIGHT)
        target = _target(manager, path, step)
        self._manager = manager
        self._include_buffer = flag("include_buffer", include_buffer)
        self._refuses = in_flight == "refuse"
        self._options = options
        self._staging = target.with_name(f".{target.name}.files-{new_run()}")
        self.checkpoint = Checkpoint(self._staging, target, step)

    async def __aenter__(self) -> Checkpoint:
        self._check()
        target = self.checkpoint.path
        target.parent.mkdir(parents=True, exist_ok=True)
        for name in os.listdir(target.parent):  # what a crash left of an earlier attempt
            if name.startswith(f".{target.name}.files-"):
                shutil.rmtree(target.parent / name, ignore_errors=True)
        self._staging.mkdir()
        return self.checkpoint

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is None:
                await self._save()
        finally:
            shutil.rmtree(self._staging, ignore_errors=True)

    def _check(self) -> None:
        """Raise where this moment can't be saved."""
        running = self._manager.in_flight
        if running and self._refuses:
            told = ", ".join(
                f"{task}: {len(flights)} in flight" for task, flights in running.items()
            )
            raise ProductionError(f"call pause() first; {told}")
        table = self._manager.buffer.core.table
        if self._include_buffer and not isinstance(table.storage, MemoryStorage):
            raise SnapshotError(
                f"table {table.name!r}: only tables in memory can be saved and loaded, and this "
                f"one is in {type(table.storage).__name__}; save with include_buffer=False, and "
                "restore into an empty buffer, where its prompts are generated again"
            )
        unkept = self._manager.buffer.core.unkept
        if unkept > self.checkpoint.step:
            raise ProductionError(
                f"step {self.checkpoint.step} cannot be saved: groups of step {unkept} were "
                "trained and not kept, so nobody could train on them again; save the last step, "
                "or give the manager checkpoints= before it begins, and the buffer no max_uses"
            )

    async def _save(self) -> None:
        manager, checkpoint = self._manager, self.checkpoint
        core = manager.buffer.core
        members = {core.table.name: member_of(core.table)} if self._include_buffer else {}
        saving = SnapshotSaving(
            checkpoint.path, members, kind=KIND, step=checkpoint.step, **self._options
        )
        try:
            await in_thread(saving.__enter__)
            self._check()  # somebody may have gone on meanwhile
            with core.table.transaction():
                core.table.enter()
                moment = Moment(manager, checkpoint.step, include_buffer=self._include_buffer)
                saving.capture()
        except BaseException:
            saving.__exit__()
            raise

        def write() -> SavedSnapshot:
            try:
                _flush(core)
                saving.own.update(moment.state())
                saving.others.update(_links(self._staging))
                return saving.write()
            finally:
                saving.__exit__()

        checkpoint.saved = await in_thread(write)
        rewind.forget_trained(core, checkpoint.step)


def _target(manager: Checkpointed, path: str | os.PathLike[str] | None, step: int) -> Path:
    if path is not None:
        return Path(os.path.abspath(path))
    if manager.checkpoints is None:
        raise InvalidValue("checkpoint: give a path, or the manager a folder with checkpoints=")
    return Path(os.path.abspath(step_folder(Path(manager.checkpoints), step)))


# -- one moment -----------------------------------------------------------------------------------
class Moment:
    """A manager at one moment. Made on its loop and under the lock; the rest can wait."""

    def __init__(self, manager: Checkpointed, step: int, *, include_buffer: bool) -> None:
        core = manager.buffer.core
        manager.look()  # first: what is due expires by it
        holding = rewind.look(core, step)
        self._held = _Held(manager, holding)
        self._state: dict[str, Any] = {
            "format": FORMAT,
            "include_buffer": include_buffer,
            "tasks": list(manager.tasks),
            "prompts": {name: task.prompts.state() for name, task in manager.tasks.items()},
            "progress": manager.progress.state(
                include_buffer=include_buffer, consumed_less=holding.ahead
            ),
            "buffer": {
                "line": core.history.to_json(),
                "effects": core.table.effects.number,
                "trained": holding.trained,
            },
        }

    def state(self) -> dict[str, Any]:
        """All of it as JSON; may be called without the lock, and in a thread."""
        return {**self._state, "held": self._held.saved()}


class _Held:
    """The prompts that were drawn and are not in the weights: where they are now."""

    def __init__(self, manager: Checkpointed, holding: Holding) -> None:
        storage = manager.buffer.core.storage
        known: dict[str, list[tuple[int, str]]] = {name: [] for name in manager.tasks}
        whole: dict[str, list[int]] = {name: [] for name in manager.tasks}
        for key, task, group_id in holding.held:
            if task not in known:
                continue  # nobody here draws its prompts
            if _finds(manager.tasks[task].prompts, group_id):
                known[task].append((key, group_id))
            else:
                whole[task].append(key)
        stored = {group_id for _, _, group_id in holding.held}
        self._ids = {task: [group_id for _, group_id in pairs] for task, pairs in known.items()}
        self._known = {
            task: storage.get(np.array([key for key, _ in pairs], np.uint64), ["attempt"])
            for task, pairs in known.items()
        }
        self._whole = {
            task: storage.get(np.array(keys, np.uint64), None) for task, keys in whole.items()
        }
        self._blobs = manager.buffer.core.blobs_of(
            [manager.buffer.core.entries[key] for keys in whole.values() for key in keys]
        )
        # A result that was stored just now may still count as in flight.
        self._flying = {
            task: [
                (flight.prompt(), _finds(manager.tasks[task].prompts, flight.group_id))
                for flight in flights
                if flight.group_id not in stored
            ]
            for task, flights in manager.in_flight.items()
        }

    def saved(self) -> dict[str, list[Saved]]:
        """By task, first those of the buffer, in the order in which they came."""
        held: dict[str, list[Saved]] = {}
        for task, group_ids in self._ids.items():
            attempts = _attempts(self._known[task])
            held[task] = [
                reference(group_id, attempt + 1)
                for group_id, attempt in zip(group_ids, attempts, strict=True)
            ]
            if self._whole[task].count:
                groups = finished(self._whole[task].read(np.empty), 0, self._blobs)
                held[task] += [to_saved(group) for group in groups]
            for prompt, known in self._flying.get(task, ()):
                found = reference(prompt.group_id, prompt.attempt) if known else to_saved(prompt)
                held[task].append(found)
        return held


def _finds(prompts: Prompts, group_id: str) -> bool:
    """Whether a source finds a prompt by its id."""
    if isinstance(prompts, IndexedPrompts):
        return prompts.has(group_id)
    return isinstance(prompts, Indexed) and prompts.find(group_id) is not None


def _attempts(chosen: Chosen) -> list[int]:
    """The highest attempt of each group."""
    if not chosen.count:
        return []
    batch = chosen.read(np.empty)
    column: Any = batch.columns["attempt"]
    highest: list[int] = np.maximum.reduceat(column, batch.info.row_offsets[:-1]).tolist()
    return highest


# -- files ----------------------------------------------------------------------------------------
def _links(staging: Path) -> dict[str, Callable[[str], object]]:
    """The trainer's files, linked into the snapshot: they are not written twice."""

    def link(source: Path, target: str) -> None:
        if not source.is_dir():
            LOCAL.link(source, Path(target))
            return
        os.mkdir(target)
        for name in os.listdir(source):
            link(source / name, os.path.join(target, name))

    def linking(name: str) -> Callable[[str], object]:
        return lambda target: link(staging / name, target)

    return {name: linking(name) for name in sorted(os.listdir(staging))}


def _flush(core: Any) -> None:
    """A journal must not be behind a checkpoint: else it could not go back to it."""
    journal = core.table.journal
    if journal is not None and not journal.writer.flush():
        raise JournalError(
            f"{journal.options.path}: the journal cannot be written, so no checkpoint was made"
        )


async def in_thread(call: Callable[[], T]) -> T:
    """Run a call in a thread; who is cancelled meanwhile waits for its end first."""
    work = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise

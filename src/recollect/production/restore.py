"""Restoring a manager from a checkpoint: every prompt is in the weights, or comes again, once.

First the buffer is brought to the weights of the checkpoint's step (`rollouts/rewind.py`):
loaded, or, where its journal has what came after the checkpoint, gone back in place. Then each
prompt that the checkpoint holds and the buffer has not is given back; and each group that the
buffer has and the checkpoint does not hold was drawn later, so its source must not draw it again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from recollect.base.arguments import many, one_of
from recollect.durability.snapshot.loader import load_snapshot
from recollect.durability.snapshot.manifest import find_snapshots
from recollect.durability.snapshot.reader import Snapshot, open_snapshot
from recollect.errors import InvalidValue, ProductionError, SnapshotError
from recollect.production.prompts.base import Indexed
from recollect.production.prompts.saved import from_saved
from recollect.production.results import log
from recollect.production.save import FORMAT, KIND, Checkpoint, Checkpointed, in_thread
from recollect.rollouts import rewind
from recollect.rollouts.core import RolloutCore
from recollect.rollouts.history import History
from recollect.table.member import member_of

FUTURE = ("give_back", "keep")


class Restorable(Checkpointed, Protocol):
    """What a restore needs of a manager beside."""

    def stop_for_restore(self) -> None: ...
    def restored(self, version: int) -> None: ...


async def restore(
    manager: Restorable,
    path: str | os.PathLike[str] | None = None,
    *,
    step: int | None = None,
    future: str = "give_back",
    allow_task_change: bool = False,
) -> int:
    """Bring a manager to a checkpoint; returns the version of its weights, which is its step.

    The manager is paused then, and produces when it is continued.

    Args:
        manager: One that does not run.
        path: The checkpoint, or a folder of them; None: the manager's `checkpoints`.
        step: Which of a folder; None for the latest.
        future: What becomes of groups that weights of a later version generated: `"give_back"`
            their prompts, or `"keep"` them as if the checkpoint's weights had generated them.
        allow_task_change: Whether tasks may have come, gone, or changed their name.
    """
    one_of("future", future, FUTURE)
    if path is None:
        path = manager.checkpoints
    if path is None:
        raise InvalidValue("restore: give a path, or the manager a folder with checkpoints=")
    if manager.in_flight:
        told = ", ".join(f"{task}: {len(each)}" for task, each in manager.in_flight.items())
        raise ProductionError(f"restore: call pause() first; in flight are {told}")
    snapshot = open_snapshot(path, step=step)
    restoring = _Restoring(manager, snapshot)
    restoring.match_tasks(allow_change=allow_task_change)
    manager.stop_for_restore()
    before = {name: task.prompts.state() for name, task in manager.tasks.items()}
    cancelled = None
    try:
        restoring.restore_prompts()
        await in_thread(lambda: restoring.restore_buffer(keep_future=future == "keep"))
    except BaseException as error:
        if not restoring.has_buffer:
            for name, task in manager.tasks.items():  # as if nobody had asked
                task.prompts.restore(before[name])
            raise
        cancelled = error  # while the buffer went back: the rest must follow it
    kept, given_back, discarded = restoring.reconcile()
    manager.progress.restore(restoring.progress(), manager.look())
    manager.restored(restoring.step)
    log.info(
        "restored step %d from %s: %s in the buffer, %s given back, %d discarded", restoring.step,
        snapshot.path, many(kept, "group"), many(given_back, "prompt"), discarded,
    )  # fmt: skip
    if cancelled is not None:
        raise cancelled
    return restoring.step


def latest_checkpoint(path: str | os.PathLike[str], step: int | None = None) -> Checkpoint | None:
    """The latest checkpoint in a folder, or that of a step; None where there is none.

    Its `dir` has the trainer's files. What was not committed is not found.
    """
    found = [one for one in find_snapshots(Path(path)) if one.manifest["kind"] == KIND]
    if step is not None:
        found = [one for one in found if one.step == step]
    if not found:
        return None
    latest = found[-1]
    return Checkpoint(latest.path, latest.path, latest.step or 0)


class _Restoring:
    """One checkpoint on its way into a manager."""

    def __init__(self, manager: Restorable, snapshot: Snapshot) -> None:
        self._manager, self._snapshot = manager, snapshot
        where, state = snapshot.path, snapshot.state
        if snapshot.kind != KIND or snapshot.step is None:
            raise SnapshotError(
                f"{where} is no checkpoint of a manager but of kind {snapshot.kind!r}; load it "
                "into what it was saved from"
            )
        if state["format"] > FORMAT:
            raise SnapshotError(
                f"{where} has format {state['format']} and this version of Recollect reads up to "
                f"{FORMAT}; update Recollect to restore it"
            )
        self.step: int = snapshot.step  # and so the version of its weights
        self._state = state
        self._core: RolloutCore = manager.buffer.core
        self._names: dict[str, str | None] = {}  # of tasks, then and now; None: gone
        self.has_buffer = False  # whether the buffer is at the checkpoint's weights

    # -- tasks ------------------------------------------------------------------------------------
    def match_tasks(self, *, allow_change: bool) -> None:
        """Find out which task is which; a source that goes on under another name was renamed."""
        saved, now = list(self._state["tasks"]), self._manager.tasks
        added = [name for name in now if name not in saved]
        renamed: dict[str, str] = {}
        for name in [name for name in saved if name not in now]:
            for other in added:
                if other not in renamed.values() and self._same_source(name, other):
                    renamed[name] = other
                    break
        added = [name for name in added if name not in renamed.values()]
        removed = [name for name in saved if name not in now and name not in renamed]
        told = [f"{task} was added" for task in added] + [f"{task} was removed" for task in removed]
        told += [f"{name} is called {other} now" for name, other in renamed.items()]
        if told and not allow_change:
            raise SnapshotError(
                f"{self._snapshot.path} was saved with other tasks: {'; '.join(told)}; make the "
                "tasks that it has, or restore with allow_task_change=True"
            )
        for change in told:
            log.warning("%s: %s", self._snapshot.path, change)
        self._names = {name: renamed.get(name, name if name in now else None) for name in saved}

    def _same_source(self, saved: str, now: str) -> bool:
        before = self._state["prompts"][saved].get("source")
        here = self._manager.tasks[now].prompts.state().get("source")
        return before is not None and before == here

    def restore_prompts(self) -> None:
        for name, now in self._names.items():
            if now is not None:
                self._manager.tasks[now].prompts.restore(self._state["prompts"][name])

    def progress(self) -> dict[str, Any]:
        """That of the checkpoint, under the names of now.

        A trainer that was ahead of the weights that it saved comes back to the step after those;
        what was planned for later ones may be too much for them, and is planned again.
        """
        saved = dict(self._state["progress"])
        if saved["consumer_step"] > self.step + 1:
            saved.update(future_step=self.step + 1, consumer_step=self.step + 1)
            saved.update(target_step=self.step, allocations={})
            saved["tasks"] = {
                task: {**counts, "target": counts["consumed"]}
                for task, counts in saved["tasks"].items()
            }
        saved["tasks"] = self._by_name(saved["tasks"])
        saved["allocations"] = {
            step: self._by_name(sizes) for step, sizes in saved["allocations"].items()
        }
        return saved

    def _by_name(self, values: Mapping[str, Any]) -> dict[str, Any]:
        named = {self._names.get(task, task): value for task, value in values.items()}
        return {task: value for task, value in named.items() if task is not None}

    # -- the buffer -------------------------------------------------------------------------------
    def restore_buffer(self, *, keep_future: bool) -> None:
        """Bring the buffer to the checkpoint's weights; in a thread."""
        core, saved = self._core, self._state["buffer"]
        has_buffer = self._state.get("include_buffer", True)
        in_place = core.table.journal is not None and self._continues()
        stored = sum(not entry.trained for entry in core.entries.values())
        if not in_place and has_buffer:
            load_snapshot(
                self._snapshot.path, {core.table.name: member_of(core.table)}, progress=False
            )
        elif not in_place and stored:
            raise SnapshotError(
                f"{self._snapshot.path} was saved without the buffer, and {many(stored, 'group')} "
                "are in it now; restore into an empty one, or into the journal that this "
                "checkpoint was made beside"
            )
        with rewind.alone(core):
            trained = np.array(saved["trained"], np.uint64)
            checkpoint = self._snapshot.manifest["id"]
            rewind.rewind(core, self.step, trained, checkpoint, keep_future=keep_future)
        self.has_buffer = True

    def _continues(self) -> bool:
        """Whether the journal holds what came of this checkpoint, and nothing less."""
        saved = self._state["buffer"]
        history = History.from_json(saved["line"])
        return (
            self._core.history.continues(history.run, self._snapshot.manifest["id"], self.step)
            and self._core.table.effects.number >= saved["effects"]
        )

    # -- prompts ----------------------------------------------------------------------------------
    def reconcile(self) -> tuple[int, int, int]:
        """Every prompt that was drawn is in the weights, in the buffer or back at its source.

        Returns how many groups are in the buffer, prompts came back, and groups were discarded.
        """
        tasks, sync = self._manager.tasks, self._manager.buffer.sync
        gone = {name for name, now in self._names.items() if now != name}
        here = {
            entry.group_id: (key, entry.task)
            for key, entry in self._core.entries.items()
            if not entry.trained
        }
        leaving = [group_id for group_id, (_, task) in here.items() if task in gone]
        held: dict[str, set[str]] = {}
        given_back = 0
        for name, now in self._names.items():
            some = self._state["held"].get(name, [])
            held[name] = {saved["id"] for saved in some}
            if now is None:
                continue
            for saved in some:
                if saved["id"] in here and name == now:
                    continue
                prompt = from_saved(saved, tasks[now].prompts, now)
                if prompt is None:
                    raise SnapshotError(
                        f"{self._snapshot.path}: the prompts of {now!r} do not find group "
                        f"{saved['id']!r}, which they made; give the source that was saved"
                    )
                tasks[now].prompts.give_back(prompt)
                given_back += 1
        for group_id, (_, task) in here.items():
            if task not in held or task in gone or group_id in held[task]:
                continue
            prompts = tasks[task].prompts
            if not isinstance(prompts, Indexed) or not prompts.withdraw(group_id):
                leaving.append(group_id)
        if leaving:
            keys = np.array([here[group_id][0] for group_id in leaving], np.uint64)
            sync.discard(keys, "rewound")
        return len(here) - len(leaving), given_back, len(leaving)

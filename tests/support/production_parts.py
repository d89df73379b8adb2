"""Parts of production that tests share: numbered prompts, and a generator that takes its time."""

from __future__ import annotations

import asyncio

import recollect as rc
from recollect.production.generators.base import to_generate
from recollect.production.prompts.base import prompt_of
from recollect.simulation import VirtualClock


class Numbers:
    """Prompts 0, 1, 2, ...: those given back come first. Remembers what was asked of it."""

    def __init__(self, task="math", size=1):
        self.task, self.size = task, size
        self.count = 0
        self.back = []
        self.handed = []
        self.given_back = []
        self.on_next = lambda: None

    def next(self):
        self.on_next()
        if self.back:
            group = self.back.pop(0)
        else:
            rollouts = [rc.Rollout() for _ in range(self.size)]
            name = f"{self.task}-{self.count}"
            group = rc.Group(rollouts, task=self.task, group_id=name, prompt_ids=[1])
            self.count += 1
        self.handed.append(group.group_id)
        return group

    def give_back(self, group):
        self.given_back.append(group.group_id)
        self.back.append(prompt_of(group))

    def exclude(self, group):
        pass

    def state(self):
        return {"count": self.count, "back": [group.group_id for group in self.back]}

    def restore(self, state):
        self.count = state["count"]
        self.back = []
        for name in state["back"]:
            rollouts = [rc.Rollout() for _ in range(self.size)]
            self.back.append(rc.Group(rollouts, task=self.task, group_id=name, prompt_ids=[1]))


class Timed:
    """Answers after so many seconds, a number or one per group; a pause may abort it."""

    def __init__(self, seconds=1.0, aborts=False):
        self.seconds = seconds if callable(seconds) else lambda group: seconds
        self.aborts = aborts
        self.version = 0
        self.started = []
        self.finished = []
        self.calls = []  # (time, what) of pause, continue_ and set_version
        self._stop = None

    def _time(self):
        return asyncio.get_running_loop().time()

    async def generate(self, group, *, keep_partial):
        self.started.append(group.group_id)
        version = self.version
        if self._stop is None:
            self._stop = asyncio.Event()
        waits = [asyncio.ensure_future(asyncio.sleep(self.seconds(group)))]
        if self.aborts:
            waits.append(asyncio.ensure_future(self._stop.wait()))
        try:
            await asyncio.wait(waits, return_when="FIRST_COMPLETED")
            reason = "stop" if waits[0].done() else "abort"
        finally:
            for wait in waits:
                wait.cancel()
        for rollout in to_generate(group):
            if reason == "stop":
                rollout.response_ids, rollout.versions = [7, 8], [version] * 2
                rollout.check()
                rollout.reward = 1.0
            rollout.finish_reason = reason
        self.finished.append((self._time(), group.group_id))
        return group

    async def pause(self):
        self.calls.append((self._time(), "pause"))
        if self._stop is not None:
            self._stop.set()

    async def continue_(self, version):
        self.calls.append((self._time(), f"continue {version}"))
        self.version = version
        self._stop = asyncio.Event()

    async def set_version(self, version):
        self.calls.append((self._time(), f"set {version}"))
        self.version = version


def buffer_of(**options):
    return rc.RolloutBuffer(**{"clock": VirtualClock(), "order": rc.Fifo(), **options})


def completed(name, task="math", version=0):
    rollout = rc.Rollout(response_ids=[7, 8], versions=[version] * 2, finish_reason="stop")
    return rc.Group([rollout], task=task, group_id=name, prompt_ids=[1])


async def settle():
    """Let everything happen that needs no time."""
    for _ in range(100):
        await asyncio.sleep(0)


def names(result):
    return [group.group_id for groups in result.groups.values() for group in groups]

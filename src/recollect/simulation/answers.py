"""Prompts without end, and a generator that answers them on a simulated engine.

How long a response is, and whether it fails, follows from the seed, the prompt's number and the
attempt, not from when it is generated: two rules that are compared meet the same responses.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from recollect.production.generators.base import to_generate
from recollect.production.prompts.base import prompt_of
from recollect.rollouts.group import Group
from recollect.rollouts.rollout import NO_TOKENS, Rollout, Status
from recollect.simulation.engine import Engine, EngineRequest
from recollect.simulation.scenario import Scenario, TaskModel

REMEMBERED = 10_000  # fates, at most

Ended = Callable[[EngineRequest], None]


class EndlessPrompts:
    """Prompts that are numbers: 0, 1, 2, ... Those given back come first."""

    def __init__(self, task: str, group_size: int) -> None:
        self._task = task
        self._size = group_size
        self._next = 0
        self._back: deque[Group] = deque()

    def next(self) -> Group:
        if self._back:
            return self._back.popleft()
        self._next += 1
        return self._prompt(self._next - 1)

    def _prompt(self, number: int) -> Group:
        rollouts = [Rollout() for _ in range(self._size)]
        name = f"{self._task}-{number}"
        return Group(rollouts, task=self._task, group_id=name, prompt_ids=[0])

    def give_back(self, group: Group) -> None:
        self._back.append(prompt_of(group))

    def exclude(self, group: Group) -> None:
        """None comes twice anyway."""

    def state(self) -> Mapping[str, Any]:
        return {"next": self._next, "back": [number_of(group) for group in self._back]}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._next = state["next"]
        self._back = deque(self._prompt(number) for number in state["back"])


class Fate:
    """What will become of the responses to one prompt at one attempt."""

    def __init__(
        self, scenario: Scenario, model: TaskModel, place: int, number: int, attempt: int
    ) -> None:
        stream = np.random.Philox(key=[scenario.seed, place], counter=[0, 0, number, attempt])
        rng = np.random.Generator(stream)
        size = scenario.group_size
        tokens = model.median_tokens * np.exp(model.sigma * rng.standard_normal(size))
        chances = rng.random((4, size))
        cells = np.ceil(np.minimum(tokens, model.max_tokens) / scenario.tokens_per_cell)
        self.is_cut: list[bool] = (tokens >= model.max_tokens).tolist()
        self.cells: list[int] = cells.astype(int).tolist()
        self.fails: list[bool] = (chances[0] < model.failure).tolist()
        self.drops: list[bool] = (chances[0] >= 1 - model.abort).tolist()
        self.slow: list[bool] = (chances[1] < model.straggler).tolist()
        self.share: list[float] = chances[2].tolist()  # of its length, where it fails or is dropped
        self.rewards: list[float] = (chances[3] < 0.5).astype(float).tolist()
        self.is_filtered = bool(rng.random() < model.filtered)


class Tally:
    """What was generated for a task, and what became of it as far as the generator knows."""

    def __init__(self) -> None:
        self.generated = 0  # cells
        self.lost: Counter[str] = Counter()  # cells, by reason
        self.seconds: list[float] = []  # that groups took which were completed
        self.completed_at = 0.0  # when one was last completed


class SimulatedGenerator:
    """Answers the prompts of all tasks on one engine."""

    def __init__(self, scenario: Scenario, engine: Engine) -> None:
        self._scenario = scenario
        self._places = {task: place for place, task in enumerate(scenario.tasks)}
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._fates: dict[tuple[str, int], Fate] = {}
        self.tallies = {task: Tally() for task in scenario.tasks}
        self.is_over = False  # the trainer has what it needs: what runs now is left over

    async def generate(self, group: Group, *, keep_partial: bool) -> Group:
        tally = self.tallies[group.task]
        began = self._loop.time()
        members = to_generate(group)
        left = len(members)
        all_ended = self._loop.create_future()

        def ended(request: EngineRequest) -> None:
            nonlocal left
            left -= 1
            if not left and not all_ended.done():
                all_ended.set_result(None)

        requests = [self._request(group, rollout, ended) for rollout in members]
        for request in requests:
            self._engine.submit(request)
        try:
            if requests:
                await all_ended
                seconds = self._scenario.tasks[group.task].reward_seconds
                if seconds and all(each.reason in ("stop", "length") for each in requests):
                    await asyncio.sleep(seconds)  # rewards of a group that is whole
        except asyncio.CancelledError:
            for request in requests:
                self._engine.cancel(request)
            written = sum(request.written for request in requests)
            tally.generated += written
            # What the group came with is not lost: it goes back to the buffer.
            tally.lost[self._lost("cancelled")] += written
            raise
        for rollout, request in zip(members, requests, strict=True):
            self._write(tally, rollout, request, keep_partial)
        if group.status is Status.ABORTED and self._scenario.strategy == "sync":
            # The strategy gives back the prompt alone, whatever other members have.
            tally.lost[self._lost("aborted")] += cells_of(group)
        elif group.status is Status.FAILED:
            tally.lost["failed"] += cells_of(group)
        elif group.status is Status.COMPLETED:
            tally.completed_at = self._loop.time()
            tally.seconds.append(tally.completed_at - began)
            for place, rollout in enumerate(group):
                rollout.reward = self._fate(group, rollout.attempt).rewards[place]
        return group

    async def pause(self) -> None:
        self._engine.pause()

    async def continue_(self, version: int) -> None:
        self._engine.load(version)
        self._engine.go_on()

    async def set_version(self, version: int) -> None:
        self._engine.load(version)

    def valid(self, group: Group) -> bool:
        """Whether a group is worth training on: a task's filter."""
        fate = self._fate(group, max(rollout.attempt for rollout in group))
        if fate.is_filtered:
            self.tallies[group.task].lost["filtered"] += cells_of(group)
        return not fate.is_filtered

    def _lost(self, why: str) -> str:
        return "left_over" if self.is_over else why

    def _fate(self, group: Group, attempt: int) -> Fate:
        fate = self._fates.get((group.group_id, attempt))
        if fate is None:
            if len(self._fates) >= REMEMBERED:
                self._fates.clear()  # they are made again where they are needed
            model, place = self._scenario.tasks[group.task], self._places[group.task]
            fate = Fate(self._scenario, model, place, number_of(group), attempt)
            self._fates[group.group_id, attempt] = fate
        return fate

    def _request(self, group: Group, rollout: Rollout, ended: Ended) -> EngineRequest:
        """What is left to write of a response."""
        fate = self._fate(group, rollout.attempt)
        place = group.index(rollout)
        cells, ends = fate.cells[place], "length" if fate.is_cut[place] else "stop"
        done = rollout.num_tokens
        if fate.fails[place]:
            cells, ends = max(1, int(cells * fate.share[place])), "error"
        elif fate.drops[place] and not done:  # once: what is continued goes on to its end
            cells, ends = max(1, int(cells * fate.share[place])), "abort"
        if not done:
            rollout.dispatch_version = self._engine.version
        slowness = self._scenario.tasks[group.task].slowdown if fate.slow[place] else 1.0
        return EngineRequest(max(1, cells - done), ends, slowness, ended)

    def _write(
        self, tally: Tally, rollout: Rollout, request: EngineRequest, keep_partial: bool
    ) -> None:
        """What the engine wrote becomes part of the response, or is dropped."""
        tally.generated += request.written
        if request.reason == "abort" and not keep_partial:
            tally.lost[self._lost("aborted")] += rollout.num_tokens + request.written
            dispatched = rollout.dispatch_version
            rollout.reset()  # another attempt, which may have another fate
            rollout.dispatch_version = dispatched
        elif request.written:
            new = np.concatenate([np.full(cells, v, np.int32) for v, cells in request.pieces])
            old = NO_TOKENS if rollout.versions is None else rollout.versions
            rollout.versions = np.concatenate([old, new])
            rollout.response_ids = np.zeros(rollout.versions.size, np.int32)
        rollout.finish_reason = request.reason
        rollout.error = "simulated" if request.reason == "error" else None


def number_of(group: Group) -> int:
    """Which prompt a group answers."""
    return int(group.group_id.rpartition("-")[2])


def cells_of(group: Group) -> int:
    return sum(rollout.num_tokens for rollout in group)

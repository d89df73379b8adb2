"""Drives `rc.RolloutBuffer` and plain lists side by side, and compares all after every step."""

from __future__ import annotations

import asyncio
import copy
import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rollout_model import (
    Held,
    Model,
    ModelGroup,
    ModelRollout,
    Predicate,
    Refused,
    WouldWait,
    real_group,
)

import recollect as rc
from recollect.rules.selectors import Ordered

TASKS = ("math", "code", "chat")
TAGS = {"score": float, "level": int}
ORDERS = [
    rc.StalestFirst(),
    rc.StalestFirst(),
    rc.Fifo(),
    rc.Fifo(),
    rc.Lifo(),
    rc.FreshestFirst(),
    rc.Largest("priority"),
    rc.Uniform(),
    rc.Prioritized(),
]
BLOBS = [b"", b"cat", b"dog" * 40, b"\x00\xff" * 9]
PRIORITIES = (0.0, 0.5, 1.0, 1.0, 4.0)


def choose_rule(rng: random.Random) -> rc.Staleness:
    return rc.Staleness(
        max_staleness=rng.choice([0, 0, 1, 2]),
        sync_interval=rng.choice([1, 1, 2, 3]),
        max_token_staleness=rng.choice([None, None, 0, 1]),
        measure=rng.choice(["oldest_token", "oldest_token", "dispatch"]),
        on_expire=rng.choice(["retry", "retry", "discard"]),
        max_retries=rng.choice([None, None, 0, 1, 2]),
    )


class Driver:
    """One buffer, its model, and random calls on both."""

    def __init__(self, seed: int, folder: Path, reserving: int = 4, **options: Any) -> None:
        rng = self.rng = random.Random(seed)
        self.folder = folder
        self.reserving = reserving
        self.saves = 0
        rules = {task: choose_rule(rng) for task in TASKS}
        if rng.random() < 0.5:
            rules = dict.fromkeys(TASKS, rules["math"])
        common = rules["math"] if len(set(rules.values())) == 1 else rules
        self.options: dict[str, Any] = {
            "order": rng.choice(ORDERS),
            "capacity": rng.choice([None, None, 3, 5, 8]),
            "max_uses": rng.choice([0, 1, 1, 2, 3]),
            "overflow": rng.choice(["block", "drop_stalest", "drop_newest", "raise"]),
            "needs": tuple(n for n in ("reward", "ref", "logprobs") if rng.random() < 0.25),
            "archive": rng.random() < 0.3,
            **options,
        }
        self.model = Model(rules=rules, **self.options)
        self.options |= {"staleness": common, "tags": TAGS, "seed": seed}
        self.cut = rng.random() < 0.3  # trajectories in several segments
        self.calls = [f"{self.options}"]
        self.clock = rc.ManualClock()
        self.keys: set[int] = set()
        self.ids = 0
        self.tries = 0
        self.rollouts = 0
        self.compared = 0
        self.above = 0  # how often there were more groups than the capacity
        self.handed: list[int] = []  # leases that were handed out, settled ones too
        self.open()

    def open(self) -> None:
        self.real = rc.RolloutBuffer(clock=self.clock, **self.options)
        self.buffer = self.real.sync
        self.events = self.buffer.events("taken", "confirmed", "expired", "discarded", "retried")

    def run(self, steps: int) -> None:
        verbs: list[tuple[Callable[[], None], int]] = [
            (self.put, 30),
            (self.advance, 8),
            (self.take, 8),
            (self.take_batch, 10),
            (self.sample, 8),
            (self.settle, 8),
            (self.pass_time, 4),
            (self.reserve, self.reserving),
            (self.claim, 8),
            (self.annotate, 10),
            (self.update, 4),
            (self.discard, 2),
            (self.refused, 3),
            (self.restart, 1),
        ]
        for _ in range(steps):
            (verb,) = self.rng.choices([v for v, _ in verbs], [w for _, w in verbs])
            verb()
            self.compare()
        self.compared = -1
        self.compare_groups()
        self.events.close()
        assert list(self.events) == []

    def say(self, text: str) -> None:
        self.calls.append(text)

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    # -- making groups --------------------------------------------------------------------------
    def new_rollout(self, rollout_id: str, dtype: type) -> ModelRollout:
        rng, step = self.rng, self.model.step
        status = rng.choices(
            ["COMPLETED", "ABORTED", "FAILED", "EXPIRED", "FILTERED", "INIT"],
            [80, 8, 3, 3, 3, 3],
        )[0]
        length = (
            0 if status in ("INIT", "EXPIRED") else rng.randint(0 if self.chance(0.2) else 1, 4)
        )
        tool = [self.chance(0.15) for _ in range(length)]
        lowest = max(0, step - rng.randint(1, 6))
        rollout = ModelRollout(rollout_id, [rng.randint(0, 99) for _ in range(length)])
        rollout.status = status
        rollout.attempt = rng.choice([0, 0, 0, 1, 2])
        if length and self.chance(0.6):
            rollout.logprobs = [math.nan if t else -rng.randint(0, 8) / 4 for t in tool]
        if length and self.chance(0.5):
            rollout.mask = [0 if t else int(self.chance(0.7)) for t in tool]
        if length and self.chance(0.5):
            versions = sorted(rng.randint(lowest, step) for _ in range(length))
            rollout.versions = [-1 if t else v for t, v in zip(tool, versions, strict=True)]
        if self.chance(0.3) and status != "EXPIRED":
            rollout.dispatch = rng.randint(lowest, step)
        rollout.finish_reason = {"COMPLETED": "stop", "ABORTED": "abort"}.get(status)
        rollout.error = "no memory" if status == "FAILED" else None
        if self.chance(0.5):
            rollout.reward = rng.randint(-2, 4) / 2
        if self.chance(0.2):
            rollout.rewards = {"format": 0.5, "answer": rng.randint(0, 1)}
        if self.chance(0.2):
            rollout.turns = [{"role": "tool", "content": "→ 4"}]
        if self.chance(0.5):
            rollout.arrays["ref"] = [dtype(rng.randint(0, 9)) for _ in range(length)]
        if self.chance(0.2):
            rollout.extras["note"] = rng.choice(["a", "ü", ""])
        if self.chance(0.1):
            rollout.blobs["audio"] = [rng.choice(BLOBS)]
        return rollout

    def new_group(self, version: int | None) -> ModelGroup:
        rng = self.rng
        self.ids += 1
        name = f"g{self.ids}"
        task = rng.choice(TASKS[:2]) if self.chance(0.9) else TASKS[2]
        if self.model.groups and self.chance(0.15):
            again = rng.choice(self.model.groups)
            name, task = again.id, again.task
        rollouts = []
        for _ in range(rng.randint(1, 3)):
            self.rollouts += 1
            rollouts.append(self.new_rollout(f"r{self.rollouts}", float))
            if self.cut and self.chance(0.3):
                segment = self.new_rollout(f"r{self.rollouts}", float)
                segment.segment, segment.attempt = 1, rollouts[-1].attempt
                rollouts.append(segment)
        if version is not None and self.chance(0.4):
            for rollout in rollouts:  # a continued response: the rest is stamped
                if rollout.versions and self.chance(0.5):
                    rollout.versions = rollout.versions[: rng.randint(0, len(rollout.response))]
        group = ModelGroup(
            name, task, rollouts, [rng.randint(0, 9) for _ in range(rng.randint(0, 3))]
        )
        if self.chance(0.3):
            group.ground_truth = rng.choice(["42", {"answer": [1, 2]}, 7])
        if self.chance(0.6):
            group.extras["score"] = rng.randint(0, 4) / 4
        if self.chance(0.4):
            group.extras["level"] = rng.randint(0, 2)
        if self.chance(0.2):
            group.blobs["image"] = [rng.choice(BLOBS) for _ in range(rng.randint(1, 2))]
        group.tags = {tag: group.extras.get(tag) for tag in TAGS}
        return group

    def query(self) -> tuple[Any, Predicate | None]:
        match self.rng.randrange(8):
            case 0:
                return rc.field("score") > 0.4, lambda g: (g.tags["score"] or 0) > 0.4
            case 1:
                return {"level": 1}, lambda g: g.tags["level"] == 1
            case 2:
                step = self.model.step - 2
                return (
                    rc.field("version") >= step,
                    lambda g: (v := self.model.version(g)) is not None and v >= step,
                )
        return None, None

    # -- verbs ----------------------------------------------------------------------------------
    def put(self) -> None:
        rng, model = self.rng, self.model
        version = rng.choice([None, max(0, model.step - 1), max(0, model.step - rng.randint(1, 5))])
        group = self.new_group(version)
        real = real_group(group)
        self.say(f"put {group.id} {group.task} version={version} {group.rollouts}")
        try:
            stored = model.put(group, version)
        except Refused:
            with pytest.raises(rc.RecollectError):
                self.buffer.put(real, version=version)
            return
        except WouldWait:
            self.cancelled(lambda: self.real.put(real, version=version))
            return
        key = self.buffer.put(real, version=version)
        assert (key is None) == (stored is None)
        if key is not None and stored is not None:
            assert key not in self.keys, "a key was used twice"
            self.keys.add(key)
            stored.key = key
            for event in model.events:
                if event.group is stored and event.arrived:
                    event.key = key

    def cancelled(self, call: Callable[[], Any]) -> None:
        """A call that must wait, and is cancelled while it does."""

        async def run() -> None:
            task = asyncio.ensure_future(call())
            for _ in range(3):
                await asyncio.sleep(0)
            assert not task.done(), "it should wait"
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(run())
        stats = self.real.stats()
        assert stats["waiting_to_insert"] == stats["waiting_to_sample"] == 0

    def advance(self) -> None:
        model = self.model
        step = max(1, model.step + self.rng.choice([-1, 0, 1, 1, 1, 2, 3]))
        self.say(f"advance {step}")
        expired: Counter[str] = Counter()
        if step > model.step:
            model.step = step
            expired = model.expire_all()
        assert self.buffer.advance(step) == dict(expired)

    def lease(self) -> float | bool | None:
        return self.rng.choice([None, None, True, 5.0, 20.0])

    def held(self, lease: float | bool, groups: list[ModelGroup], step: int, owner: str) -> Held:
        deadline = math.inf if lease is True else self.model.now + lease
        return Held(list(groups), deadline, step, owner)

    def take(self) -> None:
        rng, model = self.rng, self.model
        task = rng.choice([None, *TASKS])
        status = rng.choice(["COMPLETED", "COMPLETED", "EXPIRED", "ABORTED", "FAILED"])
        n = rng.randint(-1, 4)
        query, holds = self.query()
        lease = self.lease()
        self.say(f"take {n} {task} {status} where={query} lease={lease}")
        candidates = model.visible(task, status, holds)
        groups = self.buffer.take(n, task, status, query, lease=lease)
        chosen = self.chosen(groups, candidates, max(0, min(n, len(candidates))))
        self.handed_out(groups, chosen, lease, model.step, "")
        if n <= 0:
            assert groups == []

    def lease_all(self) -> None:
        """Lease whatever may give way to others, but for the archive."""
        self.say("lease all")
        for status in sorted({g.status for g in self.model.visible()} - {"ARCHIVED"}):
            candidates = self.model.visible(status=status)
            groups = self.buffer.take(len(candidates), None, status, lease=5.0)
            chosen = self.chosen(groups, candidates, len(candidates))
            self.handed_out(groups, chosen, 5.0, self.model.step, "")

    def chosen(
        self, groups: rc.Groups, candidates: list[ModelGroup], n: int, *, staying: bool = False
    ) -> list[ModelGroup]:
        """The groups of the model that the buffer chose: the right ones, or legal ones."""
        keys = [int(key) for key in groups.keys]
        assert len(groups) == len(keys) == len(set(keys)) == n
        if isinstance(self.model.order, Ordered):
            expected = self.model.ordered(candidates, self.model.order, staying=staying)[:n]
            assert keys == [g.key for g in expected]
            return expected
        by_key = {g.key: g for g in candidates}
        assert set(keys) <= set(by_key)
        return [by_key[key] for key in keys]

    def handed_out(
        self, taken: Any, chosen: list[ModelGroup], lease: Any, step: int, owner: str
    ) -> None:
        groups = taken if isinstance(taken, rc.Groups) else taken.all
        self.model.check_batch(taken.batch, chosen)
        for real, group in zip(groups, chosen, strict=True):
            self.model.check_group(real, group)
            assert real.deliveries == group.deliveries
            assert real.redelivered == (group.deliveries > 1)
            assert real.times_used == group.uses + 1
        if lease is None:
            assert taken.lease is None
            self.model.hand_out(chosen, None, None)
        elif taken.lease is not None:
            self.handed.append(taken.lease.id)
            held = self.held(lease, chosen, step, owner)
            self.model.hand_out(chosen, taken.lease.id, held)
        else:
            assert not chosen, "groups were leased without a lease"

    def take_batch(self) -> None:
        rng, model = self.rng, self.model
        sizes = {task: rng.randint(0, 2) for task in rng.sample(TASKS, rng.randint(1, 2))}
        query, holds = self.query()
        lease = self.lease()
        owner = rng.choice(["", "trainer"])
        step = rng.choice([None, None, model.step, model.step + 1])
        self.say(f"take_batch {sizes} where={query} lease={lease} step={step}")
        if model.capacity is not None and sum(sizes.values()) > model.capacity:
            with pytest.raises(rc.NeverPossible):
                self.buffer.take_batch(sizes, train_step=step)
            return
        if step is not None and step > model.step:
            model.step = step
            model.expire_all()
        options = {"where": query, "lease": lease, "train_step": step, "owner": owner}
        ready = model.ready(sizes, holds)
        if step is None:
            assert self.buffer.is_ready(sizes, query) == ready
        if not ready:
            if self.chance(0.3):
                self.cancelled(lambda: self.real.take_batch(sizes, **options))
            else:
                with pytest.raises(rc.WaitTimeout):
                    self.buffer.take_batch(sizes, timeout=0, **options)
            return
        candidates = {t: model.visible(t, "COMPLETED", holds, ready=True) for t in sizes}
        taken = self.buffer.take_batch(sizes, timeout=0, **options)
        assert list(taken.groups) == list(sizes)
        chosen = []
        for task, n in sizes.items():
            chosen += self.chosen(taken.groups[task], candidates[task], n)
        assert [int(k) for k in taken.keys] == [g.key for g in chosen]
        assert taken.batch.num_items == len(chosen)
        self.handed_out(taken, chosen, lease, model.step, owner)

    def sample(self) -> None:
        rng, model = self.rng, self.model
        n = rng.randint(1, 3)
        task = rng.choice([None, *TASKS[:2]])
        query, holds = self.query()
        self.say(f"sample {n} {task} where={query}")
        candidates = model.visible(task, "COMPLETED", holds, ready=True)
        if len(candidates) < n:
            with pytest.raises(rc.WaitTimeout):
                self.buffer.sample(n, task=task, where=query, timeout=0)
            return
        groups = self.buffer.sample(n, task=task, where=query, timeout=0)
        chosen = self.chosen(groups, candidates, n, staying=True)
        for real, group in zip(groups, chosen, strict=True):
            model.check_group(real, group)
            assert real.times_used == group.uses + 1
            assert real.priority == group.priority
        model.use(chosen)

    def settle(self) -> None:
        """Confirm, give back, renew or release; also what was settled before."""
        rng, model = self.rng, self.model
        if self.chance(0.1):
            owners = [n for n, held in model.leases.items() if held.owner == "trainer"]
            self.say("release trainer")
            for number in owners:
                model.bring_back(number)
            assert self.buffer.release("trainer") == len(owners)
            return
        if not self.handed:
            return
        number = rng.choice(self.handed)
        what = rng.choice(["confirm", "confirm", "give_back", "renew"])
        self.say(f"{what} {number}")
        claimed = model.claims.get(number)
        if number not in model.leases and claimed is None:
            with pytest.raises(rc.LeaseExpired):
                getattr(self.buffer, what)(number, *([3] if what == "renew" else []))
        elif what == "renew":
            self.buffer.renew(number, 30)
            (claimed or model.leases[number]).deadline = model.now + 30
        elif claimed is not None:
            self.buffer.give_back(number)
            del model.claims[number]
        elif what == "confirm":
            step = rng.choice([None, model.step + 1])
            assert self.buffer.confirm(number, step) == model.confirm(number, step)
        else:
            assert self.buffer.give_back(number) == model.bring_back(number)

    def pass_time(self) -> None:
        seconds = self.rng.choice([1, 4, 10, 25])
        self.say(f"pass {seconds} s")
        self.clock.advance(seconds)
        self.model.pass_time(self.model.now + seconds)

    def reserve(self) -> None:
        n, task = self.rng.randint(0, 3), self.rng.choice(TASKS[:2])
        match self.rng.randrange(4):
            case 0 | 1:
                self.say(f"reserve {n} {task}")
                assert self.buffer.reserve(n, task) == self.model.reserve(n, task)
                if self.chance(0.7):  # what the promise relies on is leased before the puts
                    self.lease_all()
                    for _ in range(n):
                        self.put()
            case 2:
                self.reserve_all(n, task)
            case _:
                self.say(f"unreserve {n} {task}")
                assert self.buffer.unreserve(n, task) == self.model.unreserve(n, task)

    def reserve_all(self, n: int, task: str) -> None:
        self.say(f"reserve all {n} {task}")
        before = self.model.promised.copy()
        if self.model.reserve(n, task) == n:
            assert self.buffer.reserve_all(n, task, timeout=0) == n
            return
        self.model.promised = before
        if self.chance(0.5):
            self.cancelled(lambda: self.real.reserve_all(n, task))
        else:
            with pytest.raises(rc.WaitTimeout):
                self.buffer.reserve_all(n, task, timeout=0)

    def claim(self) -> None:
        rng, model = self.rng, self.model
        cell = rng.choice(["reward", "ref", "logprobs"])
        task = rng.choice([None, None, "math"])
        n = rng.randint(1, 3)
        lease = rng.choice([10.0, 30.0, True])
        self.say(f"claim {n} {cell} {task} lease={lease}")
        candidates = model.claimable(cell, task)
        if not candidates:
            with pytest.raises(rc.WaitTimeout):
                self.buffer.claim(n, cell, lease=lease, task=task, timeout=0)
            return
        groups = self.buffer.claim(n, cell, lease=lease, task=task, timeout=0)
        assert len(groups) == min(n, len(candidates))
        by_key = {g.key: g for g in candidates}
        chosen = [by_key.pop(int(key)) for key in groups.keys]
        for real, group in zip(groups, chosen, strict=True):
            model.check_group(real, group)
        held = self.held(lease, chosen, 0, "")
        held.cell = cell
        assert groups.lease is not None
        model.claims[groups.lease.id] = held
        self.handed.append(groups.lease.id)

    def annotate(self) -> None:
        rng, model = self.rng, self.model
        stored = [(g, r) for g in model.groups for r in g.rollouts]
        stored = [(g, r) for g, r in stored if g.ids.count(r.id) == 1]
        chosen = rng.sample(stored, min(len(stored), rng.randint(1, 4)))
        ids = [r.id for _, r in chosen]
        attempts = [r.attempt + (1 if self.chance(0.2) else 0) for _, r in chosen]
        if self.chance(0.2):
            ids, attempts = [*ids, "gone"], [*attempts, 0]
        if not ids:
            return
        cells: dict[str, list[Any]] = {}
        arrays: dict[str, list[list[float]]] = {}
        if self.chance(0.7):
            cells["reward"] = [rng.randint(0, 8) / 4 for _ in ids]
        else:
            arrays["ref"] = [[float(rng.randint(0, 9))] * rng.randint(1, 3) for _ in ids]
        self.say(f"annotate {ids} {attempts} {cells} {arrays}")
        expected = [
            model.annotate(
                rollout_id,
                attempts[place],
                {name: values[place] for name, values in cells.items()},
                {name: values[place] for name, values in arrays.items()},
            )
            for place, rollout_id in enumerate(ids)
        ]
        real = {name: [np.array(cell) for cell in values] for name, values in arrays.items()}
        mask = self.buffer.annotate(ids, attempts, arrays=real or None, **cells)
        assert mask.tolist() == expected

    def update(self) -> None:
        rng, model = self.rng, self.model
        keys = rng.sample(sorted(self.keys), min(len(self.keys), 3))
        priority = [rng.choice(PRIORITIES) for _ in keys]
        self.say(f"update {keys} {priority}")
        if keys:
            mask = self.buffer.update(keys, priority=priority)
            found = [model.by_key(key) for key in keys]
            assert mask.tolist() == [group is not None for group in found]
            for group, value in zip(found, priority, strict=True):
                if group is not None:
                    group.priority = value
            scores = [rng.randint(0, 4) / 4 for _ in keys]
            self.buffer.update(keys, score=scores)
            for group, score in zip(found, scores, strict=True):
                if group is not None:
                    group.tags["score"] = score

    def discard(self) -> None:
        keys = self.rng.sample(sorted(self.keys), min(len(self.keys), 2))
        self.say(f"discard {keys}")
        found = [self.model.by_key(key) for key in keys]
        leaving = [g for g in found if g is not None and g.lease is None]
        assert self.buffer.discard(keys) == len(leaving)
        for group in leaving:
            if group.archived_at is not None:
                self.model.groups.remove(group)
            else:
                self.model.leave(group, "filtered")

    def refused(self) -> None:
        """Wrong calls: they raise, and change nothing."""
        put = self.buffer.put
        good = rc.Rollout([1], [2], finish_reason="stop")
        done = rc.Rollout([1], [2], status="ARCHIVED")
        short = rc.Rollout([1], [2, 3], versions=[0], finish_reason="stop")
        wrong = rc.Rollout([1], [2, 3], finish_reason="stop")
        wrong.logprobs = np.zeros(3, np.float32)
        calls: list[Callable[[], Any]] = [
            lambda: put(rc.Group([], task="math")),
            lambda: put(rc.Group([good, done], task="math")),
            lambda: put(rc.Group([short], task="math")),
            lambda: put(rc.Group([wrong], task="math"), version=0),
            lambda: put(rc.Group([good], task="math"), version=-1),
            lambda: put("group"),
            lambda: self.buffer.take_batch({"math": "many"}, timeout=0),
            lambda: self.buffer.take(1, where=rc.field("unknown") == 1),
            lambda: self.buffer.take(1, lease=-1.0),
            lambda: self.buffer.advance(0),
            lambda: self.buffer.confirm(999_999),
            lambda: self.buffer.get([12345]),
            lambda: self.buffer.update([1], status="COMPLETED"),
            lambda: self.buffer.annotate(["r1"], 0),
        ]
        self.say("refused")
        with pytest.raises(rc.RecollectError):
            self.rng.choice(calls)()

    def restart(self) -> None:
        """Another buffer goes on from what this one saved."""
        self.compare_events()
        old = self.real
        if self.chance(0.5):
            self.say("state and restore")
            state = old.state()
            self.open()
            self.real.restore(state)
        else:
            self.say("save and load")
            self.saves += 1
            old.save(self.folder / str(self.saves))
            self.open()
            self.real.load(self.folder / str(self.saves))
        old.close()  # its leases and claims stay in `handed`: they are no longer held
        self.model.restart()
        self.model.expire_all()

    # -- comparing ------------------------------------------------------------------------------
    def compare(self) -> None:
        model, buffer = self.model, self.buffer
        self.above += model.capacity is not None and len(model.groups) > model.capacity
        assert len(self.real) == len(model.groups)
        if model.capacity is not None:  # beside it as many as can have been promised room
            assert len(self.real) <= 2 * model.capacity
        assert self.real.train_step == model.step
        expected = Counter((g.task, rc.Status(g.status)) for g in model.visible())
        assert buffer.counts() == dict(expected)
        task, status = self.rng.choice(TASKS), self.rng.choice(list(rc.Status))
        query, holds = self.query()
        assert buffer.count(task, status, query) == len(model.visible(task, status.value, holds))
        for group in model.groups[:2]:
            assert buffer.find(group.id) == group.key
        self.compare_groups()
        if model.archive:
            self.compare_archive()
        self.compare_accounts()
        self.compare_events()
        stats = self.real.stats()
        assert stats["leases"] == len(model.leases)
        assert stats["promised"] == {task: n for task, n in model.promised.items() if n}
        assert stats["leased"] == sum(g.lease is not None for g in model.groups)
        blobs = {
            blob
            for g in model.groups
            for owner in (g, *g.rollouts)
            for values in owner.blobs.values()
            for blob in values
        }
        assert stats["blobs"] == len(blobs)

    def compare_groups(self) -> None:
        """A few of the groups, and now and then all: reading them is most of what a step costs."""
        expected = self.model.groups
        self.compared += 1
        if len(expected) > 4 and self.compared % 8:
            expected = self.rng.sample(expected, 4)
        if not expected:
            return
        groups = self.buffer.get([g.key for g in expected])
        for real, group in zip(groups, expected, strict=True):
            self.model.check_group(real, group)
            assert real.key == group.key
            assert real.times_used == group.uses
            assert real.priority == group.priority
        self.model.check_batch(groups.batch, expected)
        versions = [self.model.version(g) for g in expected]
        seen = [None if v is None or v < 0 else int(v) for v in groups.info.version.tolist()]
        assert seen == versions

    def compare_archive(self) -> None:
        """Which groups trained a step."""
        archived = [g for g in self.model.groups if g.archived_at is not None]
        for step in {g.archived_at for g in archived} | {self.model.step}:
            expected = sorted(g.key or 0 for g in archived if g.archived_at == step)
            assert sorted(self.buffer.trained_at(step).keys.tolist()) == expected

    def compare_accounts(self) -> None:
        model, accounts = self.model, self.buffer.accounts()
        for task, counts in model.counts.items():
            account = accounts.get(task)
            if account is None:
                assert counts.put == 0
                continue
            here = [g for g in model.groups if g.task == task and g.archived_at is None]
            leased = sum(g.lease is not None for g in here)
            assert account["left"] == {k: v for k, v in counts.left.items() if v}
            assert (account["put"], account["stored"], account["leased"]) == (
                counts.put,
                len(here) - leased,
                leased,
            )
            assert account["put"] == len(here) + sum(account["left"].values())
            assert (account["taken"], account["expired"], account["retried"]) == (
                counts.taken,
                counts.expired,
                counts.retried,
            )

    def compare_events(self) -> None:
        """Each group that left is told once, and can be read."""
        expected, self.model.events = self.model.events, []
        if not expected:
            return
        seen = []
        while len(seen) < len(expected):
            seen += next(self.events)

        def name(event: Any) -> tuple[Any, ...]:
            return (event.kind, event.reason, str(event.key))

        seen.sort(key=lambda e: (*name(e), e.group_id))
        expected.sort(key=lambda e: (*name(e), e.group.id))
        assert [(*name(e), e.group_id, e.task) for e in seen] == [
            (*name(e), e.group.id, e.group.task) for e in expected
        ]
        for event, gone in zip(seen, expected, strict=True):
            if gone.key is not None and not gone.arrived:
                self.model.check_group(event.group, gone.group, aged=False)


def drive(seed: int, steps: int, folder: Path, **options: Any) -> Driver:
    driver = Driver(seed, folder / str(seed), **options)
    try:
        driver.run(steps)
    except BaseException as error:
        error.add_note(f"seed {seed}\n" + "\n".join(driver.calls[:1] + driver.calls[-25:]))
        raise
    finally:
        driver.real.close()
    return driver


@pytest.mark.parametrize("block", range(10))
def test_a_buffer_does_what_plain_lists_do(block: int, tmp_path: Path) -> None:
    for seed in range(6 * block, 6 * block + 6):
        drive(seed, 60, tmp_path)


def test_promises_are_kept_above_the_capacity_as_plain_lists_do(tmp_path: Path) -> None:
    above = 0
    for seed in range(100, 112):
        above += drive(seed, 60, tmp_path, capacity=3, overflow="drop_stalest", reserving=40).above
    assert above > 10


@pytest.mark.soak
@pytest.mark.parametrize("block", range(6))
def test_a_long_life_of_groups_is_no_different(block: int, tmp_path: Path) -> None:
    """Many configurations for some time, and every fourth of them for long."""
    for seed in range(1000 + 16 * block, 1000 + 16 * block + 16):
        drive(seed, 150 if seed % 4 else 600, tmp_path)


def test_the_oracle_knows_the_examples_of_the_specification() -> None:
    """The oracle is right about what the specification says in numbers."""
    rule = rc.Staleness(max_staleness=0, sync_interval=4)
    rollout = ModelRollout("r", [1, 2], versions=[4, 6])
    assert not rollout.expired(rule, 8)
    assert rollout.expired(rule, 9)
    tokens = rc.Staleness(max_staleness=9, max_token_staleness=1)
    old = ModelRollout("r", [1, 2, 3], versions=[1, -1, 3])
    assert old.fresh_mask(tokens, 4) == [0, 0, 1]
    assert not old.expired(tokens, 5)
    assert old.expired(tokens, 6)
    model = Model(rc.Fifo(), {"math": rule})
    group = ModelGroup("g", "math", [copy.deepcopy(rollout)], [])
    assert model.put(group, None) is group
    model.step = 9
    assert model.expire_all() == {"math": 1}
    assert group.status == "EXPIRED"

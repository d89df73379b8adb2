"""A rollout buffer that is made again from its journal is the buffer that wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from journal_state import flushed_copy, table_state

import recollect as rc
from recollect.rollouts.annotations import keys_by_rollout

TASKS = ("math", "code")


def make(journal: Any, **options: Any) -> rc.RolloutBuffer:
    return rc.RolloutBuffer(tags={"score": float}, journal=journal, seed=0, **options)


class Caller:
    """Calls a buffer at random, in every way there is."""

    def __init__(self, buffer: rc.RolloutBuffer, seed: int, clock: rc.ManualClock) -> None:
        self.buffer, self.calls, self.clock = buffer, buffer.sync, clock
        self.rng = np.random.default_rng(seed)
        self.leases: list[Any] = []
        self.claims: list[Any] = []
        self.count = 0

    def group(self) -> rc.Group:
        rng = self.rng
        self.count += 1
        ended = rng.random() < 0.85
        rollouts = []
        for k in range(int(rng.integers(1, 4))):
            tokens = int(rng.integers(1, 6))
            blobs = {"image": [bytes([int(rng.integers(0, 4))]) * 20]} if rng.random() < 0.3 else {}
            rollouts.append(
                rc.Rollout(
                    [1, 2],
                    rng.integers(0, 99, tokens).tolist(),
                    reward=float(rng.random()) if rng.random() < 0.6 else None,
                    rollout_id=f"r{self.count}.{k}",
                    finish_reason="stop" if ended else "abort",
                    arrays={"ref": rng.random(tokens)} if rng.random() < 0.3 else {},
                    blobs=blobs,
                )
            )
        again = rng.random() < 0.2 and self.count > 3
        number = int(rng.integers(1, self.count)) if again else self.count
        return rc.Group(
            rollouts,
            task=TASKS[int(rng.integers(0, 2))],
            group_id=f"g{number}",
            extras={"score": float(rng.random())},
        )

    def quietly(self, call: Any) -> Any:
        try:
            return call()
        except (rc.WaitTimeout, rc.LeaseExpired, rc.BufferFull, rc.InvalidValue):
            return None

    def call(self) -> None:
        calls, rng = self.calls, self.rng
        task = TASKS[int(rng.integers(0, 2))]
        step = calls.train_step
        choice = rng.random()
        if choice < 0.4:
            version = max(0, step - int(rng.integers(0, 4)))
            self.quietly(lambda: calls.put(self.group(), version=version))
        elif choice < 0.5:
            self.quietly(lambda: calls.sample(2, task=task, timeout=0))
        elif choice < 0.62:
            lease = [None, True, 5.0][int(rng.integers(0, 3))]
            sizes = {task: int(rng.integers(1, 3))}
            status = ["COMPLETED", "EXPIRED", "ABORTED"][int(rng.integers(0, 3))]
            if rng.random() < 0.6:
                found = self.quietly(
                    lambda: calls.take_batch(sizes, train_step=step, lease=lease, timeout=0)
                )
            else:
                found = calls.take(2, task, status, lease=lease)
            if found is not None and lease is not None:
                self.leases.append(found.lease)
        elif choice < 0.72 and self.leases:
            lease = self.leases.pop(int(rng.integers(0, len(self.leases))))
            self.quietly(lambda: (calls.confirm if rng.random() < 0.6 else calls.give_back)(lease))
        elif choice < 0.78:
            calls.advance(step + int(rng.integers(0, 2)))
        elif choice < 0.84:
            found = self.quietly(lambda: calls.claim(1, "reward", lease=True, timeout=0))
            if found is not None and len(found):
                ids = [rollout.rollout_id for rollout in found[0]]
                attempts = [rollout.attempt for rollout in found[0]]
                rewards = rng.random(len(ids))
                self.quietly(lambda: calls.annotate(ids, attempts, reward=rewards))
        elif choice < 0.9:
            keys = np.array(sorted(self.buffer.table.counts("key")), np.uint64)
            if keys.size:
                some = rng.choice(keys, 1)
                if rng.random() < 0.5:
                    calls.update(some, priority=[2.0], score=0.25)
                else:
                    calls.discard(some, "filtered")
        elif choice < 0.94:
            calls.reserve(1, task)
        elif choice < 0.96:
            calls.unreserve(1, task)
        else:
            self.clock.advance(float(rng.integers(0, 7)))
            len(self.buffer)


def buffer_state(buffer: rc.RolloutBuffer, *, after_restart: bool) -> dict[str, Any]:
    core = buffer.core
    state = {"table": table_state(buffer.table, after_restart=after_restart)}
    state["train_step"] = core.train_step
    state["promised"] = {} if after_restart else core.promised  # promises end, too
    state["accounts"] = core.accounts.state()
    state["ids"] = core.by_id
    state["blobs"] = core.blobs.all()
    state["references"] = core.blobs._references
    keys = sorted(core.entries)
    state["entries"] = {
        key: (e.group_id, e.task, e.version, e.put_at, e.trained, e.blobs)
        for key, e in sorted(core.entries.items())
    }
    state["rollouts"] = keys_by_rollout(core)
    state["groups"] = buffer.get(np.array(keys, np.uint64)) if keys else None
    state["lacks"] = {  # what somebody asked for by a claim is found out again when it is asked
        key: [cell for cell in core.entries[key].lacks if cell in core.needs] for key in keys
    }
    return state


RULES: dict[str, dict[str, Any]] = {
    "plain": {"staleness": rc.Staleness(max_staleness=1)},
    "retry": {"staleness": rc.Staleness(max_staleness=2, on_expire="retry", max_retries=2)},
    "needs": {"needs": ("reward",), "max_uses": 2, "order": rc.Fifo()},
    "archive": {"archive": True, "capacity": 12, "overflow": "drop_stalest"},
    "bytes": {"capacity_bytes": 4000, "overflow": "raise", "order": rc.Prioritized()},
    "newest": {"capacity": 8, "overflow": "drop_newest", "needs": ("reward", "ref")},
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rules", RULES)
def test_replay_equals_the_live_buffer_for_random_calls(
    rules: str, seed: int, tmp_path: Path
) -> None:
    clock = rc.ManualClock()
    options = {**RULES[rules], "clock": clock}
    buffer = make(rc.Journal(tmp_path / "j", sync="off", interval=1e9), **options)
    caller = Caller(buffer, 100 * seed + len(rules), clock)
    for part in range(3):
        for _ in range(50):
            caller.call()
        copy = flushed_copy(buffer.core, tmp_path / f"copy-{part}")
        again = make(rc.Journal(copy, sync="off"), **options)
        assert buffer_state(again, after_restart=False) == buffer_state(buffer, after_restart=True)
        again.close()
    buffer.close()

"""The process that is killed: producers, a journaled buffer, and a trainer that reuses groups.

It tells its parent what it does in lines of JSON on its standard output. A group is told of after
its `put` returned, which is when the journal has it on disk.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from recollect import training
from recollect.data.ragged import Ragged
from recollect.demo.messages import stopping, tell
from recollect.demo.policy import DIGITS, END, TASKS, Policy, prompt, reward_of
from recollect.rollouts.buffer import RolloutBuffer
from recollect.rollouts.group import Group
from recollect.rollouts.rollout import Rollout
from recollect.rollouts.staleness import lag

TITLE = "Recollect: GRPO on a tiny policy"
NOUN = "groups"
HISTOGRAM = "lag of what is stored"

PRODUCERS = 12
GROUP = 8  # answers to a problem
BATCH = 24  # groups of a step, half of each task
RATE, SPREAD = 8.0, 0.01
SYNC = 2  # steps between new weights for the producers
SAVED = 10  # steps between checkpoints
TOLD = 0.2  # seconds between two looks at the buffer


def configuration(folder: Path) -> dict[str, Any]:
    """What a user would write in YAML."""
    return {
        "source": {
            "capacity": 256,
            "overflow": "drop_stalest",
            "staleness": {"max_staleness": 3, "sync_interval": SYNC, "on_expire": "discard"},
            "journal": {"path": str(folder / "journal"), "sync": "always"},
            "seed": 0,
        },
        "batch": {task: BATCH // len(TASKS) for task in TASKS},
        "ranks": 1,
        "mode": {
            "type": "Replay",
            "max_uses": 3,
            "sampler": {"type": "Prioritized", "half_life": 8},
            "fresh_share": 0.5,
        },
        "prefetch": 0,
    }


class LanguageModelRun:
    """One life of the training process."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.policy, self.step = Policy(), 0
        found = latest(folder)
        if found is not None:
            self.step, path = found
            self.policy.load(path)
        self.preparation = training.DataPreparation.from_config(
            {**configuration(folder), "first_step": self.step + 1}
        )
        self.buffer = self.preparation.buffer
        self.sent, self.version = self.policy.copy(), self.step  # what the producers have

    async def work(self) -> None:
        tell("began", step=self.step, stored=len(self.buffer), size=self.policy.size)
        tasks = [asyncio.create_task(self.produce(n)) for n in range(PRODUCERS)]
        tasks.append(asyncio.create_task(self.look()))
        trainer = asyncio.create_task(self.train())
        stop = asyncio.create_task(stopping().wait())
        everybody = [stop, trainer, *tasks]
        await asyncio.wait(everybody, return_when="FIRST_COMPLETED")
        for task in everybody:
            task.cancel()
        for task in everybody:
            with suppress(asyncio.CancelledError):
                await task  # one that failed raises here
        self.save()
        tell("ended", step=self.step, solved=self.policy.solved(), accounts=accounts(self.buffer))
        await self.preparation.close()
        self.buffer.close()

    async def produce(self, number: int) -> None:
        """Answer problems with the weights that came last; an answer takes as long as it takes."""
        rng = np.random.default_rng([self.seed, self.step, number])
        while True:
            task = int(rng.integers(len(TASKS)))
            a, b = (int(digit) for digit in rng.integers(0, DIGITS, 2))
            version = self.version
            answers = self.sent.answer(task, a, b, GROUP, rng)
            await asyncio.sleep(float(rng.lognormal(-2.0, 0.6)))
            rollouts = [
                Rollout(
                    response_ids=tokens,
                    logprobs=logs,
                    reward=reward_of(task, a, b, tokens),
                    finish_reason="stop" if tokens[-1] == END else "length",
                )
                for tokens, logs in answers
            ]
            group = Group(rollouts, task=TASKS[task], prompt_ids=prompt(task, a, b))
            reward = float(np.mean([rollout.reward or 0.0 for rollout in rollouts]))
            await self.preparation.put(group, version=version)
            tokens = sum(rollout.num_tokens for rollout in rollouts)
            tell("put", task=TASKS[task], reward=reward, tokens=tokens, count=1)

    async def train(self) -> None:
        """Learn, report priorities, confirm, send weights, save."""
        while True:
            step = self.step + 1
            batch = await self.preparation.get(0, step)
            priorities: list[float] = []
            for pack in batch.packs:

                def rows(values: Any, pack: training.Pack = pack) -> Any:
                    return Ragged(values, pack.cu_seqlens).pad(0)

                worth = rows(pack.advantages)
                self.policy.learn(
                    rows(pack.input_ids), rows(pack.loss_mask), rows(pack.logprobs), worth,
                    RATE, SPREAD,
                )  # fmt: skip
                priorities += np.abs(worth).max(axis=1).tolist()
            await self.preparation.report(0, step, batch.rollout_ids, priorities)
            await self.preparation.confirm(0, step)
            self.step = step
            if step % SYNC == 0:
                self.sent, self.version = self.policy.copy(), step
            if step % SAVED == 0:
                self.save()
            tell(
                "step",
                step=step,
                replayed=batch.metrics.get("train/replayed_share", 0.0),
                reward=batch.metrics.get("train/reward_mean", 0.0),
            )
            await asyncio.sleep(0.05)  # an optimizer step takes a while

    def save(self) -> None:
        """The weights, beside a snapshot of the buffer."""
        folder = self.folder / "weights"
        folder.mkdir(exist_ok=True)
        half = folder / "half.npz"
        self.policy.save(half)
        half.replace(folder / f"{self.step}.npz")
        saved = self.buffer.save(self.folder / "snapshots", step=self.step, keep_last=2)
        tell("saved", step=self.step, written=saved.bytes_written)

    async def look(self) -> None:
        while True:
            await asyncio.sleep(TOLD)
            tell("look", **looked(self.buffer, self.policy))


def looked(buffer: RolloutBuffer, policy: Policy) -> dict[str, Any]:
    """What the terminal and the report show of a buffer."""
    core = buffer.core
    with core.table.transaction():
        step = core.train_step
        lags = Counter(lag(step, entry.version) for entry in core.entries.values())
    return {
        "stored": len(buffer),
        "capacity": core.capacity,
        "nbytes": buffer.nbytes,
        "histogram": {str(number): lags[number] for number in sorted(lags)},
        "counts": [[t, s.value, n] for (t, s), n in buffer.counts().items()],
        "solved": policy.solved(),
    }


def warm() -> None:
    """Have the kernels compiled, which is done once per installation, before anybody watches."""
    buffer = RolloutBuffer().sync
    buffer.put(Group([Rollout([1], [2], finish_reason="stop")]), version=0)
    buffer.take(1)


def accounts(buffer: RolloutBuffer) -> dict[str, dict[str, Any]]:
    return {
        task: {name: account[name] for name in ("put", "stored", "leased", "left")}
        for task, account in buffer.accounts().items()
    }


def latest(folder: Path) -> tuple[int, Path] | None:
    """The step of the last weights, and where they are."""
    found = [(int(path.stem), path) for path in folder.glob("weights/[0-9]*.npz")]
    return max(found) if found else None


def recovered(folder: Path) -> dict[str, dict[str, Any]]:
    """What a journal holds of every group that was put, asked by another process."""
    preparation = training.DataPreparation.from_config(configuration(folder))
    try:
        return accounts(preparation.buffer)
    finally:
        preparation.buffer.close()


if __name__ == "__main__":
    asyncio.run(LanguageModelRun(Path(sys.argv[1]), int(sys.argv[2])).work())

"""Producers, a grader and a trainer around one rollout buffer, as coroutines of one process.

    python examples/rollouts.py [--steps 20] [--seed 0]

The policy is a number: how likely an answer is right. Producers put groups of answers, some of
them late. The grader adds rewards. The trainer takes batches under a lease, and learns from groups
whose answers differ. Halfway it crashes, and the next trainer gets the batch that it held.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from contextlib import suppress

import recollect as rc

TASKS = {"math": 6, "code": 2}  # groups of each task in a batch
GROUP = 8  # answers to one prompt
RIGHT, WRONG = 1, 0  # the token that an answer ends with


class Policy:
    """What is trained: the share of right answers, by task. Its version counts train steps."""

    def __init__(self) -> None:
        self.version = 0
        self.skill = dict.fromkeys(TASKS, 0.2)

    def learn(self, taken: rc.TakenBatch) -> None:
        for task, groups in taken.groups.items():
            useful = [group for group in groups if len(set(group.rewards)) > 1]
            self.skill[task] += 0.1 * (1 - self.skill[task]) * len(useful) / len(groups)
        self.version += 1


async def produce(buffer: rc.RolloutBuffer, policy: Policy, rng: random.Random) -> None:
    """Keep twice a batch under way or stored: for each group that was trained a new one begins."""
    trained = buffer.events("confirmed")
    async with asyncio.TaskGroup() as running:
        for task, size in TASKS.items():
            for _ in range(2 * size):
                running.create_task(generate(buffer, policy, new_group(task), rng))
        async for batch in trained:
            for event in batch:
                running.create_task(generate(buffer, policy, new_group(event.task), rng))


def new_group(task: str) -> rc.Group:
    """A prompt, and no answers yet."""
    return rc.Group([rc.Rollout() for _ in range(GROUP)], task=task, prompt_ids=[2, 3, 4])


async def generate(
    buffer: rc.RolloutBuffer, policy: Policy, group: rc.Group, rng: random.Random
) -> None:
    """Answer a prompt and put the group; one that has expired meanwhile is answered again."""
    await buffer.reserve_all(1, group.task)  # never begin what could not be stored
    version = policy.version
    for rollout in group:
        if rollout.status != rc.Status.COMPLETED:  # fresh answers of a retried group stay
            right = rng.random() < policy.skill[group.task]
            rollout.response_ids = [5] * rng.randint(1, 30) + [RIGHT if right else WRONG]
            rollout.finish_reason = "stop"
    await asyncio.sleep(min(0.05, 0.001 * rng.paretovariate(1)))  # an engine; some answers are late
    await buffer.put(group, version=version)
    for expired in await buffer.take(1, group.task, status="EXPIRED"):
        await generate(buffer, policy, expired, rng)


async def grade(buffer: rc.RolloutBuffer) -> None:
    """A stage: groups that lack their rewards get them."""
    while True:
        for group in await buffer.claim(16, lacks="reward", lease=30):
            rewards = [float(rollout.response_ids[-1]) for rollout in group]
            ids = [rollout.rollout_id for rollout in group]
            await buffer.annotate(ids, [rollout.attempt for rollout in group], reward=rewards)


async def train(
    buffer: rc.RolloutBuffer, policy: Policy, last: int, crash_at: int | None = None
) -> None:
    """Take a batch under a lease, learn, confirm: a crash in between loses nothing."""
    while policy.version < last:
        step = policy.version + 1
        taken = await buffer.take_batch(TASKS, train_step=step, lease=600, owner="trainer")
        if step == crash_at:
            raise RuntimeError("the trainer crashed")
        policy.learn(taken)
        await buffer.confirm(taken.lease)
        again = sum(group.redelivered for groups in taken.groups.values() for group in groups)
        lag = step - 1 - taken.info.version
        print(f"step {step:3}  mean lag {lag.mean():.2f}  {again} groups redelivered")


async def main(steps: int, seed: int) -> None:
    policy = Policy()
    buffer = rc.RolloutBuffer(
        staleness=rc.Staleness(max_staleness=1), capacity=2 * sum(TASKS.values()), needs=("reward",)
    )
    rng = random.Random(seed)
    working = [asyncio.create_task(work) for work in (grade(buffer), produce(buffer, policy, rng))]
    try:
        await train(buffer, policy, steps, crash_at=steps // 2)
    except RuntimeError as error:
        print(error, "and held", await buffer.release("trainer"), "lease")
        await train(buffer, policy, steps)
    for task in working:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    print()
    for name, account in buffer.accounts().items():
        left = sum(account["left"].values())
        print(
            f"{name}: {account['put']} groups put = {account['stored']} stored + {left} left "
            f"{account['left']}, {account['expired']} expired, skill {policy.skill[name]:.2f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=20, help="train steps (20)")
    parser.add_argument("--seed", type=int, default=0, help="of the producers (0)")
    chosen = parser.parse_args()
    asyncio.run(main(chosen.steps, chosen.seed))

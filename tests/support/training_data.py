"""Groups for the tests of training, and the slow way to see them: one trajectory after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

import recollect as rc


@dataclass
class Trajectory:
    """A rollout, whatever number of segments it has."""

    segments: list[rc.Rollout] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    @property
    def reward(self) -> float:
        in_order = sorted(self.segments, key=lambda rollout: rollout.segment)
        rewards = [rollout.reward for rollout in in_order if rollout.reward is not None]
        assert rewards
        return rewards[-1]

    @property
    def length(self) -> int:
        return sum(rollout.num_tokens for rollout in self.segments)


def trajectories_of(groups: Sequence[rc.Group]) -> list[list[Trajectory]]:
    """Per group, its trajectories."""
    found, row = [], 0
    for group in groups:
        members: dict[str, Trajectory] = {}
        for rollout in group:
            member = members.setdefault(rollout.rollout_id, Trajectory())
            member.segments.append(rollout)
            member.rows.append(row)
            row += 1
        found.append(list(members.values()))
    return found


def random_rollout(random: np.random.Generator, **given: object) -> rc.Rollout:
    tokens = int(random.integers(1, 12))
    reason = "length" if random.random() < 0.25 else "stop"
    about: dict[str, object] = {
        "logprobs": random.normal(-1, 0.3, tokens).astype(np.float32),
        "reward": float(random.integers(0, 3)) / 2,
        "finish_reason": reason,
        **given,
    }
    prompt = random.integers(0, 99, int(random.integers(1, 5)))
    return rc.Rollout(prompt, random.integers(0, 99, tokens), **about)  # type: ignore[arg-type]


def random_groups(
    random: np.random.Generator, count: int, *, segments: bool = False, most: int = 6
) -> list[rc.Group]:
    """Groups of 1 to `most` rollouts; some without spread, some in several segments."""
    groups = []
    for number in range(count):
        rollouts = []
        even = random.random() < 0.25
        for member in range(int(random.integers(1, most + 1))):
            reward = 0.5 if even else float(random.integers(0, 3)) / 2
            pieces = int(random.integers(1, 4)) if segments else 1
            for segment in range(pieces):
                last = segment == pieces - 1
                given = {
                    "rollout_id": f"{number}-{member}",
                    "segment": segment,
                    "reward": reward if last or random.random() < 0.5 else None,
                }
                if not last:
                    given["finish_reason"] = "tool_calls"
                rollouts.append(random_rollout(random, **given))
        groups.append(rc.Group(rollouts, task="math", group_id=f"g{number}"))
    return groups


def stored(groups: Sequence[rc.Group], version: int = 0) -> rc.Groups:
    """The same groups after they went through a buffer, in the order of their arrival."""
    buffer = rc.RolloutBuffer(order=rc.Fifo()).sync
    for group in groups:
        buffer.put(group, version=version)
    return buffer.take(len(groups))

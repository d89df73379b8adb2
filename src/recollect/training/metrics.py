"""Metrics: what was generated, what trains now, and what is stored. The three never mix.

A metric is a number under a name such as `train/reward_mean`; where there is one for each task,
reason or lag, that is the last part of its name (`train/lag/2`). Each is computed from one
selection of rollouts. Where there is nothing to divide by, there is no rate: neither NaN nor 0.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from recollect.rollouts.buffer import RolloutBuffer
from recollect.rollouts.group import Group
from recollect.rollouts.rollout import Status
from recollect.training.advantages import Advantages
from recollect.training.filters import Filtered
from recollect.training.packing import Packed
from recollect.training.selection import Floats, Ints, Rollouts, select, sums

Metrics = dict[str, float]

REMEMBERED = 16_384  # groups whose rollouts are known to have been counted


# -- what was generated -----------------------------------------------------------------------
class Window:
    """What was generated since the last `close`. Each response counts once, whenever it comes.

    A group may come again: continued, retried or replaced. Responses that it had before, by rollout
    id and attempt, are not counted again; one counts when it is completed, not before. Any thread
    may call it.

    >>> import recollect as rc
    >>> from recollect import training
    >>> window = training.Window()
    >>> group = rc.Group([rc.Rollout([1], [2, 3], reward=1.0, finish_reason="stop")])
    >>> window.add(group)
    >>> window.add(group)
    >>> window.close()["gen/responses"]
    1
    """

    def __init__(self, *, solved_above: float = 0.0) -> None:
        self.solved_above = solved_above
        self.responses_total = 0
        self.tokens_total = 0
        self._lock = threading.Lock()  # guards all that follows
        self._counted: OrderedDict[str, set[tuple[str, int, int]]] = OrderedDict()
        self._begin()

    def _begin(self) -> None:
        # What `gen/` needs to know of each response: lists of one length. NaN is no reward yet.
        self._responses: dict[str, list[float]] = {"rewards": [], "lengths": [], "stopped": []}
        self._groups = 0
        self._failed = 0
        self._waiting = 0.0

    def add(self, group: Group, waiting: float = 0.0) -> None:
        """A group was put, and its producer waited so many seconds for room."""
        with self._lock:
            self._add(group, waiting)

    def _add(self, group: Group, waiting: float) -> None:
        self._waiting += waiting
        seen = self._counted.setdefault(group.group_id, set())
        self._counted.move_to_end(group.group_id)
        if len(self._counted) > REMEMBERED:
            self._counted.popitem(last=False)
        new: dict[str, list[Any]] = {}
        for rollout in group:
            key = (rollout.rollout_id, rollout.attempt, rollout.segment)
            if key in seen or rollout.status not in (Status.COMPLETED, Status.FAILED):
                continue
            seen.add(key)
            if rollout.status is Status.FAILED:
                self._failed += 1
            else:
                new.setdefault(rollout.rollout_id, []).append(rollout)
        for segments in new.values():
            segments.sort(key=lambda rollout: rollout.segment)
            rewards = [s.reward for s in segments if s.reward is not None]
            self._responses["rewards"].append(rewards[-1] if rewards else np.nan)
            self._responses["lengths"].append(sum(s.num_tokens for s in segments))
            self._responses["stopped"].append(segments[-1].finish_reason == "stop")
        self._groups += bool(new)
        self.responses_total += len(new)
        self.tokens_total += sum(s.num_tokens for segments in new.values() for s in segments)

    def close(self, seconds: float | None = None, expected: int | None = None) -> Metrics:
        """The metrics of the window; a new one begins.

        Args:
            seconds: How long the window was.
            expected: Groups that a train step wants.
        """
        with self._lock:
            found = self._metrics(seconds, expected)
            self._begin()
        return found

    def _metrics(self, seconds: float | None, expected: int | None) -> Metrics:
        rewards = np.array(self._responses["rewards"], np.float64)
        lengths = np.array(self._responses["lengths"], np.int64)
        metrics: Metrics = {
            "gen/groups": self._groups,
            "gen/responses": lengths.size,
            "gen/failed": self._failed,
            "gen/tokens": int(lengths.sum()),
            "gen/seconds_waiting_for_trainer": self._waiting,
        }
        if lengths.size:
            metrics["gen/stop_rate"] = float(np.mean(self._responses["stopped"]))
        metrics |= _spread("gen/length", lengths)
        known = ~np.isnan(rewards)
        metrics |= _rewards("gen", rewards[known], lengths[known], self.solved_above)
        if expected and self._groups:
            metrics["gen/batch_share"] = self._groups / expected
        if seconds is not None:
            metrics["gen/seconds"] = seconds
            if seconds > 0 and lengths.size:
                metrics["gen/tokens_per_second"] = int(lengths.sum()) / seconds
        return metrics

    def state(self, alive: Iterable[str]) -> dict[str, Any]:
        """As JSON; `alive` are the ids of groups that may come again."""
        there = set(alive)
        return {
            "groups": self._groups,
            "failed": self._failed,
            "waiting": self._waiting,
            "responses": self._responses,
            "responses_total": self.responses_total,
            "tokens_total": self.tokens_total,
            "counted": {
                name: sorted(map(list, seen))
                for name, seen in self._counted.items()
                if name in there
            },
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """What `state` returned."""
        self._groups, self._failed = state["groups"], state["failed"]
        self._waiting = state["waiting"]
        self._responses = {name: list(values) for name, values in state["responses"].items()}
        self.responses_total, self.tokens_total = state["responses_total"], state["tokens_total"]
        self._counted = OrderedDict(
            (name, {(each[0], each[1], each[2]) for each in seen})
            for name, seen in state["counted"].items()
        )


# -- what trains ------------------------------------------------------------------------------
def trained(
    rollouts: Rollouts,
    step: int,
    *,
    advantages: Advantages | None = None,
    filtered: Filtered | None = None,
    packed: Packed | None = None,
    uses: Ints | None = None,
    solved_above: float = 0.0,
) -> Metrics:
    """The metrics of what trains at a step: rollouts that were not dropped, replayed or not.

    `uses` says how often each group has been used, this time included; where it is not given,
    what the buffer counted.
    """
    selection = select(rollouts)
    kept, groups = selection.kept, selection.group_kept
    lengths = selection.trajectory_lengths[kept]
    metrics: Metrics = {
        "train/step": step,
        "train/groups": int(groups.sum()),
        "train/rollouts": lengths.size,
        "train/tokens": int(lengths.sum()),
    }
    metrics |= _spread("train/length", lengths)
    known = kept & selection.has_reward
    known_lengths = selection.trajectory_lengths[known]
    metrics |= _rewards("train", selection.rewards[known], known_lengths, solved_above)
    weights = sums(selection.trajectory, selection.weights, selection.trajectories)
    if lengths.size:
        metrics["train/masked_share"] = float((weights[kept] == 0).mean())
    versions = selection.oldest_versions[kept]
    metrics |= _lags(step - versions[versions >= 0] - 1)
    metrics |= _uses(selection.batch.info.times_sampled if uses is None else uses, groups)
    if groups.any():
        again = selection.batch.info.deliveries[groups] > 1
        metrics["train/groups_redelivered"] = int(again.sum())
    if advantages is not None:
        values = advantages.values[selection.first][kept]
        metrics |= _spread("train/advantage", values)
        metrics["train/groups_without_spread"] = advantages.without_spread
    if filtered is not None:
        for name, counts in (("dropped", filtered.dropped), ("masked", filtered.masked)):
            metrics |= {f"train/{name}/{reason}": count for reason, count in counts.items()}
    if packed is not None:
        metrics["train/trainable_tokens"] = packed.trainable_tokens
        metrics |= packed.metrics()
    return metrics


def _lags(lags: Ints) -> Metrics:
    """Per rollout: of its oldest token."""
    if not lags.size:
        return {}
    found, counts = np.unique(lags, return_counts=True)
    histogram = zip(found.tolist(), counts.tolist(), strict=True)
    return {
        "train/lag_mean": float(lags.mean()),
        "train/lag_max": int(lags.max()),
        **{f"train/lag/{value}": count for value, count in histogram},
    }


def _uses(uses: Ints, kept: Any) -> Metrics:
    """Per group, this use included: 1 is fresh, more is replayed."""
    uses = uses[kept]
    if not uses.size:
        return {}
    return {
        "train/uses_mean": float(uses.mean()),
        "train/uses_max": int(uses.max()),
        "train/groups_replayed": int((uses > 1).sum()),
        "train/replayed_share": float((uses > 1).mean()),
    }


# -- what is stored -----------------------------------------------------------------------------
def stored(buffer: RolloutBuffer) -> Metrics:
    """The metrics of what a buffer holds now, and of what has left it so far."""
    metrics: Metrics = {
        "buffer/groups": len(buffer),
        "buffer/bytes": buffer.nbytes,
        "buffer/train_step": buffer.train_step,
    }
    for (task, status), count in sorted(buffer.counts().items()):
        metrics[f"buffer/groups/{task}/{status.value}"] = count
    left: dict[str, int] = {}
    for task, account in buffer.accounts().items():
        for name in ("put", "taken", "sampled", "leased", "expired", "retried"):
            metrics[f"buffer/{name}/{task}"] = account[name]
        for name in ("age", "lag"):
            for quantile, value in account[name].items():
                metrics[f"buffer/{name}_{quantile}/{task}"] = value
        for reason, count in account["left"].items():
            left[reason] = left.get(reason, 0) + count
    return metrics | {f"buffer/left/{reason}": count for reason, count in left.items()}


def _spread(name: str, values: Floats | Ints) -> Metrics:
    if not values.size:
        return {}
    return {f"{name}_{of}": float(getattr(values, of)()) for of in ("mean", "std", "min", "max")}


def _rewards(family: str, rewards: Floats, lengths: Ints, solved_above: float) -> Metrics:
    """Of rollouts that have a reward."""
    if not rewards.size:
        return {}
    solved = rewards > solved_above
    metrics = _spread(f"{family}/reward", rewards)
    metrics[f"{family}/solved_share"] = float(solved.mean())
    for name, which in (("solved", solved), ("unsolved", ~solved)):
        if which.any():
            metrics[f"{family}/length_{name}_mean"] = float(lengths[which].mean())
    return metrics

"""Importance weights: how likely the trainer finds what the generators sampled.

The ratio of a token is exp(trainer logprob - generator logprob). It differs from 1 because the
weights are older, and because two engines compute the same weights differently. Only tokens that
train have a weight; all others have 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.data.ragged import Ragged
from recollect.errors import InvalidValue, shown
from recollect.training.selection import Flags, Floats, Rollouts, Selection, select, sums

LEVELS = ("token", "sequence", "geometric")
MOST = 80.0  # a log ratio beyond this would only overflow


class Correction(ABC):
    """A rule that makes weights of ratios; subclasses are frozen dataclasses with a `level`."""

    level: str

    @abstractmethod
    def weights(self, ratios: Floats) -> tuple[Floats, Flags]:
        """The weight of each ratio, and which ratios it changed."""


def _check_level(level: str) -> None:
    if level not in LEVELS:
        raise InvalidValue(f"level: expected one of {', '.join(LEVELS)}, got {shown(level)}")


@dataclass(frozen=True)
class TruncatedRatio(Correction):
    """min(ratio, cap)."""

    cap: float = 2.0
    level: str = "token"

    def __post_init__(self) -> None:
        _check_level(self.level)
        if not self.cap > 0:
            raise InvalidValue(f"cap: expected a number above 0, got {shown(self.cap)}")

    def weights(self, ratios: Floats) -> tuple[Floats, Flags]:
        return np.minimum(ratios, self.cap), ratios > self.cap


@dataclass(frozen=True)
class MaskedRatio(Correction):
    """The ratio where it is within [low, high], and 0 elsewhere."""

    low: float = 0.5
    high: float = 2.0
    level: str = "token"

    def __post_init__(self) -> None:
        _check_level(self.level)
        if not 0 <= self.low <= self.high:
            raise InvalidValue(f"low: expected 0 to high, {self.high}, got {shown(self.low)}")

    def weights(self, ratios: Floats) -> tuple[Floats, Flags]:
        outside = (ratios < self.low) | (ratios > self.high)
        return np.where(outside, 0.0, ratios), outside


KINDS: dict[str, Correction] = {
    "truncated": TruncatedRatio(),
    "masked": MaskedRatio(),
    "sequence": TruncatedRatio(level="sequence"),
}


@dataclass(frozen=True)
class Importance:
    """What `importance` found.

    Attributes:
        weights: One per response token, aligned with `response_ids`.
        metrics: Numbers about the tokens that train; none where none trains.
    """

    weights: Ragged
    metrics: dict[str, float] = field(default_factory=dict)


def importance(
    rollouts: Rollouts,
    trainer_logprobs: Ragged | Sequence[Any] | NDArray[Any],
    kind: str | Correction = "truncated",
) -> Importance:
    """Weights that correct for the difference between trainer and generators.

    `trainer_logprobs` has one number per response token: a `Ragged`, a list of arrays, or one
    flat array. `kind` is `"truncated"`, `"masked"`, `"sequence"` (truncated, one ratio for all
    tokens of a trajectory: the product of theirs), or a rule; a rule's level may also be
    `"geometric"`, the geometric mean of a trajectory's ratios.

    >>> import numpy as np
    >>> import recollect as rc
    >>> from recollect import training
    >>> rollout = rc.Rollout([1], [2, 3], logprobs=[-1.0, -1.0], finish_reason="stop")
    >>> found = training.importance([rc.Group([rollout])], [[-1.0, 9.0]])
    >>> found.weights.to_list(), found.metrics["importance/changed_share"]
    ([array([1., 2.])], 0.5)
    """
    rule, selection = _rule_of(kind), select(rollouts)
    offsets = selection.responses.offsets
    row = np.repeat(np.arange(selection.rows), selection.lengths)
    trains = (selection.masks.values != 0) & (selection.keep & (selection.weights != 0))[row]
    ours = _aligned("trainer_logprobs", trainer_logprobs, selection)
    theirs = _generator_logprobs(selection, trains, row)
    logs = np.zeros(row.size)
    logs[trains] = np.clip(ours[trains] - theirs[trains], -MOST, MOST)
    unit = selection.trajectory[row[trains]]
    logs_of_units = _of_level(rule.level, logs[trains], unit, selection.trajectories)
    ratios = np.exp(np.clip(logs_of_units, -MOST, MOST))
    weights = np.zeros(row.size)
    weights[trains], changed = rule.weights(ratios)
    metrics = _metrics(ratios, weights[trains], changed, logs[trains])
    return Importance(Ragged._make(weights, offsets), metrics)


def _rule_of(kind: str | Correction) -> Correction:
    if isinstance(kind, Correction):
        return kind
    if kind not in KINDS:
        known = ", ".join(map(repr, KINDS))
        raise InvalidValue(f"importance: expected one of {known}, got {shown(kind)}")
    return KINDS[kind]


def _of_level(level: str, logs: Floats, unit: NDArray[np.int64], units: int) -> Floats:
    """The log ratio that counts for each token."""
    if level == "token":
        return logs
    totals = sums(unit, logs, units)
    if level == "geometric":
        totals = totals / np.maximum(np.bincount(unit, minlength=units), 1)
    return totals[unit]


def _aligned(name: str, given: Any, selection: Selection) -> Floats:
    """One number per response token, as a flat array."""
    lengths = selection.lengths
    if isinstance(given, np.ndarray) and given.ndim == 1 and given.dtype != object:
        if given.size != int(lengths.sum()):
            raise InvalidValue(
                f"{name} has {given.size} entries for {int(lengths.sum())} response tokens"
            )
        return given.astype(np.float64)
    column = given if isinstance(given, Ragged) else Ragged.from_list(given, dtype=np.float64)
    if len(column) != lengths.size:
        raise InvalidValue(f"{name} has {len(column)} rows for {lengths.size} rollouts")
    wrong = column.lengths != lengths
    if wrong.any():
        row = int(wrong.argmax())
        raise InvalidValue(
            f"{name} has {column.lengths[row]} entries for {lengths[row]} response tokens of "
            f"rollout {selection.rollout_ids[row]!r}"
        )
    return column.values.astype(np.float64)


def _generator_logprobs(selection: Selection, trains: Flags, row: NDArray[np.int64]) -> Floats:
    """Theirs, flat; every token that trains must have one."""
    column = selection.batch.columns["logprobs"]
    assert isinstance(column, Ragged)
    found = np.full(row.size, np.nan)
    here = column.lengths == selection.lengths
    found[here[row]] = column.values[np.repeat(here, column.lengths)]
    lacking = trains & np.isnan(found)
    if lacking.any():
        at = selection.rollout_ids[int(row[int(lacking.argmax())])]
        raise InvalidValue(
            f"importance: rollout {at!r} trains tokens without a logprob; let the generator "
            "return them, or set their loss_mask to 0"
        )
    return found


def _metrics(ratios: Floats, weights: Floats, changed: Flags, logs: Floats) -> dict[str, float]:
    """Of the tokens that train. `kl` estimates KL(generator, trainer) without a negative sample."""
    if not ratios.size:
        return {}
    square = float((weights**2).sum())
    metrics = {
        "importance/ratio_mean": float(ratios.mean()),
        "importance/ratio_min": float(ratios.min()),
        "importance/ratio_max": float(ratios.max()),
        "importance/weight_mean": float(weights.mean()),
        "importance/changed_share": float(changed.mean()),
        "importance/kl": float((np.expm1(logs) - logs).mean()),
    }
    if square:  # how many equal weights would be worth as much, as a share
        metrics["importance/effective_share"] = float(weights.sum()) ** 2 / square / weights.size
    return metrics

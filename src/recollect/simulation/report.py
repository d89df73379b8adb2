"""What a simulation found, and how two of them compare. Numbers, and the same as a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

WASTE = ("expired", "aborted", "cancelled", "failed", "filtered", "left_over")


@dataclass(frozen=True)
class TaskReport:
    """One task: what it was to have, what it had, and what it cost.

    Args:
        weight: Its share of the weights.
        groups: Groups that trained.
        share: Of all groups that trained.
        tokens: That trained.
        generated: Tokens generated for it.
        useful: The share of these that trained.
        waited_for: Seconds that the trainer waited and this task's groups came last.
        mean_lag: Of its tokens that trained.
        seconds: Of generation of a group: p50 and p99.
    """

    weight: float
    groups: int
    share: float
    tokens: int
    generated: int
    useful: float
    waited_for: float
    mean_lag: float
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Report:
    """What a simulated run was like.

    Args:
        steps: Train steps.
        seconds: How long it took.
        training: Share of the time that the trainer trained.
        waiting: Share of the time that it waited for a batch.
        syncing: Share of the time that it waited for weights to be sent, pauses included.
        slots_busy: Share of slot seconds in which tokens were written.
        generated: Tokens generated.
        trained: Tokens that trained.
        lags: Lag of a token when it trained: how many tokens.
        group_lags: The same for the oldest token of each group: how many groups.
        waste: Tokens that did not train, by reason: `expired`, `aborted` (and not kept),
            `cancelled`, `failed`, `filtered`, and `left_over` in the buffer or running at the end.
        expired: Groups that expired, counted each time.
        outdated: Batches that the trainer did not get because the weights were too old.
        tasks: By name.
        fairness: Jain's index of trained groups per weight: 1 where every task had its share.
    """

    steps: int
    seconds: float
    training: float
    waiting: float
    syncing: float
    slots_busy: float
    generated: int
    trained: int
    lags: Mapping[int, int]
    group_lags: Mapping[int, int]
    waste: Mapping[str, int]
    expired: int
    outdated: int
    tasks: Mapping[str, TaskReport]
    fairness: float = 1.0

    @property
    def step_seconds(self) -> float:
        """Seconds per train step."""
        return self.seconds / self.steps

    @property
    def tokens_per_second(self) -> float:
        """Tokens that trained, per second."""
        return self.trained / self.seconds if self.seconds else 0.0

    @property
    def mean_lag(self) -> float:
        """Of the tokens that trained."""
        return mean_of(self.lags)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON."""
        found = asdict(self)
        for name in ("lags", "group_lags"):
            found[name] = {str(lag): count for lag, count in found[name].items()}
        extra = ("step_seconds", "tokens_per_second", "mean_lag")
        return found | {name: getattr(self, name) for name in extra}

    def __str__(self) -> str:
        return render([("", self)])


def mean_of(histogram: Mapping[int, int]) -> float:
    total = sum(histogram.values())
    return sum(value * count for value, count in histogram.items()) / total if total else 0.0


def jain(shares: Sequence[float]) -> float:
    """1 where all are equal, 1/n where one has everything.

    >>> from recollect.simulation.report import jain
    >>> jain([2, 2, 2]), jain([1, 0])
    (1.0, 0.5)
    """
    values = np.asarray(shares, float)
    square = float((values**2).sum()) * values.size
    return float(values.sum()) ** 2 / square if square else 1.0


def render(reports: Sequence[tuple[str, Report]]) -> str:
    """A table with a column per report, and the change from the first to the second."""
    rows: list[tuple[str, list[str]]] = []
    found = [report for _, report in reports]
    if any(name for name, _ in reports):
        rows.append(
            ("", [*(name for name, _ in reports), *(["change"] if len(found) == 2 else [])])
        )

    def number(label: str, values: list[float], form: str = "{:,.0f}") -> None:
        cells = [form.format(value) for value in values]
        if len(values) == 2:
            first, second = values
            cells.append(f"{(second - first) / first:+.0%}" if first else "")
        rows.append((label, cells))

    def share(label: str, values: list[float]) -> None:
        cells = [f"{value:.1%}" for value in values]
        if len(values) == 2:
            cells.append(f"{100 * (values[1] - values[0]):+.1f} points")
        rows.append((label, cells))

    number("train steps", [r.steps for r in found])
    number("seconds per step", [r.step_seconds for r in found], "{:,.1f}")
    number("trained tokens per second", [r.tokens_per_second for r in found])
    share("trainer trains", [r.training for r in found])
    share("trainer waits for a batch", [r.waiting for r in found])
    share("trainer waits for a sync", [r.syncing for r in found])
    share("slots are busy", [r.slots_busy for r in found])
    number("mean lag of tokens", [r.mean_lag for r in found], "{:.2f}")
    for lag in sorted({lag for r in found for lag in r.lags}):
        share(f"  lag {lag}", [r.lags.get(lag, 0) / max(r.trained, 1) for r in found])
    share("tokens that trained", [r.trained / max(r.generated, 1) for r in found])
    for reason in WASTE:
        if any(r.waste.get(reason) for r in found):
            label = f"  {reason.replace('_', ' ')}"
            share(label, [r.waste.get(reason, 0) / max(r.generated, 1) for r in found])
    number("groups that expired", [r.expired for r in found])
    if any(r.outdated for r in found):
        number("batches refused as outdated", [r.outdated for r in found])
    tasks = list(dict.fromkeys(name for r in found for name in r.tasks))
    if len(tasks) > 1:
        share("fairness", [r.fairness for r in found])
        for name in tasks:
            of = [r.tasks.get(name) for r in found]
            share(f"  {name}: groups", [t.share if t else 0.0 for t in of])
            share(f"  {name}: its weight", [t.weight if t else 0.0 for t in of])
            share(f"  {name}: tokens that trained", [t.useful if t else 0.0 for t in of])
            number(f"  {name}: seconds waited for", [t.waited_for if t else 0.0 for t in of])
    return "\n".join(aligned(rows))


def aligned(rows: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    columns = max(len(cells) for _, cells in rows)
    first = max(len(label) for label, _ in rows)
    widths = [
        max((len(cells[at]) for _, cells in rows if at < len(cells)), default=0)
        for at in range(columns)
    ]
    lines = []
    for label, cells in rows:
        shown = [f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=False)]
        lines.append("  ".join([f"{label:{first}}", *shown]).rstrip())
    return lines

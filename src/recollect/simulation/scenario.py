"""What a simulation is of: hardware, tasks, and the rules that are tried. Plain values."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recollect.base.arguments import flag, time_span, whole
from recollect.config import Source, load_mapping, rule_from_config
from recollect.errors import ConfigError, InvalidValue, shown
from recollect.rollouts.staleness import Staleness

ARRANGEMENTS = ("disaggregated", "colocated")
SYNCS = ("pause", "running")
STRATEGIES = ("async", "sync")


@dataclass(frozen=True)
class TaskModel:
    """What the responses of a task are like.

    Lengths are lognormal: half of the responses are shorter than `median_tokens`, and `sigma` is
    the standard deviation of the logarithm (0.8: one in twenty is longer than 3.7 medians).

    Args:
        weight: The task's share of a batch, relative to the others'.
        median_tokens: Half of the responses are shorter.
        sigma: How much lengths vary; 0 makes them all alike.
        max_tokens: Where responses are cut.
        failure: The share of responses that fail at some point.
        abort: The share that the engine drops at some point, as when its memory is full.
        straggler: The share that is written `slowdown` times slower.
        slowdown: How much slower.
        filtered: The share of groups that `valid` rejects.
        reward_seconds: How long the reward of a group takes.
    """

    weight: float = 1.0
    median_tokens: float = 1000.0
    sigma: float = 0.8
    max_tokens: int = 16384
    failure: float = 0.0
    abort: float = 0.0
    straggler: float = 0.0
    slowdown: float = 4.0
    filtered: float = 0.0
    reward_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("median_tokens", "max_tokens", "slowdown"):
            check(name, getattr(self, name), above=0)
        for name in ("weight", "sigma", "reward_seconds"):
            check(name, getattr(self, name))
        for name in ("failure", "abort", "straggler", "filtered"):
            check(name, getattr(self, name), most=1)
        if self.failure + self.abort >= 1:
            raise InvalidValue("failure, abort: expected less than 1 together, else nothing ends")
        if self.filtered == 1:
            raise InvalidValue("filtered: expected less than 1, else no batch is ever full")


@dataclass(frozen=True)
class Scenario:
    """A training run to simulate.

    >>> from recollect.simulation import Scenario
    >>> Scenario.from_config({"staleness": {"max_staleness": 1}}).staleness.threshold
    2

    Args:
        arrangement: "disaggregated", or "colocated".
        batch_size: Groups of a train step.
        group_size: Responses of a group.
        slots: Responses that the engines write at once, all of them together.
        tokens_per_second: How fast each of them grows.
        train_seconds: How long a train step takes.
        sync_seconds: How long it takes to send weights to the engines.
        sync: "pause" aborts what runs before weights are sent, "running" sends them meanwhile
            (`set_version`).
        strategy: "async" or "sync".
        over_sample: Of the async strategy, as are the next two.
        keep_partial: Whether aborted responses are continued.
        retry_trigger: How many expired groups are waited for before they are generated again.
        abort_hopeless: Whether `set_version` aborts generations that can no longer be in time.
        drain_timeout: How long a pause waits for generations.
        staleness: The buffer's rule.
        tasks: By name.
        tokens_per_cell: How many tokens are simulated as one.
        steps: How many train steps.
        seed: Makes it repeatable; equal seeds give equal prompts and lengths.
    """

    arrangement: str = "disaggregated"
    batch_size: int = 64
    group_size: int = 8
    slots: int = 256
    tokens_per_second: float = 50.0
    train_seconds: float = 60.0
    sync_seconds: float = 5.0
    sync: str = "pause"
    strategy: str = "async"
    over_sample: float = 0.0
    keep_partial: bool = False
    retry_trigger: int = 0
    abort_hopeless: bool = True
    drain_timeout: float = 300.0
    staleness: Staleness = field(default_factory=Staleness)
    tasks: Mapping[str, TaskModel] = field(default_factory=lambda: {"default": TaskModel()})
    tokens_per_cell: int = 64
    steps: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        choices = {"arrangement": ARRANGEMENTS, "sync": SYNCS, "strategy": STRATEGIES}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                expected = " or ".join(map(repr, allowed))
                raise InvalidValue(f"{name}: expected {expected}, got {shown(getattr(self, name))}")
        for name in ("batch_size", "group_size", "slots", "tokens_per_cell", "steps"):
            whole(name, getattr(self, name), 1)
        for name in ("retry_trigger", "seed"):
            whole(name, getattr(self, name), 0)
        for name in ("keep_partial", "abort_hopeless"):
            flag(name, getattr(self, name))
        time_span("drain_timeout", self.drain_timeout)
        check("tokens_per_second", self.tokens_per_second, above=0)
        for name in ("train_seconds", "sync_seconds", "over_sample"):
            check(name, getattr(self, name))
        if not self.tasks or not any(task.weight for task in self.tasks.values()):
            raise InvalidValue("tasks: expected at least one with a weight above 0")

    @classmethod
    def from_config(cls, config: Source) -> Scenario:
        """A scenario from a mapping, or from the YAML file at a path.

        Errors begin with the path of the wrong entry.
        """
        data = load_mapping(config) if isinstance(config, str | os.PathLike) else config
        try:
            return rule_from_config(cls, typed(data, "Scenario"))
        except ConfigError as error:
            if data is not config:
                error.add_note(f"in the file {config}")
            raise


def typed(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The same with the types that the reader of rules asks for, which follow from the place."""
    made = {"type": name, **data}
    if isinstance(rule := made.get("staleness"), Mapping):
        made["staleness"] = typed(rule, "Staleness")
    if isinstance(tasks := made.get("tasks"), Mapping):
        made["tasks"] = {
            key: typed(task, "TaskModel") if isinstance(task, Mapping) else task
            for key, task in tasks.items()
        }
    return made


def check(name: str, value: Any, above: float | None = None, most: float | None = None) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (value >= 0 if above is None else value > above):
        least = "0 or more" if above is None else f"more than {above:g}"
        raise InvalidValue(f"{name}: expected a number of {least}, got {shown(value)}")
    if most is not None and value > most:
        raise InvalidValue(f"{name}: expected a number from 0 to {most:g}, got {shown(value)}")

"""`Staleness`: when a rollout is too old to train on. Pure arithmetic, with no buffer in sight.

Weights after train step k are version k, so at train step t the newest possible weights are
version t - 1, and lag = t - version - 1. A rollout expires at the step at which its lag reaches
the threshold. That step is known when the rollout is, so a buffer keeps it as one number, and
a new train step costs only what expires at it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from recollect.base.arrays import Ints
from recollect.errors import InvalidValue, shown

NEVER = (1 << 62) - 1  # a train step that no training reaches
NONE = -1  # no version
FIRST_STEP = 1


@dataclass(frozen=True)
class Staleness:
    """How far behind the trainer a rollout may be, and what happens when it is further behind.

    `max_staleness` counts sync periods and lag counts train steps, so a rollout is expired when
    its lag reaches `threshold = (max_staleness + 1) * sync_interval`.

    >>> import recollect as rc
    >>> rule = rc.Staleness(max_staleness=0, sync_interval=4)
    >>> rule.threshold, rule.is_expired(8, version=4), rule.is_expired(9, version=4)
    (4, False, True)

    Args:
        max_staleness: Sync periods that a rollout may be behind.
        sync_interval: Train steps between two times that generators get new weights.
        max_token_staleness: The same per token: older tokens do not train. None for no such rule.
        measure: `"oldest_token"`, or `"dispatch"`: the version at which the prompt was sent.
        on_expire: `"retry"` sends stale rollouts back to their prompt, `"discard"` removes the
            group.
        max_retries: How often a rollout may be retried; None for no limit.
    """

    max_staleness: int = 0
    sync_interval: int = 1
    max_token_staleness: int | None = None
    measure: str = "oldest_token"
    on_expire: str = "retry"
    max_retries: int | None = None

    def __post_init__(self) -> None:
        _check_whole("max_staleness", self.max_staleness, 0)
        _check_whole("sync_interval", self.sync_interval, 1)
        if self.max_token_staleness is not None:
            _check_whole("max_token_staleness", self.max_token_staleness, 0)
        if self.max_retries is not None:
            _check_whole("max_retries", self.max_retries, 0)
        _check_choice("measure", self.measure, ("oldest_token", "dispatch"))
        _check_choice("on_expire", self.on_expire, ("retry", "discard"))

    @property
    def threshold(self) -> int:
        """The lag at which a rollout is expired."""
        return (self.max_staleness + 1) * self.sync_interval

    @property
    def token_threshold(self) -> int | None:
        """The lag at which a token does not train any more, None where tokens do not age."""
        if self.max_token_staleness is None:
            return None
        return (self.max_token_staleness + 1) * self.sync_interval

    def is_expired(self, train_step: int, version: int) -> bool:
        """Whether a rollout of this version is too old at a train step."""
        return lag(train_step, version) >= self.threshold

    def expires_at(self, version: int) -> int:
        """The first train step at which a rollout of this version is too old."""
        return version + self.threshold + 1

    def last_step(self, version: int) -> int:
        """The last train step that may train on what this version generated."""
        return version + self.threshold

    def oldest_fresh(self, train_step: int) -> int:
        """The lowest version whose tokens still train at a train step."""
        threshold = self.token_threshold
        return 0 if threshold is None else train_step - threshold

    def versions_of(self, oldest: Ints, dispatch: Ints) -> Ints:
        """The version that counts for each rollout, -1 where it has none.

        `oldest` is the lowest version among a rollout's tokens; where it has no tokens yet, the
        version at dispatch counts.
        """
        first, other = (oldest, dispatch) if self.measure == "oldest_token" else (dispatch, oldest)
        return np.where(first >= 0, first, other)

    def expiry(self, oldest: Ints, dispatch: Ints, newest: Ints | None) -> Ints:
        """The train step at which each rollout expires, `NEVER` where it does not.

        `newest` is the highest version among a rollout's trainable tokens: when that one is
        stale, none is left to train. -1 exempts a rollout from the rule for tokens.
        """
        version = self.versions_of(oldest, dispatch)
        steps = np.where(version >= 0, version + (self.threshold + 1), NEVER)
        threshold = self.token_threshold
        if threshold is not None and newest is not None:
            by_token = np.where(newest >= 0, newest + (threshold + 1), NEVER)
            steps = np.minimum(steps, by_token)
        return steps


def lag(train_step: int, version: int) -> int:
    """How many versions behind the trainer a version is.

    >>> from recollect.rollouts.staleness import lag
    >>> lag(train_step=5, version=3)
    1
    """
    return train_step - version - 1


class StalenessRules:
    """The staleness of each task: one for all, or a mapping."""

    def __init__(self, given: Any) -> None:
        self._for_all: Staleness | None = None
        self._by_task: dict[str, Staleness] = {}
        if isinstance(given, Staleness):
            self._for_all = given
        elif isinstance(given, Mapping):
            for task, rule in given.items():
                if not isinstance(task, str) or not isinstance(rule, Staleness):
                    raise InvalidValue(
                        f"staleness: expected an rc.Staleness for each task, got {shown(rule)} "
                        f"for {shown(task)}"
                    )
                self._by_task[task] = rule
        else:
            raise InvalidValue(
                "staleness: expected an rc.Staleness, or a mapping of tasks to them, got "
                f"{shown(given)}"
            )

    def __getitem__(self, task: str) -> Staleness:
        if self._for_all is not None:
            return self._for_all
        try:
            return self._by_task[task]
        except (KeyError, TypeError):  # an unknown task, or a value that is no task
            known = ", ".join(self._by_task) or "none"
            raise InvalidValue(
                f"staleness: there is none for task {task!r}; the mapping has {known}"
            ) from None

    @property
    def by_token(self) -> bool:
        """Whether tokens age in any task."""
        rules = [self._for_all] if self._for_all is not None else list(self._by_task.values())
        return any(rule.max_token_staleness is not None for rule in rules)


def _check_whole(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidValue(
            f"{name}: expected a whole number of at least {least}, got {shown(value)}"
        )


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidValue(f"{name}: expected {' or '.join(map(repr, choices))}, got {value!r}")

"""The options of a buffer, and checks: each returns a clean value or says what is wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arguments import names, whole
from recollect.errors import InvalidValue, shown
from recollect.rules.limiters import Limiter, Queue
from recollect.rules.natures import check_executable
from recollect.rules.selectors import Prioritized, Selector, Uniform
from recollect.storage.fields import check_weight

LARGEST_CAPACITY = (1 << 31) - 1  # slots are numbered in 32 bits
MOST_ENVIRONMENTS = 1 << 19


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How a buffer was made. `ReplayBuffer` says what each option means; none of them changes."""

    capacity: int
    num_envs: int
    sampler: Selector
    next_from_row: tuple[str, ...]
    n_step: int
    gamma: float
    frame_stack: int
    recent: tuple[int, float] | None
    reward_at: str

    @property
    def ring(self) -> int:
        """How many rows an environment has."""
        return self.capacity // self.num_envs

    @property
    def window(self) -> tuple[int, float]:
        """How many of a ring's newest rows have a share of every batch, and that share."""
        if self.recent is None:
            return 0, 0.0
        return min(self.ring, self.recent[0] // self.num_envs), self.recent[1]

    @property
    def reward_next(self) -> bool:
        """Whether a row holds what the action of the row before it led to."""
        return self.reward_at == "next"


def checked_options(
    capacity: Any,
    num_envs: Any,
    sampler: Any,
    next_from_row: Any,
    n_step: Any,
    gamma: Any,
    frame_stack: Any,
    recent: Any,
    reward_at: Any,
) -> ReplayOptions:
    """The options of a buffer, each for itself and together."""
    capacity = whole("capacity", capacity, 1, LARGEST_CAPACITY)
    num_envs = whole("num_envs", num_envs, 1, MOST_ENVIRONMENTS)
    n_step = whole("n_step", n_step, 1, LARGEST_CAPACITY)
    frame_stack = whole("frame_stack", frame_stack, 1, 1 << 20)
    gamma, next_from_row = checked_gamma(gamma), checked_next(next_from_row)
    if capacity < num_envs:
        raise InvalidValue(f"capacity: {num_envs} environments need a row each, got {capacity}")
    if reward_at not in ("this", "next"):
        raise InvalidValue(f"reward_at: expected 'this' or 'next', got {shown(reward_at)}")
    sampler = checked_sampler(Uniform() if sampler is None else sampler)
    recent = checked_recent(recent, sampler, num_envs)
    return ReplayOptions(
        capacity, num_envs, sampler, next_from_row, n_step, gamma, frame_stack, recent, reward_at
    )


def checked_gamma(gamma: Any) -> float:
    """A discount: a number from 0 to 1."""
    if isinstance(gamma, bool) or not isinstance(gamma, Real) or not 0.0 <= float(gamma) <= 1.0:
        raise InvalidValue(f"gamma: expected a number from 0 to 1, got {shown(gamma)}")
    return float(gamma)


def checked_next(given: Any) -> tuple[str, ...]:
    """The names of columns that are read from the next row too."""
    columns = names("next_from_row", given)
    if not all(columns) or len(set(columns)) < len(columns):
        raise InvalidValue(f"next_from_row: expected different names, got {shown(given)}")
    return columns


def checked_sampler(sampler: Any) -> Selector:
    """A selector that a ring can execute."""
    if not isinstance(sampler, Uniform | Prioritized):
        raise InvalidValue(
            "sampler: a replay buffer draws by rc.Uniform() or rc.Prioritized(), and recent= gives "
            f"the newest steps a share; got {shown(sampler)}"
        )
    check_executable("sampler", sampler)
    if isinstance(sampler, Prioritized) and sampler.half_life is not None:
        raise InvalidValue("sampler: steps have no version, so half_life must be None")
    return sampler


def checked_limiter(limiter: Any, capacity: int) -> Limiter:
    """A limiter that can open, and that does not stop a ring for ever."""
    if not isinstance(limiter, Limiter):
        raise InvalidValue(
            f"limiter: expected a limiter such as rc.MinSize(1), got {shown(limiter)}"
        )
    if isinstance(limiter, Queue):
        raise InvalidValue(
            f"limiter: steps leave a ring only when they are overwritten, so {limiter} would stop "
            "inserts for ever; use rc.MinSize or rc.SampleToInsertRatio, or an rc.Table.queue"
        )
    limiter.check_capacity(capacity)
    return limiter


def checked_recent(recent: Any, sampler: Selector, num_envs: int) -> tuple[int, float] | None:
    """The newest steps and their share, None for none."""
    if recent is None:
        return None
    wrong = InvalidValue(
        f"recent: expected (steps, share) with a share from 0 to 1, got {shown(recent)}"
    )
    if not isinstance(recent, tuple | list) or len(recent) != 2:
        raise wrong
    steps, share = whole("recent[0]", recent[0], 1), recent[1]
    if steps < num_envs:
        raise InvalidValue(
            f"recent: the newest {steps} steps of {num_envs} environments are none of each; name "
            f"at least {num_envs}"
        )
    if isinstance(share, bool) or not isinstance(share, Real) or not 0.0 <= float(share) <= 1.0:
        raise wrong
    if isinstance(sampler, Prioritized) and sampler.normalize == "table":
        raise InvalidValue(
            "recent: normalize='table' has no meaning where two draws are mixed; use 'batch' or "
            "None"
        )
    return steps, float(share)


def checked_priorities(values: Any, count: int, sampler: Selector) -> NDArray[np.float64]:
    """Finite numbers of 0 or more, one for all or one per key."""
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.zeros(0, object)
    if array.dtype.kind not in "fiu" and array.size:
        raise InvalidValue(f"priorities: expected numbers, got {shown(values)}")
    if array.ndim == 0:
        array = array.reshape(1)
    elif array.shape != (count,):
        raise InvalidValue(
            f"priorities: expected one, or one for each of {count} keys, got shape {array.shape}"
        )
    array = np.ascontiguousarray(array, dtype=np.float64)
    if array.size:
        fine = (array >= 0.0) & (array < math.inf)
        if not fine.all():
            raise InvalidValue(
                f"priorities: expected finite numbers of 0 or more, got {array[~fine][0]:g}"
            )
        check_weight(float(array.max()), sampler.alpha if isinstance(sampler, Prioritized) else 1.0)
    return array

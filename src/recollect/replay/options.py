"""Checks of what a buffer is made of and told: each returns a clean value or says what is wrong."""

from __future__ import annotations

import math
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

"""Batches from several buffers, such as offline and online data, in exact shares.

A share is kept over time, not by chance: what one batch rounds away is a credit that a later one
makes up. Each buffer keeps its own lock, sampler and limiter; a mixture only says how many.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arguments import flag, keys_of, time_span, whole
from recollect.data.batch import Batch
from recollect.data.info import Info, info_arrays
from recollect.errors import InvalidValue, SchemaError, shown
from recollect.replay.batches import BatchDraw, Batched
from recollect.replay.buffer import ReplayBuffer
from recollect.replay.hindsight import Relabelled
from recollect.rules.selectors import Linear

Source = ReplayBuffer | Relabelled
Share = float | Linear


def mix(sources: Sequence[tuple[Source, Share]]) -> Mix:
    """BatchDraw from several buffers, each for its share of every batch.

    Shares are numbers in proportion to each other, or `rc.Linear` schedules over the sample calls
    of the mixture. A buffer whose share is 0 is not asked, so it may still be empty.

    Args:
        sources: Pairs of a buffer (or of what `relabel` returns) and its share.

    >>> import numpy as np
    >>> import recollect as rc
    >>> offline, online = rc.ReplayBuffer(100, seed=0), rc.ReplayBuffer(100, seed=1)
    >>> for buffer in (offline, online):
    ...     _ = buffer.extend(obs=np.zeros((9, 2)), reward=np.zeros(9))
    >>> mixture = rc.mix([(offline, 0.75), (online, 0.25)])
    >>> [np.bincount(mixture.sample(6).info.source).tolist() for _ in range(2)]
    [[5, 1], [4, 2]]
    """
    return Mix(sources)


class Mix(Batched):
    """Several buffers that are drawn from in shares. Made by `rc.mix`."""

    def __init__(self, sources: Sequence[tuple[Source, Share]]) -> None:
        self.sources, self.shares = _checked(sources)
        self._credits = [0.0] * len(self.sources)
        self._calls = 0
        self._lock = threading.Lock()  # guards credits and calls
        self._fits = False

    # -- calls ------------------------------------------------------------------------------------
    def sample(
        self, n: int, *, where: Any = None, replace: bool = True, timeout: float | None = None
    ) -> Batch:
        """BatchDraw n transitions, as `ReplayBuffer.sample` does.

        Rows of one buffer follow each other, and `info.source` says of which buffer each is, by its
        place in the list. Probabilities and weights are those within its own buffer.

        Every buffer is waited for in turn. If one does not have enough in time, the call raises;
        what was drawn from others before counts as drawn there.
        """
        return self._sample(n, None, where, replace, timeout)

    def sample_sequences(
        self,
        n: int,
        length: int,
        *,
        burn_in: int = 0,
        across_episodes: str = "stop",
        stride: int = 1,
        replace: bool = True,
        timeout: float | None = None,
    ) -> Batch:
        """BatchDraw n sequences, as `ReplayBuffer.sample_sequences` does; see `sample`.

        >>> import numpy as np
        >>> import recollect as rc
        >>> buffers = [rc.ReplayBuffer(100, seed=0), rc.ReplayBuffer(100, seed=1)]
        >>> for buffer in buffers:
        ...     _ = buffer.extend(obs=np.zeros((9, 2)), reward=np.zeros(9))
        >>> batch = rc.mix([(buffers[0], 1), (buffers[1], 1)]).sample_sequences(4, 5)
        >>> batch["obs"].shape, batch.info.source
        ((4, 5, 2), array([0, 0, 1, 1]))
        """
        options = {
            "length": length,
            "burn_in": burn_in,
            "across_episodes": across_episodes,
            "stride": stride,
        }
        return self._sample(n, options, None, replace, timeout)

    def update_priorities(self, keys: Any, values: Any, *, source: Any) -> NDArray[np.bool_]:
        """Set priorities; `source` names the buffer of each key, as `info.source` does.

        Keys of steps that went are ignored; returns which were there.
        """
        keys = keys_of(keys)
        places = np.asarray(source)
        given = np.asarray(values)
        if places.shape != keys.shape or (places.dtype.kind not in "iu" and places.size):
            raise InvalidValue(
                f"source: expected the buffer of each of {keys.size} keys, as in info.source, got "
                f"{shown(source)}"
            )
        if places.size and not 0 <= int(places.min()) <= int(places.max()) < len(self.sources):
            raise InvalidValue(
                f"source: there are {len(self.sources)} buffers, numbered from 0, got "
                f"{shown(source)}"
            )
        if given.shape not in ((), keys.shape):
            raise InvalidValue(
                f"values: expected one priority, or one for each of {keys.size} keys, got shape "
                f"{list(given.shape)}"
            )
        given = np.broadcast_to(given, keys.shape)
        if given.dtype.kind in "biuf" and not (np.isfinite(given) & (given >= 0)).all():
            raise InvalidValue("values: expected finite priorities of 0 or more")
        found = np.zeros(keys.size, np.bool_)
        for place, buffer in enumerate(self.sources):
            mine = places == place
            if mine.any():
                found[mine] = buffer.update_priorities(keys[mine], given[mine])
        return found

    def __len__(self) -> int:
        return sum(len(buffer) for buffer in self.sources)

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{len(buffer)} steps: {share}"
            for buffer, share in zip(self.sources, self.shares, strict=True)
        )
        return f"Mix({parts})"

    # -- draws ------------------------------------------------------------------------------------
    def _sample(
        self, n: int, sequences: Any, where: Any, replace: bool, timeout: float | None
    ) -> Batch:
        draw = self._draw(n, sequences, where, replace)
        try:
            draw.choose(timeout)
        except BaseException:
            if draw.changes is not None:
                self._undo(draw.changes)
            raise
        return draw.read()

    def _draw(
        self, n: int, sequences: Mapping[str, Any] | None, where: Any, replace: bool
    ) -> MixDraw:
        n, replace = whole("n", n, 1), flag("replace", replace)
        for buffer in self.sources:  # says what is wrong before anything is drawn
            buffer._draw(n, sequences, where, replace)
        return MixDraw(self, n, sequences, where, replace)

    def _counts(self, n: int) -> tuple[list[int], list[float]]:
        """How many of n each buffer gives, and how that changes their credits."""
        with self._lock:
            shares = [
                share.at(self._calls) if isinstance(share, Linear) else share
                for share in self.shares
            ]
            total = math.fsum(shares)
            if total <= 0.0:
                raise InvalidValue(
                    f"sources: all shares are 0 at sample call {self._calls}; expected one above 0"
                )
            owed = [
                credit + n * share / total
                for credit, share in zip(self._credits, shares, strict=True)
            ]
            counts = [max(0, math.floor(credit + 1e-9)) for credit in owed]
            order = sorted(range(len(owed)), key=lambda i: (counts[i] - owed[i], i))
            order = [i for i in order if shares[i] > 0.0]
            place = 0
            while sum(counts) < n:
                counts[order[place % len(order)]] += 1
                place += 1
            while sum(counts) > n:  # credit of a share that has become smaller
                most = max(range(len(owed)), key=lambda i: counts[i] - owed[i] if counts[i] else -n)
                counts[most] -= 1
            after = [credit - count for credit, count in zip(owed, counts, strict=True)]
            changes = [new - old for new, old in zip(after, self._credits, strict=True)]
            self._credits = after
            self._calls += 1
            return counts, changes

    def _undo(self, changes: list[float]) -> None:
        """A call that raised leaves the shares as they were."""
        with self._lock:
            self._credits = [c - change for c, change in zip(self._credits, changes, strict=True)]
            self._calls -= 1

    def _check_columns(self) -> None:
        """Refuse buffers whose batches cannot be put together."""
        if self._fits:
            return
        known = [buffer for buffer in self.sources if buffer.columns]
        for other in known[1:]:
            first, second = _described(known[0]), _described(other)
            if first != second:
                names = sorted(
                    name for name in {*first, *second} if first.get(name) != second.get(name)
                )
                raise SchemaError(
                    f"the buffers of a mixture need the same columns, and "
                    f"{self.sources.index(known[0])} and {self.sources.index(other)} differ in "
                    + "; ".join(
                        f"{n!r}: {first.get(n, 'none')} and {second.get(n, 'none')}" for n in names
                    )
                )
        self._fits = len(known) == len(self.sources)


class MixDraw:
    """One batch of a mixture. What was chosen from a buffer is kept while others are waited for."""

    def __init__(self, mixture: Mix, n: int, sequences: Any, where: Any, replace: bool) -> None:
        self._mixture = mixture
        self._arguments = (sequences, where, replace)
        self._n = n
        self.changes: list[float] | None = None  # of credits, once the counts are known
        self._waiting: list[tuple[int, BatchDraw]] = []
        self._chosen: list[tuple[int, BatchDraw]] = []

    def choose(self, timeout: float | None) -> None:
        mixture = self._mixture
        mixture._check_columns()
        if self.changes is None:
            counts, self.changes = mixture._counts(self._n)
            self._waiting = [
                (place, mixture.sources[place]._draw(count, *self._arguments))
                for place, count in enumerate(counts)
                if count
            ]
        if timeout is not None:
            timeout = time_span("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._waiting:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            self._waiting[0][1].choose(left)
            self._chosen.append(self._waiting.pop(0))

    def read(self) -> Batch:
        places = [place for place, _ in self._chosen]
        return _together(places, [draw.read() for _, draw in self._chosen])


def _together(places: list[int], batches: list[Batch]) -> Batch:
    """One batch of several, with `info.source`."""
    columns: dict[str, Any] = {}
    for name, column in batches[0].columns.items():
        parts: list[Any] = [column, *(batch.columns[name] for batch in batches[1:])]
        columns[name] = parts[0] if len(parts) == 1 else np.concatenate(parts)
    counts = [batch.num_items for batch in batches]
    names = dict.fromkeys(name for batch in batches for name in info_arrays(batch.info))
    arrays: dict[str, Any] = {
        name: np.concatenate([_info(batch, name) for batch in batches]) for name in names
    }
    arrays["source"] = np.repeat(np.array(places, np.int64), counts)
    return Batch._make(columns, Info(arrays, sum(batch.info.table_size for batch in batches)))


def _info(batch: Batch, name: str) -> Any:
    if name == "relabelled" and name not in info_arrays(batch.info):
        return np.zeros(batch.num_items, np.bool_)
    return getattr(batch.info, name)


def _described(source: Source) -> dict[str, Any]:
    """What must agree for batches to be put together: columns, and how observations are shown."""
    options = source.core.options
    return {
        **source.columns,
        "next_from_row": set(options.next_from_row),
        "frame_stack": options.frame_stack,
    }


def _checked(sources: Any) -> tuple[tuple[Source, ...], tuple[Share, ...]]:
    try:
        pairs = [(buffer, share) for buffer, share in sources]
    except (TypeError, ValueError):
        pairs = []
    if not pairs:
        raise InvalidValue(
            f"sources: expected a list of (buffer, share) pairs, got {shown(sources)}"
        )
    for place, (buffer, share) in enumerate(pairs):
        if not isinstance(buffer, ReplayBuffer | Relabelled):
            raise InvalidValue(
                f"sources[{place}][0]: expected an rc.ReplayBuffer or what relabel returns, got "
                f"{shown(buffer)}"
            )
        ends = (share.start, share.end) if isinstance(share, Linear) else (share,)
        for number in ends:
            if (
                isinstance(number, bool)
                or not isinstance(number, int | float | np.number)
                or not 0 <= number < math.inf
            ):
                raise InvalidValue(
                    f"sources[{place}][1]: expected a share of 0 or more, or an rc.Linear of "
                    f"such, got {shown(share)}"
                )
    if not any(
        max(share.start, share.end) > 0 if isinstance(share, Linear) else share > 0
        for _, share in pairs
    ):
        raise InvalidValue("sources: expected at least one share above 0")
    return tuple(buffer for buffer, _ in pairs), tuple(share for _, share in pairs)

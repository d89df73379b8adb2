"""The table's half of `storage.base.Sharing`: what a storage that processes share may ask of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

from recollect.base.clock import Clock
from recollect.data.schema import Schema
from recollect.storage.base import Tallies
from recollect.table.counts import TableCounts
from recollect.table.effects import Effects
from recollect.table.waiting import Gate


class TableSharing:
    """Lets a storage load a table's counts, and tell it what other processes did."""

    def __init__(
        self,
        clock: Clock,
        counts: TableCounts,
        gate: Gate,
        effects: Effects,
        lock: Callable[[], AbstractContextManager[Any]],
        adopt: Callable[[Schema, Schema | None], None],
    ) -> None:
        self.clock = clock
        self.adopt = adopt
        self._counts, self._gate, self._effects, self._lock = counts, gate, effects, lock

    def load(self, tallies: Tallies) -> None:
        self._counts.restore(asdict(tallies))

    def tallies(self) -> Tallies:
        gate = self._gate
        return Tallies(
            **self._counts.capture(),
            arrivals=gate.arrivals.count,
            departures=gate.departures.count,
            alarms=gate.alarms,
        )

    def committed(self) -> None:
        self._effects.release()

    def dropped(self) -> None:
        self._effects.drop()

    def waiting(self) -> bool:
        return bool(self._gate.arrivals.waiters or self._gate.departures.waiters)

    def changed(self, arrivals: int, departures: int, everybody: bool) -> None:
        with self._lock():
            if everybody:
                self._gate.wake_all()
            if arrivals:
                self._gate.arrivals.changed(arrivals)
            if departures:
                self._gate.departures.changed(departures)

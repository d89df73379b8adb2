"""The table's half of `storage.base.Sharing`: what a storage that processes share may ask of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.base.clock import Clock
from recollect.data.schema import Schema
from recollect.storage.base import Tallies

if TYPE_CHECKING:
    from recollect.table.table import Table


class TableSharing:
    """Lets a storage load a table's counts, and tell it what other processes did."""

    def __init__(self, table: Table) -> None:
        self._table = table

    @property
    def clock(self) -> Clock:
        return self._table._clock

    def load(self, tallies: Tallies) -> None:
        table = self._table
        counts = table._counts
        counts.inserts, counts.samples = tallies.inserts, tallies.samples
        counts.removals = tallies.removals
        table._sample_calls = tallies.sample_calls
        table._removed = dict(tallies.removed)

    def tallies(self) -> Tallies:
        table = self._table
        counts, gate = table._counts, table._gate
        return Tallies(
            counts.inserts,
            counts.samples,
            counts.removals,
            table._sample_calls,
            dict(table._removed),
            gate.arrivals.count,
            gate.departures.count,
            gate.alarms,
        )

    def adopt(self, rows: Schema, shared: Schema | None) -> None:
        self._table._schema, self._table._shared_schema = rows, shared

    def committed(self) -> None:
        self._table._effects.release()

    def dropped(self) -> None:
        self._table._effects.drop()

    def waiting(self) -> bool:
        gate = self._table._gate
        return bool(gate.arrivals.waiters or gate.departures.waiters)

    def changed(self, arrivals: int, departures: int, everybody: bool) -> None:
        table = self._table
        with table._lock():
            if everybody:
                table._gate.wake_all()
            if arrivals:
                table._gate.arrivals.changed(arrivals)
            if departures:
                table._gate.departures.changed(departures)

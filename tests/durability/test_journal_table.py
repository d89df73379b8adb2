"""A table that is made again from its journal is the table that wrote it, whatever was called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from journal_state import flushed_copy, table_state
from test_snapshot import SELECTORS

import recollect as rc

TAGS = {"score": float, "kind": str, "level": int, "hard": bool}


def make(journal: Any, sampler: str, remover: str, **options: Any) -> rc.Table:
    return rc.Table(
        "t",
        sampler=SELECTORS[sampler](),
        remover=SELECTORS[remover](),
        tags=TAGS,
        partition_by=("task",),
        journal=journal,
        **{"capacity": 40, "seed": 3, **options},
    )


class Caller:
    """Calls a table at random, in every way there is."""

    def __init__(self, table: rc.Table, seed: int, *, wide: bool = True) -> None:
        self.table, self.rng, self.wide = table, np.random.default_rng(seed), wide
        self.leases: list[Any] = []
        self.added = False
        self.clock = table.core.clock

    def call(self) -> None:
        table, rng = self.table, self.rng
        n = int(rng.integers(1, 4))
        choice = rng.random()
        if choice < 0.35 or not len(table):
            self.insert(int(rng.integers(1, 5)))
        elif choice < 0.5:
            where = [None, rc.field("task") == "math", rc.field("score") > 0.5][rng.integers(0, 3)]
            if table.count(where) >= n:
                self.quietly(lambda: table.sample(n, where=where, replace=n > 1, timeout=0))
        elif choice < 0.62:
            keys = self.some(n)
            self.update(keys)
        elif choice < 0.72:
            lease = [None, 60.0, 5.0][rng.integers(0, 3)]
            found = self.quietly(lambda: table.take(n, lease=lease, timeout=0, owner="a"))
            if found is not None and lease is not None:
                self.leases.append(found.info.lease)
        elif choice < 0.82:
            self.settle()
        elif choice < 0.9:
            table.delete(self.some(n))
        elif choice < 0.95:
            self.amend(self.some(n))
        elif choice < 0.98:
            self.clock.advance(float(rng.integers(0, 8)))  # type: ignore[attr-defined]
            table.count()
        elif choice < 0.985:
            table.clear()
        elif not self.added and "late" not in table.columns and table.columns:
            table.add_column("late", "int16", (2,))

    def quietly(self, call: Any) -> Any:
        try:
            return call()
        except rc.WaitTimeout:
            return None

    def some(self, n: int) -> Any:
        keys = np.array(sorted(self.table.counts("key")), np.uint64)
        if not keys.size:
            return keys
        found = self.rng.choice(keys, min(n, keys.size), replace=False)
        return np.concatenate([found, [np.uint64(7)]])  # one that is not there

    def insert(self, n: int) -> None:
        rng = self.rng
        rows = rng.integers(1, 4, n) if self.wide else np.ones(n, np.int64)
        rows[0] += self.wide and not self.table.columns
        total = int(rows.sum())
        columns: dict[str, Any] = {"x": rng.random((total, 3)).astype(np.float32)}
        shared = None
        if self.wide:
            cells = [rng.integers(0, 9, int(k)) for k in rng.integers(0, 5, total)]
            columns["tokens"] = rc.Ragged.from_list(cells, np.int64)
            columns["ref"] = [None if rng.random() < 0.5 else rng.random() for _ in range(total)]
            if not self.table.columns:
                columns["ref"][:2] = [None, 0.5]  # the first insert tells the type
            columns["name"] = [f"row {k}" for k in range(total)]
            shared = {"prompt": [f"p{k}" for k in rng.integers(0, 99, n)]}
        given: dict[str, Any] = {}
        if rng.random() < 0.6:
            given["priority"] = np.where(rng.random(n) < 0.2, 0.0, rng.random(n))
        if rng.random() < 0.3:
            given["request"] = ("actor", int(rng.integers(0, 20)))
        keys = self.quietly(
            lambda: self.table.insert(
                columns,
                shared=shared,
                rows_per_item=rows,
                version=rng.integers(0, 9, n),
                task=[["math", "code", None][k] for k in rng.integers(0, 3, n)],
                score=[None if rng.random() < 0.3 else rng.random() for _ in range(n)],
                kind="a" if rng.random() < 0.5 else None,
                level=[None if rng.random() < 0.3 else 7 for _ in range(n)],
                hard=[None, True, False][int(rng.integers(0, 3))],
                timeout=0,
                **given,
            )
        )
        if keys is not None:  # what a caller does to its arrays later is not journaled
            columns["x"][:] = -1
            if "priority" in given:
                given["priority"][:] = 9

    def update(self, keys: Any) -> None:
        rng, n = self.rng, len(keys)
        if not n:
            return
        choice = rng.integers(0, 4)
        if choice == 0:
            self.table.update(keys, priority=rng.random(n))
        elif choice == 1:
            self.table.update(keys, priority=0.5, task="code", version=3)
        elif choice == 2:
            self.table.update(keys, score=[None, *rng.random(n - 1)], kind=["b"] * n)
        else:
            self.table.update(keys, level=rng.integers(0, 9, n), hard=None)

    def settle(self) -> None:
        if not self.leases:
            return
        lease = self.leases.pop(int(self.rng.integers(0, len(self.leases))))
        try:
            if self.rng.random() < 0.5:
                self.table.confirm(lease)
            else:
                self.table.give_back(lease)
        except rc.LeaseExpired:
            pass
        if self.rng.random() < 0.1:
            self.table.release("a")

    def amend(self, keys: Any) -> None:
        if not self.wide or not len(keys):
            return
        found = self.table.core.storage.find(keys, None, visible=False)
        batch = self.table.get(found)
        absent = ~batch.present["ref"]
        cells = [float(k) if gone else None for k, gone in enumerate(absent)]
        self.table.amend(found, {"ref": cells})


def same(table: rc.Table, again: rc.Table) -> None:
    assert table_state(again, after_restart=False) == table_state(table, after_restart=True)


@pytest.mark.parametrize("remover", ["fifo", "smallest", "uniform"])
@pytest.mark.parametrize("sampler", SELECTORS)
def test_replay_equals_the_live_table_for_random_calls(
    sampler: str, remover: str, tmp_path: Path
) -> None:
    options = {
        "max_times_sampled": 4 if remover == "fifo" else 0,
        "capacity_bytes": 3000 if remover == "smallest" else None,
    }
    seed = list(SELECTORS).index(sampler) * 7 + len(remover)
    clock = rc.ManualClock()
    journal = rc.Journal(tmp_path / "j", sync="off", interval=1e9)
    table = make(journal, sampler, remover, clock=clock, **options)
    caller = Caller(table, seed)
    for part in range(3):
        for _ in range(40):
            caller.call()
        copy = flushed_copy(table, tmp_path / f"copy-{part}")
        again = make(rc.Journal(copy, sync="off"), sampler, remover, clock=clock, **options)
        same(table, again)
        again.close()
    table.close()

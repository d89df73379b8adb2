"""A table and its model side by side: every verb is done to both, and the results compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from recollect.base.clock import ManualClock
from recollect.data.batch import Batch
from recollect.data.ragged import Ragged
from recollect.data.schema import Column
from recollect.errors import InvalidValue, RecollectError
from recollect.rules.limiters import MinSize
from recollect.rules.selectors import Fifo, Uniform, ages
from recollect.storage.base import Storage
from recollect.table.effects import Effect, Inserted, Removed
from recollect.table.table import Table
from recollect.testing.cases import TAGS
from recollect.testing.model import BLOCKED, GO, NEVER, Item, Model, Predicate, size_of

RULES: dict[str, Any] = {
    "capacity": 40,
    "capacity_bytes": None,
    "sampler": Uniform(),
    "remover": Fifo(),
    "limiter": MinSize(1),
    "max_times_sampled": 0,
}


class Followed:
    """Follows effects, and knows which keys are in the table by them alone."""

    def __init__(self) -> None:
        self.keys: set[int] = set()
        self.number = 0

    def follow(self, effect: Effect) -> None:
        assert effect.number > self.number, "effects are numbered upwards"
        self.number = effect.number
        keys = set(effect.keys.tolist())
        if isinstance(effect, Inserted):
            assert not keys & self.keys
            self.keys |= keys
        elif isinstance(effect, Removed):
            assert keys <= self.keys
            self.keys -= keys
            effect.items.read()

    def settle(self, number: int) -> None:
        assert number <= self.number


class Pair:
    """One table on a storage, its model, and verbs on both."""

    def __init__(
        self,
        storage: Storage,
        columns: dict[str, Column],
        shared: dict[str, Column],
        *,
        partition_by: tuple[str, ...] = (),
        seed: int = 0,
        signature: bool = True,
        follow: bool = False,
        **rules: Any,
    ) -> None:
        rules = {**RULES, **rules}
        self.calls: list[str] = []
        self.clock = ManualClock(100.0)
        self.held: list[tuple[Batch, Batch]] = []
        self.past_keys: list[int] = []
        self.partition_by = partition_by
        self.say(f"Table({rules}, partition_by={partition_by}, shared={list(shared)})")
        self.table = Table(
            "t",
            **rules,
            tags=TAGS,
            partition_by=partition_by,
            signature={**columns, **shared} if signature else None,
            seed=seed,
            clock=self.clock,
            storage=storage,
        )
        self.model = Model(**rules, columns=dict(columns), shared_columns=shared, tags=tuple(TAGS))
        self.model.now = 100.0
        self.followed = Followed() if follow else None
        if self.followed is not None:
            self.table.follow(self.followed)

    def say(self, text: str) -> None:
        """Note a call, for the message of a failure."""
        self.calls.append(text)

    def attempt(self, expected: Any, call: Callable[[], Any]) -> Any:
        """Make a call that must go, or must raise what is expected; returns None then."""
        if expected is GO:
            return call()
        with pytest.raises(expected):
            call()
        return None

    # -- inserting --------------------------------------------------------------------------------
    def item(self, rows: list[dict[str, Any]], shared: dict[str, Any]) -> Item:
        """An item to insert, of cells by row; None stands for an absent one."""
        item = Item(0, 0, rows, shared, {}, self.clock.time())
        self.model.measure(item)
        return item

    def given(
        self, columns: dict[str, Column], cells: list[dict[str, Any]], *, leave_out: bool = False
    ) -> dict[str, Any]:
        """Cells as a caller gives them; an optional column without any may be left out."""
        given: dict[str, Any] = {}
        for name, column in columns.items():
            column_cells = [c[name] for c in cells]
            if column.optional and leave_out and all(cell is None for cell in column_cells):
                continue
            plain = not column.ragged and not column.optional
            given[name] = np.array(column_cells, column.dtype) if plain else column_cells
        return given

    def insert(
        self,
        items: list[Item],
        *,
        priority: Any = None,
        request: Any = None,
        per_item: Any = None,
        leave_out: bool = False,
        **fields: Any,
    ) -> None:
        """Insert items; each field is one value, or a list with one per item."""
        model = self.model
        highest = max((i.fields["priority"] for i in model.items), default=1.0)
        for place, item in enumerate(items):
            item.fields = dict.fromkeys(["task", "status", "version", *TAGS])
            for name, value in fields.items():
                item.fields[name] = value[place] if isinstance(value, list) else value
            item.fields["priority"] = (
                highest if priority is None
                else priority[place] if isinstance(priority, list)
                else priority
            )  # fmt: skip
        per_item = [len(i.rows) for i in items] if per_item is None else per_item
        columns = self.given(model.columns, [r for i in items for r in i.rows], leave_out=leave_out)
        shared = self.given(model.shared_columns, [i.shared for i in items], leave_out=leave_out)
        expected = model.insert_outcome(items)
        if ages(model.sampler, model.remover) and any(i.fields["version"] is None for i in items):
            expected = InvalidValue
        self.say(
            f"insert {len(items)} rows={per_item} priority={priority} {fields} {request} "
            f"-> {expected}"
        )
        keys = self.attempt(
            expected,
            lambda: self.table.insert(
                columns,
                shared=shared or None,
                rows_per_item=per_item,
                priority=priority,
                request=request,
                timeout=0,
                **fields,
            ),
        )
        if keys is None:
            return
        assert len(set(keys.tolist())) == len(items), "every item has a key of its own"
        assert not set(keys.tolist()) & set(self.past_keys), "a key is never used again"
        self.past_keys += keys.tolist()
        for item, key in zip(items, keys.tolist(), strict=True):
            item.key = key
        model.insert(items, set(self.table.counts("key")))
        if request is not None:
            model.requests[request] = keys.tolist()

    # -- sampling and taking ----------------------------------------------------------------------
    def sample(
        self, n: int, query: Any = None, holds: Predicate | None = None, replace: bool = True
    ) -> None:
        model = self.model
        expected = model.sample_outcome(n, holds, replace)
        self.say(f"sample {n} replace={replace} -> {expected}")

        def call() -> Batch:
            return self.table.sample(n, where=query, replace=replace, timeout=0)

        batch = self.attempt(expected, call)
        if batch is not None:
            model.check_batch(batch, model.sample(n, holds, replace, batch.info))
            self.hold(batch)

    def take(
        self,
        n: int,
        query: Any = None,
        holds: Predicate | None = None,
        *,
        lease: float | None = None,
        partial: bool = False,
        owner: str = "",
    ) -> Any:
        """Take items; returns the lease, where there is one."""
        model = self.model
        count = model.take_count(n, holds, partial)
        self.say(f"take {n} lease={lease} partial={partial} owner={owner!r} -> {count}")
        batch = self.attempt(
            count if count in (NEVER, BLOCKED) else GO,
            lambda: self.table.take(
                n, where=query, timeout=0, lease=lease, partial=partial, owner=owner
            ),
        )
        if batch is None:
            return None
        items = model.take(count, holds, batch.info)
        model.check_batch(batch, items)
        held = batch.info.lease
        if lease is None:
            assert held is None
            model.remove(items)
        else:
            model.lease(held, items, owner, model.now + lease)
        self.hold(batch)
        return held

    def confirm(self, lease: int) -> None:
        self.say(f"confirm {lease}")
        self.table.confirm(lease)
        self.model.confirm(lease)

    def give_back(self, lease: int) -> None:
        self.say(f"give_back {lease}")
        self.table.give_back(lease)
        self.model.give_back(lease)

    def renew(self, lease: int, seconds: float) -> None:
        self.say(f"renew {lease}")
        assert self.table.renew(lease, seconds).deadline == self.model.now + seconds
        self.model.leases[lease].deadline = self.model.now + seconds

    def release(self, owner: str) -> None:
        self.say(f"release {owner!r}")
        mine = [k for k, held in self.model.leases.items() if held.owner == owner]
        assert self.table.release(owner) == len(mine)
        for lease in mine:
            self.model.give_back(lease)

    def advance(self, seconds: float) -> None:
        self.say(f"advance {seconds}")
        self.clock.advance(seconds)
        self.model.pass_time(self.model.now + seconds)

    # -- changing ---------------------------------------------------------------------------------
    def update(self, keys: Sequence[int], **fields: Any) -> None:
        self.say(f"update {list(keys)} {fields}")
        found = self.table.update(np.array(keys, np.uint64), **fields)
        assert found.tolist() == [self.model.find(key) is not None for key in keys]
        for place, key in enumerate(keys):
            item = self.model.find(key)
            if item is not None:
                for name, value in fields.items():
                    item.fields[name] = value[place] if isinstance(value, list) else value

    def delete(
        self, keys: Sequence[int] | None, query: Any = None, holds: Predicate | None = None
    ) -> None:
        self.say(f"delete {keys}")
        gone = [i for i in self.model.visible(holds) if keys is None or i.key in keys]
        named = None if keys is None else np.array(keys, np.uint64)
        assert self.table.delete(named, query) == len(gone)
        self.model.remove(gone)

    def amend(
        self,
        items: list[Item],
        filling: list[dict[str, Any]],
        gone: Sequence[int] = (),
    ) -> None:
        """Fill cells of all rows of some items; `gone` are keys of items that have left."""
        model = self.model
        names = list(filling[0])
        stored = [row for item in items for row in item.rows]
        clash = any(
            old[n] is not None and new[n] is not None
            for old, new in zip(stored, filling, strict=True)
            for n in names
        )
        coming = sum(size_of(model.columns[n], new[n]) for new in filling for n in names)
        keys = [*(i.key for i in items), *gone]
        per_item = [*(len(i.rows) for i in items), *(1 for _ in gone)]
        columns = {n: [*(new[n] for new in filling), *(None for _ in gone)] for n in names}
        fits = model.amend_fits(items, coming)
        self.say(f"amend {keys} {columns} clash={clash} fits={fits}")

        def call() -> Any:
            return self.table.amend(
                np.array(keys, np.uint64), columns, rows_per_item=np.array(per_item)
            )

        if clash or not fits:
            with pytest.raises(RecollectError):
                call()
            return
        assert call().tolist() == [model.find(key) is not None for key in keys]
        model.evict(0, coming, set(self.table.counts("key")), items)
        for old, new in zip(stored, filling, strict=True):
            old.update({n: cell for n, cell in new.items() if cell is not None})
        for item in items:
            model.measure(item)

    def add_column(self, name: str, column: Column) -> None:
        self.say(f"add_column {name} {column}")
        ragged = {"ragged": True} if column.ragged and column.kind == "array" else {}
        self.table.add_column(name, column.dtype, column.shape, **ragged)
        self.model.columns[name] = column
        for item in self.model.items:
            for row in item.rows:
                row[name] = None

    def set_rule(self, which: str, rule: Any) -> None:
        """Change the sampler, the remover or the limiter."""
        self.say(f"{which} = {rule}")
        unaged = any(i.fields["version"] is None for i in self.model.items)
        if which != "limiter" and ages(rule) and unaged:
            with pytest.raises(InvalidValue):
                setattr(self.table, which, rule)
            return
        setattr(self.table, which, rule)
        setattr(self.model, which, rule)

    def clear(self) -> None:
        self.say("clear")
        self.table.clear()
        self.model.clear()

    # -- looking ----------------------------------------------------------------------------------
    def count(self, query: Any, holds: Predicate | None) -> None:
        found = [i for i in self.model.items if holds is None or holds(i)]
        assert self.table.count(query) == len(found), f"count({query})"

    def counts(self, *fields: str) -> None:
        expected: dict[Any, int] = {}
        for item in self.model.items:
            key = tuple(item.value(name) for name in fields)
            single = key if len(fields) > 1 else key[0]
            expected[single] = expected.get(single, 0) + 1
        assert self.table.counts(*fields) == expected, fields

    def hold(self, batch: Batch) -> None:
        """Keep a batch and a copy of it, to see later whether somebody wrote into it."""
        if len(self.held) < 5:
            copy = Batch.from_arrow(batch.to_arrow())
            columns = {n: _copied(c) for n, c in copy.columns.items()}
            shared = {n: _copied(c) for n, c in copy.shared.columns.items()}
            copy = Batch._make(columns, copy.info, shared, copy.present, copy.shared.present)
            copy.info.__dict__["keys"] = copy.info.keys.copy()
            copy.info.__dict__["times_sampled"] = copy.info.times_sampled.copy()
            self.held.append((batch, copy))

    def check_held(self) -> None:
        for batch, copy in self.held:
            assert batch.equals(copy), "a batch changed after it was returned"
            for name in ("keys", "times_sampled"):
                was, now = getattr(copy.info, name), getattr(batch.info, name)
                assert now.tolist() == was.tolist(), f"info.{name} changed after it was returned"
        self.held.clear()

    def compare(self) -> None:
        """Everything in the table is as the model has it."""
        model, table = self.model, self.table
        stats = table.stats()
        assert stats["size"] == len(table) == len(model.items)
        assert stats["nbytes"] == model.nbytes
        assert stats["size"] <= model.capacity
        assert model.capacity_bytes is None or stats["nbytes"] <= model.capacity_bytes
        assert (stats["inserts"], stats["samples"], stats["removals"]) == (
            model.inserts,
            model.samples,
            model.removals,
        )
        assert stats["leases"] == len(model.leases)
        assert stats["leased"] == sum(len(held.items) for held in model.leases.values())
        if model.inserts:
            keys = np.array([item.key for item in model.items], np.uint64)
            batch = table.get(keys)
            model.check_batch(batch, model.items)
            assert batch.info.times_sampled.tolist() == [i.times_sampled for i in model.items]
        if self.followed is not None:
            assert self.followed.keys == {item.key for item in model.items}

    @contextmanager
    def explaining(self, about: str) -> Iterator[None]:
        """Let a failure inside show what it is about, and the last calls."""
        try:
            yield
        except BaseException as error:
            error.add_note(f"{about}\n" + "\n".join(self.calls[:1] + self.calls[1:][-40:]))
            raise


def _copied(column: Any) -> Any:
    if isinstance(column, Ragged):
        return Ragged._make(column.values.copy(), column.offsets.copy(), column.kind)
    return column.copy()

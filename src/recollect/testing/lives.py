"""Random lives of a table: calls chosen by chance, done to a table and to a plain list."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from recollect.data.schema import Column
from recollect.errors import LeaseExpired, RecollectError
from recollect.rules.limiters import Limiter, MinSize, Queue, SampleToInsertRatio, Stack
from recollect.rules.query import Query, field
from recollect.rules.selectors import Selector, ages
from recollect.storage.base import Storage
from recollect.testing.cases import (
    CHANCES,
    MIXTURES,
    OPTIONAL_SHARED,
    ORDERS,
    PLAIN,
    PRIORITIES,
    RICH,
    SHARED,
    STATUSES,
    TAG_VALUES,
    TAGS,
    TASKS,
)
from recollect.testing.model import Item, Predicate
from recollect.testing.pair import Pair

PARTITIONS: list[tuple[str, ...]] = [
    (), ("task",), ("task", "status"), ("version",), ("level", "hard"), ("score", "kind"),
]  # fmt: skip


def live(seed: int, steps: int, storage: Storage, capacities: Sequence[int] = ()) -> None:
    """Let a table live for some steps; a failure shows the seed and the last calls."""
    life = RandomLife(seed, storage, capacities)
    with life.pair.explaining(f"seed {seed}"):
        life.run(steps)


def choose_selector(rng: random.Random) -> Selector:
    return rng.choice(rng.choice([ORDERS, ORDERS, CHANCES, MIXTURES]))


def choose_limiter(rng: random.Random, capacity: int) -> Limiter:
    match rng.randrange(6):
        case 0:
            size = rng.randint(1, capacity)
            return rng.choice([Queue, Stack])(size)
        case 1:
            ratio = rng.choice([0.5, 1, 2, 1.5])
            return SampleToInsertRatio(ratio, rng.randint(1, min(3, capacity)), 6)
        case 2:
            return SampleToInsertRatio(1.0, 1, (-4.0, 8.0))
    return MinSize(rng.randint(0, min(3, capacity)))


class RandomLife:
    """One table with random rules, and random calls on it."""

    def __init__(self, seed: int, storage: Storage, capacities: Sequence[int] = ()) -> None:
        rng = self.rng = random.Random(seed)
        self.serial = 0
        capacity = rng.choice(list(capacities) or [1, 2, 3, 5, 8, 8, 20, 40, 300])
        rich = rng.random() < 0.7
        shared: dict[str, Column] = rng.choice([{}, SHARED, OPTIONAL_SHARED]) if rich else {}
        per_item = 60 if rich else 8
        bound = None if rng.random() < 0.6 else max(150, capacity * per_item // 2)
        self.pair = Pair(
            storage,
            RICH if rich else PLAIN,
            shared,
            capacity=capacity,
            capacity_bytes=bound,
            sampler=choose_selector(rng),
            remover=choose_selector(rng),
            limiter=choose_limiter(rng, capacity) if rng.random() < 0.6 else MinSize(1),
            max_times_sampled=rng.choice([0, 0, 1, 2, 3]),
            partition_by=rng.choice(PARTITIONS),
            signature=rich,
            follow=rng.random() < 0.3,
            seed=seed,
        )
        self.model, self.table = self.pair.model, self.pair.table

    def run(self, steps: int) -> None:
        verbs: dict[Callable[[], None], int] = {
            self.insert: 30,
            self.sample: 20,
            self.take: 12,
            self.update: 12,
            self.settle_lease: 8,
            self.delete: 4,
            self.amend: 5,
            self.advance: 5,
            self.change_rules: 3,
            self.look: 5,
            self.refused: 4,
            self.add_column: 1,
            self.clear: 1,
        }
        for _ in range(steps):
            verb = self.rng.choices(list(verbs), list(verbs.values()))[0]
            verb()
            self.pair.compare()
        self.pair.check_held()

    # -- what calls are given ---------------------------------------------------------------------
    def cell(self, column: Column, serial: int) -> Any:
        rng = self.rng
        if column.optional and rng.random() < 0.5:
            return None
        if column.kind == "str":
            return f"é{serial}," * rng.randint(0, 2)
        if column.ragged:
            return np.arange(serial, serial + rng.randint(0, 3)).astype(column.dtype)
        value = np.full(column.shape, serial % 251).astype(column.dtype)
        if column.dtype == np.float32 and column.shape:
            value += np.arange(column.shape[0], dtype=np.float32) / 4
        return serial if column.shape == () and column.dtype == np.int64 else value

    def new_items(self, count: int) -> list[Item]:
        rng, model = self.rng, self.model
        most = 1 if model.columns.keys() == PLAIN.keys() and rng.random() < 0.5 else 3
        same = rng.randint(1, most) if rng.random() < 0.4 else None
        items = []
        for _ in range(count):
            cells = []
            for _ in range(same or rng.randint(1, most)):
                self.serial += 1
                cells.append({n: self.cell(c, self.serial) for n, c in model.columns.items()})
            shared = {n: self.cell(c, self.serial) for n, c in model.shared_columns.items()}
            items.append(self.pair.item(cells, shared))
        return items

    def fields(self, count: int, names: tuple[str, ...]) -> dict[str, Any]:
        """Values of fields: one for all, or one per item."""
        rng = self.rng
        given: dict[str, Any] = {}
        for name in names:
            choices = self.values(name)
            if name == "version" and ages(self.model.sampler, self.model.remover):
                choices = tuple(v for v in choices if v is not None)
            if rng.random() < 0.4:
                given[name] = rng.choice(choices)
            else:
                given[name] = [rng.choice(choices) for _ in range(count)]
        return given

    def values(self, name: str) -> tuple[Any, ...]:
        versions = (0, 1, 2, 3, len(self.pair.calls) // 4, None)
        return {"task": TASKS, "status": STATUSES, "version": versions, **TAG_VALUES}[name]

    def some(self, names: list[str], at_least: int = 0) -> tuple[str, ...]:
        return tuple(self.rng.sample(names, self.rng.randint(at_least, min(4, len(names)))))

    def query(self) -> tuple[Any, Predicate | None]:
        """A query, and what it says of an item of the model."""
        rng, by = self.rng, self.pair.partition_by
        if rng.random() < 0.45:
            return None, None
        parts = []
        if by and rng.random() < 0.6:
            parts = [self.equality(name) for name in rng.sample(by, rng.randint(1, len(by)))]
        if not parts or rng.random() < 0.3:
            parts.append(self.condition())
        query, holds = parts[0]
        for other, also in parts[1:]:
            query = query & other
            holds = _both(holds, also)
        if rng.random() < 0.15:
            query = ~query
            holds = _not(holds)
        self.pair.say(f"  where {query}")
        return query, holds

    def equality(self, name: str) -> tuple[Query, Predicate]:
        rng = self.rng
        choices = self.values(name)
        values = [v for v in choices if v is not None]
        if rng.random() < 0.3:
            some = rng.sample(values, rng.randint(0, len(values)))
            return field(name).isin(some), lambda item: item.value(name) in some
        value = rng.choice(choices)
        return field(name) == value, lambda item: item.value(name) == value

    def condition(self) -> tuple[Query, Predicate]:
        rng = self.rng
        match rng.randrange(7):
            case 0:
                return self.equality(rng.choice(["task", "status", "kind", "hard", "level"]))
            case 1:
                low = rng.choice([0.0, 0.2, 1.0])
                return field("priority") > low, lambda i: i.value("priority") > low
            case 2:
                most = rng.randint(0, 3)
                return field("times_sampled") <= most, lambda i: i.times_sampled <= most
            case 3:
                version = rng.randint(0, 4)
                return (
                    field("version") < version,
                    lambda i: i.value("version") is not None and i.value("version") < version,
                )
            case 4:
                return (
                    field("score").between(0, 1) | (field("level") >= 1),
                    lambda i: (
                        (i.value("score") is not None and 0 <= i.value("score") <= 1)
                        or (i.value("level") is not None and i.value("level") >= 1)
                    ),
                )
            case 5:
                key = rng.choice(self.model.items).key if self.model.items else 3
                return field("key") != key, lambda i: i.key != key
        size = rng.randint(0, 60)
        return (field("nbytes") > size) & (field("rows") >= 1), lambda i: i.nbytes > size

    def keys(self) -> list[int]:
        """Keys of stored items, now and then with duplicates and with ones that have gone."""
        rng, past = self.rng, self.pair.past_keys
        keys = [i.key for i in self.model.items]
        keys = rng.sample(keys, rng.randint(0, min(len(keys), 6)))
        if keys and rng.random() < 0.3:
            keys += rng.choices(keys, k=2)
        if rng.random() < 0.3:
            keys += rng.choices(past, k=2) if past else [5]
            rng.shuffle(keys)
        return keys

    # -- verbs ------------------------------------------------------------------------------------
    def insert(self) -> None:
        rng, model = self.rng, self.model
        if rng.random() < 0.05 and model.requests:
            return self.repeat_request()
        count = rng.choice([1, 1, 1, 2, 3, 4, min(model.capacity, 9), model.capacity // 2 + 1])
        items = self.new_items(count)
        names = self.some(["task", "status", "version", *TAGS])
        aging = ages(model.sampler, model.remover)
        if aging and "version" not in names and rng.random() < 0.9:
            names = ("version", *names)
        fields = self.fields(count, names)
        priority: Any = None
        if rng.random() < 0.7:
            priority = [rng.choice(PRIORITIES) for _ in items]
            priority = priority[0] if rng.random() < 0.4 else priority
        per_item: Any = [len(i.rows) for i in items]
        if len(set(per_item)) == 1 and rng.random() < 0.7:
            per_item = per_item[0]
        request = (rng.choice(["p", 7]), len(self.pair.calls)) if rng.random() < 0.2 else None
        self.pair.insert(
            items,
            priority=priority,
            request=request,
            per_item=per_item,
            leave_out=bool(self.serial % 2),
            **fields,
        )
        return None

    def repeat_request(self) -> None:
        request, keys = self.rng.choice(list(self.model.requests.items()))
        self.pair.say(f"repeat request {request}")
        items = self.new_items(1)
        shared = self.pair.given(self.model.shared_columns, [i.shared for i in items])
        again = self.table.insert(
            self.pair.given(self.model.columns, items[0].rows),
            shared=shared or None,
            rows_per_item=len(items[0].rows),
            request=request,
            timeout=0,
            version=1,
        )
        assert again.tolist() == keys

    def sample(self) -> None:
        query, holds = self.query()
        n = self.rng.choice([1, 1, 2, 3, 5, 9, self.model.capacity])
        self.pair.sample(n, query, holds, self.rng.random() < 0.6)

    def take(self) -> None:
        rng = self.rng
        query, holds = self.query()
        self.pair.take(
            rng.choice([1, 1, 2, 3, 5, self.model.capacity + 1]),
            query,
            holds,
            partial=rng.random() < 0.4,
            lease=rng.choice([None, None, 1.0, 3.0, 10.0, float("inf")]),
            owner=rng.choice(["", "a", "b"]),
        )

    def settle_lease(self) -> None:
        rng, model, table = self.rng, self.model, self.table
        if not model.leases or rng.random() < 0.1:
            with pytest.raises(LeaseExpired):
                rng.choice([table.confirm, table.give_back])(999_999)
            return
        number = rng.choice(list(model.leases))
        match rng.randrange(5):
            case 0 | 1:
                self.pair.confirm(number)
            case 2:
                self.pair.give_back(number)
            case 3:
                self.pair.renew(number, 4.0)
            case 4:
                self.pair.release(model.leases[number].owner)

    def update(self) -> None:
        rng = self.rng
        keys = self.keys()
        names = self.some(["task", "status", "version", *TAGS], 0)
        fields = self.fields(len(keys), names)
        if not names or rng.random() < 0.4:
            fields["priority"] = (
                rng.choice(PRIORITIES) if rng.random() < 0.3
                else [rng.choice(PRIORITIES) for _ in keys]
            )  # fmt: skip
        self.pair.update(keys, **fields)

    def delete(self) -> None:
        rng = self.rng
        query, holds = self.query()
        keys = self.keys() if rng.random() < 0.6 or query is None else None
        if keys is None and len(self.model.visible(holds)) > 4 and rng.random() < 0.8:
            return
        self.pair.delete(keys, query, holds)

    def amend(self) -> None:
        rng, model = self.rng, self.model
        optional = [n for n, c in model.columns.items() if c.optional]
        if not optional or not model.items:
            return
        names = rng.sample(optional, rng.randint(1, len(optional)))
        items = rng.sample(model.items, rng.randint(1, min(3, len(model.items))))
        stored = [row for item in items for row in item.rows]
        filling = [
            {n: self.cell(model.columns[n], self.serial + k) for n in names}
            for k in range(len(stored))
        ]
        if rng.random() < 0.8:  # else a cell that is there already may be named, and refused
            for old, new in zip(stored, filling, strict=True):
                new.update({n: None for n in names if old[n] is not None})
        gone = [k for k in self.pair.past_keys if model.find(k) is None]
        self.pair.amend(items, filling, gone[:1] if rng.random() < 0.2 else ())

    def add_column(self) -> None:
        model = self.model
        if model.inserts and len(model.columns) <= 7:
            column = self.rng.choice([
                Column("float64", (2,), optional=True),
                Column("int16", ragged=True, optional=True),
                Column("str", optional=True),
            ])  # fmt: skip
            self.pair.add_column(f"more{len(model.columns)}", column)

    def advance(self) -> None:
        self.pair.advance(self.rng.choice([0.5, 1.0, 2.5]))
        if self.rng.random() < 0.3:
            len(self.table)

    def change_rules(self) -> None:
        rng = self.rng
        which = rng.choice(["limiter", "sampler", "remover"])
        rule: Any = choose_selector(rng)
        if which == "limiter":
            rule = choose_limiter(rng, self.model.capacity)
        self.pair.set_rule(which, rule)

    def clear(self) -> None:
        if self.rng.random() < 0.5:
            self.pair.clear()

    def look(self) -> None:
        query, holds = self.query()
        self.pair.say("look")
        self.pair.count(query, holds)
        names = self.some(["rows", "times_sampled", "inserted_at", "nbytes", *TAGS], 1)
        for fields in (("task",), ("task", "status"), ("version",), names):
            self.pair.counts(*fields)
        if self.model.items:
            name = self.rng.choice(list(self.model.columns))
            batch = self.table.get([self.model.items[-1].key], [name])
            assert list(batch.columns) == [name]

    def refused(self) -> None:
        """Wrong calls: they raise, and change nothing."""
        table, columns = self.table, self.model.columns
        items = self.new_items(2)
        given = self.pair.given(columns, [row for item in items for row in item.rows])
        shared = self.pair.given(self.model.shared_columns, [i.shared for i in items]) or None
        rows_per_item = [len(i.rows) for i in items]

        def insert(given: Any = given, **more: Any) -> None:
            options = {"shared": shared, "rows_per_item": rows_per_item, "version": 1, **more}
            table.insert(given, timeout=0, **options)

        self.pair.say("refused")
        calls: list[Callable[[], Any]] = [
            lambda: insert(priority=-1.0),
            lambda: insert(priority=float("nan")),
            lambda: insert(priority=[1.0, float("inf")]),
            lambda: insert(task=3),
            lambda: insert(unknown=3),
            lambda: insert(rows_per_item=[1, 99]),
            lambda: insert({**given, "unknown": given["x"]}),
            lambda: insert({**given, "x": given["x"].astype(np.float32)}),
            lambda: insert({**given, "x": given["x"][:1]} if len(columns) > 1 else {}),
            lambda: table.sample(0),
            lambda: table.sample(1, where=field("unknown") == 1),
            lambda: table.take(1, lease=-1.0),
            lambda: table.update([1], priority=[1.0, 2.0]),
            lambda: table.update([1], key=3),
            lambda: table.update([1], version=-3),
            lambda: table.get([12345]),
            lambda: table.delete(),
        ]
        if self.model.inserts == 0:  # the first insert may still name any columns
            calls = calls[:5] + calls[9:]
        with pytest.raises(RecollectError):
            self.rng.choice(calls)()


def _both(one: Predicate, other: Predicate) -> Predicate:
    return lambda item: one(item) and other(item)


def _not(holds: Predicate) -> Predicate:
    return lambda item: not holds(item)

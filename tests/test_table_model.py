"""Drives `rc.Table` and a plain list side by side, and compares everything after every step."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from table_model import BLOCKED, GO, NEVER, Item, Model, Predicate, size_of

import recollect as rc
from recollect.selectors import Ordered
from recollect.storage import items, rows

TASKS = ("math", "code", "chat", None)
STATUSES = ("done", "failed", None)
TAGS = {"score": float, "level": int, "hard": bool, "kind": str}
TAG_VALUES: dict[str, tuple[Any, ...]] = {
    "score": (0.0, -0.5, 0.25, 3.5, None),
    "level": (-2, 0, 1, 7, None),
    "hard": (True, False, None),
    "kind": ("a", "b", "", None),
}
PRIORITIES = (0.0, 0.1, 0.5, 1.0, 1.0, 2.0, 7.5)

PLAIN = {"x": rc.Column("int64")}
RICH = {
    "x": rc.Column("int64"),
    "obs": rc.Column("float32", (3,)),
    "tokens": rc.Column("int32", ragged=True),
    "text": rc.Column("str", optional=True),
    "image": rc.Column("uint8", (2,), optional=True),
}
SHARED = {"prompt": rc.Column("str", shared=True)}
OPTIONAL_SHARED = {"prompt": rc.Column("str", shared=True, optional=True)}

ORDERS = [
    rc.Fifo(),
    rc.Lifo(),
    rc.StalestFirst(),
    rc.FreshestFirst(),
    *(rc.Smallest(name) for name in ("priority", "version", "times_sampled", "score", "nbytes")),
    *(rc.Largest(name) for name in ("priority", "version", "level", "hard", "rows", "key")),
    rc.Smallest("inserted_at"),
    rc.Largest("inserted_at"),
    rc.Largest("times_sampled"),
    rc.Largest("seq"),
]
CHANCES = [
    rc.Uniform(),
    rc.Prioritized(),
    rc.Prioritized(alpha=1.0, beta=1.0, stratified=False, normalize=None),
    rc.Prioritized(alpha=0.0, beta=rc.Linear(0.4, 1.0, 10), normalize="table"),
    rc.Prioritized(alpha=2.0, normalize="table"),
    rc.Prioritized(alpha=1.0, half_life=2.0),
    rc.Prioritized(half_life=0.5, normalize="table", stratified=False),
]
MIXTURES = [
    rc.Mixed([(rc.Lifo(), 0.5), (rc.Uniform(), 0.5)]),
    rc.Mixed([(rc.Prioritized(), 0.7), (rc.Fifo(), 0.3)]),
    rc.Mixed([(rc.Smallest("priority"), 0.6), (rc.Largest("version"), 0.4)]),
    rc.Mixed([(rc.Uniform(), 1), (rc.Prioritized(alpha=1.0), 1), (rc.StalestFirst(), 1)]),
]


def choose_selector(rng: random.Random) -> rc.Selector:
    return rng.choice(rng.choice([ORDERS, ORDERS, CHANCES, MIXTURES]))


def choose_limiter(rng: random.Random, capacity: int) -> rc.Limiter:
    match rng.randrange(6):
        case 0:
            size = rng.randint(1, capacity)
            return rng.choice([rc.Queue, rc.Stack])(size)
        case 1:
            ratio = rng.choice([0.5, 1, 2, 1.5])
            return rc.SampleToInsertRatio(ratio, rng.randint(1, min(3, capacity)), 6)
        case 2:
            return rc.SampleToInsertRatio(1.0, 1, (-4.0, 8.0))
    return rc.MinSize(rng.randint(0, min(3, capacity)))


def parts_of(selector: rc.Selector) -> list[rc.Selector]:
    return [s for s, _ in selector.selectors] if isinstance(selector, rc.Mixed) else [selector]


def ages(*selectors: rc.Selector) -> bool:
    parts = [part for selector in selectors for part in parts_of(selector)]
    return any(isinstance(p, rc.Prioritized) and p.half_life is not None for p in parts)


class Followed:
    """Follows effects, and knows which keys are in the table by them alone."""

    def __init__(self) -> None:
        self.keys: set[int] = set()
        self.number = 0

    def follow(self, effect: Any) -> None:
        assert effect.number > self.number
        self.number = effect.number
        keys = set(effect.keys.tolist())
        if isinstance(effect, rc.Inserted):
            assert not keys & self.keys
            self.keys |= keys
        elif isinstance(effect, rc.Removed):
            assert keys <= self.keys
            self.keys -= keys
            effect.items.read()

    def settle(self, number: int) -> None:
        assert number <= self.number


class Driver:
    """One table, its model, and random calls on both."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.calls: list[str] = []
        self.clock = rc.ManualClock(100.0)
        self.serial = 0
        self.held: list[tuple[rc.Batch, rc.Batch]] = []
        self.past_keys: list[int] = []
        capacity = rng.choice([1, 2, 3, 5, 8, 8, 20, 40, 300])
        rich = rng.random() < 0.7
        columns = RICH if rich else PLAIN
        shared = rng.choice([{}, SHARED, OPTIONAL_SHARED]) if rich else {}
        per_item = 60 if rich else 8
        bound = None if rng.random() < 0.6 else max(150, capacity * per_item // 2)
        rules: dict[str, Any] = {
            "capacity": capacity,
            "capacity_bytes": bound,
            "sampler": choose_selector(rng),
            "remover": choose_selector(rng),
            "limiter": choose_limiter(rng, capacity) if rng.random() < 0.6 else rc.MinSize(1),
            "max_times_sampled": rng.choice([0, 0, 1, 2, 3]),
        }
        self.partition_by = rng.choice(
            [(), ("task",), ("task", "status"), ("version",), ("level", "hard"), ("score", "kind")]
        )
        self.say(f"Table({rules}, partition_by={self.partition_by}, shared={list(shared)})")
        self.table = rc.Table(
            "t",
            **rules,
            tags=TAGS,
            partition_by=self.partition_by,
            signature={**columns, **shared} if rich else None,
            seed=seed,
            clock=self.clock,
        )
        self.model = Model(**rules, columns=dict(columns), shared_columns=shared, tags=tuple(TAGS))
        self.model.now = 100.0
        self.followed = None
        if rng.random() < 0.3:
            self.followed = Followed()
            self.table.follow(self.followed)

    def say(self, text: str) -> None:
        self.calls.append(text)

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
            self.compare()
        for batch, copy in self.held:
            assert batch.equals(copy), "a batch changed after it was returned"
            assert batch.info.keys.tolist() == copy.info.keys.tolist()

    # -- what calls are given -------------------------------------------------------------------
    def cell(self, column: rc.Column, serial: int) -> Any:
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

    def given(self, columns: dict[str, rc.Column], cells: list[dict[str, Any]]) -> dict[str, Any]:
        """Cells as a caller gives them; an optional column without any may be left out."""
        columns = {
            name: column
            for name, column in columns.items()
            if not (column.optional and all(c[name] is None for c in cells) and self.serial % 2)
        }
        given: dict[str, Any] = {name: [c[name] for c in cells] for name in columns}
        for name, column in columns.items():
            if not column.ragged and not column.optional:
                given[name] = np.array(given[name], column.dtype)
        return given

    def fields(self, count: int | None, names: tuple[str, ...]) -> dict[str, Any]:
        """Values of fields: one for all (count None), or one per item."""
        rng = self.rng
        values: dict[str, Any] = {
            "task": TASKS,
            "status": STATUSES,
            "version": self.versions(),
            **TAG_VALUES,
        }
        given = {}
        for name in names:
            choices = values[name]
            if name == "version" and ages(self.model.sampler, self.model.remover):
                choices = tuple(v for v in choices if v is not None)
            if count is None or rng.random() < 0.4:
                given[name] = rng.choice(choices)
            else:
                given[name] = [rng.choice(choices) for _ in range(count)]
        return given

    def versions(self) -> tuple[int | None, ...]:
        return (0, 1, 2, 3, len(self.calls) // 4, None)

    def some(self, names: list[str], at_least: int = 0) -> tuple[str, ...]:
        return tuple(self.rng.sample(names, self.rng.randint(at_least, min(4, len(names)))))

    def query(self) -> tuple[Any, Predicate | None]:
        """A query, and what it says of an item of the model."""
        rng = self.rng
        if rng.random() < 0.45:
            return None, None
        parts = []
        if self.partition_by and rng.random() < 0.6:
            names = rng.sample(self.partition_by, rng.randint(1, len(self.partition_by)))
            parts = [self.equality(name) for name in names]
        if not parts or rng.random() < 0.3:
            parts.append(self.condition())
        query, holds = parts[0]
        for other, also in parts[1:]:
            query = query & other
            holds = (lambda a, b: lambda item: a(item) and b(item))(holds, also)
        if rng.random() < 0.15:
            query = ~query
            holds = (lambda a: lambda item: not a(item))(holds)
        self.say(f"  where {query}")
        return query, holds

    def equality(self, name: str) -> tuple[rc.Query, Predicate]:
        rng = self.rng
        choices = {"task": TASKS, "status": STATUSES, "version": self.versions(), **TAG_VALUES}
        values = [v for v in choices[name] if v is not None]
        if rng.random() < 0.3:
            some = rng.sample(values, rng.randint(0, len(values)))
            return rc.field(name).isin(some), lambda item: item.value(name) in some
        value = rng.choice(choices[name])
        return rc.field(name) == value, lambda item: item.value(name) == value

    def condition(self) -> tuple[rc.Query, Predicate]:
        rng = self.rng
        match rng.randrange(7):
            case 0:
                return self.equality(rng.choice(["task", "status", "kind", "hard", "level"]))
            case 1:
                low = rng.choice([0.0, 0.2, 1.0])
                return rc.field("priority") > low, lambda i: i.value("priority") > low
            case 2:
                most = rng.randint(0, 3)
                return rc.field("times_sampled") <= most, lambda i: i.times_sampled <= most
            case 3:
                version = rng.randint(0, 4)
                return (
                    rc.field("version") < version,
                    lambda i: i.value("version") is not None and i.value("version") < version,
                )
            case 4:
                return (
                    rc.field("score").between(0, 1) | (rc.field("level") >= 1),
                    lambda i: (
                        (i.value("score") is not None and 0 <= i.value("score") <= 1)
                        or (i.value("level") is not None and i.value("level") >= 1)
                    ),
                )
            case 5:
                key = rng.choice(self.model.items).key if self.model.items else 3
                return rc.field("key") != key, lambda i: i.key != key
        size = rng.randint(0, 60)
        return (
            (rc.field("nbytes") > size) & (rc.field("rows") >= 1),
            lambda i: i.nbytes > size,
        )

    def keys(self) -> list[int]:
        """Keys of stored items, now and then with duplicates and with ones that have gone."""
        rng = self.rng
        keys = [i.key for i in self.model.items]
        keys = rng.sample(keys, rng.randint(0, min(len(keys), 6)))
        if keys and rng.random() < 0.3:
            keys += rng.choices(keys, k=2)
        if rng.random() < 0.3:
            keys += rng.choices(self.past_keys, k=2) if self.past_keys else [5]
            rng.shuffle(keys)
        return keys

    def attempt(self, expected: Any, call: Callable[[], Any]) -> Any:
        """Make a call that must go, or must raise what is expected; returns None then."""
        if expected is GO:
            return call()
        with pytest.raises(expected):
            call()
        return None

    # -- verbs ----------------------------------------------------------------------------------
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
            item = Item(0, 0, cells, shared, {}, self.clock.time())
            model.measure(item)
            items.append(item)
        return items

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
        priority = None
        if rng.random() < 0.7:
            priority = [rng.choice(PRIORITIES) for _ in items]
            priority = priority[0] if rng.random() < 0.4 else priority
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
        per_item: Any = [len(i.rows) for i in items]
        if len(set(per_item)) == 1 and rng.random() < 0.7:
            per_item = per_item[0]
        request = (rng.choice(["p", 7]), len(self.calls)) if rng.random() < 0.2 else None
        columns = self.given(model.columns, [row for i in items for row in i.rows])
        shared = self.given(model.shared_columns, [i.shared for i in items])
        expected = model.insert_outcome(items)
        if aging and any(i.fields["version"] is None for i in items):
            expected = rc.InvalidValue
        self.say(
            f"insert {count} rows={per_item} priority={priority} {fields} {request} -> {expected}"
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
            return None
        assert len(set(keys.tolist())) == count
        assert not set(keys.tolist()) & set(self.past_keys)
        self.past_keys += keys.tolist()
        for item, key in zip(items, keys.tolist(), strict=True):
            item.key = key
        model.insert(items, set(self.table.counts("key")))
        if request is not None:
            model.requests[request] = keys.tolist()
        return None

    def repeat_request(self) -> None:
        request, keys = self.rng.choice(list(self.model.requests.items()))
        self.say(f"repeat request {request}")
        items = self.new_items(1)
        columns = self.given(self.model.columns, [row for i in items for row in i.rows])
        shared = self.given(self.model.shared_columns, [i.shared for i in items])
        again = self.table.insert(
            columns,
            shared=shared or None,
            rows_per_item=len(items[0].rows),
            request=request,
            timeout=0,
            version=1,
        )
        assert again.tolist() == keys

    def sample(self) -> None:
        rng, model = self.rng, self.model
        query, holds = self.query()
        n = rng.choice([1, 1, 2, 3, 5, 9, model.capacity])
        replace = rng.random() < 0.6
        expected = model.sample_outcome(n, holds, replace)
        self.say(f"sample {n} replace={replace} -> {expected}")

        def call() -> rc.Batch:
            return self.table.sample(n, where=query, replace=replace, timeout=0)

        if isinstance(model.sampler, rc.Mixed) and len(model.visible(holds)) < n:
            # A mixture may ask for more than it turns out to need, but not for more than n.
            try:
                batch = call()
            except (rc.WaitTimeout, rc.NeverPossible):
                return
            assert expected is GO
        else:
            batch = self.attempt(expected, call)
        if batch is not None:
            model.check_batch(batch, model.sample(n, holds, replace, batch.info))
            self.hold(batch)

    def take(self) -> None:
        rng, model = self.rng, self.model
        query, holds = self.query()
        n = rng.choice([1, 1, 2, 3, 5, model.capacity + 1])
        partial = rng.random() < 0.4
        seconds = rng.choice([None, None, 1.0, 3.0, 10.0, float("inf")])
        owner = rng.choice(["", "a", "b"])
        count = model.take_count(n, holds, partial)
        self.say(f"take {n} lease={seconds} partial={partial} owner={owner!r} -> {count}")
        batch = self.attempt(
            count if count in (NEVER, BLOCKED) else GO,
            lambda: self.table.take(
                n, where=query, timeout=0, lease=seconds, partial=partial, owner=owner
            ),
        )
        if batch is None:
            return
        items = model.take(count, holds, batch.info)
        model.check_batch(batch, items)
        lease = batch.info.lease
        if seconds is None:
            assert lease is None
            model.remove(items)
        else:
            model.lease(lease, items, owner, model.now + seconds)
        self.hold(batch)

    def settle_lease(self) -> None:
        rng, model, table = self.rng, self.model, self.table
        if not model.leases or rng.random() < 0.1:
            with pytest.raises(rc.LeaseExpired):
                rng.choice([table.confirm, table.give_back])(999_999)
            return
        number = rng.choice(list(model.leases))
        match rng.randrange(5):
            case 0 | 1:
                self.say(f"confirm {number}")
                table.confirm(number)
                model.confirm(number)
            case 2:
                self.say(f"give_back {number}")
                table.give_back(number)
                model.give_back(number)
            case 3:
                self.say(f"renew {number}")
                assert table.renew(number, 4.0).deadline == model.now + 4.0
                model.leases[number].deadline = model.now + 4.0
            case 4:
                owner = model.leases[number].owner
                self.say(f"release {owner!r}")
                mine = [k for k, held in model.leases.items() if held.owner == owner]
                assert table.release(owner) == len(mine)
                for lease in mine:
                    model.give_back(lease)

    def update(self) -> None:
        rng, model = self.rng, self.model
        keys = self.keys()
        names = self.some(["task", "status", "version", *TAGS], 0)
        fields = self.fields(len(keys), names)
        if not names or rng.random() < 0.4:
            fields["priority"] = (
                rng.choice(PRIORITIES) if rng.random() < 0.3
                else [rng.choice(PRIORITIES) for _ in keys]
            )  # fmt: skip
        self.say(f"update {keys} {fields}")
        found = self.table.update(np.array(keys, np.uint64), **fields)
        assert found.tolist() == [model.find(key) is not None for key in keys]
        for place, key in enumerate(keys):
            item = model.find(key)
            if item is not None:
                for name, value in fields.items():
                    item.fields[name] = value[place] if isinstance(value, list) else value

    def delete(self) -> None:
        rng, model = self.rng, self.model
        query, holds = self.query()
        keys = self.keys() if rng.random() < 0.6 or query is None else None
        self.say(f"delete {keys}")
        gone = [i for i in model.visible(holds) if keys is None or i.key in keys]
        if keys is None and len(gone) > 4 and rng.random() < 0.8:
            return
        named = None if keys is None else np.array(keys, np.uint64)
        assert self.table.delete(named, query) == len(gone)
        model.remove(gone)

    def amend(self) -> None:
        rng, model = self.rng, self.model
        optional = [n for n, c in model.columns.items() if c.optional]
        if not optional or not model.items:
            return
        names = rng.sample(optional, rng.randint(1, len(optional)))
        items = rng.sample(model.items, rng.randint(1, min(3, len(model.items))))
        filling = [
            {n: self.cell(model.columns[n], self.serial + k) for n in names}
            for k, _ in enumerate(row for item in items for row in item.rows)
        ]
        keys, per_item = [i.key for i in items], [len(i.rows) for i in items]
        stored = [row for item in items for row in item.rows]
        clash = any(
            old[n] is not None and new[n] is not None
            for old, new in zip(stored, filling, strict=True)
            for n in names
        )
        if clash and rng.random() < 0.8:
            for old, new in zip(stored, filling, strict=True):
                new.update({n: None for n in names if old[n] is not None})
            clash = False
        coming = sum(size_of(model.columns[n], new[n]) for new in filling for n in names)
        columns: dict[str, Any] = {n: [new[n] for new in filling] for n in names}
        if model.items and rng.random() < 0.2 and self.past_keys:
            gone = [k for k in self.past_keys if model.find(k) is None]
            if gone:
                keys.append(gone[0])
                per_item.append(1)
                for n in names:
                    columns[n].append(None)
        fits = model.amend_fits(items, coming)
        self.say(f"amend {keys} {columns} clash={clash} fits={fits}")

        def call() -> Any:
            return self.table.amend(
                np.array(keys, np.uint64), columns, rows_per_item=np.array(per_item)
            )

        if clash or not fits:
            with pytest.raises(rc.RecollectError):
                call()
            return
        assert call().tolist() == [model.find(key) is not None for key in keys]
        model.evict(0, coming, set(self.table.counts("key")), items)
        for old, new in zip(stored, filling, strict=True):
            old.update({n: cell for n, cell in new.items() if cell is not None})
        for item in items:
            model.measure(item)

    def add_column(self) -> None:
        model = self.model
        if model.inserts == 0 or len(model.columns) > 7:
            return
        name = f"more{len(model.columns)}"
        column = self.rng.choice([
            rc.Column("float64", (2,), optional=True),
            rc.Column("int16", ragged=True, optional=True),
            rc.Column("str", optional=True),
        ])  # fmt: skip
        self.say(f"add_column {name} {column}")
        ragged = {"ragged": True} if column.ragged and column.kind == "array" else {}
        self.table.add_column(name, column.dtype, column.shape, **ragged)
        model.columns[name] = column
        for item in model.items:
            for row in item.rows:
                row[name] = None

    def advance(self) -> None:
        seconds = self.rng.choice([0.5, 1.0, 2.5])
        self.say(f"advance {seconds}")
        self.clock.advance(seconds)
        self.model.pass_time(self.model.now + seconds)
        if self.rng.random() < 0.3:
            len(self.table)

    def change_rules(self) -> None:
        rng, model, table = self.rng, self.model, self.table
        which = rng.choice(["limiter", "sampler", "remover"])
        if which == "limiter":
            rule: Any = choose_limiter(rng, model.capacity)
        else:
            rule = choose_selector(rng)
        self.say(f"{which} = {rule}")
        unaged = any(i.fields["version"] is None for i in model.items)
        if which != "limiter" and ages(rule) and unaged:
            with pytest.raises(rc.InvalidValue):
                setattr(table, which, rule)
            return
        setattr(table, which, rule)
        setattr(model, which, rule)

    def look(self) -> None:
        model, table = self.model, self.table
        query, holds = self.query()
        self.say("look")
        found = [i for i in model.items if holds is None or holds(i)]
        assert table.count(query) == len(found)
        names = self.some(["rows", "times_sampled", "inserted_at", "nbytes", *TAGS], 1)
        for fields in (("task",), ("task", "status"), ("version",), names):
            expected: dict[Any, int] = {}
            for item in model.items:
                key = tuple(item.value(name) for name in fields)
                key = key if len(fields) > 1 else key[0]
                expected[key] = expected.get(key, 0) + 1
            assert table.counts(*fields) == expected, fields
        if model.items:
            name = self.rng.choice(list(model.columns))
            batch = table.get([model.items[-1].key], [name])
            assert list(batch.columns) == [name]

    def refused(self) -> None:
        """Wrong calls: they raise, and change nothing."""
        table, columns = self.table, self.model.columns
        items = self.new_items(2)
        given = self.given(columns, [row for item in items for row in item.rows])
        shared = self.given(self.model.shared_columns, [i.shared for i in items]) or None
        rows_per_item = [len(i.rows) for i in items]

        def insert(given: Any = given, **more: Any) -> None:
            options = {"shared": shared, "rows_per_item": rows_per_item, "version": 1, **more}
            table.insert(given, timeout=0, **options)

        self.say("refused")
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
            lambda: table.sample(1, where=rc.field("unknown") == 1),
            lambda: table.take(1, lease=-1.0),
            lambda: table.update([1], priority=[1.0, 2.0]),
            lambda: table.update([1], key=3),
            lambda: table.update([1], version=-3),
            lambda: table.get([12345]),
            lambda: table.delete(),
        ]
        if self.model.inserts == 0:  # the first insert may still name any columns
            calls = calls[:5] + calls[9:]
        with pytest.raises(rc.RecollectError):
            self.rng.choice(calls)()

    def clear(self) -> None:
        if self.rng.random() < 0.5:
            self.say("clear")
            self.table.clear()
            self.model.clear()

    def hold(self, batch: rc.Batch) -> None:
        if len(self.held) < 5:
            copy = rc.Batch.from_arrow(batch.to_arrow())
            columns = {n: _copied(c) for n, c in copy.columns.items()}
            shared = {n: _copied(c) for n, c in copy.shared.columns.items()}
            copy = rc.Batch._make(columns, copy.info, shared, copy._present, copy._shared_present)
            copy.info.__dict__["keys"] = copy.info.keys.copy()
            self.held.append((batch, copy))

    # -- comparing ------------------------------------------------------------------------------
    def compare(self) -> None:
        model, table = self.model, self.table
        assert len(table) == len(model.items)
        assert table.nbytes == model.nbytes
        assert len(table) <= model.capacity
        assert model.capacity_bytes is None or table.nbytes <= model.capacity_bytes
        stats = table.stats()
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


def _copied(column: Any) -> Any:
    if isinstance(column, rc.Ragged):
        return rc.Ragged._make(column.values.copy(), column.offsets.copy(), column.kind)
    return column.copy()


def drive(seed: int, steps: int) -> None:
    driver = Driver(seed)
    try:
        driver.run(steps)
    except BaseException as error:
        error.add_note(f"seed {seed}\n" + "\n".join(driver.calls[:1] + driver.calls[-40:]))
        raise


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make segments and arrays tiny, and compaction eager."""
    monkeypatch.setattr(rows, "SMALLEST", 256)
    monkeypatch.setattr(rows, "LARGEST", 1024)
    monkeypatch.setattr(rows, "SLACK", 0)
    monkeypatch.setattr(items, "FEWEST_SLOTS", 2)


@pytest.mark.parametrize("block", range(20))
def test_a_table_does_what_a_plain_list_does(block: int) -> None:
    for seed in range(20 * block, 20 * block + 20):
        drive(seed, 60)


@pytest.mark.parametrize("block", range(10))
def test_growth_splits_and_compaction_change_nothing(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with tiny segments and tiny arrays, so that every call meets their ends."""
    shrink(monkeypatch)
    for seed in range(1000 + 20 * block, 1000 + 20 * block + 20):
        drive(seed, 60)


@pytest.mark.soak
@pytest.mark.parametrize("tiny", [False, True], ids=["", "tiny"])
@pytest.mark.parametrize("block", range(10))
def test_a_long_life_is_no_different(
    block: int, tiny: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tiny:
        shrink(monkeypatch)
    for seed in range(10_000 + 20 * block, 10_000 + 20 * block + 20):
        drive(seed, 400)


@pytest.mark.parametrize("sampler", [s for s in ORDERS if isinstance(s, Ordered)], ids=str)
def test_partitions_answer_as_a_scan_does(sampler: rc.Selector) -> None:
    """The same calls with and without partitions hand out the same items."""
    outcomes = []
    for partition_by in ((), ("task",), ("task", "status")):
        rng = random.Random(5)
        table = rc.Table(
            "t", capacity=30, sampler=sampler, tags=TAGS, partition_by=partition_by, seed=0
        )
        log: list[Any] = []
        for step in range(150):
            query = (rc.field("task") == rng.choice(TASKS)) & (
                rc.field("status") == rng.choice(STATUSES)
            )
            if rng.random() < 0.5:
                query = rc.field("task").isin(["math", "chat"])
            match rng.randrange(5):
                case 0 | 1:
                    table.insert(
                        {"x": np.array([step])},
                        task=rng.choice(TASKS),
                        status=rng.choice(STATUSES),
                        priority=rng.choice(PRIORITIES),
                        version=rng.choice([1, 2, None]),
                        score=rng.choice(TAG_VALUES["score"]),
                        level=rng.choice(TAG_VALUES["level"]),
                        hard=rng.choice(TAG_VALUES["hard"]),
                    )
                case 2:
                    n = min(2, table.count(query))
                    log.append(table.sample(n, where=query)["x"].tolist() if n else None)
                case 3:
                    n = min(1, table.count(query))
                    log.append(table.take(n, where=query)["x"].tolist() if n else None)
                case 4:
                    keys = sorted(table.counts("key"))[-5:]
                    if keys:
                        table.update(list(keys), task=rng.choice(TASKS), version=step % 4)
        outcomes.append(log)
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert len([entry for entry in outcomes[0] if entry]) > 30


# -- found once by the above, and short enough to say by itself ------------------------------------
MATH = rc.field("task") == "math"


def test_one_insert_over_many_segments_keeps_every_row() -> None:
    table = rc.Table("t", capacity=300_000, sampler=rc.Fifo())
    x = np.arange(300_000)
    keys = table.insert({"x": x})
    assert np.array_equal(table.get(keys)["x"], x)
    assert np.array_equal(table.take(1000)["x"], x[:1000])


def test_items_of_several_rows_fit_into_any_segment() -> None:
    table = rc.Table("t", capacity=100_000)
    for _ in range(3):
        table.insert({"x": np.zeros(20_000)})
    keys = table.insert({"x": np.arange(5.0)}, rows_per_item=[2, 3])
    assert table.get(keys)["x"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("sampler", [rc.Uniform(), rc.Prioritized(), rc.Lifo()], ids=str)
def test_a_partition_has_room_for_whatever_comes_back_or_moves_in(sampler: rc.Selector) -> None:
    table = rc.Table("t", capacity=1000, sampler=sampler, partition_by=("task",))
    table.insert({"x": np.arange(16)}, task="math")
    table.sample(1, where=MATH)
    leased = table.take(8, where=MATH, lease=60)
    table.insert({"x": np.arange(8)}, task="math")
    table.give_back(leased.info.lease)
    for _ in range(60):
        table.update(table.insert({"x": [0]}, task="code"), task="math")
    for index in table._storage._indexing.indexes:
        assert index.count <= index.room
    assert table.take(84, where=MATH).num_items == 84


def test_the_first_zero_priority_may_open_a_partition() -> None:
    table = rc.Table("t", capacity=9, sampler=rc.Prioritized(), partition_by=("task",), seed=0)
    table.insert({"x": [0, 1]}, task="code")
    table.sample(1, where=MATH | (rc.field("task") == "code"))
    table.insert({"x": [2, 3, 4, 5]}, task="math", priority=0.0)
    batch = table.sample(40, where=MATH)
    assert set(batch["x"].tolist()) == {2, 3, 4, 5}
    assert (batch.info.probability == 0.25).all()


def test_amending_a_leased_item_leaves_nothing_to_evict() -> None:
    columns = {"x": rc.Column("int64"), "y": rc.Column("str", optional=True)}
    table = rc.Table("t", capacity=10, capacity_bytes=64, sampler=rc.Fifo(), signature=columns)
    keys = table.insert({"x": [1, 2, 3, 4]})
    table.take(3, lease=60)
    table.amend(keys[:1], {"y": ["a" * 30]})
    with pytest.raises(rc.WaitTimeout):
        table.insert({"x": [1, 2, 3, 4]}, timeout=0)
    assert (len(table), table.nbytes) == (4, 62)


def test_a_refused_first_insert_fixes_no_columns() -> None:
    table = rc.Table("t", capacity=10, capacity_bytes=4)
    with pytest.raises(rc.NeverPossible):
        table.insert({"x": [1]})
    assert table.columns == {}
    table.insert({"y": np.zeros(1, np.float32)})


def test_compaction_meets_segments_from_before_a_column_came() -> None:
    table = rc.Table("t", capacity=100_000)
    keys = np.concatenate([table.insert({"x": np.full((1000, 250), i)}) for i in range(40)])
    for place in range(6):
        table.add_column(f"more{place}", "float32")
    order = np.random.default_rng(0).permutation(len(keys))
    table.delete(keys[order[8000:]])
    assert np.array_equal(table.get(keys[order[:8000]])["x"][:, 7], order[:8000] // 1000)
    assert table._storage._rows.tracking


def test_growth_finds_every_key_again() -> None:
    table = rc.Table("t", capacity=1000, sampler=rc.Fifo())
    for number in range(200):
        table.insert({"x": [number]})
    table.take(200)
    keys = np.concatenate([table.insert({"x": [number]}) for number in range(400)])
    assert table.get(keys)["x"].tolist() == list(range(400))


def test_taking_leaves_the_order_of_the_others_alone() -> None:
    for seed in range(20):
        priorities = np.random.default_rng(seed).random(20)
        table = rc.Table("t", capacity=20, sampler=rc.Largest("priority"))
        table.insert({"x": np.arange(20)}, priority=priorities)
        table.give_back(table.take(1, lease=1).info.lease)
        best = np.argsort(-priorities)
        table.sample(20)
        assert table.take(8)["x"].tolist() == best[:8].tolist()
        assert table.sample(12)["x"].tolist() == best[8:].tolist()


def test_a_partial_take_is_content_with_what_a_smaller_queue_allows() -> None:
    table = rc.Table("t", capacity=9, sampler=rc.Fifo())
    table.insert({"x": [1, 2, 3, 4, 5]})
    table.limiter = rc.Queue(3)
    assert 1 <= table.take(9, partial=True, timeout=0).num_items <= 5

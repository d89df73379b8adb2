"""Many threads at once: nothing is lost, counted twice or torn, and a held batch never changes.

Every row repeats one number over all its columns and bytes, so a row that mixes two writes, or
memory that was used again too early, shows in any single read.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from thread_crew import Crew

import recollect as rc
from recollect.storage import rows

THREADS = 64
LARGE = 20_000  # bytes of the large column


def rows_of(numbers: np.ndarray, lengths: np.ndarray) -> dict[str, Any]:
    """Rows that carry their number in every byte that they have."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return {
        "number": numbers.astype(np.int64),
        "pair": np.repeat(numbers.astype(np.float64), 2).reshape(-1, 2),
        "large": np.repeat((numbers % 251).astype(np.uint8), LARGE).reshape(-1, LARGE),
        "tokens": rc.Ragged(np.repeat(numbers.astype(np.int32), lengths), offsets),
        "text": [
            f"{number}:" * int(length) for number, length in zip(numbers, lengths, strict=True)
        ],
    }


def check_rows(batch: rc.Batch) -> None:
    """No row is torn."""
    numbers = batch["number"]
    assert (batch["pair"] == numbers[:, None]).all()
    assert (batch["large"] == (numbers % 251).astype(np.uint8)[:, None]).all()
    tokens = batch["tokens"]
    lengths = np.diff(tokens.offsets)
    assert (tokens.values == np.repeat(numbers, lengths)).all()
    texts = [f"{n}:" * int(length) for n, length in zip(numbers, lengths, strict=True)]
    assert batch["text"].to_list() == texts
    offsets = batch.info.row_offsets
    firsts = np.repeat(batch.shared["first"], np.diff(offsets))
    places = np.arange(len(numbers)) - np.repeat(offsets[:-1], np.diff(offsets))
    assert (firsts + places == numbers).all(), "rows of two items were mixed"


class Workers:
    """Verbs for threads, and a tally of what they did."""

    def __init__(self, table: rc.Table) -> None:
        self.table = table
        self.lock = threading.Lock()
        self.tally = dict.fromkeys(("inserted", "sampled", "taken", "confirmed", "deleted"), 0)
        self.serial = 0
        self.inserted: set[int] = set()
        self.removed: list[int] = []
        self.recent: list[int] = []

    def count(self, what: str, by: int) -> None:
        with self.lock:
            self.tally[what] += by

    def insert(self, rng: random.Random) -> None:
        per_item = [rng.randint(1, 3) for _ in range(rng.randint(1, 4))]
        total = sum(per_item)
        with self.lock:
            start = self.serial
            self.serial += total
        numbers = np.arange(start, start + total)
        firsts = start + np.cumsum([0, *per_item[:-1]])
        keys = self.table.insert(
            rows_of(numbers, np.array([rng.randint(0, 5) for _ in numbers])),
            shared={"first": firsts.astype(np.int64)},
            rows_per_item=per_item,
            priority=[rng.choice([0.1, 1.0, 5.0]) for _ in per_item],
            task=[rng.choice(["a", "b"]) for _ in per_item],
            version=start,
        ).tolist()
        with self.lock:
            assert not self.inserted & set(keys), "a key was given twice"
            self.inserted.update(keys)
            self.tally["inserted"] += len(keys)
            self.recent = [*self.recent[-200:], *keys]

    def sample(self, rng: random.Random) -> None:
        where = rng.choice([None, rc.field("task") == "a", rc.field("version") > 10])
        n = rng.randint(1, 8)
        try:
            batch = self.table.sample(n, where=where, timeout=0.05)
        except rc.WaitTimeout:
            return
        check_rows(batch)
        self.count("sampled", n)

    def update(self, rng: random.Random) -> None:
        keys = rng.choices(self.recent, k=6) if self.recent else []
        fields: dict[str, Any] = {"priority": [rng.random() for _ in keys]}
        if rng.random() < 0.3:
            fields["task"] = rng.choice(["a", "b"])
        self.table.update(np.array(keys, np.uint64), **fields)

    def take(self, rng: random.Random) -> None:
        try:
            batch = self.table.take(rng.randint(1, 4), timeout=0.05, partial=True)
        except rc.WaitTimeout:
            return
        check_rows(batch)
        with self.lock:
            self.removed += batch.info.keys.tolist()
            self.tally["taken"] += batch.num_items

    def lease(self, rng: random.Random) -> None:
        where = rng.choice([None, rc.field("task") == "b"])
        try:
            batch = self.table.take(3, where=where, timeout=0.05, partial=True, lease=60)
        except rc.WaitTimeout:
            return
        check_rows(batch)
        if rng.random() < 0.5:
            self.table.give_back(batch.info.lease)
            return
        self.table.confirm(batch.info.lease)
        with self.lock:
            self.removed += batch.info.keys.tolist()
            self.tally["confirmed"] += batch.num_items

    def delete(self, rng: random.Random) -> None:
        keys = rng.choices(self.recent, k=3) if self.recent else []
        self.count("deleted", self.table.delete(np.array(keys, np.uint64)))


@pytest.mark.parametrize(
    "sampler",
    [rc.Prioritized(), rc.Fifo(), rc.Mixed([(rc.StalestFirst(), 0.5), (rc.Uniform(), 0.5)])],
    ids=["prioritized", "fifo", "mixed"],
)
def test_64_threads_lose_nothing(sampler: rc.Selector) -> None:
    table = rc.Table(
        "t",
        capacity=200,
        capacity_bytes=8 << 20,
        sampler=sampler,
        partition_by=("task",),
        seed=0,
    )
    workers = Workers(table)
    workers.insert(random.Random(0))
    crew = Crew()
    for verb, count in (
        (workers.insert, 16),
        (workers.sample, 16),
        (workers.update, 12),
        (workers.take, 6),
        (workers.lease, 10),
        (workers.delete, 4),
    ):
        crew.add(verb, count)
    assert len(crew.threads) == THREADS
    crew.run(4.0)

    stats, tally = table.stats(), workers.tally
    removed = stats["removed"]
    assert stats["inserts"] == tally["inserted"] == len(workers.inserted)
    assert stats["samples"] == tally["sampled"] + tally["taken"] + tally["confirmed"]
    assert removed.get("taken", 0) == tally["taken"]
    assert removed.get("confirmed", 0) == tally["confirmed"]
    assert removed.get("deleted", 0) == tally["deleted"]
    assert stats["removals"] == sum(removed.values())
    assert len(table) == stats["inserts"] - stats["removals"]
    assert stats["leases"] == stats["leased"] == 0
    assert len(set(workers.removed)) == len(workers.removed), "an item was handed out twice"
    left = list(table.counts("key"))
    assert set(left) <= workers.inserted - set(workers.removed)
    for task, count in table.counts("task").items():
        assert table.count(rc.field("task") == task) == count
    check_rows(table.get(left))
    # Every index still holds every item: what is left can be taken, each once.
    taken = table.take(len(left)) if left else None
    if taken is not None:
        check_rows(taken)
        assert sorted(taken.info.keys.tolist()) == sorted(left)
    assert len(table) == table.nbytes == 0
    assert all(count > 0 for count in tally.values()), tally


def test_a_queue_hands_every_item_to_one_consumer() -> None:
    queue = rc.Table.queue("q", 32)
    total, producers, consumers = 6000, 32, 32
    numbers = iter(range(total))
    guard = threading.Lock()
    got: list[int] = []
    errors: list[BaseException] = []

    def produce() -> None:
        while True:
            with guard:
                number = next(numbers, None)
            if number is None:
                return
            queue.insert({"x": np.array([number])})

    def consume() -> None:
        while True:
            try:
                batch = queue.sample(1)
            except rc.TableClosed:
                return
            with guard:
                got.extend(batch["x"].tolist())
                if len(got) == total:
                    queue.close()

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)
            queue.close()

    threads = [
        threading.Thread(target=guarded, args=(work,), daemon=True)
        for work, count in ((produce, producers), (consume, consumers))
        for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    assert not errors
    assert sorted(got) == list(range(total))


def test_a_stream_of_one_producer_and_consumer_keeps_its_order() -> None:
    queue = rc.Table.queue("q", 8)
    got: list[int] = []

    def consume() -> None:
        while len(got) < 2000:
            got.extend(queue.sample(1)["x"].tolist())

    consumer = threading.Thread(target=consume, daemon=True)
    consumer.start()
    for number in range(2000):
        queue.insert({"x": np.array([number])})
    consumer.join(60)
    assert got == list(range(2000))


@pytest.mark.parametrize("remover", [rc.Fifo(), rc.Uniform()], ids=["drops", "compacts"])
def test_held_batches_never_change_while_segments_are_recycled(
    remover: rc.Selector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifo removal drops whole segments, random removal compacts them; both reuse memory."""
    monkeypatch.setattr(rows, "SLACK", 1 << 20)  # compact early and often
    table = rc.Table("t", capacity=1500, remover=remover, seed=0)
    workers = Workers(table)
    for seed in range(100):
        workers.insert(random.Random(seed))
    store = table.core.storage.stores.rows
    opened = store.opened
    crew = Crew()
    crew.add(workers.insert, 4)
    crew.add(workers.sample, 2)

    def hold(rng: random.Random) -> None:
        batches = [table.sample(rng.randint(1, 60)) for _ in range(4)]
        copies = [{n: _bytes(c) for n, c in batch.columns.items()} for batch in batches]
        crew.stop.wait(0.2)
        for batch, copy in zip(batches, copies, strict=True):
            check_rows(batch)
            for name, column in batch.columns.items():
                assert _bytes(column) == copy[name], f"{name} of a held batch changed"

    crew.add(hold, 4)
    started = time.monotonic()
    crew.run(6.0)
    assert time.monotonic() - started < 60
    assert store.opened - opened > 5, "there was too little churn to prove anything"
    assert store.tracking == isinstance(remover, rc.Uniform), "only random removal compacts"
    check_rows(table.get(list(table.counts("key"))))


def _bytes(column: Any) -> bytes:
    if isinstance(column, rc.Ragged):
        return column.values.tobytes() + column.offsets.tobytes()
    return column.tobytes()


def test_a_reader_in_the_middle_of_a_copy_is_not_disturbed() -> None:
    """Readers that have chosen and not yet copied, while all they chose is removed and reused."""
    table = rc.Table("t", capacity=400, seed=0)
    workers = Workers(table)
    rng = random.Random(1)
    for _ in range(150):
        workers.insert(rng)
    storage = table.core.storage
    for _ in range(12):
        with table.core.transaction():
            chosen = storage.sample(rc.Uniform(), 50, None, True, 0)
        keys = np.unique(chosen.keys)
        table.delete(keys)
        for _ in range(40):
            workers.insert(rng)
        check_rows(chosen.read())


def test_waiters_wake_without_polling_and_in_time() -> None:
    """32 threads wait for items, 32 for room; each gets its turn."""
    table = rc.Table.queue("q", 4)
    done: list[int] = []
    guard = threading.Lock()

    def take(place: int) -> None:
        table.take(1)
        with guard:
            done.append(place)

    threads = [threading.Thread(target=take, args=(place,), daemon=True) for place in range(32)]
    threads += [
        threading.Thread(target=table.insert, args=({"x": np.array([place])},), daemon=True)
        for place in range(32)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a waiter was not woken"
    assert sorted(done) == list(range(32))
    assert len(table) == 0

"""What a table remembers beside its items, kept in the database: leases, requests and blobs."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import sqlalchemy as sa

from recollect.base.arrays import Keys
from recollect.base.leases import Held, Lease, not_held, number_of
from recollect.base.requests import PER_PRODUCER, PRODUCERS, Request, too_old
from recollect.storage.sql.escapes import from_text, to_text
from recollect.storage.sql.statements import KEYED, Statements
from recollect.storage.sql.tables import blobs, leases, requests
from recollect.storage.sql.transactions import Transactions

LEASE_BITS = 52  # of an id, which is random: so JSON keeps it, and no two processes must agree
AT_ONCE = 500  # blobs that a statement names
PRUNED = 256  # requests after which we look for producers that are long gone


def new_lease() -> int:
    return secrets.randbits(LEASE_BITS) + 1


class SqlLeases:
    """The leases of a table that processes share. Deadlines are stored by everybody's clock.

    An item that is under a lease carries its id, so nothing else says which items it hides.
    """

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._transactions = statements.transactions
        self._items = statements.items
        self._hiding: int | None = None
        self._hidden: list[Keys] = []

    # -- items that a take has hidden already carry the id of the lease to come -------------------
    def hiding(self, keys: Keys) -> int:
        """The lease that items hidden by this transaction will most likely be under."""
        if self._hiding is None:
            self._hiding = new_lease()
            self._transactions.undone.append(self.forget)
        self._hidden.append(keys)
        return self._hiding

    def forget(self) -> None:
        self._hiding = None
        self._hidden = []

    # -- the verbs of recollect.base.leases.Leases ----------------------------------------------
    def __len__(self) -> int:
        query = sa.select(sa.func.count()).select_from(leases).where(self._mine)
        return int(self._run(query).scalar_one())

    def add(self, keys: Keys, owner: str, deadline: float | None) -> Lease:
        hidden = np.concatenate(self._hidden) if self._hidden else np.zeros(0, np.uint64)
        number = self._hiding
        self.forget()
        if number is None or not np.array_equal(hidden, keys):
            number = new_lease()
            numbers = self._statements.numbers(keys.astype(np.int64).tolist())
            self._statements.run("lease", self._leasing, keys=numbers, as_lease=number)
        until = self._shared(deadline)
        row = {"id": number, "table_id": self._transactions.number, "owner": to_text(owner)}
        self._statements.run("add", lambda: sa.insert(leases), **row, deadline=until)
        self._expect(until)
        return Lease(number, owner, deadline)

    def _leasing(self) -> Any:
        keyed = self._statements.condition(KEYED)
        lease = sa.bindparam("as_lease", type_=sa.BigInteger())
        return sa.update(self._items).where(keyed).values(lease=lease)

    def end(self, lease: Any) -> Held:
        number = number_of(lease)
        gone = self._statements.run("end", self._ending, number=number).one_or_none()
        if gone is None:
            raise not_held(number)
        return self._held(number, gone.owner, gone.deadline)

    def _ending(self) -> Any:
        ended = sa.and_(self._mine, leases.c.id == sa.bindparam("number", type_=sa.BigInteger()))
        return sa.delete(leases).where(ended).returning(leases.c.owner, leases.c.deadline)

    def narrow(self, lease: Any, keys: Keys) -> None:
        """Nothing is left to do: what was removed carried the lease's id, and has gone with it."""

    def end_all(self) -> None:
        self._run(sa.delete(leases).where(self._mine))
        self._transactions.state.next_deadline = None

    def renew(self, lease: Any, deadline: float | None) -> Lease:
        number, until = number_of(lease), self._shared(deadline)
        owner = self._run(
            sa.update(leases)
            .where(self._mine, leases.c.id == number)
            .values(deadline=until)
            .returning(leases.c.owner)
        ).scalar_one_or_none()
        if owner is None:
            raise not_held(number)
        self._expect(until)
        return Lease(number, from_text(owner), deadline)

    def of_owner(self, owner: str) -> list[Lease]:
        return [self._lease(*row) for row in self._rows(leases.c.owner == to_text(owner))]

    def held(self) -> dict[int, Held]:
        return {row[0]: self._held(*row) for row in self._rows(sa.true())}

    def overdue(self, now: float) -> list[Lease]:
        state, shared_now = self._transactions.state, now + self._transactions.offset
        if state.next_deadline is None or state.next_deadline > shared_now:
            return []
        if not self._transactions.alone:
            # It fell due since this take began. Others that take at the same moment see it too,
            # and only one of them could end it: it is left to the next call.
            return []
        late = self._rows(leases.c.deadline <= shared_now)
        state.next_deadline = self._run(
            sa.select(sa.func.min(leases.c.deadline)).where(
                self._mine, leases.c.deadline > shared_now
            )
        ).scalar_one()
        return [self._lease(*row) for row in late]

    @property
    def timed(self) -> bool:
        return self._transactions.state.next_deadline is not None

    def next_deadline(self) -> float:
        deadline = self._transactions.state.next_deadline
        return math.inf if deadline is None else deadline - self._transactions.offset

    # -- rows --------------------------------------------------------------------------------------
    @property
    def _mine(self) -> Any:
        return leases.c.table_id == self._transactions.number

    def _run(self, statement: Any) -> Any:
        return self._transactions.connection.execute(statement)

    def _rows(self, condition: Any) -> list[Any]:
        columns = (leases.c.id, leases.c.owner, leases.c.deadline)
        query = sa.select(*columns).where(self._mine, condition).order_by(leases.c.id)
        return list(self._run(query).all())

    def _lease(self, number: int, owner: str, until: float | None) -> Lease:
        own = None if until is None else until - self._transactions.offset
        return Lease(number, from_text(owner), own)

    def _held(self, number: int, owner: str, until: float | None) -> Held:
        found = self._statements.run("held", self._holding, number=number)
        keys = np.array(found.scalars().all(), np.uint64)
        return Held(self._lease(number, owner, until), keys)

    def _holding(self) -> Any:
        key, number = self._items.c.key, sa.bindparam("number", type_=sa.BigInteger())
        return sa.select(key).where(self._items.c.lease == number).order_by(key)

    def _shared(self, deadline: float | None) -> float | None:
        return None if deadline is None else deadline + self._transactions.offset

    def _expect(self, until: float | None) -> None:
        state = self._transactions.state
        if until is not None and (state.next_deadline is None or until < state.next_deadline):
            state.next_deadline = until


class SqlRequests:
    """The last requests of each producer, and the keys they got."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._remembered = 0

    def _run(self, statement: Any) -> Any:
        return self._transactions.connection.execute(statement)

    def _of(self, request: Request) -> Any:
        producer = requests.c.producer == _producer(request)
        return sa.and_(requests.c.table_id == self._transactions.number, producer)

    def keys(self, request: Request) -> Keys | None:
        """What a request got before, None for a new one."""
        found = self._run(
            sa.select(requests.c.first, requests.c.count).where(
                self._of(request), requests.c.number == str(request[1])
            )
        ).one_or_none()
        if found is not None:
            return np.arange(found[1], dtype=np.uint64) + np.uint64(found[0])
        latest = (
            sa.select(requests.c.number)
            .where(self._of(request))
            .order_by(requests.c.first.desc())
            .offset(PER_PRODUCER - 1)
            .limit(1)
        )
        oldest = self._run(latest).scalar_one_or_none()
        if oldest is not None and request[1] < int(oldest):
            raise too_old(request)
        return None

    def remember(self, request: Request, keys: Keys) -> None:
        row = {
            "table_id": self._transactions.number,
            "producer": _producer(request),
            "number": str(request[1]),
            "first": int(keys[0]),
            "count": keys.size,
        }
        self._run(sa.insert(requests).values(row))
        beyond = (
            sa.select(requests.c.first)
            .where(self._of(request))
            .order_by(requests.c.first.desc())
            .offset(PER_PRODUCER)
            .limit(1)
            .scalar_subquery()
        )
        self._run(sa.delete(requests).where(self._of(request), requests.c.first <= beyond))
        self._remembered += 1
        if self._remembered % PRUNED == 0:
            self._forget_producers()

    def _forget_producers(self) -> None:
        """Those that were heard of longest ago, where there are too many."""
        mine = requests.c.table_id == self._transactions.number
        latest = sa.func.max(requests.c.first)
        kept = (
            sa.select(requests.c.producer)
            .where(mine)
            .group_by(requests.c.producer)
            .order_by(latest.desc())
            .limit(PRODUCERS)
        )
        self._run(sa.delete(requests).where(mine, requests.c.producer.not_in(kept)))


class SqlBlobs:
    """The blobs that the items of a table refer to."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def _run(self, statement: Any, *rows: Any) -> Any:
        return self._transactions.connection.execute(statement, *rows)

    def _named(self, names: Sequence[str]) -> Any:
        mine = blobs.c.table_id == self._transactions.number
        return sa.and_(mine, blobs.c.name.in_(names))

    def put(self, new: Mapping[str, bytes]) -> None:
        known = set()
        for names in batched(new, AT_ONCE):
            known.update(self._run(sa.select(blobs.c.name).where(self._named(names))).scalars())
        number = self._transactions.number
        rows = [
            {"table_id": number, "name": name, "data": data}
            for name, data in new.items()
            if name not in known
        ]
        if rows:
            self._run(sa.insert(blobs), rows)

    def remove(self, names: Sequence[str]) -> None:
        for some in batched(names, AT_ONCE):
            self._run(sa.delete(blobs).where(self._named(some)))

    def get(self, names: Sequence[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for some in batched(names, AT_ONCE):
            rows = self._run(sa.select(blobs.c.name, blobs.c.data).where(self._named(some)))
            found.update({name: bytes(data) for name, data in rows})
        return found


def batched(names: Iterable[str], size: int) -> Iterator[list[str]]:
    """Names in lists of so many."""
    left = iter(names)
    while some := list(islice(left, size)):
        yield some


def _producer(request: Request) -> str:
    """A producer's name or number, which are different producers even where they read the same."""
    producer = request[0]
    return f"#{producer}" if isinstance(producer, int) else f"@{to_text(producer)}"

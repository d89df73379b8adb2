"""What a table asks of a storage: small verbs that never wait.

A storage keeps items, executes selectors and queries on them, and knows nothing of limiters,
leases, timeouts or waiting: that is the table's. Every verb below is called inside
`with storage.transaction():`, which is a lock in memory and a transaction in a database;
`Chosen.read` is called outside it. Arguments have been checked by the table.

A storage in this process's memory stops there. One whose items several processes share must also
keep what the table counts and remembers beside them, and tell it what the others did. Such a
storage returns a `Shared` from `open`, and the table hands it its `Sharing` in turn:

- At the beginning of a transaction the storage calls `sharing.load` with the tallies as they are
  now, at its end it writes down what `sharing.tallies` says has changed, and commits. So the
  table's own code counts in plain attributes, on every storage.
- Leases and requests live in the storage: `Shared.leases` and `Shared.requests` have the verbs of
  `recollect.base.leases.Leases` and `recollect.base.requests.Requests`.
- `sharing.committed` comes after a commit and still under the lock: only then are followers told.
  `sharing.dropped` says that a transaction came to nothing.
- `Shared.listen` makes sure that changes of other processes arrive as `sharing.changed`; the
  table calls it before somebody goes to sleep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from recollect.base.arrays import Keys
from recollect.base.clock import Clock
from recollect.data.batch import Batch
from recollect.data.schema import Rows, Schema
from recollect.errors import UnknownKey
from recollect.rules.query import FieldType, Query
from recollect.rules.selectors import Mixed, Selector
from recollect.storage.fields import FieldValue

if TYPE_CHECKING:
    from recollect.base.leases import LeaseBook
    from recollect.base.requests import RequestBook


@dataclass(frozen=True)
class Layout:
    """What a storage must know of its table before anything is stored."""

    name: str
    capacity: int
    fields: Mapping[str, FieldType]
    partition_by: tuple[str, ...] = ()
    max_times_sampled: int = 0
    seed: int | None = None
    selectors: tuple[Selector, ...] = ()  # those of the table, for what they need to be kept
    journaled: bool = False


@dataclass
class Tallies:
    """What a table counts, for a storage that several processes share.

    `arrivals`, `departures` and `alarms` are those of the table's `Gate`: what may let others
    go, and how often everybody was woken.
    """

    inserts: int = 0
    samples: int = 0
    removals: int = 0
    sample_calls: int = 0
    removed: dict[str, int] = field(default_factory=dict)
    arrivals: int = 0
    departures: int = 0
    alarms: int = 0


@dataclass(slots=True)
class NewItems:
    """Checked items to store."""

    rows: Rows
    shared: Rows | None
    per_item: NDArray[np.int32]  # rows of each item, or one number for all
    count: int
    priority: NDArray[np.float64] | None  # one for all, one per item, None for the default
    fields: Mapping[str, FieldValue]
    inserted_at: float = 0.0
    default_priority: float = -1.0  # below 0: the highest in the table


@dataclass(frozen=True)
class Where:
    """A query as a storage executes it: what partitions answer, and the rest."""

    query: Query
    partitions: Mapping[str, frozenset[Any]]
    rest: Query | None


class Chosen(Protocol):
    """Items that a call got, as of the moment they were chosen."""

    @property
    def count(self) -> int: ...

    @property
    def keys(self) -> Keys: ...

    @property
    def worn(self) -> Chosen | None:
        """The items that reached max_times_sampled and have left, None where none did."""
        ...

    def read(self, allocate: Any = None, lease: Any = None) -> Batch:
        """Copy the payload; needs no lock and holds what it reads."""
        ...


def unknown_keys(gone: Sequence[int], asked: int) -> UnknownKey:
    """What `get` raises where some of the keys that were asked for are not there."""
    return UnknownKey(
        f"{len(gone)} of {asked} keys are not in the table, such as {gone[0]}: their items have "
        "gone, or are of another table; update() says which keys are there"
    )


class Contended(Exception):
    """Another process is taking the items; raised only inside `Shared.taking`."""


class Sharing(Protocol):
    """What a table offers to a storage that several processes share."""

    @property
    def clock(self) -> Clock: ...

    def load(self, tallies: Tallies) -> None:
        """The tallies as they are now; what the gate counts is not among them."""
        ...

    def tallies(self) -> Tallies: ...

    def adopt(self, rows: Schema, shared: Schema | None) -> None:
        """Others have fixed the columns, or added to them."""
        ...

    def committed(self) -> None:
        """Under the lock, after a commit."""
        ...

    def dropped(self) -> None:
        """Under the lock: what happened since the transaction began has not happened."""
        ...

    def waiting(self) -> bool:
        """Whether somebody in this process waits; may be called from any thread."""
        ...

    def changed(self, arrivals: int, departures: int, everybody: bool) -> None:
        """Another process changed something; called without the lock, from any thread."""
        ...


class BlobBook(Protocol):
    """Blobs by name, kept beside the items that refer to them, and in their transactions."""

    def put(self, blobs: Mapping[str, bytes]) -> None: ...
    def remove(self, names: Sequence[str]) -> None: ...
    def get(self, names: Sequence[str]) -> dict[str, bytes]:
        """Those that are there."""
        ...


class Shared(Protocol):
    """What a storage keeps for a table that several processes share."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """The lock of this process's threads alone; `transaction()` holds it too."""
        ...

    @property
    def leases(self) -> LeaseBook: ...

    @property
    def requests(self) -> RequestBook: ...

    @property
    def blobs(self) -> BlobBook: ...

    def attach(self, sharing: Sharing) -> None:
        """Whom to tell; called once, before the first transaction."""
        ...

    def taking(self) -> AbstractContextManager[Any]:
        """A transaction that may only take in an order, beside those of other processes.

        `Storage.take` raises `Contended` in it where others hold what it needs: the table then
        tries again in a `transaction()`, which has the table for itself.
        """
        ...

    def listen(self) -> None:
        """From now on at the latest, `sharing.changed` is called for changes of others."""
        ...

    def close(self) -> None:
        """Nobody will ask any more."""
        ...


class Storage(Protocol):
    """Keeps the items of one table."""

    def open(self, layout: Layout) -> Shared | None:
        """Begin to serve a table; called once, before anything else.

        A storage that only this process sees returns None.
        """
        ...

    def set_schema(self, rows: Schema, shared: Schema | None) -> None:
        """Fix the columns, or add optional ones at the end."""
        ...

    def transaction(self) -> AbstractContextManager[Any]: ...

    def __len__(self) -> int:
        """Items stored, hidden ones included."""
        ...

    @property
    def hidden(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """Bytes of live payload."""
        ...

    @property
    def hidden_nbytes(self) -> int:
        """The share of it that hidden items have."""
        ...

    def highest_priority(self) -> float:
        """The highest priority of a stored item, 1.0 where there is none."""
        ...

    def insert(self, new: NewItems) -> Keys: ...

    def recycle(self, remover: Selector, new: NewItems, *, tell: bool) -> Keys | None:
        """Evict as many items as come and insert these, in one go, where that is quicker.

        None means that nothing was done, and the table evicts and inserts. With `tell`, the keys
        of those that left follow those of the new ones.
        """
        ...

    def keep_indexes(self, selectors: Sequence[Selector]) -> None:
        """Forget what was kept for selectors that are not in use any more."""
        ...

    def available(self, where: Where | None, most: int | None = None) -> tuple[int, int]:
        """How many items are visible and meet the query, and how often they were sampled.

        A storage that must count for it may stop at `most` items: more are not needed.
        """
        ...

    def sample(
        self, selector: Selector, n: int, where: Where | None, replace: bool, calls: int
    ) -> Chosen: ...

    def take(self, selector: Selector, n: int, where: Where | None, *, hide: bool) -> Chosen:
        """Choose different items, count a sampling of each, and hide or remove them."""
        ...

    def evict(
        self, selector: Selector, n: int, nbytes: int, keep: bool
    ) -> tuple[int, Sequence[Chosen]]:
        """Remove n items, and more until `nbytes` of payload have gone; returns how many went.

        What went is returned too. Here and below, `keep` says whether somebody may still read
        its payload; else only its keys count, for a journal, and a storage that takes none may
        leave them out.
        """
        ...

    def remove(self, keys: Keys, keep: bool) -> Chosen:
        """Remove hidden items."""
        ...

    def hide(self, keys: Keys) -> Keys:
        """Hide items; returns the keys of those that were visible."""
        ...

    def hide_up_to(self, field: str, bound: int) -> Keys:
        """Hide the visible items whose field is at most `bound`; returns their keys.

        The field is a whole number; items without it stay. Found through an order by the field,
        lowest first, so it costs what it hides. A database says
        `UPDATE ... WHERE field <= bound AND visible RETURNING key`.
        """
        ...

    def show(self, keys: Keys, *, returned: bool) -> int:
        """Make hidden items visible again, in their old order; returns how many.

        `returned` where a lease ended: a sampling is undone and a delivery counted.
        """
        ...

    def find(self, keys: Keys | None, where: Where | None, *, visible: bool) -> Keys:
        """The keys, of those given or of all, that are stored and meet the query."""
        ...

    def delete(self, keys: Keys, keep: bool) -> Chosen:
        """Remove visible items."""
        ...

    def update(self, keys: Keys, fields: Mapping[str, Any]) -> NDArray[np.bool_]: ...

    def get(self, keys: Keys, columns: Sequence[str] | None) -> Chosen: ...

    def amend(
        self, keys: Keys, rows: Rows, per_item: NDArray[np.int32], payload: NDArray[np.int64]
    ) -> None:
        """Store whole items again, with cells filled in that bring so much payload each.

        Cells may also have been cleared, and rows taken out; the payload is then below 0.
        Rows are never overwritten, so a reader that holds the old ones is not disturbed.
        """
        ...

    def count(self, where: Where | None) -> int: ...

    def counts(self, fields: Sequence[str]) -> dict[Any, int]: ...


@runtime_checkable
class Dealer(Protocol):
    """A storage that shows how it deals draws to the parts of mixtures.

    Of one that does not, a table expects the worst: that an order gets them all.
    """

    def next_deal(self, mixture: Mixed, n: int) -> list[tuple[Selector, int]]:
        """How many of the next n draws each part of a sampler gets; this changes nothing."""
        ...


@runtime_checkable
class OwnSelectors(Protocol):
    """A storage that executes other selectors than orders, weights, `Uniform` and mixtures."""

    def executes(self, selector: Selector) -> bool:
        """Whether it executes a selector of a user's own; a table refuses the others."""
        ...

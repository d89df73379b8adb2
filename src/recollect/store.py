"""`Store`: several tables that live together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from recollect.base import registry
from recollect.errors import InvalidValue, shown
from recollect.table.core import TableCore
from recollect.table.table import Table

if TYPE_CHECKING:
    from os import PathLike

    from recollect.durability.journal.open_journal import OpenJournal
    from recollect.durability.snapshot.loader import Loaded
    from recollect.durability.snapshot.members import Member
    from recollect.durability.snapshot.saver import SavedSnapshot


class Store(Mapping[str, Table]):
    """Tables by name, which are checkpointed and served together.

    >>> import recollect as rc
    >>> store = rc.Store([rc.Table("train", capacity=10), rc.Table("eval", capacity=10)])
    >>> sorted(store)
    ['eval', 'train']
    >>> len(store["train"])
    0

    Args:
        tables: The tables; each has a name of its own.
        journal: An `rc.Journal`, or its path, for all of them but those with `checkpoint=False`:
            what they hold survives a crash.
    """

    def __init__(self, tables: Iterable[Table], *, journal: Any = None) -> None:
        self._tables: dict[str, Table] = {}
        if isinstance(tables, Table) or not isinstance(tables, Iterable):
            raise InvalidValue(f"a store takes a list of tables, got {shown(tables)}")
        for table in tables:
            if not isinstance(table, Table):
                raise InvalidValue(f"a store holds rc.Table objects, got {shown(table)}")
            if table.name in self._tables:
                raise InvalidValue(f"two tables are called {table.name!r}; rename one")
            self._tables[table.name] = table
        self._journal: OpenJournal | None = None
        if journal is not None:
            from recollect.table.journaled import open_journal_of_store

            self._journal = open_journal_of_store(self._cores(), journal)

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | str | PathLike[str]) -> Store:
        """Make a store of `{"tables": [...]}`, or of the YAML file at a path."""
        return registry.resolve("store_from_config", Store)(config)

    def __getitem__(self, name: str) -> Table:
        try:
            return self._tables[name]
        except KeyError:
            known = ", ".join(self._tables) or "none"
            raise KeyError(f"no table {name!r} in this store; there are {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def save(
        self,
        path: str | PathLike[str],
        *,
        step: int | None = None,
        files: Mapping[str, Any] | None = None,
        keep_last: int | None = None,
        compression: str | None = None,
        progress: bool | None = None,
    ) -> SavedSnapshot:
        """Write a snapshot of all tables, captured at one moment, to a folder.

        What the last snapshot of these tables has on disk is linked and not written again. The
        tables go on meanwhile. Tables with `checkpoint=False` are left out.

        Args:
            path: The snapshot's folder; a snapshot that is there is replaced.
            step: The training step that it belongs to.
            files: More files that commit with it, such as a model's: by name, a file to copy,
                bytes, or a call that is given a path to write to.
            keep_last: Remove all but so many snapshots of this store in the parent folder.
            compression: Of rows: None, "lz4" or "zstd".
            progress: Whether to show a bar; None does so for long work on a terminal.

        >>> import tempfile
        >>> import recollect as rc
        >>> store = rc.Store([rc.Table("train", capacity=10)])
        >>> keys = store["train"].insert({"x": [1, 2]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = store.save(f"{folder}/step-100", step=100)
        ...     resumed = rc.Store([rc.Table("train", capacity=10)])
        ...     resumed.load(folder).step
        100
        >>> resumed["train"].get(keys)["x"]
        array([1, 2])
        """
        from recollect.durability.snapshot.saver import save_snapshot

        return save_snapshot(
            path, self._members(), step=step, others=files, keep_last=keep_last,
            compression=compression, progress=progress,
        )  # fmt: skip

    def load(
        self,
        path: str | PathLike[str],
        *,
        step: int | None = None,
        progress: bool | None = None,
    ) -> Loaded:
        """Put a snapshot into these tables: keys, order, counters, draws.

        The tables must be empty; journaled ones are rewound. Where a table is smaller than it was,
        its remover evicts what does not fit; `evicted` of the result says how many.

        Args:
            path: A snapshot's folder, or a folder of snapshots: the latest of them, or `step`'s.
            step: The training step to go back to.
            progress: Whether to show a bar; None does so for long work on a terminal.
        """
        from recollect.durability.snapshot.loader import load_snapshot

        return load_snapshot(path, self._members(), step=step, progress=progress)

    def _cores(self) -> dict[str, TableCore]:
        return {name: table.core for name, table in self._tables.items()}

    def _members(self) -> dict[str, Member]:
        from recollect.table.member import member_of

        return {name: member_of(core) for name, core in self._cores().items()}

    def close(self) -> None:
        """Close every table."""
        for table in self._tables.values():
            table.close()
        if self._journal is not None:
            self._journal.close()

    def __repr__(self) -> str:
        return f"Store({list(self._tables.values())!r})"

    def _repr_html_(self) -> str:
        return "".join(table._repr_html_() for table in self._tables.values())

"""`Store`: several tables that live together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from recollect.errors import InvalidValue, shown
from recollect.table import Owner, Table

if TYPE_CHECKING:
    from os import PathLike


class Store(Mapping[str, Table]):
    """Tables by name, which are checkpointed and served together.

    >>> import recollect as rc
    >>> store = rc.Store([rc.Table("train", capacity=10), rc.Table("eval", capacity=10)])
    >>> sorted(store)
    ['eval', 'train']
    >>> len(store["train"])
    0
    """

    def __init__(self, tables: Iterable[Table]) -> None:
        self._tables: dict[str, Table] = {}
        if isinstance(tables, Table) or not isinstance(tables, Iterable):
            raise InvalidValue(f"a store takes a list of tables, got {shown(tables)}")
        for table in tables:
            if not isinstance(table, Table):
                raise InvalidValue(f"a store holds rc.Table objects, got {shown(table)}")
            if table.name in self._tables:
                raise InvalidValue(f"two tables are called {table.name!r}; rename one")
            self._tables[table.name] = table

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | str | PathLike[str]) -> Store:
        """Make a store of `{"tables": [...]}`, or of the YAML file at a path."""
        from recollect.config import store_from_config

        return store_from_config(config)

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

    def save(self, path: str | PathLike[str], *, progress: bool | None = None) -> None:
        """Write a snapshot of all tables, captured at one moment, to a folder.

        Tables with `checkpoint=False` are left out. `progress` shows a bar; None does so for long
        work on a terminal.

        >>> import tempfile
        >>> import recollect as rc
        >>> store = rc.Store([rc.Table("train", capacity=10)])
        >>> keys = store["train"].insert({"x": [1, 2]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store.save(f"{folder}/step-100")
        ...     resumed = rc.Store([rc.Table("train", capacity=10)])
        ...     resumed.load(f"{folder}/step-100")
        >>> resumed["train"].get(keys)["x"]
        array([1, 2])
        """
        from recollect.durability.snapshot import save

        save(self._tables, path, progress, self._owners())

    def load(self, path: str | PathLike[str], *, progress: bool | None = None) -> None:
        """Put a snapshot into these tables, which must be empty: keys, order, counters, draws."""
        from recollect.durability.snapshot import load

        load(self._tables, path, progress, self._owners())

    def _owners(self) -> dict[str, Owner]:
        """What is built on these tables, such as rollout buffers: a snapshot holds it, too."""
        owners = {name: table._owner for name, table in self._tables.items()}
        return {name: owner for name, owner in owners.items() if owner is not None}

    def close(self) -> None:
        """Close every table."""
        for table in self._tables.values():
            table.close()

    def __repr__(self) -> str:
        return f"Store({list(self._tables.values())!r})"

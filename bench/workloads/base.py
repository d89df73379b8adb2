"""What a workload is: the shape of its rows, how many there are, and what is timed on them.

Only the standard library is used here, so that the parent process needs nothing installed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

ITEM_BYTES = {"float32": 4, "int32": 4, "int8": 1, "uint8": 1, "bool": 1}


@dataclass(frozen=True)
class Column:
    """A named array over rows."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of one cell."""
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True)
class Against:
    """A peer with a bound of its own; `of` is its operation, where that is another one."""

    peer: str
    must: float | None = None
    aim: float | None = None
    of: str = ""


@dataclass(frozen=True)
class Operation:
    """One thing to time: a verb over `size` items, and the ratio to the best peer it must reach.

    `only` limits the implementations that are asked for it; each of `against` is judged in a line
    of its own.
    """

    verb: str
    size: int
    must: float | None = None
    aim: float | None = None
    only: tuple[str, ...] = ()
    against: tuple[Against, ...] = ()

    @property
    def name(self) -> str:
        """How the report and the protocol call it."""
        return f"{self.verb} {self.size:,}"


@dataclass(frozen=True)
class Floor:
    """A bound of the machine that an operation is held against, as a share of it."""

    operation: Operation
    title: str
    of: str
    must: float | None = None


@dataclass(frozen=True)
class Workload:
    """Rows, how many, and the operations that are timed on a full buffer.

    `kind` picks the adapter class in a peer's module; `together` says whether the workers of all
    implementations fit into memory at once. `only` limits the implementations; `unit` is what a
    rate counts. `most_bytes` bounds Recollect's memory beyond the payload, per row.
    """

    name: str
    title: str
    kind: str
    columns: tuple[Column, ...]
    rows: int
    operations: tuple[Operation, ...]
    prioritized: bool = False
    alpha: float = 0.6
    beta: float = 0.4
    together: bool = True
    only: tuple[str, ...] = ()
    floors: tuple[Floor, ...] = field(default=())
    unit: str = "items"
    most_bytes: int | None = None

    @property
    def payload(self) -> int:
        """Bytes of one row."""
        return sum(column.nbytes for column in self.columns)

    def sized(self, rows: int) -> Workload:
        """The same workload over another number of rows."""
        return replace(self, rows=rows)

    def operation(self, name: str) -> Operation:
        """The operation of that name, timed operations and floors alike."""
        for operation in (*self.operations, *(floor.operation for floor in self.floors)):
            if operation.name == name:
                return operation
        raise KeyError(f"{self.name} has no operation {name!r}")

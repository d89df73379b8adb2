"""The errors that Recollect raises on purpose, in one hierarchy that users can catch.

Each message says in one sentence what was wrong, what was expected and what to do. An error
of this family is raised before anything changed.
"""

from __future__ import annotations


def shown(value: object) -> str:
    """A value as a message shows it: on one line, and not all of a large one."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


class RecollectError(Exception):
    """Base of every error that Recollect raises on purpose."""


class InvalidValue(RecollectError, ValueError):
    """An argument has the right type and a wrong value (a negative priority, a zero capacity)."""


class SchemaError(InvalidValue):
    """Columns do not fit the table: an unknown or missing name, another dtype, another shape."""


class QueryError(InvalidValue):
    """A query names an unknown field or operator, or compares values of different types."""


class ConfigError(InvalidValue):
    """A configuration is wrong; the message begins with the path of the wrong entry."""


class NeverPossible(InvalidValue):
    """The call could wait forever: no sequence of other calls would let it go ahead."""


class UnknownKey(RecollectError, KeyError):
    """A call that needs an item named a key whose item has gone."""

    def __str__(self) -> str:  # KeyError shows the repr of its argument; we want the sentence
        return str(self.args[0]) if self.args else ""


class WaitTimeout(RecollectError, TimeoutError):
    """A call waited as long as it was told to; the message says what it waited for."""


class TableClosed(RecollectError):
    """The table was closed, before the call or while it waited."""


class BufferFull(RecollectError):
    """A rollout buffer has no room, and was told to raise where others wait."""


class SnapshotError(RecollectError):
    """A snapshot cannot be written or read; the message names the file."""


class JournalError(RecollectError):
    """A journal cannot be written, read or opened; the message names the file.

    Raised by a call that changed something, it means that the change was made and is not safe yet.
    """


class StorageError(RecollectError):
    """A storage cannot be used: another format, other fields, or a database that refuses."""


class StorageUnavailable(StorageError, ConnectionError):
    """The database of a storage cannot be reached now; a later call tries again."""


class LeaseExpired(RecollectError):
    """The lease is unknown, was settled before, or its deadline has passed."""


class OutOfPrompts(RecollectError):
    """A source of prompts has none left: its epochs are over."""


class ProductionError(RecollectError):
    """Production cannot go on, or not from its state; the message says what it is in."""


class GenerationError(RecollectError):
    """A generator cannot work at all: a server that refuses, or gives no tokens to train on."""

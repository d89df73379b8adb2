"""What a driver's error means: whether it passes, and one sentence that says what to do."""

from __future__ import annotations

import re
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from recollect.errors import StorageError, StorageUnavailable

LOCKED_PATIENCE = 120.0  # seconds in which another process may finish what it does with SQLite

_LOCKED = re.compile(r"database (table )?is locked|locking protocol")

# Databases say what is wrong, and here stands what to do about it. An address that is wrong stays
# wrong: those of the first kind are not tried again.
_WRONG = {
    r"authentication failed|no password supplied": "check the user and the password, in which "
    "characters such as @ : / are written as urllib.parse.quote does",
    r"role .* does not exist": "check the user in the address",
    r"database .* does not exist": "check the address, or make the database with createdb",
    r"no pg_hba.conf entry": "let this machine in, in the server's pg_hba.conf",
    r"unable to open database file": "check that the folder is there and may be written to",
}
_HINTS = {
    **_WRONG,
    r"resolve host": "check the host in the address",
    r"no such table|relation .* does not exist": "its tables were removed: make the table anew, in "
    "a new database",
    r"no schema has been selected": "make the schema that search_path names",
    r"permission denied": "let this user create tables in the schema",
    r"readonly database": "let this process write to the file and to its folder",
    r"not a database|malformed": "name another file, or take this one from a backup",
    r"is full|No space left": "make room, and call again",
    r"deadlock detected|could not serialize": "nothing of the call has happened; call again",
}


def is_locked(error: DBAPIError) -> bool:
    """Whether another process has SQLite's lock just now."""
    return _LOCKED.search(str(error.orig)) is not None


def is_lost(error: DBAPIError) -> bool:
    """Whether there is no connection any more, or none to be had now."""
    if error.connection_invalidated:
        return True
    orig: Any = error.orig
    if type(orig).__module__.startswith("sqlite3"):
        return "unable to open database file" in str(orig)
    code = orig.sqlstate
    unreachable = code is None and isinstance(error, sa.exc.OperationalError)
    return unreachable or (code is not None and code[:2] in ("08", "53", "57"))


def is_deadlocked(error: DBAPIError) -> bool:
    """Whether PostgreSQL undid this transaction, so that those it stood in the way of can go on.

    A lock of a row that others update is taken version by version, and two who ask for it in
    different strengths may each have one that the other needs.
    """
    orig: Any = error.orig
    return hasattr(orig, "sqlstate") and orig.sqlstate in ("40P01", "40001")


def may_pass(error: DBAPIError) -> bool:
    """Whether to begin again is worth it."""
    if is_locked(error) or is_deadlocked(error):
        return True
    return is_lost(error) and _found(_WRONG, error) is None


def translated(error: DBAPIError, where: str) -> StorageError:
    """The same as an error of ours; `where` is the address of the database."""
    if is_locked(error):
        return StorageUnavailable(
            f"{where} is held by another process for {LOCKED_PATIENCE:.0f} s; end that one"
        )
    hint = _found(_HINTS, error)
    if is_lost(error):
        return StorageUnavailable(
            f"{where} cannot be reached, and nothing of the call has happened; "
            f"{hint or 'see that a server runs there; the next call tries again'} ({_said(error)})"
        )
    return StorageError(f"{where} refuses: {_said(error)}{'; ' if hint else ''}{hint or ''}")


def _said(error: DBAPIError) -> str:
    """What the database says, without the statement that it says it about."""
    orig: Any = error.orig
    primary = orig.diag.message_primary if hasattr(orig, "diag") else None
    return " ".join(str(primary or orig).split())


def _found(hints: dict[str, str], error: DBAPIError) -> str | None:
    said = _said(error)
    return next((hint for what, hint in hints.items() if re.search(what, said)), None)

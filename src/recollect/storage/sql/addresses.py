"""Addresses of databases: checked, with what to write instead."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from recollect.errors import InvalidValue
from recollect.storage.sql.dialects import Dialect, Postgres, Sqlite

OF_DRIVER = {"uri", "timeout", "isolation_level", "detect_types", "cached_statements"}


def parsed(url: Any) -> tuple[sa.URL, Dialect]:
    """A database's address, and its dialect."""
    expected = "'sqlite:///replay.db', 'sqlite://' or 'postgresql://user@host/name'"
    if not isinstance(url, str | sa.URL):
        raise InvalidValue(f"url: expected text such as {expected}, got {type(url).__name__}")
    try:
        made = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        raise InvalidValue(f"url: expected {expected}, and this is no address") from None
    name = made.drivername.partition("+")[0]
    if name == "sqlite":
        _check_sqlite(made)
        return made.set(drivername="sqlite"), Sqlite()
    if name in ("postgresql", "postgres"):
        if "@" in f"{made.host}{made.database}":  # it may be a part of the password: not shown
            raise InvalidValue(
                "url: an @ stands in the host or the database; write those of the user and the "
                "password percent-encoded, as urllib.parse.quote(password, safe='') does"
            )
        return made.set(drivername="postgresql+psycopg"), Postgres()
    raise InvalidValue(f"url: expected {expected}, and {made.drivername!r} is another database")


def _check_sqlite(url: sa.URL) -> None:
    if url.host or url.username or url.password or url.port:
        raise InvalidValue(
            "url: a file of SQLite has no host; three slashes stand before a path, as in "
            "'sqlite:///replay.db', and four before one from the root"
        )
    unknown = sorted(set(url.query) - OF_DRIVER)
    if unknown and "uri" not in url.query:
        raise InvalidValue(
            f"url: SQLite reads {unknown[0]}= only with uri=true, as in "
            f"'sqlite:///file:replay.db?{unknown[0]}={url.query[unknown[0]]}&uri=true'"
        )

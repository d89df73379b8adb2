"""Items in a SQL database: SQLite, or PostgreSQL that several processes share.

`storage.py` has the verbs. Beside it, one idea per file: `addresses.py`, `database.py` (a
connection and its transactions), `failures.py` (what a driver's errors mean), `dialects.py` (where
the two databases differ), `tables.py` (what is stored, and as what), `table_row.py` (the row that
is a table's lock and its counts), `where.py`, `orders.py` and `random_draws.py` (queries and
selectors as SQL), `item_bytes.py` (Arrow bytes), `books.py` (leases and requests), `listener.py`
(how one process hears of another).
"""

from recollect.base.optional import optional

optional("sqlalchemy", "sql")  # what follows needs it

from recollect.storage.sql.storage import SqlStorage  # noqa: E402

__all__ = ["SqlStorage"]

"""Items in a SQL database: SQLite, or PostgreSQL that several processes share.

`storage.py` has the verbs. Beside it, one idea per file: `database.py` (a connection and its
transactions), `dialects.py` (where the two databases differ), `tables.py` (what is stored, and as
what), `state.py` (the row that is a table's lock and its counts), `where.py`, `orders.py` and
`drawing.py` (queries and selectors as SQL), `payload.py` (Arrow bytes), `books.py` (leases and
requests), `listening.py` (how one process hears of another).
"""

from recollect.storage.sql.storage import SqlStorage

__all__ = ["SqlStorage"]

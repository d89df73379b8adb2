"""Journals: the log of what happened, who writes it, and how it is read back.

`journal.py` has `Journal`, the options that a user gives. `open_journal.py` opens one: it recovers
the members (`recovery.py`), lets them write, and compacts records into a snapshot now and then.

An entry goes from a member (`journaled.py`, with its rows in `payload.py`) to the queue of the
writer (`writer.py`), becomes part of a record (`records.py`), and is written and synced by
`disk.py` to the files of the log (`log.py`).
"""

"""Snapshots: how they are written, read back, and looked at.

Writing: `saver.py` captures members and commits a folder by one rename, `table_writer.py` writes
one table of it, and `ledger.py` finds out what is on disk already, so that a save writes only what
changed. Reading: `reader.py` opens and verifies a snapshot, `saved_table.py` reads one table of it,
and `loader.py` puts it into members. `contents.py` describes and compares snapshots for people.

Both sides use `members.py` (what can be saved under a name), `manifest.py` (the file that says what
a snapshot is), `segments.py` (Arrow files) and `plain_arrays.py` (arrays that belong to no item).
"""

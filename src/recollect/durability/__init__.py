"""What outlives a process: snapshots, journals, and the files that both are made of.

- `snapshot/`: a consistent picture of tables and buffers on disk.
- `journal/`: the log that makes every change survive a crash.
- `format.py`: what both have in common on disk: the version, frames with checksums, schemas.
- `files.py`: the calls of the file system; `direct_io.py`: large writes past the page cache.
- `progress_bar.py`: the bar that long saves and loads show.

This folder knows storages. It knows no table and no buffer: those come as a `Member` of a snapshot
(`snapshot/members.py`) or as a `Journaled` of a journal (`journal/journaled.py`).
"""

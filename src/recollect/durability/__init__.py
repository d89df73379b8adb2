"""What outlives a process: snapshots. They follow a table's state; no table knows of them."""

"""Snapshots: what is saved, how it is written, and how it is read back."""

"""Journals: the log of what happened, who writes it, and how it is read back."""

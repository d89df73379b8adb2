"""Recollect side by side with its peers: `python bench/run.py --help`."""

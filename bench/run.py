"""Run the benchmarks from anywhere: `python bench/run.py --help`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    runpy.run_module("bench", run_name="__main__", alter_sys=False)

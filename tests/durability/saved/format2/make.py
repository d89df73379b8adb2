"""Makes the snapshots of format 2 in this folder; run once, when the format was version 2.

    python tests/durability/saved/format2/make.py

They hold what those of format 1 hold, and a third save, in which a single value is another. Later
versions of Recollect must read these files as they are, so they are never made again.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import recollect as rc

HERE = Path(__file__).parent


def before() -> Any:
    """What made the snapshots of format 1."""
    path = HERE.parent / "format1" / "make.py"
    spec = importlib.util.spec_from_file_location("format1_make", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def change(tables: rc.Store, buffer: rc.ReplayBuffer) -> None:
    """One priority of a table, and one of the steps."""
    keys = sorted(tables["groups"].counts("key"), key=lambda key: key & (1 << 44) - 1)
    tables["groups"].update(keys[:1], priority=9.0)
    buffer.update_priorities(buffer.sample(1).info.keys, [9.0])


def main() -> None:
    make = before()
    tables, buffer, groups = make.store(), make.steps(), make.rollouts()
    for number, name in enumerate(["first", "second", "third"]):
        if name == "third":
            change(tables, buffer)
        else:
            first, count = [(0, 9), (20, 2)][number]
            make.fill(tables, first, count)
            make.add_steps(buffer, first, 2 * count)
            make.put(groups, first, count)
        folder = HERE / name
        tables.save(folder / "store", step=number, files={"model.bin": b"weights"})
        buffer.save(folder / "steps", step=number)
        groups.save(folder / "rollouts", step=number)


if __name__ == "__main__":
    main()

"""`recollect verify PATH`: whether every checksum and every count is right; the exit code says."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from recollect.cli.display import add_examples, add_json, add_path, opening, print_json
from recollect.errors import SnapshotError


def add(commands: Any) -> None:
    parser = commands.add_parser("verify", help="compare a snapshot with its checksums and counts")
    add_path(parser)
    add_json(parser)
    add_examples(
        parser,
        "recollect verify runs/checkpoints/step-000000000400",
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    from recollect.durability.snapshot.contents import snapshots_in

    with opening("PATH", given.path):
        snapshots = snapshots_in(given.path, given.step)
    results = []
    for snapshot in snapshots:
        told: dict[str, Any] = {"path": str(snapshot.path), "ok": True}
        try:
            told.update(snapshot.verify(progress=False if given.json else None))
        except SnapshotError as error:
            told.update(ok=False, error=str(error))
        results.append(told)
    if given.json:
        print_json(results[0] if len(results) == 1 else results)
    for told in [] if given.json else results:
        if told["ok"]:
            print(f"{told['path']}: ok, {told['files']} files, {told['items']} items, "
                  f"{told['rows']} rows")  # fmt: skip
        else:
            print(f"{told['path']}: {told['error']}", file=sys.stderr)
    return 0 if all(told["ok"] for told in results) else 1

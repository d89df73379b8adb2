"""`recollect diff A B`: how two snapshots differ.

The exit code is 1 where they do, and 2 where that cannot be said.
"""

from __future__ import annotations

import argparse
from typing import Any

from recollect.cli.display import add_examples, add_json, lines, opening, print_json
from recollect.errors import InvalidValue, SnapshotError


def add(commands: Any) -> None:
    parser = commands.add_parser("diff", help="show how two snapshots differ")
    parser.add_argument("first", metavar="A", help="a snapshot, or a folder of snapshots")
    parser.add_argument("second", metavar="B", help="the same")
    add_json(parser)
    add_examples(
        parser,
        "recollect diff runs/a runs/b",
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    from recollect.durability.snapshot.contents import difference
    from recollect.durability.snapshot.reader import open_snapshot

    opened = []
    try:
        for argument, path in (("A", given.first), ("B", given.second)):
            with opening(argument, path):
                opened.append(open_snapshot(path))
        found = difference(*opened)
    except SnapshotError as error:
        raise InvalidValue(str(error)) from error
    if given.json:
        print_json(found)
    elif not found:
        print("no difference")
    else:
        print("\n".join(_told(found)))
    return 1 if found else 0


def _told(found: dict[str, Any]) -> list[str]:
    told = [
        f"only in {which}: {', '.join(found[key])}"
        for key, which in (("only_in_first", "A"), ("only_in_second", "B"))
        if key in found
    ]
    for name, table in found.get("tables", {}).items():
        told.append(f"table {name!r}")
        facts = [
            ("only in A", f"{table['only_in_first']} items"),
            ("only in B", f"{table['only_in_second']} items"),
            ("same in both", f"{table['same']} items"),
            ("other rows", f"{table['rows_differ']} items"),
        ]
        facts += [(f"other {f}", f"{n} items") for f, n in table["fields_differ"].items()]
        facts += [(name, f"{a} and {b}") for name, (a, b) in table["counts"].items()]
        facts += [(f"column {c}", f"{a} and {b}") for c, (a, b) in table["columns"].items()]
        told += lines(facts)
    return told

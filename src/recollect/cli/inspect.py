"""`recollect inspect PATH`: what is in a snapshot."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

from recollect.base.readable import size, span
from recollect.cli.display import add_examples, add_json, add_path, lines, opening, print_json


def add(commands: Any) -> None:
    parser = commands.add_parser("inspect", help="show what is in a snapshot")
    add_path(parser)
    add_json(parser)
    add_examples(
        parser,
        "recollect inspect runs/checkpoints",
        "recollect inspect runs/checkpoints --step 400 --json",
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    from recollect.durability.snapshot.contents import described, snapshots_in

    with opening("PATH", given.path):
        snapshots = snapshots_in(given.path, given.step)
    found = [described(snapshot) for snapshot in snapshots]
    if given.json:
        print_json(found[0] if len(found) == 1 else found)
        return 0
    for snapshot in found:
        print("\n".join(_told(snapshot)))
    return 0


def _told(snapshot: Mapping[str, Any]) -> list[str]:
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(snapshot["saved_at"] or 0))
    step = "no step" if snapshot["step"] is None else f"step {snapshot['step']}"
    told = [f"{snapshot['path']}: {snapshot['kind']}, {step}, format {snapshot['format']}"]
    facts = [
        ("saved", f"{when} by Recollect {snapshot['written_by']}"),
        ("files", f"{snapshot['files']} of {size(snapshot['bytes'])}"),
    ]
    for name in ("left_out", "others"):
        if snapshot[name]:
            facts.append((name.replace("_", " "), ", ".join(snapshot[name])))
    told += lines(facts)
    for name, table in snapshot["tables"].items():
        told.append(f"table {name!r}")
        told += lines(_facts(table))
    return told


def _facts(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [
        ("items", f"{table['items']} with {table['rows']} rows, {size(table['nbytes'])}"),
        ("segments", str(table["segments"])),
    ]
    if table["kind"] == "steps":
        facts[0] = ("steps", f"{table['steps']} of {table['environments']} environments, "
                    f"{size(table['nbytes'])}")  # fmt: skip
        facts.append(
            ("episodes", f"{table['episodes_begun']} begun, {table['episodes_ended']} over")
        )
    for name in ("columns", "shared_columns"):
        if table[name]:
            listed = ", ".join(f"{column} {kind}" for column, kind in table[name].items())
            facts.append((name.replace("_", " "), listed))
    for name in ("task", "status"):
        if name in table:
            facts.append((name, ", ".join(f"{value} {n}" for value, n in table[name].items())))
    for name in ("version", "priority", "times_sampled"):
        if name in table:
            facts.append(
                (name.replace("_", " "), f"{table[name]['lowest']:g} to {table[name]['highest']:g}")
            )
    if "age" in table:
        age = table["age"]
        facts.append(("age", f"{span(age['youngest'])} to {span(age['oldest'])} when saved"))
    counts = table["counts"]
    facts.append(
        ("so far", f"{counts['inserts']} inserts, {counts['samples']} samples, "
         f"{counts['removals']} removals")
    )  # fmt: skip
    facts += [(name, str(rule)) for name, rule in table["rules"].items() if rule is not None]
    return facts

"""The command: prepare environments, run workloads, print tables, write what was asked for."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from bench import (
    anatomy,
    checkpoint,
    environments,
    journal,
    machine,
    packing,
    production,
    report,
    sql,
    startup,
    tables,
    waiting,
)
from bench.harness import FLOOR, OURS, REPOSITORY, Implementation, Outcomes, Settings, run
from bench.tables import Table
from bench.versions import PEERS, peer_named
from bench.workloads import all_workloads, growth
from bench.workloads.base import Workload

QUICK_ROWS = {
    "W1": 20_000,
    "W2": 20_000,
    "W3": 2_000,
    "W4": 2_000,
    "W4 memory": 2_000,
    "W4 lists": 2_000,
    "W5": 20_000,
    "W5 environments": 20_000,
    "W5 frames": 2_000,
}
STARTUP = "startup"
ANATOMY = "anatomy"
JOURNAL = "journal"
PACKING = "packing"
WAITING = "waiting"
PRODUCTION = "production"
CHECKPOINT = "checkpoint"
SQL = "sql"
BEGAN = time.monotonic()


def main() -> None:
    """Run what the command line asks for."""
    options = _options()
    settings = Settings(
        rounds=options.rounds or (2 if options.quick else 5),
        seconds=options.seconds or (0.1 if options.quick else 0.3),
    )
    facts = machine.describe()
    implementations = _implementations(options)
    results: dict[str, Outcomes] = {}
    made: list[Table] = []

    def tell(*tables_: Table) -> None:
        """Show tables as soon as they are made: all of it takes most of an hour."""
        made.extend(tables_)
        print("\n" + "\n\n".join(map(report.as_text, tables_)), flush=True)
        if options.markdown:
            found = report.versions_of(implementations, results)
            options.markdown.write_text(report.page(made, facts, found, settings))

    for workload in _workloads(options):
        if workload.only and not any(one.name in workload.only for one in implementations):
            continue
        results[workload.name] = run(workload, implementations, settings, _say)
        tell(*_tables(workload, implementations, results[workload.name]))
    started = None
    if OURS in options.peers and _wanted(STARTUP, options.only):
        imports, starts = (5, 1) if options.quick else (25, 3)
        started = startup.measure(options.python, imports, starts, _say)
        tell(tables.starting(started))
    if OURS in options.peers and _wanted(ANATOMY, options.only) and not options.quick:
        tell(tables.anatomy(anatomy.measure(_say)))
    if OURS in options.peers and _wanted(JOURNAL, options.only) and not options.quick:
        tell(tables.journaling(journal.measure(_say)))
    if OURS in options.peers and _wanted(PACKING, options.only):
        tell(tables.packing(packing.measure(10 if options.quick else 40, _say)))
    if OURS in options.peers and _wanted(WAITING, options.only):
        tell(tables.waiting(waiting.measure(3 if options.quick else 15, _say)))
    if OURS in options.peers and _wanted(PRODUCTION, options.only):
        tell(tables.production(production.measure(2 if options.quick else 10, _say)))
    if OURS in options.peers and _wanted(CHECKPOINT, options.only) and not options.quick:
        tell(*tables.checkpoints(checkpoint.measure(_say)))
    if OURS in options.peers and _wanted(SQL, options.only):
        tell(*sql.tables(sql.measure(_say, quick=options.quick)))
    if options.json:
        whole = {
            "machine": facts,
            "settings": asdict(settings),
            "workloads": {
                name: {key: asdict(outcome) for key, outcome in outcomes.items()}
                for name, outcomes in results.items()
            },
            "startup": asdict(started) if started else None,
        }
        options.json.write_text(json.dumps(whole, indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    names = [OURS, *(peer.name for peer in PEERS)]
    measured = [STARTUP, ANATOMY, JOURNAL, CHECKPOINT, PACKING, WAITING, PRODUCTION, SQL]
    workloads = [*all_workloads(), *measured]
    parser.add_argument("--quick", action="store_true", help="small buffers, two short rounds")
    parser.add_argument("--only", type=_list, help=f"of {','.join(workloads)}", metavar="W1,W2")
    parser.add_argument("--peers", type=_list, default=names, help=f"of {','.join(names)}")
    parser.add_argument("--rounds", type=int, help="5, or 2 with --quick")
    parser.add_argument("--seconds", type=float, help="per timing: 0.3, or 0.1 with --quick")
    parser.add_argument("--json", type=Path, help="write everything measured here")
    parser.add_argument("--markdown", type=Path, help="write the page docs/benchmarks.md here")
    parser.add_argument("--install", action="store_true", help="make the environments and stop")
    parser.add_argument(
        "--python",
        type=Path,
        default=REPOSITORY / ".venv" / "bin" / "python",
        help="the interpreter that runs Recollect (default: that of the repository's .venv)",
    )
    options = parser.parse_args()
    for name in options.peers:
        if name != OURS:
            peer_named(name)
    for name in options.only or ():
        if name not in workloads:
            parser.error(f"unknown workload {name!r}: expected some of {', '.join(workloads)}")
    return options


def _implementations(options: argparse.Namespace) -> list[Implementation]:
    """Ours first, then the peers, then the floor, which runs where ours does."""
    missing = "" if options.python.exists() else f"no interpreter at {options.python}"
    python = None if missing else options.python
    found = []
    if OURS in options.peers:
        found.append(Implementation(OURS, "Recollect", python, missing))
    for name in options.peers:
        if name != OURS:
            environment = environments.prepare(peer_named(name), _say)
            if environment.error:
                _say(f"{name}: {environment.error}")
            title = environment.peer.title
            kinds = environment.peer.kinds
            found.append(Implementation(name, title, environment.python, environment.error, kinds))
    if options.install:
        sys.exit(any(one.error for one in found))
    found.append(Implementation(FLOOR, "numpy.take", python, missing))
    return found


def _workloads(options: argparse.Namespace) -> list[Workload]:
    chosen = [one for one in all_workloads().values() if _wanted(one.name, options.only)]
    if options.quick:
        return [one.sized(QUICK_ROWS.get(one.name, one.rows)) for one in chosen]
    return chosen


def _tables(
    workload: Workload, implementations: list[Implementation], outcomes: Outcomes
) -> list[Table]:
    if workload.name in growth.TITLES:
        return [tables.growing(workload, outcomes)]
    if workload.kind == "rollout churn":
        return [tables.churned(workload, implementations, outcomes)]
    if workload.kind == "rollout lists":
        return [tables.beside(workload, implementations, outcomes)]
    made = [tables.comparison(workload, implementations, outcomes)]
    if workload.kind == "frames":
        made.append(tables.frames(workload, implementations, outcomes))
    elif workload.prioritized or workload.kind == "sequences":
        made.append(tables.memory(workload, implementations, outcomes))
    return made


def _wanted(name: str, only: list[str] | None) -> bool:
    return only is None or name in only


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _say(text: str) -> None:
    print(f"[{time.monotonic() - BEGAN:7.1f} s] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

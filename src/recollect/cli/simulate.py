"""`recollect simulate CONFIG [CONFIG2]`: a training run on virtual time, or two side by side."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from recollect.cli.display import add_examples, add_json, print_json


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "simulate",
        help="how a configuration of generators, buffer and trainer would do",
        description="Run the real managers and buffer against simulated engines on virtual time: "
        "how long the trainer waits, how old its tokens are, what is wasted. A scenario is YAML, "
        "such as 'slots: 96' and 'staleness: {max_staleness: 1}' in lines; what it leaves out has "
        "a default.",
    )
    parser.add_argument("config", metavar="CONFIG", help="a YAML file of a scenario")
    parser.add_argument("other", metavar="CONFIG2", nargs="?", help="another one to compare with")
    parser.add_argument("--steps", type=int, help="train steps, in place of the file's")
    parser.add_argument("--seed", type=int, help="in place of the file's")
    add_json(parser)
    add_examples(
        parser,
        "recollect simulate stale-0.yaml stale-1.yaml",
        "recollect simulate scenario.yaml --steps 200 --json",
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    from recollect.simulation import Scenario, render, simulate

    paths = [Path(path) for path in (given.config, given.other) if path is not None]
    changes = {
        name: value
        for name, value in (("steps", given.steps), ("seed", given.seed))
        if value is not None
    }
    scenarios = [replace(Scenario.from_config(path), **changes) for path in paths]
    reports = [simulate(scenario) for scenario in scenarios]
    if given.json:
        told = [
            {"config": str(path), **report.to_dict()}
            for path, report in zip(paths, reports, strict=True)
        ]
        print_json(told[0] if len(told) == 1 else told)
    else:
        names = [path.name for path in paths]
        if len(set(names)) < len(names):
            names = [str(path) for path in paths]
        print(render(list(zip(names, reports, strict=True))))
    return 0

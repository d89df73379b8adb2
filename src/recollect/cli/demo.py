"""`recollect demo`: a tiny policy learns, its process is killed, and nothing is lost."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from recollect.base.arguments import whole
from recollect.cli.display import add_examples, add_json, print_json
from recollect.errors import InvalidValue

LEAST = 2.0  # seconds: half of it before the kill


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="a tiny policy learns, its process is killed, and nothing is lost",
        description="A policy in NumPy learns two tasks by GRPO, with asynchronous producers, "
        "bounded staleness, replay and a journal. Half-way its process is killed with SIGKILL.",
    )
    parser.add_argument("--seconds", type=float, default=32.0, help="of training (32)")
    parser.add_argument("--seed", type=int, default=0, help="of every random draw (0)")
    parser.add_argument(
        "--out", type=Path, default=Path("recollect-demo"), help="a folder (recollect-demo)"
    )
    parser.add_argument(
        "--classic", action="store_true", help="prioritized transitions of a grid world instead"
    )
    add_json(parser)
    add_examples(parser, "recollect demo", "recollect demo --classic --seconds 20 --out demo")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    from rich.console import Console

    from recollect.demo import grid_world, language_model
    from recollect.demo.run import finish
    from recollect.demo.run import run as demo

    kind = grid_world if given.classic else language_model
    seconds, seed = given.seconds, whole("--seed", given.seed, 0)
    if not LEAST <= seconds < math.inf:
        raise InvalidValue(f"--seconds: a run takes at least {LEAST:g}, got {seconds:g}")
    try:
        given.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidValue(
            f"--out: {given.out} cannot be made ({error.strerror}); name a folder that you may "
            "write to"
        ) from error
    console = Console(stderr=given.json)  # a program reads nothing but JSON
    life = demo(kind, given.out, seconds=seconds, console=console, seed=seed)
    text, advice = finish(kind, given.out, life)
    if given.json:
        kill = life.kills[0]
        print_json({"solved": life.ended["solved"], "steps": life.steps, kind.NOUN: life.puts,
                    "acknowledged": kill.acknowledged, "lost": kill.lost})  # fmt: skip
    else:
        print(f"\n{text}\n\nreport: {given.out / 'report.html'}\nwhat to try next:")
        print("\n".join(f"  {line}" for line in advice))
    return 1 if life.kills[0].lost else 0

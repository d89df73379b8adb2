"""Saving and loading beside the peers: each in a process of its own, one after the other.

Ours are synced and checksummed; those of the peers are neither, and none is incremental. Memory is
touched before every save and load, outside the clock, so that nobody waits for the host's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import environments
from bench.versions import PEERS

ROUNDS = 3
WORKER = Path(__file__).with_name("checkpoint_worker.py")
TRANSITIONS = {"Recollect": None, "TorchRL": "torchrl", "cpprb": "cpprb"}  # environments
UNIFORM = {"Recollect, uniform": None, "TorchRL, uniform": "torchrl"}
ROLLOUTS = {"Recollect rollouts": None, "TransferQueue": "transferqueue", "Reverb": "reverb"}


@dataclass
class Saved:
    """Seconds of each save and load of one implementation; or why there are none."""

    name: str
    save: list[float]
    load: list[float]
    second: list[float]  # saves after one percent of new rows
    pause: dict[str, float]  # seconds that a sampling thread waits, by what
    floor: dict[str, list[float]]  # seconds of what a save or a load cannot do without, by what
    error: str = ""


def measure(say: Callable[[str], None], rounds: int = ROUNDS) -> dict[str, list[Saved]]:
    """What each implementation needs for 1,000,000 transitions and for 20,000 rollouts."""
    kinds = {"transitions": TRANSITIONS, "uniform": UNIFORM, "rollouts": ROLLOUTS}
    return {
        kind: [_run(name, env, rounds, say) for name, env in of.items()]
        for kind, of in kinds.items()
    }


def _run(name: str, environment: str | None, rounds: int, say: Callable[[str], None]) -> Saved:
    say(f"checkpoint: {name}")
    python = sys.executable
    if environment is not None:
        peer = next(peer for peer in PEERS if peer.name.lower() == environment)
        prepared = environments.prepare(peer, say)
        if prepared.python is None:
            return Saved(name, [], [], [], {}, {}, prepared.error)
        python = str(prepared.python)
    with tempfile.TemporaryDirectory(prefix="recollect-bench-") as folder:
        command = [python, str(WORKER), name, folder, str(rounds)]
        done = subprocess.run(command, capture_output=True, text=True, env=_environment())
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        last = done.stderr.strip().splitlines()[-1:] or ["it printed nothing"]
        return Saved(name, [], [], [], {}, {}, last[0])
    found = json.loads(lines[-1])
    return Saved(
        name, found["save"], found["load"], found.get("second", []), found.get("pause", {}),
        found.get("floor", {}),
    )  # fmt: skip


def _environment() -> dict[str, str]:
    """Peers must not see our own packages."""
    return {k: v for k, v in os.environ.items() if k != "VIRTUAL_ENV"}

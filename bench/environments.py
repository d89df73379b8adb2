"""Virtual environments of the peers: made once, kept under `bench/.envs`, remade when pins change.

An environment carries the hash of what was installed into it. A failed installation is an
outcome, not an exception: the report shows its last line in place of numbers.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.versions import Peer

ROOT = Path(__file__).resolve().parent / ".envs"
STAMP = "installed.sha256"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Environment:
    """A peer's interpreter, or why there is none."""

    peer: Peer
    python: Path | None
    error: str = ""


def prepare(peer: Peer, say: Say = print) -> Environment:
    """The peer's environment, installed now where it is missing or its pins changed."""
    folder = ROOT / peer.name
    python = folder / "bin" / "python"
    wanted = _fingerprint(peer)
    stamp = folder / STAMP
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return Environment(peer, python)
    base = shutil.which(f"python{peer.python}")
    if base is None:
        return Environment(peer, None, f"python{peer.python} is not on the PATH")
    shutil.rmtree(folder, ignore_errors=True)
    commands = [[base, "-m", "venv", str(folder)]]
    commands += [[str(python), "-m", "pip", "install", "-q", *step] for step in peer.steps]
    for command in commands:
        say(f"{peer.name}: {' '.join(command[1:])}".replace(str(ROOT), ".envs"))
        error = _run(command)
        if error:
            return Environment(peer, None, error)
    stamp.write_text(wanted)
    return Environment(peer, python)


def _fingerprint(peer: Peer) -> str:
    text = "\n".join([peer.python, *(" ".join(step) for step in peer.steps)])
    return hashlib.sha256(text.encode()).hexdigest()


def _run(command: list[str]) -> str:
    """Run it; the line that says what went wrong, or nothing."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or [f"exit status {done.returncode}"])[-1].strip()

"""A run that is killed again and again: `resume_worker.py FOLDER SEED KILLS`.

The process that is started loads everything once and then forks a child for each life; the child is
killed with SIGKILL after a random time, until one comes to its end. How long a life takes that
nobody ends is found out first: so a quick machine kills as often as a slow one. At the end a line
of JSON says how often that was and what happened.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from resume_world import Plan, Run

import recollect as rc
from recollect.kernels import load as kernels

TICK = 0.004  # seconds


def live(folder: Path, plan: Plan) -> None:
    """One life, in a process of its own."""
    chance = random.Random(time.time_ns())
    sync = chance.choice(["always", "interval"])
    journal = rc.Journal(folder / "journal", sync=sync, interval=0.02) if plan.journal else None

    async def main() -> None:
        life = Run(folder / "checkpoints", plan, chance, journal)
        await life.live()
        life.check()
        life.buffer.close()

    asyncio.run(main())


def begin(folder: Path, plan: Plan) -> int:
    """Begin a life; returns the number of its process."""
    child = os.fork()
    if child == 0:
        try:
            live(folder, plan)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def ended(child: int) -> int:
    """Wait for the end of a life; returns its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(folder: Path, seed: int, kills: int) -> int:
    plan = Plan.drawn(seed, unit=TICK)
    chance = random.Random(seed)
    kernels.load()
    kernels.load_tokens()
    killed = lives = 0
    began = time.monotonic()
    undisturbed = ended(begin(folder / "undisturbed", plan))
    longest = (time.monotonic() - began) / 3
    if undisturbed:
        return undisturbed
    while True:
        lives += 1
        child = begin(folder, plan)
        if killed < kills:
            time.sleep(chance.uniform(0.0, longest))
            os.kill(child, signal.SIGKILL)
        code = ended(child)
        if code == -signal.SIGKILL:
            killed += 1
            continue
        print(json.dumps({"killed": killed, "lives": lives, "code": code, "plan": str(plan)}))
        return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))

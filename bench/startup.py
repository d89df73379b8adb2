"""What a user waits for before the first batch: importing, and compiling where nothing is cached.

Every number is taken in a fresh process. Import time is `import recollect` less
`import numpy, pyarrow`, the two taken in turn.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness import REPOSITORY

IMPORT = "import time; began = time.perf_counter(); import {}; print(time.perf_counter() - began)"
FIRST_CALL = """
import time
import numpy as np
import recollect as rc
rows = {"obs": np.zeros((64, 17), np.float32), "done": np.zeros(64, bool)}
began = time.perf_counter()
table = rc.Table("first", capacity=1000, sampler=rc.Prioritized(alpha=0.6, beta=0.4), seed=0)
table.insert(rows)
batch = table.sample(32)
table.update(batch.info.keys, priority=np.ones(32))
print(time.perf_counter() - began)
"""
FIRST_ROLLOUTS = """
import time
import recollect as rc
group = rc.Group([rc.Rollout([1, 2], [3, 4], finish_reason="stop") for _ in range(8)], task="math")
began = time.perf_counter()
buffer = rc.RolloutBuffer().sync
buffer.put(group, version=0)
taken = buffer.take_batch({"math": 1}, lease=60)
buffer.confirm(taken.lease)
print(time.perf_counter() - began)
"""
FIRST_STEPS = """
import time
import numpy as np
import recollect as rc
began = time.perf_counter()
buffer = rc.ReplayBuffer(1000, seed=0)
for step in range(9):
    buffer.add(obs=np.zeros(17, np.float32), action=0, reward=1.0, terminated=step == 8)
buffer.sample(4)
print(time.perf_counter() - began)
"""


@dataclass
class Startup:
    """Seconds, one entry per process; `failure` where it did not run."""

    base: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    rollouts: list[float] = field(default_factory=list)  # each with a kernel cache of its own
    steps: list[float] = field(default_factory=list)
    failure: str = ""

    @property
    def import_seconds(self) -> float:
        """What importing Recollect adds to importing what it stands on."""
        return statistics.median(self.ours) - statistics.median(self.base)


def measure(python: Path, imports: int, starts: int, say: Callable[[str], None]) -> Startup:
    """Import and first-call times of Recollect in fresh processes."""
    result = Startup()
    say(f"startup: {imports} imports, {starts} cold and warm starts")
    try:
        for _ in range(imports):
            result.base.append(_seconds(python, IMPORT.format("numpy, pyarrow")))
            result.ours.append(_seconds(python, IMPORT.format("recollect")))
        for _ in range(starts):
            with tempfile.TemporaryDirectory() as cache:
                result.cold.append(_seconds(python, FIRST_CALL, cache))
                result.warm.append(_seconds(python, FIRST_CALL, cache))
        for program, times in ((FIRST_ROLLOUTS, result.rollouts), (FIRST_STEPS, result.steps)):
            with tempfile.TemporaryDirectory() as cache:
                times.append(_seconds(python, program, cache))
    except subprocess.CalledProcessError as error:
        lines = [line for line in str(error.stderr).splitlines() if line.strip()]
        result.failure = (lines or [str(error)])[-1]
        say(f"startup: {result.failure}")
    return result


def _seconds(python: Path, program: str, cache: str | None = None) -> float:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    if cache is not None:
        environment["RECOLLECT_CACHE_DIR"] = cache
    done = subprocess.run(
        [str(python), "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])

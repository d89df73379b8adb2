"""A prioritized table at work: several threads fill it, a learner samples and updates it.

    python examples/demo.py [--seconds 8] [--actors 3]

Each actor steps a few simulated environments and inserts what they did. The learner fits a
model of the reward: it draws the steps that it understands least, learns from them, and writes
back how wrong it still is as their new priority. A limiter keeps both sides in step.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

import recollect as rc

TASKS = ("balance", "maze", "reach")
CAPACITY = 50_000
ENVIRONMENTS = 64  # that an actor steps together, and inserts with one call
BATCH = 256
RATIO = 8.0  # samples per insert
OBS = 8
EDGES = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, np.inf)  # of the histogram of priorities


def make_table(seed: int) -> rc.Table:
    return rc.Table(
        "replay",
        capacity=CAPACITY,
        sampler=rc.Prioritized(alpha=0.6, beta=rc.Linear(0.4, 1.0, 20_000)),
        remover=rc.Fifo(),
        limiter=rc.SampleToInsertRatio(RATIO, min_size=2_000, error_buffer=8_000),
        partition_by=("task",),
        seed=seed,
    )


class Learner:
    """A linear model of the reward for each task; only its own thread writes it."""

    def __init__(self) -> None:
        self.weights = np.zeros((len(TASKS), OBS), np.float32)
        self.steps = 0
        self.error = float("nan")

    def learn(self, batch: rc.Batch) -> NDArray[np.float32]:
        """One step of gradient descent; returns how wrong it was about each row."""
        obs, task = batch["obs"], batch["task_number"]
        missed = batch["reward"] - np.einsum("ij,ij->i", obs, self.weights[task])
        push = (batch.info.weights * missed)[:, None] * obs
        np.add.at(self.weights, task, (0.1 / len(task)) * push.astype(np.float32))
        wrong: NDArray[np.float32] = np.abs(missed)
        self.steps += 1
        self.error = float(wrong.mean())
        return wrong


def act(table: rc.Table, number: int, seed: int, stop: threading.Event) -> None:
    """Step environments of one task and insert what they did, until told to stop."""
    rng = np.random.default_rng([seed, number])
    task = number % len(TASKS)
    truth = np.random.default_rng([seed, 1000 + task]).normal(size=OBS).astype(np.float32)
    obs = np.zeros((ENVIRONMENTS, OBS), np.float32)
    noise = np.geomspace(0.01, 1.0, ENVIRONMENTS, dtype=np.float32)  # some surprise more
    version = 0
    while not stop.is_set():
        obs = 0.9 * obs + 0.4 * rng.standard_normal((ENVIRONMENTS, OBS), np.float32)
        reward = obs @ truth + noise * rng.standard_normal(ENVIRONMENTS, np.float32)
        table.insert(  # new steps get the highest priority, so that they are drawn soon
            {"obs": obs, "reward": reward, "task_number": np.full(ENVIRONMENTS, task, np.int8)},
            task=TASKS[task],
            version=version,
        )
        version += 1


def learn(table: rc.Table, learner: Learner, stop: threading.Event) -> None:
    """Sample, learn, update, until told to stop."""
    while not stop.is_set():
        batch = table.sample(BATCH)
        table.update(batch.info.keys, priority=learner.learn(batch))


# -- what a person sees ---------------------------------------------------------------------------
def title(text: str) -> None:
    bold = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    print(f"\n\033[1m{text}\033[0m" if bold else f"\n{text}")


def bar(share: float, width: int = 28) -> str:
    block = "█" if (sys.stdout.encoding or "").lower().startswith("utf") else "#"
    return block * round(share * width)


def short(count: int) -> str:
    return str(count) if count < 1000 else str(tqdm.format_sizeof(count))


def watch(table: rc.Table, learner: Learner, seconds: float, ended: Callable[[], bool]) -> None:
    """Show what happens: one live line on a terminal, a few lines in a log."""
    live = sys.stdout.isatty()
    begin = time.monotonic()
    say_at = 0.0
    form = "{l_bar}{bar:10}| {n:.0f}/{total:.0f} s{postfix}"
    with tqdm(total=seconds, disable=not live, bar_format=form, file=sys.stdout) as progress:
        while (elapsed := time.monotonic() - begin) < seconds and not ended():
            stats = table.stats()
            line = (
                f"{short(stats['size'])} items, {short(stats['inserts'])} in, "
                f"{short(stats['samples'])} drawn, "
                f"{short(stats['removed'].get('evicted', 0))} evicted, error {learner.error:.2f}"
            )
            progress.n = elapsed
            progress.set_postfix_str(line)
            if not live and elapsed >= say_at:
                print(f"{elapsed:5.1f} s  {line}", flush=True)
                say_at += seconds / 5
            time.sleep(min(0.1, seconds - elapsed))
        progress.n = min(elapsed, seconds)


def run(table: rc.Table, learner: Learner, actors: int, seconds: float, seed: int) -> float:
    """Let actors and learner work; returns for how many seconds they did."""
    stop = threading.Event()
    begin = time.monotonic()
    with ThreadPoolExecutor(actors + 1) as pool:
        work = [pool.submit(act, table, number, seed, stop) for number in range(actors)]
        work.append(pool.submit(learn, table, learner, stop))
        try:
            watch(table, learner, seconds, lambda: any(job.done() for job in work))
        except KeyboardInterrupt:
            print("\nstopped early; this is what happened until now")
        finally:
            stop.set()
            table.limiter = rc.MinSize(1)  # wakes whoever waits for the other side
    for job in work:
        job.result()  # an error of a thread is an error of the program
    return time.monotonic() - begin


def show_throughput(table: rc.Table, learner: Learner, elapsed: float) -> None:
    stats = table.stats()
    title("Throughput")
    print(f"  inserts   {stats['inserts'] / elapsed:>12,.0f} /s")
    print(f"  samples   {stats['samples'] / elapsed:>12,.0f} /s, in batches of {BATCH}")
    print(f"  updates   {learner.steps * BATCH / elapsed:>12,.0f} /s")
    ratio = stats["samples"] / max(1, stats["inserts"])
    print(f"  samples per insert: {ratio:.2f}; the limiter keeps them near {RATIO:g}")


def show_stats(table: rc.Table) -> None:
    title("table.stats()")
    for name, value in table.stats().items():
        print(f"  {name:<18} {value:,}" if isinstance(value, int) else f"  {name:<18} {value}")
    print(f"  counts('task')     {table.counts('task')}")


def show_draws(table: rc.Table) -> None:
    """Compare how often priorities are drawn with how often they should be."""
    assert isinstance(table.sampler, rc.Prioritized)
    alpha = table.sampler.alpha
    priority = table.sample(len(table), replace=False).info.priority  # every item once
    drawn = np.concatenate([table.sample(4096).info.priority for _ in range(50)])
    bins = np.digitize(priority, EDGES) - 1
    weight = np.bincount(bins, priority**alpha, len(EDGES) - 1)
    expected = weight / weight.sum()
    items = np.bincount(bins, minlength=len(EDGES) - 1) / priority.size
    found = np.bincount(np.digitize(drawn, EDGES) - 1, minlength=len(EDGES) - 1) / drawn.size
    title(f"Priorities and {drawn.size:,} draws: probability = priority^{alpha:g} / sum")
    print("  priority        items   expected   drawn")
    for low, high, own, should, did in zip(
        EDGES[:-1], EDGES[1:], items, expected, found, strict=True
    ):
        span = f"{low:.2f} to {high:.2f}" if high < np.inf else f"{low:.2f} and up"
        print(f"  {span:<13} {own:>7.1%} {should:>10.1%} {did:>7.1%}  {bar(did)}")


def show_query(table: rc.Table) -> None:
    where = (rc.field("task") == "maze") & (rc.field("priority") > 0.2)
    found = table.count(where)
    title("A query: task = 'maze' and priority > 0.2")
    print(f"  {found:,} of {table.count(rc.field('task') == 'maze'):,} 'maze' items match")
    if found:
        batch = table.sample(4, where=where)
        shown = ", ".join(f"{p:.2f}" for p in batch.info.priority)
        print(f"  sample(4, where=...) drew tasks {set(batch.info.task)} with priorities {shown}")


def show_lease(table: rc.Table) -> None:
    title("A lease that is given back")
    batch = table.take(3, lease=60.0, owner="demo")
    print(f"  take(3, lease=60) hides {table.stats()['leased']} items; size {len(table):,} stays")
    table.give_back(batch.info.lease)
    again = table.get(batch.info.keys)
    print(
        f"  give_back shows them again; deliveries {batch.info.deliveries} -> "
        f"{again.info.deliveries}, now {table.stats()['leased']} leased"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8.0, help="how long threads work")
    parser.add_argument("--actors", type=int, default=3, help="threads that insert")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if not options.seconds > 0 or options.actors < 1:
        parser.error("--seconds must be above 0 and --actors at least 1")

    print(
        f"{options.actors} actors insert {ENVIRONMENTS} steps a call, one learner draws {BATCH}; "
        f"the table holds {CAPACITY:,}. Ctrl-C ends it early.",
        flush=True,
    )
    with make_table(options.seed) as table:
        learner = Learner()
        elapsed = run(table, learner, options.actors, options.seconds, options.seed)
        show_throughput(table, learner, elapsed)
        if len(table):
            show_draws(table)
            show_query(table)
            show_lease(table)
        show_stats(table)
    title("What to try next")
    print("  make_table() in this file: remover=rc.Smallest('priority'), another limiter, alpha=0")
    print("  docs/guides/getting-started.md, then docs/guides/tables.md")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)

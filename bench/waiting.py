"""Calls beside others that wait: what a leased take and its confirm cost while 200 wait.

Those who wait are coroutines of a loop in another thread, for items that never come. The peer is
the same table while nobody waits, in turn with it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

WAITERS, ITEMS, CALLS = 200, 4096, 200
MOST_RATIO = 1.4


@dataclass
class Waiting:
    """Seconds of a call, one entry per round: alone, and beside those who wait."""

    alone: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)


def measure(rounds: int, say: Callable[[str], None]) -> Waiting:
    """Time both in turn."""
    import recollect as rc

    say(f"waiting: leased takes beside {WAITERS} that wait, {rounds} rounds")
    table = rc.Table("t", capacity=ITEMS, sampler=rc.Fifo(), partition_by=("task",), seed=0)
    found = Waiting()
    _calls(table, np.arange(ITEMS))
    for _ in range(rounds):
        found.alone.append(_calls(table, np.arange(ITEMS)))
        with _waiters(table):
            found.beside.append(_calls(table, np.arange(ITEMS)))
    table.close()
    return found


def _calls(table: Any, x: Any) -> float:
    """The median of some calls, on a table that is filled before."""
    table.clear()
    table.insert({"x": x}, task="math")
    seconds = []
    for _ in range(CALLS):
        began = time.perf_counter()
        table.confirm(table.take(1, lease=60.0).info.lease)
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


@contextmanager
def _waiters(table: Any) -> Iterator[None]:
    """Many that wait for what never comes."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    waiting = [
        asyncio.run_coroutine_threadsafe(table.take_async(1, where={"task": "never"}), loop)
        for _ in range(WAITERS)
    ]
    while table.stats()["waiting_to_sample"] < WAITERS:
        time.sleep(0.01)
    try:
        yield
    finally:
        for one in waiting:
            one.cancel()
        while table.stats()["waiting_to_sample"]:
            time.sleep(0.01)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

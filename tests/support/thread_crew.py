"""Threads for tests of what many of them do at once."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable


class Crew:
    """Threads that work until told to stop; the first error of any is raised at the end."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.stop = threading.Event()
        self.threads: list[threading.Thread] = []

    def add(self, work: Callable[[random.Random], None], count: int = 1) -> None:
        for _ in range(count):
            seed = len(self.threads)
            self.threads.append(threading.Thread(target=self._run, args=(work, seed), daemon=True))

    def _run(self, work: Callable[[random.Random], None], seed: int) -> None:
        rng = random.Random(seed)
        try:
            while not self.stop.is_set():
                work(rng)
        except BaseException as error:
            self.errors.append(error)
            self.stop.set()

    def run(self, seconds: float) -> None:
        for thread in self.threads:
            thread.start()
        self.stop.wait(seconds)
        self.stop.set()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive(), "a thread hangs"
        if self.errors:
            raise self.errors[0]

"""Accounts: what happened to the groups of each task, so that none is lost unseen.

Every group that was put is in one of these: stored, leased, or left with a reason.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recollect.rollouts.entries import GroupEntry
from recollect.rollouts.staleness import lag

QUANTILES = (0.0, 0.5, 0.9, 0.99, 1.0)
STARVING = 4  # groups that must have expired lately before a task can be said to starve
FORGETTING = 0.5  # what is left of the recent counts after each train step that expired something

log = logging.getLogger("recollect.rollouts")


@dataclass(slots=True, eq=False)
class Account:
    """The counts of one task, in the order in which they are written down."""

    expired: int = 0
    left: Counter[str] = field(default_factory=Counter)  # by reason
    put: int = 0
    recently_expired: float = 0.0
    recently_taken: float = 0.0
    retried: int = 0
    sampled: int = 0  # once for each draw of `sample`, the last one included
    starves: bool = False
    taken: int = 0  # handed out, by a take or under a lease


class Accounts:
    """The accounts of all tasks. Guarded by the table's lock."""

    def __init__(self) -> None:
        self._tasks: dict[str, Account] = {}

    def __getitem__(self, task: str) -> Account:
        account = self._tasks.get(task)
        if account is None:
            account = self._tasks[task] = Account()
        return account

    def tasks(self) -> list[str]:
        return list(self._tasks)

    def took(self, task: str, count: int) -> None:
        account = self[task]
        account.taken += count
        account.recently_taken += count

    def drew(self, tasks: Iterable[str]) -> None:
        """Groups of these tasks were sampled; a task that is sampled from does not starve."""
        for task, count in Counter(tasks).items():
            account = self[task]
            account.sampled += count
            account.recently_taken += count

    def expired(self, task: str, count: int) -> None:
        account = self[task]
        account.expired += count
        account.recently_expired += count

    def judge(self, tasks: Iterable[str]) -> None:
        """After a train step: does a task's work expire faster than it is taken?"""
        for task in tasks:
            account = self[task]
            expired, taken = account.recently_expired, account.recently_taken
            starves = expired >= STARVING and expired > taken
            if account.starves:  # it goes on until it clearly ends, so that the warning comes once
                starves = 2 * expired > taken
            if starves and not account.starves:
                log.warning(
                    "task %r starves: lately %d of its groups expired and %d were taken; take more "
                    "of it, generate less, or allow more staleness",
                    task,
                    expired,
                    taken,
                )
            account.starves = starves
            account.recently_expired *= FORGETTING
            account.recently_taken *= FORGETTING

    def report(
        self,
        entries: list[GroupEntry],
        counts: dict[str, tuple[int, int, int]],
        now: float,
        train_step: int,
    ) -> dict[str, dict[str, Any]]:
        """Plain data; `counts` has, by task, how many groups are stored, leased and archived."""
        by_task: dict[str, list[GroupEntry]] = {}
        for entry in entries:
            if entry.trained:
                continue
            by_task.setdefault(entry.task, []).append(entry)
        report = {}
        for task, account in self._tasks.items():
            here = by_task.get(task, [])
            stored, leased, archived = counts.get(task, (0, 0, 0))
            report[task] = {
                "put": account.put,
                "stored": stored,
                "leased": leased,
                "archived": archived,  # these have left, with the reason `trained`
                "taken": account.taken,
                "sampled": account.sampled,
                "expired": account.expired,
                "retried": account.retried,
                "left": dict(account.left),
                "age": _quantiles([now - entry.put_at for entry in here]),
                "lag": _quantiles([lag(train_step, e.version) for e in here if e.version >= 0]),
                "starves": account.starves,
            }
        return report

    def state(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            task: {
                name: dict(account.left) if name == "left" else getattr(account, name)
                for name in Account.__slots__
            }
            for task, account in self._tasks.items()
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to what `state` returned."""
        self._tasks = {}
        for task, counts in state.items():
            account = self[task]
            for name, value in counts.items():
                setattr(account, name, Counter(value) if name == "left" else value)


def _quantiles(values: list[float]) -> dict[str, float]:
    """Quantiles by name, such as p50; empty where there are no values."""
    if not values:
        return {}
    found = np.quantile(np.array(values, np.float64), QUANTILES).tolist()
    return {f"p{share * 100:g}": value for share, value in zip(QUANTILES, found, strict=True)}

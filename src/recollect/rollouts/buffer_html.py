"""What a notebook shows of a rollout buffer: groups by task and status, and how old they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from recollect.base.html import filled, grid, panel, sparkline
from recollect.base.readable import size
from recollect.data.info import Info
from recollect.rollouts.rollout import Status
from recollect.rollouts.staleness import lag


def of_rollouts(
    stats: Mapping[str, Any],
    counts: Mapping[tuple[str, Status], int],
    accounts: Mapping[str, Mapping[str, Any]],
    train_step: int,
    versions: Sequence[int],
    info: Info | None,
) -> str:
    """The panel of a buffer.

    `versions` are those of the groups that were not trained on, negative where a group has none;
    `info` is of some groups, None where there are none.
    """
    lags = [lag(train_step, version) for version in versions if version >= 0]
    rows = [
        ("groups", filled(stats["size"], stats["capacity"], "groups")),
        ("payload", size(stats["nbytes"])),
        ("train step", f"{train_step}"),
        ("leased", f"{stats['leased']:,} groups in {stats['leases']:,} leases"),
        ("lag", sparkline(lags, "lag")),
    ]
    if info is not None and np.ptp(info.priority):
        rows.append(("priority", sparkline(info.priority, "priority")))
    statuses = [status for status in Status if any(key[1] is status for key in counts)]
    tasks = {
        task: [
            *(f"{counts.get((task, status), 0):,}" for status in statuses),
            f"{account['taken'] + account['sampled']:,}",
            f"{account['expired']:,}",
            "starves" if account["starves"] else "",
        ]
        for task, account in accounts.items()
    }
    columns = [*(status.value for status in statuses), "handed out", "expired", ""]
    below = grid("task", columns, tasks) if tasks else ""
    return panel("RolloutBuffer", rows, below)

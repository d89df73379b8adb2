"""What a notebook shows of a replay buffer: its steps, its rules, how long episodes are."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from recollect.base.html import filled, panel, sparkline
from recollect.base.readable import size
from recollect.data.batch import Batch
from recollect.rules.limiters import Limiter
from recollect.rules.selectors import Selector


def of_replay(
    stats: Mapping[str, Any], sampler: Selector, limiter: Limiter, episodes: Batch | None
) -> str:
    """The panel of a buffer; `episodes` has a row for each, None where no step is stored."""
    rows = [
        ("steps", filled(stats["size"], stats["capacity"], "steps")),
        ("payload", size(stats["nbytes"])),
        ("environments", f"{stats['num_envs']:,}"),
        ("sampler", escape(str(sampler))),
        ("limiter", escape(str(limiter))),
        ("so far", f"{stats['inserts']:,} inserted, {stats['samples']:,} sampled"),
    ]
    if episodes is not None:
        rows.append(("episode lengths", sparkline(episodes["length"], "length")))
        if "return" in episodes:
            rows.append(("episode returns", sparkline(episodes["return"], "return")))
    return panel("ReplayBuffer", rows)

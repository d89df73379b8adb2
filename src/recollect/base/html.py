"""What notebooks show of tables and buffers: sizes, counts and small histograms, as HTML.

Everything here looks and changes nothing: no counter moves, nothing is drawn. Of a large table
only some items are looked at, spread evenly over the order of their keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.readable import size
from recollect.rollouts.rollout import Status
from recollect.rollouts.staleness import lag

if TYPE_CHECKING:
    from recollect.replay.buffer import ReplayBuffer
    from recollect.rollouts.blocking import BlockingBuffer
    from recollect.rollouts.buffer import RolloutBuffer
    from recollect.store import Store
    from recollect.table.table import Table

LOOKED_AT = 2048  # items at most, for a histogram
BINS, WIDTH, HEIGHT = 24, 144, 28  # of a histogram; the last two in pixels

Pairs = Iterable[tuple[str, str]]


# -- pieces ---------------------------------------------------------------------------------------
def sparkline(values: Any, what: str) -> str:
    """A histogram as a small picture, with the lowest and the highest value beside it.

    >>> "<svg" in sparkline([0, 0, 1, 5], "lag")
    True
    """
    numbers = np.asarray(values, np.float64)
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size:
        return "none"
    low, high = numbers.min(), numbers.max()
    whole = bool((numbers == np.floor(numbers)).all()) and high - low < BINS
    bins = int(high - low) + 1 if whole else BINS
    bounds = (low - 0.5, high + 0.5) if whole else (low, high if high > low else low + 1.0)
    counts, _ = np.histogram(numbers, bins, bounds)
    width = WIDTH / bins
    bars = "".join(
        f'<rect x="{place * width:.1f}" y="{HEIGHT * (1 - share):.1f}" '
        f'width="{max(width - 1, 0.5):.1f}" height="{HEIGHT * share:.1f}"/>'
        for place, share in enumerate((counts / counts.max()).tolist())
        if share
    )
    said = f"{what} from {low:g} to {high:g}"
    return (
        f"{low:g}&nbsp;<svg width='{WIDTH}' height='{HEIGHT}' fill='currentColor' role='img' "
        f"aria-label='{escape(said, quote=True)}' style='vertical-align:middle'>"
        f"<title>{escape(said)}</title>{bars}</svg>&nbsp;{high:g}"
    )


def panel(title: str, rows: Pairs, below: str = "") -> str:
    """A title, and names with what they stand for; values are HTML already."""
    listed = "".join(
        f"<tr><th style='text-align:left;font-weight:normal;opacity:.7'>{escape(name)}</th>"
        f"<td style='text-align:left'>{value}</td></tr>"
        for name, value in rows
    )
    return f"<div><strong>{escape(title)}</strong><table>{listed}</table>{below}</div>"


def grid(corner: str, columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """A table with names on two sides."""
    head = "".join(f"<th>{escape(name)}</th>" for name in (corner, *columns))
    body = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th>"
        + "".join(f"<td style='text-align:right'>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for name, cells in rows.items()
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _filled(held: int, capacity: int | None, what: str) -> str:
    if capacity is None:
        return f"{held:,} {what}"
    return (
        f"{held:,} of {capacity:,} {what} "
        f"<progress value='{held}' max='{capacity}' style='vertical-align:middle'></progress>"
    )


def _closed(title: str) -> str:
    return panel(title, [("closed", "make a new one to go on")])


# -- tables and stores ----------------------------------------------------------------------------
def of_table(table: Table) -> str:
    if table.core.closed:
        return _closed(f"Table {table.name!r}")
    stats = table.stats()
    moved = f"{stats['inserts']:,} inserted, {stats['samples']:,} sampled"
    waiting = f"{stats['waiting_to_insert']} to insert, {stats['waiting_to_sample']} to sample"
    rows = [
        ("items", _filled(stats["size"], stats["capacity"], "items")),
        ("payload", size(stats["nbytes"])),
        ("sampler", escape(str(table.sampler))),
        ("remover", escape(str(table.remover))),
        ("limiter", escape(str(table.limiter))),
        ("so far", f"{moved}, {stats['removals']:,} removed"),
        ("leased", f"{stats['leased']:,} items in {stats['leases']:,} leases"),
        ("waiting", waiting),
    ]
    info = _some(table)
    if info is not None:
        rows.append(("priority", sparkline(info.priority, "priority")))
        rows.append(("times sampled", sparkline(info.times_sampled, "times sampled")))
    columns = {name: [str(column.dtype), _shape(column)] for name, column in table.columns.items()}
    below = grid("column", ("dtype", "shape of a row"), columns) if columns else ""
    return panel(f"Table {table.name!r}", rows, below)


def _shape(column: Any) -> str:
    ragged = ("ragged",) if column.ragged else ()
    return " × ".join(map(str, (*ragged, *column.shape))) or "one number"


def _some(table: Table) -> Any:
    """The fields of some items, without their payload; None where there are none."""
    with table.core.transaction():
        if table.core.schemas.rows is None:
            return None
        keys = table.core.storage.find(None, None, visible=True)
        if not keys.size:
            return None
        return table.core.storage.get(_thinned(keys), []).read(np.empty).info


def _thinned(values: NDArray[Any]) -> NDArray[Any]:
    step = -(-values.size // LOOKED_AT)
    return np.sort(values)[::step].copy()


def of_store(store: Store) -> str:
    return "".join(of_table(table) for table in store._tables.values())


# -- buffers --------------------------------------------------------------------------------------
def of_rollouts(buffer: RolloutBuffer | BlockingBuffer) -> str:
    if buffer.table.core.closed:
        return _closed("RolloutBuffer")
    stats, counts, accounts = buffer.stats(), buffer.counts(), buffer.accounts()
    core = buffer.core
    with core.table.transaction():
        step = core.train_step
        lags = [
            lag(step, entry.version)
            for entry in core.entries.values()
            if entry.version >= 0 and not entry.trained
        ]
    rows = [
        ("groups", _filled(stats["size"], stats["capacity"], "groups")),
        ("payload", size(stats["nbytes"])),
        ("train step", f"{step}"),
        ("leased", f"{stats['leased']:,} groups in {stats['leases']:,} leases"),
        ("lag", sparkline(lags, "lag")),
    ]
    info = _some(core.face)
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


def of_replay(buffer: ReplayBuffer) -> str:
    if buffer.core.closed:
        return _closed("ReplayBuffer")
    stats = buffer.stats()
    rows = [
        ("steps", _filled(stats["size"], stats["capacity"], "steps")),
        ("payload", size(stats["nbytes"])),
        ("environments", f"{stats['num_envs']:,}"),
        ("sampler", escape(str(buffer.sampler))),
        ("limiter", escape(str(buffer.limiter))),
        ("so far", f"{stats['inserts']:,} inserted, {stats['samples']:,} sampled"),
    ]
    if stats["size"]:
        episodes = buffer.episodes()
        rows.append(("episode lengths", sparkline(episodes["length"], "length")))
        if "return" in episodes:
            rows.append(("episode returns", sparkline(episodes["return"], "return")))
    return panel("ReplayBuffer", rows)

"""From outcomes to tables: one per workload, and one each for memory, growth and start."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench import figures
from bench.anatomy import Part
from bench.checkpoint import Saved
from bench.figures import NOTHING
from bench.harness import FLOOR, OURS, Implementation, Outcome, Outcomes
from bench.journal import Cost
from bench.packing import GROUP, MOST, MOST_SECONDS, RANKS, ROLLOUTS, Packing
from bench.production import BATCH, FLYING, MOST_DRAIN, SIZES, TOKENS, Production
from bench.startup import Startup
from bench.waiting import MOST_RATIO, WAITERS, Waiting
from bench.workloads import growth, w4_memory
from bench.workloads.base import Against, Floor, Operation, Workload

SHARE_OF, MOST_SHARE = "SB3", 1 / 6
MOST_IMPORT_SECONDS = 0.3
MOST_COMPILE_SECONDS = 20.0
MOST_LOSS = 0.2  # of insert throughput, to a journal at a quarter of the disk's speed
MOST_PAUSE = 0.05  # seconds that a sampling thread waits for a save, 99.9th percentile
LEAST_OF_DISK = 0.6  # of a plain write and sync, that journaled inserts reach


@dataclass
class Table:
    """A title, a header, rows of text, and notes below."""

    title: str
    header: list[str]
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def comparison(
    workload: Workload, implementations: Sequence[Implementation], outcomes: Outcomes
) -> Table:
    """Operations down, implementations across, then the ratio to the best peer and its bounds."""
    shown = [one for one in implementations if one.name in outcomes and one.name != FLOOR]
    title = f"{workload.name}: {workload.title}, {workload.rows:,} rows of {workload.payload:,} B"
    header = [f"{workload.unit}/s", *(one.title for one in shown)]
    table = Table(title, [*header, "best peer", "ratio", "must", "aim", "verdict"])
    titles = {one.name: one.title for one in implementations}
    for operation in workload.operations:
        cells = [_cell(outcomes[one.name], operation) for one in shown]
        table.rows.append([operation.name, *cells, *_judged(operation, outcomes, titles)])
        for against in operation.against:
            table.rows.append(_against_row(operation, against, outcomes, titles, len(shown)))
    for floor in workload.floors:
        table.rows.append(_floor_row(floor, outcomes, len(shown)))
    for one in shown:
        table.notes.extend(_remarks(one.title, outcomes[one.name]))
    return table


def memory(
    workload: Workload, implementations: Sequence[Implementation], outcomes: Outcomes
) -> Table:
    """Resident bytes per row and how many of them are not payload."""
    title = f"Memory, {workload.name}: growth of resident memory at {workload.rows:,} rows"
    table = Table(title, ["", "bytes per row", "beyond payload", "must", "verdict"])
    for one in implementations:
        outcome = outcomes.get(one.name)
        if outcome is None or one.name == FLOOR:
            continue
        if not outcome.bytes_per_row:
            table.rows.append([one.title, _absence(outcome), NOTHING, NOTHING, NOTHING])
            continue
        used = statistics.median(outcome.bytes_per_row)
        beyond = used - workload.payload
        bounds = [NOTHING, NOTHING]
        if one.name == OURS and workload.most_bytes is not None:
            bounds = [
                f"at most {workload.most_bytes}",
                figures.limit(beyond, workload.most_bytes),
            ]
        table.rows.append([one.title, f"{used:,.0f}", f"{beyond:,.0f}", *bounds])
    return table


def frames(
    workload: Workload, implementations: Sequence[Implementation], outcomes: Outcomes
) -> Table:
    """Resident bytes per step, and Recollect's as a share of those of the peer it is held to."""
    title = f"Memory, {workload.name}: growth of resident memory at {workload.rows:,} steps"
    table = Table(title, ["", "bytes per step", f"share of {SHARE_OF}", "must", "verdict"])
    used = {
        one.title: statistics.median(outcomes[one.name].bytes_per_row)
        for one in implementations
        if one.name in outcomes and outcomes[one.name].bytes_per_row
    }
    for one in implementations:
        if one.name not in outcomes:
            continue
        if one.title not in used:
            absent = _absence(outcomes[one.name])
            table.rows.append([one.title, absent, NOTHING, NOTHING, NOTHING])
            continue
        cells = [f"{used[one.title]:,.0f}", NOTHING, NOTHING, NOTHING]
        if one.name == OURS and SHARE_OF in used:
            share = used[one.title] / used[SHARE_OF]
            cells[1:] = [f"1/{1 / share:.2f}", f"at most 1/{1 / MOST_SHARE:g}"]
            cells.append(figures.limit(share, MOST_SHARE))
        table.rows.append([one.title, *cells])
    return table


def churned(
    workload: Workload, implementations: Sequence[Implementation], outcomes: Outcomes
) -> Table:
    """Growth of resident memory after churning, against the payload of a full store."""
    payload = workload.rows * workload.payload
    title = f"{workload.name}: {workload.title}, {payload / 2**20:,.0f} MiB of payload"
    table = Table(title, ["", "grown by, MiB", "times payload", "must", "verdict"])
    share, beside = w4_memory.MOST_SHARE, w4_memory.MOST_BESIDE
    most = share * payload + beside
    for one in implementations:
        outcome = outcomes.get(one.name)
        if outcome is None:
            continue
        table.notes.extend(_remarks(one.title, outcome))
        if not outcome.bytes_per_row:
            table.rows.append([one.title, _absence(outcome), NOTHING, NOTHING, NOTHING])
            continue
        grown = statistics.median(outcome.bytes_per_row) * workload.rows
        bounds = [NOTHING, NOTHING]
        if one.name == OURS:
            limit = f"at most {share:g} x + {beside / 2**20:.0f} MiB"
            bounds = [limit, figures.limit(grown, most)]
        table.rows.append([one.title, f"{grown / 2**20:,.0f}", f"{grown / payload:.2f}", *bounds])
    return table


def beside(
    workload: Workload, implementations: Sequence[Implementation], outcomes: Outcomes
) -> Table:
    """Times of single calls beside a reconstruction: no ratios, no bounds."""
    shown = [one for one in implementations if one.name in outcomes]
    table = Table(f"{workload.name}: {workload.title}", ["one call", *(one.title for one in shown)])
    for operation in workload.operations:
        cells = []
        for one in shown:
            rates = outcomes[one.name].rates.get(operation.name)
            times = figures.seconds([1 / rate for rate in rates]) if rates else ""
            cells.append(times or _cell(outcomes[one.name], operation))
        table.rows.append([operation.name, *cells])
    held = [outcomes[one.name].bytes_per_row for one in shown]
    used = [f"{statistics.median(some):,.0f}" if some else NOTHING for some in held]
    table.rows.append(["resident bytes per rollout, after filling", *used])
    for one in shown:
        table.notes.extend(_remarks(one.title, outcomes[one.name]))
    return table


def growing(workload: Workload, outcomes: Outcomes) -> Table:
    """Time of one call over few and over many items."""
    verbs = list(dict.fromkeys(operation.verb for operation in workload.operations))
    sizes = list(dict.fromkeys(operation.size for operation in workload.operations))
    counted = [f"{size:,} {workload.unit}" for size in sizes]
    header = ["one call", *counted, "ratio", "must", "verdict"]
    table = Table(growth.TITLES[workload.name], header)
    outcome = outcomes[OURS]
    must = f"at most {growth.LIMIT:g}"
    for verb in verbs:
        names = [Operation(verb, size).name for size in sizes]
        series = [[1 / value for value in outcome.rates.get(name, [])] for name in names]
        if not all(series):
            cells = [figures.seconds(some) if some else "failed" for some in series]
            table.rows.append([verb, *cells, NOTHING, must, "FAIL"])
            continue
        grown = statistics.median(series[1]) / statistics.median(series[0])
        times = [figures.seconds(values) for values in series]
        ratio = figures.ratio(series[1], series[0])
        table.rows.append([verb, *times, ratio, must, figures.limit(grown, growth.LIMIT)])
    table.notes.extend(_remarks("Recollect", outcome))
    return table


def starting(startup: Startup) -> Table:
    """Import, first call with an empty kernel cache, and first call of a second process."""
    table = Table("Start of a process", ["Recollect", "median (range)", "must", "verdict"])
    if startup.failure:
        table.notes.append(f"Recollect did not run: {startup.failure}")
        return table
    added = startup.import_seconds
    cold = statistics.median(startup.cold)
    table.rows = [
        ["import numpy, pyarrow", figures.seconds(startup.base), NOTHING, NOTHING],
        ["import recollect", figures.seconds(startup.ours), NOTHING, NOTHING],
        [
            "difference",
            figures.seconds([max(added, 0.0)]),
            f"under {MOST_IMPORT_SECONDS:g} s",
            figures.limit(added, MOST_IMPORT_SECONDS),
        ],
        [
            "table, insert, sample, update: no kernel cached",
            figures.seconds(startup.cold),
            f"under {MOST_COMPILE_SECONDS:g} s",
            figures.limit(cold, MOST_COMPILE_SECONDS),
        ],
        ["the same in a second process", figures.seconds(startup.warm), NOTHING, NOTHING],
        [
            "RolloutBuffer, put, take_batch: no kernel cached",
            figures.seconds(startup.rollouts),
            NOTHING,
            NOTHING,
        ],
        [
            "ReplayBuffer, add, sample: no kernel cached",
            figures.seconds(startup.steps),
            NOTHING,
            NOTHING,
        ],
    ]
    return table


def checkpoints(found: dict[str, list[Saved]]) -> list[Table]:
    """Seconds of saves and loads, beside the best peer; ours are synced and checksummed."""
    titles = {
        "transitions": "Checkpoint: 1,000,000 transitions with priorities, 165 MB",
        "uniform": "Checkpoint: the same transitions without priorities",
        "rollouts": "Checkpoint: 20,000 rollouts, 363 MB",
    }
    made = []
    for kind, implementations in found.items():
        table = Table(titles[kind], ["seconds", "median (range)", "ratio", "must", "verdict"])
        ours, peers = implementations[0], [one for one in implementations[1:] if not one.error]
        for verb, least in (("save", 1.0), ("load", 2.0)):
            times = {one.name: getattr(one, verb) for one in (ours, *peers)}
            best = min((times[peer.name] for peer in peers), key=statistics.median, default=None)
            for name, seconds in times.items():
                row = [f"{verb}: {name}", figures.seconds(seconds), NOTHING, NOTHING, NOTHING]
                if name == ours.name and best is not None:
                    row[2:] = _times_as_fast(best, seconds, least, judged=kind != "uniform")
                table.rows.append(row)
            if verb == "save" and ours.second and best is not None:
                row = ["save: 1 % new rows", figures.seconds(ours.second)]
                table.rows.append([*row, *_times_as_fast(best, ours.second, 10.0)])
        for what, seconds in ours.pause.items():
            row = [f"a sample waits: {what}", figures.seconds([seconds]), NOTHING]
            judged = what == "p99.9"
            row.append(f"under {1000 * MOST_PAUSE:.0f} ms" if judged else NOTHING)
            row.append(figures.limit(seconds, MOST_PAUSE) if judged else NOTHING)
            table.rows.append(row)
        for what, times in ours.floor.items():
            row = [f"as many bytes: {what}", figures.seconds(times), NOTHING, NOTHING, NOTHING]
            table.rows.append(row)
        table.rows += [
            [one.name, one.error, NOTHING, NOTHING, NOTHING] for one in implementations if one.error
        ]
        made.append(table)
    return made


def _times_as_fast(
    theirs: list[float], ours: list[float], least: float, *, judged: bool = True
) -> list[str]:
    reached = statistics.median(theirs) / statistics.median(ours)
    said = f"{reached:.1f} x as fast as the best peer"
    if not judged:
        return [said, NOTHING, NOTHING]
    return [said, f"{least:g} x", "pass" if reached >= least else "FAIL"]


def journaling(cost: Cost) -> Table:
    """What a journal costs at a quarter of the disk's speed, and what it reaches flat out."""
    title = "Journal: inserts of 1 MiB, rc.Journal(path) with its defaults"
    table = Table(title, ["MiB/s", "median (range)", "share", "must", "verdict"])
    table.rows = [
        ["plain write, one sync", figures.rate(cost.disk), NOTHING, NOTHING, NOTHING],
        ["offered a quarter of that: without", figures.rate(cost.alone), NOTHING, NOTHING, NOTHING],
        [
            "with a journal",
            figures.rate(cost.journaled),
            f"loses {100 * cost.loss:.1f} %",
            f"under {100 * MOST_LOSS:.0f} %",
            figures.limit(cost.loss, MOST_LOSS),
        ],
        [
            "flat out, all of it synced",
            figures.rate(cost.flat_out),
            f"{100 * cost.reached:.0f} % of the disk",
            f"{100 * LEAST_OF_DISK:.0f} %",
            figures.verdict(cost.reached, LEAST_OF_DISK),
        ],
    ]
    for name, speeds in cost.parts.items():
        table.rows.append([f"alone: {name}", figures.rate(speeds), NOTHING, NOTHING, NOTHING])
    for name, calls in cost.small.items():
        alone = cost.small_alone[name]
        share = f"{figures.ratio(calls, alone)} of those without"
        table.rows.append([f"{name}, calls/s", figures.rate(calls), share, NOTHING, NOTHING])
    return table


def anatomy(parts: Sequence[Part]) -> Table:
    """Microseconds of each call: its kernels, the rest, and what memory alone would take."""
    title = "Where the time goes: microseconds a call of Recollect, over full tables of W1 and W2"
    table = Table(title, ["call", "whole", "kernels", "Python", "memory alone"])
    for part in parts:
        kernels = ", ".join(f"{name} {spent:.1f}" for name, spent in part.kernels.items())
        table.rows.append(
            [part.call, f"{part.total:.1f}", kernels, f"{part.python:.1f}", f"{part.floor:.1f}"]
        )
    table.notes.append(
        "kernels are timed inside the calls, about 0.2 us of each is the clock; memory alone reads "
        "the same cache lines and copies the same rows, on one core, in loops that do nothing else"
    )
    return table


def waiting(found: Waiting) -> Table:
    """A call alone, and beside many that wait."""
    title = f"Waiting: a leased take and its confirm while {WAITERS} coroutines wait in vain"
    table = Table(title, ["a call", "nobody waits", f"{WAITERS} wait", "ratio", "must", "verdict"])
    ratio = statistics.median(found.beside) / statistics.median(found.alone)
    table.rows = [
        [
            "take(1, lease=60), confirm",
            figures.seconds(found.alone),
            figures.seconds(found.beside),
            f"{ratio:.2f}",
            f"at most {MOST_RATIO:g}",
            figures.limit(ratio, MOST_RATIO),
        ]
    ]
    return table


def packing(found: Packing) -> Table:
    """A train step packed by Recollect and by a loop, and what came out."""
    title = f"Packing: {ROLLOUTS} rollouts, {found.tokens:,} tokens, to {RANKS} ranks"
    table = Table(title, ["a step", "Recollect", "NumPy loop", "ratio", "must", "verdict"])
    ours = statistics.median(found.ours)
    inverse = [[1 / value for value in series] for series in (found.ours, found.loop)]
    table.rows = [
        [
            "pack and collate",
            figures.seconds(found.ours),
            figures.seconds(found.loop),
            figures.ratio(*inverse),
            f"under {MOST_SECONDS * 1e3:g} ms",
            figures.limit(ours, MOST_SECONDS),
        ],
        ["advantages", figures.seconds(found.advantages), *[NOTHING] * 4],
        [
            "largest load above the mean",
            f"{found.imbalance:.2%}",
            *[NOTHING] * 2,
            "under 2%",
            figures.limit(found.imbalance, 0.02),
        ],
    ]
    table.notes.append(
        f"groups of {GROUP}; packs of at most {MOST} tokens, {found.efficiency:.1%} of it used; "
        "both make the same arrays, which is checked"
    )
    return table


def production(found: Production) -> Table:
    """What production costs, beside a queue that does nothing but queue."""
    title = "Production: generations that take no time, from prompt to confirmed batch"
    table = Table(title, ["groups/s", "Recollect", "asyncio queue", "ratio", "must", "verdict"])
    for size, least in SIZES.items():
        ours, queue = found.ours[size], found.queue[size]
        table.rows.append(
            [
                f"groups of {size}",
                figures.rate(ours),
                figures.rate(queue),
                figures.ratio(ours, queue),
                f"at least {least:,}",
                figures.verdict(statistics.median(ours), least),
            ]
        )
    table.rows.append(
        [
            f"pause, {FLYING} in flight",
            figures.seconds(found.pause),
            *[NOTHING] * 2,
            f"under {MOST_DRAIN * 1e3:g} ms",
            figures.limit(statistics.median(found.pause), MOST_DRAIN),
        ]
    )
    table.notes.append(
        f"batches of {BATCH} groups, responses of {TOKENS} tokens; the queue keeps no counts, "
        "knows no staleness and cannot be paused; a pause is timed from when the last one finishes"
    )
    return table


def _cell(outcome: Outcome, operation: Operation) -> str:
    values = outcome.rates.get(operation.name)
    if values:
        return figures.rate(values)
    return "failed" if operation.name in outcome.problems else _absence(outcome)


def _absence(outcome: Outcome) -> str:
    return "failed" if outcome.failure else NOTHING


def _judged(operation: Operation, outcomes: Outcomes, titles: dict[str, str]) -> list[str]:
    """Best peer, ratio to it, must, aim, verdict."""
    bounds = [figures.bound(operation.must), figures.bound(operation.aim)]
    peers = {
        name: outcome.rates[operation.name]
        for name, outcome in outcomes.items()
        if name not in (OURS, FLOOR) and operation.name in outcome.rates
    }
    if not peers:
        return [NOTHING, NOTHING, *bounds, NOTHING]
    best = max(peers, key=lambda name: statistics.median(peers[name]))
    if OURS not in outcomes:
        return [titles[best], NOTHING, *bounds, NOTHING]
    ours = outcomes[OURS].rates.get(operation.name)
    if not ours:
        return [titles[best], NOTHING, *bounds, figures.verdict(0.0, operation.must)]
    reached = statistics.median(ours) / statistics.median(peers[best])
    verdict = figures.verdict(reached, operation.must, operation.aim)
    return [titles[best], figures.ratio(ours, peers[best]), *bounds, verdict]


def _against_row(
    operation: Operation,
    against: Against,
    outcomes: Outcomes,
    titles: dict[str, str],
    shown: int,
) -> list[str]:
    """Ours over one peer, whichever is the best."""
    empty = [""] * shown
    title = titles.get(against.peer, against.peer)
    label = f"{operation.name}, over {title}" + (f" at {against.of}" if against.of else "")
    bounds = [figures.bound(against.must), figures.bound(against.aim)]
    theirs = outcomes.get(against.peer, Outcome()).rates.get(against.of or operation.name)
    if not theirs or OURS not in outcomes:
        return [label, *empty, title, NOTHING, *bounds, NOTHING]
    ours = outcomes[OURS].rates.get(operation.name)
    if not ours:
        return [label, *empty, title, NOTHING, *bounds, figures.verdict(0.0, against.must)]
    reached = statistics.median(ours) / statistics.median(theirs)
    verdict = figures.verdict(reached, against.must, against.aim)
    return [label, *empty, title, figures.ratio(ours, theirs), *bounds, verdict]


def _floor_row(floor: Floor, outcomes: Outcomes, shown: int) -> list[str]:
    """Ours as a share of what the machine can do."""
    empty = [""] * (shown - 1)
    must = NOTHING if floor.must is None else f"{floor.must:.0%}"
    bound = outcomes[FLOOR].rates.get(floor.operation.name) if FLOOR in outcomes else None
    title = f"{floor.of}, share of {floor.title}"
    if not bound:
        return [title, NOTHING, *empty, "failed", NOTHING, must, NOTHING, NOTHING]
    ours = outcomes[OURS].rates.get(floor.of) if OURS in outcomes else None
    if not ours:
        return [title, NOTHING, *empty, figures.rate(bound), NOTHING, must, NOTHING, NOTHING]
    share = statistics.median(ours) / statistics.median(bound)
    verdict = figures.verdict(share, floor.must)
    return [title, "", *empty, figures.rate(bound), f"{share:.0%}", must, NOTHING, verdict]


def _remarks(title: str, outcome: Outcome) -> list[str]:
    found = []
    if outcome.note:
        found.append(outcome.note)
    if outcome.failure:
        found.append(f"{title} did not run: {outcome.failure}")
    if outcome.unsupported:
        found.append(f"{title}: {outcome.unsupported}")
    found.extend(f"{title}, {name}: {why}" for name, why in outcome.problems.items())
    return found

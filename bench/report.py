"""Tables as text for a terminal, and as a Markdown page with machine, versions and method."""

from __future__ import annotations

from collections.abc import Sequence

from bench.harness import Implementation, Outcomes, Settings
from bench.tables import Table

METHOD = """\
Each implementation runs in a virtual environment of its own, one process per workload, against a
full buffer, so that inserts overwrite. A round times every operation on every implementation for
about {seconds:g} s, one implementation after the other; {rounds} rounds, each beginning with
another one. Workers whose buffers do not fit into memory together (W3) are started, filled, timed
and ended in turn within each round, always in the same order. Cells show the median and, in
brackets, the range over the rounds. `ratio` is Recollect's median over that of the best peer in
the same run, with the range of the ratios round by round.

Inputs are made before the clock starts, in the container each library likes best. Results are
complete when a call returns: all columns and, with priorities, indices (keys) and weights. JAX
calls are compiled, donate their state and block until ready. Threads inside libraries are at
their defaults; torch is tried with its default and with one thread, and the better result counts.
Priorities of all rows are made to differ before anything is drawn (in Reverb once, after filling,
for as many draws as half the rows). Without priorities, cpprb and SB3 return no indices;
Recollect returns keys all the same. A call's result is held until the next one is there. The
floor is `numpy.take` of the same rows on one core, into an output that is reused and into a fresh
one.

W4 counts rollouts: a group is 8, a batch of 64 groups is 512. Lengths of responses are lognormal
(median 1,500 tokens, cut at 8,192); a rollout has int32 tokens, float32 logprobs, an int8 mask, a
reward and a version, no prompt. Each implementation runs alone, in turn, with a full store: what a
`take` removes is put again before the next one, outside the clock. Every batch is collated to the
same columns: the tokens, logprobs and masks of all rollouts one after the other, and the length,
reward and version of each; where a library returns a list of objects, one concatenate per column
is part of the call. After filling, the content of a batch is compared with what was put, and an
eighth of the store is overwritten; then operations are timed. The floor copies as many bytes as a
batch has, from memory that no cache holds, into memory that is reused. 'W4 memory' is the growth
of the process after ten times the capacity went through; the stores of Ray and TransferQueue are
in other processes and are not shown. 'W4 lists' is beside it and has no ratios: what it is
compared with is a reconstruction that we wrote, not a library.

W5 counts steps that were drawn: 32 sequences of 64 are 2,048. Every implementation is fed the same
endless stream of episodes of 200 to 1,000 steps of one environment, in stretches of 64 steps. In
'after an insert' a stretch is inserted before every draw and only the draw is timed, which counts
in favour of what works ahead during the insert (Reverb's dataset does); in 'insert + sequences'
both are timed. Converting a stretch for a library is never timed. The libraries do not answer the
same question: sequences of flashbax run across the ends of episodes, those of RLlib go on in
another episode, Reverb draws from the sequences that were cut when they were inserted, TorchRL
draws an episode before it draws a start in it, Recollect draws from every start that has 64 steps
of its episode after it. Recollect stores an observation once and reads `next_obs` from the next
row, so that a step of 165 bytes takes 97 bytes of payload; one line has it store `next_obs` as the
others do. 'W5 environments' adds one step of each of 64 environments per call, to a ring for each
(cpprb and Reverb have nothing of the kind). 'W5 frames' compares resident memory after filling: SB3
is given stacks of four frames, as a wrapper makes them, Recollect the single frames of the same
steps. Recollect is given the final observation of each episode.

Checkpoints: each implementation in a process of its own, one after the other, on the disk of this
machine with its page cache. Before every save and load, outside the clock, 1 GiB of memory is
touched and given back: a virtual machine may have returned free memory to its host, and whoever
needed some first would pay for all. Recollect's saves are synced and checksummed, and its loads
compare the checksums; the peers do neither. TorchRL saves the sum and min trees of its prioritized
sampler with the transitions, Recollect the priorities; the table without priorities is beside it.
cpprb's buffer has none. 'As many bytes' is what the machine takes for the payload alone."""


def as_text(table: Table) -> str:
    """Aligned columns."""
    lines = [table.header, *table.rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.header))]
    rendered = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    rule = "-" * max(map(len, rendered))
    notes = [f"  * {note}" for note in table.notes]
    return "\n".join([table.title, rule, rendered[0], rule, *rendered[1:], rule, *notes])


def as_markdown(table: Table) -> str:
    """A section with a table and its notes."""
    rule = ["---", *["---:"] * (len(table.header) - 1)]
    lines = [_pipes(line) for line in (table.header, rule, *table.rows)]
    notes = ["", *(f"- {note}" for note in table.notes)] if table.notes else []
    return "\n".join([f"## {table.title}", "", *lines, *notes])


def page(
    tables: Sequence[Table],
    machine: dict[str, str],
    versions: dict[str, dict[str, str]],
    settings: Settings,
) -> str:
    """The whole of docs/benchmarks.md."""
    facts = [f"- {name}: {value}" for name, value in machine.items()]
    installed = [
        f"| {title} | {', '.join(f'{name} {number}' for name, number in found.items())} |"
        for title, found in versions.items()
    ]
    parts = [
        "# Benchmarks",
        "Written by `python bench/run.py --markdown docs/benchmarks.md`; do not edit by hand.",
        "## Machine",
        "\n".join(facts),
        "## Versions",
        "\n".join(["| | |", "| --- | --- |", *installed]),
        "## Method",
        METHOD.format(seconds=settings.seconds, rounds=settings.rounds),
        *(as_markdown(table) for table in tables),
    ]
    return "\n\n".join(parts) + "\n"


def versions_of(
    implementations: Sequence[Implementation], results: dict[str, Outcomes]
) -> dict[str, dict[str, str]]:
    """What each implementation said it was, over all workloads."""
    found: dict[str, dict[str, str]] = {}
    for one in implementations:
        seen = [outcomes[one.name] for outcomes in results.values() if one.name in outcomes]
        for outcome in seen:
            if outcome.versions:
                found[one.title] = outcome.versions
    return found


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

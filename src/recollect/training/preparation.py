"""`DataPreparation`: from a buffer of groups to what each rank trains on, step after step.

One task of one event loop prepares steps, in order and as far ahead as was asked for; everything
else only waits for it. A step stays as it was made until every rank has confirmed it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from recollect.base.arguments import whole
from recollect.errors import InvalidValue, NeverPossible, TableClosed, shown
from recollect.kernels import load as kernels
from recollect.rollouts.buffer import RolloutBuffer
from recollect.rollouts.group import Group
from recollect.rollouts.takes import checked_sizes
from recollect.rollouts.train_groups import ANY, GroupSource
from recollect.training.advantages import Advantage, advantages, rule_of
from recollect.training.filters import Filter, Filtered, apply_filters
from recollect.training.metrics import Window, stored, trained
from recollect.training.packing import BALANCE, QUADRATIC_AT, TOO_LONG, pack
from recollect.training.selection import Selection
from recollect.training.sinks import Sink
from recollect.training.sources import Drawn, Mode, Queue, drawn_of, joined
from recollect.training.train_step import JOINS, RankBatch, Reports, Step, check_saved

if TYPE_CHECKING:
    from recollect.training.blocking import BlockingPreparation

SHORT = ("refill", "allow")
REMEMBERED = 8  # confirmed steps for which reports may still come
FORMAT = 1


@runtime_checkable
class HasBuffer(Protocol):
    """A source that fills a buffer, such as a manager of producers."""

    @property
    def buffer(self) -> RolloutBuffer: ...


@dataclass(frozen=True)
class Packing:
    """How a step is packed: the options of `pack`."""

    max_tokens: int = 8192
    balance: str = "tokens"
    too_long: str = "error"
    arrays: Sequence[str] = ()
    quadratic_at: int = QUADRATIC_AT

    def __post_init__(self) -> None:
        whole("max_tokens", self.max_tokens, 1)
        whole("quadratic_at", self.quadratic_at, 1)
        _one_of("balance", self.balance, BALANCE)
        _one_of("too_long", self.too_long, TOO_LONG)


def _one_of(name: str, value: Any, known: Sequence[str]) -> None:
    if value not in known:
        expected = " or ".join(map(repr, known))
        raise InvalidValue(f"{name}: expected {expected}, got {shown(value)}")


class DataPreparation:
    """Prepares train steps for data-parallel ranks. Calls are coroutines; `sync` has them blocking.

    Tensor- and sequence-parallel peers of a rank share its share, and one of them confirms it.

    >>> import asyncio
    >>> import recollect as rc
    >>> from recollect import training
    >>> async def main():
    ...     preparation = training.DataPreparation(rc.RolloutBuffer(), batch=1, ranks=2)
    ...     rollouts = [rc.Rollout([1], [2], reward=r, finish_reason="stop") for r in (0, 1)]
    ...     await preparation.put(rc.Group(rollouts), version=0)
    ...     for rank in range(2):
    ...         batch = await preparation.get(rank, step=1)
    ...         done = await preparation.confirm(rank, step=1)
    ...     await preparation.close()
    ...     return len(batch.packs), batch.trainable_tokens, done
    >>> asyncio.run(main())
    (1, 2, True)

    Args:
        source: A `RolloutBuffer`, or what has one as `buffer`.
        batch: Groups of a step: a number, or one for each task.
        ranks: Data-parallel ranks.
        mode: `Queue()`, where each group trains once, or `Replay(...)`.
        advantages: A kind or a rule; see `advantages`.
        filters: What does not train; see `apply_filters`.
        pack: How a step is packed; a number is `max_tokens`.
        prefetch: Steps that are prepared ahead of the one that was asked for last.
        short_batch: What happens when filters drop groups: `"refill"` draws others until the batch
            is whole, `"allow"` trains with what is left, at least one group.
        priority: How the priorities of rollouts make that of their group: `"mean"` or `"max"`.
        solved_above: The reward above which metrics call a rollout solved.
        sinks: What gets the metrics of each step when it is handed out.
        first_step: The first train step, where training goes on without a saved state.
    """

    def __init__(
        self,
        source: RolloutBuffer | HasBuffer,
        *,
        batch: int | Mapping[str, int],
        ranks: int,
        mode: Mode | None = None,
        advantages: str | Advantage = "grpo",
        filters: Sequence[Filter] = (),
        pack: Packing | int | None = None,
        prefetch: int = 1,
        short_batch: str = "refill",
        priority: str = "mean",
        solved_above: float = 0.0,
        sinks: Sequence[Sink] = (),
        first_step: int = 1,
    ) -> None:
        found = source.buffer if isinstance(source, HasBuffer) else source
        if not isinstance(found, RolloutBuffer):
            raise InvalidValue(
                "source: expected a RolloutBuffer, or what has one as `buffer`, got "
                f"{shown(source)}"
            )
        self.buffer = found
        sizes = checked_sizes(batch if isinstance(batch, Mapping) else {"batch": batch})
        if not sum(sizes.values()):
            raise InvalidValue(f"batch: expected at least one group, got {shown(batch)}")
        self._drawing = GroupSource(self.buffer.core)
        capacity = self._drawing.capacity
        if capacity is not None and sum(sizes.values()) > capacity:
            raise NeverPossible(
                f"batch: {sum(sizes.values())} groups are never there: the capacity is {capacity}"
            )
        self.sizes = sizes if isinstance(batch, Mapping) else {ANY: sizes["batch"]}
        self.ranks = whole("ranks", ranks, 1)
        self.mode = Queue() if mode is None else mode
        if not isinstance(self.mode, Mode):
            raise InvalidValue(f"mode: expected Queue() or Replay(...), got {shown(mode)}")
        self.mode.check(self.buffer)
        self.rule = rule_of(advantages)
        self.filters = tuple(filters)
        for each in self.filters:
            if not isinstance(each, Filter):
                raise InvalidValue(f"filters: expected rules such as NoSpread(), got {shown(each)}")
        packing = Packing() if pack is None else pack
        self.packing = packing if isinstance(packing, Packing) else Packing(packing)
        kernels.load_packing()  # now, and not while a train step waits
        self.prefetch = whole("prefetch", prefetch, 0)
        _one_of("short_batch", short_batch, SHORT)
        _one_of("priority", priority, JOINS)
        self.short_batch, self.priority = short_batch, priority
        self.window = Window(solved_above=solved_above)
        self.sinks = tuple(sinks)
        self.totals = {"train/steps": 0, "train/groups": 0, "train/rollouts": 0, "train/tokens": 0}
        self._steps: dict[int, Step] = {}  # prepared, and not confirmed by all
        self._reports: dict[int, Reports] = {}
        self._first = self._next = whole("first_step", first_step, 1)  # the next to prepare
        self._target = self._latest = self._first - 1  # prepare up to here; asked for last
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news: asyncio.Event | None = None  # set, and replaced, when something is prepared
        self._failure: BaseException | None = None
        self._asked: dict[int, float] = {}
        self._window_began = time.monotonic()
        self._closed = False
        self._blocking: BlockingPreparation | None = None

    @classmethod
    def from_config(cls, config: Any) -> DataPreparation:
        """Make one, and its buffer, of a mapping or of the YAML file at a path.

        >>> from recollect import training
        >>> config = {"source": {"capacity": 100}, "batch": 8, "ranks": 2}
        >>> replay = {"type": "Replay", "max_uses": 4, "sampler": "Uniform"}
        >>> training.DataPreparation.from_config({**config, "mode": replay}).mode
        Replay(max_uses=4, sampler=Uniform(), fresh_share=None)
        """
        from recollect.training.configuration import preparation_from_config

        return preparation_from_config(config)

    @property
    def sync(self) -> BlockingPreparation:
        """The same calls, blocking, for threads and for programs without an event loop."""
        from recollect.training.blocking import BlockingPreparation

        if self._blocking is None:
            self._blocking = BlockingPreparation(self)
        return self._blocking

    # -- coming ---------------------------------------------------------------------------------
    async def put(self, group: Group, *, version: int | None = None) -> int | None:
        """Store a group in the buffer and count what was generated; returns its key."""
        self._enter()
        began = time.monotonic()
        key = await self.buffer.put(group, version=version)
        self.window.add(group, time.monotonic() - began)
        return key

    # -- going ----------------------------------------------------------------------------------
    async def get(self, rank: int, step: int) -> RankBatch:
        """Wait until a step is prepared; what a rank trains on. Asking again gives the same.

        Steps count from 1 and are prepared in order.
        """
        self._enter()
        rank, step = self._rank(rank), whole("step", step, 1)
        self._check_open(step)
        if step > self._latest + 1:  # or all steps in between would take groups for nobody
            raise InvalidValue(
                f"step {step} is asked for, and step {self._latest + 1} comes next; restore() a "
                f"saved state, or pass first_step={step}"
            )
        self._latest = max(self._latest, step)
        self._asked.setdefault(step, time.monotonic())
        while step not in self._steps:
            self._check_open(step)
            self._prepare_up_to(step)
            await self._change()
            if step not in self._steps and self._failure is not None:
                raise self._failure
        found = self._steps[step]
        if not found.served:
            self._serve(found)
        self._prepare_up_to(step + self.prefetch)
        return found.batch(rank)

    async def confirm(self, rank: int, step: int) -> bool:
        """A rank has trained a step; whether all have, so that its leases are confirmed.

        Confirming again changes nothing.
        """
        self._enter()
        rank, step = self._rank(rank), whole("step", step, 1)
        if self._is_done(step):
            return True
        prepared = self._prepared(step)
        prepared.confirmed.add(rank)
        if len(prepared.confirmed) < self.ranks:
            return False
        del self._steps[step]  # before anything waits: nobody gets it any more
        self._asked.pop(step, None)
        for lease in prepared.leases:
            await self.buffer.confirm(lease, train_step=step)
        return True

    async def report(self, rank: int, step: int, rollout_ids: Sequence[str], priority: Any) -> int:
        """Priorities of rollouts that a rank trained; those of groups are set when all reported.

        Returns how many groups' priorities were set: 0 until the last rank's report.
        """
        self._enter()
        rank, step = self._rank(rank), whole("step", step, 1)
        reports = self._reports.get(step)
        if reports is None:
            self._prepared(step)  # says what is wrong with the step, unless it is long ago
            return 0
        if not reports.add(rank, list(rollout_ids), priority):
            return 0
        del self._reports[step]
        keys, values = reports.joined(self.priority)
        if not keys.size:
            return 0
        return int((await self.buffer.update(keys, priority=values)).sum())

    async def close(self) -> None:
        """Stop preparing, and give back what was not confirmed; who waits gets `TableClosed`."""
        if self._closed:
            return
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._give_back(list(self._steps.values()))
        self._steps.clear()
        self._tell()
        for sink in self.sinks:
            sink.close()

    # -- checks ---------------------------------------------------------------------------------
    def _enter(self) -> None:
        """All calls run in one event loop; `sync` brings those of threads to it."""
        loop = asyncio.get_running_loop()
        if self._loop is None or self._loop.is_closed():
            self._loop = loop
            self._news = asyncio.Event()
        elif self._loop is not loop:
            raise InvalidValue(
                "this preparation works in another event loop; call it there, or use .sync"
            )
        if self._closed:
            raise TableClosed("this preparation was closed; make a new one to go on")

    def _rank(self, rank: Any) -> int:
        return whole("rank", rank, 0, self.ranks - 1)

    def _is_done(self, step: int) -> bool:
        return step < self._next and step not in self._steps

    def _check_open(self, step: int) -> None:
        if self._closed:
            raise TableClosed("this preparation was closed; make a new one to go on")
        if self._is_done(step):
            raise InvalidValue(
                f"step {step} was confirmed by all ranks, so its data have gone; ask for "
                f"step {min(self._steps, default=self._next)}"
            )

    def _prepared(self, step: int) -> Step:
        if step not in self._steps:
            state = "was confirmed by all ranks" if self._is_done(step) else "is not prepared yet"
            raise InvalidValue(f"step {step} {state}; get({step}) comes first")
        return self._steps[step]

    # -- preparing ------------------------------------------------------------------------------
    def _prepare_up_to(self, step: int) -> None:
        self._target = max(self._target, step)
        if self._next <= self._target and (self._task is None or self._task.done()):
            self._failure = None
            self._task = asyncio.get_running_loop().create_task(self._prepare())

    async def _change(self) -> None:
        assert self._news is not None
        await self._news.wait()

    def _tell(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = asyncio.Event()

    async def _prepare(self) -> None:
        try:
            while self._next <= self._target and not self._closed:
                step = self._next
                drawn, filtered = await self._drawn(step)
                try:
                    self._steps[step] = self._made(step, drawn, filtered)
                except BaseException:
                    await self._give_back([drawn])
                    raise
                self._next = step + 1
                self._tell()
        except Exception as error:
            self._failure = error
            self._target = self._next - 1
            self._tell()

    async def _drawn(self, step: int) -> tuple[Drawn, Filtered]:
        """The groups of a step: drawn, filtered, and others in place of those that were dropped."""
        parts: list[Drawn] = []
        counts: list[Filtered] = []
        sizes = dict(self.sizes)
        try:
            while True:
                before = [part.keys for part in parts]
                without = np.concatenate(before) if before else np.zeros(0, np.uint64)
                drawn = await self.mode.draw(self._drawing, sizes, step, without)
                parts.append(drawn)
                filtered = apply_filters(drawn.selection, self.filters)
                counts.append(filtered)
                parts[-1] = replace(drawn, selection=filtered.selection)
                dropped = drawn.keys[~filtered.selection.group_kept]
                if dropped.size:
                    await self._drawing.discard(drawn.leases, dropped)
                sizes = self._missing(sizes, filtered)
                full = not sum(sizes.values())
                some = any(part.selection.group_kept.any() for part in parts)
                if full or (some and self.short_batch == "allow"):
                    break
        except BaseException:  # what was drawn is not lost when this is cancelled
            await self._give_back(parts)
            raise
        kept = _kept(joined(parts))
        return kept, _added_up(kept.selection, counts)

    async def _give_back(self, parts: Sequence[Drawn | Step]) -> None:
        for part in parts:
            for lease in part.leases:
                await self.buffer.give_back(lease)

    def _missing(self, sizes: Mapping[str, int], filtered: Filtered) -> dict[str, int]:
        """How many groups of each task the last draw was short of."""
        kept = filtered.selection.group_kept
        tasks = filtered.selection.batch.info.task
        return {
            task: size - int((kept if task == ANY else kept & (tasks == task)).sum())
            for task, size in sizes.items()
            if size
        }

    def _made(self, step: int, drawn: Drawn, filtered: Filtered) -> Step:
        selection = filtered.selection
        found = advantages(selection, self.rule)
        options = vars(self.packing)
        packed = pack(selection, ranks=self.ranks, advantages=found, **options)
        made = Step(step, drawn, selection, packed)
        made.metrics = trained(
            selection,
            step,
            advantages=found,
            filtered=filtered,
            packed=packed,
            uses=drawn.uses,
            solved_above=self.window.solved_above,
        )
        self._reports[step] = made.reports
        for old in [step for step in self._reports if step not in self._steps]:
            if old < step - REMEMBERED:
                del self._reports[old]
        return made

    def _serve(self, step: Step) -> None:
        """When the first rank gets a step: what it waited, and the numbers of its moment."""
        step.served = True
        now = time.monotonic()
        if "train/seconds_waiting_for_data" not in step.metrics:  # else it was served before a save
            step.metrics["train/seconds_waiting_for_data"] = now - self._asked[step.step]
            expected = sum(self.sizes.values())
            step.metrics |= self.window.close(now - self._window_began, expected)
            self._window_began = now
            step.metrics |= stored(self.buffer)
            self.totals["train/steps"] += 1
            for name in ("train/groups", "train/rollouts", "train/tokens"):
                self.totals[name] += int(step.metrics[name])
        for sink in self.sinks:
            sink.write(step.step, step.metrics)

    # -- saving ---------------------------------------------------------------------------------
    async def state(self) -> dict[str, Any]:
        """Everything, the buffer's state included, of one moment.

        Steps that were prepared and not confirmed are in it by key.
        """
        self._enter()
        source = self._drawing
        with source.moment():
            steps = [step.state(source.held(step.leases)) for step in self._steps.values()]
            return {
                "format": FORMAT,
                "steps": steps,
                "next": self._next,
                "totals": dict(self.totals),
                "window": self.window.state(source.group_ids()),
                "source": self.buffer.state(),
            }

    async def restore(self, saved: Mapping[str, Any]) -> int:
        """Put back what `state` returned, the buffer's state too if the buffer is empty.

        The same number of ranks gets the same steps again; for another they are packed anew, and
        confirmed anew. Returns how many groups of prepared steps are not there any more.
        """
        self._enter()
        steps = check_saved(saved)
        if self._steps or self._next > self._first:
            raise InvalidValue("restore: this preparation has begun; restore a new one")
        if not len(self.buffer):
            self.buffer.restore(saved["source"])
        lost = 0
        for one in steps:
            step = one["step"]
            drawn = await self._drawn_again(one, step)
            lost += len(one["keys"]) - drawn.keys.size
            filtered = apply_filters(drawn.selection, self.filters)
            kept = replace(drawn, selection=filtered.selection)
            self._steps[step] = self._made(step, kept, filtered)
            made = self._steps[step]
            made.metrics = {**one["metrics"], **made.metrics}  # with what was served before
            if one["ranks"] == self.ranks:
                made.confirmed = set(one["confirmed"])
        self._next = saved["next"]
        self._target = self._latest = self._next - 1
        self.totals = dict(saved["totals"])
        self.window.restore(saved["window"])
        return lost

    async def _drawn_again(self, saved: Mapping[str, Any], step: int) -> Drawn:
        """The groups of a saved step, in their old order; without those that have gone."""
        keys, leased = (np.array(saved[name], np.uint64) for name in ("keys", "leased"))
        groups = await self._drawing.sample_again(keys, leased, step)
        there = np.isin(keys, groups.keys)
        uses = np.array(saved["uses"], np.int64)[there]
        return drawn_of(groups, uses, np.array(saved["weights"], np.float64)[there])

    def __repr__(self) -> str:
        return (
            f"DataPreparation({self.mode}, {self.ranks} ranks, {len(self._steps)} steps prepared, "
            f"next {self._next})"
        )


def _added_up(selection: Selection, parts: Sequence[Filtered]) -> Filtered:
    """What filters did to all draws of a step."""
    whole_ = Filtered(selection)
    for part in parts:
        for mine, theirs in (
            (whole_.dropped, part.dropped),
            (whole_.masked, part.masked),
            (whole_.groups, part.groups),
        ):
            for reason, count in theirs.items():
                mine[reason] = mine.get(reason, 0) + count
    return whole_


def _kept(drawn: Drawn) -> Drawn:
    """Without the groups that filters dropped whole: they have left."""
    selection = drawn.selection
    kept = selection.group_kept
    if kept.all():
        return drawn
    return Drawn(
        selection.of_groups(kept),
        drawn.keys[kept],
        drawn.uses[kept],
        drawn.weights[kept],
        drawn.leases,
    )

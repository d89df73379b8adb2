"""`DataPreparation`: from a buffer of groups to what each rank trains on, step after step.

One task of one event loop prepares steps, in order and as far ahead as was asked for; everything
else only waits for it. A step stays as it was made until every rank has confirmed it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from recollect.base.arguments import one_of, whole
from recollect.base.blocking_face import BlockingFace
from recollect.errors import InvalidValue, NeverPossible, TableClosed, shown
from recollect.kernels import load as kernels
from recollect.rollouts.buffer import RolloutBuffer
from recollect.rollouts.group import Group
from recollect.rollouts.takes import checked_sizes
from recollect.rollouts.train_groups import ANY, GroupSource
from recollect.training.advantages import Advantage, rule_of
from recollect.training.filters import Filter, checked_filters
from recollect.training.metrics import Window, stored
from recollect.training.packing import Packing
from recollect.training.sinks import Sink
from recollect.training.sources import Mode, Queue
from recollect.training.step_maker import StepMaker
from recollect.training.train_step import JOINS, RankBatch, Reports, Step

SHORT = ("refill", "allow")
REMEMBERED = 8  # confirmed steps for which reports may still come
FORMAT = 1


@runtime_checkable
class HasBuffer(Protocol):
    """A source that fills a buffer, such as a manager of producers."""

    @property
    def buffer(self) -> RolloutBuffer: ...


def _buffer_of(source: RolloutBuffer | HasBuffer) -> RolloutBuffer:
    found = source.buffer if isinstance(source, HasBuffer) else source
    if not isinstance(found, RolloutBuffer):
        raise InvalidValue(
            f"source: expected a RolloutBuffer, or what has one as `buffer`, got {shown(source)}"
        )
    return found


def _sizes_of(batch: int | Mapping[str, int], capacity: int | None) -> dict[str, int]:
    """The groups of a step by task; `ANY` is the task where all are alike."""
    sizes = checked_sizes(batch if isinstance(batch, Mapping) else {"batch": batch})
    total = sum(sizes.values())
    if not total:
        raise InvalidValue(f"batch: expected at least one group, got {shown(batch)}")
    if capacity is not None and total > capacity:
        raise NeverPossible(f"batch: {total} groups are never there: the capacity is {capacity}")
    return sizes if isinstance(batch, Mapping) else {ANY: sizes["batch"]}


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
        self.buffer = _buffer_of(source)
        self._source = GroupSource(self.buffer.core)
        self.sizes = _sizes_of(batch, self._source.capacity)
        self.ranks = whole("ranks", ranks, 1)
        self.mode = Queue() if mode is None else mode
        if not isinstance(self.mode, Mode):
            raise InvalidValue(f"mode: expected Queue() or Replay(...), got {shown(mode)}")
        self.mode.check(self.buffer)
        rule, rules = rule_of(advantages), checked_filters(filters)
        packing = Packing() if pack is None else pack
        packing = packing if isinstance(packing, Packing) else Packing(packing)
        kernels.load_packing()  # now, and not while a train step waits
        self.prefetch = whole("prefetch", prefetch, 0)
        one_of("short_batch", short_batch, SHORT)
        one_of("priority", priority, JOINS)
        self.priority = priority
        self.window = Window(solved_above=solved_above)
        self.sinks = tuple(sinks)
        self.totals = {"train/steps": 0, "train/groups": 0, "train/rollouts": 0, "train/tokens": 0}
        self._maker = StepMaker(
            self.buffer, self._source, self.sizes, self.ranks, self.mode, rule, rules, packing,
            short_batch, self.window,
        )  # fmt: skip
        self._steps: dict[int, Step] = {}  # prepared, and not confirmed by all
        self._reports: dict[int, Reports] = {}
        self._first = self._next = whole("first_step", first_step, 1)  # the next to prepare
        self._target = self._latest = self._first - 1  # prepare up to here; asked for last
        self._task: asyncio.Task[None] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None  # the one that all calls run in
        self._news: asyncio.Event | None = None  # set, and replaced, when something is prepared
        self._failure: BaseException | None = None
        self._asked: dict[int, float] = {}
        self._window_began = time.monotonic()
        self._closed = False

    @classmethod
    def from_config(cls, config: Any) -> DataPreparation:
        """Make one, and its buffer, of a mapping or of the YAML file at a path.

        >>> from recollect import training
        >>> config = {"source": {"capacity": 100}, "batch": 8, "ranks": 2}
        >>> replay = {"type": "Replay", "max_uses": 4, "sampler": "Uniform"}
        >>> training.DataPreparation.from_config({**config, "mode": replay}).mode
        Replay(max_uses=4, sampler=Uniform(), fresh_share=None)
        """
        from recollect.config import make_from_source
        from recollect.training.configuration import PREPARATION

        return make_from_source(DataPreparation, config, PREPARATION)

    @cached_property
    def sync(self) -> BlockingPreparation:
        """The same calls, blocking, for threads and for programs without an event loop."""
        return BlockingPreparation(self)

    async def put(self, group: Group, *, version: int | None = None) -> int | None:
        """Store a group in the buffer and count what was generated; returns its key."""
        self._enter()
        began = time.monotonic()
        key = await self.buffer.put(group, version=version)
        self.window.add(group, time.monotonic() - began)
        return key

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
            assert self._news is not None
            await self._news.wait()
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
        await self._maker.give_back(list(self._steps.values()))
        self._steps.clear()
        self._tell()
        for sink in self.sinks:
            sink.close()

    # -- checks ---------------------------------------------------------------------------------
    def _enter(self) -> None:
        """All calls run in one event loop; `sync` brings those of threads to it."""
        loop = asyncio.get_running_loop()
        if self.loop is None or self.loop.is_closed():
            self.loop = loop
            self._news = asyncio.Event()
        elif self.loop is not loop:
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

    def _tell(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = asyncio.Event()

    async def _prepare(self) -> None:
        try:
            while self._next <= self._target and not self._closed:
                self._keep(await self._maker.make(self._next))
                self._next += 1
                self._tell()
        except Exception as error:
            self._failure = error
            self._target = self._next - 1
            self._tell()

    def _keep(self, made: Step) -> None:
        """A step was made: it is there until all have confirmed it, its reports a while longer."""
        self._steps[made.step] = made
        self._reports[made.step] = made.reports
        for old in [step for step in self._reports if step not in self._steps]:
            if old < made.step - REMEMBERED:
                del self._reports[old]

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
        with self._source.moment():
            held = self._source.held
            steps = [step.state(held(step.leases)) for step in self._steps.values()]
            return {
                "format": FORMAT,
                "steps": steps,
                "next": self._next,
                "totals": dict(self.totals),
                "window": self.window.state(self._source.group_ids()),
                "source": self.buffer.state(),
            }

    async def restore(self, saved: Mapping[str, Any]) -> int:
        """Put back what `state` returned, the buffer's state too if the buffer is empty.

        The same number of ranks gets the same steps again; for another they are packed anew, and
        confirmed anew. Returns how many groups of prepared steps are not there any more.
        """
        self._enter()
        if not isinstance(saved, Mapping) or saved.get("format") != FORMAT:
            raise InvalidValue("restore: expected what state() returned")
        if self._steps or self._next > self._first:
            raise InvalidValue("restore: this preparation has begun; restore a new one")
        if not len(self.buffer):
            self.buffer.restore(saved["source"])
        lost = 0
        for one in saved["steps"]:
            made = await self._maker.make_again(one)
            self._keep(made)
            lost += len(one["keys"]) - made.keys.size
            made.metrics = {**one["metrics"], **made.metrics}  # with what was served before
            if one["ranks"] == self.ranks:
                made.confirmed = set(one["confirmed"])
        self._next = saved["next"]
        self._target = self._latest = self._next - 1
        self.totals = dict(saved["totals"])
        self.window.restore(saved["window"])
        return lost

    def __repr__(self) -> str:
        return (
            f"DataPreparation({self.mode}, {self.ranks} ranks, {len(self._steps)} steps prepared, "
            f"next {self._next})"
        )


class BlockingPreparation(BlockingFace):
    """The same calls as `DataPreparation`, which says what they do, for any number of threads.

    Where nobody awaits the others, it runs an event loop in a thread of its own until `close`.
    """

    def __init__(self, preparation: DataPreparation) -> None:
        super().__init__("recollect-training", InvalidValue)
        self._preparation = preparation

    def _theirs(self) -> asyncio.AbstractEventLoop | None:
        return self._preparation.loop

    def put(self, group: Group, *, version: int | None = None) -> int | None:
        return self.run(self._preparation.put(group, version=version))

    def get(self, rank: int, step: int) -> RankBatch:
        return self.run(self._preparation.get(rank, step))

    def confirm(self, rank: int, step: int) -> bool:
        return self.run(self._preparation.confirm(rank, step))

    def report(self, rank: int, step: int, rollout_ids: Sequence[str], priority: Any) -> int:
        return self.run(self._preparation.report(rank, step, rollout_ids, priority))

    def state(self) -> dict[str, Any]:
        return self.run(self._preparation.state())

    def restore(self, saved: Mapping[str, Any]) -> int:
        return self.run(self._preparation.restore(saved))

    def close(self) -> None:
        self.run(self._preparation.close())
        self._end()

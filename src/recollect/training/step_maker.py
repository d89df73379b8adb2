"""`StepMaker`: from the groups of a buffer to one train step, drawn, filtered and packed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recollect.rollouts.buffer import RolloutBuffer
from recollect.rollouts.train_groups import ANY, GroupSource
from recollect.training.advantages import Advantage, advantages
from recollect.training.filters import Filter, Filtered, apply_filters
from recollect.training.metrics import Window, trained
from recollect.training.packing import Packing, pack
from recollect.training.selection import Selection
from recollect.training.sources import DrawnGroups, Mode, drawn_of, joined
from recollect.training.train_step import Step


@dataclass(frozen=True)
class StepMaker:
    """Makes the steps of a preparation, whose arguments say what each of these is.

    `source` draws from the buffer, `sizes` has the groups of a step by task, and `window` knows
    from which reward on a rollout is solved.
    """

    buffer: RolloutBuffer
    source: GroupSource
    sizes: Mapping[str, int]
    ranks: int
    mode: Mode
    rule: Advantage
    filters: tuple[Filter, ...]
    packing: Packing
    short_batch: str
    window: Window

    async def make(self, step: int) -> Step:
        """Wait for the groups of a step, and make it; where that fails they go back."""
        drawn, filtered = await self._drawn(step)
        try:
            return self._made(step, drawn, filtered)
        except BaseException:
            await self.give_back([drawn])
            raise

    async def make_again(self, saved: Mapping[str, Any]) -> Step:
        """Make a saved step of its groups, in their old order; without those that have gone."""
        step = saved["step"]
        keys, leased = (np.array(saved[name], np.uint64) for name in ("keys", "leased"))
        groups = await self.source.sample_again(keys, leased, step)
        there = np.isin(keys, groups.keys)
        uses = np.array(saved["uses"], np.int64)[there]
        drawn = drawn_of(groups, uses, np.array(saved["weights"], np.float64)[there])
        filtered = apply_filters(drawn.selection, self.filters)
        return self._made(step, replace(drawn, selection=filtered.selection), filtered)

    async def give_back(self, parts: Sequence[DrawnGroups | Step]) -> None:
        """Give back the leases of what was drawn."""
        for part in parts:
            for lease in part.leases:
                await self.buffer.give_back(lease)

    async def _drawn(self, step: int) -> tuple[DrawnGroups, Filtered]:
        """The groups of a step: drawn, filtered, and others in place of those that were dropped."""
        parts: list[DrawnGroups] = []
        counts: list[Filtered] = []
        sizes = dict(self.sizes)
        try:
            while True:
                before = [part.keys for part in parts]
                without = np.concatenate(before) if before else np.zeros(0, np.uint64)
                drawn = await self.mode.draw(self.source, sizes, step, without)
                parts.append(drawn)
                filtered = apply_filters(drawn.selection, self.filters)
                counts.append(filtered)
                parts[-1] = replace(drawn, selection=filtered.selection)
                dropped = drawn.keys[~filtered.selection.group_kept]
                if dropped.size:
                    await self.source.discard(drawn.leases, dropped)
                sizes = self._missing(sizes, filtered)
                full = not sum(sizes.values())
                some = any(part.selection.group_kept.any() for part in parts)
                if full or (some and self.short_batch == "allow"):
                    break
        except BaseException:  # what was drawn is not lost when this is cancelled
            await self.give_back(parts)
            raise
        kept = _kept(joined(parts))
        return kept, _added_up(kept.selection, counts)

    def _missing(self, sizes: Mapping[str, int], filtered: Filtered) -> dict[str, int]:
        """How many groups of each task the last draw was short of."""
        kept = filtered.selection.group_kept
        tasks = filtered.selection.batch.info.task
        return {
            task: size - int((kept if task == ANY else kept & (tasks == task)).sum())
            for task, size in sizes.items()
            if size
        }

    def _made(self, step: int, drawn: DrawnGroups, filtered: Filtered) -> Step:
        selection = filtered.selection
        found = advantages(selection, self.rule)
        packed = pack(selection, ranks=self.ranks, advantages=found, **vars(self.packing))
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
        return made


def _added_up(selection: Selection, parts: Sequence[Filtered]) -> Filtered:
    """What filters did to all draws of a step."""

    def total(name: str) -> dict[str, int]:
        return dict(sum((Counter(getattr(part, name)) for part in parts), Counter()))

    return Filtered(selection, total("dropped"), total("masked"), total("groups"))


def _kept(drawn: DrawnGroups) -> DrawnGroups:
    """Without the groups that filters dropped whole: they have left."""
    selection = drawn.selection
    kept = selection.group_kept
    if kept.all():
        return drawn
    return DrawnGroups(
        selection.of_groups(kept),
        drawn.keys[kept],
        drawn.uses[kept],
        drawn.weights[kept],
        drawn.leases,
    )

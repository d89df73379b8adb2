"""A slow, obvious oracle of `rc.RolloutBuffer`: plain lists, and every rule by its definition.

Nothing is kept that can be computed: lags, statuses, readiness and expiry are worked out token by
token whenever somebody asks.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import recollect as rc
from recollect.rules.selectors import Ordered

Predicate = Callable[["ModelGroup"], bool]
CELLS = ("reward", "rewards", "logprobs")
PRIORITY = ("FAILED", "EXPIRED", "ABORTED", "FILTERED", "INIT")


class Refused(Exception):
    """The call raises, and nothing changes."""


class WouldWait(Exception):
    """The call cannot go ahead now."""


@dataclass(eq=False, repr=False)
class ModelRollout:
    """One rollout, or one segment of one; None stands for absent."""

    id: str
    response: list[int]
    logprobs: list[float] | None = None
    mask: list[int] | None = None
    versions: list[int] | None = None
    dispatch: int | None = None
    reward: float | None = None
    rewards: dict[str, float] | None = None
    status: str = "COMPLETED"
    finish_reason: str | None = "stop"
    error: str | None = None
    segment: int = 0
    attempt: int = 0
    turns: Any = None
    arrays: dict[str, list[float]] = field(default_factory=dict)
    blobs: dict[str, list[bytes]] = field(default_factory=dict)
    extras: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        cells = {n: v for n, v in vars(self).items() if v not in (None, {}, 0) and n != "id"}
        cells = {n: v for n, v in cells.items() if v not in ("COMPLETED", "stop")}
        return f"{self.id}({', '.join(f'{name}={value}' for name, value in cells.items())})"

    def stamp(self, version: int | None) -> None:
        """Give versions to the tokens that have none: tool output keeps having none."""
        known = self.versions
        if known is not None and len(known) < len(self.response) and version is None:
            raise Refused
        if version is not None:
            known = list(known or [])
            for place in range(len(known), len(self.response)):
                tool = self.logprobs is not None and math.isnan(self.logprobs[place])
                known.append(-1 if tool else version)
            if self.dispatch is None and self.status != "EXPIRED":
                self.dispatch = version
        self.versions = known

    def reset(self) -> None:
        self.response = []
        self.logprobs = self.mask = self.versions = self.dispatch = None
        self.reward = self.rewards = self.finish_reason = self.error = self.turns = None
        self.arrays = {}
        self.attempt += 1
        self.status = "EXPIRED"

    def has(self, cell: str) -> bool:
        return getattr(self, cell) is not None if cell in CELLS else cell in self.arrays

    # -- staleness ------------------------------------------------------------------------------
    def generated(self) -> list[int]:
        return [v for v in self.versions or [] if v >= 0]

    def version(self, rule: rc.Staleness) -> int | None:
        """The version that counts."""
        oldest = min(self.generated(), default=None)
        if rule.measure == "dispatch":
            return oldest if self.dispatch is None else self.dispatch
        return self.dispatch if oldest is None else oldest

    def fresh_mask(self, rule: rc.Staleness, step: int) -> list[int]:
        """Which tokens train at a step."""
        versions = self.versions or [None] * len(self.response)
        mask = self.mask
        if mask is None:
            mask = [0 if v == -1 else 1 for v in versions]
        trains = []
        for trainable, version in zip(mask, versions, strict=True):
            stale = False
            if rule.max_token_staleness is not None and version is not None and version >= 0:
                lag = step - version - 1
                stale = lag >= (rule.max_token_staleness + 1) * rule.sync_interval
            trains.append(0 if stale else trainable)
        return trains

    def expired(self, rule: rc.Staleness, step: int) -> bool:
        version = self.version(rule)
        if version is not None:
            lag = step - version - 1
            if lag >= (rule.max_staleness + 1) * rule.sync_interval:
                return True
        if rule.max_token_staleness is None or not self.generated():
            return False
        had = any(self.fresh_mask(rc.Staleness(), step))
        return had and not any(self.fresh_mask(rule, step))


@dataclass(eq=False)
class ModelGroup:
    id: str
    task: str
    rollouts: list[ModelRollout]
    prompt: list[int]
    ground_truth: Any = None
    extras: dict[str, Any] = field(default_factory=dict)
    blobs: dict[str, list[bytes]] = field(default_factory=dict)
    key: int | None = None
    arrival: int = 0
    uses: int = 0
    deliveries: int = 1
    priority: float = 1.0
    tags: dict[str, Any] = field(default_factory=dict)
    lease: int | None = None
    archived_at: int | None = None

    @property
    def status(self) -> str:
        if self.archived_at is not None:
            return "ARCHIVED"
        present = {r.status for r in self.rollouts}
        if present == {"COMPLETED"}:
            return "COMPLETED"
        return next(status for status in PRIORITY if status in present)

    @property
    def ids(self) -> list[str]:
        return [r.id for r in self.rollouts]

    def version(self, rule: rc.Staleness) -> int | None:
        found = [v for r in self.rollouts if (v := r.version(rule)) is not None]
        return min(found, default=None)

    def lacks(self, cell: str) -> bool:
        return not all(r.has(cell) for r in self.rollouts)


@dataclass
class Held:
    """A lease on groups, or a claim of groups for a cell."""

    groups: list[ModelGroup]
    deadline: float
    step: int = 0
    owner: str = ""
    cell: str | None = None


@dataclass
class Counts:
    """The account of one task."""

    put: int = 0
    taken: int = 0
    expired: int = 0
    retried: int = 0
    left: Counter[str] = field(default_factory=Counter)


@dataclass
class Gone:
    """An event: the group as it was."""

    kind: str
    reason: str
    key: int | None
    group: ModelGroup
    arrived: bool = False  # it was retried when it came: the event has the group that was put


KINDS = {"taken": "taken", "trained": "confirmed", "expired": "expired"}


@dataclass
class Model:
    order: rc.Selector
    rules: dict[str, rc.Staleness]
    capacity: int | None = None
    max_uses: int = 1
    overflow: str = "block"
    needs: tuple[str, ...] = ()
    archive: bool = False
    groups: list[ModelGroup] = field(default_factory=list)
    leases: dict[int, Held] = field(default_factory=dict)
    claims: dict[int, Held] = field(default_factory=dict)
    promised: Counter[str] = field(default_factory=Counter)
    counts: dict[str, Counts] = field(default_factory=dict)
    events: list[Gone] = field(default_factory=list)
    step: int = 1
    now: float = 0.0
    arrivals: int = 0

    # -- looking --------------------------------------------------------------------------------
    def account(self, task: str) -> Counts:
        return self.counts.setdefault(task, Counts())

    def visible(
        self,
        task: str | None = None,
        status: str | None = None,
        where: Predicate | None = None,
        ready: bool = False,
    ) -> list[ModelGroup]:
        return [
            g
            for g in self.groups
            if g.lease is None
            and (task is None or g.task == task)
            and (status is None or g.status == status)
            and (where is None or where(g))
            and (not ready or not any(g.lacks(cell) for cell in self.needs))
        ]

    def named(self, group_id: str) -> ModelGroup | None:
        return next((g for g in self.groups if g.id == group_id), None)

    def by_key(self, key: int) -> ModelGroup | None:
        return next((g for g in self.groups if g.key == key), None)

    def version(self, group: ModelGroup) -> int | None:
        return group.version(self.rules[group.task])

    def ordered(
        self, groups: Iterable[ModelGroup], order: rc.Selector, *, staying: bool
    ) -> list[ModelGroup]:
        assert isinstance(order, Ordered)
        sign = -1 if order.descending else 1

        def place(group: ModelGroup) -> tuple[Any, ...]:
            if order.by == "version":
                value: Any = self.version(group)
            else:
                value = {"seq": group.arrival, "priority": group.priority}[order.by]
            by_value = (1, 0) if value is None else (0, sign * value)
            return (group.uses if staying else 0, by_value, group.arrival)

        return sorted(groups, key=place)

    # -- leaving --------------------------------------------------------------------------------
    def leave(self, group: ModelGroup, reason: str, *, stored: bool = True) -> None:
        kind = KINDS.get(reason, "discarded")
        if group.archived_at is None:  # the archived ones were told and counted as trained
            self.account(group.task).left[reason] += 1
            key = group.key if stored else None
            self.events.append(Gone(kind, reason, key, copy.deepcopy(group)))
        if stored:
            self.groups.remove(group)
            self.unclaim(group)

    def unclaim(self, group: ModelGroup, cells: list[str] | None = None) -> None:
        """Nobody works on a group any more, for these cells or for all; empty claims are over."""
        for number, claim in list(self.claims.items()):
            if cells is None or claim.cell in cells:
                claim.groups = [g for g in claim.groups if g is not group]
                if not claim.groups:
                    del self.claims[number]

    def expire(self, group: ModelGroup, *, stored: bool = True) -> tuple[bool, bool]:
        """Apply staleness to one group; returns whether it newly expired, and whether it leaves.

        `stored=False` is a group that comes: where it leaves, it was discarded before it was there.
        """
        rule = self.rules[group.task]
        stale = [r for r in group.rollouts if r.expired(rule, self.step)]
        if group.archived_at is not None or not stale:
            return False, False
        newly = not any(r.status == "EXPIRED" for r in group.rollouts)  # a group counts once
        account = self.account(group.task)
        account.expired += newly
        attempt = max(r.attempt for r in stale)
        if rule.on_expire == "discard":
            self.leave(group, "expired", stored=stored)
            return newly, True
        if rule.max_retries is not None and attempt >= rule.max_retries:
            self.leave(group, "retries", stored=stored)
            return newly, True
        account.retried += 1
        if stored:
            self.events.append(Gone("retried", "expired", group.key, copy.deepcopy(group)))
        late = {r.id for r in stale}  # of a trajectory in segments all start again
        group.rollouts = [r for r in group.rollouts if r.id not in late or r.segment == 0]
        for rollout in group.rollouts:
            if rollout.id in late:
                rollout.reset()
        self.unclaim(group)
        return newly, False

    def expire_all(self) -> Counter[str]:
        expired: Counter[str] = Counter()
        for group in self.visible():
            if self.expire(group)[0]:
                expired[group.task] += 1
        return expired

    # -- verbs ----------------------------------------------------------------------------------
    def put(self, group: ModelGroup, version: int | None) -> ModelGroup | None:
        """Store; returns what is stored, None where it was discarded. The caller sets the key."""
        for rollout in group.rollouts:
            rollout.stamp(version)
        replaced = self.named(group.id)
        if replaced is not None and replaced.lease is not None:
            raise Refused
        before = copy.deepcopy(self.account(group.task))
        retried = before.retried
        if self.expire(group, stored=False)[1]:
            self.account(group.task).put += 1
            self.use_promise(group.task)
            return None
        try:
            stored = self.make_room(group, replaced)
        except (Refused, WouldWait):
            self.counts[group.task] = before
            raise
        if not stored:  # it is dropped for want of room, and nothing else
            self.counts[group.task] = before
        self.account(group.task).put += 1
        self.use_promise(group.task)
        if not stored:
            self.leave(group, "overflow", stored=False)
            return None
        if replaced is not None:
            self.leave(replaced, "replaced")
        self.arrivals += 1
        group.arrival = self.arrivals
        group.priority = max((g.priority for g in self.groups), default=1.0)
        self.groups.append(group)
        if self.account(group.task).retried > retried:
            self.events.append(Gone("retried", "expired", None, group, arrived=True))
        return group

    def use_promise(self, task: str) -> None:
        self.promised[task] = max(0, self.promised[task] - 1)

    def make_room(self, group: ModelGroup, replaced: ModelGroup | None) -> bool:
        """What was trained makes room first; nobody leaves for a group that does not come in."""
        if self.capacity is None:
            return True
        reserved = self.promised[group.task] > 0
        over = len(self.groups) + (replaced is None) - self.capacity
        archived = sorted(self.visible(status="ARCHIVED"), key=lambda g: g.arrival)
        if self.overflow == "drop_stalest":
            archived = [g for g in archived if g is not replaced]
            if over > len([g for g in self.visible() if g is not replaced]):
                if reserved:  # a promise is kept: above the capacity, until something leaves
                    return True
                raise WouldWait
        elif reserved:
            archived = [g for g in archived if g is not replaced]
        else:
            stays = len(self.groups) - len(archived)
            again = replaced is None or replaced.archived_at is not None
            if stays + again + self.promised.total() > self.capacity:
                over, archived = 1, []
        for oldest in archived[: max(0, over)]:
            self.groups.remove(oldest)
            over -= 1
        if over <= 0 or (reserved and self.overflow != "drop_stalest"):
            return True
        if self.overflow == "drop_newest":
            return False
        if self.overflow == "raise":
            raise Refused
        if self.overflow == "block":
            raise WouldWait
        others = [g for g in self.visible() if g is not replaced]
        leaving = self.ordered(others, rc.StalestFirst(), staying=False)[:over]
        if len(leaving) < over:
            raise WouldWait
        for stalest in leaving:
            self.leave(stalest, "overflow")
        return True

    def drop(self, over: int) -> None:
        """What came in above the capacity, and may leave by now, does: first the archive."""
        archived = sorted(self.visible(status="ARCHIVED"), key=lambda g: g.arrival)
        others = [g for g in self.visible() if g.archived_at is None]
        stalest = self.ordered(others, rc.StalestFirst(), staying=False)
        for group in [*archived, *stalest][: max(0, over)]:
            self.leave(group, "overflow")

    def reserve(self, n: int, task: str) -> int:
        if self.capacity is not None:
            taken = sum(g.archived_at is None for g in self.groups)  # the archive gives way
            if self.overflow == "drop_stalest":
                taken = sum(g.lease is not None for g in self.groups)
                if taken < self.capacity:
                    self.drop(len(self.groups) - self.capacity)
            n = max(0, min(n, self.capacity - taken - self.promised.total()))
        self.promised[task] += n
        return n

    def unreserve(self, n: int, task: str) -> int:
        n = min(n, self.promised[task])
        self.promised[task] -= n
        return n

    def hand_out(self, groups: list[ModelGroup], lease: int | None, held: Held | None) -> None:
        for group in groups:
            self.account(group.task).taken += 1
            if held is None:
                self.leave(group, "taken")
            else:
                group.lease = lease
                group.uses += 1
        if held is not None:
            assert lease is not None
            self.leases[lease] = held

    def take(self, n: int, candidates: list[ModelGroup]) -> list[ModelGroup]:
        return self.ordered(candidates, self.order, staying=False)[: max(0, n)]

    def ready(self, sizes: dict[str, int], where: Predicate | None) -> bool:
        return all(
            len(self.visible(task, "COMPLETED", where, ready=True)) >= n
            for task, n in sizes.items()
        )

    def use(self, groups: list[ModelGroup]) -> None:
        for group in groups:
            group.uses += 1
            if self.max_uses and group.uses >= self.max_uses:
                self.leave(group, "trained")

    def bring_back(self, lease: int) -> int:
        held = self.leases.pop(lease)
        for group in held.groups:
            group.lease = None
            group.uses -= 1
            group.deliveries += 1
        self.expire_all()
        return len(held.groups)

    def confirm(self, lease: int, step: int | None) -> int:
        held = self.leases.pop(lease)
        for group in held.groups:
            group.lease = None
            if not self.archive:
                self.leave(group, "trained")
                continue
            self.account(group.task).left["trained"] += 1
            self.events.append(Gone("confirmed", "trained", group.key, copy.deepcopy(group)))
            group.archived_at = held.step if step is None else step
            self.unclaim(group)  # nobody works on what is trained
        return len(held.groups)

    def pass_time(self, now: float) -> None:
        self.now = now
        for number in [n for n, held in self.leases.items() if held.deadline <= now]:
            self.bring_back(number)
        for number in [n for n, held in self.claims.items() if held.deadline <= now]:
            del self.claims[number]

    def restart(self) -> None:
        """What a snapshot keeps: leases and claims count as given back, promises are void."""
        for held in self.leases.values():
            for group in held.groups:
                group.lease = None
                group.uses -= 1
                group.deliveries += 1
        self.leases.clear()
        self.claims.clear()
        self.promised.clear()
        over = 0 if self.capacity is None else len(self.groups) - self.capacity
        for group in self.ordered(self.groups, rc.StalestFirst(), staying=False)[: max(0, over)]:
            self.groups.remove(group)
            if group.archived_at is None:
                self.account(group.task).left["overflow"] += 1

    # -- stages ---------------------------------------------------------------------------------
    def claimable(self, cell: str, task: str | None) -> list[ModelGroup]:
        claimed = [g for c in self.claims.values() if c.cell == cell for g in c.groups]
        found = self.visible(task, "COMPLETED")
        return [g for g in found if g.lacks(cell) and g not in claimed]

    def annotate(
        self, rollout_id: str, attempt: int, cells: dict[str, Any], arrays: dict[str, list[float]]
    ) -> bool:
        """Fill the cells of one rollout; whether it was there, in that attempt."""
        for group in self.groups:
            for rollout in group.rollouts:
                if rollout.id == rollout_id and group.archived_at is None:
                    if rollout.attempt != attempt or rollout.status == "EXPIRED":
                        return False  # a rollout that waits for its retry has no response
                    for name, value in cells.items():
                        setattr(rollout, name, value)
                    rollout.arrays.update(arrays)
                    filled = [*cells, *arrays]  # a claim lasts as long as its cell is missing
                    self.unclaim(group, [cell for cell in filled if not group.lacks(cell)])
                    return True
        return False

    # -- comparing ------------------------------------------------------------------------------
    def check_batch(self, batch: rc.Batch, groups: list[ModelGroup]) -> None:
        """The columns that a trainer reads, row by row."""
        rollouts = [(r, self.rules[g.task]) for g in groups for r in g.rollouts]
        prompts = [g.prompt for g in groups for _ in g.rollouts]
        assert [prompt.tolist() for prompt in batch["prompt_ids"].to_list()] == prompts
        assert batch["response_ids"].to_list() == [] or batch.rows == len(rollouts)
        masks, tokens = batch["loss_mask"].to_list(), batch["response_ids"].to_list()
        for row, (rollout, rule) in enumerate(rollouts):
            assert tokens[row].tolist() == rollout.response
            assert masks[row].tolist() == rollout.fresh_mask(rule, self.step)
        assert batch.info.row_offsets[-1] == len(rollouts)
        assert batch.info.task.tolist() == [g.task for g in groups]
        assert batch.info.status.tolist() == [g.status for g in groups]

    def check_group(self, real: rc.Group, group: ModelGroup, *, aged: bool = True) -> None:
        """Everything that one can see of a group; `aged`: with the mask of the train step."""
        assert real.group_id == group.id
        assert real.task == group.task
        assert real.status == group.status
        assert real.prompt_ids.tolist() == group.prompt
        assert real.ground_truth == group.ground_truth
        assert real.extras == group.extras
        assert real.blobs == group.blobs
        assert [r.rollout_id for r in real] == group.ids
        rule = self.rules[group.task] if aged else rc.Staleness()
        for one, other in zip(real, group.rollouts, strict=True):
            self.check_rollout(one, other, rule, group.archived_at is not None)

    def check_rollout(
        self, real: rc.Rollout, rollout: ModelRollout, rule: rc.Staleness, archived: bool
    ) -> None:
        assert real.response_ids.tolist() == rollout.response
        same_floats(real.logprobs, rollout.logprobs)
        if rollout.response:
            fresh = rollout.fresh_mask(rule, self.step)
            if real.loss_mask is None:  # as it was put, unless something became stale since
                assert rollout.mask is None
                assert fresh == rollout.fresh_mask(rc.Staleness(), self.step)
            else:
                assert real.loss_mask.tolist() == fresh
            versions = None if real.versions is None else real.versions.tolist()
            assert versions == rollout.versions
        else:
            assert real.loss_mask is None or not len(real.loss_mask)
            assert real.versions is None or not len(real.versions)
        assert real.dispatch_version == rollout.dispatch
        assert real.reward == rollout.reward
        assert real.rewards == rollout.rewards
        assert real.status == ("ARCHIVED" if archived else rollout.status)
        assert real.finish_reason == rollout.finish_reason
        assert real.error == rollout.error
        assert (real.segment, real.attempt) == (rollout.segment, rollout.attempt)
        assert real.turns == rollout.turns
        assert real.extras == rollout.extras
        assert real.blobs == rollout.blobs
        assert {n: a.tolist() for n, a in real.arrays.items()} == rollout.arrays


def same_floats(real: Any, expected: list[float] | None) -> None:
    if expected is None:
        assert real is None
    else:
        assert real is not None
        np.testing.assert_array_equal(real, np.array(expected, np.float32))


def real_rollout(rollout: ModelRollout) -> rc.Rollout:
    """The same as what a user would make."""
    return rc.Rollout(
        None,
        list(rollout.response),
        logprobs=rollout.logprobs,
        loss_mask=rollout.mask,
        versions=rollout.versions,
        dispatch_version=rollout.dispatch,
        reward=rollout.reward,
        rewards=rollout.rewards,
        status=rollout.status,
        finish_reason=rollout.finish_reason,
        error=rollout.error,
        rollout_id=rollout.id,
        segment=rollout.segment,
        attempt=rollout.attempt,
        turns=rollout.turns,
        arrays={name: np.array(values) for name, values in rollout.arrays.items()},
        blobs=rollout.blobs,
        extras=rollout.extras,
    )


def real_group(group: ModelGroup) -> rc.Group:
    return rc.Group(
        [real_rollout(rollout) for rollout in group.rollouts],
        task=group.task,
        group_id=group.id,
        prompt_ids=group.prompt,
        ground_truth=group.ground_truth,
        extras=group.extras,
        blobs=group.blobs,
    )

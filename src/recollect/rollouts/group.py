"""`Group`: the rollouts of one prompt, and what they share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from typing import Any, overload

from recollect.base.arguments import many
from recollect.errors import InvalidValue, shown
from recollect.rollouts.rollout import NO_TOKENS, Rollout, Status, group_status, new_id
from recollect.rollouts.values import Blobs, blobs_of, named, same_arrays, tokens_of


class Group(MutableSequence[Rollout]):
    """The rollouts of one prompt, and what they share. A sequence that may be changed.

    >>> import recollect as rc
    >>> group = rc.Group(
    ...     [rc.Rollout(response_ids=[7], finish_reason="stop") for _ in range(4)],
    ...     task="math",
    ...     prompt_ids=[1, 2, 3],
    ...     ground_truth="42",
    ... )
    >>> len(group), group.status
    (4, <Status.COMPLETED: 'COMPLETED'>)

    Args:
        rollouts: At least one, by the time it is put.
        task: What the group is for; that of its rollouts where None, and else "default".
        group_id: Its identity; that of its rollouts, or made, where None.
        prompt_ids: Tokens of the prompt; those of its first rollout where None.
        prompt: The prompt as text or messages, as JSON.
        ground_truth: What an answer is compared with, as JSON.
        blobs: Lists of bytes by name that all rollouts share, such as images.
        extras: Scalars and text by name; those that a buffer's `tags` name become fields.

    A group that a buffer returned also has `key`, `priority`, `times_used` and `deliveries`.
    """

    __slots__ = (
        "blobs", "deliveries", "extras", "ground_truth", "group_id", "key", "priority", "prompt",
        "prompt_ids", "rollouts", "task", "times_used",
    )  # fmt: skip

    def __init__(
        self,
        rollouts: Iterable[Rollout] = (),
        *,
        task: str | None = None,
        group_id: str | None = None,
        prompt_ids: Any = None,
        prompt: Any = None,
        ground_truth: Any = None,
        blobs: Mapping[str, Sequence[bytes]] | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(rollouts, Rollout | str) or not isinstance(rollouts, Iterable):
            raise InvalidValue(f"rollouts: expected a list of them, got {shown(rollouts)}")
        self.rollouts = list(rollouts)
        _check_members(self)
        self.task = self._agreed("task", task) or "default"
        self.group_id = self._agreed("group_id", group_id) or new_id()
        self.prompt_ids = NO_TOKENS if prompt_ids is None else tokens_of("prompt_ids", prompt_ids)
        if prompt_ids is None:
            own = [r.prompt_ids for r in self.rollouts if r.prompt_ids is not None]
            self.prompt_ids = own[0] if own else NO_TOKENS
        self.prompt: Any = prompt
        self.ground_truth: Any = ground_truth
        self.blobs: Blobs = {name: list(cells) for name, cells in blobs_of(blobs).items()}
        self.extras: dict[str, Any] = {**named("extras", extras)}
        self.key: int | None = None
        self.priority: float | None = None
        self.times_used = 0
        self.deliveries = 1
        for rollout in self.rollouts:
            self._adopt(rollout)

    def _agreed(self, name: str, given: str | None) -> str | None:
        """The value that the group was given, or that its rollouts have; they may not differ."""
        values = [given] if given is not None else []
        values += [v for r in self.rollouts if (v := getattr(r, name)) is not None]
        for value in values:
            if not isinstance(value, str) or not value:
                raise InvalidValue(f"{name}: expected text, got {shown(value)}")
            if value != values[0]:
                raise InvalidValue(
                    f"{name}: a rollout has {value!r} in a group that has {values[0]!r}; a group's "
                    "rollouts share it"
                )
        return values[0] if values else None

    def _adopt(self, rollout: Rollout) -> None:
        rollout.task, rollout.group_id = self.task, self.group_id
        if rollout.prompt_ids is None:
            rollout.prompt_ids = self.prompt_ids

    @property
    def status(self) -> Status:
        """Computed from the rollouts: the worst of them, or the one that all have."""
        return group_status(rollout.status for rollout in self.rollouts)

    @property
    def redelivered(self) -> bool:
        """Whether a lease on it ended without a confirmation before."""
        return self.deliveries > 1

    @property
    def attempt(self) -> int:
        """How often one of its rollouts was retried, at most."""
        return max((rollout.attempt for rollout in self.rollouts), default=0)

    @property
    def rewards(self) -> list[float | None]:
        """The reward of each rollout."""
        return [rollout.reward for rollout in self.rollouts]

    @overload
    def __getitem__(self, place: int) -> Rollout: ...
    @overload
    def __getitem__(self, place: slice) -> list[Rollout]: ...
    def __getitem__(self, place: Any) -> Any:
        return self.rollouts[place]

    def __setitem__(self, place: Any, rollout: Any) -> None:
        several = isinstance(place, slice) and isinstance(rollout, Iterable)
        given = list(rollout) if several else [rollout]
        for each in given:
            self._check_member(each)
        self.rollouts[place] = given if several else rollout

    def __delitem__(self, place: Any) -> None:
        del self.rollouts[place]

    def __len__(self) -> int:
        return len(self.rollouts)

    def __iter__(self) -> Iterator[Rollout]:
        return iter(self.rollouts)

    def insert(self, index: int, value: Rollout) -> None:
        """Insert a rollout before a place."""
        self._check_member(value)
        self.rollouts.insert(index, value)

    def _check_member(self, rollout: Any) -> None:
        if not isinstance(rollout, Rollout):
            raise InvalidValue(f"a group holds rc.Rollout objects, got {shown(rollout)}")
        self._adopt(rollout)

    def equals(self, other: object) -> bool:
        """Whether the other has the same rollouts, in order, and shares the same content."""
        plain = ("task", "group_id", "prompt", "ground_truth", "blobs", "extras")
        return (
            isinstance(other, Group)
            and len(self) == len(other)
            and all(getattr(self, name) == getattr(other, name) for name in plain)
            and same_arrays(self.prompt_ids, other.prompt_ids)
            and all(a.equals(b) for a, b in zip(self, other, strict=True))
        )

    def __repr__(self) -> str:
        status = self.status if self.rollouts else "no status"
        return (
            f"Group({self.group_id!r}, task={self.task!r}, {many(len(self), 'rollout')}, {status})"
        )


# -- checks when a group is put: users may have changed anything meanwhile ------------------------
def _check_members(group: Group) -> None:
    for rollout in group.rollouts:
        if not isinstance(rollout, Rollout):
            raise InvalidValue(f"rollouts: expected rc.Rollout objects, got {shown(rollout)}")


def check_shared(group: Group) -> None:
    """Raise `InvalidValue` where something that the rollouts share is not what it must be."""
    rollouts: Any = group.rollouts
    if type(rollouts) is not list:
        if not isinstance(rollouts, Sequence) or isinstance(rollouts, str):
            raise InvalidValue(f"rollouts: expected a list of them, got {shown(rollouts)}")
        group.rollouts = list(rollouts)
    if not isinstance(group.task, str) or not group.task:
        raise InvalidValue(f"task: expected text, got {shown(group.task)}")
    if not isinstance(group.group_id, str) or not group.group_id:
        raise InvalidValue(f"group_id: expected text, got {shown(group.group_id)}")
    group.extras = named("extras", group.extras)
    group.blobs = blobs_of(group.blobs)


def check_rollouts(group: Group) -> None:
    """The same for each rollout; lists become arrays."""
    _check_members(group)
    for place, rollout in enumerate(group.rollouts):
        try:
            rollout.check()
        except InvalidValue as wrong:
            raise InvalidValue(f"rollout {place}: {wrong}") from None

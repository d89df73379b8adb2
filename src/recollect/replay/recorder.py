"""`Recorder`: a Gymnasium vector environment that writes its steps into a replay buffer.

Gymnasium's vector environments reset what has ended in one of three ways, and each hides the
final observation in another place:

- NEXT_STEP: `step` returns it, and the following call of `step` resets and ignores the action;
  what that call returns is no step.
- SAME_STEP: `step` resets at once and returns the new episode's first observation; the final one
  is in `info["final_obs"]`.
- DISABLED: `step` returns it, and the user calls `reset` with a mask of what is to be reset.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arguments import whole
from recollect.base.arrays import Mask
from recollect.base.optional import optional
from recollect.errors import InvalidValue, SchemaError, shown
from recollect.replay.buffer import ReplayBuffer

if TYPE_CHECKING:

    class _Wrapper:
        """What gymnasium's VectorWrapper does for the recorder."""

        env: Any

        def __init__(self, env: Any) -> None: ...
else:
    _Wrapper = object


NEXT_STEP, SAME_STEP, DISABLED = MODES = ("NextStep", "SameStep", "Disabled")


class Recorder(_Wrapper):
    """Wraps a Gymnasium `VectorEnv`; every step goes into a buffer, final observations included.

    It works in all three autoreset modes, is a `gymnasium.vector.VectorWrapper` itself, and returns
    what the environment returns. The buffer gets `obs`, `action`, `reward` (as float32, unless the
    buffer has another dtype) and the marks of episodes; dicts and tuples of observations become
    nested columns. The call after an end that only resets (NEXT_STEP) is not recorded.

    A `reset` in the middle of an episode ends it there, as truncated. Its last observation has no
    step of its own and is not kept, so its last step is not drawn as a transition.

    >>> import gymnasium as gym
    >>> import recollect as rc
    >>> buffer = rc.ReplayBuffer(1000, num_envs=2, seed=0)
    >>> envs = rc.Recorder(gym.make_vec("CartPole-v1", 2, vectorization_mode="sync"), buffer)
    >>> _ = envs.reset(seed=0)
    >>> for _ in range(50):
    ...     _ = envs.step(envs.action_space.sample())
    >>> buffer.sample(8)["next_obs"].shape
    (8, 4)

    Args:
        env: The vector environment.
        buffer: Where steps go. Its rows hold a step and what it led to (`reward_at="this"`), and
            `next_from_row` is `("obs",)`.
        env_ids: The buffer's environment for each of the vector environment's; None for 0, 1, ...
        autoreset_mode: `"NextStep"`, `"SameStep"` or `"Disabled"`, for a vector environment whose
            metadata does not say; None asks the metadata.
    """

    def __new__(cls, *args: Any, **options: Any) -> Recorder:
        made: type[Recorder] = _wrapper_class() if cls is Recorder else cls
        return object.__new__(made)

    def __init__(
        self,
        env: Any,
        buffer: ReplayBuffer,
        *,
        env_ids: Any = None,
        autoreset_mode: Any = None,
    ) -> None:
        if not isinstance(env, optional("gymnasium.vector", "gym").VectorEnv):
            raise InvalidValue(
                f"env: expected a gymnasium VectorEnv, got {shown(env)}; gymnasium.make_vec and "
                "SyncVectorEnv([lambda: env]) make one"
            )
        super().__init__(env)
        self.buffer = _checked_buffer(buffer)
        self._mode = _mode_of(env, autoreset_mode)
        self._count = int(env.num_envs)
        self._env_ids = _environments(env_ids, self._count, buffer)
        self._observed = _leaves("observation", env.single_observation_space)
        self._acted = _leaves("action", env.single_action_space)
        self._obs: dict[str, Any] | None = None  # what the next actions answer to
        self._over = np.zeros(self._count, np.bool_)  # ended, and not reset yet
        self._begins = np.ones(self._count, np.bool_)  # the next step is an episode's first

    # -- what gymnasium calls ---------------------------------------------------------------------
    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environments, or those of `options["reset_mask"]`."""
        mask = np.ones(self._count, np.bool_)
        if options is not None and options.get("reset_mask") is not None:
            mask = np.array(options["reset_mask"], np.bool_)  # gymnasium takes it out of options
        obs, info = self.env.reset(seed=seed, options=options)
        fresh = self._observed.columns(obs)
        if self._obs is not None and not mask.all():
            for name, column in fresh.items():
                column[~mask] = self._obs[name][~mask]
        elif not mask.all():
            raise InvalidValue(
                "options: a mask resets some environments, and the others were never reset; call "
                "reset() without one first"
            )
        self._obs = fresh
        self._over[mask] = False
        self._begins[mask] = True
        return obs, info

    def step(self, actions: Any, **columns: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take a step and record it, with further columns `[num_envs, ...]` where given."""
        before, waiting = self._obs, self._over
        if before is None:
            raise InvalidValue("step: there is no observation yet; call reset() first")
        if self._mode == DISABLED and waiting.any():
            raise InvalidValue(
                f"step: the episodes of environments {np.flatnonzero(waiting).tolist()} are over; "
                "reset them with reset(options={'reset_mask': terminated | truncated})"
            )
        taken = self._acted.columns(actions)
        obs, rewards, terminations, truncations, info = self.env.step(actions)
        steps = ~waiting  # in NEXT_STEP, what had ended was reset by this call
        terminated = np.array(terminations, np.bool_) & steps
        truncated = np.array(truncations, np.bool_) & steps
        ended = terminated | truncated
        after = self._observed.columns(obs)
        first = self._begins
        self._obs = after
        self._over = ended if self._mode != SAME_STEP else np.zeros(self._count, np.bool_)
        # Until the step is stored, the next one must not seem to follow what is in the buffer.
        self._begins = np.ones(self._count, np.bool_)
        finals = None
        if ended.any():
            finals = self._finals(info, ended) if self._mode == SAME_STEP else after
        self._store(before, taken, rewards, terminated, truncated, first, finals, steps, columns)
        self._begins = ended | waiting
        return obs, rewards, terminations, truncations, info

    # -- what the buffer gets ---------------------------------------------------------------------
    def _store(
        self,
        obs: dict[str, Any],
        taken: dict[str, Any],
        rewards: Any,
        terminated: Mask,
        truncated: Mask,
        first: Mask,
        finals: dict[str, Any] | None,
        steps: Mask,
        columns: Mapping[str, Any],
    ) -> None:
        known = self.buffer.columns.get("reward")
        reward = np.asarray(rewards).astype(np.float32 if known is None else known.element)
        every = bool(steps.all())
        if not steps.any():
            return

        def some(column: Any) -> Any:
            if isinstance(column, Mapping):
                return {name: some(inner) for name, inner in column.items()}
            return column if every else np.asarray(column)[steps]

        self.buffer.extend(
            env_ids=some(self._env_ids),
            obs=some(self._observed.nested(obs)),
            action=some(self._acted.nested(taken)),
            reward=some(reward),
            terminated=some(terminated),
            truncated=some(truncated),
            first=some(first),
            final_obs=None if finals is None else some(self._observed.nested(finals)),
            **{name: some(column) for name, column in columns.items()},
        )

    def _finals(self, info: Mapping[str, Any], ended: Mask) -> dict[str, Any]:
        """The final observations of SAME_STEP, by row; rows that did not end are not read."""
        given = info.get("final_obs")
        there = np.asarray(info.get("_final_obs", np.full(self._count, given is not None)))
        if given is None or not there[ended].all():
            missing = np.flatnonzero(ended if given is None else ended & ~there)
            raise InvalidValue(
                f"info: environments {missing.tolist()} ended, and the autoreset mode SameStep "
                "gives their last observations as info['final_obs'], which is not there; wrap the "
                "environment so that it is, or use another autoreset mode"
            )
        if isinstance(given, np.ndarray) and given.dtype == object:
            finals = self._observed.empty(self._count)
            for place in np.flatnonzero(ended).tolist():
                for name, cell in self._observed.columns(given[place]).items():
                    finals[name][place] = cell
            return finals
        return self._observed.columns(given)


@cache
def _wrapper_class() -> Any:
    """The recorder as gymnasium wants it: made when one is needed, as gymnasium is optional."""
    wrapper = optional("gymnasium.vector", "gym").VectorWrapper
    return type("Recorder", (Recorder, wrapper), {"__module__": __name__})


# -- spaces ---------------------------------------------------------------------------------------


class Leaves:
    """The arrays that an observation or an action is made of: a dtype and a shape by path.

    A path is the names of dicts and the places of tuples; () is a single array.
    """

    def __init__(self, outer: str, leaves: dict[tuple[Any, ...], tuple[Any, Any]]) -> None:
        self._outer = outer
        self._leaves = {_dotted(outer, path): (path, *leaf) for path, leaf in leaves.items()}

    def columns(self, value: Any) -> dict[str, Any]:
        """A single one, or a batch of them `[num_envs, ...]`, as new arrays by dotted name."""
        found: dict[str, Any] = {}
        for name, (path, dtype, _) in self._leaves.items():
            inner = value
            for part in path:
                inner = inner[part]
            found[name] = np.array(inner, dtype)
        return found

    def empty(self, count: int) -> dict[str, Any]:
        """Arrays of zeros `[count, ...]` by dotted name."""
        return {
            name: np.zeros((count, *shape), dtype)
            for name, (_, dtype, shape) in self._leaves.items()
        }

    def nested(self, columns: Mapping[str, Any]) -> Any:
        """Arrays by dotted name as the buffer wants them: a single array, or nested dicts."""
        result: dict[str, Any] = {}
        for name, (path, _, _) in self._leaves.items():
            if not path:
                return columns[name]
            inside = result
            for part in path[:-1]:
                inside = inside.setdefault(str(part), {})
            inside[str(path[-1])] = columns[name]
        return result


def _dotted(outer: str, path: tuple[Any, ...]) -> str:
    return ".".join((outer, *map(str, path)))


def _leaves(outer: str, space: Any) -> Leaves:
    spaces = optional("gymnasium.spaces", "gym")
    found: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def visit(space: Any, path: tuple[Any, ...]) -> None:
        if isinstance(space, spaces.Dict):
            for name, inner in space.spaces.items():
                if not isinstance(name, str) or not name or "." in name:
                    raise SchemaError(
                        f"{_dotted(outer, path)} space: {name!r} cannot name a column; rename it "
                        "to a str without a dot"
                    )
                visit(inner, (*path, name))
        elif isinstance(space, spaces.Tuple):
            for place, inner in enumerate(space.spaces):
                visit(inner, (*path, place))
        elif isinstance(
            space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
        ):
            found[path] = space.dtype, space.shape
        else:
            raise SchemaError(
                f"{_dotted(outer, path)} space: {type(space).__name__} has no fixed shape, which a "
                "replay buffer needs; wrap the environment so that it gives arrays"
            )

    visit(space, ())
    return Leaves(outer, found)


# -- checks ---------------------------------------------------------------------------------------


def _checked_buffer(buffer: Any) -> ReplayBuffer:
    if not isinstance(buffer, ReplayBuffer):
        raise InvalidValue(f"buffer: expected an rc.ReplayBuffer, got {shown(buffer)}")
    if buffer.reward_at != "this" or buffer.next_from_row != ("obs",):
        raise InvalidValue(
            "buffer: a recorder writes rows of a step and what it led to; make the buffer with "
            f"reward_at='this' and next_from_row=('obs',), got {buffer.reward_at!r} and "
            f"{buffer.next_from_row!r}"
        )
    return buffer


def _mode_of(env: Any, given: Any) -> str:
    mode = env.metadata.get("autoreset_mode") if given is None else given
    mode = getattr(mode, "value", mode)
    if mode not in MODES:
        expected = f"autoreset_mode: expected one of {', '.join(map(repr, MODES))}"
        if given is None:
            raise InvalidValue(
                f"{expected}, and the environment's metadata does not say which it has; pass "
                "autoreset_mode="
            )
        raise InvalidValue(f"{expected}, got {shown(given)}")
    return str(mode)


def _environments(env_ids: Any, count: int, buffer: ReplayBuffer) -> NDArray[np.int64]:
    if env_ids is None:
        if buffer.num_envs != count:
            raise InvalidValue(
                f"buffer: it has num_envs={buffer.num_envs}, and the vector environment has "
                f"{count}; make them equal, or say with env_ids= which are recorded where"
            )
        return np.arange(count)
    try:
        ids = [whole("env_ids", env, 0, buffer.num_envs - 1) for env in env_ids]
    except TypeError:
        ids = []
    if len(ids) != count or len(set(ids)) != count:
        raise InvalidValue(
            f"env_ids: expected {count} different environments of the buffer, got {shown(env_ids)}"
        )
    return np.array(ids, np.int64)

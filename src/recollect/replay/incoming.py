"""Checks of the steps that a buffer is given: they raise before anything changes.

`first`, `terminated` and `truncated` mark episodes and are no columns; `final_obs` is the
observation after an episode's last step. Whether steps contradict what is stored is for the kernel
`check` to find, under the lock; here are the messages for that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from recollect.base.arguments import whole
from recollect.base.arrays import Array, Ints
from recollect.data.dotted_names import flatten
from recollect.data.schema import Column, Rows, Schema
from recollect.errors import InvalidValue, SchemaError, shown
from recollect.kernels import steps_layout as sl

MARKS = ("first", "terminated", "truncated")
ONE_TRUE = np.ones(1, np.bool_)
ENDS = (
    "done", "dones", "terminal", "terminals", "termination", "terminations",
    "truncation", "truncations", "last", "is_last", "is_terminal",
)  # fmt: skip  # what others call these marks
CONTRADICTIONS = {
    sl.NOT_FIRST_AFTER_END: "its episode is over, so this step begins another, and first=False "
    "says that it does not; leave first out or make it True",
    sl.NOT_FIRST_AT_ALL: "its very first step begins an episode, and first=False says that it "
    "does not; leave first out or make it True",
    sl.FINAL_WITHOUT_END: "final_obs is the observation after an episode's last step, and this "
    "step is neither terminated nor truncated",
    sl.FIRST_AND_LAST: "with reward_at='next' a row that ends an episode holds what the row "
    "before it led to, so the first row of an episode cannot end it",
}
MADE = ("discount", "valid", "is_first", "burn_in", "bootstrap")  # columns that batches add


@dataclass(slots=True)
class Steps:
    """Checked steps, and what is needed to check them against other columns."""

    count: int
    envs: Ints  # one for each, or one for all
    given: Mapping[str, Any]
    final_obs: Any
    marks: list[Array | None]  # first, terminated, truncated, has_final
    schema: Schema
    inputs: Ints  # the arrays as kernels want them
    kept: list[Any]  # and what keeps these alive


class Incoming:
    """What a buffer accepts. `schema` is None until the first step, or a signature, fixes it."""

    def __init__(self, num_envs: int, next_from_row: Sequence[str], reward_next: bool) -> None:
        self._num_envs = num_envs
        self._next = tuple(next_from_row)
        self._reward_next = reward_next
        self._each = np.arange(num_envs)
        self.schema: Schema | None = None
        self._final_schema: Schema | None = None

    # -- columns ----------------------------------------------------------------------------------
    def fix(self, schema: Schema) -> None:
        """These are the columns from now on."""
        self.schema = schema
        self._final_schema = Schema({n: schema.columns[n] for n in self.next_columns(schema)})

    @property
    def final_columns(self) -> Mapping[str, Column]:
        """The columns of a final observation, once the columns are known."""
        return {} if self._final_schema is None else self._final_schema.columns

    def next_columns(self, schema: Schema) -> list[str]:
        """The dotted names of the columns that are read from the next row too."""
        found: list[str] = []
        for name in self._next:
            inside = [c for c in schema.columns if c == name or c.startswith(f"{name}.")]
            if not inside:
                raise SchemaError(
                    f"next_from_row names {name!r}, and the columns are "
                    f"{', '.join(schema.columns)}; name columns that steps have, or ()"
                )
            found += inside
        return list(dict.fromkeys(found))

    def checked(self, schema: Schema) -> Schema:
        """Refuse columns that no step can have, or whose names batches need."""
        for name, column in schema.columns.items():
            outer = name.partition(".")[0]
            if column.ragged or column.optional or column.shared:
                kind = "ragged" if column.ragged else "optional" if column.optional else "shared"
                raise SchemaError(
                    f"column {name!r} is {kind}, and a step has one cell of one shape in each "
                    "column; pad it and keep its length in another column, or use an rc.Table"
                )
            if outer in ENDS:
                raise SchemaError(
                    f"column {name!r}: the end of an episode is a mark, terminated=True (nothing "
                    "follows) or truncated=True (cut short), and no column; without a mark "
                    "transitions would run across episodes"
                )
            if outer in MADE or outer in MARKS:
                raise SchemaError(f"column {name!r}: batches have a column of this name already")
            if outer.startswith("next_") and outer[5:] in {c.partition(".")[0] for c in self._next}:
                raise SchemaError(
                    f"column {name!r}: it is read from the next row; leave it out, and give the "
                    "observation after an episode's last step as final_obs"
                )
        self.next_columns(schema)
        reward = schema.columns.get("reward")
        if reward is None or reward.shape or reward.element.kind not in "biuf":
            got = "there is none" if reward is None else f"it is {reward}"
            raise SchemaError(f"column 'reward': a step has one number there, and {got}")
        return schema

    # -- steps ------------------------------------------------------------------------------------
    def one(self, env_id: Any, final_obs: Any, columns: dict[str, Any]) -> Steps:
        """A single step: cells without the axis of rows."""
        env = whole("env_id", env_id, 0)
        if env >= self._num_envs:
            raise self._no_such_environment("env_id", env)
        marks: list[Array | None] = []
        for name in MARKS:
            marks.append(_bools(name, [columns.pop(name)], 1) if name in columns else None)
        marks.append(None if final_obs is None else ONE_TRUE)
        known = self.schema.columns if self.schema is not None else {}
        rows = _as_rows(columns, "", known)
        if final_obs is not None:
            nested = self._final_columns(final_obs)
            final_obs = _as_rows(nested, "", known)
        return self.check_steps(rows, final_obs, marks, np.array([env]), 1)

    def many(self, env_ids: Any, final_obs: Any, has_final: Any, columns: dict[str, Any]) -> Steps:
        """Several steps: columns `[k, ...]`."""
        for name in MARKS:
            if name in columns and columns[name] is None:
                raise InvalidValue(f"{name}: expected bools, one for each step, got None")
        marks = [columns.pop(name, None) for name in MARKS]
        marks.append(has_final)
        if has_final is not None and final_obs is None:
            raise InvalidValue("has_final: it says which steps have a final_obs, and none is given")
        if final_obs is not None:
            final_obs = self._final_columns(final_obs)
        return self.check_steps(columns, final_obs, marks, env_ids, None)

    def again(self, steps: Steps) -> Steps:
        """Check steps once more: columns were fixed since."""
        return self.check_steps(steps.given, steps.final_obs, steps.marks, steps.envs, steps.count)

    def check_steps(
        self,
        given: Mapping[str, Any],
        final_obs: Mapping[str, Any] | None,
        marks: list[Any],
        env_ids: Any,
        count: int | None,
    ) -> Steps:
        """Steps as kernels want them; the marks are first, terminated, truncated and has_final.

        With a count, the environments are an array that was checked before.
        """
        schema = self.schema
        try:
            if schema is None:
                schema = self.checked(Schema.infer(given))
            rows = _fitting(schema, given)
        except SchemaError:
            for name, value in given.items():
                refuse_groups(f"column {name!r}", value)
            raise
        envs = env_ids if count is not None else self._environments(env_ids, rows.count)
        total = len(schema.columns)
        inputs = np.zeros(sl.IN_COLUMNS + 2 * total, np.int64)
        kept: list[Any] = [rows.columns]
        for place, value in enumerate(marks):
            if value is not None:
                name = (*MARKS, "has_final")[place]
                marks[place] = _bools(name, value, rows.count)
                inputs[place] = id(marks[place])
        place = sl.IN_COLUMNS
        for column in rows.columns:
            inputs[place] = id(column)
            place += 1
        if final_obs is not None:
            finals = self._finals(schema, final_obs, rows)
            inputs[sl.IN_FINALS] = 1
            names = list(schema.columns)
            for name, array in finals.items():
                inputs[place + names.index(name)] = id(array)
            kept.append(finals)
        return Steps(rows.count, envs, given, final_obs, marks, schema, inputs, kept)

    def _finals(self, schema: Schema, final_obs: Mapping[str, Any], rows: Rows) -> dict[str, Any]:
        final_schema = self._final_schema
        if final_schema is None:
            names = self.next_columns(schema)
            final_schema = Schema({name: schema.columns[name] for name in names})
        try:
            finals = _fitting(final_schema, final_obs)
        except SchemaError as error:
            raise SchemaError(f"final_obs: {error}") from None
        if finals.count != rows.count:
            raise SchemaError(
                f"final_obs: expected one row per step, {rows.count}, got {finals.count}; rows of "
                "steps that do not end an episode are not read"
            )
        return dict(zip(final_schema.columns, finals.columns, strict=True))

    def _final_columns(self, final_obs: Any) -> dict[str, Any]:
        """`final_obs` by the names of next_from_row."""
        if self._reward_next:
            raise InvalidValue(
                "final_obs: with reward_at='next' the row that is marked terminated or truncated "
                "holds the last observation; leave final_obs out"
            )
        if not self._next:
            raise InvalidValue("final_obs: next_from_row is empty, so no column could hold it")
        if len(self._next) == 1:
            return {self._next[0]: final_obs}
        if not isinstance(final_obs, Mapping) or set(final_obs) != set(self._next):
            raise InvalidValue(
                f"final_obs: expected a dict of {', '.join(self._next)}, got {shown(final_obs)}"
            )
        return dict(final_obs)

    def _environments(self, env_ids: Any, count: int) -> Ints:
        if env_ids is None:
            if self._num_envs == 1:
                return self._each
            if count != self._num_envs:
                raise InvalidValue(
                    f"env_ids: {count} steps for {self._num_envs} environments; give one step "
                    "for each, or say with env_ids= to which they belong"
                )
            return self._each
        if isinstance(env_ids, int | np.integer) and not isinstance(env_ids, bool):
            if not 0 <= env_ids < self._num_envs:
                raise self._no_such_environment("env_ids", int(env_ids))
            return np.array([int(env_ids)])
        try:
            envs = np.asarray(env_ids)
        except ValueError:
            envs = np.zeros(0)
        if envs.ndim != 1 or (envs.dtype.kind not in "iu" and envs.size):
            raise InvalidValue(
                f"env_ids: expected a number, or one for each step, got {shown(env_ids)}"
            )
        if envs.size != count:
            raise InvalidValue(
                f"env_ids: there are {count} steps, and {envs.size} environments are named"
            )
        if envs.size and (int(envs.min()) < 0 or int(envs.max()) >= self._num_envs):
            bad = envs[(envs < 0) | (envs >= self._num_envs)][0]
            raise self._no_such_environment("env_ids", int(bad))
        return np.ascontiguousarray(envs, dtype=np.int64)

    # -- what the kernel found --------------------------------------------------------------------
    def _no_such_environment(self, argument: str, env: int) -> InvalidValue:
        return InvalidValue(
            f"{argument}: there is no environment {env}, this buffer has {self._num_envs}, "
            "numbered from 0; make it with num_envs= as many as there are"
        )

    def contradiction(self, code: int, env: int, place: int, count: int) -> InvalidValue:
        """Why the steps do not fit what is stored."""
        if code not in CONTRADICTIONS:
            return self._no_such_environment("env_ids", env)
        which = f"environment {env}" + (f" (step {place} of the call)" if count > 1 else "")
        return InvalidValue(f"{which}: {CONTRADICTIONS[code]}")


def refuse_groups(what: str, value: Any) -> None:
    """Say where groups of responses belong: a message about columns would not help."""
    first = value
    while isinstance(first, list | tuple) and first:
        first = first[0]
    if type(first).__module__.startswith("recollect.rollouts."):
        raise SchemaError(
            f"{what}: got a {type(first).__name__}, and groups of responses go into an "
            "rc.RolloutBuffer: a ReplayBuffer holds steps of environments"
        ) from None


def refuse_positional(call: str, given: Sequence[Any]) -> NoReturn:
    """Say that columns have names."""
    refuse_groups(call, list(given))
    raise InvalidValue(
        f"{call}: columns go by name, as {call}(obs=..., reward=...), got {shown(given[0])}"
        + (f"; write {call}(**columns)" if isinstance(given[0], Mapping) else "")
    )


def _fitting(schema: Schema, given: Mapping[str, Any]) -> Rows:
    """Columns that fit a schema; arrays that fit as they are, nested or not, take a short way."""
    rows = schema.plain_rows(given)
    if rows is None and any(isinstance(value, Mapping) for value in given.values()):
        rows = schema.plain_rows(flatten(given))
    if rows is not None:
        return rows
    try:
        return schema.check(given)
    except SchemaError as error:
        message = str(error).replace("; add_column() adds an optional one", "")
        raise SchemaError(message.replace("this table", "this buffer")) from None


def _as_rows(
    columns: Mapping[str, Any], prefix: str, known: Mapping[str, Column]
) -> dict[str, Any]:
    """Cells as columns of one row."""
    rows: dict[str, Any] = {}
    for name, value in columns.items():
        kind = type(value)
        if kind is np.ndarray:
            rows[name] = value[None]
            continue
        if isinstance(value, Mapping):
            rows[name] = _as_rows(value, f"{prefix}{name}.", known)
            continue
        column = known.get(prefix + name)
        if column is not None and not column.shape and _is_number_of(column, kind, value):
            with contextlib.suppress(OverflowError):  # out of range: the long way says so
                rows[name] = np.array((value,), column.dtype)
                continue
        if hasattr(value, "__array__") and not isinstance(value, np.generic):
            rows[name] = np.asarray(value)[None]
        else:
            rows[name] = [value]
    return rows


def _is_number_of(column: Column, kind: type, value: Any) -> bool:
    """Whether a number is kept as it is by a column of numbers."""
    of = column.element.kind
    if kind is float:
        return of == "f"
    if kind is int:
        return of in "fiu"
    if kind is bool:
        return of == "b"
    return isinstance(value, np.generic) and value.dtype == column.element


def _bools(name: str, value: Any, count: int) -> Array:
    if type(value) is np.ndarray and value.dtype == np.bool_ and value.shape == (count,):
        return value if value.flags.c_contiguous else np.ascontiguousarray(value)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError):
        array = np.zeros((), object)
    if array.shape != (count,) or (array.dtype != np.bool_ and array.size):
        wanted = "True or False" if count == 1 else f"{count} bools, one for each step"
        sizes = f" of shape {list(array.shape)}" if array.shape != (count,) else ""
        raise InvalidValue(f"{name}: expected {wanted}, got {shown(value)}{sizes}")
    return np.ascontiguousarray(array, dtype=np.bool_)

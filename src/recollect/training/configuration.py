"""How plain data write the arguments of a preparation and of its buffer.

Whether groups are replayed is written there.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any

from recollect.config import make, read_as, read_journal, rule_from_config
from recollect.rollouts.buffer import RolloutBuffer
from recollect.rollouts.staleness import Staleness
from recollect.training.advantages import KINDS, Advantage
from recollect.training.filters import Filter
from recollect.training.packing import Packing
from recollect.training.sources import Mode


def _source(value: Any, path: str) -> RolloutBuffer:
    """A buffer; how often its groups train is the mode's to say, so it sets no limit itself."""
    if isinstance(value, RolloutBuffer):
        return value
    given = read_as(Mapping[str, Any], value, path)
    return make(RolloutBuffer, {"max_uses": 0, **given}, path, BUFFER)


def _staleness(value: Any, path: str) -> Staleness | dict[str, Staleness]:
    given = read_as(Mapping[str, Any], value, path)
    if any(isinstance(part, Mapping) for part in given.values()):
        return {task: _rule(given[task], f"{path}.{task}") for task in given}
    return _rule(given, path)


def _rule(value: Any, path: str) -> Staleness:
    given = dict(read_as(Mapping[str, Any], value, path))
    given.pop("type", None)
    return make(Staleness, given, path)


def _advantages(value: Any, path: str) -> Any:
    if isinstance(value, str) and value in KINDS:
        return value
    return _of_kind(Advantage, value, path)


def _packing(value: Any, path: str) -> Packing | int:
    given = read_as(int | Mapping[str, Any], value, path)
    return given if isinstance(given, int) else make(Packing, given, path)


def _of_kind(kind: Any, value: Any, path: str) -> Any:
    """A rule of a kind that is abstract, as data write it."""
    return rule_from_config(kind, value, path)


def _filters(value: Any, path: str) -> tuple[Any, ...]:
    given = read_as(list[Any], value, path)
    return tuple(_of_kind(Filter, rule, f"{path}[{n}]") for n, rule in enumerate(given))


# By argument: an annotation, or a function that reads it.
PREPARATION: dict[str, Any] = {
    "source": _source,
    "mode": lambda value, path: _of_kind(Mode, value, path),
    "advantages": _advantages,
    "filters": _filters,
    "pack": _packing,
    "sinks": NoneType,  # only code has them
}
BUFFER: dict[str, Any] = {
    "staleness": _staleness,
    "tags": Mapping[str, str] | None,
    "clock": NoneType,
    "journal": read_journal,
}

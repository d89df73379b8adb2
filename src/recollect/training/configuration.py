"""A preparation and its buffer from plain data: whether groups are replayed is written there."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any

from recollect import config as base
from recollect.rollouts.buffer import RolloutBuffer
from recollect.rollouts.staleness import Staleness
from recollect.training.advantages import KINDS, Advantage
from recollect.training.filters import Filter
from recollect.training.preparation import DataPreparation, Packing
from recollect.training.sources import Mode


def preparation_from_config(config: base.Source) -> DataPreparation:
    """Make a preparation of a mapping, or of the YAML file at a path."""
    return base._from_source(DataPreparation, config)


def _source(value: Any, path: str) -> RolloutBuffer:
    """A buffer; how often its groups train is the mode's to say, so it sets no limit itself."""
    if isinstance(value, RolloutBuffer):
        return value
    given = base._read(Mapping[str, Any], value, path)
    return base._make(RolloutBuffer, {"max_uses": 0, **given}, path)


def _staleness(value: Any, path: str) -> Staleness | dict[str, Staleness]:
    given = base._read(Mapping[str, Any], value, path)
    if any(isinstance(part, Mapping) for part in given.values()):
        return {task: _rule(given[task], f"{path}.{task}") for task in given}
    return _rule(given, path)


def _rule(value: Any, path: str) -> Staleness:
    given = dict(base._read(Mapping[str, Any], value, path))
    given.pop("type", None)
    return base._make(Staleness, given, path)


def _advantages(value: Any, path: str) -> Any:
    if isinstance(value, str) and value in KINDS:
        return value
    return _of_kind(Advantage, value, path)


def _packing(value: Any, path: str) -> Packing | int:
    given = base._read(int | Mapping[str, Any], value, path)
    return given if isinstance(given, int) else base._make(Packing, given, path)


def _mode(value: Any, path: str) -> Any:
    return _of_kind(Mode, value, path)


def _of_kind(kind: Any, value: Any, path: str) -> Any:
    return base.rule_from_config(kind, value, path)


def _filters(value: Any, path: str) -> tuple[Any, ...]:
    given = base._read(list[Any], value, path)
    return tuple(_of_kind(Filter, rule, f"{path}[{n}]") for n, rule in enumerate(given))


base.WRITTEN.update(
    {
        (DataPreparation, "source"): _source,
        (DataPreparation, "mode"): _mode,
        (DataPreparation, "advantages"): _advantages,
        (DataPreparation, "filters"): _filters,
        (DataPreparation, "pack"): _packing,
        (DataPreparation, "sinks"): NoneType,  # only code has them
        (RolloutBuffer, "staleness"): _staleness,
        (RolloutBuffer, "tags"): Mapping[str, str] | None,
        (RolloutBuffer, "clock"): NoneType,
        (RolloutBuffer, "journal"): base._journal,
    }
)

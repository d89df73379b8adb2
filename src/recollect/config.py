"""Tables, stores and rules from plain data, and rules back to it.

What a rule may be given is read from its dataclass, and a table's entries from the signature of
`Table`, so a new rule or argument needs no change here. Every error begins with the path of the
wrong entry, such as `tables[0].sampler.alpha`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from inspect import Parameter, isfunction, signature
from numbers import Integral, Real
from reprlib import repr as shown
from types import NoneType, UnionType
from typing import Any, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from recollect.errors import ConfigError
from recollect.schema import Column, Schema
from recollect.storage.memory import MemoryStorage
from recollect.store import Store
from recollect.table import Table

Source = Mapping[str, Any] | str | os.PathLike[str]
Rule = TypeVar("Rule")

STORAGES: dict[str, Callable[[], Any]] = {"memory": MemoryStorage}
SCALARS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def table_from_config(config: Source) -> Table:
    """Make a table of a mapping, or of the YAML file at a path.

    >>> from recollect.config import table_from_config
    >>> table_from_config({"name": "t", "capacity": 10, "limiter": {"type": "MinSize"}}).limiter
    MinSize(min_size=1)
    """
    with _opened(config) as entries:
        return _table(entries, "")


def store_from_config(config: Source) -> Store:
    """Make a store of `{"tables": ...}`, a list of tables or a mapping of names to tables.

    >>> from recollect.config import store_from_config
    >>> list(store_from_config({"tables": {"train": {"capacity": 10}, "eval": {"capacity": 5}}}))
    ['train', 'eval']
    """
    with _opened(config) as entries:
        _check_names(entries, {"tables": True}, "")
        given = entries["tables"]
        if isinstance(given, Mapping):
            tables = [_table(_named(given[name], name), f"tables.{name}") for name in given]
        elif _takes(list, given):
            tables = [_table(table, f"tables[{place}]") for place, table in enumerate(given)]
        else:
            _refuse("tables", "a list of tables or a mapping of names to tables", given)
        with _placing("tables", ()):
            return Store(tables)


def rule_from_config(kind: type[Rule], config: Any, path: str = "") -> Rule:
    """Make a selector, a limiter or another rule of its name, or of a mapping with its `type`.

    >>> import recollect as rc
    >>> from recollect.config import rule_from_config
    >>> rule_from_config(rc.Selector, {"type": "Largest", "field": "priority"})
    Largest(field='priority')
    """
    known = _rules(kind)
    if not _takes(kind, config):
        _refuse(path, _said(kind), config)
    arguments = dict(config) if isinstance(config, Mapping) else {"type": config}
    place = _join(path, "type") if isinstance(config, Mapping) else path
    if "type" not in arguments:
        raise _error(place, "missing")
    name = arguments.pop("type")
    if name not in list(known):
        raise _error(place, f"unknown {kind.__name__.lower()} {shown(name)}{_hint(name, known)}")
    read = _arguments(known[name], arguments, path)
    with _placing(path, _entries(known[name]), name):
        rule: Rule = known[name](**read)
        return rule


def to_config(rule: Any) -> dict[str, Any]:
    """Write a rule as data that `rule_from_config` makes an equal rule of.

    >>> import recollect as rc
    >>> from recollect.config import to_config
    >>> to_config(rc.SampleToInsertRatio(4.0, min_size=100, error_buffer=(360, 440)))
    {'type': 'SampleToInsertRatio', 'ratio': 4.0, 'min_size': 100, 'error_buffer': [360, 440]}
    """
    values = {field.name: _written(getattr(rule, field.name)) for field in fields(rule)}
    return {"type": type(rule).__name__, **values}


def _written(value: Any) -> Any:
    if is_dataclass(value):
        return to_config(value)
    return [_written(part) for part in value] if isinstance(value, tuple) else _plain(value)


def _plain(value: Any) -> Any:
    """NumPy's scalars as Python's, which YAML and JSON can write."""
    if value is None or isinstance(value, bool):
        return value
    for kind, plain in ((Integral, int), (Real, float), (str, str)):
        if isinstance(value, kind):
            return plain(value)
    raise ConfigError(f"{shown(value)} cannot be written in a configuration")


# -- reading by annotation ----------------------------------------------------------------------
def _read(kind: Any, value: Any, path: str) -> Any:
    """Make what an annotation asks for of plain data."""
    if kind is Any:
        return value
    if isfunction(kind):
        return kind(value, path)
    fitting = [option for option in _options(kind) if _takes(option, value)]
    if not fitting:
        raise _error(path, f"expected {_said(kind)}, got {shown(value)}")
    if fitting[0] is not kind:
        return _read(fitting[0], value, path)
    if kind in SCALARS:
        return _plain(value)
    if _rules(kind):
        return _rule(kind, value, path)
    parts = get_args(kind)
    if isinstance(value, Mapping):
        return {name: _read(parts[1], value[name], _join(path, name)) for name in value}
    if get_origin(kind) is not tuple or parts[-1] is Ellipsis:
        parts = (parts[0],) * len(value)
    if len(parts) != len(value):
        raise _error(path, f"expected a list of {len(parts)}, got {shown(value)}")
    return tuple(_read(parts[i], value[i], f"{path}[{i}]") for i in range(len(parts)))


def _options(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _takes(kind: Any, value: Any) -> bool:
    """Whether a value has the form that an annotation needs, whatever it contains."""
    if kind in SCALARS:
        number = {int: Integral, float: Real}.get(kind, kind)
        return isinstance(value, number) and (kind is bool or not isinstance(value, bool))
    if rules := _rules(kind):
        named = isinstance(value, str) and (value in rules or len(rules) > 1)
        return named or isinstance(value, Mapping)
    if get_origin(kind) is Mapping:
        return isinstance(value, Mapping)
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _said(kind: Any) -> str:
    """An annotation in words."""
    if len(options := _options(kind)) > 1:
        return " or ".join(map(_said, options))
    if rules := _rules(kind):
        return f"one of {', '.join(rules)}" if len(rules) > 1 else kind.__name__
    return SCALARS.get(kind) or ("a mapping" if get_origin(kind) is Mapping else "a list")


def _rules(kind: Any) -> dict[str, Any]:
    """The dataclasses that are of a kind, by name."""
    if not isclass(kind) or get_origin(kind) or kind in SCALARS:
        return {}
    found = {kind.__name__: kind} if is_dataclass(kind) else {}
    for derived in kind.__subclasses__():
        found |= _rules(derived)
    return found


def _rule(kind: Any, value: Any, path: str) -> Any:
    """Make a rule of its name, or of a mapping with its name as `type` and its arguments."""
    given = dict(value) if isinstance(value, Mapping) else {"type": value}
    place = _join(path, "type") if isinstance(value, Mapping) else path
    if "type" not in given:
        raise _error(place, "missing")
    name, known = given.pop("type"), _rules(kind)
    if name not in list(known):
        what = f"unknown {kind.__name__.lower()} {shown(name)}"
        raise _error(place, what + _hint(name, known))
    return _make(known[name], given, path)


def _make(make: Any, given: Mapping[str, Any], path: str) -> Any:
    arguments = _arguments(make, given, path)
    with _placing(path, make):
        return make(**arguments)


def _arguments(make: Any, given: Mapping[str, Any], path: str) -> dict[str, Any]:
    kinds, parameters = _entries(make), signature(make).parameters
    required = [name for name in kinds if parameters[name].default is Parameter.empty]
    _check_names(given, kinds, required, path)
    return {name: _read(kinds[name], given[name], _join(path, name)) for name in given}


@cache
def _entries(make: Any) -> dict[str, Any]:
    """What may be given to make something: names and annotations."""
    hints = get_type_hints(make if is_dataclass(make) else make.__init__)
    kinds = {name: WRITTEN.get((make, name), hints[name]) for name in signature(make).parameters}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def _check_names(
    given: Mapping[str, Any], known: Iterable[str], required: Iterable[str], path: str
) -> None:
    for name in given:
        if name not in known:
            raise _error(_join(path, name), "unknown" + _hint(name, known))
    for name in required:
        if name not in given:
            raise _error(_join(path, name), "missing")


# -- what a configuration writes in another way than code does ----------------------------------
def _table(value: Any, path: str) -> Table:
    arguments = _arguments(Table, _read(Mapping[str, Any], value, path), path)
    limiter, capacity = arguments.get("limiter"), arguments["capacity"]
    if limiter is not None and capacity > 0:  # the table would check it, but without the path
        with _placing(_join(path, "limiter"), type(limiter)):
            limiter.check_capacity(capacity)
    with _placing(path, Table):
        return Table(**arguments)


def _named(value: Any, path: str, name: str) -> Any:
    """A table's entries with the name that it has in a mapping of tables."""
    if not isinstance(value, Mapping):
        return value
    if value.get("name", name) != name:
        raise _error(f"{path}.name", f"expected {name!r} or nothing, got {shown(value['name'])}")
    return {"name": name, **value}


def _signature(value: Any, path: str) -> Any:
    columns = _columns({} if value is None else value, path)
    with _placing(path):
        Schema.from_signature(columns)
    return columns or None


def _columns(value: Any, path: str) -> dict[str, Any]:
    """Columns by name: a dtype, a mapping with a dtype, or more columns."""
    columns = _read(Mapping[str, Any], value, path)
    return {name: _column(columns[name], _join(path, name)) for name in columns}


def _column(value: Any, path: str) -> Any:
    value = {"dtype": value} if isinstance(value, str) else value
    if not isinstance(value, Mapping):
        expected = "a dtype such as 'float32', a mapping with a dtype, or nested columns"
        raise _error(path, f"expected {expected}, got {shown(value)}")
    return _make(Column, value, path) if "dtype" in value else _columns(value, path)


def _storage(value: Any, path: str) -> Any:
    if value is None or value in list(STORAGES):
        return value and STORAGES[value]()
    raise _error(path, f"expected one of {', '.join(STORAGES)}, got {shown(value)}")


WRITTEN: dict[tuple[Any, str], Any] = {
    (Table, "signature"): _signature,
    (Table, "storage"): _storage,
    (Table, "tags"): Mapping[str, str] | None,
    (Table, "clock"): None,  # only code has one
    (Column, "dtype"): str,
}


# -- errors ---------------------------------------------------------------------------------------
def _join(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)


def _error(path: str, problem: str) -> ConfigError:
    return ConfigError(f"{path}: {problem}" if path else problem)


def _hint(name: Any, known: Iterable[str]) -> str:
    known = list(known)
    close = get_close_matches(str(name), known, n=1)
    meant = f"; did you mean {close[0]!r}? " if close else "; "
    return meant + (f"expected one of {', '.join(known)}" if known else "expected nothing here")


@contextmanager
def _placing(path: str, make: Any = None) -> Iterator[None]:
    """Give an error that making something raised the path; it may begin with an argument's name."""
    try:
        yield
    except (ValueError, OverflowError) as error:
        problem = str(error)
        if make is not None:
            problem = re.sub(rf"^{make.__name__}[.: ]+", "", problem)
            start = re.match(r"(\w+)([\w.\[\]]*):? ", problem)
            if start and start[1] in _entries(make):
                path, problem = _join(path, start[1] + start[2]), problem[start.end() :]
        raise _error(path, problem) from error


# -- files ----------------------------------------------------------------------------------------
class _Loader(yaml.SafeLoader):
    """Plain data only; refuses a key that is given twice, and reads 1e-3 as a number."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    problem = f"{key.value!r} is given twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                seen.add(key.value)
        return node


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


@contextmanager
def _opened(config: Source) -> Iterator[Mapping[str, Any]]:
    """The entries of a mapping or of a file, which errors then name in a note."""
    try:
        if isinstance(config, str | os.PathLike):
            file = os.fspath(config)
            config = _load(file)
            ...
        yield config
    except RecursionError as error:
        raise ConfigError("...") from error

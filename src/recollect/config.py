"""Tables, stores and rules from plain data, and rules back to it.

What a rule takes is read from its dataclass, and what a table takes from `Table` itself, so a new
rule or argument needs no change here. Errors begin with the path of the wrong entry.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from inspect import Parameter, isfunction, signature
from numbers import Integral, Real
from reprlib import repr as shown
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import yaml

from recollect.data.schema import Column
from recollect.durability.journal.journal import Journal
from recollect.errors import ConfigError, InvalidValue, NeverPossible, SchemaError
from recollect.storage.base import Storage
from recollect.storage.frame.storage import FrameStorage
from recollect.storage.memory.storage import MemoryStorage
from recollect.store import Store
from recollect.table.table import Table

Source = Mapping[str, Any] | str | os.PathLike[str]
Made = TypeVar("Made")

SCALARS: dict[Any, tuple[Any, str]] = {  # annotations: the types that fit, and what to call them
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "text"),
    bool: (bool, "true or false"),
    NoneType: (NoneType, "null"),
}


def table_from_config(config: Source) -> Table:
    """Make a table of a mapping, or of the YAML file at a path.

    >>> from recollect.config import table_from_config
    >>> table_from_config({"name": "t", "capacity": 10, "limiter": "MinSize"}).limiter
    MinSize(min_size=1)
    """
    return make_from_source(Table, config)


def store_from_config(config: Source) -> Store:
    """Make a store of `{"tables": ...}`: a list of tables, or a mapping of names to tables.

    >>> from recollect.config import store_from_config
    >>> list(store_from_config({"tables": {"train": {"capacity": 10}, "eval": {"capacity": 5}}}))
    ['train', 'eval']
    """
    return make_from_source(Store, config)


def rule_from_config(kind: type[Made], config: Any, path: str = "") -> Made:
    """Make a rule of its name, or of a mapping with its name as `type` and its arguments."""
    given = dict(config) if isinstance(config, Mapping) else {"type": config}
    place = f"{path}.type" if isinstance(config, Mapping) else path
    if "type" not in given:
        raise _error(place, "missing")
    name, rules = given.pop("type"), _rules(kind)
    if name not in list(rules):
        raise _error(place, f"unknown {shown(name)}; {_instead(name, rules)}")
    made: Made = make(rules[name], given, path)
    return made


def to_config(rule: Any) -> dict[str, Any]:
    """Write a rule as plain data, of which `rule_from_config` makes the same rule.

    >>> import recollect as rc
    >>> from recollect.config import rule_from_config, to_config
    >>> to_config(rc.Mixed([(rc.Largest("priority"), 1.0)]))
    {'type': 'Mixed', 'selectors': [[{'type': 'Largest', 'field': 'priority'}, 1.0]]}
    >>> rule_from_config(rc.Limiter, to_config(rc.Queue(10)))
    Queue(size=10)
    """
    values = {field.name: _written(getattr(rule, field.name)) for field in fields(rule)}
    return {"type": type(rule).__name__, **values}


def _written(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_written(part) for part in value]
    plain = value.item() if isinstance(value, np.generic) else value
    return to_config(value) if is_dataclass(value) else plain


# -- reading by annotation ------------------------------------------------------------------------
def read_as(kind: Any, value: Any, path: str) -> Any:
    """Make what an annotation, or a function in its place, asks for."""
    if kind is Any or isfunction(kind):
        return kind(value, path) if isfunction(kind) else value
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    forms = {option: _form(option) for option in options}
    fitting = [option for option in options if isinstance(value, forms[option][0])]
    if not fitting or (isinstance(value, bool) and bool not in fitting):
        expected = " or ".join(words for _, words in forms.values())
        raise _error(path, f"expected {expected}, got {shown(value)}")
    kind, origin, parts = fitting[0], get_origin(fitting[0]), get_args(fitting[0])
    if kind in SCALARS:
        return value
    if origin is None:
        return rule_from_config(kind, value, path)
    if origin is Mapping:
        return {name: read_as(parts[1], value[name], f"{path}.{name}") for name in value}
    if origin is not tuple or ... in parts:
        parts = parts[:1] * len(value)
    if len(parts) != len(value):
        raise _error(path, f"expected a list of {len(parts)}, got {shown(value)}")
    return tuple(read_as(parts[i], value[i], f"{path}[{i}]") for i in range(len(parts)))


def _form(kind: Any) -> tuple[Any, str]:
    """The types of data that an annotation is made of, and what to call them."""
    if kind in SCALARS:
        return SCALARS[kind]
    if origin := get_origin(kind):
        return (Mapping, "a mapping") if origin is Mapping else ((list, tuple), "a list")
    if is_dataclass(kind):
        return Mapping, "a mapping of type " + " or ".join(_rules(kind))
    return (Mapping, str), f"one of {', '.join(_rules(kind))}"


def _rules(kind: Any) -> dict[str, Any]:
    """The classes of a kind by name: its dataclasses, or those that have a name in `NAMED`."""
    own = {kind.__name__: kind}
    found = own if is_dataclass(kind) else {**NAMED.get(kind, {})}
    for derived in kind.__subclasses__():
        found |= _rules(derived)
    return found


def make(
    kind: type[Made], given: Mapping[str, Any], path: str, written: Mapping[str, Any] | None = None
) -> Made:
    """Call a class with what its arguments are made of; its own errors get their path.

    Args:
        kind: The class.
        given: What the data have for its arguments.
        path: Where that stands in the data.
        written: Annotations, or functions, for arguments that data write in another way than code.
    """
    parameters = signature(kind).parameters
    hints = get_type_hints(kind if is_dataclass(kind) else kind.__init__)
    kinds = {**hints, **WRITTEN.get(kind, {}), **(written or {})}
    kinds = {name: kinds[name] for name in parameters}
    for name in given:
        if name not in kinds:
            raise _error(f"{path}.{name}", f"unknown; {_instead(name, kinds)}")
    for name in kinds:
        if name not in given and parameters[name].default is Parameter.empty:
            raise _error(f"{path}.{name}", "missing")
    arguments = {name: read_as(kinds[name], given[name], f"{path}.{name}") for name in given}
    try:
        return kind(**arguments)
    except (ValueError, OverflowError) as error:
        problem = re.sub(rf"^{kind.__name__}[.: ]+", "", str(error))
        named = re.match(r"(\w+)[\w.\[\]]*: ", problem)
        if named and named[1] in kinds:
            raise _error(f"{path}.{named[0][:-2]}", problem[named.end() :]) from error
        raise _error(path + BLAMED.get((kind, type(error)), ""), problem) from error


# -- what data writes in another way than code ----------------------------------------------------
def _tables(value: Any, path: str) -> list[Table]:
    tables = read_as(list[Mapping[str, Any]] | Mapping[str, Mapping[str, Any]], value, path)
    if not isinstance(tables, Mapping):
        return [make(Table, table, f"{path}[{i}]") for i, table in enumerate(tables)]
    for name, table in tables.items():
        if table.setdefault("name", name) != name:
            raise _error(f"{path}.{name}.name", f"expected {name!r}, got {shown(table['name'])}")
    return [make(Table, table, f"{path}.{name}") for name, table in tables.items()]


def read_journal(value: Any, path: str) -> Any:
    """A path, or a mapping with a path."""
    given = read_as(str | Mapping[str, Any] | None, value, path)
    return make(Journal, given, path) if isinstance(given, Mapping) else given


def _columns(value: Any, path: str) -> Any:
    given = read_as(Mapping[str, Any] | None, value, path)
    return given and {name: _column(given[name], f"{path}.{name}") for name in given}


def _column(value: Any, path: str) -> Any:
    """A dtype, a mapping with a dtype, or nested columns."""
    given = read_as(str | Mapping[str, Any], value, path)
    given = {"dtype": given} if isinstance(given, str) else given
    return make(Column, given, path) if "dtype" in given else _columns(given, path)


WRITTEN: dict[Any, dict[str, Any]] = {
    Store: {"tables": _tables, "journal": read_journal},
    Table: {
        "signature": _columns,
        "tags": Mapping[str, str] | None,
        "journal": read_journal,
        "clock": NoneType,  # only code has one
    },
    Column: {"dtype": str},
}


class _Sql:
    """Makes an `rc.SqlStorage`, whose packages are imported only where one is asked for."""

    def __new__(cls, url: str, patience: float = 10.0) -> Any:
        from recollect.storage.sql import SqlStorage

        return SqlStorage(url, patience=patience)

    def __init__(self, url: str, patience: float = 10.0) -> None: ...


NAMED: dict[Any, dict[str, Any]] = {
    Storage: {"memory": MemoryStorage, "frame": FrameStorage, "sql": _Sql}
}
BLAMED: dict[tuple[Any, Any], str] = {  # the wrong argument where an error does not name it
    (Store, InvalidValue): ".tables",
    (Table, SchemaError): ".signature",
    (Table, NeverPossible): ".limiter",
}


def _error(path: str, problem: str) -> ConfigError:
    return ConfigError(f"{path}: {problem}".lstrip(".: "))


def _instead(name: Any, known: Iterable[str]) -> str:
    close = get_close_matches(str(name), known, n=1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    return f"{meant}expected one of {', '.join(known)}" if known else "expected no arguments"


# -- files ----------------------------------------------------------------------------------------
class _Loader(yaml.SafeLoader):
    """Plain data only; a key may be given once, and 1e-3 is a number."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for place, key in enumerate(keys):
            if key.value in (earlier.value for earlier in keys[:place]):
                twice = f"{key.value!r} is there twice"
                raise yaml.MarkedYAMLError(problem=twice, problem_mark=key.start_mark)
        return node


FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+.0123456789"))


def make_from_source(
    kind: type[Made], source: Source, written: Mapping[str, Any] | None = None
) -> Made:
    """Make an object of a mapping, or of the YAML file at a path; see `make`."""
    data = load_mapping(source) if isinstance(source, str | os.PathLike) else source
    try:
        return make(kind, read_as(Mapping[str, Any], data, ""), "", written)
    except RecursionError as error:
        raise ConfigError("an entry contains itself, or too many others") from error
    except ConfigError as error:
        if data is not source:
            error.add_note(f"in the file {source}")
        raise


def load_mapping(file: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Read a YAML file of plain data."""
    try:
        with open(file, "rb") as stream:
            data = yaml.load(stream, _Loader)  # a SafeLoader: it makes no objects
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except Exception as error:  # PyYAML lets ValueError and others of its converters out
        raise ConfigError(f"{file}: cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(data, Mapping):
        got = "an empty file" if data is None else shown(data)
        raise ConfigError(f"{file}: expected a mapping, as 'name: value' in lines, got {got}")
    return data

"""Names of columns: a dict inside a dict, and the dotted names that stand for the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recollect.errors import SchemaError


def flatten(columns: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested dicts by dotted name.

    >>> from recollect.data.dotted_names import flatten
    >>> flatten({"obs": {"image": 1, "state": 2}, "reward": 3})
    {'obs.image': 1, 'obs.state': 2, 'reward': 3}
    """
    if not isinstance(columns, Mapping):
        raise SchemaError(f"columns must be a dict, got {type(columns).__name__}")
    flat: dict[str, Any] = {}
    for name, value in columns.items():
        if not isinstance(name, str) or not name or "." in name:
            raise SchemaError(
                f"{name!r} cannot name a column: a name is a non-empty str without a dot "
                "(a dict inside the dict makes dotted names)"
            )
        if not isinstance(value, Mapping):
            flat[prefix + name] = value
        elif value:
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            raise SchemaError(f"{prefix + name!r} is an empty dict: leave it out")
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted name as nested dicts: `flatten` undone.

    >>> from recollect.data.dotted_names import nest
    >>> nest({"obs.image": 1, "obs.state": 2, "reward": 3})
    {'obs': {'image': 1, 'state': 2}, 'reward': 3}
    """
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *outer, last = name.split(".")
        inside = nested
        for part in outer:
            inside = inside.setdefault(part, {})
        inside[last] = value
    return nested


def check_flat_names(names: Mapping[str, Any]) -> None:
    """Raise `SchemaError` unless these dotted names could have come from nested dicts."""
    for name in names:
        if not isinstance(name, str) or not all(name.split(".")):
            raise SchemaError(f"{name!r} cannot name a column: a name is a non-empty str")
        parts = name.split(".")
        for end in range(1, len(parts)):
            if (outer := ".".join(parts[:end])) in names:
                raise SchemaError(f"{outer!r} cannot be a column and also hold the column {name!r}")

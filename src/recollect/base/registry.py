"""What a lower layer may ask of a higher one: functions by name, which `recollect/__init__` fills.

`Table.from_config` reads a configuration, and configurations know tables. So a table does not
import them: it asks here for a name. A module is imported when its function is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

Made = TypeVar("Made")

_modules: dict[str, str] = {}


def register(name: str, module: str) -> None:
    """Say which module has the function of a name; it is not imported yet."""
    _modules[name] = module


def resolve(name: str, kind: type[Made]) -> Callable[[Any], Made]:
    """The function of a name, which makes objects of a kind.

    >>> from recollect.base import registry
    >>> from recollect.table.table import Table
    >>> registry.resolve("table_from_config", Table)({"name": "t", "capacity": 10}).capacity
    10
    """
    found: Callable[[Any], Made] = getattr(import_module(_modules[name]), name)
    return found

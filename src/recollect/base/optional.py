"""Packages that are not always there: imported by the calls that need them, and by nothing else."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def optional(package: str, extra: str | None = None) -> Any:
    """Import a package, or say which extra installs it.

    >>> from recollect.base.optional import optional
    >>> optional("json").dumps([1])
    '[1]'
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        name = package.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != name:
            raise  # it is there, and something that it needs is not
        raise ImportError(
            f"this call needs {name}, which is not installed: "
            f"pip install 'recollect[{extra or name}]'"
        ) from error

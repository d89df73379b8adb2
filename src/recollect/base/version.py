"""The version of the package, which is looked up where somebody asks for it."""

from __future__ import annotations


def version() -> str:
    """The version that is installed, as `recollect.__version__` has it."""
    from importlib import metadata

    try:
        return metadata.version("recollect")
    except metadata.PackageNotFoundError:  # imported from a folder that was never installed
        return "0+unknown"

"""The workloads. A new one is a new file here that defines `WORKLOAD`."""

from __future__ import annotations

import importlib
import pkgutil

from bench.workloads.base import Workload


def all_workloads() -> dict[str, Workload]:
    """Every workload of this folder by name, the numbered ones first."""
    found: list[Workload] = [
        importlib.import_module(f"{__name__}.{module.name}").WORKLOAD
        for module in pkgutil.iter_modules(__path__)
        if module.name != "base"
    ]
    return {workload.name: workload for workload in sorted(found, key=lambda one: one.name)}

"""A small Ray cluster on this machine, for the tests of a module."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray


@contextmanager
def ray_cluster(cpus: int) -> Iterator[None]:
    ray.init(
        num_cpus=cpus,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=80 << 20,
        runtime_env={"env_vars": {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}},
    )
    try:
        yield
    finally:
        ray.shutdown()

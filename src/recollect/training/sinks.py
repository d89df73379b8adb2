"""Sinks: where metrics go. A plain dict, Prometheus, TensorBoard."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from recollect.base.optional import optional

NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_]")


class Sink(Protocol):
    """What receives the metrics of a step."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """The metrics of a step; families that it does not have stay as they were."""

    def close(self) -> None:
        """Nothing comes any more."""


class DictSink:
    """Keeps the metrics of each step in a dict.

    >>> from recollect import training
    >>> sink = training.DictSink()
    >>> sink.write(1, {"train/groups": 8})
    >>> sink.steps[1]["train/groups"]
    8
    """

    def __init__(self) -> None:
        self.steps: dict[int, dict[str, float]] = {}

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self.steps.setdefault(step, {}).update(metrics)

    def close(self) -> None:
        """Nothing to do."""


class PrometheusSink:
    """Gauges for Prometheus: `train/lag/2` is `recollect_train_lag{of="2"}`.

    What a step has no number for is absent, instead of standing at its last value: a step
    replaces all that its families (`gen/`, `train/`, `buffer/`) had.

    Args:
        registry: Of `prometheus_client`; its default one where None.
        prefix: What names begin with.
        labels: Labels that every gauge carries, such as the name of the run.
    """

    def __init__(
        self,
        registry: Any = None,
        *,
        prefix: str = "recollect",
        labels: Mapping[str, str] | None = None,
    ) -> None:
        client = optional("prometheus_client", "metrics")
        self._core = optional("prometheus_client.core", "metrics")
        self._prefix = prefix
        self._labels = dict(labels or {})
        self._lock = threading.Lock()
        self._metrics: dict[str, float] = {}  # guarded by the lock: a scrape is another thread
        self._registry = client.REGISTRY if registry is None else registry
        self._registry.register(self)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        families = {name.partition("/")[0] for name in metrics}
        with self._lock:
            kept = {n: v for n, v in self._metrics.items() if n.partition("/")[0] not in families}
            self._metrics = {**kept, **metrics}

    def collect(self) -> Iterator[Any]:
        """What `prometheus_client` calls for a scrape."""
        with self._lock:
            metrics = dict(self._metrics)
        gauges: dict[str, Any] = {}
        for name, value in metrics.items():
            family, metric, of = (*name.split("/", 2), "", "")[:3]
            known = self._labels | ({"of": of} if of else {})
            plain = NOT_IN_A_NAME.sub("_", f"{self._prefix}_{family}_{metric}")
            if plain not in gauges:
                gauges[plain] = self._core.GaugeMetricFamily(plain, name, labels=list(known))
            gauges[plain].add_sample(plain, known, float(value))
        yield from gauges.values()

    def close(self) -> None:
        """Leave the registry."""
        self._registry.unregister(self)


class TensorBoardSink:
    """Scalars in a folder that TensorBoard reads; needs neither TensorFlow nor torch."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._writer = optional("tensorboard.summary", "tensorboard").Writer(os.fspath(folder))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Write the rest, and end the file."""
        self._writer.close()

"""Inserts that are asked for twice: a producer that repeats a request gets the same keys again."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from recollect.errors import InvalidValue, shown

Request = tuple[str | int, int]

PER_PRODUCER = 1024  # requests that are remembered; an older one may not be repeated
PRODUCERS = 4096  # that are remembered; who asked longest ago is forgotten first


class RequestBook(Protocol):
    """What a table asks of its requests; a storage that processes share has its own."""

    def keys(self, request: Request) -> NDArray[np.uint64] | None: ...
    def remember(self, request: Request, keys: NDArray[np.uint64]) -> None: ...


class Requests:
    """The last requests of each producer, and the keys they got; guarded by the table's lock."""

    def __init__(self) -> None:
        self._known: OrderedDict[str | int, OrderedDict[int, tuple[int, int]]] = OrderedDict()

    def keys(self, request: Request) -> NDArray[np.uint64] | None:
        """What a request got before, None for a new one."""
        producer, number = request
        known = self._known.get(producer)
        if known is None:
            return None
        if number in known:
            first, count = known[number]
            return np.arange(count, dtype=np.uint64) + np.uint64(first)
        if len(known) >= PER_PRODUCER and number < next(iter(known)):
            raise too_old(request)
        return None

    def state(self) -> list[Any]:
        """Everything that is remembered, as plain data."""
        return [
            [producer, [[number, *keys] for number, keys in known.items()]]
            for producer, known in self._known.items()
        ]

    def restore(self, state: list[Any]) -> None:
        """Remember what `state` returned."""
        self._known = OrderedDict(
            (producer, OrderedDict((number, (first, count)) for number, first, count in known))
            for producer, known in state
        )

    def remember(self, request: Request, keys: NDArray[np.uint64]) -> None:
        producer, number = request
        known = self._known.setdefault(producer, OrderedDict())
        known[number] = (int(keys[0]), keys.size) if keys.size else (0, 0)
        self._known.move_to_end(producer)
        if len(known) > PER_PRODUCER:
            known.popitem(last=False)
        if len(self._known) > PRODUCERS:
            self._known.popitem(last=False)


def check_request(request: object) -> Request:
    """A request is a producer's name or number, and a number that it counts upwards."""
    if isinstance(request, tuple | list) and len(request) == 2:
        producer, number = (v.item() if isinstance(v, np.generic) else v for v in request)
        named = isinstance(producer, str | int) and not isinstance(producer, bool)
        if named and isinstance(number, int) and not isinstance(number, bool) and number >= 0:
            return producer, number
    raise InvalidValue(
        f"request: expected (producer, number), such as ('actor-3', 17), got {shown(request)}"
    )


def too_old(request: Request) -> InvalidValue:
    producer, number = request
    return InvalidValue(
        f"request {number} of producer {producer!r} is too old to be told from a new one: "
        f"the last {PER_PRODUCER} are remembered; number requests upwards"
    )

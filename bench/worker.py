"""The process that holds one filled buffer and times operations on it when told to.

`python -m bench.worker PEER WORKLOAD ROWS`, then one JSON object per line: it answers `ready`
once the buffer is full, and after that one line for each `{"operation": ..., "seconds": ...}`.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.metadata
import json
import os
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from bench.adapter import Adapter, Call, Unsupported
from bench.workloads import all_workloads
from bench.workloads.base import Operation, Workload

REHEARSAL_ROWS = 8192
REHEARSAL_BYTES = 2**26


def main(peer: str, workload_name: str, rows: int) -> None:
    """Serve one implementation until the parent closes our input."""
    answers = _take_over_stdout()
    try:
        workload = all_workloads()[workload_name].sized(rows)
        adapter, ready = _start(peer, workload)
    except Exception as error:
        _answer(answers, _failure(error))
        return
    _answer(answers, ready)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            operation = workload.operation(request["operation"])
            _answer(answers, _best(adapter, operation, request["seconds"]))
        except Exception as error:
            _answer(answers, _failure(error))
    adapter.close()


def _start(peer: str, workload: Workload) -> tuple[Adapter, dict[str, Any]]:
    module = importlib.import_module(f"bench.peers.{peer}")
    adapter_class = module.ADAPTERS.get(workload.kind)
    if adapter_class is None:
        raise Unsupported(f"no adapter for {workload.kind}")
    if adapter_class.rehearse:
        _rehearse(adapter_class, workload)
    before = _resident_bytes()
    began = time.perf_counter()
    adapter: Adapter = adapter_class(workload)
    adapter.fill()
    filled = time.perf_counter() - began
    grown = _resident_bytes() - before
    return adapter, {
        "ready": True,
        "fill_seconds": filled,
        "bytes_per_row": grown / workload.rows,
        "versions": _versions(module.DISTRIBUTIONS),
        "note": adapter.note(),
    }


def _rehearse(adapter_class: type[Adapter], workload: Workload) -> None:
    """Run everything once at a small size: whatever compiles or loads lazily does so now."""
    largest = max(operation.size for operation in workload.operations)
    rows = min(REHEARSAL_ROWS, REHEARSAL_BYTES // workload.payload)
    adapter = adapter_class(workload.sized(min(workload.rows, max(rows, 2 * largest))))
    adapter.fill()
    for operation in workload.operations:
        with suppress(Unsupported):
            _timed(adapter.prepare(operation), 1)
    adapter.close()


def _best(adapter: Adapter, operation: Operation, seconds: float) -> dict[str, Any]:
    """The result with the number of threads that suits this operation on this machine now."""
    results = []
    for count in adapter.thread_counts():
        adapter.set_threads(count)
        results.append({**_measure(adapter.prepare(operation), seconds), "threads": count})
    if not results:
        return _measure(adapter.prepare(operation), seconds)
    return max(results, key=lambda result: result["rate"])


def _measure(call: Call, seconds: float) -> dict[str, Any]:
    """Items per second over about that many seconds, after a warm-up of a twentieth of it."""
    _timed(call, 1)
    count, elapsed = 1, _timed(call, 1)
    while elapsed < seconds / 20:
        count *= 2
        elapsed = _timed(call, count)
    count = max(1, round(count * seconds / elapsed))
    elapsed = _timed(call, count)
    return {"rate": call.items * count / elapsed, "calls": count, "seconds": elapsed}


def _timed(call: Call, count: int) -> float:
    run, before, clock = call.run, call.before, time.perf_counter
    held: object = None
    if before is None:
        began = clock()
        for _ in range(count):
            held = run()  # a learner holds its batch until the next one is there
        elapsed = clock() - began
        del held
        return elapsed
    total = 0.0
    for _ in range(count):
        before()
        began = clock()
        held = run()
        total += clock() - began
    del held
    return total


def _resident_bytes() -> int:
    """Resident memory after everything that can be freed was."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _versions(distributions: tuple[str, ...]) -> dict[str, str]:
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in distributions:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _take_over_stdout() -> TextIO:
    """Keep the real stdout for answers; whatever a library prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def _answer(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _failure(error: Exception) -> dict[str, Any]:
    if isinstance(error, Unsupported):
        return {"unsupported": str(error)}
    traceback.print_exc()
    return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

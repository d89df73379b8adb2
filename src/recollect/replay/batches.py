"""Batches one after another: chosen ahead in the caller's thread, read and converted in another.

What is drawn must not depend on how threads take turns, so a batch is *chosen* under the lock, by
the thread that asks for batches; only the copying and the conversion are left to a thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from typing import Any, Protocol

import numpy as np

from recollect.base.arguments import flag, time_span, whole
from recollect.base.optional import optional
from recollect.data.batch import Batch
from recollect.data.info import info_arrays
from recollect.errors import InvalidValue, RecollectError, SchemaError, shown
from recollect.replay.replay_core import ReplayCore
from recollect.replay.sample_verbs import Choice, SampleSequences, SampleTransitions, StepDraw

SEQUENCE_OPTIONS = ("length", "burn_in", "across_episodes", "stride")
MOST_AHEAD = 1 << 16
FOR_THE_BUFFER = ("keys", "env_ids", "steps", "source")  # what a learner only hands back


class BatchDraw(Protocol):
    """A batch that is to be drawn: chosen first, then read, perhaps by another thread."""

    def choose(self, timeout: float | None) -> None:
        """Fix what is drawn, and wait for it as `sample` does; may be tried again if it raised."""

    def read(self) -> Batch:
        """Copy what was chosen; needs no lock."""


class BufferDraw:
    """A draw from one buffer."""

    def __init__(self, core: ReplayCore, draw: StepDraw) -> None:
        self._core = core
        self._draw = draw
        self._chosen: Any = None

    def choose(self, timeout: float | None) -> None:
        self._chosen = self._core.run(Choice(self._draw, timeout))

    def read(self) -> Batch:
        return self._draw.finish(self._chosen)


def buffer_draw(
    core: ReplayCore, n: int, sequences: Mapping[str, Any] | None, where: Any, replace: bool
) -> BufferDraw:
    """A draw of n transitions, or of n sequences, of a buffer."""
    if sequences is None:
        return BufferDraw(core, SampleTransitions(core, n, where, replace))
    if where is not None:
        raise InvalidValue("where: a query chooses among transitions; leave it out for sequences")
    options = {"burn_in": 0, "across_episodes": "stop", "stride": 1, **sequences}
    length, burn_in, across, stride = (options[name] for name in SEQUENCE_OPTIONS)
    return BufferDraw(core, SampleSequences(core, n, length, burn_in, across, stride, replace))


def sequence_options(sequences: Any) -> dict[str, Any] | None:
    """What `sequences=` says: None, a length, or the options of `sample_sequences` by name."""
    if sequences is None:
        return None
    if not isinstance(sequences, Mapping):
        return {"length": whole("sequences", sequences, 1)}
    unknown = [name for name in sequences if name not in SEQUENCE_OPTIONS]
    if unknown or "length" not in sequences:
        raise InvalidValue(
            f"sequences: expected a length, or a dict with 'length' and any of "
            f"{', '.join(SEQUENCE_OPTIONS[1:])}, got {shown(sequences)}"
        )
    return dict(sequences)


class Batches:
    """An iterator over batches; `Batched.batches` says what it promises. Close it, or use `with`.

    >>> import recollect as rc
    >>> buffer = rc.ReplayBuffer(100, seed=0)
    >>> _ = buffer.extend(obs=np.zeros((9, 2)), reward=np.zeros(9))
    >>> with buffer.batches(4, prefetch=2, count=3) as batches:
    ...     [batch["obs"].shape for batch in batches]
    [(4, 2), (4, 2), (4, 2)]
    """

    def __init__(
        self,
        draw: Callable[[], BatchDraw],
        convert: Callable[[Batch], Any] | None,
        prefetch: int,
        count: int | None,
        timeout: float | None,
    ) -> None:
        self._draw = draw
        self._convert = convert
        self._prefetch = prefetch
        self._left = count
        self._timeout = timeout
        self._lock = threading.Lock()  # two consumers may share an iterator
        self._next: BatchDraw | None = draw()  # made now, so that mistakes show here
        self._ahead: deque[BatchDraw | Future[Any]] = deque()
        self._worker: ThreadPoolExecutor | None = None
        self._closed = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._lock:
            if self._closed or (not self._ahead and self._left == 0):
                self._stop_worker(cancel=False)  # another consumer may still wait for its batch
                raise StopIteration
            if not self._ahead:
                self._choose(self._timeout)
            with suppress(RecollectError):  # what cannot be chosen now is chosen when it is asked
                while len(self._ahead) <= self._prefetch and self._left != 0:
                    self._choose(0.0)
            job = self._ahead.popleft()
        return self._result(job)

    def _choose(self, timeout: float | None) -> None:
        """Choose the next batch, and let the worker begin with it."""
        if self._next is None:
            self._next = self._draw()
        self._next.choose(timeout)
        if self._closed:  # by another thread, while this one waited
            raise StopIteration
        draw, self._next = self._next, None
        if self._left is not None:
            self._left -= 1
        if not self._prefetch:
            self._ahead.append(draw)
            return
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="recollect-batches")
        self._ahead.append(self._worker.submit(self._make, draw))

    def _make(self, draw: BatchDraw) -> Any:
        batch = draw.read()
        return batch if self._convert is None else self._convert(batch)

    def _result(self, job: BatchDraw | Future[Any]) -> Any:
        if not isinstance(job, Future):
            return self._make(job)
        try:
            return job.result()
        except CancelledError:  # closed by another thread
            raise StopIteration from None

    def drain(self) -> list[Any]:
        """Hand out the batches that are chosen already, and choose no more for now.

        Then nothing is under way: what a checkpoint saves of the buffer is all there is. Iterating
        goes on afterwards.
        """
        with self._lock:
            jobs = list(self._ahead)
            self._ahead.clear()
        return [self._result(job) for job in jobs]

    def close(self) -> None:
        """Stop the thread and forget what was chosen ahead; the next batch is the end."""
        self._closed = True
        self._stop_worker(cancel=True)
        self._ahead.clear()

    def _stop_worker(self, cancel: bool) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.shutdown(wait=True, cancel_futures=cancel)

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Batched:
    """What draws batches one after another: a buffer, a view of one, a mixture of several."""

    def _draw(
        self, n: int, sequences: Mapping[str, Any] | None, where: Any, replace: bool
    ) -> BatchDraw:
        """A draw of n items that is still to be chosen; says what is wrong with the arguments."""
        raise NotImplementedError

    def batches(
        self,
        batch_size: int,
        *,
        sequences: int | Mapping[str, Any] | None = None,
        prefetch: int = 0,
        count: int | None = None,
        where: Any = None,
        replace: bool = True,
        timeout: float | None = None,
        to: str = "numpy",
        device: Any = None,
        pin_memory: bool = False,
    ) -> Batches:
        """Batches one after another, without end or `count` of them.

        With `prefetch=k`, batch i + k is chosen when batch i is asked for, in the thread that
        asks, and a thread copies and converts it meanwhile. So:

        - For one `prefetch`, the same seed and the same calls between the same batches give the
          same batches, however threads take turns.
        - Batches do not depend on `prefetch` as long as nothing else inserts, draws or changes
          priorities between them. Such a change reaches batches from k + 1 after it on, because
          those before are chosen already; a draw by others finds the random stream k draws ahead.
        - What is chosen stays as it was then, also if its steps are overwritten meanwhile.
        - Looking ahead never waits: where the limiter or the steps do not allow it yet, a batch is
          chosen when it is asked for, and raises only then. Draws ahead count for the limiter.

        An error while copying or converting is raised where that batch is asked for.

        Args:
            batch_size: Items of a batch.
            sequences: None for transitions; a length, or the options of `sample_sequences` by
                name, such as `{"length": 64, "burn_in": 8}`.
            prefetch: How many batches are prepared ahead; 0 needs no thread.
            count: How many batches; None for no end.
            where: As in `sample`.
            replace: As in `sample`.
            timeout: As in `sample`, for each batch.
            to: `"numpy"` for `rc.Batch`; `"torch"` for nested dicts of tensors, with `"info"`: the
                entries of `batch.info` as tensors. Keys, environments and steps stay on the CPU.
            device: Where tensors go.
            pin_memory: Whether tensors are made in pinned memory, to be copied without waiting.

        >>> import recollect as rc
        >>> buffer = rc.ReplayBuffer(100, seed=0)
        >>> _ = buffer.extend(obs=np.zeros((9, 2)), reward=np.zeros(9))
        >>> for batch in buffer.batches(2, sequences=4, count=2):
        ...     print(batch["obs"].shape)
        (2, 4, 2)
        (2, 4, 2)
        """
        n, replace = whole("batch_size", batch_size, 1), flag("replace", replace)
        options = sequence_options(sequences)
        prefetch = whole("prefetch", prefetch, 0, MOST_AHEAD)
        count = None if count is None else whole("count", count, 0)
        timeout = None if timeout is None else time_span("timeout", timeout)
        convert = _conversion(to, device, pin_memory)
        draw = partial(self._draw, n, options, where, replace)
        return Batches(draw, convert, prefetch, count, timeout)

    def dataset(
        self,
        batch_size: int,
        *,
        sequences: int | Mapping[str, Any] | None = None,
        prefetch: int = 0,
        count: int | None = None,
        where: Any = None,
        replace: bool = True,
        timeout: float | None = None,
        device: Any = None,
        pin_memory: bool = False,
    ) -> Any:
        """The batches as a `torch.utils.data.IterableDataset`, for a `DataLoader` without workers.

        Elements are whole batches, so the loader gets `batch_size=None`. The buffer lives in this
        process: `prefetch` prepares batches ahead, in place of `num_workers`, which must be 0.
        Arguments are those of `batches`.

        >>> import recollect as rc
        >>> from torch.utils.data import DataLoader
        >>> buffer = rc.ReplayBuffer(100, seed=0)
        >>> _ = buffer.extend(obs=np.zeros((9, 2)), reward=np.zeros(9))
        >>> loader = DataLoader(buffer.dataset(4, prefetch=2, count=3), batch_size=None)
        >>> [tuple(batch["obs"].shape) for batch in loader]
        [(4, 2), (4, 2), (4, 2)]
        """

        def make() -> Batches:
            return self.batches(
                batch_size, sequences=sequences, prefetch=prefetch, count=count, where=where,
                replace=replace, timeout=timeout, to="torch", device=device,
                pin_memory=pin_memory,
            )  # fmt: skip

        made = _dataset_class()(make)
        make().close()  # a mistake shows now, and not in the loader
        return made


def _conversion(to: Any, device: Any, pin_memory: Any) -> Callable[[Batch], Any] | None:
    """What makes tensors of a batch, None where it stays as it is."""
    if to not in ("numpy", "torch"):
        raise InvalidValue(f"to: expected 'numpy' or 'torch', got {shown(to)}")
    pin_memory = flag("pin_memory", pin_memory)
    if to == "torch":
        optional("torch")
        return partial(as_tensors, device=device, pin_memory=pin_memory)
    if device is not None or pin_memory:
        raise InvalidValue("device, pin_memory: only tensors have one; add to='torch'")
    return None


def as_tensors(batch: Batch, device: Any, pin_memory: bool) -> dict[str, Any]:
    """A batch as nested dicts of tensors, and what the buffer knows of each item as `"info"`."""
    if "info" in batch:
        raise SchemaError(
            "column 'info': tensors of a batch have what the buffer knows under this name; "
            "rename the column"
        )
    torch = optional("torch")
    tensors = batch.to_torch(device, pin_memory)
    info: dict[str, Any] = {}
    for name, array in info_arrays(batch.info).items():
        if array.dtype == np.uint64:  # keys have 63 bits, and torch can do little with uint64
            array = array.view(np.int64)
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if name not in FOR_THE_BUFFER:
            if tensor.is_floating_point():
                tensor = tensor.to(torch.float32)
            tensor = tensor if device is None else tensor.to(device)
        info[name] = tensor
    tensors["info"] = info
    return tensors


@cache
def _dataset_class() -> Any:
    data = optional("torch.utils.data", "torch")

    class ReplayDataset(data.IterableDataset):  # type: ignore[name-defined,misc]
        """Batches for a DataLoader in the process of their buffer."""

        def __init__(self, make: Callable[[], Batches]) -> None:
            self._make = make

        def __iter__(self) -> Iterator[Any]:
            if data.get_worker_info() is not None:
                raise _no_workers()
            with self._make() as batches:
                yield from batches

        def __reduce__(self) -> Any:
            raise _no_workers()

    return ReplayDataset


def _no_workers() -> InvalidValue:
    return InvalidValue(
        "num_workers: a replay buffer lives in one process, and a worker of a DataLoader is "
        "another; use num_workers=0, and dataset(prefetch=2) to prepare batches ahead"
    )

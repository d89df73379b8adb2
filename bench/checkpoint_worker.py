"""One implementation that saves and loads: a process of its own, in the peer's environment.

    python bench/checkpoint_worker.py NAME FOLDER ROUNDS

Prints one line of JSON: seconds of each save and load. Peers save as their documentation says; none
of them syncs, and the page cache takes what they write.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path[0] = str(Path(__file__).resolve().parent.parent)

TRANSITIONS = 1_000_000
CHUNK = 10_000  # transitions that are inserted at once; one in a hundred
GROUPS = 2_500  # of 8 rollouts
MEMORY = 1 << 30  # bytes


def transitions(n: int, seed: int = 0) -> dict[str, Any]:
    """165 bytes each."""
    random = np.random.default_rng(seed)
    return {
        "obs": random.random((n, 17), np.float32),
        "next_obs": random.random((n, 17), np.float32),
        "action": random.random((n, 6), np.float32),
        "reward": random.random(n, np.float32),
        "done": random.random(n) < 0.1,
    }


def priorities(n: int, seed: int = 0) -> Any:
    """As different from each other as those of a run."""
    return np.random.default_rng(seed).random(n, np.float32) + np.float32(0.01)


def rollouts() -> list[Any]:
    from bench.rollouts import make_groups

    pool = make_groups()
    return [pool[number % len(pool)] for number in range(GROUPS)]


def timed(call: Callable[[], object]) -> float:
    have_memory()
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def have_memory() -> None:
    """Touch memory and give it back: a virtual machine may have to ask its host for it again, which
    takes ten times as long as clearing it, and whoever comes first would pay for all.
    """
    memory = mmap.mmap(-1, MEMORY, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    pages = np.frombuffer(memory, np.uint8)
    pages[::4096] = 1
    del pages
    memory.close()


class Recollect:
    """A table of a store, with priorities or without."""

    def __init__(self, prioritized: bool = True) -> None:
        import recollect as rc

        # imported when first needed, where peers import at once
        import recollect.durability.snapshot.reader
        import recollect.durability.snapshot.saver

        sampler = rc.Prioritized() if prioritized else rc.Uniform()
        self.table = rc.Table("t", capacity=TRANSITIONS, sampler=sampler, seed=0)
        self.store = rc.Store([self.table])
        self.prioritized = prioritized

    def fill(self) -> None:
        for seed in range(TRANSITIONS // CHUNK):
            given = {"priority": priorities(CHUNK, seed)} if self.prioritized else {}
            self.table.insert(transitions(CHUNK, seed), **given)
        self.table.sample(256)

    def save(self, path: Path) -> None:
        self.store.save(path, progress=False)

    def forget(self) -> None:
        """Nothing is on disk, as far as it knows: the next save is a first one."""
        self.table.core.storage.ledger = None  # type: ignore[attr-defined]

    def load(self, path: Path) -> None:
        self.store.load(path, progress=False)


class RecollectRollouts:
    """A `RolloutBuffer`."""

    def __init__(self) -> None:
        import recollect as rc

        self.buffer = rc.RolloutBuffer(staleness=rc.Staleness(max_staleness=1000), seed=0)

    def fill(self) -> None:
        from bench.peers.recollect_rollouts import _group

        for number, group in enumerate(rollouts()):
            self.buffer.sync.put(_group(group, number))

    def save(self, path: Path) -> None:
        self.buffer.save(path, progress=False)

    def forget(self) -> None:
        self.buffer.table.core.storage.ledger = None  # type: ignore[attr-defined]

    def load(self, path: Path) -> None:
        self.buffer.load(path, progress=False)


class TorchRL:
    """`dumps` and `loads` of a buffer whose storage is a TensorDict; its sampler goes with it."""

    def __init__(self, prioritized: bool = True) -> None:
        # Its extension is built for another torch; see `peers/torchrl.py`.
        sys.setdlopenflags(sys.getdlopenflags() & ~os.RTLD_NOW | os.RTLD_LAZY)
        from torchrl.data import LazyTensorStorage, ReplayBuffer
        from torchrl.data.replay_buffers.samplers import PrioritizedSampler, RandomSampler

        self.prioritized = prioritized
        sampler = PrioritizedSampler(TRANSITIONS, 0.6, 0.4) if prioritized else RandomSampler()
        storage = LazyTensorStorage(TRANSITIONS)
        self.buffer = ReplayBuffer(storage=storage, sampler=sampler, batch_size=256)

    def fill(self) -> None:
        import torch
        from tensordict import TensorDict

        for seed in range(TRANSITIONS // CHUNK):
            columns = {k: torch.from_numpy(v) for k, v in transitions(CHUNK, seed).items()}
            places = self.buffer.extend(TensorDict(columns, batch_size=[CHUNK]))
            if self.prioritized:
                self.buffer.update_priority(places, torch.from_numpy(priorities(CHUNK, seed)))

    def save(self, path: Path) -> None:
        self.buffer.dumps(path)

    def forget(self) -> None:
        """It always writes everything."""

    def load(self, path: Path) -> None:
        self.buffer.loads(path)


class Cpprb:
    """`save_transitions` and `load_transitions`, of a buffer without priorities."""

    def __init__(self) -> None:
        import cpprb

        columns = {
            name: {"shape": column.shape[1:] or 1, "dtype": column.dtype}
            for name, column in transitions(1).items()
        }
        self.buffer = cpprb.ReplayBuffer(TRANSITIONS, columns)

    def fill(self) -> None:
        for seed in range(TRANSITIONS // CHUNK):
            self.buffer.add(**transitions(CHUNK, seed))

    def save(self, path: Path) -> None:
        self.buffer.save_transitions(str(path))

    def forget(self) -> None:
        """It always writes everything."""

    def load(self, path: Path) -> None:
        self.buffer.load_transitions(f"{path}.npz")


class Reverb:
    """A server that is told to write a checkpoint, and one that begins with it."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self.server: Any = None

    def _serve(self, path: Path) -> Any:
        import reverb

        table = reverb.Table(
            name="queue",
            sampler=reverb.selectors.Fifo(),
            remover=reverb.selectors.Fifo(),
            max_size=GROUPS,
            rate_limiter=reverb.rate_limiters.MinSize(1),
        )
        checkpointer = reverb.checkpointers.DefaultCheckpointer(path=str(path))
        return reverb.Server([table], checkpointer=checkpointer)

    def fill(self) -> None:
        import tempfile

        import reverb

        from bench.rollouts import TOKEN_COLUMNS

        self.path = Path(tempfile.mkdtemp())
        self.server = self._serve(self.path)
        self.client = reverb.Client(f"localhost:{self.server.port}")
        writer = self.client.writer(1, chunk_length=1)
        for group in rollouts():
            step = [np.concatenate([getattr(one, name) for one in group]) for name in TOKEN_COLUMNS]
            step.append(np.array([len(one.response_ids) for one in group], np.int32))
            writer.append(step)
            writer.create_item("queue", 1, 1.0)
        writer.flush()
        writer.close()

    def save(self, path: Path) -> None:
        self.client.checkpoint()

    def forget(self) -> None:
        """It always writes everything."""

    def load(self, path: Path) -> None:
        loaded = self._serve(SAVED_BY_REVERB)
        loaded.stop()


class TransferQueue:
    """Checkpoints of its controller and of its storage units."""

    def __init__(self) -> None:
        self.client: Any = None

    def fill(self) -> None:
        import ray
        import transfer_queue

        from bench.peers.transferqueue import _tensors

        ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
        transfer_queue.init()
        self.client = transfer_queue.get_client()
        groups = rollouts()
        for begin in range(0, len(groups), 64):
            some = [(group, begin + k) for k, group in enumerate(groups[begin : begin + 64])]
            self.client.put(data=_tensors(some), partition_id="queue")

    def save(self, path: Path) -> None:
        path.mkdir()
        self.client.save_controller_checkpoint(str(path / "controller"))
        self.client.save_storage_checkpoint(str(path / "storage"))

    def forget(self) -> None:
        """It always writes everything."""

    def load(self, path: Path) -> None:
        self.client.load_controller_checkpoint(str(path / "controller"))
        self.client.load_storage_checkpoint(str(path / "storage"))


MADE: dict[str, Callable[[], Any]] = {
    "Recollect": Recollect,
    "TorchRL": TorchRL,
    "Recollect, uniform": partial(Recollect, False),
    "TorchRL, uniform": partial(TorchRL, False),
    "cpprb": Cpprb,
    "Recollect rollouts": RecollectRollouts,
    "TransferQueue": TransferQueue,
    "Reverb": Reverb,
}
SAVED_BY_REVERB = Path()


def measure(name: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Seconds of saves and loads, and what else only we can do."""
    global SAVED_BY_REVERB
    one = MADE[name]()
    one.fill()
    found: dict[str, Any] = {"save": [], "load": []}
    for number in range(rounds):
        one.forget()
        path = folder / f"save-{number}"
        found["save"].append(timed(lambda path=path: one.save(path)))
    if name == "Reverb":
        SAVED_BY_REVERB = one.path
    if name == "Recollect":
        found.update(_ours(one, folder, rounds))
    last = folder / f"save-{rounds - 1}"
    for _ in range(rounds):
        # TransferQueue's controller is an actor of its own: it loads into the one that saved
        other = one if name == "TransferQueue" else MADE[name]()
        found["load"].append(timed(lambda other=other: other.load(last)))
        del other
        gc.collect()
    if name == "Reverb":
        shutil.rmtree(one.path)
    return found


def _ours(one: Recollect, folder: Path, rounds: int) -> dict[str, Any]:
    """Saves after one percent of new rows, and what a thread that samples notices of saves."""
    second = []
    for number in range(rounds):
        one.table.insert(transitions(CHUNK, 1000 + number))
        one.table.sample(256)
        second.append(timed(lambda number=number: one.save(folder / f"second-{number}")))
    waits: list[float] = []
    stop = threading.Event()

    def sample() -> None:
        while not stop.is_set():
            begin = time.perf_counter()
            one.table.sample(256)
            waits.append(time.perf_counter() - begin)

    thread = threading.Thread(target=sample)
    thread.start()
    time.sleep(1.0)
    quiet = list(waits)
    waits.clear()
    for number in range(rounds):
        one.table.insert(transitions(CHUNK, 2000 + number))
        one.save(folder / f"paused-{number}")
    stop.set()
    thread.join()
    pauses = {"p99.9": float(np.quantile(waits, 0.999)), "longest": max(waits)}
    pauses["without a save"] = float(np.quantile(quiet, 0.999))
    return {"second": second, "pause": pauses, "floor": _floor(one.table.nbytes, folder, rounds)}


def _floor(size: int, folder: Path, rounds: int) -> dict[str, list[float]]:
    """What the machine needs for as many bytes: each is a part of a save or of a load."""
    import xxhash

    memory = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    target = np.zeros_like(memory)

    def write(path: Path) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        for begin in range(0, size, 1 << 20):
            os.write(descriptor, memory[begin : begin + (1 << 20)])
        os.fsync(descriptor)
        os.close(descriptor)

    floor: dict[str, list[float]] = {"a plain write and one sync": [], "a hash": [], "a copy": []}
    for number in range(rounds):
        path = folder / f"floor-{number}"
        floor["a plain write and one sync"].append(timed(lambda path=path: write(path)))
        path.unlink()
        floor["a hash"].append(timed(lambda: xxhash.xxh3_64_intdigest(memory)))
        floor["a copy"].append(timed(lambda: np.copyto(target, memory)))
    return floor


if __name__ == "__main__":
    target = Path(sys.argv[2])
    print(json.dumps(measure(sys.argv[1], target, int(sys.argv[3]))), flush=True)
    sys.stdout.flush()

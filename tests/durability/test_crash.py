"""Processes are killed while they work, and everything that was acknowledged is there again.

The history of what a child was told is kept here, by another process; after each kill a copy of
the journal is opened and compared with it, and the next child goes on with the journal itself.
"""

from __future__ import annotations

import copy
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import crash_worker as work
import pytest

import recollect as rc

HERE = Path(__file__).resolve().parents[1] / "support"


class Worker:
    """Starts children, listens to them, and kills them."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "crash_worker.py")], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        self._buffer = b""
        assert self._next(60) == ["ready"]

    def _next(self, timeout: float) -> list[Any] | None:
        """The next thing that was said, None after the timeout."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._process.stdout], [], [], left)[0]:
                return None
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            assert data, "the worker ended"
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        said: list[Any] = json.loads(line)
        return said

    def run(self, order: dict[str, Any], rng: random.Random) -> list[list[Any]]:
        """Let a child work and kill it at a random moment; returns what it said."""
        assert self._process.stdin is not None
        self._process.stdin.write((json.dumps(order) + "\n").encode())
        self._process.stdin.flush()
        said: list[list[Any]] = []
        child = 0
        calls = rng.choice([0, 0, 1, 3, 10, 30, 60])
        patience = rng.random() * 0.03 if calls == 0 else 30.0
        while child == 0 or sum(each[0] == "did" for each in said) < calls:
            heard = self._next(30.0 if child == 0 else patience)
            if heard is None:
                break
            assert heard[0] != "failed", heard
            if heard[0] == "child":
                child = heard[1]
            else:
                said.append(heard)
        time.sleep(rng.random() * 0.004)
        os.kill(child, signal.SIGKILL)
        while True:
            heard = self._next(30.0)
            assert heard is not None
            if heard[0] == "end":
                return said
            assert heard[0] != "failed", heard
            said.append(heard)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Not on a disk, where that can be: a killed process leaves the same there, and sooner."""
    if not os.path.isdir("/dev/shm"):
        yield tmp_path
        return
    made = Path("/dev/shm") / f"recollect-{os.getpid()}-{tmp_path.name}"
    made.mkdir()
    yield made
    shutil.rmtree(made)


# -- what must be there ----------------------------------------------------------------------------
class Model:
    """What a table holds, by brute force: items in order of arrival."""

    def __init__(self) -> None:
        self.items: dict[int, list[Any]] = {}  # uid -> [priority, mark, deliveries, late]
        self.leases: dict[int, list[int]] = {}
        self.saved: dict[str, list[int]] = {}

    def hidden(self) -> set[int]:
        return {uid for uids in self.leases.values() for uid in uids}

    def visible(self) -> list[int]:
        hidden = self.hidden()
        return [uid for uid in self.items if uid not in hidden]

    def do(self, call: dict[str, Any]) -> None:
        op = call["op"]
        if op == "insert":
            highest = max((item[0] for item in self.items.values()), default=1.0)
            excess = len(self.items) + len(call["uids"]) - work.CAPACITY
            for uid in self.visible()[: max(0, excess)]:
                del self.items[uid]
            for uid in call["uids"]:
                self.items[uid] = [highest, uid % 7, 0, None]
        elif op == "update":
            for uid, value in zip(call["uids"], call["values"], strict=True):
                if uid in self.items:
                    self.items[uid][:2] = [value, 9]
        elif op == "delete":
            hidden = self.hidden()
            for uid in call["uids"]:
                if uid not in hidden:
                    self.items.pop(uid, None)
        elif op == "take":
            for uid in self.visible()[: call["n"]]:
                del self.items[uid]
        elif op == "lease":
            self.leases[call["lease"]] = self.visible()[: call["n"]]
        elif op == "confirm":
            for uid in self.leases.pop(call["lease"]):
                del self.items[uid]
        elif op == "give_back":
            for uid in self.leases.pop(call["lease"]):
                self.items[uid][2] += 1
        elif op == "amend":
            for uid in call["uids"]:
                self.items[uid][3] = float(uid)
        elif op == "save":
            self.saved[call["path"]] = list(self.items)

    def restart(self) -> None:
        for number in list(self.leases):
            self.do({"op": "give_back", "lease": number})


def table_items(table: rc.Table) -> dict[int, list[Any]]:
    if not len(table):
        return {}
    storage: Any = table.core.storage
    batch = table.get(storage.find(None, None, visible=False))
    order = storage.items.seq(storage.items.slots_of(batch.info.keys)).argsort()
    deliveries = batch.info.deliveries - 1
    late, present = batch["late"], batch.present["late"]
    assert batch["text"].to_list() == [f"text of {uid}" for uid in batch["uid"].tolist()]
    return {
        int(batch["uid"][k]): [
            float(batch.info.priority[k]), int(batch.info.mark[k]), int(deliveries[k]),
            float(late[k]) if present[k] else None,
        ]
        for k in order
    }  # fmt: skip


def apart(said: list[list[Any]]) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """The calls that returned, and the one that was on its way."""
    done: list[dict[str, Any]] = []
    now: dict[str, Any] | None = None
    for word, *about in said:
        if word == "do":
            now = about[0]
        elif word == "nothing":
            now = None
        elif word == "took":
            assert now is not None
            now["took"] = about[0]
        elif word == "did":
            assert now is not None
            done.append(now)
            now = None
    return done, now


def killed(
    worker: Worker, folder: Path, kills: int, order: dict[str, Any], check: Callable[..., int]
) -> int:
    """Kill children one after another on one journal; returns how many calls were acknowledged."""
    rng = random.Random(order["seed"])
    path, calls = folder / "journal", 0
    for kill in range(kills):
        said = worker.run(
            {**order, "path": str(path), "seed": order["seed"] + kill, "saves": str(folder / "s")},
            rng,
        )
        if path.exists():
            target = folder / "copy"
            shutil.copytree(path, target, ignore=shutil.ignore_patterns("lock"))
            order["uid"] = check(said, rc.Journal(target, sync="off"), kill)
            shutil.rmtree(target)
        calls += sum(each[0] == "did" for each in said)
    return calls


# -- always ----------------------------------------------------------------------------------------
def one_caller(worker: Worker, folder: Path, kills: int, seed: int) -> int:
    model = Model()

    def check(said: list[list[Any]], journal: rc.Journal, kill: int) -> int:
        nonlocal model
        done, now = apart(said)
        for call in done:
            model.do(call)
        also = copy.deepcopy(model)
        if now is not None:
            also.do(now)
        table = work.make_table(journal)
        found = table_items(table)
        for path, uids in model.saved.items():
            loaded = work.make_table(None)
            rc.Store([loaded]).load(path)
            assert list(table_items(loaded)) == uids
            shutil.rmtree(path)
        model.saved.clear()
        table.close()
        model.restart()
        also.restart()
        also.saved.clear()
        assert found in (model.items, also.items), (seed, kill, now)
        assert list(found) in (list(model.items), list(also.items))
        model = also if found == also.items and list(found) == list(also.items) else model
        return 10_000 * (kill + 1)

    order = {"work": "one", "sync": "always", "seed": seed, "uid": 1, "compact_at": 150_000}
    return killed(worker, folder, kills, order, check)


@pytest.mark.parametrize("seed", [1000, 2000])
def test_nothing_that_a_call_returned_is_lost_or_undone(
    seed: int, worker: Worker, folder: Path
) -> None:
    assert one_caller(worker, folder, 14, seed) > 100


def several_callers(worker: Worker, folder: Path, kills: int, seed: int) -> int:
    stored: dict[int, float] = {}

    def check(said: list[list[Any]], journal: rc.Journal, kill: int) -> int:
        now: dict[int, dict[str, Any]] = {}
        for word, *about in said:
            if word == "do":
                now[about[0]] = about[1]
            elif word == "did":
                apply(now.pop(about[0]))
        table = rc.Table("t", capacity=100_000, sampler=rc.Fifo(), journal=journal)
        found: dict[int, float] = {}
        if len(table):
            batch = table.get(list(table.counts("key")))
            found = dict(zip(batch["uid"].tolist(), batch.info.priority.tolist(), strict=True))
        table.close()
        for call in now.values():  # each was done, or not
            uid = call["uids"][0]
            wanted = {"insert": uid in found, "delete": uid not in found}.get(call["op"])
            if wanted or (wanted is None and found.get(uid) == call["values"][0]):
                apply(call, found.get(uid, 1.0))
        inserted = {c["uids"][0] for c in now.values() if c["op"] == "insert"}
        assert found.keys() == stored.keys(), (seed, kill, now)
        assert all(stored[u] == found[u] for u in found if u not in inserted and stored[u] >= 0)
        return 100 * (kill + 1)

    def apply(call: dict[str, Any], priority: float = -1.0) -> None:
        uid = call["uids"][0]
        if call["op"] == "insert":
            stored[uid] = priority  # the highest of that moment, which nobody here can know
        elif call["op"] == "update":
            stored[uid] = call["values"][0]
        else:
            del stored[uid]

    order = {"work": "several", "sync": "always", "seed": seed, "uid": 1, "compact_at": 100_000}
    return killed(worker, folder, kills, order, check)


def test_callers_that_share_a_commit_lose_nothing(worker: Worker, folder: Path) -> None:
    assert several_callers(worker, folder, 10, 3000) > 100


def rollouts(worker: Worker, folder: Path, kills: int, seed: int) -> int:
    states: dict[int, str] = {}  # stored, leased or left
    step = 1

    def check(said: list[list[Any]], journal: rc.Journal, kill: int) -> int:
        nonlocal step
        done, now = apart(said)
        for call in done:
            apply(call)
        buffer = work.make_rollouts(journal)
        groups = buffer.get(sorted(buffer.table.counts("key"))) if len(buffer) else []
        found = {int(group.group_id) for group in groups}
        for group in groups:
            content = f"image {int(group.group_id) % 5}".encode() * 9
            assert group[0].blobs == {"image": [content]}
        account = buffer.accounts().get("math")
        reached = buffer.train_step
        buffer.close()
        if now is not None and now["op"] == "put" and now["uid"] in found:
            apply(now)
        if now is not None and now["op"] == "confirm" and not found & leased():
            apply(now)
        assert reached == step or (now is not None and reached == now.get("step"))
        step = reached
        for uid in leased():
            states[uid] = "stored"
        assert found == {uid for uid, state in states.items() if state == "stored"}, (seed, kill)
        if account is not None:
            assert account["put"] == len(states)
            assert account["stored"] == len(found)
            assert account["left"].get("trained", 0) == len(states) - len(found)
        return max([0, *states]) + 1

    def leased() -> set[int]:
        return {uid for uid, state in states.items() if state == "leased"}

    def apply(call: dict[str, Any]) -> None:
        nonlocal step
        if call["op"] == "put":
            states[call["uid"]] = "stored"
        elif call["op"] == "lease":
            for uid in call["took"]:
                assert states[uid] == "stored"
                states[uid] = "leased"
        elif call["op"] == "confirm":
            for uid in leased():
                states[uid] = "left"
        elif call["op"] == "give_back":
            for uid in leased():
                states[uid] = "stored"
        elif call["op"] == "advance":
            step = call["step"]

    order = {"work": "rollouts", "sync": "always", "seed": seed, "uid": 1, "compact_at": 80_000}
    return killed(worker, folder, kills, order, check)


def steps(worker: Worker, folder: Path, kills: int, seed: int, sync: str) -> int:
    reached = [0, 0]

    def check(said: list[list[Any]], journal: rc.Journal, kill: int) -> int:
        nonlocal reached
        done, now = apart(said)
        told = list(reached)
        for call in done:
            told[call["env"]] = call["count"]
        buffer = work.make_steps(journal)
        newest = [int(row) for row in buffer.core.rings.newest]
        if len(buffer):
            rows = buffer.to_arrow().to_pydict()
            assert [obs[0] - 0.5 for obs in rows["obs"]] == rows["step"]
            assert rows["reward"] == rows["step"]
        buffer.close()
        for env in range(2):
            here = {told[env]}
            if now is not None and now["env"] == env:
                here.add(now["count"])
            if sync != "always":  # a prefix of what came
                here |= {reached[env], *(c["count"] for c in done if c["env"] == env)}
            assert newest[env] in here, (seed, kill, env)
        reached = newest
        return 0

    order = {"work": "steps", "sync": sync, "seed": seed, "uid": 1, "compact_at": 50_000}
    return killed(worker, folder, kills, order, check)


def test_groups_and_their_accounts_survive(worker: Worker, folder: Path) -> None:
    assert rollouts(worker, folder, 10, 4000) > 30


@pytest.mark.parametrize("sync", ["always", "interval", "off"])
def test_steps_survive_in_order(sync: str, worker: Worker, folder: Path) -> None:
    assert steps(worker, folder, 7, 5000 + len(sync), sync) > 50


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10_000, 10_300, 100))
def test_hundreds_of_kills(seed: int, worker: Worker, folder: Path) -> None:
    for kind, kills in ((one_caller, 60), (several_callers, 25), (rollouts, 25)):
        path = folder / kind.__name__
        path.mkdir()
        assert kind(worker, path, kills, seed) > 100
    (folder / "steps").mkdir()
    assert steps(worker, folder / "steps", 20, seed, "always") > 50

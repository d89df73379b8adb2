"""A process that makes children to be killed: each opens a journal, works, and says what it did.

It imports and compiles once, and forks for each order that it reads, so that a child is at work
within milliseconds. A child says before each call what it is about to do, and after the call that
it returned; whoever reads that knows everything that was acknowledged before the kill.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import traceback
from typing import Any

import numpy as np

import recollect as rc

CAPACITY = 40
MOST_LEASED = 8


def say(*words: Any) -> None:
    os.write(1, (json.dumps(words) + "\n").encode())


def journal(order: dict[str, Any]) -> rc.Journal:
    return rc.Journal(
        order["path"], sync=order["sync"], interval=0.005, compact_at=order["compact_at"]
    )


def make_table(given: Any) -> rc.Table:
    columns = {
        "uid": rc.Column("int64"),
        "text": rc.Column("str"),
        "late": rc.Column("float32", optional=True),
    }
    return rc.Table(
        "t", capacity=CAPACITY, sampler=rc.Fifo(), signature=columns, tags={"mark": int},
        journal=given,
    )  # fmt: skip


# -- one caller: every call of a table, in an order that a model can follow exactly ----------------
def one_caller(order: dict[str, Any]) -> None:
    rng = random.Random(order["seed"])
    table = make_table(journal(order))
    store = rc.Store([table])
    uid = order["uid"]
    keys: dict[int, int] = {}
    stored = table.get(list(table.counts("key"))) if len(table) else None
    if stored is not None:
        keys = dict(zip(stored["uid"].tolist(), stored.info.keys.tolist(), strict=True))
    leases: dict[int, Any] = {}
    leased: dict[int, int] = {}
    say("open", len(table))
    saves = 0
    while True:
        choice = rng.random()
        if choice < 0.4 or not keys:
            n = rng.randint(1, 4)
            if len(leased) + n > CAPACITY:
                continue
            given = {"op": "insert", "uids": list(range(uid, uid + n)), "request": uid}
            uid += n
            say("do", given)
            found = table.insert(
                {"uid": given["uids"], "text": [f"text of {u}" for u in given["uids"]]},
                request=("child", given["request"]), mark=[u % 7 for u in given["uids"]],
            )  # fmt: skip
            keys.update(zip(given["uids"], found.tolist(), strict=True))
        elif choice < 0.55:
            some = rng.sample(sorted(keys), min(len(keys), 3))
            values = [round(rng.random(), 3) for _ in some]
            say("do", {"op": "update", "uids": some, "values": values})
            table.update([keys[u] for u in some], priority=values, mark=9)
        elif choice < 0.62:
            some = rng.sample(sorted(keys), min(len(keys), 2))
            say("do", {"op": "delete", "uids": some})
            table.delete([keys[u] for u in some])
        elif choice < 0.7:
            n = rng.randint(1, 2)
            say("do", {"op": "take", "n": n})
            try:
                table.take(n, timeout=0)
            except rc.WaitTimeout:
                say("nothing")
                continue
        elif choice < 0.8 and len(leased) < MOST_LEASED:
            n = rng.randint(1, 2)
            say("do", {"op": "lease", "n": n, "lease": len(leases)})
            try:
                batch = table.take(n, lease=600, timeout=0)
            except rc.WaitTimeout:
                say("nothing")
                continue
            leases[len(leases)] = batch.info.lease
            for u in batch["uid"].tolist():
                leased[u] = len(leases) - 1
        elif choice < 0.9 and leased:
            number = rng.choice(sorted(set(leased.values())))
            leased = {u: other for u, other in leased.items() if other != number}
            if rng.random() < 0.6:
                say("do", {"op": "confirm", "lease": number})
                table.confirm(leases[number])
            else:
                say("do", {"op": "give_back", "lease": number})
                table.give_back(leases[number])
        elif choice < 0.94:
            some = rng.sample(sorted(keys), min(len(keys), 2))
            here = [u for u in some if table.count({"key": keys[u]})]
            fresh = [u for u in here if not table.get([keys[u]]).present["late"][0]]
            if not fresh:
                continue
            say("do", {"op": "amend", "uids": fresh})
            table.amend([keys[u] for u in fresh], {"late": np.array(fresh, np.float32)})
        elif choice < 0.97:
            table.count()
            if len(table) > len(leased):
                table.sample(1)
            continue
        elif saves < 3:
            saves += 1
            path = f"{order['saves']}-{order['seed']}-{saves}"
            say("do", {"op": "save", "path": path})
            store.save(path)
        else:
            continue
        say("did")


# -- several callers: each has items of its own, and a commit is shared by those who wait ---------
def several_callers(order: dict[str, Any]) -> None:
    table = rc.Table("t", capacity=100_000, sampler=rc.Fifo(), journal=journal(order))
    say("open", len(table))

    def work(caller: int) -> None:
        rng = random.Random(order["seed"] * 100 + caller)
        mine: dict[int, int] = {}
        count = order["uid"]
        while True:
            if rng.random() < 0.6 or not mine:
                uid = caller + 1000 * count
                count += 1
                say("do", caller, {"op": "insert", "uids": [uid]})
                mine[uid] = int(table.insert({"uid": [uid]})[0])
            elif rng.random() < 0.5:
                uid = rng.choice(sorted(mine))
                value = round(rng.random(), 3)
                say("do", caller, {"op": "update", "uids": [uid], "values": [value]})
                table.update([mine[uid]], priority=[value])
            else:
                uid = rng.choice(sorted(mine))
                say("do", caller, {"op": "delete", "uids": [uid]})
                table.delete([mine.pop(uid)])
            say("did", caller)

    threads = [threading.Thread(target=work, args=[caller]) for caller in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# -- rollouts and steps ----------------------------------------------------------------------------
def make_rollouts(given: Any) -> rc.RolloutBuffer:
    staleness = rc.Staleness(max_staleness=2, on_expire="retry")
    return rc.RolloutBuffer(order=rc.Fifo(), staleness=staleness, journal=given)


def rollouts(order: dict[str, Any]) -> None:
    rng = random.Random(order["seed"])
    owner = make_rollouts(journal(order))
    buffer, uid = owner.sync, order["uid"]
    say("open", len(buffer))
    step, lease = buffer.train_step, None
    while True:
        choice = rng.random()
        if choice < 0.5:
            say("do", {"op": "put", "uid": uid, "version": step})
            blobs = {"image": [f"image {uid % 5}".encode() * 9]}
            rollouts = [rc.Rollout([1], [2, 3], finish_reason="stop", blobs=blobs)]
            group = rc.Group(rollouts, task="math", group_id=str(uid))
            uid += 1
            buffer.put(group, version=step)
        elif choice < 0.65 and lease is None:
            say("do", {"op": "lease"})
            taken = buffer.take(2, "math", lease=True)
            lease = taken.lease
            say("took", [int(group.group_id) for group in taken])
        elif choice < 0.8 and lease is not None:
            confirms = rng.random() < 0.6
            say("do", {"op": "confirm" if confirms else "give_back"})
            (buffer.confirm if confirms else buffer.give_back)(lease)
            lease = None
        elif choice < 0.9:
            step += 1
            say("do", {"op": "advance", "step": step})
            buffer.advance(step)
        else:
            continue
        say("did")


def make_steps(given: Any) -> rc.ReplayBuffer:
    return rc.ReplayBuffer(3000, num_envs=2, journal=given)


def steps(order: dict[str, Any]) -> None:
    rng = random.Random(order["seed"])
    buffer = make_steps(journal(order))
    say("open", len(buffer))
    count = [int(newest) for newest in buffer.core.rings.newest]
    while True:
        env = rng.randrange(2)
        n = rng.randint(1, 5)
        say("do", {"op": "steps", "env": env, "count": count[env] + n})
        rows = np.arange(count[env], count[env] + n)
        count[env] += n
        buffer.extend(env_ids=env, obs=rows[:, None] + 0.5, reward=rows * 1.0)
        say("did")


WORK = {"one": one_caller, "several": several_callers, "rollouts": rollouts, "steps": steps}


def main() -> None:
    warm = rc.Table("t", capacity=4)
    warm.insert({"x": [1]})
    warm.sample(1)
    rc.RolloutBuffer().close()
    rc.ReplayBuffer(4).add(obs=[0.0], reward=0.0)
    say("ready")
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            try:
                WORK[order["work"]](order)
            except BaseException:
                say("failed", traceback.format_exc())
            os._exit(1)
        say("child", child)
        os.waitpid(child, 0)
        say("end")


if __name__ == "__main__":
    main()

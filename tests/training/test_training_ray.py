"""The preparation as a Ray actor: real processes, a rank that is killed, errors that arrive."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray_cluster import ray_cluster

import recollect as rc
from recollect.training import DataPreparation
from recollect.training.actor import RemotePreparation, start_actor

CONFIG = {
    "source": {"order": "Fifo", "staleness": {"max_staleness": 100}},
    "batch": 2,
    "ranks": 2,
    "mode": {"type": "Replay", "max_uses": 2, "sampler": "Fifo"},
    "filters": ["NoSpread"],
    "pack": 64,
    "prefetch": 0,
}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with ray_cluster(cpus=4):
        yield


class Rank:
    """A trainer in a process of its own."""

    def __init__(self, rank: int, preparation: Any) -> None:
        self.rank = rank
        self.preparation = preparation.sync

    def train(self, step: int) -> list[str]:
        batch = self.preparation.get(self.rank, step)
        assert not batch.packs[0].input_ids.flags.writeable
        ids = list(batch.rollout_ids)
        self.preparation.report(self.rank, step, ids, [2.0] * len(ids))
        self.preparation.confirm(self.rank, step)
        return ids

    def get_and_hang(self, step: int) -> list[str]:
        return list(self.preparation.get(self.rank, step).rollout_ids)


def group(number: int) -> rc.Group:
    rollouts = [
        rc.Rollout([1], [2] * 4, reward=n, finish_reason="stop", rollout_id=f"{number}-{n}")
        for n in range(2)
    ]
    return rc.Group(rollouts, task="math", group_id=f"g{number}")


def test_ranks_in_processes_train_and_one_of_them_is_killed() -> None:
    remote = start_actor(CONFIG, num_cpus=0)
    preparation = remote.sync
    make = ray.remote(num_cpus=0)(Rank)
    ranks = [make.remote(rank, remote) for rank in range(2)]
    first = [rank.train.remote(1) for rank in ranks]  # they wait, and hold no put up
    for number in range(4):
        assert preparation.put(group(number), version=0) is not None
    trained = [name for names in ray.get(first) for name in names]
    assert sorted(trained) == ["0-0", "0-1", "1-0", "1-1"]
    before = ray.get(ranks[1].get_and_hang.remote(2))
    ray.get(ranks[0].train.remote(2))
    ray.kill(ranks[1])
    again = make.remote(1, remote)
    assert ray.get(again.get_and_hang.remote(2)) == before
    assert preparation.metrics()["buffer/groups"] == 4
    assert sorted(ray.get(again.train.remote(2))) == sorted(before)
    third = ray.get([rank.train.remote(3) for rank in (ranks[0], again)])
    assert sorted(name for names in third for name in names) == sorted(trained), "replayed"
    assert preparation.metrics()["buffer/left/trained"] == 2, "used twice, so they have left"
    with pytest.raises(rc.InvalidValue, match="was confirmed by all ranks"):
        preparation.get(0, 1)

    async def main() -> None:
        batch = await remote.get(0, 4)
        assert not await remote.confirm(0, 4)
        assert batch.step == 4

    asyncio.run(main())
    state = preparation.state()
    other = DataPreparation.from_config(CONFIG).sync  # what an actor saved fits anywhere
    assert other.restore(state) == 0
    assert other.get(1, 4).rollout_ids == preparation.get(1, 4).rollout_ids
    assert other.confirm(1, 4), "rank 0 had confirmed before"
    other.close()
    preparation.close()
    ray.kill(preparation.handle)


def test_a_wrong_configuration_is_refused_where_it_was_written() -> None:
    with pytest.raises(rc.ConfigError, match=r"mode\.max_uses"):
        start_actor({**CONFIG, "mode": {"type": "Replay", "max_uses": "many"}})
    with pytest.raises(rc.InvalidValue, match="expected a mapping or a path"):
        start_actor(7)  # type: ignore[arg-type]


def test_both_faces_of_an_actor_can_be_sent() -> None:
    remote = RemotePreparation("the actor")
    for face in (remote, remote.sync):
        assert pickle.loads(pickle.dumps(face)).handle == "the actor"

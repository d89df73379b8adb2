"""Production in one process and the trainer in another: a manager in a Ray actor."""

from __future__ import annotations

import asyncio
import os
import time

import pytest
import ray
from ray_cluster import ray_cluster

import recollect as rc
from recollect import production
from recollect.production import State
from recollect.production.actor import received, start_manager, to_send


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster(cpus=3):
        yield


def make_manager(prompts=1000, ahead=30):

    async def answer(group, rollout):
        if group.prompt_ids[0] == 997:
            raise ValueError("prompt 997 is cursed")
        return rc.Rollout(response_ids=group.prompt_ids, reward=0.5, finish_reason="stop")

    source = production.ListPrompts([[n, n] for n in range(prompts)], n=2, seed=None)
    task = production.Task("echo", source, production.FunctionGenerator.each(answer))
    buffer = rc.RolloutBuffer(staleness=rc.Staleness(max_staleness=ahead))
    return production.DisaggregatedManager([task], buffer)


def test_a_result_travels_with_its_groups_and_its_lease():
    async def main():
        manager = make_manager()
        manager.start(3)
        result = await manager.get_batch(3, 1)
        again = received(to_send(result))
        assert again.taken == {"echo": 3}
        assert again.groups["echo"] == result.groups["echo"]
        assert again.batch["response_ids"].to_list()[0].tolist() == [0, 0]
        assert (again.status, again.tokens) == (result.status, result.tokens)
        assert await manager.buffer.confirm(again.lease, 1) == 3
        await manager.shutdown()
        empty = received(to_send(await manager.get_batch(3, 2)))
        assert (bool(empty), empty.status) == (False, State.FINISHED)

    asyncio.run(main())


@ray.remote(num_cpus=0)
def train(manager, first, steps, folder=None):
    """A trainer: another process, which knows the manager only."""
    trained = []
    for step in range(first, first + steps):
        result = manager.get_batch(4, step, lease=60)
        manager.renew(result, 600)
        trained += [group.prompt_ids[0] for group in result.groups["echo"]]
        manager.confirm(result)
        manager.set_version(step)
    if folder is not None:
        with manager.checkpoint(f"{folder}/saved", step, in_flight="give_back") as checkpoint:
            (checkpoint.dir / "weights").write_text(f"step {step}")
    return os.getpid(), [int(n) for n in trained]


@ray.remote(num_cpus=0, max_retries=0)
def die(manager, step):
    """A trainer that dies with a batch in its hands."""
    assert len(manager.get_batch(4, step, lease=0.5)) == 4
    os._exit(1)


def test_a_trainer_in_another_process_trains_saves_dies_and_another_goes_on(cluster, tmp_path):
    manager = start_manager(make_manager)
    manager.start(4)
    pid, trained = ray.get(train.remote(manager, 1, 5, str(tmp_path)))
    assert pid != os.getpid()
    assert trained == list(range(20))
    (written,) = tmp_path.rglob("weights")
    assert written.read_text() == "step 5"
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        ray.get(die.remote(manager, 6))
    time.sleep(0.6)  # the lease ends
    _, again = ray.get(train.remote(manager, 6, 2))
    assert again == list(range(20, 28))  # what the dead one had comes first
    manager.shutdown()

    other = start_manager(make_manager)
    assert other.restore(tmp_path / "saved") == 5
    other.start(4)
    assert other.stats()["in_flight"] == {}
    other.continue_(5)
    _, rest = ray.get(train.remote(other, 6, 2))
    assert sorted(rest) == list(range(20, 28))
    scores = other.evaluate({"echo": 2})
    assert [group.prompt_ids[0] for group in scores.groups["echo"]] == [28, 29]
    assert other.confirm(scores) == 2
    assert other.pause() >= 0
    other.shutdown()


def test_a_failure_there_is_raised_here(cluster):
    manager = start_manager(make_manager)
    manager.start({"echo": 1000})
    with pytest.raises(ValueError, match="prompt 997 is cursed") as told:
        manager.get_batch(1000, 1)
    assert "in answer" in str(told.value)  # with its own traceback
    manager.shutdown()

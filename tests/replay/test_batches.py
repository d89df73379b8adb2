"""Batches ahead of time: the same ones whatever threads do, errors where they belong, an end."""

from __future__ import annotations

import gc
import threading
import time
import traceback
import weakref
from typing import Any

import numpy as np
import pytest

import recollect as rc


def filled(steps: int = 200, **options: Any) -> rc.ReplayBuffer:
    buffer = rc.ReplayBuffer(1000, **{"seed": 7, **options})
    add(buffer, steps)
    return buffer


def add(buffer: rc.ReplayBuffer, steps: int) -> None:
    begin = buffer.stats()["inserts"]
    rows = np.arange(begin, begin + steps)
    buffer.extend(
        obs=rows[:, None].astype(np.float32),
        action=rows,
        reward=rows.astype(np.float32),
        terminated=rows % 10 == 9,
    )


def workers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("recollect-batches")]


def keys(batches: Any) -> list[list[int]]:
    return [batch.info.keys.tolist() for batch in batches]


# -- what is drawn --------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [0, 1, 2, 7, 50])
@pytest.mark.parametrize("sampler", [rc.Uniform(), rc.Prioritized()])
def test_batches_are_those_of_sample(sampler: rc.Selector, prefetch: int) -> None:
    twin = filled(sampler=sampler)
    expected = [twin.sample(8) for _ in range(20)]
    with filled(sampler=sampler).batches(8, prefetch=prefetch, count=20) as batches:
        found = list(batches)
    assert len(found) == 20
    for left, right in zip(found, expected, strict=True):
        assert left.equals(right)
        assert (left.info.keys == right.info.keys).all()
        assert (left.info.weights == right.info.weights).all()


@pytest.mark.parametrize("prefetch", [0, 3])
def test_sequences_take_the_options_of_sample_sequences(prefetch: int) -> None:
    twin = filled()
    expected = [
        twin.sample_sequences(4, 6, burn_in=2, across_episodes="reset", stride=2) for _ in range(5)
    ]
    options = {"length": 6, "burn_in": 2, "across_episodes": "reset", "stride": 2}
    with filled().batches(4, sequences=options, prefetch=prefetch, count=5) as batches:
        for left, right in zip(batches, expected, strict=True):
            assert left.equals(right)
    assert next(filled().batches(3, sequences=6))["obs"].shape == (3, 6, 1)


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_the_same_calls_at_the_same_points_give_the_same_batches(prefetch: int) -> None:
    """Inserts, priorities and other draws between batches; threads take turns as they like."""

    def run(pause: float) -> list[list[int]]:
        buffer = filled(sampler=rc.Prioritized())
        found = []
        with buffer.batches(8, prefetch=prefetch, count=30) as batches:
            for number, batch in enumerate(batches):
                found.append(batch.info.keys.tolist())
                if number % 3 == 0:
                    add(buffer, 40)
                if number % 4 == 0:
                    buffer.update_priorities(batch.info.keys, batch["reward"] + 1)
                if number % 5 == 0:
                    buffer.sample(3)
                time.sleep(pause)
        return found

    assert run(0.0) == run(0.002) == run(0.0)


@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_change_reaches_the_batches_that_are_not_chosen_yet(prefetch: int) -> None:
    """Batch j is drawn from the buffer as it was when batch j - prefetch was asked for."""
    buffer = filled()
    batches = buffer.batches(64, prefetch=prefetch)
    next(batches)
    add(buffer, 5000)  # nothing of what was there is left
    for _ in range(prefetch):
        assert next(batches).info.steps.max() < 200
    for _ in range(3):
        assert next(batches).info.steps.min() >= 200
    batches.close()


def test_what_was_chosen_stays_as_it_was() -> None:
    buffer = filled()
    batches = buffer.batches(32, prefetch=4, count=5)
    first = next(batches)
    for _ in range(10):
        add(buffer, 500)
    for batch in [first, *batches]:
        assert (batch["obs"][:, 0] == batch.info.steps).all()
        assert (batch["reward"] == batch.info.steps).all()


def test_queries_and_draws_without_replacement() -> None:
    batches = filled().batches(5, where=rc.field("step") < 5, replace=False, prefetch=1, count=3)
    assert [sorted(batch.info.steps.tolist()) for batch in batches] == [[0, 1, 2, 3, 4]] * 3


# -- waiting and limiters -------------------------------------------------------------------------


def test_looking_ahead_never_waits() -> None:
    """One thread that learns and acts: a batch that is allowed comes, also if the next is not."""
    buffer = rc.ReplayBuffer(1000, limiter=rc.SampleToInsertRatio(1.0, 20, 10.0), seed=0)
    add(buffer, 10)
    add(buffer, 10)
    batches = buffer.batches(8, prefetch=5, timeout=0)
    for _ in range(20):
        try:
            assert next(batches).num_items == 8
        except rc.WaitTimeout:
            add(buffer, 8)
    assert buffer.stats()["samples"] >= 80


def test_a_batch_that_is_allowed_comes_also_where_nobody_would_insert() -> None:
    """Without a timeout, waiting for the batch ahead would be for ever."""
    buffer = rc.ReplayBuffer(1000, limiter=rc.SampleToInsertRatio(1.0, 20, 10.0), seed=0)
    add(buffer, 10)
    add(buffer, 10)
    batches = buffer.batches(8, prefetch=5)
    found: list[Any] = []
    consumer = threading.Thread(target=lambda: found.append(next(batches)), daemon=True)
    consumer.start()
    consumer.join(20)
    assert len(found) == 1
    batches.close()


def test_a_batch_that_is_not_there_is_waited_for() -> None:
    buffer = rc.ReplayBuffer(100, seed=0)
    batches = buffer.batches(4, prefetch=2, count=3)
    threading.Timer(0.05, add, (buffer, 50)).start()
    assert [batch.num_items for batch in batches] == [4, 4, 4]
    with pytest.raises(rc.WaitTimeout):
        next(rc.ReplayBuffer(100).batches(4, prefetch=2, timeout=0.01))


def test_a_sequence_that_is_too_long_raises_where_it_is_asked_for() -> None:
    buffer = filled(50)
    batches = buffer.batches(4, sequences=20, prefetch=2)
    for _ in range(2):
        with pytest.raises(rc.InvalidValue, match="length"):
            next(batches)


def test_a_buffer_that_was_closed_hands_out_what_was_chosen() -> None:
    buffer = filled()
    batches = buffer.batches(4, prefetch=2)
    next(batches)
    buffer.close()
    assert next(batches).num_items == 4
    assert next(batches).num_items == 4
    with pytest.raises(rc.TableClosed):
        next(batches)
    batches.close()


# -- errors, ends, threads ------------------------------------------------------------------------


def test_an_error_in_the_thread_is_raised_at_its_batch_with_its_traceback() -> None:
    buffer = rc.ReplayBuffer(100, seed=0)
    for t in range(20):
        buffer.add(obs={"desired_goal": 0, "achieved_goal": t}, reward=0.0)
    seen = []

    def second_fails(achieved: Any, goal: Any) -> Any:
        seen.append(threading.current_thread().name)
        if len(seen) == 2:
            raise ZeroDivisionError("in the reward function")
        return np.zeros(len(goal))

    view = buffer.relabel(hindsight=rc.Hindsight(share=1, reward=second_fails))
    with view.batches(4, prefetch=2, count=4) as batches:
        next(batches)
        with pytest.raises(ZeroDivisionError, match="in the reward function") as caught:
            next(batches)
        assert [batch.num_items for batch in batches] == [4, 4]
    assert all(name.startswith("recollect-batches") for name in seen)
    lines = "".join(traceback.format_tb(caught.value.__traceback__))
    assert "second_fails" in lines


def test_close_stops_the_thread() -> None:
    batches = filled().batches(4, prefetch=3)
    next(batches)
    assert len(workers()) == 1
    batches.close()
    assert not workers()
    assert list(batches) == []
    batches.close()


def test_the_thread_ends_with_the_last_batch_and_with_its_iterator() -> None:
    batches = filled().batches(4, prefetch=3, count=5)
    assert len(list(batches)) == 5
    assert not workers()
    batches = filled().batches(4, prefetch=3)
    next(batches)
    gone = weakref.ref(batches)
    del batches
    deadline = time.monotonic() + 20
    while (gone() is not None or workers()) and time.monotonic() < deadline:
        gc.collect()  # what is still being made ahead holds the iterator
        time.sleep(0.005)
    assert gone() is None
    assert not workers()


def test_without_prefetch_there_is_no_thread() -> None:
    batches = filled().batches(4)
    next(batches)
    assert not workers()


def test_count_is_how_many() -> None:
    for prefetch in (0, 2, 9):
        for count in (0, 1, 3):
            assert len(list(filled().batches(4, prefetch=prefetch, count=count))) == count


def test_drain_hands_out_what_was_chosen_ahead() -> None:
    buffer, twin = filled(), filled()
    expected = keys(twin.sample(4) for _ in range(9))
    with buffer.batches(4, prefetch=3) as batches:
        found = keys(next(batches) for _ in range(2))
        samples = buffer.stats()["samples"]
        found += keys(batches.drain())
        assert len(found) == 5
        assert buffer.stats()["samples"] == samples == 20, "nothing is under way"
        assert batches.drain() == []
        found += keys(next(batches) for _ in range(4))
    assert found == expected


def test_two_consumers_share_an_iterator() -> None:
    expected = sorted(map(tuple, keys(filled().batches(4, count=200))))
    batches = filled().batches(4, prefetch=3, count=200)
    found: list[Any] = []

    def consume() -> None:
        for batch in batches:
            found.append(tuple(batch.info.keys.tolist()))

    threads = [threading.Thread(target=consume) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == expected


def test_inserts_go_on_while_batches_are_read() -> None:
    buffer = filled()
    stop = threading.Event()

    def insert() -> None:
        while not stop.is_set():
            add(buffer, 37)

    thread = threading.Thread(target=insert)
    thread.start()
    try:
        with buffer.batches(64, prefetch=2, count=300) as batches:
            for batch in batches:
                assert (batch["obs"][:, 0] == batch.info.steps).all()
                assert (batch["reward"] == batch.info.steps).all()
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"prefetch": -1}, "prefetch"),
        ({"prefetch": 1.5}, "prefetch"),
        ({"count": -1}, "count"),
        ({"timeout": -1}, "timeout"),
        ({"replace": "no"}, "replace"),
        ({"to": "jax"}, "to: expected 'numpy' or 'torch'"),
        ({"device": "cpu"}, "device"),
        ({"sequences": 0}, "sequences"),
        ({"sequences": "long"}, "sequences"),
        ({"sequences": {"burn_in": 3}}, "sequences"),
        ({"sequences": {"length": 3, "size": 3}}, "sequences"),
        ({"sequences": {"length": 3, "burn_in": 3}}, "burn_in"),
        ({"sequences": 3, "where": rc.field("step") > 1}, "where"),
        ({"where": rc.field("unknown") > 1}, "unknown"),
    ],
)
def test_a_wrong_argument_is_named_at_once(options: dict[str, Any], word: str) -> None:
    with pytest.raises(rc.InvalidValue, match=word):
        filled().batches(**{"batch_size": 4, **options})


# -- torch ----------------------------------------------------------------------------------------


def test_tensors_with_what_the_buffer_knows() -> None:
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    buffer, twin = filled(sampler=rc.Prioritized()), filled(sampler=rc.Prioritized())
    with buffer.batches(8, prefetch=2, count=3, to="torch", device="cpu") as batches:
        for found in batches:
            batch = twin.sample(8)
            for name in ("obs", "action", "reward", "next_obs", "discount"):
                assert (found[name].numpy() == batch[name]).all()
            info = found["info"]
            assert info["weights"].dtype == torch.float32
            assert info["keys"].dtype == torch.int64
            assert (info["keys"].numpy() == batch.info.keys.astype(np.int64)).all()
            assert buffer.update_priorities(info["keys"], info["weights"]).all()
            twin.update_priorities(batch.info.keys, batch.info.weights.astype(np.float32))


def test_a_column_called_info_is_refused() -> None:
    pytest.importorskip("torch", reason="needs the extra torch")
    buffer = rc.ReplayBuffer(9)
    buffer.extend(obs=np.zeros(3), reward=np.zeros(3), info=np.zeros(3))
    with pytest.raises(rc.SchemaError, match="column 'info'"):
        next(buffer.batches(2, to="torch"))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_data_loader_iterates_over_whole_batches(prefetch: int) -> None:
    data = pytest.importorskip("torch.utils.data", reason="needs the extra torch")
    twin = filled()
    expected = keys(twin.sample(8) for _ in range(12))
    dataset = filled().dataset(8, prefetch=prefetch, count=6)
    assert isinstance(dataset, data.IterableDataset)
    loader = data.DataLoader(dataset, batch_size=None)
    found = [batch["info"]["keys"].tolist() for _ in range(2) for batch in loader]
    assert found == expected, "a second epoch goes on with the draws"
    assert not workers()
    loader = data.DataLoader(filled().dataset(2, sequences=5, count=2), batch_size=None)
    assert [batch["obs"].shape for batch in loader] == [(2, 5, 1)] * 2


def test_a_loader_with_workers_is_refused_with_a_reason() -> None:
    data = pytest.importorskip("torch.utils.data", reason="needs the extra torch")
    import pickle

    loader = data.DataLoader(
        filled().dataset(8), batch_size=None, num_workers=1, multiprocessing_context="fork"
    )
    with pytest.raises(rc.InvalidValue, match="use num_workers=0"):
        next(iter(loader))
    with pytest.raises(rc.InvalidValue, match="use num_workers=0"):
        pickle.dumps(filled().dataset(8))


def test_a_dataset_says_at_once_what_is_wrong() -> None:
    pytest.importorskip("torch", reason="needs the extra torch")
    with pytest.raises(rc.InvalidValue, match="batch_size"):
        filled().dataset(0)
    with pytest.raises(rc.InvalidValue, match="sequences"):
        filled().dataset(4, sequences={})


def test_without_torch_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import recollect.base.optional

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(recollect.base.optional, "import_module", missing)
    with pytest.raises(ImportError, match=r"pip install 'recollect\[torch\]'"):
        filled().batches(4, to="torch")

"""`BufferPool`: memory is used again, and never while somebody refers to it."""

from __future__ import annotations

import gc
import random
import threading

import numpy as np
import pytest

import recollect as rc
from recollect.storage.buffers import LARGE, BufferPool

SIZE = 2 * LARGE


def pool(most=64 << 20):
    return BufferPool(most)


def address(array):
    return array.__array_interface__["data"][0]


def array(of, n=SIZE):
    return of.array((n,), np.uint8)


def test_an_array_has_the_shape_and_dtype_that_were_asked_for():
    made = pool().array((3, 500_000), np.float32)
    assert (made.shape, made.dtype) == ((3, 500_000), np.float32)
    assert made.flags.writeable
    assert made.flags.c_contiguous
    made[:] = 7.0


def test_small_arrays_are_left_to_numpy():
    p = pool()
    assert p.array((10,), np.int64).base is None
    assert p.array((0, 4), np.int64).shape == (0, 4)
    assert not p._buffers


def test_memory_is_used_again():
    p = pool()
    seen = set()
    for _ in range(10):
        made = array(p)
        seen.add(address(made))
        del made
    assert len(seen) == 1


def test_two_that_live_never_share_memory():
    p = pool()
    living = [array(p) for _ in range(5)]
    for i, made in enumerate(living):
        made[:] = i
    assert [int(made[0]) for made in living] == list(range(5))


@pytest.mark.parametrize(
    "hold",
    [
        lambda a: a[5:10],
        lambda a: a[5:10][1:2],
        lambda a: a.view(np.int64),
        lambda a: a.reshape(2, -1).T,
        lambda a: memoryview(a),
        lambda a: memoryview(a)[3:4],
        lambda a: np.frombuffer(a, np.int32)[3:],
        lambda a: np.asarray(memoryview(a)),
        lambda a: np.from_dlpack(a),
        lambda a: [a.reshape(-1, 8)[i] for i in range(3)][2],
        lambda a: iter(a),
        lambda a: a.flat,
        lambda a: {"deep": [(a[1:],)]},
    ],
)
def test_whatever_refers_to_it_keeps_it(hold):
    p = pool()
    first = array(p)
    first[:] = 1
    held = hold(first)
    place = address(first)
    del first
    second = array(p)
    assert address(second) != place
    second[:] = 2
    del held
    gc.collect()
    third = array(p)
    assert address(third) == place
    del second, third


def test_an_arrow_or_torch_view_keeps_it():
    pa = pytest.importorskip("pyarrow")
    p = pool()
    first = array(p)
    first[:] = 1
    buffer = pa.py_buffer(first)
    place = address(first)
    del first
    second = array(p)
    assert address(second) != place
    assert bytes(buffer[:3]) == b"\x01\x01\x01"


def test_a_torch_tensor_keeps_it():
    torch = pytest.importorskip("torch", reason="needs recollect[torch]")
    p = pool()
    first = array(p)
    first[:] = 1
    tensor = torch.from_numpy(first)[10:20]
    del first
    array(p)[:] = 2
    assert tensor.tolist() == [1] * 10


def test_a_buffer_is_at_most_twice_as_large_as_what_it_is_used_for():
    p = pool()
    large = array(p, 8 * LARGE)
    place = address(large)
    del large
    assert address(array(p, 3 * LARGE)) != place
    assert address(array(p, 5 * LARGE)) == place


def test_the_pool_keeps_no_more_than_it_may():
    p = pool(most=4 * SIZE)
    for _ in range(3):
        living = [array(p) for _ in range(10)]
        assert sum(b.size for b in p._buffers) <= 4 * SIZE
        del living
    for n in range(1, 20):
        array(p, SIZE + n * LARGE // 4)
        assert sum(b.size for b in p._buffers) <= 4 * SIZE


def test_what_is_larger_than_the_pool_is_not_kept():
    p = pool(most=SIZE)
    made = array(p, 4 * SIZE)
    made[:] = 1
    assert not p._buffers


def test_random_use_never_shares_memory():
    p = pool(most=16 * SIZE)
    rng = random.Random(0)
    living = {}
    for step in range(600):
        if living and rng.random() < 0.5:
            number = rng.choice(list(living))
            assert (living.pop(number) == number % 251).all()
        else:
            made = array(p, LARGE + rng.randrange(LARGE))
            made[:] = step % 251
            living[step] = made[rng.randrange(100) :]
            del made
    for number, held in living.items():
        assert (held == number % 251).all()


def test_threads_never_share_memory():
    p = pool(most=64 * SIZE)
    wrong = []

    def work(number):
        for _ in range(60):
            made = array(p)
            made[:: 1 << 12] = number
            held = made[5:]
            if not (made[:: 1 << 12] == number).all():
                wrong.append(number)
            del made, held

    threads = [threading.Thread(target=work, args=[n]) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_sampling_uses_memory_again_and_never_that_of_a_living_batch():
    table = rc.Table("t", capacity=16, seed=0)
    table.insert({"big": np.ones((16, 100_000))})
    places = set()
    for _ in range(10):
        places.add(address(table.sample(16)["big"]))
    assert len(places) == 1
    living = [table.sample(16) for _ in range(4)]
    assert len({address(batch["big"]) for batch in living}) == 4

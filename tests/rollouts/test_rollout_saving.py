"""state, restore, save and load: exact, with order, keys, counters and draws."""

from __future__ import annotations

import json

import numpy as np
import pytest

import recollect as rc

PATIENT = rc.Staleness(max_staleness=10_000, max_token_staleness=50)


def rollout(tokens=2, **options):
    options.setdefault("finish_reason", "stop")
    return rc.Rollout([1], list(range(tokens)), **options)


def made(**options):
    options = {"staleness": PATIENT, "order": rc.Fifo(), "seed": 0, "max_uses": 3, **options}
    return rc.RolloutBuffer(**options)


def filled(**options):
    buffer = made(**{"tags": {"score": float}, "needs": ("reward",), **options})
    rng = np.random.default_rng(0)
    for n in range(20):
        rollouts = [
            rollout(
                int(rng.integers(0, 6)),
                reward=float(n) if n % 5 else None,
                rollout_id=f"r{n}.{k}",
                arrays={"ref": rng.random(3)} if n % 4 == 0 else {},
                blobs={"image": [b"cat" * 50]} if n % 3 == 0 else {},
                extras={"k": k},
            )
            for k in range(1 + n % 3)
        ]
        group = rc.Group(
            rollouts,
            task="code" if n % 4 == 1 else "math",
            group_id=f"g{n}",
            ground_truth={"n": n},
            extras={"score": n / 20},
            blobs={"prompt": [bytes([n]) * 10]},
        )
        buffer.sync.put(group, version=n)
    buffer.sync.advance(7)
    buffer.sync.sample(5)
    buffer.sync.update([buffer.find("g3")], priority=[9.0])
    buffer.sync.take(2)
    return buffer


def through_state(buffer, tmp_path, **options):
    other = made(**{"tags": {"score": float}, "needs": ("reward",), **options})
    other.restore(buffer.state())
    return other


def through_files(buffer, tmp_path, **options):
    other = made(**{"tags": {"score": float}, "needs": ("reward",), **options})
    buffer.save(tmp_path / "snapshot")
    other.load(tmp_path / "snapshot")
    return other


WAYS = [through_state, through_files]


def everything(buffer):
    groups = buffer.get(np.sort(list(buffer.table.counts("key"))).astype(np.uint64))
    accounts = buffer.accounts()
    return (
        list(groups),
        groups.keys.tolist(),
        [(g.times_used, g.priority, g.deliveries) for g in groups],
        groups.batch["loss_mask"].to_list(),
        {task: {k: v for k, v in a.items() if k != "age"} for task, a in accounts.items()},
        buffer.counts(),
        buffer.train_step,
        buffer.nbytes,
        buffer.stats()["blobs"],
    )


def assert_same(one, other):
    for mine, theirs in zip(one[0], other[0], strict=True):
        assert mine.equals(theirs)
    for mine, theirs in zip(one[3], other[3], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert one[1:3] == other[1:3]
    assert one[4:] == other[4:]


@pytest.mark.parametrize("way", WAYS)
def test_groups_are_intact_and_in_order_after_save_and_load(way, tmp_path):
    buffer = filled()
    other = way(buffer, tmp_path)
    assert_same(everything(buffer), everything(other))
    for task in ("math", "code"):
        mine, theirs = buffer.sync.take(99, task), other.sync.take(99, task)
        assert mine == theirs
        assert mine.keys.tolist() == theirs.keys.tolist()
    assert len(other) == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("order", [rc.Uniform(), rc.Prioritized(), rc.StalestFirst()])
def test_draws_go_on_as_if_nothing_had_happened(way, order, tmp_path):
    buffer = filled(order=order, max_uses=0)
    other = way(buffer, tmp_path, order=order, max_uses=0)
    for _ in range(20):
        mine, theirs = (b.sync.sample(2, timeout=0).keys.tolist() for b in (buffer, other))
        assert mine == theirs


@pytest.mark.parametrize("way", WAYS)
def test_keys_go_on_and_are_never_reused(way, tmp_path):
    buffer = filled()
    used = set(buffer.table.counts("key"))
    other = way(buffer, tmp_path)
    fresh = {other.sync.put(rc.Group([rollout()])) for _ in range(10)}
    assert not fresh & used


@pytest.mark.parametrize("way", WAYS)
def test_leases_and_claims_count_as_given_back(way, tmp_path):
    buffer = filled()
    taken = buffer.sync.take_batch({"math": 2}, lease=60)
    claim = buffer.sync.claim(3, lacks="reward")
    other = way(buffer, tmp_path)
    assert other.sync.claim(3, lacks="reward", timeout=0).keys.tolist() == claim.keys.tolist()
    again = other.sync.take_batch({"math": 2})
    assert again.keys.tolist() == taken.keys.tolist()
    assert all(g.redelivered for g in again.groups["math"])
    with pytest.raises(rc.LeaseExpired):
        other.sync.confirm(taken.lease)
    assert buffer.sync.confirm(taken.lease) == 2, "saving must not change the live buffer"


@pytest.mark.parametrize("way", WAYS)
def test_reserved_room_counts_as_given_back(way, tmp_path):
    """Producers that reserved it are gone: nobody would ever use it or give it back."""
    options = {"tags": {"score": float}, "needs": ("reward",), "capacity": 3}
    buffer = made(**options)
    assert buffer.reserve(2, "math") == 2
    other = way(buffer, tmp_path, **options)
    assert other.stats()["promised"] == {}
    assert other.reserve(3, "code") == 3


@pytest.mark.parametrize("way", WAYS)
def test_a_restored_buffer_knows_its_ids(way, tmp_path):
    buffer = filled()
    other = way(buffer, tmp_path)
    assert other.find("g9") == buffer.find("g9")
    key = other.sync.put(rc.Group([rollout(5)], group_id="g9", task="code"), version=99)
    assert key != buffer.find("g9")
    assert len(other) == len(buffer)
    mask = other.sync.annotate(["r10.0", "r10.1", "nobody"], 0, reward=[5.0, 6.0, 7.0])
    assert mask.tolist() == [True, True, False]


@pytest.mark.parametrize("way", WAYS)
def test_what_expires_next_is_known_after_a_restore(way, tmp_path):
    rule = rc.Staleness(max_staleness=1)
    buffer = made(staleness=rule)
    for version in range(4):
        buffer.sync.put(rc.Group([rollout()], task="math"), version=version)
    other = way(buffer, tmp_path, staleness=rule, tags=None, needs=())
    for step in range(2, 8):
        assert other.sync.advance(step) == buffer.sync.advance(step)


@pytest.mark.parametrize("way", WAYS)
def test_blobs_are_shared_and_freed_after_a_restore(way, tmp_path):
    buffer = filled()
    other = way(buffer, tmp_path)
    other.sync.take(99, "math")
    other.sync.take(99, "code")
    assert (len(other), other.nbytes, other.stats()["blobs"]) == (0, 0, 0)


@pytest.mark.parametrize("way", WAYS)
def test_the_archive_is_kept(way, tmp_path):
    buffer = filled(archive=True)
    buffer.sync.confirm(buffer.sync.take_batch({"math": 2}, lease=True).lease, train_step=412)
    other = way(buffer, tmp_path, archive=True)
    assert buffer.sync.trained_at(412) == other.sync.trained_at(412)
    assert len(other.sync.trained_at(412)) == 2


@pytest.mark.parametrize("way", WAYS)
def test_an_empty_buffer_goes_through(way, tmp_path):
    buffer = made(tags={"score": float}, needs=("reward",))
    buffer.sync.advance(5)
    other = way(buffer, tmp_path)
    assert (len(other), other.train_step) == (0, 5)
    other.sync.put(rc.Group([rollout()]), version=4)


def test_a_buffer_that_is_not_empty_refuses(tmp_path):
    buffer = filled()
    state = buffer.state()
    buffer.save(tmp_path / "s")
    other = filled()
    before = everything(other)
    with pytest.raises(rc.RecollectError, match="empty"):
        other.restore(state)
    with pytest.raises(rc.RecollectError, match="empty"):
        other.load(tmp_path / "s")
    assert_same(everything(other), before)


def test_a_state_can_be_restored_more_than_once(tmp_path):
    buffer = filled()
    state = buffer.state()
    one, other = (made(tags={"score": float}, needs=("reward",)) for _ in range(2))
    one.restore(state)
    one.sync.take(5)
    one.sync.put(rc.Group([rollout(9)]), version=9)
    other.restore(state)
    assert_same(everything(other), everything(buffer))


def test_saving_again_replaces_the_snapshot(tmp_path):
    buffer = filled()
    buffer.save(tmp_path / "s")
    buffer.sync.take(3)
    buffer.save(tmp_path / "s")
    other = made(tags={"score": float}, needs=("reward",))
    other.load(tmp_path / "s")
    assert_same(everything(buffer), everything(other))
    assert [p.name for p in tmp_path.iterdir()] == ["s"]


def test_a_damaged_or_foreign_folder_is_named(tmp_path):
    (tmp_path / "other").mkdir()
    with pytest.raises(rc.SnapshotError, match="other"):
        made().load(tmp_path / "other")
    with pytest.raises(rc.SnapshotError, match="nowhere"):
        made().load(tmp_path / "nowhere")
    (tmp_path / "other" / "mine.txt").write_text("keep")
    with pytest.raises(rc.SnapshotError, match="other"):
        filled().save(tmp_path / "other")
    assert (tmp_path / "other" / "mine.txt").read_text() == "keep"
    buffer = filled()
    buffer.save(tmp_path / "s")
    (tmp_path / "s" / "manifest.json").write_text("{")
    with pytest.raises(rc.SnapshotError, match=r"manifest\.json"):
        made(tags={"score": float}, needs=("reward",)).load(tmp_path / "s")


def test_a_failed_load_leaves_the_buffer_empty_and_usable(tmp_path):
    buffer = filled()
    buffer.save(tmp_path / "s")
    for file in (tmp_path / "s").rglob("*.arrow"):
        file.write_bytes(file.read_bytes()[:-200])
    other = made(tags={"score": float}, needs=("reward",))
    with pytest.raises(rc.RecollectError):
        other.load(tmp_path / "s")
    assert len(other) == 0
    other.sync.put(rc.Group([rollout(reward=1.0)], task="math"), version=0)
    assert len(other.sync.take_batch({"math": 1}, timeout=0)) == 1


def test_a_snapshot_holds_no_pickle_and_its_own_part_is_json(tmp_path):
    filled().save(tmp_path / "s")
    json.loads((tmp_path / "s" / "manifest.json").read_text())
    for file in (tmp_path / "s").rglob("*"):
        assert file.is_dir() or file.suffix in (".json", ".arrow"), file


def test_a_state_that_is_read_only_is_restored() -> None:
    """As one is that came from another process."""
    buffer = rc.RolloutBuffer(staleness=rc.Staleness(max_staleness=9))
    for number in range(5):
        rollout = rc.Rollout([1], [2, number], finish_reason="stop")
        buffer.sync.put(rc.Group([rollout], task="math"), version=number % 3)
    saved = buffer.state()
    for arrays in (saved["items"], saved["arrays"]):
        for array in arrays.values():
            array.setflags(write=False)
    again = rc.RolloutBuffer(staleness=rc.Staleness(max_staleness=9))
    again.restore(saved)
    assert again.sync.take(5) == buffer.sync.take(5)

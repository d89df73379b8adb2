"""Readers of events that fall behind, and events of what is rewound."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from typing import Any

import pytest

import recollect as rc
from recollect.rollouts.events import KEPT, PastGroups

PATIENT = rc.Staleness(max_staleness=99)


def group(name: str, tokens: int = 2, task: str = "math") -> rc.Group:
    rollout = rc.Rollout([1], list(range(tokens)), finish_reason="stop")
    return rc.Group([rollout], task=task, group_id=name)


def made(**options: Any) -> rc.RolloutBuffer:
    return rc.RolloutBuffer(**{"staleness": PATIENT, "order": rc.Fifo(), **options})


def pass_through(buffer: Any, names: list[str]) -> None:
    for name in names:
        buffer.put(group(name, tokens=int(name) + 1), version=0)
        buffer.take(1)


def held() -> int:
    """How many groups' memory events hold; each was taken by a call of its own."""
    gc.collect()
    return sum(type(each) is PastGroups for each in gc.get_objects())


def test_a_reader_that_is_behind_learns_of_everything_and_can_read_the_newest_groups() -> None:
    buffer = made().sync
    before = held()
    events = buffer.events(keep=3)
    names = [str(n) for n in range(10)]
    pass_through(buffer, names)
    assert held() - before == 3, "what is not read holds more memory than it may"
    batch = next(events)
    assert [(e.kind, e.reason, e.task, e.group_id) for e in batch] == [
        ("taken", "taken", "math", name) for name in names
    ]
    assert len({e.key for e in batch}) == 10
    assert [e.has_group for e in batch] == [False] * 7 + [True] * 3
    assert [e.group[0].num_tokens for e in batch[7:]] == [8, 9, 10]
    with pytest.raises(rc.UnknownKey, match=r"group '0' was let go .* keep="):
        batch[0].group  # noqa: B018
    assert events.let_go == 7


def test_a_reader_that_catches_up_loses_nothing_more() -> None:
    buffer = made().sync
    events = buffer.events(keep=3)
    for _ in range(5):
        pass_through(buffer, ["1", "2", "3"])
        assert all(event.has_group for event in next(events))
    assert events.let_go == 0


def test_one_slow_reader_takes_nothing_from_another() -> None:
    buffer = made().sync
    slow, patient, none = buffer.events(keep=1), buffer.events(keep=None), buffer.events(keep=0)
    pass_through(buffer, [str(n) for n in range(6)])
    assert [e.has_group for e in next(slow)] == [False] * 5 + [True]
    assert [e.group.group_id for e in next(patient)] == [str(n) for n in range(6)]
    assert not any(e.has_group for e in next(none))
    assert (slow.let_go, patient.let_go, none.let_go) == (5, 0, 6)


def test_a_reader_that_is_behind_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    buffer = made().sync
    events, none = buffer.events(keep=2), buffer.events(keep=0)  # who wants none is not behind
    with caplog.at_level(logging.WARNING, logger="recollect.rollouts"):
        pass_through(buffer, [str(n) for n in range(8)])
    assert [r.getMessage().split(":")[0] for r in caplog.records] == [
        "a reader of events is more than 2 events behind"
    ]
    assert (events.let_go, none.let_go) == (6, 8)


def test_a_reader_that_never_reads_stops_nobody_and_holds_no_more_than_the_default() -> None:
    buffer = made(staleness=rc.Staleness(on_expire="discard")).sync
    events = buffer.events("expired")
    count = KEPT + 50
    for name in range(count):
        buffer.put(group(str(name)), version=0)
    assert buffer.advance(2) == {"math": count}
    batch = next(events)
    assert len(batch) == count
    assert sum(event.has_group for event in batch) == KEPT
    assert batch[-1].group.group_id == str(count - 1)


def test_coroutines_are_told_too() -> None:
    async def main() -> None:
        buffer = made()
        events = buffer.events("taken", keep=1)
        for name in "12":
            await buffer.put(group(name), version=0)
        await buffer.take(2)
        batch = await anext(events)
        assert [event.has_group for event in batch] == [False, True]
        assert events.let_go == 1

    asyncio.run(main())


def test_a_wrong_limit_is_refused() -> None:
    with pytest.raises(rc.InvalidValue, match="keep"):
        made().events(keep=-1)


def test_groups_of_weights_that_no_longer_exist_leave_as_rewound() -> None:
    """Whoever rewinds a run to step 2 discards what later weights made; the reason says so."""
    buffer = made()
    events = buffer.sync.events("discarded")
    keys = [buffer.sync.put(group(f"v{version}"), version=version) for version in range(5)]
    versions = buffer.get(keys).info.version
    later = [key for key, version in zip(keys, versions, strict=True) if version > 2]
    assert asyncio.run(buffer.discard(later, reason="rewound")) == 2
    told = next(events)
    assert [(e.kind, e.reason, e.group_id) for e in told] == [
        ("discarded", "rewound", "v3"),
        ("discarded", "rewound", "v4"),
    ]
    assert told[0].group[0].versions.tolist() == [3, 3]
    account = buffer.accounts()["math"]
    assert (account["stored"], account["left"]) == (3, {"rewound": 2})


def test_events_of_groups_that_are_refused_can_be_read() -> None:
    """They were never stored, and still appear once: an outside reference can be released."""
    buffer = made(capacity=1, overflow="drop_newest").sync
    events = buffer.events()
    buffer.put(group("a"), version=0)
    assert buffer.put(group("b", tokens=7), version=0) is None
    (event,) = next(events)
    assert (event.kind, event.reason, event.key, event.group_id) == (
        "discarded",
        "overflow",
        None,
        "b",
    )
    assert event.group[0].num_tokens == 7


def test_a_reader_in_another_thread_gets_each_group_once() -> None:
    buffer = made(capacity=4).sync
    events = buffer.events("taken", keep=2)
    seen: list[str] = []
    reader = threading.Thread(
        target=lambda: seen.extend(e.group_id for batch in events for e in batch), daemon=True
    )
    reader.start()
    names = [str(n) for n in range(100)]
    pass_through(buffer, names)
    buffer.close()
    reader.join(5)
    assert seen == names

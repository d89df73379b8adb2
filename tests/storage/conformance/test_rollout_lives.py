"""Random lives of rollout buffers on every storage, each beside plain lists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from postgres_server import PostgresServer
from test_rollout_model import Driver

import recollect as rc


class Unsaved(Driver):
    """The driver of buffers, without the verb that saves and loads: memory alone has that."""

    def restart(self) -> None:
        pass


@pytest.fixture
def live_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[Callable[[], Any], range, int], None]:
    """Lets buffers live on storages that a function makes."""
    buffer = rc.RolloutBuffer

    def live(make: Callable[[], Any], seeds: range, steps: int) -> None:
        monkeypatch.setattr(
            rc, "RolloutBuffer", lambda **options: buffer(storage=make(), **options)
        )
        for seed in seeds:
            driver = Unsaved(seed, tmp_path)
            try:
                driver.run(steps)
            except BaseException as error:
                error.add_note(f"seed {seed}\n" + "\n".join(driver.calls[-40:]))
                raise
            driver.real.close()

    return live


def test_in_a_frame(live_on: Any) -> None:
    live_on(rc.FrameStorage, range(6), 40)


def test_in_sqlite(live_on: Any) -> None:
    live_on(lambda: rc.SqlStorage("sqlite://"), range(10, 12), 40)


def test_in_postgres(live_on: Any, postgres: PostgresServer) -> None:
    live_on(lambda: rc.SqlStorage(postgres.schema()), range(20, 22), 40)


@pytest.mark.soak
def test_in_a_frame_for_long(live_on: Any) -> None:
    live_on(rc.FrameStorage, range(100, 160), 120)


@pytest.mark.soak
def test_in_postgres_for_long(live_on: Any, postgres: PostgresServer) -> None:
    live_on(lambda: rc.SqlStorage(postgres.schema()), range(200, 220), 60)

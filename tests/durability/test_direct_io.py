"""Writes past the page cache: the file holds the same bytes, wherever blocks begin and end."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.durability import direct_io as direct
from recollect.durability.direct_io import BLOCK
from recollect.durability.files import LocalFile

SIZES = [1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK - 5, 5 * BLOCK, 20_000]


@pytest.fixture(autouse=True)
def small(monkeypatch: Any) -> None:
    monkeypatch.setattr(direct, "STAGE", 2 * BLOCK)
    monkeypatch.setattr("recollect.durability.files.WORTH_IT", 1)


def pieces(size: int, seed: int) -> list[bytes]:
    data = np.random.default_rng(seed).bytes(size)
    cuts = [0, size // 3, size // 3, size // 2, size]
    return [data[a:b] for a, b in pairwise(cuts)]


def write(path: Path) -> bytes:
    """Writes of all sizes, one behind the other; returns what the file must hold."""
    file = LocalFile(path)
    expected = b""
    for seed, size in enumerate([*SIZES, *reversed(SIZES)]):
        some = pieces(size, seed)
        assert file.write_all(some, direct=True) == size
        expected += b"".join(some)
        if seed % 3 == 0:
            file.sync()
        if seed % 4 == 0:
            expected += b"between"
            file.write_all([b"between"])
    file.sync()
    assert file.bytes == len(expected)
    file.close()
    return expected


def test_a_file_holds_what_was_written_and_no_more(tmp_path: Path, monkeypatch: Any) -> None:
    flagged = []
    plain = os.writev

    def watched(descriptor: int, data: Any) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & direct.DIRECT:
            flagged.extend(map(len, data))
        return plain(descriptor, data)

    monkeypatch.setattr(os, "writev", watched)
    expected = write(tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == expected
    assert all(size % BLOCK == 0 and size <= 2 * BLOCK for size in flagged)
    assert sum(flagged) > len(expected) / 2


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_that_cannot_gets_pages(code: int, tmp_path: Path, monkeypatch: Any) -> None:
    refused = []
    plain = os.writev

    def refusing(descriptor: int, data: Any) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & direct.DIRECT:
            refused.append(data)
            raise OSError(code, os.strerror(code))
        return plain(descriptor, data)

    monkeypatch.setattr(os, "writev", refusing)
    expected = write(tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == expected
    assert len(refused) == 1


def test_a_write_that_stops_half_way_is_finished(tmp_path: Path, monkeypatch: Any) -> None:
    plain = os.writev
    stopped = []

    def short(descriptor: int, data: Any) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & direct.DIRECT and len(data[0]) > BLOCK:
            stopped.append(data)
            return plain(descriptor, [data[0][:BLOCK]])
        return plain(descriptor, data)

    monkeypatch.setattr(os, "writev", short)
    expected = write(tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == expected
    assert len(stopped) == 1


def test_an_error_of_the_disk_is_raised_and_the_flag_is_gone(
    tmp_path: Path, monkeypatch: Any
) -> None:
    plain = os.writev

    def failing(descriptor: int, data: Any) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & direct.DIRECT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return plain(descriptor, data)

    file = LocalFile(tmp_path / "f")
    monkeypatch.setattr(os, "writev", failing)
    with pytest.raises(OSError, match="No space"):
        file.write_all(pieces(9 * BLOCK, 0), direct=True)
    assert not fcntl.fcntl(file._descriptor, fcntl.F_GETFL) & direct.DIRECT
    file.close()


def test_blocks_are_read_where_they_lie_and_the_rest_is_copied(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(direct, "STAGE", 64 * BLOCK)
    memory = np.frombuffer(mmap.mmap(-1, 64 * BLOCK), np.uint8).copy()
    place = -memory.ctypes.data % BLOCK
    data = np.random.default_rng(0).integers(0, 256, 40 * BLOCK).astype(np.uint8)
    memory[place : place + data.size] = data
    first = memory[place : place + 10 * BLOCK + 100]  # begins with a block, and ends within one
    second = memory[place + 20 * BLOCK : place + 30 * BLOCK]
    odd = memory[place + 8 : place + 8 + 3 * BLOCK]
    some = [b"x" * BLOCK, first, b"y" * (BLOCK - 100), second, odd, second, b"end"]
    seen: list[int] = []
    plain = os.writev

    def watched(descriptor: int, views: Any) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & direct.DIRECT:
            seen.extend(np.frombuffer(view, np.uint8).ctypes.data for view in views)
        return plain(descriptor, views)

    monkeypatch.setattr(os, "writev", watched)
    file = LocalFile(tmp_path / "f")
    file.write_all(some, direct=True)
    file.close()
    assert (tmp_path / "f").read_bytes() == b"".join(bytes(piece) for piece in some)
    places = [first.ctypes.data, second.ctypes.data, second.ctypes.data]
    assert [address for address in seen if address in places] == places
    assert len(seen) == 6  # x, first, y, second, odd, second

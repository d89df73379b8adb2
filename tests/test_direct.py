"""Writes past the page cache: the file holds the same bytes, wherever blocks begin and end."""

from __future__ import annotations

import errno
import fcntl
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.durability import direct
from recollect.durability.direct import BLOCK
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
    plain = os.write

    def watched(descriptor: int, data: Any) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & direct.DIRECT:
            flagged.append(len(data))
        return plain(descriptor, data)

    monkeypatch.setattr(os, "write", watched)
    expected = write(tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == expected
    assert all(size % BLOCK == 0 and size <= 2 * BLOCK for size in flagged)
    assert sum(flagged) > len(expected) / 2


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_that_cannot_gets_pages(code: int, tmp_path: Path, monkeypatch: Any) -> None:
    refused = []
    plain = os.write

    def refusing(descriptor: int, data: Any) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & direct.DIRECT:
            refused.append(len(data))
            raise OSError(code, os.strerror(code))
        return plain(descriptor, data)

    monkeypatch.setattr(os, "write", refusing)
    expected = write(tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == expected
    assert len(refused) == 1


def test_a_write_that_stops_half_way_is_finished(tmp_path: Path, monkeypatch: Any) -> None:
    plain = os.write
    stopped = []

    def short(descriptor: int, data: Any) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & direct.DIRECT and len(data) > BLOCK:
            stopped.append(len(data))
            return plain(descriptor, data[:BLOCK])
        return plain(descriptor, data)

    monkeypatch.setattr(os, "write", short)
    expected = write(tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == expected
    assert len(stopped) == 1


def test_an_error_of_the_disk_is_raised_and_the_flag_is_gone(
    tmp_path: Path, monkeypatch: Any
) -> None:
    plain = os.write

    def failing(descriptor: int, data: Any) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & direct.DIRECT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return plain(descriptor, data)

    file = LocalFile(tmp_path / "f")
    monkeypatch.setattr(os, "write", failing)
    with pytest.raises(OSError, match="No space"):
        file.write_all(pieces(9 * BLOCK, 0), direct=True)
    assert not fcntl.fcntl(file._descriptor, fcntl.F_GETFL) & direct.DIRECT
    file.close()

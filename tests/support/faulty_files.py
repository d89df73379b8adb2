"""A file system that fails when it is told to: at the k-th call that changes something."""

from __future__ import annotations

import errno
import os
import threading
from typing import Any

from recollect.durability.files import Files, LocalFile

CHANGES = (
    "create", "append", "truncate", "make_folder", "link", "rename", "exchange", "sync_folder",
    "remove", "remove_folder",
)  # fmt: skip


class Faulty(Files):
    """The local file system, up to the `fail_at`-th call that changes something.

    Threads call in any order: `(call, n)` means the n-th call of that name, as `log` has it.

    `mode` says what that call does: "fail" raises and changes nothing, "truncate" writes half
    of its bytes and raises, "full" raises ENOSPC there and at every later write. Writes and
    syncs of files count as calls. `log` names the calls, in order. With `links=False` there are no
    hard links, and with `exchanges=False` no exchange of names.
    """

    def __init__(
        self,
        fail_at: int | tuple[str, int] | None = None,
        mode: str = "fail",
        *,
        links: bool = True,
        exchanges: bool = True,
    ) -> None:
        self.fail_at, self.mode = fail_at, mode
        self.log: list[str] = []
        self._links, self._exchanges = links, exchanges
        self._lock = threading.Lock()
        self._full = False

    def called(self, what: str, path: Any = "") -> bool:
        """Count a call; raises where it must fail, returns whether it must fail half-way."""
        with self._lock:
            self.log.append(f"{what} {os.path.basename(os.fspath(path))}".strip())
            number = len(self.log)
            due = self.fail_at in (number, (self.log[-1], self.log.count(self.log[-1])))
        if self._full and what in ("write", "create", "make_folder"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if not due:
            return False
        if self.mode == "full":
            self._full = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.mode == "truncate" and what == "write":
            return True
        raise OSError(errno.EIO, f"the {number}-th call fails: {self.log[-1]}")

    def create(self, path: Any, *, hold: bool = False) -> LocalFile:
        self.called("create", path)
        return FaultyFile(self, path, hold=hold)

    def append(self, path: Any) -> LocalFile:
        self.called("append", path)
        return FaultyFile(self, path, append=True)

    def exchange(self, one: Any, other: Any) -> bool:
        self.called("exchange", one)
        return self._exchanges and super().exchange(one, other)

    def link(self, source: Any, target: Any) -> int:
        self.called("link", source)
        if self._links:
            return super().link(source, target)
        with open(source, "rb") as file:
            data = file.read()
        with open(target, "xb") as file:
            return file.write(data)

    def sync_folder(self, path: Any) -> None:
        self.called("sync_folder", path)


def _counted(name: str) -> Any:
    plain = getattr(Files, name)

    def call(self: Faulty, path: Any, *more: Any) -> Any:
        self.called(name, path)
        return plain(self, path, *more)

    return call


for _name in CHANGES:
    if _name not in vars(Faulty):
        setattr(Faulty, _name, _counted(_name))


class FaultyFile(LocalFile):
    """A file whose writes and syncs are calls too."""

    def __init__(self, files: Faulty, path: Any, **options: bool) -> None:
        super().__init__(path, **options)
        self._files, self._path = files, path

    def _put(self, view: memoryview) -> None:
        if self._files.called("write", self._path):
            super()._put(view[: len(view) // 2])
            raise OSError(errno.EIO, "a write stops half-way")
        super()._put(view)

    def _put_all(self, views: list[memoryview], direct: bool) -> None:
        self._put(memoryview(b"".join(views)))

    def sync(self) -> None:
        """Counted, and no more: what a disk has, a test cannot see."""
        self._put_held()
        self._files.called("sync", self._path)

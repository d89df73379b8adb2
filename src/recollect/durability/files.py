"""All access to files that must survive a crash: one small class.

Snapshots, journal and shards open, write, sync, link, rename and remove files through `Files` and
nothing else. So a test can let the k-th call fail, and another file system can take its place.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import xxhash

from recollect.durability.direct_io import WORTH_IT, Direct

Path = str | os.PathLike[str]

AT_FDCWD = -100
RENAME_EXCHANGE = 2
NO_LINKS = (errno.EPERM, errno.EXDEV, errno.ENOTSUP, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)
AT_ONCE = 1024  # pieces of one write; systems take no more
HELD = 256 << 10  # bytes that are held back at most
SYNC_FILE_RANGE_WRITE = 2
SYNCERS = 4  # threads that sync, and
MOST_OPEN = 96  # files that may wait for them
NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM)


class Written(Protocol):
    """A file that is being written; Arrow writes into it as into any Python file."""

    bytes: int

    @property
    def xxh3(self) -> str:
        """The checksum of what was written so far."""
        ...

    def write(self, data: Any) -> int: ...

    def expect(self, size: int) -> None:
        """Say how many bytes come next, so that the file system can find room for all at once."""
        ...

    def begin_sync(self) -> None:
        """Let the disk begin with what was written; `sync` then takes less."""
        ...

    def sync(self) -> None:
        """Return when everything written is on the disk."""
        ...

    def close(self) -> None: ...


@functools.cache
def _system(name: str) -> Any:
    """A function of the C library that Python has no call for; None where the system lacks it."""
    return getattr(ctypes.CDLL(None, use_errno=True), name, None)


class LocalFile:
    """A file on a local disk, hashed while it is written.

    With `hold`, small pieces are held back and written together: Arrow makes many.
    """

    closed = False  # what Arrow asks a Python file

    def __init__(self, path: Path, *, append: bool = False, hold: bool = False) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if append else os.O_EXCL)
        self._descriptor = os.open(path, flags, 0o666)
        self._hash = xxhash.xxh3_64()
        self._direct: Direct | None = None
        self._held = bytearray()
        self._most_held = HELD if hold else 0
        self.bytes = 0

    @property
    def xxh3(self) -> str:
        return self._hash.hexdigest()

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._hash.update(view)
        self.bytes += len(view)
        if len(view) + len(self._held) <= self._most_held:
            self._held += view
        else:
            self._put_held()
            self._put(view)
        return len(view)

    def _put_held(self) -> None:
        held, self._held = self._held, bytearray()
        if held:
            self._put(memoryview(held))

    def write_all(self, pieces: Sequence[Any], *, direct: bool = False) -> int:
        """Write pieces at once and without hashing them.

        With `direct`, large writes go past the page cache: for a file that is not read soon.
        """
        self._put_held()
        views = [memoryview(piece).cast("B") for piece in pieces]
        size = sum(map(len, views))
        self._put_all(views, direct and size >= WORTH_IT)
        self.bytes += size
        return size

    def _put_all(self, views: list[memoryview], direct: bool) -> None:
        if direct:
            if self._direct is None:
                self._direct = Direct(self._descriptor)
            if self._direct.possible:
                self._direct.write(views, self.bytes)
                return
        while views:
            done = os.writev(self._descriptor, views[:AT_ONCE])
            while views and done >= len(views[0]):
                done -= len(views.pop(0))
            if done:
                views[0] = views[0][done:]

    def _put(self, view: memoryview) -> None:
        done = 0
        while done < len(view):
            done += os.write(self._descriptor, view[done:])

    def expect(self, size: int) -> None:
        """Reserve whole pages for what comes next; the rest of the last page needs no room."""
        call = _system("fallocate")
        if call is not None and size >= HELD:
            first = self.bytes - len(self._held)
            failed = call(self._descriptor, 0, ctypes.c_int64(first), ctypes.c_int64(size & -4096))
            if failed and ctypes.get_errno() == errno.ENOSPC:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def begin_sync(self) -> None:
        self._put_held()
        call = _system("sync_file_range")
        if call is not None:
            whole = ctypes.c_int64(0)
            call(self._descriptor, whole, whole, SYNC_FILE_RANGE_WRITE)  # errors come with `sync`

    def sync(self) -> None:
        self._put_held()
        os.fdatasync(self._descriptor)

    def flush(self) -> None:
        """Nothing: Arrow calls this after a footer, and `sync` writes what is held back."""

    def close(self) -> None:
        """Close the file; what was held back is lost unless `sync` was called before."""
        if not self.closed:
            self.closed = True
            os.close(self._descriptor)

    def __enter__(self) -> LocalFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Files:
    """The local file system."""

    def create(self, path: Path, *, hold: bool = False) -> LocalFile:
        """A new file; it must not exist. With `hold`, small writes wait for `sync`."""
        return LocalFile(path, hold=hold)

    def append(self, path: Path) -> LocalFile:
        """A file that is written at its end; made where there is none."""
        return LocalFile(path, append=True)

    def truncate(self, path: Path, size: int) -> None:
        """Cut a file, and sync it."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(descriptor, size)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, path: Path) -> memoryview:
        """The content, mapped where it is not empty."""
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def size(self, path: Path) -> int:
        return os.stat(path).st_size

    def exists(self, path: Path) -> bool:
        return os.path.lexists(path)

    def is_folder(self, path: Path) -> bool:
        return os.path.isdir(path)

    def list(self, folder: Path) -> list[str]:
        """The names in a folder, sorted; empty where there is no such folder."""
        try:
            return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []

    def make_folder(self, path: Path) -> None:
        os.mkdir(path)

    def link(self, source: Path, target: Path) -> int:
        """Give a file another name, or copy it where there are no links; returns bytes copied."""
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            shutil.copyfile(source, target)
            with open(target, "rb") as file:
                os.fsync(file.fileno())
            return os.stat(target).st_size
        return 0

    def rename(self, source: Path, target: Path) -> None:
        """Atomic; replaces a file, or an empty folder, that is there."""
        os.rename(source, target)

    def exchange(self, one: Path, other: Path) -> bool:
        """Let two names change places, atomically; False where the file system cannot."""
        rename = _system("renameat2")
        if rename is None:
            return False
        first, second = os.fsencode(one), os.fsencode(other)
        if rename(AT_FDCWD, first, AT_FDCWD, second, RENAME_EXCHANGE) == 0:
            return True
        code = ctypes.get_errno()
        if code in NO_EXCHANGE:
            return False
        raise OSError(code, os.strerror(code), os.fspath(one))

    def sync_folder(self, path: Path) -> None:
        """Return when the names in a folder are on the disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, path: Path) -> None:
        """Remove a file; nothing where it has gone."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def remove_folder(self, path: Path) -> None:
        """Remove a folder and what is in it; nothing where it has gone."""
        for name in self.list(path):
            inner = os.path.join(path, name)
            if os.path.isdir(inner) and not os.path.islink(inner):
                self.remove_folder(inner)
            else:
                self.remove(inner)
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return


LOCAL = Files()


class Syncing:
    """Syncs files together, in a few threads, so that many of them share the disk's commits.

    The disk begins with a file when it is added. The wait for it comes when all files have been
    written, because a sync in between would make the disk commit what other files change again.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(SYNCERS, "recollect-sync")
        self._lock = threading.Lock()
        self._written: deque[Written] = deque()
        self._pending: list[Future[None]] = []

    def add(self, file: Written) -> None:
        """Sync and close a file, some time before `wait` returns. Any thread may call it."""
        with self._lock:
            self._written.append(file)
        file.begin_sync()
        with self._lock:
            if len(self._written) > MOST_OPEN:
                self._submit()

    def _submit(self) -> None:
        self._pending.append(self._pool.submit(_sync_and_close, self._written.popleft()))

    def wait(self) -> None:
        """Return when all is synced; raises the first error."""
        with self._lock:
            while self._written:
                self._submit()
            pending, self._pending = self._pending, []
        errors = [error for future in pending if (error := future.exception()) is not None]
        if errors:
            raise errors[0]

    def __enter__(self) -> Syncing:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(wait=True)
        while self._written:
            self._written.popleft().close()


def _sync_and_close(file: Written) -> None:
    try:
        file.sync()
    finally:
        file.close()


def digest(data: Any) -> str:
    """The checksum of some bytes."""
    return xxhash.xxh3_64(data).hexdigest()


def digests(contents: Sequence[memoryview], told: Callable[[int], None]) -> list[str]:
    """The checksums of whole files, several at once: hashing does not hold the GIL."""

    def one(data: memoryview) -> str:
        checksum = digest(data)
        told(len(data))
        return checksum

    with ThreadPoolExecutor(2, "recollect-hash") as pool:
        return list(pool.map(one, contents))

"""Saving: members are captured at one moment, written beside the target, and one rename commits it.

`docs/format.md` says what the files are. If anything fails before the rename, the snapshot that was
there is still there, and what was written is removed. Tables can be used, and saved again.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recollect.base.version import installed_version
from recollect.durability.files import LOCAL, Files, Syncing, digest
from recollect.durability.format import FORMAT
from recollect.durability.progress_bar import bar
from recollect.durability.snapshot.manifest import (
    MANIFEST,
    aside,
    clean,
    find_snapshots,
    new_run,
    read_manifest,
    temporary,
    to_bytes,
)
from recollect.durability.snapshot.members import Captured, Member
from recollect.durability.snapshot.segments import COMPRESSIONS
from recollect.durability.snapshot.table_writer import Settle, TableWriter
from recollect.errors import InvalidValue, SnapshotError, shown
from recollect.storage.copy_thread import cores

log = logging.getLogger("recollect")

Other = str | os.PathLike[str] | bytes | Callable[[str], object]
State = Mapping[str, Any] | Callable[[], Mapping[str, Any]]


@dataclass(frozen=True)
class SavedSnapshot:
    """What a save did."""

    path: Path
    id: str
    step: int | None
    items: int
    bytes_written: int  # segments, manifest and files of others; links cost nothing
    bytes: int  # of all files that the snapshot names


def save_snapshot(
    path: str | os.PathLike[str],
    members: Mapping[str, Member],
    *,
    kind: str = "store",
    step: int | None = None,
    state: State | None = None,
    others: Mapping[str, Other] | None = None,
    keep_last: int | None = None,
    compression: str | None = None,
    progress: bool | None = None,
    files: Files = LOCAL,
) -> SavedSnapshot:
    """Write a snapshot of tables and buffers, captured together; replaces one that is there.

    Args:
        path: The snapshot's folder.
        members: Tables and buffers by name.
        kind: What the manifest calls it.
        step: The training step that it belongs to.
        state: JSON for the manifest, or a call that is made while all locks are held.
        others: Files that commit with it: a file to copy, bytes, or a call that writes to a path.
        keep_last: Remove all but so many snapshots of the same members in the parent folder.
        compression: Of rows: None, "lz4" or "zstd".
        progress: Whether to show a bar; None does so for long work on a terminal.
        files: The file system.
    """
    saving = SnapshotSaving(
        path, members, kind=kind, step=step, others=others, keep_last=keep_last,
        compression=compression, progress=progress, files=files,
    )  # fmt: skip
    with saving:
        saving.capture(state)
        return saving.write()


class SnapshotSaving:
    """A save in its parts, so that one thread can capture and another write.

        with saving:              # waits for a save of the same members that is under way
            saving.capture(state) # short: under the locks of all members
            saving.write()        # long: the disk

    `own` and `others` may be added to between the two.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        members: Mapping[str, Member],
        *,
        kind: str = "store",
        step: int | None = None,
        others: Mapping[str, Other] | None = None,
        keep_last: int | None = None,
        compression: str | None = None,
        progress: bool | None = None,
        files: Files = LOCAL,
    ) -> None:
        if compression not in COMPRESSIONS:
            raise InvalidValue(
                f"compression: expected None, 'lz4' or 'zstd', got {shown(compression)}"
            )
        self.target = Path(os.path.abspath(path))
        self.id = secrets.token_hex(16)
        self.own: dict[str, Any] = {}
        self.others: dict[str, Other] = dict(others or {})
        self._kind, self._step, self._keep_last = kind, step, keep_last
        self._compression, self._progress, self._files = compression, progress, files
        wanted = dict(sorted(members.items()))
        self._left_out = [name for name, member in wanted.items() if not member.checkpoint]
        self._members = {name: member for name, member in wanted.items() if member.checkpoint}
        self._captures: dict[str, Captured] = {}
        self._written = False
        self._stack = ExitStack()

    def __enter__(self) -> SnapshotSaving:
        with ExitStack() as stack, _errors_of(self.target):
            for member in self._members.values():
                stack.enter_context(member.saving)
            _prepare(self.target, self._files)
            for member in self._members.values():
                member.touch()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        if not self._written:
            self._undo()
        self._stack.close()

    def capture(self, state: State | None = None) -> None:
        """Copy the state of all members at one moment, and that of others with it."""
        with _errors_of(self.target):
            self._captures, own = _capture(self._members, state)
        self.own.update(own)

    def write(self) -> SavedSnapshot:
        """Write what was captured, and commit it."""
        with _errors_of(self.target):
            return self._write()

    def _write(self) -> SavedSnapshot:
        target, wanted, files = self.target, self._members, self._files
        for name, member in wanted.items():
            member.finish(self._captures[name])
        save = self._attempt()
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "kind": self._kind,
            "written_by": installed_version(),
            "id": self.id,
            "sequence": _sequence(target, wanted, files),
            "step": self._step,
            "saved_at": time.time(),
            "left_out": self._left_out,
            "state": self.own,
        }
        try:
            try:
                save.run(manifest, self.others)
            except FileNotFoundError:
                if not any(member.ledger for member in wanted.values()):
                    raise
                for member in wanted.values():  # the last snapshot was removed: write everything
                    member.ledger = None
                save = self._attempt()
                save.run(manifest, self.others)
        except BaseException:
            self._undo()
            raise
        self._written = True
        for name, settle in save.ledgers.items():
            wanted[name].ledger = settle(str(target), manifest["sequence"])
        if self._keep_last is not None:
            forget_old(target.parent, self._keep_last, files, manifest)
        items = sum(captured.entry["items"] for captured in self._captures.values())
        return SavedSnapshot(target, self.id, self._step, items, save.written, save.total)

    def _attempt(self) -> _Save:
        return _Save(
            self.target, self._members, self._captures, self._compression, self._progress,
            self._files,
        )  # fmt: skip

    def _undo(self) -> None:
        """What was captured was not written: the next save must write it."""
        for name, captured in self._captures.items():
            self._members[name].undo(captured)
        self._captures = {}


@contextmanager
def _errors_of(target: Path) -> Iterator[None]:
    """Disk errors, as one that says what was being done."""
    try:
        yield
    except OSError as error:
        raise SnapshotError(f"the snapshot {target} could not be written: {error}") from error


def _prepare(target: Path, files: Files) -> None:
    """Make the parent folder, and clean up after saves that did not finish."""
    target.parent.mkdir(parents=True, exist_ok=True)
    clean(target, files)
    taken = not files.is_folder(target) or bool(files.list(target))  # an empty folder is not
    if files.exists(target) and not files.exists(target / MANIFEST) and taken:
        raise SnapshotError(f"{target} exists and is no snapshot; choose another path")


def _capture(
    members: Mapping[str, Member], state: State | None
) -> tuple[dict[str, Captured], dict[str, Any]]:
    """Copy the state of all members at one moment; locks are taken in the order of names."""
    with ExitStack() as locks:
        for member in members.values():
            locks.enter_context(member.transaction())
        captures = {name: member.capture() for name, member in members.items()}
        own = dict(state() if callable(state) else state or {})
    return captures, own


def _sequence(target: Path, members: Mapping[str, Member], files: Files) -> int:
    """One more than the snapshot that this one replaces, or shares segments with."""
    before = [member.ledger.sequence for member in members.values() if member.ledger]
    if files.exists(target):
        with suppress(SnapshotError):
            before.append(read_manifest(target, files)["sequence"])
    return max(before, default=-1) + 1


def _threads() -> ThreadPoolExecutor:
    """Threads that read and write rows, for which they do not need the GIL."""
    return ThreadPoolExecutor(min(2, cores()), "recollect-save")


class _Save:
    """One attempt to write a snapshot of what was captured."""

    def __init__(
        self,
        target: Path,
        members: Mapping[str, Member],
        captures: Mapping[str, Captured],
        compression: str | None,
        progress: bool | None,
        files: Files,
    ) -> None:
        self._target, self._members, self._captures = target, members, captures
        self._compression, self._progress, self._files = compression, progress, files
        self._run = new_run()
        self._folder = temporary(target, self._run)
        self.ledgers: dict[str, Settle] = {}
        self.written = self.total = 0

    def run(self, manifest: dict[str, Any], others: Mapping[str, Other]) -> None:
        """Write everything and commit it; on an error, remove what was written."""
        files = self._files
        try:
            files.make_folder(self._folder)
            with Syncing() as syncing:
                self._write_members(manifest, syncing)
                manifest["others"] = self._write_others(others)
                data = to_bytes(manifest)
                file = files.create(self._folder / MANIFEST)
                try:
                    file.write(data)
                except BaseException:
                    file.close()
                    raise
                syncing.add(file)
                syncing.wait()  # the folder must not become a snapshot before all is synced
            self.written += len(data)
            self.total += len(data)
            files.sync_folder(self._folder)
            old = self._commit()
        except BaseException:
            with suppress(OSError):
                files.remove_folder(self._folder)
            raise
        if old is not None:
            with _only_warned(f"the old snapshot {old} could not be removed"):
                files.remove_folder(old)

    def _write_members(self, manifest: dict[str, Any], syncing: Syncing) -> None:
        entries: dict[str, Any] = {}
        named: dict[str, Any] = {}
        links: dict[Path, str] = {}
        total = sum(captured.entry["nbytes"] for captured in self._captures.values())
        with bar("save", total, self._progress) as told, _threads() as threads:
            for name, captured in self._captures.items():
                ledger = self._members[name].ledger
                writer = TableWriter(
                    self._folder, name, self._run, syncing, self._files, self._compression, told,
                    threads,
                )  # fmt: skip
                entry, its_files, settle = writer.write(captured.items, ledger, captured.blobs)
                entries[name] = {**captured.entry, "numbers": captured.items.numbers, **entry}
                self.ledgers[name] = settle
                named.update(its_files)
                self.written += sum(file["bytes"] for file in writer.written.values())
                if ledger is not None:
                    again = its_files.keys() - writer.written.keys()
                    links.update({Path(ledger.folder) / file: file for file in again})
            for source, file in links.items():
                self.written += self._files.link(source, self._folder / file)
        self.total += sum(file["bytes"] for file in named.values())
        manifest["tables"] = entries
        manifest["files"] = named

    def _write_others(self, others: Mapping[str, Other]) -> dict[str, Any]:
        """Write the files of others, and say what was written."""
        entries = {}
        for name, other in others.items():
            where = self._folder / _checked_name(name, self._folder, self._files)
            if isinstance(other, bytes):
                with self._files.create(where) as file:
                    file.write(other)
                    file.sync()
            elif callable(other):
                other(str(where))
            else:
                shutil.copyfile(other, where)
            for path in _files_in(where):
                with open(path, "rb") as written:
                    os.fsync(written.fileno())
                data = self._files.read(path)
                key = path.relative_to(self._folder).as_posix()
                entries[key] = {"bytes": len(data), "xxh3": digest(data)}
                self.written += len(data)
                self.total += len(data)
        return entries

    def _commit(self) -> Path | None:
        """Give the snapshot its name; returns where one that had it is now."""
        files, target, folder = self._files, self._target, self._folder
        if not files.exists(target):
            files.rename(folder, target)
            try:
                files.sync_folder(target.parent)
            except BaseException:
                files.rename(target, folder)
                raise
            return None
        if files.exchange(folder, target):
            try:
                files.sync_folder(target.parent)
            except BaseException:
                files.exchange(folder, target)
                raise
            return folder
        old = aside(target, self._run)
        files.rename(target, old)
        try:
            files.rename(folder, target)
            files.sync_folder(target.parent)
        except BaseException:
            if files.exists(target):
                files.rename(target, folder)
            files.rename(old, target)
            raise
        return old


def _checked_name(name: str, folder: Path, files: Files) -> str:
    plain = isinstance(name, str) and name and Path(name).name == name and not name.startswith(".")
    if not plain or name == MANIFEST or files.exists(folder / name):
        raise InvalidValue(
            f"others: {shown(name)} cannot name a file of a snapshot; use a plain name such as "
            "'model.pt'"
        )
    return name


def _files_in(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(inner for inner in path.rglob("*") if inner.is_file())
    if not path.is_file():
        raise SnapshotError(f"others: nothing was written to {path.name}")
    return [path]


@contextmanager
def _only_warned(what: str) -> Iterator[None]:
    """Turn disk errors into a warning: the snapshot is safe, and a later save removes the rest."""
    try:
        yield
    except OSError as error:
        log.warning("%s: %s", what, error)


def forget_old(
    folder: Path, keep_last: int, files: Files, like: Mapping[str, Any] | None = None
) -> list[Path]:
    """Remove all but the last snapshots in a folder, of the same members where `like` is given."""
    if not isinstance(keep_last, int) or keep_last < 1:
        raise InvalidValue(f"keep_last: expected 1 or more, got {shown(keep_last)}")
    found = find_snapshots(folder, files)
    if like is not None:
        names = like["tables"].keys()
        found = [one for one in found if one.manifest["tables"].keys() == names]
        found = [one for one in found if one.manifest["kind"] == like["kind"]]
        mine = [one for one in found if one.manifest["id"] == like["id"]]
        found = [one for one in found if one.manifest["id"] != like["id"]] + mine
    removed = []
    for one in found[: -keep_last or None]:
        with _only_warned(f"the snapshot {one.path} could not be removed"):
            remove_snapshot(one.path, files)
            removed.append(one.path)
    return removed


def remove_snapshot(path: Path, files: Files = LOCAL) -> None:
    """Remove a snapshot under another name, so that half of it is never taken for a whole one."""
    gone = temporary(path, new_run())
    files.rename(path, gone)
    files.remove_folder(gone)

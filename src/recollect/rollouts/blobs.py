"""Blobs: bytes that are stored once, however many groups refer to them.

A buffer counts what refers to its blobs. Buffers of one process, such as those of one store, that
have equal blobs share the bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from recollect.storage.base import BlobBook


def digest(blob: bytes) -> str:
    """The name of a blob, made of its content: equal names mean equal bytes."""
    return hashlib.blake2b(blob, digest_size=20).hexdigest()


class Blob:
    """Bytes that several buffers may hold; the memory is freed with the last of them."""

    __slots__ = ("__weakref__", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data


_everywhere: WeakValueDictionary[str, Blob] = WeakValueDictionary()


class Blobs:
    """The blobs of a buffer, and how many groups refer to each. Guarded by the table's lock.

    Where the groups are in a database, the blobs are there, too, and these are copies of them.
    """

    def __init__(self, kept: BlobBook | None = None) -> None:
        self._kept = kept
        self._blobs: dict[str, Blob] = {}
        self._references: dict[str, int] = {}
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._blobs)

    def __contains__(self, name: str) -> bool:
        return name in self._blobs

    def missing(self, blobs: Mapping[str, bytes]) -> int:
        """Bytes that these would add."""
        return sum(len(blob) for name, blob in blobs.items() if name not in self._blobs)

    def freed(self, names: Iterable[str], kept: Iterable[str]) -> int:
        """Bytes that are freed when one group leaves and another comes that keeps some blobs."""
        last = {name for name in names if self._references[name] == 1} - set(kept)
        return sum(len(self._blobs[name].data) for name in last)

    def add(self, blobs: Mapping[str, bytes]) -> None:
        """A group refers to these."""
        new = {name: blob for name, blob in blobs.items() if name not in self._blobs}
        if new and self._kept is not None:
            self._kept.put(new)
        for name, blob in new.items():
            self._blobs[name] = _everywhere.setdefault(name, Blob(blob))
            self.nbytes += len(blob)
        for name in blobs:
            self._references[name] = self._references.get(name, 0) + 1

    def remove(self, names: Iterable[str]) -> int:
        """A group refers to these no more; returns the bytes that were freed."""
        before = self.nbytes
        gone = []
        for name in names:
            left = self._references[name] - 1
            if left:
                self._references[name] = left
            else:
                del self._references[name]
                self.nbytes -= len(self._blobs.pop(name).data)
                gone.append(name)
        if gone and self._kept is not None:
            self._kept.remove(gone)
        return before - self.nbytes

    def clear(self) -> None:
        """No group refers to any."""
        if self._blobs and self._kept is not None:
            self._kept.remove(list(self._blobs))
        self._blobs, self._references, self.nbytes = {}, {}, 0

    def kept(self, names: Sequence[str]) -> dict[str, bytes]:
        """Blobs that a database has from before, by name."""
        return {} if self._kept is None else self._kept.get(names)

    def get(self, names: Iterable[str]) -> dict[str, bytes]:
        """Blobs by name; the bytes stay valid when their group has left."""
        return {name: self._blobs[name].data for name in names}

    def all(self) -> dict[str, bytes]:
        """Every blob by name."""
        return {name: blob.data for name, blob in self._blobs.items()}

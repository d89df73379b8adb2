"""`JsonlPrompts`: prompts in a file with one JSON value per line. Lines are read when drawn."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.errors import InvalidValue
from recollect.production.prompts.indexed import IndexedPrompts
from recollect.production.prompts.reading import Reading

CHUNK = 16 << 20


class JsonlPrompts(IndexedPrompts):
    """A JSONL file of prompts, drawn in an order by seed, epoch after epoch.

    Only the places of lines are kept in memory. Empty lines are passed over.

    >>> import pathlib, tempfile
    >>> from recollect.production import JsonlPrompts
    >>> path = pathlib.Path(tempfile.mkdtemp(), "math.jsonl")
    >>> _ = path.write_text('{"question": "1 + 1 =", "answer": 2}')
    >>> group = JsonlPrompts(path, n=4, prompt="question", ground_truth="answer").next()
    >>> group.prompt, group.ground_truth
    ('1 + 1 =', 2)

    Args:
        path: The file.
        n: Rollouts of a group.
        seed: Of the order; None keeps that of the file.
        epochs: How many there are; None for no end.
        columns: The names of columns, and a tokenizer: see `Reading`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        n: int = 1,
        *,
        seed: int | None = 0,
        epochs: int | None = None,
        **columns: Any,
    ) -> None:
        self._path = os.fspath(path)
        try:
            self._file = open(self._path, "rb", buffering=0)  # noqa: SIM115 - read when drawn
        except OSError as error:
            raise InvalidValue(f"path: {self._path} cannot be read: {error.strerror}") from error
        self._begin, self._end = _lines(self._file.fileno())
        super().__init__(self._begin.size, n, seed=seed, epochs=epochs, reading=Reading(**columns))

    def row(self, index: int) -> Any:
        begin, end = int(self._begin[index]), int(self._end[index])
        line = os.pread(self._file.fileno(), end - begin, begin)
        try:
            return json.loads(line)
        except ValueError as error:
            raise InvalidValue(
                f"{self._path}: the line at byte {begin} is no JSON: {error}"
            ) from None

    def describe(self) -> str:
        return self._path

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __del__(self) -> None:
        if "_file" in vars(self):
            self._file.close()


def _lines(descriptor: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the lines of a file begin and end, those without anything left out."""
    size = os.fstat(descriptor).st_size
    ends: list[NDArray[np.int64]] = []
    blank: list[NDArray[np.int64]] = []
    for start in range(0, size, CHUNK):
        data = np.frombuffer(os.pread(descriptor, CHUNK, start), np.uint8)
        ends.append(np.flatnonzero(data == ord("\n")) + start)
        # bytes that are more than white space, counted up to each: a line without any is empty
        blank.append(np.flatnonzero(data > ord(" ")) + start)
    newlines = np.concatenate([*ends, np.array([size])]) if size else np.zeros(0, np.int64)
    begins = np.concatenate([[0], newlines[:-1] + 1]) if size else np.zeros(0, np.int64)
    written = np.concatenate(blank) if blank else np.zeros(0, np.int64)
    counted = np.searchsorted(written, newlines) - np.searchsorted(written, begins)
    return begins[counted > 0].astype(np.int64), newlines[counted > 0].astype(np.int64)

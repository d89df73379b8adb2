"""`JsonlPrompts`: prompts in a file with one JSON value per line. Lines are read when drawn."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.errors import InvalidValue
from recollect.production.prompts.indexed import IndexedPrompts
from recollect.production.prompts.source_rows import RowReader

CHUNK = 4 << 20  # bytes that are looked at together


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
        columns: The names of columns, and a tokenizer: see `RowReader`.
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
        super().__init__(
            self._begin.size, n, seed=seed, epochs=epochs, reading=RowReader(**columns)
        )

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
    ends, upto = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    written = 0  # bytes that are more than white space, so far: a line without any is empty
    for start in range(0, size, CHUNK):
        data = np.frombuffer(os.pread(descriptor, CHUNK, start), np.uint8)
        newlines = np.flatnonzero(data == ord("\n"))
        if start + CHUNK >= size:
            newlines = np.append(newlines, data.size)  # the last line may lack its newline
        counted = np.cumsum(data > ord(" "), dtype=np.int32)
        ends.append(newlines + start)
        upto.append(written + np.where(newlines > 0, counted[newlines - 1], 0))
        written += int(counted[-1])
    end = np.concatenate(ends)
    has_text = np.diff(np.concatenate(upto), prepend=0) > 0
    begin = np.concatenate([[0], end[:-1] + 1]).astype(np.int64)[: end.size]
    return begin[has_text], end[has_text]

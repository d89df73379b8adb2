"""A softmax language model of a few thousand numbers, and the problems that it learns.

A problem is two digits, `a` and `b`; the task says whether their sum or the larger one is asked
for. The answer is digits and an end. What comes next is a softmax over a sum of four tables:
by the digit `a`, by `b`, by both, and by what was answered so far.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from recollect.base.arrays import Floats, Ints

TASKS = ("sum", "larger")
DIGITS = 6  # problems are made of 0 .. 5
WORDS = 11  # 0 .. 9, and the end
END = 10
FIRST_TASK = 11  # the tokens after that name the task of a prompt
LONGEST = 3  # tokens of an answer


def prompt(task: int, a: int, b: int) -> list[int]:
    return [FIRST_TASK + task, a, b]


def answer_of(task: int, a: int, b: int) -> list[int]:
    """The right answer, with its end."""
    return [*map(int, str(a + b if task == 0 else max(a, b))), END]


def reward_of(task: int, a: int, b: int, tokens: list[int]) -> float:
    """1 for the right answer, half for one that begins rightly."""
    right = answer_of(task, a, b)
    return 1.0 if tokens == right else 0.5 * (tokens[0] == right[0] and right[0] != END)


class Policy:
    """The model; every array is indexed by task and by the place in the answer first."""

    SHAPES: ClassVar[dict[str, tuple[int, ...]]] = {
        "by_a": (len(TASKS), LONGEST, DIGITS, WORDS),
        "by_b": (len(TASKS), LONGEST, DIGITS, WORDS),
        "by_both": (len(TASKS), LONGEST, DIGITS, DIGITS, WORDS),
        "by_last": (len(TASKS), LONGEST, WORDS, WORDS),
    }

    def __init__(self) -> None:
        self.tables: dict[str, Floats] = {n: np.zeros(s) for n, s in self.SHAPES.items()}
        self._speed: dict[str, Floats] = {n: np.zeros(s) for n, s in self.SHAPES.items()}

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return sum(table.size for table in self.tables.values())

    def copy(self) -> Policy:
        other = Policy()
        other.tables = {name: table.copy() for name, table in self.tables.items()}
        return other

    def save(self, path: Path) -> None:
        speed = {f"speed.{name}": table for name, table in self._speed.items()}
        np.savez(path, **self.tables, **speed)  # type: ignore[arg-type]

    def load(self, path: Path) -> None:
        with np.load(path) as saved:
            self.tables = {name: saved[name] for name in self.SHAPES}
            self._speed = {name: saved[f"speed.{name}"] for name in self.SHAPES}

    def logits(self, task: Any, place: Any, a: Any, b: Any, last: Any) -> Floats:
        tables = self.tables
        found: Floats = (
            tables["by_a"][task, place, a]
            + tables["by_b"][task, place, b]
            + tables["by_both"][task, place, a, b]
            + tables["by_last"][task, place, last]
        )
        return found

    def answer(
        self, task: int, a: int, b: int, n: int, rng: np.random.Generator
    ) -> list[tuple[list[int], list[float]]]:
        """n answers to a problem, each with the log-probabilities of its tokens."""
        answers: list[tuple[list[int], list[float]]] = [([], []) for _ in range(n)]
        last = np.full(n, END)
        going = np.arange(n)
        for place in range(LONGEST):
            logs = log_softmax(self.logits(task, place, a, b, last[going]))
            noise = rng.gumbel(size=logs.shape)
            chosen = np.argmax(logs + noise, axis=1)
            for row, token, log in zip(going, chosen, logs[range(len(going)), chosen], strict=True):
                answers[row][0].append(int(token))
                answers[row][1].append(float(log))
            last[going] = chosen
            going = going[chosen != END]
        return answers

    def solved(self) -> dict[str, float]:
        """The share of problems of each task that its likeliest answer solves."""
        found = {}
        for task, name in enumerate(TASKS):
            right = 0
            for a in range(DIGITS):
                for b in range(DIGITS):
                    tokens: list[int] = []
                    while len(tokens) < LONGEST and tokens[-1:] != [END]:
                        last = tokens[-1] if tokens else END
                        tokens.append(int(self.logits(task, len(tokens), a, b, last).argmax()))
                    right += tokens == answer_of(task, a, b)
            found[name] = right / DIGITS**2
        return found

    def learn(
        self, ids: Ints, mask: Floats, old: Floats, advantages: Floats, rate: float, spread: float
    ) -> None:
        """A step of clipped policy gradients with momentum, on padded rows of prompt and answer.

        `spread` is the weight of an entropy bonus, which keeps it from settling too early.
        """
        rows, places = np.nonzero(mask)
        at = places - 3  # a prompt has three tokens
        task, a, b = ids[rows, 0] - FIRST_TASK, ids[rows, 1], ids[rows, 2]
        last = np.where(at > 0, ids[rows, places - 1], END)
        logs = log_softmax(self.logits(task, at, a, b, last))
        chances = np.exp(logs)
        token, worth = ids[rows, places], advantages[rows, places]
        ratio = np.exp(logs[range(len(rows)), token] - old[rows, places])
        kept = np.where(worth > 0, ratio < 1.2, ratio > 0.8)
        push = -chances * (worth * ratio * kept)[:, None]
        push[range(len(rows)), token] += worth * ratio * kept
        entropy = -(chances * logs).sum(axis=1, keepdims=True)
        push -= spread * chances * (logs + entropy)
        push /= max(1, len(rows))
        indexes: dict[str, tuple[Any, ...]] = {
            "by_a": (task, at, a),
            "by_b": (task, at, b),
            "by_both": (task, at, a, b),
            "by_last": (task, at, last),
        }
        for name, index in indexes.items():
            self._speed[name] *= 0.9
            np.add.at(self._speed[name], index, push)
            self.tables[name] += rate * self._speed[name]


def log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    logs: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return logs

"""A task and a model for it: sums as characters, and a decoder that begins with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

Ints = NDArray[np.int64]


class Addition:
    """Problems a + b as characters: the digits of a base, then + and =."""

    def __init__(self, digits: int, base: int) -> None:
        self.digits, self.base = digits, base
        self.answer = digits + 1  # characters
        self.places = 2 * digits + 2 + self.answer
        self.letters = base + 2
        self.numbers = base**digits

    def prompts(self, a: Ints, b: Ints) -> Ints:
        """`a+b=`, a row each."""
        plus, equals = np.full((2, a.size, 1), self.base) + np.array([0, 1])[:, None, None]
        first, second = self._units_first(a, self.digits), self._units_first(b, self.digits)
        return np.concatenate([first[:, ::-1], plus, second[:, ::-1], equals], 1)

    def rewards(self, answers: Ints, a: Ints, b: Ints) -> NDArray[np.float64]:
        """The share of right digits."""
        found: NDArray[np.float64] = (answers == self._units_first(a + b, self.answer)).mean(1)
        return found

    def _units_first(self, numbers: Ints, count: int) -> Ints:
        found: Ints = numbers[:, None] // self.base ** np.arange(count) % self.base
        return found


class Model(nn.Module):
    """A decoder over characters."""

    def __init__(self, task: Addition, width: int, layers: int) -> None:
        super().__init__()
        letters, places = task.letters, task.places
        self.letters = nn.Embedding(letters, width)
        self.places = nn.Embedding(places, width)
        layer = nn.TransformerEncoderLayer(
            width, max(4, width // 64), 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, letters)
        self.register_buffer("ahead", torch.triu(torch.ones(places, places, dtype=torch.bool), 1))
        self.register_buffer("numbers", torch.arange(places))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of the next character at each place."""
        n = ids.shape[1]
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
            x = self.letters(ids) + self.places(self.numbers[:n])
            x = self.out(self.layers(x, mask=self.ahead[:n, :n], is_causal=True))
        return F.log_softmax(x.float(), -1)

    @torch.no_grad()
    def write(self, prompts: Ints, count: int, choose: Callable[..., Any]) -> tuple[Any, Any]:
        """So many characters after each prompt, and their log-probabilities."""
        ids, logs = torch.as_tensor(prompts, device=self.numbers.device), []
        for _ in range(count):
            log = self(ids)[:, -1]
            chosen = choose(log)
            logs.append(log.gather(1, chosen))
            ids = torch.cat([ids, chosen], 1)
        return ids[:, -count:].cpu().numpy(), torch.cat(logs, 1).cpu().numpy()

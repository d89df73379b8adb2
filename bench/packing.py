"""Packing a train step: Recollect beside a plain NumPy loop over rollouts that does the same.

Both begin with a batch as a buffer returned it, divide 512 rollouts over 8 ranks, the longest
first, and make token ids, positions, masks, logprobs, advantages and boundaries of every pack.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ROLLOUTS, GROUP, RANKS, MEDIAN, MOST = 512, 8, 8, 1500, 8192
PROMPT = 64
MOST_SECONDS = 0.015


@dataclass
class Packing:
    """Seconds of a step, one entry per round, and how the ranks came out."""

    ours: list[float] = field(default_factory=list)
    loop: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    tokens: int = 0
    imbalance: float = 0.0
    efficiency: float = 0.0


def measure(rounds: int, say: Callable[[str], None]) -> Packing:
    """Time both in turn, on the same batch."""
    from recollect import training

    say(f"packing: {ROLLOUTS} rollouts to {RANKS} ranks, {rounds} rounds")
    batch = _batch()
    selection = training.select(batch)
    values = training.advantages(selection).values
    found = Packing()
    packed = training.pack(selection, MOST, ranks=RANKS, advantages=values)
    plain = _loop(selection, values)
    _check(packed, plain)
    for _ in range(rounds):
        began = time.perf_counter()
        training.advantages(training.select(batch))
        found.advantages.append(time.perf_counter() - began)
        began = time.perf_counter()
        packed = training.pack(training.select(batch), MOST, ranks=RANKS, advantages=values)
        found.ours.append(time.perf_counter() - began)
        began = time.perf_counter()
        plain = _loop(selection, values)
        found.loop.append(time.perf_counter() - began)
    found.tokens, found.imbalance = packed.tokens, packed.imbalance
    found.efficiency = packed.metrics()["train/packing_efficiency"]
    return found


def _batch() -> Any:
    """Groups whose responses have lognormal lengths, through a buffer."""
    import recollect as rc

    random = np.random.default_rng(0)
    lengths = np.exp(random.normal(math.log(MEDIAN), 0.7, ROLLOUTS)).astype(int)
    buffer = rc.RolloutBuffer().sync
    for part in np.minimum(lengths, MOST - PROMPT).reshape(-1, GROUP).tolist():
        prompt = random.integers(0, 32_000, PROMPT)
        rollouts = [
            rc.Rollout(
                prompt,
                random.integers(0, 32_000, length),
                logprobs=random.normal(-1, 1, length).astype(np.float32),
                reward=float(random.integers(0, 2)),
                finish_reason="stop",
            )
            for length in part
        ]
        buffer.put(rc.Group(rollouts, task="math"), version=0)
    return buffer.take(ROLLOUTS // GROUP).batch


def _loop(selection: Any, values: np.ndarray[Any, Any]) -> list[list[dict[str, Any]]]:
    """The same packs, by a loop over rollouts."""
    batch, rows = selection.batch, selection.rows
    columns = [
        batch[name].to_list() for name in ("prompt_ids", "response_ids", "loss_mask", "logprobs")
    ]
    prompts, responses, masks, logprobs = columns
    sizes = [len(prompts[row]) + len(responses[row]) for row in range(rows)]
    loads = [0] * RANKS
    shares: list[list[int]] = [[] for _ in range(RANKS)]
    for row in sorted(range(rows), key=lambda row: -sizes[row]):
        rank = loads.index(min(loads))
        loads[rank] += sizes[row]
        shares[rank].append(row)
    ranks = []
    for share in shares:
        bins: list[tuple[list[int], int]] = []
        for row in share:
            for place, (members, used) in enumerate(bins):
                if used + sizes[row] <= MOST:
                    members.append(row)
                    bins[place] = (members, used + sizes[row])
                    break
            else:
                bins.append(([row], sizes[row]))
        packs = []
        for members, _ in bins:
            ids, positions, mask, logs, worth = [], [], [], [], []
            for row in members:
                empty, n = len(prompts[row]), len(responses[row])
                ids += [prompts[row], responses[row]]
                positions.append(np.arange(empty + n, dtype=np.int32))
                mask += [np.zeros(empty, np.int8), masks[row]]
                logs += [np.zeros(empty, np.float32), np.nan_to_num(logprobs[row])]
                worth += [np.zeros(empty, np.float32), np.full(n, values[row], np.float32)]
            packs.append(
                {
                    "input_ids": np.concatenate(ids),
                    "position_ids": np.concatenate(positions),
                    "loss_mask": np.concatenate(mask),
                    "logprobs": np.concatenate(logs),
                    "advantages": np.concatenate(worth),
                    "cu_seqlens": np.cumsum([0, *(sizes[row] for row in members)], dtype=np.int32),
                }
            )
        ranks.append(packs)
    return ranks


def _check(packed: Any, plain: list[list[dict[str, Any]]]) -> None:
    """What is compared must be the same."""
    for ours, theirs in zip(packed.ranks, plain, strict=True):
        for one, other in zip([p for p in ours if not p.is_filler], theirs, strict=True):
            for name, array in other.items():
                np.testing.assert_array_equal(getattr(one, name), array)

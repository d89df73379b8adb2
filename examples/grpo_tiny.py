"""GRPO on a tiny transformer: it learns to add, from nothing but rewards.

    python examples/grpo_tiny.py [--mode queue|uniform|half-life] [--seed 0] [--short]

A generator answers prompts such as `7+5=` in groups, with weights that lag behind; an answer is
two digits, and its reward the share of them that is right. The trainer learns from groups that are
prepared, packed and confirmed step by step. In which mode groups come, once or replayed, is one
entry of a configuration. With a GPU: `--device cuda --width 512 --base 32`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import recollect as rc
from recollect import training

matplotlib.use("Agg")  # a file, not a window
from matplotlib import pyplot as plt

ANSWER = 2  # digits
MODES: dict[str, Any] = {
    "queue": "Queue",
    "uniform": {"type": "Replay", "max_uses": 2, "sampler": "Uniform", "fresh_share": 0.5},
    "half-life": {
        "type": "Replay",
        "max_uses": 2,
        "sampler": {"type": "Prioritized", "half_life": 4},
        "fresh_share": 0.5,
    },
}

FULL = {
    "tokens": 320_000, "width": 128, "layers": 5, "base": 10, "groups": 32, "each": 16,
    "rate": 3e-4, "entropy": 0.05,
}  # fmt: skip
SHORT = {
    "tokens": 24_000, "width": 64, "layers": 2, "base": 4, "groups": 16, "each": 8, "rate": 1e-3,
    "entropy": 0.02,
}  # fmt: skip


class Model(nn.Module):
    """A decoder over characters: the digits of a base, + and =."""

    def __init__(self, base: int, width: int, layers: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(base + 2, width)
        self.places = nn.Embedding(16, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, base + 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of the next character at each place."""
        n = ids.shape[1]
        ahead = torch.triu(torch.ones(n, n, dtype=torch.bool, device=ids.device), 1)
        x = self.letters(ids) + self.places(torch.arange(n, device=ids.device))
        return F.log_softmax(self.out(self.layers(x, mask=ahead, is_causal=True)), -1)


class Generator:
    """Answers prompts with the weights that it was sent last."""

    def __init__(self, model: Model, base: int, seed: int, device: str) -> None:
        self.model, self.base, self.version, self.device = deepcopy(model), base, 0, device
        self.random = torch.Generator(device).manual_seed(seed)
        self.tokens = 0

    @torch.no_grad()
    def answer(self, problems: list[tuple[int, int]], each: int) -> list[rc.Group]:
        """A group of answers to each problem."""
        prompts = [self.prompt(a, b) for a, b in problems]
        ids = torch.tensor(prompts, device=self.device).repeat_interleave(each, 0)
        logs = []
        for _ in range(ANSWER):
            log = self.model(ids)[:, -1]
            chosen = torch.multinomial(log.exp(), 1, generator=self.random)
            logs.append(log.gather(1, chosen))
            ids = torch.cat([ids, chosen], 1)
        answers, logprobs = ids[:, -ANSWER:].cpu().numpy(), torch.cat(logs, 1).cpu().numpy()
        self.tokens += answers.size
        return [
            rc.Group(
                [
                    rc.Rollout(
                        response_ids=answers[row],
                        logprobs=logprobs[row],
                        reward=reward(answers[row], a, b, self.base),
                        finish_reason="stop",
                    )
                    for row in range(n * each, (n + 1) * each)
                ],
                task="add",
                prompt_ids=prompts[n],
            )
            for n, (a, b) in enumerate(problems)
        ]

    def prompt(self, a: int, b: int) -> list[int]:
        return [a, self.base, b, self.base + 1]

    @torch.no_grad()
    def right(self) -> float:
        """The share of all problems that it solves, taking the likeliest digits."""
        problems = [(a, b) for a in range(self.base) for b in range(self.base)]
        ids = torch.tensor([self.prompt(a, b) for a, b in problems], device=self.device)
        for _ in range(ANSWER):
            ids = torch.cat([ids, self.model(ids)[:, -1:].argmax(-1)], 1)
        answers = ids[:, -ANSWER:].cpu().numpy()
        rewards = [reward(x, a, b, self.base) for x, (a, b) in zip(answers, problems, strict=True)]
        return float(np.mean(np.array(rewards) == 1))


def reward(answer: np.ndarray, a: int, b: int, base: int) -> float:
    """The share of right digits."""
    return float(np.mean(answer == np.array(divmod(a + b, base))))


async def produce(
    preparation: training.DataPreparation, generator: Generator, options: argparse.Namespace
) -> None:
    """Generate whenever there is room, whatever the trainer does meanwhile."""
    rng = np.random.default_rng(options.seed)
    while True:
        await preparation.buffer.reserve_all(options.groups, "add")
        version = generator.version
        problems = [(int(a), int(b)) for a, b in rng.integers(0, options.base, (options.groups, 2))]
        for group in generator.answer(problems, options.each):
            await preparation.put(group, version=version)


def learn(
    model: Model, optimizer: Any, batch: training.RankBatch, entropy: float, device: str
) -> list[float]:
    """One step of clipped policy gradients; returns a priority for each rollout."""
    optimizer.zero_grad()
    priorities: list[float] = []
    for pack in batch.packs:

        def rows(values: Any, pack: training.Pack = pack) -> torch.Tensor:
            return torch.as_tensor(rc.Ragged(values, pack.cu_seqlens).pad(0), device=device)

        ids, mask = rows(pack.input_ids).long(), rows(pack.loss_mask)[:, 1:]
        old, worth = rows(pack.logprobs)[:, 1:], rows(pack.advantages)[:, 1:]
        logs = model(ids)[:, :-1]
        new = logs.gather(2, ids[:, 1:, None])[..., 0]
        ratio = torch.exp(new - old)
        gain = torch.minimum(ratio * worth, ratio.clamp(0.8, 1.2) * worth)
        gain = gain - entropy * (logs.exp() * logs).sum(-1)  # keeps it from settling too early
        weights = torch.as_tensor(pack.weights, device=device, dtype=gain.dtype)[:, None]
        (-(gain * mask * weights).sum() / batch.trainable_tokens).backward()
        priorities += worth.abs().amax(1).tolist()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return priorities


async def train(options: argparse.Namespace) -> list[dict[str, float]]:
    """Train until so many tokens were generated; returns points of the learning curve."""
    torch.manual_seed(options.seed)
    model = Model(options.base, options.width, options.layers).to(options.device)
    generator = Generator(model, options.base, options.seed, options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, weight_decay=0.0)
    config = {
        "source": {
            "capacity": 4 * options.groups,
            "seed": options.seed,
            "staleness": {"max_staleness": 3, "sync_interval": 2, "on_expire": "discard"},
        },
        "batch": {"add": options.groups},
        "ranks": 1,
        "mode": MODES[options.mode],
        "pack": 8192,
        "prefetch": 0,
    }
    preparation = training.DataPreparation.from_config(config)
    producer = asyncio.create_task(produce(preparation, generator, options))
    points, began, step = [], time.monotonic(), 0
    while generator.tokens < options.tokens:
        step += 1
        batch = await preparation.get(0, step)
        priorities = learn(model, optimizer, batch, options.entropy, options.device)
        await preparation.report(0, step, batch.rollout_ids, priorities)
        await preparation.confirm(0, step)
        if step % 2 == 0:  # new weights for the generator
            generator.model.load_state_dict(model.state_dict())
            generator.version = step
        if step % 10 == 0 or step == 1:
            points.append(
                {
                    "step": step,
                    "tokens": generator.tokens,
                    "seconds": time.monotonic() - began,
                    "right": generator.right(),
                    **{n: batch.metrics.get(f"train/{n}", 0.0) for n in NUMBERS},
                }
            )
            print("  ".join(f"{name} {value:.3g}" for name, value in points[-1].items()))
    producer.cancel()
    with suppress(asyncio.CancelledError):
        await producer
    await preparation.close()
    return points


NUMBERS = ("reward_mean", "lag_mean", "replayed_share")


def draw(points: list[dict[str, float]], path: Path, title: str) -> None:
    """Solved problems against generated tokens, and against time."""
    figure, both = plt.subplots(1, 2, figsize=(7.2, 3), layout="constrained", sharey=True)
    for axes, name in zip(both, ("tokens", "seconds"), strict=True):
        axes.plot([p[name] for p in points], [p["right"] for p in points], color="#1f6feb")
        axes.set(xlabel=name, ylim=(0, 1.02))
        axes.spines[["top", "right"]].set_visible(False)
    both[0].set_ylabel("problems solved")
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, facecolor="white")
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--mode", choices=MODES, default="queue")
    parser.add_argument("--short", action="store_true", help="a smaller model and task: seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokens", type=int, help="to generate (320,000)")
    parser.add_argument("--width", type=int, help="of the model (128: about a million parameters)")
    parser.add_argument("--layers", type=int, help="of the model (5)")
    parser.add_argument("--base", type=int, help="of the numbers to add, one digit each (10)")
    parser.add_argument("--groups", type=int, help="in a train step (32)")
    parser.add_argument("--each", type=int, help="answers in a group (16)")
    parser.add_argument("--rate", type=float, help="learning rate (0.0003)")
    parser.add_argument("--entropy", type=float, help="weight of its bonus (0.05)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--plot", type=Path, default=Path("grpo_tiny.svg"))
    parser.add_argument("--numbers", type=Path, help="a JSON file for the points of the curve")
    chosen = parser.parse_args()
    for name, value in (SHORT if chosen.short else FULL).items():
        if getattr(chosen, name) is None:
            setattr(chosen, name, value)
    torch.set_num_threads(1 if chosen.short else 2)
    found = asyncio.run(train(chosen))
    print(f"solves {found[-1]['right']:.0%} of the problems after {found[-1]['seconds']:.0f} s")
    draw(found, chosen.plot, f"GRPO, {chosen.mode}, seed {chosen.seed}")
    if chosen.numbers is not None:
        chosen.numbers.write_text(json.dumps(found) + "\n", "utf-8")

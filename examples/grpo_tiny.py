"""GRPO on a tiny transformer that learns to add from scratch: rewards are all that teaches it.

    python examples/grpo_tiny.py                         replay on: minutes on 2 cores
    python examples/grpo_tiny.py --mode queue            replay off
    python examples/grpo_tiny.py --compare --seeds 3     on-policy and two kinds of replay,
                                                         at equal generated tokens
    python examples/grpo_tiny.py --device cuda --compare --seeds 3 --parallel 9

A model of random weights sees characters, `7+5=`, and writes digits, units first; a response is
worth the share of its digits that are right. Producers generate groups of responses while the
trainer trains, with weights that are some steps old. Whether a group trains once or again, and
which, is one entry of a configuration. On a GPU model and numbers are larger: two digits each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import platform
import shlex
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import reward_curves
import torch
from tiny_transformer import Addition, Model
from torch import nn

import recollect as rc
from recollect import training

MODES = ("on-policy", "queue", "uniform", "prioritized")
COMPARED = ("on-policy", "uniform", "prioritized")
POINTS = 60  # of a learning curve


@dataclass(frozen=True)
class Settings:
    """What is learned by what, and how. The defaults are for two cores."""

    mode: str = "prioritized"
    seed: int = 0
    device: str = "cpu"
    tokens: int = 150_000  # to generate; a run ends then
    seconds: float = 280.0  # or then
    digits: int = 1  # of the numbers to add
    base: int = 10  # of their digits
    width: int = 128  # of the model: with 5 layers, about a million parameters
    layers: int = 5
    groups: int = 16  # in a train step
    each: int = 16  # responses in a group
    rate: float = 1e-3
    entropy: float = 0.3  # the weight of its bonus at first; it falls to 0 with the last token
    fresh: float = 0.5  # share of a step that has never trained, with replay
    uses: int = 8  # of a group at most, with replay
    memory: int = 8  # steps' worth of groups that replay draws from
    half_life: float = 8.0  # versions, of prioritized replay
    max_lag: int = 32  # versions; older groups are discarded
    sync: int = 2  # train steps between two times that producers get new weights
    producers: int = 2
    in_turn: bool = False  # generate and train in turns: slower, and the same every time

    @property
    def on_policy(self) -> bool:
        return self.mode == "on-policy"

    @property
    def replays(self) -> bool:
        return self.mode in ("uniform", "prioritized")

    @property
    def fresh_groups(self) -> int:
        """Groups of a step that have never trained."""
        return round(self.fresh * self.groups) if self.replays else self.groups


SHORT = {
    "tokens": 24_000, "base": 4, "width": 64, "layers": 2, "groups": 16, "each": 8, "rate": 1e-3,
    "entropy": 0.4,
}  # fmt: skip
CUDA = {
    "tokens": 1_500_000, "seconds": 480.0, "digits": 2, "width": 512, "layers": 6, "groups": 64,
    "rate": 1e-4,
}  # fmt: skip


def configuration(settings: Settings) -> dict[str, Any]:
    """Of the preparation and its buffer: modes differ in `mode`, and in what may be how old."""
    replay: dict[str, Any] = {
        "type": "Replay",
        "max_uses": settings.uses,
        "fresh_share": settings.fresh,
    }
    # beta 0: what has a spread and is recent is to train more, so no weight takes that back
    recent = {"type": "Prioritized", "alpha": 1.0, "beta": 0.0, "half_life": settings.half_life}
    return {
        "source": {
            "capacity": settings.memory * settings.groups,
            "overflow": "drop_stalest",
            "staleness": {
                "max_staleness": 0 if settings.on_policy else settings.max_lag,
                "on_expire": "discard",
            },
            "seed": settings.seed,
        },
        "batch": {"add": settings.groups},
        "ranks": 1,
        "mode": {
            "on-policy": "Queue",
            "queue": "Queue",
            "uniform": {**replay, "sampler": "Uniform"},
            "prioritized": {**replay, "sampler": recent},
        }[settings.mode],
        "pack": 1 << 14,
        "prefetch": 0,
    }


# -- producers --------------------------------------------------------------------------------
class Ahead:
    """How many groups producers may generate before the trainer has trained others."""

    def __init__(self, groups: int) -> None:
        self._groups, self._some = groups, asyncio.Event()
        self._some.set()

    async def take(self, most: int) -> int:
        """Wait for the first, and take up to so many."""
        while self._groups <= 0:  # another may have been quicker
            await self._some.wait()
        taken = min(most, self._groups)
        self.allow(-taken)
        return taken

    def allow(self, groups: int) -> None:
        self._groups += groups
        if self._groups > 0:
            self._some.set()
        else:
            self._some.clear()


class Producer:
    """Generates groups with the weights that were sent last, whatever the trainer does."""

    def __init__(self, number: int, settings: Settings, task: Addition) -> None:
        self.settings, self.task = settings, task
        seed = 1000 * settings.seed + number
        self.problems = np.random.default_rng(seed)
        self.letters = torch.Generator(settings.device).manual_seed(seed)

    def generate(self, model: Model, groups: int) -> list[rc.Group]:
        """A group of responses to each of some problems."""
        task, each = self.task, self.settings.each
        a, b = self.problems.integers(0, task.numbers, (2, groups))
        prompts = task.prompts(a, b)
        many_a, many_b = a.repeat(each), b.repeat(each)
        answers, logprobs = model.write(prompts.repeat(each, 0), task.answer, self._draw)
        rewards = task.rewards(answers, many_a, many_b)
        rollouts = [
            rc.Rollout(response_ids=ids, logprobs=log, reward=reward, finish_reason="stop")
            for ids, log, reward in zip(answers, logprobs, rewards.tolist(), strict=True)
        ]
        return [
            rc.Group(rollouts[n * each : (n + 1) * each], task="add", prompt_ids=prompts[n])
            for n in range(groups)
        ]

    def _draw(self, log: torch.Tensor) -> torch.Tensor:
        return torch.multinomial(log.exp(), 1, generator=self.letters)

    async def run(self, trainer: Trainer) -> None:
        most = max(1, self.settings.fresh_groups // self.settings.producers)
        while True:
            count = await trainer.ahead.take(most)
            model, version = trainer.sent
            for group in await trainer.call(self.generate, model, count):
                await trainer.preparation.put(group, version=version)


# -- the trainer ------------------------------------------------------------------------------
class Trainer:
    """One run: a model, what prepares its train steps, and producers beside it."""

    def __init__(self, settings: Settings) -> None:
        torch.manual_seed(settings.seed)
        self.settings = settings
        self.task = Addition(settings.digits, settings.base)
        self.model = Model(self.task, settings.width, settings.layers).to(settings.device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=settings.rate, weight_decay=0.0, fused=True
        )
        self.warming = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.05, total_iters=20)
        self.preparation = training.DataPreparation.from_config(configuration(settings))
        # A first step is all fresh; from then on producers are one step ahead, or none.
        spare = 0 if settings.on_policy else settings.fresh_groups
        self.ahead = Ahead(settings.groups + spare)
        self.sent: tuple[Model, int] = (deepcopy(self.model), 0)
        self.bonus = settings.entropy
        examined = np.random.default_rng(0).permutation(self.task.numbers**2)[:1000]
        self.examined = np.divmod(examined, self.task.numbers)

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """In a thread, so that generating and training overlap."""
        if self.settings.in_turn:
            return function(*arguments)
        return await asyncio.to_thread(function, *arguments)

    async def run(self, report: Callable[[dict[str, Any]], None]) -> None:
        """Train until so many tokens were generated."""
        makers = [Producer(n, self.settings, self.task) for n in range(self.settings.producers)]
        async with asyncio.TaskGroup() as tasks:  # where one fails, all end
            producers = [tasks.create_task(maker.run(self)) for maker in makers]
            await self._train(report)
            for producer in producers:
                producer.cancel()
        await self.preparation.close()

    async def _train(self, report: Callable[[dict[str, Any]], None]) -> None:
        settings, preparation = self.settings, self.preparation
        began, seconds, step, tokens, reported = time.monotonic(), 0.0, 0, 0, -1
        rewards, responses = 0.0, 0  # of what was generated since the last point
        while tokens < settings.tokens and seconds < settings.seconds:
            step += 1
            batch = await preparation.get(0, step)
            priorities = await self.call(self.learn, batch)
            if settings.on_policy or step % settings.sync == 0:
                self.sent = (deepcopy(self.model), step)
            await preparation.report(0, step, batch.rollout_ids, priorities)
            await preparation.confirm(0, step)
            metrics = batch.metrics
            fresh = metrics["train/groups"] - metrics["train/groups_replayed"]
            self.ahead.allow(int(fresh) if step > 1 else settings.fresh_groups)
            responses += int(metrics["gen/responses"])
            rewards += metrics["gen/responses"] * metrics.get("gen/reward_mean", 0.0)
            tokens += int(metrics["gen/tokens"])
            self.bonus = settings.entropy * max(0.0, 1 - tokens / settings.tokens)
            seconds = time.monotonic() - began
            if tokens * POINTS // settings.tokens > reported:
                reported = tokens * POINTS // settings.tokens
                report(
                    {
                        "mode": settings.mode,
                        "seed": settings.seed,
                        "step": step,
                        "tokens": tokens,
                        "seconds": seconds,
                        "reward": rewards / responses,
                        "right": await self.call(self.examine),
                        "lag": float(metrics["train/lag_mean"]),
                        "uses": float(metrics["train/uses_mean"]),
                        "replayed": float(metrics["train/replayed_share"]),
                    }
                )
                rewards, responses = 0.0, 0

    def learn(self, batch: training.RankBatch) -> list[float]:
        """One step of clipped policy gradients; returns a priority for each rollout."""
        device, priorities = self.settings.device, []
        self.optimizer.zero_grad()
        for pack in batch.packs:

            def rows(values: Any, pack: training.Pack = pack) -> torch.Tensor:
                return torch.as_tensor(rc.Ragged(values, pack.cu_seqlens).pad(0)).to(device)

            ids, mask = rows(pack.input_ids).long(), rows(pack.loss_mask)[:, 1:]
            old, worth = rows(pack.logprobs)[:, 1:], rows(pack.advantages)[:, 1:]
            logs = self.model(ids)[:, :-1]
            new = logs.gather(2, ids[:, 1:, None])[..., 0]
            ratio = torch.exp(new - old)
            gain = torch.minimum(ratio * worth, ratio.clamp(0.8, 1.2) * worth)
            gain = gain - self.bonus * (logs.exp() * logs).sum(-1)
            weights = torch.as_tensor(pack.weights, dtype=gain.dtype, device=device)[:, None]
            (-(gain * mask * weights).sum() / batch.trainable_tokens).backward()
            priorities += np.abs(pack.advantages[pack.cu_seqlens[1:] - 1]).tolist()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.warming.step()
        return priorities

    def examine(self) -> float:
        """The share of problems that it solves, up to 1000 of them, with the likeliest digits."""
        a, b = self.examined
        answers, _ = self.model.write(
            self.task.prompts(a, b), self.task.answer, lambda log: log.argmax(-1, keepdim=True)
        )
        return float((self.task.rewards(answers, a, b) == 1).mean())


# -- runs -------------------------------------------------------------------------------------
def run(settings: Settings, points: Path) -> None:
    """One run, in this process."""
    torch.set_num_threads(1)  # one trains, the others generate

    def report(point: dict[str, Any]) -> None:
        reward_curves.append(points, point)
        numbers = [f"{n} {v:.3g}" for n, v in point.items() if n not in ("mode", "seed", "tokens")]
        print(f"{point['mode']} {point['seed']}: {point['tokens']:,} tokens ", *numbers, flush=True)

    asyncio.run(Trainer(settings).run(report))


def run_all(runs: list[Settings], points: Path, parallel: int) -> None:
    """Some runs at a time, each in a process of its own where several go side by side."""
    if parallel == 1:
        for settings in runs:
            run(settings, points)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(parallel, mp_context=context) as pool:
        for done in [pool.submit(run, settings, points) for settings in runs]:
            done.result()


def machine(device: str) -> str:
    """What a run ran on."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()}, {torch.get_num_threads()} threads"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--mode", choices=MODES, help="(prioritized)")
    parser.add_argument("--compare", action="store_true", help=f"run {', '.join(COMPARED)}")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each mode (1)")
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time (1)")
    parser.add_argument("--short", action="store_true", help="a smaller model and task: seconds")
    parser.add_argument("--out", type=Path, default=Path("grpo_tiny"), help="a folder for results")
    for option in fields(Settings):
        name = f"--{option.name.replace('_', '-')}"
        if option.name == "in_turn":
            parser.add_argument(name, action="store_true", default=None)
        elif option.name != "mode":
            kind = type(option.default)
            parser.add_argument(name, type=kind, help=f"({option.default})")
    given = vars(parser.parse_args())
    sizes = SHORT if given["short"] else CUDA if (given["device"] or "").startswith("cuda") else {}
    chosen = {f.name: given[f.name] for f in fields(Settings) if given[f.name] is not None}
    settings = replace(Settings(), **{**sizes, **chosen})
    modes = COMPARED if given["compare"] else (settings.mode,)
    runs = [
        replace(settings, mode=mode, seed=settings.seed + n)
        for n in range(given["seeds"])
        for mode in modes
    ]
    out: Path = given["out"]
    out.mkdir(parents=True, exist_ok=True)
    points = out / "points.csv"
    reward_curves.begin(points)
    about: dict[str, Any] = {
        "command": shlex.join(["python", "examples/grpo_tiny.py", *sys.argv[1:]]),
        "machine": machine(settings.device),
        "settings": asdict(settings),
    }
    model = Model(Addition(settings.digits, settings.base), settings.width, settings.layers)
    about["parameters"] = sum(each.numel() for each in model.parameters())
    (out / "settings.json").write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    run_all(runs, points, given["parallel"])
    found = reward_curves.read(points)
    print(reward_curves.table(found))
    reward_curves.draw(found, out / "curves.svg", f"GRPO, {about['parameters']:,} parameters")
    print(f"points, settings and curves are in {out}")


if __name__ == "__main__":
    main()

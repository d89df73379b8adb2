"""Minari datasets: all their episodes, each with its final observation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from recollect.base.arguments import flag
from recollect.base.optional import optional
from recollect.errors import InvalidValue, SchemaError, shown
from recollect.replay.buffer import ReplayBuffer
from recollect.replay.step_files import progress_bar, taken_rows


def load_minari(
    dataset: Any, *, download: bool = False, progress: bool | None = None, **options: Any
) -> ReplayBuffer:
    """Make a buffer of a Minari dataset: all its episodes, each with its final observation.

    The columns are `obs`, `action` and `reward` (as float32, as `rc.Recorder` has it); dicts and
    tuples become nested columns. An episode that is marked neither terminated nor truncated counts
    as truncated at its last step.

    Args:
        dataset: A `minari.MinariDataset`, the id of one, or the path of its folder.
        download: Whether a dataset that is not on this machine is fetched.
        progress: Whether to show a progress bar; None does so on a terminal.
        options: Those of `ReplayBuffer`; capacity is what the dataset needs, unless it is said.

    For example `rc.load_minari("D4RL/door/human-v2", download=True, seed=0)`.
    """
    found = _dataset(dataset, flag("download", download))
    episodes, steps = int(found.total_episodes), int(found.total_steps)
    num_envs = options.get("num_envs", 1)
    if options.get("reward_at", "this") != "this":
        raise InvalidValue("reward_at: a Minari dataset has a step's reward with it, so 'this'")
    if num_envs != 1:
        raise InvalidValue(
            "num_envs: the episodes of a dataset follow each other in one environment; leave it out"
        )
    options.setdefault("capacity", max(1, steps + episodes))
    buffer = ReplayBuffer(**options)
    with progress_bar(episodes, "episodes read", progress) as bar:
        for episode in found.iterate_episodes():
            _add_episode(buffer, episode)
            bar.update()
    return buffer


def _dataset(dataset: Any, download: bool) -> Any:
    minari = optional("minari")
    if isinstance(dataset, minari.MinariDataset):
        return dataset
    if not isinstance(dataset, str | os.PathLike):
        raise InvalidValue(
            f"dataset: expected a MinariDataset, its id or its folder, got {shown(dataset)}"
        )
    path = os.fspath(dataset)
    if os.path.isdir(path):
        inner = os.path.join(path, "data")
        try:
            return minari.MinariDataset(inner if os.path.isdir(inner) else path)
        except (OSError, ValueError, KeyError) as error:
            raise InvalidValue(f"dataset: {path!r} is no Minari dataset ({error})") from error
    if isinstance(dataset, os.PathLike):
        raise InvalidValue(f"dataset: there is no folder {path!r}")
    try:
        return minari.load_dataset(dataset, download=download)
    except (FileNotFoundError, ValueError) as error:
        raise InvalidValue(
            f"dataset: there is no dataset {dataset!r} on this machine; check the id, or use "
            f"download=True ({error})"
        ) from error


def _add_episode(buffer: ReplayBuffer, episode: Any) -> None:
    rewards = np.asarray(episode.rewards)
    count = len(rewards)
    if not count:
        return
    obs = _arrays("observations", episode.observations, count + 1)
    terminated = np.asarray(episode.terminations, np.bool_)
    truncated = np.array(episode.truncations, np.bool_)
    ends = np.flatnonzero(terminated | truncated)
    if ends.size and ends[0] != count - 1:
        raise InvalidValue(
            f"dataset: episode {episode.id} has {count} steps and is marked as over at step "
            f"{ends[0]}; repair or filter it"
        )
    truncated[-1] |= not ends.size
    known = buffer.columns.get("reward")
    buffer.extend(
        env_ids=0,
        obs=taken_rows(obs, np.arange(count)),
        action=_arrays("actions", episode.actions, count),
        reward=rewards.astype(np.float32 if known is None else known.element),
        first=np.arange(count) == 0,
        terminated=terminated,
        truncated=truncated,
        final_obs=taken_rows(obs, np.arange(1, count + 1)),
    )


def _arrays(name: str, value: Any, count: int) -> Any:
    """Nested dicts of arrays `[count, ...]`; tuples become dicts by place."""
    if isinstance(value, Mapping):
        return {key: _arrays(name, inner, count) for key, inner in value.items()}
    if isinstance(value, tuple):
        return {str(place): _arrays(name, inner, count) for place, inner in enumerate(value)}
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" or len(array) != count:
        raise SchemaError(
            f"dataset: its {name} are {array.dtype} of shape {list(array.shape)}, and a buffer "
            f"needs numbers of one shape, {count} here"
        )
    return array

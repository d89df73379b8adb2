"""Prompts in a checkpoint: as the id under which their source finds them, else whole, as JSON."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from recollect.production.prompts.base import Indexed, Prompts, prompt_of
from recollect.rollouts.group import Group
from recollect.rollouts.rollout import Rollout, Status

Saved = dict[str, Any]


def reference(group_id: str, attempt: int) -> Saved:
    """A prompt that its source finds by its id."""
    return {"id": group_id, "attempt": attempt}


def to_saved(group: Group) -> Saved:
    """A prompt as a whole; what was generated is left out."""
    prompt = prompt_of(group)
    shared = prompt.prompt_ids
    return {
        "id": prompt.group_id,
        "prompt_ids": shared.tolist(),
        "prompt": prompt.prompt,
        "ground_truth": prompt.ground_truth,
        "extras": prompt.extras,
        "blobs": _blobs_to(prompt.blobs),
        "rollouts": [
            {
                "id": rollout.rollout_id,
                "attempt": rollout.attempt,
                "prompt_ids": None if own is None or np.array_equal(own, shared) else own.tolist(),
                "extras": rollout.extras,
                "blobs": _blobs_to(rollout.blobs),
            }
            for rollout in prompt
            for own in [rollout.prompt_ids]
        ],
    }


def from_saved(saved: Mapping[str, Any], prompts: Prompts, task: str) -> Group | None:
    """The prompt that was saved; None where its source does not find it any more."""
    if "rollouts" in saved:
        return _whole(saved, task)
    group = prompts.find(saved["id"]) if isinstance(prompts, Indexed) else None
    if group is not None:
        group.task = task
        for rollout in group:
            rollout.task, rollout.attempt = task, saved["attempt"]
    return group


def _whole(saved: Mapping[str, Any], task: str) -> Group:
    rollouts = [
        Rollout(
            each["prompt_ids"],
            status=Status.INIT,
            rollout_id=each["id"],
            attempt=each["attempt"],
            extras=each["extras"],
            blobs=_blobs_from(each["blobs"]),
        )
        for each in saved["rollouts"]
    ]
    return Group(
        rollouts,
        task=task,
        group_id=saved["id"],
        prompt_ids=saved["prompt_ids"],
        prompt=saved["prompt"],
        ground_truth=saved["ground_truth"],
        extras=saved["extras"],
        blobs=_blobs_from(saved["blobs"]),
    )


def _blobs_to(blobs: Mapping[str, Any]) -> dict[str, list[str]]:
    return {name: [base64.b64encode(b).decode() for b in many] for name, many in blobs.items()}


def _blobs_from(blobs: Mapping[str, list[str]]) -> dict[str, list[bytes]]:
    return {name: [base64.b64decode(text) for text in many] for name, many in blobs.items()}

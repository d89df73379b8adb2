"""The life of a group, from its prompt to the ways in which it leaves.

Every arrow is tried on a buffer: what a box says of a group is what the buffer said of it then.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

import recollect as rc
from pictures.rings import COLORS, DIM, INK, save

WIDTH, HEIGHT = 2.0, 0.9
GONE = "#e6e8eb"


def draw_life_of_a_group(path: Path) -> None:
    told = walk()
    figure, axes = plt.subplots(figsize=(8.2, 4.6), layout="constrained")
    axes.axis("off")
    boxes = {
        "generating": (0.0, 2.6, COLORS["C"], "generators answer\nthe prompt"),
        "completed": (3.1, 2.6, COLORS["B"], f"{told['completed']}\nlacks a cell: not ready"),
        "ready": (6.2, 2.6, COLORS["A"], f"{told['ready']}\nready"),
        "leased": (9.3, 2.6, COLORS["A"], "leased\nhidden, still stored"),
        "retried": (3.1, 0.4, COLORS["B"], f"{told['retried']}\nstale rollouts cleared"),
        "left": (6.2, 0.4, GONE, "left: {},\n{}, {}, {}".format(*told["left"])),
        "trained": (9.3, 0.4, GONE, f"left: {told['trained']},\nor {told['archived']}"),
    }
    for x, y, color, text in boxes.values():
        axes.add_patch(
            FancyBboxPatch((x, y), WIDTH, HEIGHT, "round,pad=0.06", fc=color, ec="white")
        )
        axes.text(
            x + WIDTH / 2, y + HEIGHT / 2, text, ha="center", va="center", fontsize=8, color=INK
        )
    arrow(axes, (2.1, 3.05), (3.0, 3.05), "put", (2.55, 3.15))
    arrow(axes, (5.2, 3.05), (6.1, 3.05), "claim,\nannotate", (5.65, 3.15))
    arrow(axes, (8.3, 3.2), (9.2, 3.2), "take_batch\nwith a lease", (8.75, 3.3))
    arrow(axes, (9.2, 2.85), (8.3, 2.85), "give_back,\nor deadline", (8.75, 2.28))
    arrow(axes, (10.3, 2.5), (10.3, 1.4), "confirm", (10.78, 1.9))
    arrow(axes, (6.5, 2.5), (5.0, 1.4), "advance:\ntoo old, retry", (5.15, 1.9))
    arrow(axes, (4.1, 2.5), (4.1, 1.4), "", (0, 0))
    arrow(
        axes,
        (7.2, 2.5),
        (7.2, 1.4),
        "advance: discard,\nor max_retries;\noverflow; take",
        (7.95, 1.6),
    )
    arrow(axes, (3.0, 0.85), (1.0, 2.5), "take EXPIRED groups,\nanswer again", (1.05, 1.15))
    axes.text(
        0.0,
        4.0,
        "An arrow is a call. Without needs= a group that was put is ready at once.",
        fontsize=8.5,
        color=DIM,
        va="top",
    )
    axes.set(xlim=(-0.2, 11.6), ylim=(0.1, 4.1))
    save(figure, path)


def arrow(
    axes: plt.Axes,
    begin: tuple[float, float],
    end: tuple[float, float],
    text: str,
    where: tuple[float, float],
) -> None:
    axes.add_patch(
        FancyArrowPatch(begin, end, arrowstyle="-|>", mutation_scale=10, color=INK, lw=0.9)
    )
    axes.text(*where, text, ha="center", va="bottom", fontsize=7.5, color=INK)


def walk() -> dict[str, str | list[str]]:
    """Send groups along every arrow; what the buffers said of them."""
    told: dict[str, str | list[str]] = {}
    buffer = rc.RolloutBuffer(needs=("reward",), archive=True).sync
    key = buffer.put(answers(), version=0)
    told["completed"] = buffer.get([key])[0].status.value
    assert not buffer.is_ready({"math": 1})
    [group] = buffer.claim(1, lacks="reward")
    buffer.annotate([rollout.rollout_id for rollout in group], 0, reward=[1.0, 0.0])
    assert buffer.is_ready({"math": 1})
    told["ready"] = buffer.get([key])[0].status.value
    taken = buffer.take_batch({"math": 1}, lease=True)
    assert (len(buffer), buffer.count()) == (1, 0)
    buffer.give_back(taken.lease)
    events = buffer.events("confirmed")
    buffer.confirm(buffer.take_batch({"math": 1}, lease=True).lease)
    told["trained"] = next(events)[0].reason
    told["archived"] = buffer.get([key])[0].status.value
    told["left"] = []
    for rule, overflow in (
        (rc.Staleness(on_expire="discard"), "block"),
        (rc.Staleness(max_retries=0), "block"),
        (rc.Staleness(), "drop_stalest"),
    ):
        buffer = rc.RolloutBuffer(staleness=rule, capacity=1, overflow=overflow).sync
        events = buffer.events()
        buffer.put(answers(), version=0)
        if overflow == "block":
            buffer.advance(2)
        else:
            buffer.put(answers(), version=0)
        told["left"].append(next(events)[0].reason)
    events = buffer.events()
    buffer.take(1)
    told["left"].append(next(events)[0].reason)
    key = buffer.put(answers(), version=0)
    buffer.advance(2)
    told["retried"] = buffer.get([key])[0].status.value
    return told


def answers() -> rc.Group:
    rollouts = [rc.Rollout(response_ids=[3, 4], finish_reason="stop") for _ in range(2)]
    return rc.Group(rollouts, task="math", prompt_ids=[1, 2])

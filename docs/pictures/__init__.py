"""The pictures of the guides. `make docs` draws them, from buffers that it asks what they do."""

from __future__ import annotations

import json
from pathlib import Path

import learning_curve  # of examples/, which conf.py puts on the path

from pictures.goals import draw_goals
from pictures.life_of_a_group import draw_life_of_a_group
from pictures.next_rows import draw_next_rows
from pictures.partial_rollouts import draw_partial_rollouts
from pictures.replay_curves import draw_replay_curves
from pictures.rings import draw_ring
from pictures.sequences import draw_sequences
from pictures.simulator import draw_staleness, draw_waste
from pictures.turns import draw_turns

DOCS = Path(__file__).parents[1]


def draw_all(folder: Path) -> None:
    """Draw every picture as SVG."""
    folder.mkdir(exist_ok=True)
    draw_ring(folder / "ring.svg")
    draw_next_rows(folder / "next-rows.svg")
    draw_sequences(folder / "sequences.svg")
    draw_goals(folder / "goals.svg")
    draw_life_of_a_group(folder / "life-of-a-group.svg")
    draw_partial_rollouts(folder / "partial-rollouts.svg")
    draw_turns(folder / "turns.svg")
    draw_staleness(folder / "simulator-staleness.svg")
    draw_waste(folder / "simulator-waste.svg")
    by_tokens, by_time = folder / "replay-by-tokens.svg", folder / "replay-by-time.svg"
    draw_replay_curves(DOCS / "curves" / "grpo", by_tokens, by_time)
    for numbers in sorted((DOCS / "curves").glob("*.json")):
        curve = json.loads(numbers.read_text("utf-8"))
        learning_curve.draw(curve, folder / f"{numbers.stem}.svg")

"""`recollect reshard SRC DST --shards N`: a checkpoint for another number of ranks."""

from __future__ import annotations

import argparse
from typing import Any

from recollect.cli.display import add_examples, add_json, opening, print_json


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "reshard", help="write a checkpoint of M shards as one of N, for another number of ranks"
    )
    parser.add_argument("source", metavar="SRC", help="a checkpoint of shards, or a folder of them")
    parser.add_argument("destination", metavar="DST", help="the folder of checkpoints to write to")
    parser.add_argument("--shards", type=int, required=True, metavar="N", help="how many shards")
    parser.add_argument("--step", type=int, help="the checkpoint of this training step")
    parser.add_argument(
        "--incomplete",
        choices=("keep", "drop"),
        default="keep",
        help="episodes without their first or last step: keep them, marked as cut, or drop them",
    )
    parser.add_argument(
        "--allow-partial", action="store_true", help="also one that some ranks did not finish"
    )
    parser.add_argument("--num-envs", type=int, metavar="K", help="environments of a new rank")
    parser.add_argument(
        "--env-id-column",
        action="append",
        metavar="NAME",
        help="a column that names a row's environment; without it, those called env_id",
    )
    add_json(parser)
    add_examples(
        parser,
        "recollect reshard runs/checkpoints runs/for-5-ranks --shards 5",
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    from tqdm import tqdm

    from recollect.ranks.resharding import resharded

    hidden = True if given.json else None  # a bar on a terminal
    with opening("SRC", given.source):
        work = resharded(
            given.source,
            given.destination,
            given.shards,
            step=given.step,
            incomplete=given.incomplete,
            allow_partial=given.allow_partial,
            env_id_columns=given.env_id_column,
            num_envs=given.num_envs,
        )
        done = list(tqdm(work, total=given.shards, desc="reshard", unit="shard", disable=hidden))
    folder, incomplete = done[-1].written, done[-1].loaded.incomplete
    told: dict[str, Any] = {
        "path": str(folder),
        "step": done[-1].loaded.step,
        "saved": done[-1].loaded.saved,
        "shards": [dict(one.loaded.items) for one in done],
        "incomplete": {name: dict(counted) for name, counted in incomplete.items()},
        "dropped": done[-1].loaded.dropped,
    }
    if given.json:
        print_json(told)
        return 0
    print(f"{folder}: step {told['step']}, {told['saved']} shards are {given.shards} now")
    for rank, items in enumerate(told["shards"]):
        print(f"  shard {rank}: " + ", ".join(f"{n} in {name!r}" for name, n in items.items()))
    for name, counted in told["incomplete"].items():
        what = "dropped" if told["dropped"] else "kept, marked as cut"
        print(
            f"  {counted['episodes']} incomplete episodes of {name!r}, {counted['steps']} steps: "
            f"{what}"
        )
    return 0

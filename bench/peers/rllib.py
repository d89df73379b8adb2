"""RLlib: a deque of episodes as Python lists, and sequences assembled step by step."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.policy.sample_batch import SampleBatch
from ray.rllib.utils.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer
from ray.rllib.utils.replay_buffers.replay_buffer import ReplayBuffer

from bench.adapter import Call
from bench.data import Rows
from bench.episodes import make_steps, stretches
from bench.steps import Sequences
from bench.workloads.base import Operation, Workload
from bench.workloads.w5 import LENGTH, PRECUT

DISTRIBUTIONS = ("ray", "torch", "numpy")


class RLlib(Sequences):
    """`EpisodeReplayBuffer`, which takes a running episode piece by piece.

    Episodes go in as lists: as NumPy arrays, their sequences took 2.4 times as long.
    """

    def __init__(self, workload: Workload) -> None:
        self.ids = itertools.count()
        self.episode = next(self.ids)
        self.taken = 0  # steps of the running episode so far
        super().__init__(workload)
        self.buffer = EpisodeReplayBuffer(workload.rows, batch_length_T=LENGTH)
        self.precut: ReplayBuffer | None = None

    def note(self) -> str:
        """What a sequence of it is."""
        return (
            "RLlib: `EpisodeReplayBuffer`; its sequences go on with the start of another episode "
            "where one ends, and have no `next_obs`; the line of sequences cut when inserted is "
            "its older `ReplayBuffer`: one slot for each, no overlap, whatever ends inside"
        )

    def convert(self, steps: Rows) -> Any:
        """Pieces of episodes; a new episode has a new id."""
        ends = (np.flatnonzero(steps["done"]) + 1).tolist()
        bounds = sorted({0, *ends, len(steps["done"])})
        return [self._piece(steps, *pair) for pair in itertools.pairwise(bounds)]

    def insert(self, stretch: Any) -> object:
        """`add`; it returns nothing."""
        self.buffer.add(stretch)
        return None

    def draw(self, n: int) -> object:
        """A dict of arrays of shape [n, 64, ...]."""
        return self.buffer.sample(batch_size_B=n, batch_length_T=LENGTH)

    def other(self, operation: Operation) -> Call:
        """Draws of sequences that were cut ahead."""
        if operation.verb != PRECUT:
            return super().other(operation)
        if self.precut is None:
            self.precut = self._cut_ahead()
        buffer, n = self.precut, operation.size
        return Call(lambda: buffer.sample(n), n * LENGTH)

    def _piece(self, steps: Rows, start: int, stop: int) -> Any:
        over = bool(steps["done"][stop - 1])
        piece = SingleAgentEpisode(
            id_=str(self.episode),
            observations=[*steps["obs"][start:stop], steps["next_obs"][stop - 1]],
            actions=list(steps["action"][start:stop]),
            rewards=steps["reward"][start:stop].tolist(),
            terminated=over,
            t_started=self.taken,
            len_lookback_buffer=0,
        )
        self.taken += stop - start
        if over:
            self.episode, self.taken = next(self.ids), 0
        return piece

    def _cut_ahead(self) -> ReplayBuffer:
        buffer = ReplayBuffer(self.workload.rows, storage_unit="sequences")
        every = itertools.cycle(stretches(make_steps(self.workload.columns), LENGTH))
        for steps in itertools.islice(every, self.workload.rows // LENGTH):
            columns = {name: cells.copy() for name, cells in steps.items()}
            buffer.add(SampleBatch({**columns, "seq_lens": np.array([LENGTH])}))
        return buffer


ADAPTERS = {"sequences": RLlib}

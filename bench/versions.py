"""The one place where the versions of the peers are pinned.

Each peer is installed by a list of steps, one `pip install` each. torch comes first and alone,
pinned, so that nothing that depends on it can pull another build of it.
"""

from __future__ import annotations

from dataclasses import dataclass

TORCH = "torch==2.13.0"
NUMPY = "numpy==2.4.6"


@dataclass(frozen=True)
class Peer:
    """One library to compare with, and how to install it into an environment of its own."""

    name: str
    title: str
    python: str
    steps: tuple[tuple[str, ...], ...]
    distributions: tuple[str, ...]
    kinds: tuple[str, ...] = ()  # the kinds of workloads it takes part in; all where none is named


PEERS: tuple[Peer, ...] = (
    Peer(
        name="cpprb",
        title="cpprb",
        python="3.11",
        steps=(("cpprb==11.0.0", NUMPY),),
        distributions=("cpprb", "numpy"),
    ),
    Peer(
        name="tianshou",
        title="Tianshou",
        python="3.11",
        steps=((TORCH,), (TORCH, "tianshou==2.0.1", "numba==0.68.1", NUMPY)),
        distributions=("tianshou", "torch", "numba", "numpy"),
    ),
    Peer(
        name="torchrl",
        title="TorchRL",
        python="3.11",
        steps=((TORCH,), (TORCH, "torchrl==0.14.1", "tensordict==0.14.3", NUMPY)),
        distributions=("torchrl", "tensordict", "torch", "numpy"),
    ),
    Peer(
        name="sb3",
        title="SB3",
        python="3.11",
        steps=((TORCH,), (TORCH, "stable-baselines3==2.9.2", NUMPY)),
        distributions=("stable-baselines3", "torch", "numpy"),
    ),
    Peer(
        name="flashbax",
        title="flashbax",
        python="3.11",
        steps=(("flashbax==0.1.3", "jax==0.10.2", "jaxlib==0.10.2", NUMPY),),
        distributions=("flashbax", "jax", "jaxlib", "numpy"),
    ),
    Peer(
        name="reverb",
        title="Reverb",
        python="3.11",
        steps=(("dm-reverb[tensorflow]==0.14.0", "tensorflow==2.15.1", "setuptools<80"),),
        distributions=("dm-reverb", "tensorflow", "numpy"),
    ),
    Peer(
        name="rllib",
        title="RLlib",
        python="3.11",
        steps=((TORCH,), (TORCH, "ray[rllib]==2.60.0", NUMPY)),
        distributions=("ray", "torch", "numpy"),
        kinds=("sequences",),
    ),
    Peer(
        name="ray",
        title="Ray actor",
        python="3.11",
        steps=(("ray==2.60.0", NUMPY),),
        distributions=("ray", "numpy"),
        kinds=("rollouts",),
    ),
    Peer(
        name="transferqueue",
        title="TransferQueue",
        python="3.11",
        steps=((TORCH,), (TORCH, "TransferQueue==0.1.11", "ray==2.60.0")),
        distributions=("TransferQueue", "ray", "torch", "tensordict", "numpy"),
        kinds=("rollouts",),
    ),
    Peer(
        name="lists",
        title="XTuner's way, reconstructed",
        python="3.11",
        steps=((NUMPY,),),
        distributions=("numpy",),
        kinds=("rollout lists",),
    ),
)


def peer_named(name: str) -> Peer:
    """The peer of that name, or an error that lists those that exist."""
    for peer in PEERS:
        if peer.name == name:
            return peer
    known = ", ".join(peer.name for peer in PEERS)
    raise SystemExit(f"unknown peer {name!r}: expected one of {known}")

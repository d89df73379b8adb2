"""`pack`: rollouts divided over ranks, and each rank's put into packs of at most `max_tokens`.

Whole rollouts are divided first, so that ranks have nearly equal loads, and packed then: packing
first and dividing packs would leave ranks a pack apart. All tokens are written in one pass, rank
after rank and pack after pack, and a pack is a view of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.base.arguments import one_of, whole
from recollect.data.ragged import Ragged, offsets_of
from recollect.errors import InvalidValue
from recollect.kernels import load as kernels
from recollect.storage.buffers import BufferPool
from recollect.training.advantages import Advantages
from recollect.training.selection import ARRAYS, Floats, Ints, Rollouts, Selection, select

BALANCE = ("tokens", "flops")
TOO_LONG = ("error", "cut")
# Tokens of a rollout at which attention costs as much as everything else, in a model of width
# 4096: about 12 times the width.
QUADRATIC_AT = 49_152
KEPT = 64 << 20  # bytes of packs that are used again for the next step

_pool = BufferPool(KEPT)


@dataclass(frozen=True)
class Packing:
    """How a step is packed: the options of `pack`."""

    max_tokens: int = 8192
    balance: str = "tokens"
    too_long: str = "error"
    arrays: Sequence[str] = ()
    quadratic_at: int = QUADRATIC_AT

    def __post_init__(self) -> None:
        whole("max_tokens", self.max_tokens, 1)
        whole("quadratic_at", self.quadratic_at, 1)
        one_of("balance", self.balance, BALANCE)
        one_of("too_long", self.too_long, TOO_LONG)


@dataclass(frozen=True)
class Pack:
    """Rollouts one after another, without padding: what goes through a model at once.

    Attributes:
        input_ids: Prompt and response tokens, int32.
        position_ids: 0, 1, ... from the first token of each rollout, int32.
        cu_seqlens: Where each rollout begins, and last the number of tokens, int32.
        loss_mask: Which tokens train, int8; none of a rollout with weight 0.
        advantages: The rollout's, on each response token, float32.
        logprobs: The generator's, of each response token, float32; 0 where there is none.
        weights: The weight of each rollout.
        rows: The row of each rollout in the selection that was packed.
        rollout_ids: The id of each rollout.
        arrays: Other arrays with an entry per token, by name.
    """

    input_ids: NDArray[np.int32]
    position_ids: NDArray[np.int32]
    cu_seqlens: NDArray[np.int32]
    loss_mask: NDArray[np.int8]
    advantages: NDArray[np.float32]
    logprobs: NDArray[np.float32]
    weights: Floats
    rows: Ints
    rollout_ids: tuple[str, ...]
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def is_filler(self) -> bool:
        """Whether it holds one token that does not train, so that ranks have as many packs."""
        return not self.rows.size

    @property
    def tokens(self) -> int:
        """Tokens of its rollouts."""
        return 0 if self.is_filler else int(self.cu_seqlens[-1])

    @property
    def max_seqlen(self) -> int:
        """Tokens of the longest document, as attention kernels want to know it."""
        return int(np.diff(self.cu_seqlens).max())

    def spread(self, values: Any) -> NDArray[Any]:
        """One value per rollout, such as `weights`, as one per token."""
        if self.is_filler:
            return np.zeros(1, np.asarray(values).dtype)
        return np.repeat(np.asarray(values), np.diff(self.cu_seqlens))


@dataclass(frozen=True)
class Packed:
    """What `pack` made.

    Attributes:
        ranks: The packs of each rank; all have the same number.
        max_tokens: What a pack may hold.
        rollouts: Rows that were packed.
        tokens: Tokens of all packs.
        trainable_tokens: Tokens that train, over all ranks.
        packs: Packs that hold rollouts.
        fillers: Packs of weight 0 that fill up ranks.
        cut: Rollouts that were cut, and `cut_tokens` what they lost.
        loads: The load of each rank, in the unit that was balanced.
    """

    ranks: tuple[tuple[Pack, ...], ...]
    max_tokens: int
    rollouts: int
    tokens: int
    trainable_tokens: int
    packs: int
    fillers: int
    cut: int
    cut_tokens: int
    loads: Floats

    @property
    def imbalance(self) -> float:
        """How far the largest load is above the mean, as a share of it."""
        mean = float(self.loads.mean())
        return float(self.loads.max()) / mean - 1 if mean else 0.0

    def metrics(self) -> dict[str, float]:
        """Numbers about packs and ranks; without packs no rate."""
        found: dict[str, float] = {
            "train/packs": self.packs,
            "train/packs_of_weight_0": self.fillers,
            "train/rollouts_cut": self.cut,
            "train/tokens_cut": self.cut_tokens,
        }
        if self.packs:
            found |= {
                "train/packing_efficiency": self.tokens / (self.packs * self.max_tokens),
                "train/rollouts_per_pack": self.rollouts / self.packs,
                "train/rank_imbalance": self.imbalance,
            }
        return found


def pack(
    rollouts: Rollouts,
    max_tokens: int,
    *,
    ranks: int = 1,
    balance: str = "tokens",
    too_long: str = "error",
    advantages: Advantages | NDArray[Any] | None = None,
    arrays: Sequence[str] | Mapping[str, Ragged] = (),
    quadratic_at: int = QUADRATIC_AT,
) -> Packed:
    """Divide rollouts over ranks and pack each rank's, first fit and the longest first.

    >>> import recollect as rc
    >>> from recollect import training
    >>> rollouts = [rc.Rollout([1], [2] * n, finish_reason="stop") for n in (3, 5, 2, 4)]
    >>> packed = training.pack([rc.Group(rollouts)], 10, ranks=2)
    >>> [[one.cu_seqlens.tolist() for one in packs] for packs in packed.ranks]
    [[[0, 6, 9]], [[0, 5, 9]]]

    Args:
        rollouts: What a buffer returned, or a selection of which some are dropped or masked.
        max_tokens: Tokens of a pack at most, prompts included.
        ranks: Data-parallel ranks.
        balance: What is made equal: `"tokens"`, or `"flops"`, in which long rollouts cost more
            than their tokens.
        too_long: What is done with a rollout of more than `max_tokens`: `"error"` or `"cut"`,
            which cuts its end off and counts it.
        advantages: What `advantages` returned, or one number per row.
        arrays: Names of the rollouts' other arrays to pack too, or ragged columns by name, with an
            entry per response token, or per token of prompt and response.
        quadratic_at: Tokens at which attention costs as much as all the rest, for `"flops"`.
    """
    selection = select(rollouts)
    most, ranks = whole("max_tokens", max_tokens, 1), whole("ranks", ranks, 1)
    one_of("balance", balance, BALANCE)
    one_of("too_long", too_long, TOO_LONG)
    full = selection.prompts.lengths + selection.lengths
    lengths = np.minimum(full, most)
    kept = np.flatnonzero(selection.keep)
    longer = kept[full[kept] > most]
    if longer.size and too_long == "error":
        row = int(longer[0])
        raise InvalidValue(
            f"rollout {selection.rollout_ids[row]!r} has {full[row]} tokens, more than max_tokens, "
            f"{most}: raise it, filter long rollouts, or pass too_long='cut'"
        )
    costs = lengths.astype(np.float64)
    if balance == "flops":
        costs += costs * costs / whole("quadratic_at", quadratic_at, 1)
    places = _placed(kept, lengths, costs, ranks, most)
    tokens = _written(selection, places, advantages, arrays)
    return Packed(
        ranks=_packs(selection, places, tokens),
        max_tokens=most,
        rollouts=places.rows.size,
        tokens=int(places.lengths.sum()),
        trainable_tokens=tokens.trained,
        packs=int(places.packs_of.sum()),
        fillers=int((places.packs_of.max() - places.packs_of).sum()),
        cut=longer.size,
        cut_tokens=int((full - lengths)[longer].sum()),
        loads=places.loads,
    )


@dataclass(frozen=True)
class _Places:
    """Which rollouts go where: rank after rank, and pack after pack."""

    rows: Ints  # the rollouts in the order of their packs
    lengths: Ints  # their tokens
    ranks: Ints  # the rank of each
    packs: Ints  # the pack of each in its rank
    packs_of: Ints  # how many packs each rank has
    loads: Floats  # the load of each rank


def _placed(kept: Ints, lengths: Ints, costs: Floats, ranks: int, most: int) -> _Places:
    """Divide rollouts over ranks by their costs, and put each rank's into packs."""
    made = kernels.load_packing().packing
    order = kept[np.argsort(-lengths[kept], kind="stable")]
    loads, rank_of = np.zeros(ranks), np.full(lengths.size, -1, np.int64)
    made.divide(costs, order, loads, rank_of)
    pack_of, packs_of = np.zeros(lengths.size, np.int64), np.zeros(ranks, np.int64)
    made.first_fit(lengths, order, rank_of, most, np.zeros(order.size, np.int64), pack_of, packs_of)
    rows = order[np.lexsort((pack_of[order], rank_of[order]))]
    return _Places(rows, lengths[rows], rank_of[rows], pack_of[rows], packs_of, loads)


@dataclass(frozen=True)
class _Tokens:
    """The tokens of all packs, one after another."""

    ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    masks: NDArray[np.int8]
    advantages: NDArray[np.float32]
    logprobs: NDArray[np.float32]
    arrays: dict[str, NDArray[Any]]
    trained: int


def _written(
    selection: Selection,
    places: _Places,
    advantages: Advantages | NDArray[Any] | None,
    arrays: Sequence[str] | Mapping[str, Ragged],
) -> _Tokens:
    made = kernels.load_packing().packing
    placed, lengths = places.rows, places.lengths
    starts = offsets_of(lengths)
    total = int(starts[-1])
    logprobs = selection.batch.columns.get("logprobs")
    if not isinstance(logprobs, Ragged):
        logprobs = Ragged._make(np.zeros(0, np.float32), np.zeros(selection.rows + 1, np.int64))
    prompts, responses, masks = selection.prompts, selection.responses, selection.masks
    ids, positions = _pool.array((total,), np.int32), _pool.array((total,), np.int32)
    mask = _pool.array((total,), np.int8)
    worth, logs = _pool.array((total,), np.float32), _pool.array((total,), np.float32)
    trained = made.write_tokens(
        placed, starts, lengths,
        _plain(prompts.values, np.int32), prompts.offsets,
        _plain(responses.values, np.int32), responses.offsets,
        _plain(masks.values, np.int8), masks.offsets,
        (selection.weights != 0).astype(np.int8),
        _plain(logprobs.values, np.float32), logprobs.offsets,
        _advantage_of_rows(selection, advantages),
        ids, positions, mask, logs, worth,
    )  # fmt: skip
    others = {
        name: _other(made, selection, name, column, placed, starts, lengths)
        for name, column in _columns(selection, arrays).items()
    }
    return _Tokens(ids, positions, mask, worth, logs, others, int(trained))


def _plain(values: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """As kernels want it: contiguous, of one dtype, and writable, though nobody writes it."""
    return np.require(values, dtype, ["C", "W"])


def _advantage_of_rows(selection: Selection, given: Any) -> Floats:
    if given is None:
        return np.zeros(selection.rows)
    values = given.values if isinstance(given, Advantages) else np.asarray(given)
    if values.shape != (selection.rows,):
        raise InvalidValue(
            f"advantages: expected one number for each of {selection.rows} rollouts, got an array "
            f"of shape {list(values.shape)}"
        )
    return np.ascontiguousarray(values, np.float64)


def _columns(selection: Selection, arrays: Any) -> dict[str, Ragged]:
    if isinstance(arrays, Mapping):
        return dict(arrays)
    found = {}
    for name in arrays:
        column = selection.batch.columns.get(ARRAYS + name)
        if not isinstance(column, Ragged):
            known = [n[len(ARRAYS) :] for n in selection.batch.columns if n.startswith(ARRAYS)]
            raise InvalidValue(
                f"arrays: no rollout has {name!r}; there are {', '.join(known) or 'none'}"
            )
        found[name] = column
    return found


def _other(
    made: Any,
    selection: Selection,
    name: str,
    column: Ragged,
    placed: Ints,
    starts: Ints,
    lengths: Ints,
) -> NDArray[Any]:
    """An array of response tokens, or of all tokens; zeros where a rollout has none."""
    if len(column) != selection.rows:
        raise InvalidValue(f"{name} has {len(column)} rows for {selection.rows} rollouts")
    prompt, response, cells = selection.prompts.lengths, selection.lengths, column.lengths
    fits = (cells == response) | (cells == prompt + response) | (cells == 0)
    if not fits[placed].all():
        row = int(placed[~fits[placed]][0])
        raise InvalidValue(
            f"{name} has {cells[row]} entries for {response[row]} response tokens of rollout "
            f"{selection.rollout_ids[row]!r}"
        )
    begins = np.where(cells == response, prompt, 0)
    values = np.ascontiguousarray(column.values)
    size = values.dtype.itemsize * int(np.prod(column.inner_shape, dtype=np.int64))
    out = _pool.array((int(starts[-1]), *column.inner_shape), values.dtype)
    flat = _plain(values.reshape(-1).view(np.uint8), np.uint8)
    room = out.reshape(-1).view(np.uint8)
    made.write_cells(placed, starts, lengths, begins, flat, column.offsets, size, room)
    return out


def _packs(selection: Selection, places: _Places, tokens: _Tokens) -> tuple[tuple[Pack, ...], ...]:
    """Views of the tokens, and fillers where a rank has fewer packs than another."""
    placed, packs_of = places.rows, places.packs_of
    starts = offsets_of(places.lengths)
    number = offsets_of(packs_of)[places.ranks] + places.packs
    total = int(packs_of.sum())
    bounds = np.searchsorted(number, np.arange(total + 1)).tolist()
    ids, weights = selection.rollout_ids, selection.weights[placed]
    rows = placed.tolist()
    made = []
    for one in range(total):
        first, last = bounds[one], bounds[one + 1]
        a, b = int(starts[first]), int(starts[last])
        made.append(
            Pack(
                tokens.ids[a:b],
                tokens.positions[a:b],
                (starts[first : last + 1] - a).astype(np.int32),
                tokens.masks[a:b],
                tokens.advantages[a:b],
                tokens.logprobs[a:b],
                weights[first:last],
                placed[first:last],
                tuple([ids[row] for row in rows[first:last]]),
                {name: array[a:b] for name, array in tokens.arrays.items()},
            )
        )
    most = int(packs_of.max())
    ends = offsets_of(packs_of).tolist()
    filler = () if total == most * packs_of.size else (_filler(tokens),)
    return tuple(
        (*made[ends[rank] : ends[rank + 1]], *filler * (most - count))
        for rank, count in enumerate(packs_of.tolist())
    )


def _filler(tokens: _Tokens) -> Pack:
    """One token that does not train: a rank that has nothing left still takes part."""
    return Pack(
        np.zeros(1, np.int32),
        np.zeros(1, np.int32),
        np.array([0, 1], np.int32),
        np.zeros(1, np.int8),
        np.zeros(1, np.float32),
        np.zeros(1, np.float32),
        np.zeros(0),
        np.zeros(0, np.int64),
        (),
        {name: np.zeros((1, *a.shape[1:]), a.dtype) for name, a in tokens.arrays.items()},
    )

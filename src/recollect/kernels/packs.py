"""Packing rollouts: which rank and which pack each goes to, and one pass that writes the tokens.

Columns come as values and offsets. `order` lists rows by falling size; a placed row is one that
has a place in the packs: rows, starts and lengths are given in the order of places.
"""

from __future__ import annotations

from recollect.kernels.machine.compile import kernel


@kernel("void(floats, ints, floats, ints)", nogil=True)
def divide(costs, order, loads, rank_out):
    """Give each row, the largest first, to the rank that has the least so far."""
    for place in range(order.size):
        row = order[place]
        least = 0
        for rank in range(1, loads.size):
            if loads[rank] < loads[least]:
                least = rank
        loads[least] += costs[row]
        rank_out[row] = least


@kernel("void(ints, ints, ints, int64, ints, ints, ints)", nogil=True)
def first_fit(lengths, order, rank_of, most, free, pack_out, packs_out):
    """Within each rank, put each row, the longest first, into the first pack that has room."""
    for rank in range(packs_out.size):
        packs = 0
        for place in range(order.size):
            row = order[place]
            if rank_of[row] != rank:
                continue
            pack = 0
            while pack < packs and free[pack] < lengths[row]:
                pack += 1
            if pack == packs:
                free[packs] = most
                packs += 1
            free[pack] -= lengths[row]
            pack_out[row] = pack
        packs_out[rank] = packs


@kernel(
    "int64(ints, ints, ints, int32[::1], ints, int32[::1], ints, int8[::1], ints, int8[::1],"
    " float32[::1], ints, floats, int32[::1], int32[::1], int8[::1], float32[::1], float32[::1])",
    nogil=True,
)
def write_tokens(
    rows,
    starts,
    lengths,
    prompts,
    prompt_offsets,
    responses,
    response_offsets,
    masks,
    mask_offsets,
    trains,
    logprobs,
    logprob_offsets,
    advantages,
    ids_out,
    positions_out,
    mask_out,
    logprobs_out,
    advantages_out,
):
    """Prompt and response of each placed row, cut to its length; returns how many tokens train.

    What belongs to response tokens is zero on the prompt, and a logprob that is absent is zero.
    """
    # A slice is known to begin at 0, so that its loop becomes vector code: ten times as fast here
    # as `out[start + k]`, which might be negative and count from the end.
    trained = 0
    for place in range(rows.size):
        row, start, length = rows[place], starts[place], lengths[place]
        p, r = prompt_offsets[row], response_offsets[row]
        prompt = min(prompt_offsets[row + 1] - p, length)
        response = length - prompt
        m, g = mask_offsets[row], logprob_offsets[row]
        middle, end = start + prompt, start + length
        ids_out[start:middle] = prompts[p : p + prompt]
        ids_out[middle:end] = responses[r : r + response]
        positions = positions_out[start:end]
        for k in range(length):
            positions[k] = k
        mask_out[start:middle] = 0
        if trains[row]:
            given = masks[m : m + response]
            mask_out[middle:end] = given
            count = 0
            for k in range(response):
                count += given[k]
            trained += count
        else:
            mask_out[middle:end] = 0
        logprobs_out[start:middle] = 0.0
        if logprob_offsets[row + 1] - g >= response:
            ours, theirs = logprobs_out[middle:end], logprobs[g : g + response]
            for k in range(response):
                number = theirs[k]
                ours[k] = number if number == number else 0.0
        else:
            logprobs_out[middle:end] = 0.0
        advantages_out[start:middle] = 0.0
        advantages_out[middle:end] = advantages[row]
    return trained


@kernel("void(ints, ints, ints, ints, uint8[::1], ints, int64, uint8[::1])", nogil=True)
def write_cells(rows, starts, lengths, begins, values, offsets, size, out):
    """Another array of tokens, in elements of `size` bytes; a row's begins at token `begins`."""
    for place in range(rows.size):
        row, start, length = rows[place], starts[place] * size, lengths[place] * size
        cell = offsets[row] * size
        begin = min(begins[row] * size, length)
        end = min(begin + (offsets[row + 1] - offsets[row]) * size, length)
        out[start : start + begin] = 0
        out[start + begin : start + end] = values[cell : cell + end - begin]
        out[start + end : start + length] = 0

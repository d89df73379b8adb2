"""Sum trees with 16 children a node: weights at the leaves, each parent the sum of its children.

A parent is always computed from its children and never adjusted by a difference, so the error
stays that of one summation however many updates came before. Batches go level by level: the
nodes of one level are independent of each other, so their cache misses overlap.

A tree is one float64 array, leaves first, each level padded with zeros to whole nodes; the
index row `x` holds where the levels begin (`layout.OFFSETS`).
"""

from __future__ import annotations

import numpy as np

from recollect.kernels.layout import A_SMALLEST, A_TREE, LEVELS, OFFSETS
from recollect.kernels.machine.compile import inner
from recollect.kernels.machine.memory import float64_at, prefetch
from recollect.kernels.machine.vectors import prefix_under, sum_of_16

BELOW_ONE = 0.999999999999


@inner("float64(floats, int64)")
def smallest_of_node(values, first):
    """The smallest positive one of a node's children, infinity where there is none."""
    smallest = np.inf
    for child in range(first, first + 16):
        if 0.0 < values[child] < smallest:
            smallest = values[child]
    return smallest


@inner("int64(ints, int64, ints, int64)")
def refresh(x, address, nodes, n):
    """Recompute every ancestor of the leaves `nodes[:n]`; `nodes` is used up.

    Returns how many nodes were computed.
    """
    tree = float64_at(address)
    follow_smallest = x[A_SMALLEST] != 0 and address == x[A_TREE]
    smallest = float64_at(x[A_SMALLEST])
    computed = 0
    for level in range(1, x[LEVELS]):
        below = x[OFFSETS + level - 1]
        here = x[OFFSETS + level]
        width = (here - below) >> 4
        minima = tree if level == 1 else smallest
        if n >= width:  # every node of this level, and so of all above
            for node in range(width):
                tree[here + node] = sum_of_16(address + 8 * (below + 16 * node))
                if follow_smallest:
                    smallest[here + node] = smallest_of_node(minima, below + 16 * node)
            computed += width
        else:
            kept = 0
            last = np.int64(-1)
            for i in range(n):
                node = nodes[i] >> 4
                if node != last:
                    tree[here + node] = sum_of_16(address + 8 * (below + 16 * node))
                    if follow_smallest:
                        smallest[here + node] = smallest_of_node(minima, below + 16 * node)
                    nodes[kept] = node
                    kept += 1
                    last = node
            n = kept
            computed += kept
    return computed


@inner("float64(ints, int64)")
def total(x, address):
    return float64_at(address)[x[OFFSETS + x[LEVELS] - 1]]


@inner("Tuple((int64, float64))(floats, int64, int64, float64)", hot=True)
def child_under(tree, address, first, left):
    """The child of the node at `first` under which `left` falls, and what is left of it there.

    Rounding may lead past the last child with any weight, which then takes its place.
    """
    found: tuple[int, float] = prefix_under(address + 8 * first, left)
    child = found[0]
    left -= found[1]
    if child > 15 or left >= tree[first + child]:
        child = min(child, np.int64(15))
        while child > 0 and tree[first + child] <= 0.0:
            child -= 1
        left = tree[first + child] * BELOW_ONE
    return child, left


@inner("void(floats, int64, int64, ints, floats, int64)")
def _spread(tree, base, width, nodes, rest, n):
    """Find the nodes of one level for numbers of which each stands in its n-th of the whole.

    Such numbers rise, so the end of a node says nearly how many numbers stand before it, and one
    comparison makes it exact. Walking along both would branch without a pattern, and processors are
    slow where they cannot predict.
    """
    ends = np.empty(width + 1)
    ends[0] = 0.0
    last = np.int64(0)  # the last node with any weight: rounding may lead past it
    for node in range(width):
        ends[node + 1] = ends[node] + tree[base + node]
        if tree[base + node] > 0.0:
            last = np.int64(node)
    scale = n / ends[width]
    nodes[:n] = 0
    for node in range(width):
        end = ends[node + 1]
        before = max(np.int64(0), min(np.int64(end * scale), n - 1))
        before += rest[before] < end
        while before < n and rest[before] < end:
            before += 1
        while before > 0 and rest[before - 1] >= end:
            before -= 1
        if before < n:
            nodes[before] += 1  # from this number on, the node lies behind
    found = np.int64(0)
    for i in range(n):
        found += nodes[i]
        nodes[i] = found if found < width else last
        rest[i] = rest[i] - ends[found] if found < width else tree[base + last] * BELOW_ONE


@inner("void(ints, int64, ints, floats, int64, boolean, int64)")
def descend(x, address, nodes, rest, n, rising, records):
    """Find the leaf under each `rest[i]`, a number in [0, total); the leaf goes to `nodes[i]`.

    A leaf of weight zero is never found. Stratified numbers, which rise, skip the levels that are
    no wider than their count. The record of 32 bytes that belongs to a leaf is asked for, if
    records begin at an address other than 0.
    """
    tree = float64_at(address)
    top = x[LEVELS] - 1
    if rising:
        while top > 1 and x[OFFSETS + top] - x[OFFSETS + top - 1] <= 2 * n:
            top -= 1
    if top < x[LEVELS] - 1:
        width = x[OFFSETS + top + 1] - x[OFFSETS + top]
        _spread(tree, x[OFFSETS + top], width, nodes, rest, n)
    else:
        for i in range(n):
            nodes[i] = 0
    for level in range(top - 1, -1, -1):
        base = x[OFFSETS + level]
        below = address + 8 * x[OFFSETS + level - 1] if level > 0 else np.int64(0)
        for i in range(n):
            child, left = child_under(tree, address, base + 16 * nodes[i], rest[i])
            rest[i] = left
            child += 16 * nodes[i]
            nodes[i] = child
            if level > 0:
                prefetch(below + 128 * child)
                prefetch(below + 128 * child + 64)
            elif records != 0:
                prefetch(records + 32 * child)


@inner("int64(ints, int64, float64)")
def find_leaf(x, address, left):
    """The same for one number, without arrays."""
    tree = float64_at(address)
    node = np.int64(0)
    for level in range(x[LEVELS] - 2, -1, -1):
        child, left = child_under(tree, address, x[OFFSETS + level] + 16 * node, left)
        node = 16 * node + child
    return node


@inner("void(ints, int64, int64, float64)")
def set_leaf(x, address, leaf, weight):
    """Change one leaf and its ancestors."""
    tree = float64_at(address)
    tree[leaf] = weight
    follow_smallest = x[A_SMALLEST] != 0 and address == x[A_TREE]
    smallest = float64_at(x[A_SMALLEST])
    node = leaf
    for level in range(1, x[LEVELS]):
        below = x[OFFSETS + level - 1]
        node >>= 4
        tree[x[OFFSETS + level] + node] = sum_of_16(address + 8 * (below + 16 * node))
        if follow_smallest:
            minima = tree if level == 1 else smallest
            smallest[x[OFFSETS + level] + node] = smallest_of_node(minima, below + 16 * node)

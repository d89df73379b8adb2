"""Numba kernels: what tables and buffers do too often for Python.

A kernel takes numbers, arrays and blocks of numbers, checks nothing and knows no class. `layout`
and `steps_layout` say where each number stands in the blocks that storages share with kernels,
`load` compiles kernels when they are first needed, and `families` says how they are called.

items/                        the items of a table: keys, slots, priorities, sample, take, evict
indexes, orders, sum_tree     what an index keeps: a set, an order, weights
index_draws, random           draws from indexes
rows, shared_copy             rows into segments and out of them
captures                      items as snapshots need them
steps, steps_*                steps and episodes in rings
group_rows, single, tokens    rollouts
packs, deal                   rollouts for ranks, shards for ranks
machine/                      everything that deals in addresses and LLVM
"""

"""Numba kernels. They see arrays and addresses only; `load` compiles them when a table is made."""

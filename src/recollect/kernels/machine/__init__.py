"""What deals in addresses and LLVM: the rest of the kernels is loops over numbers.

compile      when kernels are compiled, by whom, and where the code is kept
memory       views and copies of memory by address
cell_copies  copies of many cells of one size
objects      where CPython and NumPy keep what kernels read of lists, arrays and texts
vectors      several numbers in one instruction
power        x ** a as vector code
atomics      changes of one word and semaphores, for threads without the GIL

How to debug a kernel:

- `print` works in a kernel. A changed source is compiled anew by itself.
- NUMBA_BOUNDSCHECK=1 makes an index outside an array an IndexError. It needs RECOLLECT_CACHE_DIR
  set to an empty folder, because code that was compiled before has no checks. Views by address have
  no bounds: what they miss shows as a wrong number, or as a crash, which `python -X faulthandler`
  locates in Python.
- After `load()`, a kernel in its module, such as `recollect.kernels.items.choose`, is Numba's
  dispatcher, which refuses arguments of the wrong type. The entry points that `load()` returns run
  the same code and check nothing.
- A kernel that reads arrays alone (`deal`, `packs`, `tokens`) runs in pdb by its `py_func`. The
  others can't run as Python, and NUMBA_DISABLE_JIT is refused: intrinsics are LLVM, and a function
  marked `@inner` crashes the interpreter if Python calls it.
"""

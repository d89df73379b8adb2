"""What threads that do not hold the GIL need to agree: changes of one word, and semaphores."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def _atomic(operation):
    @intrinsic
    def change(typing_context, address, value):
        def generate(context, builder, signature, arguments):
            place = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
            return builder.atomic_rmw(operation, place, arguments[1], "seq_cst")

        return types.int64(types.int64, types.int64), generate

    return change


# Change the int64 at an address so that no other thread comes between; return what it was.
atomic_add = _atomic("add")
atomic_and = _atomic("and")
atomic_or = _atomic("or")

# Of the C library; a semaphore is given by its address.
sem_init: Any = types.ExternalFunction("sem_init", types.intc(types.intp, types.intc, types.uintc))
sem_post: Any = types.ExternalFunction("sem_post", types.intc(types.intp))
sem_wait: Any = types.ExternalFunction("sem_wait", types.intc(types.intp))
sched_yield: Any = types.ExternalFunction("sched_yield", types.intc())

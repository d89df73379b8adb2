"""Memory by address: what the kernels need and NumPy arrays cannot say.

A kernel that takes every array of a table as an argument pays for each of them at every call,
and one that takes typed columns is compiled again for every schema. So the engine keeps the
addresses of its arrays in small blocks of int64, and kernels read memory through these views.
Whoever writes an address into a block keeps the array alive; nothing here checks bounds.
"""

from __future__ import annotations

from platform import machine

from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

STREAMED_CELL = 1024  # bytes of a cell that are worth going past the caches
_EVERYTHING = 1 << 48  # a length no index reaches: views by address carry no length of their own


def _pointer_to(dtype):
    pointer = types.CPointer(dtype)

    @intrinsic
    def as_pointer(typing_context, address):
        def generate(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(pointer))

        return pointer(types.int64), generate

    return as_pointer


_int8_pointer = _pointer_to(types.int8)
_int32_pointer = _pointer_to(types.int32)
_int64_pointer = _pointer_to(types.int64)
_uint64_pointer = _pointer_to(types.uint64)
_float64_pointer = _pointer_to(types.float64)


# Views of memory from an address on, of any length: these carry none of their own.
@njit
def int8_at(address):
    return carray(_int8_pointer(address), _EVERYTHING)


@njit
def int32_at(address):
    return carray(_int32_pointer(address), _EVERYTHING)


@njit
def int64_at(address):
    return carray(_int64_pointer(address), _EVERYTHING)


@njit
def uint64_at(address):
    return carray(_uint64_pointer(address), _EVERYTHING)


@njit
def float64_at(address):
    return carray(_float64_pointer(address), _EVERYTHING)


# Arrays of a known length, to be handed to functions that take them.
@njit
def ints_at(address, n):
    return carray(_int64_pointer(address), (n,))


@njit
def floats_at(address, n):
    return carray(_float64_pointer(address), (n,))


@njit
def table_at(address, rows, columns):
    return carray(_int64_pointer(address), (rows, columns))


@njit
def word_at(address):
    """The int64 at an address."""
    return int64_at(address)[0]


@intrinsic
def memory_copy(typing_context, target, source, size):
    """memcpy of `size` bytes between two addresses that do not overlap."""

    def generate(context, builder, signature, arguments):
        target, source, size = arguments
        bytes_type = cgutils.voidptr_t
        cgutils.raw_memcpy(
            builder,
            builder.inttoptr(target, bytes_type),
            builder.inttoptr(source, bytes_type),
            size,
            1,
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _copy_of(width):
    kind = ir.VectorType(ir.IntType(8), width) if width > 8 else ir.IntType(8 * width)

    @intrinsic
    def copy(typing_context, target, source):
        def generate(context, builder, signature, arguments):
            pointer = kind.as_pointer()
            value = builder.load(builder.inttoptr(arguments[1], pointer), align=1, typ=kind)
            builder.store(value, builder.inttoptr(arguments[0], pointer), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return copy


copy_64 = _copy_of(64)
copy_32 = _copy_of(32)
copy_16 = _copy_of(16)
copy_8 = _copy_of(8)
copy_4 = _copy_of(4)
copy_2 = _copy_of(2)
copy_1 = _copy_of(1)


@njit
def copy_bytes(target, source, size):
    """Copy `size` bytes; short cells, the common case, without a call.

    A cell of at least one word is copied by words, the last of them laid over the end, so that
    no cell needs a loop over its odd bytes.
    """
    if size > 256:
        memory_copy(target, source, size)
    elif size >= 16:
        last = size - 16
        done = 0
        while done + 32 <= size:
            copy_32(target + done, source + done)
            done += 32
        if done < last:
            copy_16(target + done, source + done)
        if done < size:
            copy_16(target + last, source + last)
    elif size >= 8:
        copy_8(target, source)
        copy_8(target + size - 8, source + size - 8)
    elif size >= 4:
        copy_4(target, source)
        copy_4(target + size - 4, source + size - 4)
    elif size >= 2:
        copy_2(target, source)
        copy_2(target + size - 2, source + size - 2)
    elif size == 1:
        copy_1(target, source)


@intrinsic
def _stream_64(typing_context, target, source):
    """Copy a cache line past the caches; the target is one."""

    def generate(context, builder, signature, arguments):
        kind = ir.VectorType(ir.IntType(64), 8)
        value = builder.load(builder.inttoptr(arguments[1], kind.as_pointer()), align=1, typ=kind)
        store = builder.store(value, builder.inttoptr(arguments[0], kind.as_pointer()), align=64)
        one = ir.Constant(ir.IntType(32), 1)
        store.set_metadata("nontemporal", builder.module.add_metadata([one]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def fence(typing_context):
    """Make what was written until now visible before what is written later: copies past the caches
    do not guarantee it. x86 has an instruction for just these copies, which waits for less.
    """

    def generate(context, builder, signature, arguments):
        if machine() in ("x86_64", "AMD64"):
            nothing = ir.FunctionType(ir.VoidType(), [])
            name = "llvm.x86.sse.sfence"
            builder.call(cgutils.get_or_insert_function(builder.module, nothing, name), [])
        else:
            builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@njit
def stream_bytes(target, source, size):
    """Copy many bytes that nobody reads soon past the caches, and so without reading the target.

    Only whole cache lines go that way: a line that is streamed in part and stored in part costs
    more than many whole ones. Call `fence` after the last copy.
    """
    done = min(-target & 63, size)
    copy_bytes(target, source, done)
    while done + 64 <= size:
        _stream_64(target + done, source + done)
        done += 64
    copy_bytes(target + done, source + done, size - done)


@njit
def store_bytes(target, source, size):
    """Copy bytes that nobody reads soon, past the caches where they are many; `fence` follows."""
    if size >= STREAMED_CELL:
        stream_bytes(target, source, size)
    else:
        copy_bytes(target, source, size)


def _prefetch_into(nearness):
    @intrinsic
    def prefetch(typing_context, address):
        def generate(context, builder, signature, arguments):
            byte_pointer = ir.IntType(8).as_pointer()
            flag = ir.IntType(32)
            function = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(ir.VoidType(), [byte_pointer, flag, flag, flag]),
                "llvm.prefetch.p0",
            )
            place = builder.inttoptr(arguments[0], byte_pointer)
            builder.call(function, [place, flag(0), flag(nearness), flag(1)])
            return context.get_dummy_value()

        return types.void(types.int64), generate

    return prefetch


# Ask for the cache line at an address; harmless where nothing is. Into the nearest cache, or, if
# much else is read before, into the next one.
prefetch = _prefetch_into(3)
prefetch_far = _prefetch_into(2)

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
int32_pointer = _pointer_to(types.int32)
int64_pointer = _pointer_to(types.int64)
_uint64_pointer = _pointer_to(types.uint64)
float64_pointer = _pointer_to(types.float64)


@njit
def int8_at(address):
    return carray(_int8_pointer(address), _EVERYTHING)


@njit
def int32_at(address):
    return carray(int32_pointer(address), _EVERYTHING)


@njit
def int64_at(address):
    return carray(int64_pointer(address), _EVERYTHING)


@njit
def uint64_at(address):
    return carray(_uint64_pointer(address), _EVERYTHING)


@njit
def float64_at(address):
    return carray(float64_pointer(address), _EVERYTHING)


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
    """Let nobody see what is written later before what was written until now: copies past the
    caches need it. Those of x86 have an instruction of their own, which waits for less.
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


@njit
def stream_bytes(target, source, size):
    """Copy many bytes that nobody reads soon: past the caches, and so without reading the target.

    Whole cache lines only: one that is streamed in part and stored in part costs more than many
    whole ones. Call `fence` after the last one.
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


@intrinsic
def float_of(typing_context, bits):
    """The float64 with these 64 bits."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


@intrinsic
def sum_of_16(typing_context, address):
    """The sum of 16 float64, in four lanes: always in the same order, and at vector speed."""

    def generate(context, builder, signature, arguments):
        lanes = ir.VectorType(ir.DoubleType(), 4)
        parts = []
        for part in range(4):
            offset = ir.Constant(ir.IntType(64), 32 * part)
            pointer = builder.inttoptr(builder.add(arguments[0], offset), lanes.as_pointer())
            parts.append(builder.load(pointer, align=8, typ=lanes))
        total = builder.fadd(builder.fadd(parts[0], parts[1]), builder.fadd(parts[2], parts[3]))
        a, b, c, d = (builder.extract_element(total, ir.IntType(32)(i)) for i in range(4))
        return builder.fadd(builder.fadd(a, b), builder.fadd(c, d))

    return types.float64(types.int64), generate


@intrinsic
def prefix_under(typing_context, address, left):
    """Among 16 float64, none negative: how many of their running sums are at most `left`, and the
    last of these sums (0 where there is none). In two vectors of eight, without a branch.
    """
    eight = ir.VectorType(ir.DoubleType(), 8)
    result = types.Tuple((types.int64, types.float64))

    def generate(context, builder, signature, arguments):
        address, left = arguments
        zero = ir.Constant(eight, None)

        def permuted(vector, *order):  # 8 stands for a zero
            places = ir.Constant(ir.VectorType(ir.IntType(32), 8), order)
            return builder.shuffle_vector(vector, zero, places)

        def everywhere(vector, place):
            return permuted(vector, *[place] * 8)

        def larger(a, b):
            return builder.select(builder.fcmp_ordered(">", a, b), a, b)

        def running(place):
            begin = builder.add(address, ir.IntType(64)(place))
            sums = builder.load(builder.inttoptr(begin, eight.as_pointer()), align=8, typ=eight)
            sums = builder.fadd(sums, permuted(sums, 8, 0, 8, 2, 8, 4, 8, 6))
            sums = builder.fadd(sums, permuted(sums, 8, 8, 1, 1, 8, 8, 5, 5))
            return builder.fadd(sums, permuted(sums, 8, 8, 8, 8, 3, 3, 3, 3))

        bound = everywhere(builder.insert_element(zero, left, ir.IntType(32)(0)), 0)
        low, high = running(0), running(64)
        high = builder.fadd(high, everywhere(low, 7))
        reached = [builder.fcmp_ordered("<=", sums, bound) for sums in (low, high)]
        counts = [builder.ctpop(builder.bitcast(one, ir.IntType(8))) for one in reached]
        count = builder.zext(builder.add(*counts), ir.IntType(64))
        before = larger(*map(builder.select, reached, (low, high), (zero, zero)))
        before = larger(before, permuted(before, 4, 5, 6, 7, 0, 1, 2, 3))
        before = larger(before, permuted(before, 2, 3, 0, 1, 6, 7, 4, 5))
        before = larger(before, permuted(before, 1, 0, 3, 2, 5, 4, 7, 6))
        last = builder.extract_element(before, ir.IntType(32)(0))
        return context.make_tuple(builder, result, (count, last))

    return result(types.int64, types.float64), generate


def _entry_at(builder, address):
    """The 160 bits by which an entry of a heap is compared: see `indexes`."""
    wide = ir.IntType(192)
    whole = ir.Constant(wide, 0)
    for word, (dropped, moved) in enumerate(((32, 128), (0, 64), (0, 0))):
        place = builder.add(address, ir.IntType(64)(8 * word))
        value = builder.load(builder.inttoptr(place, ir.IntType(64).as_pointer()), align=8)
        value = builder.zext(builder.lshr(value, ir.IntType(64)(dropped)), wide)
        whole = builder.or_(whole, builder.shl(value, ir.Constant(wide, moved)))
    return whole


@intrinsic
def entry_before(typing_context, address, other):
    """Whether the entry at an address comes before another, as one comparison of long numbers."""

    def generate(context, builder, signature, arguments):
        one, other = (_entry_at(builder, address) for address in arguments)
        return builder.icmp_unsigned("<", one, other)

    return types.boolean(types.int64, types.int64), generate


@intrinsic
def first_entry(typing_context, address, other):
    """The address of the entry that comes first, without a branch: nobody could predict it."""

    def generate(context, builder, signature, arguments):
        one, other = (_entry_at(builder, address) for address in arguments)
        return builder.select(builder.icmp_unsigned("<", other, one), arguments[1], arguments[0])

    return types.int64(types.int64, types.int64), generate


@intrinsic
def bits_of(typing_context, number):
    """The 64 bits of a float64, as an int64."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), generate

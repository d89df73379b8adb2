"""Numbers by their bits, and several of them in one instruction: what Numba has no words for."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


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
    """The address of the entry that comes first, without a branch that nobody could predict."""

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

"""Eight items at once: a run of slots whose items leave and come together.

A ring that is written again and again has its items in slots side by side, linked in their
order, with rows in one segment and, for the most part, one priority. Then a record is a vector
of four words, and what a loop would do word by word takes an instruction or two.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from recollect.kernels.layout import KEY, LOCATION, PRIORITY, TIMES, VISIBLE

RUN = 8

_int32, _int64 = ir.IntType(32), ir.IntType(64)
_record = ir.VectorType(_int64, 4)
_links = ir.VectorType(_int32, RUN)
_words = ir.VectorType(_int64, RUN)
_LAST = TIMES // 2  # the word of a record that holds two numbers


def _place(builder, address, offset, kind):
    moved = builder.add(address, _int64(offset))
    return builder.inttoptr(moved, kind.as_pointer())


def _load(builder, address, offset, kind):
    return builder.load(_place(builder, address, offset, kind), align=4, typ=kind)


def _store(builder, value, address, offset=0):
    builder.store(value, _place(builder, address, offset, value.type), align=8)


def _of_words(builder, **words):
    """A record of which some words are known; the others are zero."""
    record = ir.Constant(_record, None)
    for word, value in words.items():
        record = builder.insert_element(record, value, _int32(_WORDS[word]))
    return record


_WORDS = {"key": KEY, "location": LOCATION, "priority": PRIORITY, "last": _LAST}


def _spread(builder, kind, number):
    """A vector of the same number for each item."""
    none = ir.Constant(kind, None)
    first = builder.insert_element(none, number, _int32(0))
    return builder.shuffle_vector(first, none, ir.Constant(_links, None))


def _counted(builder, kind, first):
    """A vector of a number and those that follow it."""
    return builder.add(_spread(builder, kind, first), ir.Constant(kind, list(range(RUN))))


@intrinsic
def linked_in_a_row(typing_context, links, slot):
    """Whether each slot of a run, which begins with this one, leads to the next."""

    def generate(context, builder, signature, arguments):
        links, slot = arguments
        offset = builder.mul(slot, _int64(4))
        following = _load(builder, builder.add(links, offset), 0, _links)
        next_one = builder.trunc(builder.add(slot, _int64(1)), _int32)
        others = builder.xor(following, _counted(builder, _links, next_one))
        others = builder.and_(others, ir.Constant(_links, [-1] * (RUN - 1) + [0]))
        whole = ir.IntType(32 * RUN)
        return builder.icmp_unsigned("==", builder.bitcast(others, whole), whole(0))

    return types.boolean(types.int64, types.int64), generate


@intrinsic
def times_if_alike(typing_context, records, segment, priority):
    """How often the items of a run were sampled, together; -1 where one has its row in another
    segment, or another priority, than these.
    """

    def generate(context, builder, signature, arguments):
        address, segment, priority = arguments
        priority = builder.bitcast(priority, _int64)
        expected = _of_words(builder, location=segment, priority=priority)
        shift = _of_words(builder, location=_int64(32))
        low = _of_words(builder, last=_int64(0xFFFFFFFF))
        others = times = ir.Constant(_record, None)
        for item in range(RUN):
            record = _load(builder, address, 32 * item, _record)
            differs = builder.xor(builder.lshr(record, shift), expected)
            others = builder.or_(others, differs)
            times = builder.add(times, builder.and_(record, low))
        words = [builder.extract_element(others, _int32(word)) for word in (LOCATION, PRIORITY)]
        alike = builder.icmp_unsigned("==", builder.or_(*words), _int64(0))
        sampled = builder.extract_element(times, _int32(_LAST))
        return builder.select(alike, sampled, _int64(-1))

    return types.int64(types.int64, types.int64, types.float64), generate


@intrinsic
def renew_run(typing_context, records, key, location, priority):
    """Write the records of a run of new items: visible, never sampled."""

    def generate(context, builder, signature, arguments):
        address, key, location, priority = arguments
        record = _of_words(
            builder,
            key=key,
            location=location,
            priority=builder.bitcast(priority, _int64),
            last=_int64(VISIBLE << 32),
        )
        one_more = _of_words(builder, key=_int64(1), location=_int64(1))
        for item in range(RUN):
            _store(builder, record, address, 32 * item)
            record = builder.add(record, one_more)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.float64), generate


@intrinsic
def count_from(typing_context, address, first):
    """Write a number, and those that follow it, for each item of a run."""

    def generate(context, builder, signature, arguments):
        address, first = arguments
        _store(builder, _counted(builder, _words, first), address)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def fill_run(typing_context, address, number):
    """Write the same number for each item of a run."""

    def generate(context, builder, signature, arguments):
        address, number = arguments
        _store(builder, _spread(builder, ir.VectorType(ir.DoubleType(), RUN), number), address)
        return context.get_dummy_value()

    return types.void(types.int64, types.float64), generate

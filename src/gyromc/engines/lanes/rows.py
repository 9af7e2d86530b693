"""Whole rows of a table as vectors: what a mini-batch (E3) reads, and how it changes places with chains as lanes.

Receives a table whose rows are multiples of sixteen numbers wide and the offsets of the rows drawn; hands on their dot
products with one chain's θ, weighted or plain sums of rows, and transposed tiles. A row is read in one go from where it lies,
which no layout with one chain per lane can do; all the rest of a step has chains as lanes, and a 16 × 16 transposition leads
from one to the other.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import signature

from gyromc.engines.lanes.vectors import (
    LANES,
    VECTORS,
    _call,
    _llvm,
    _load,
    _pointer,
    _shuffle,
    _splat,
    intrinsic,
)


def _integer(value: int) -> ir.Constant:
    return ir.Constant(ir.IntType(64), value)


def _row_offset(context, builder, offsetsty, offsets, first, j: int):
    """The offset of the j-th of sixteen rows; those of one chain lie sixteen apart."""
    pointer = _pointer(context, builder, offsetsty, offsets, builder.add(first, _integer(LANES * j)))
    return builder.zext(builder.load(pointer), ir.IntType(64))


def _sums_of_lanes(builder, pairs: list):
    """The vector whose lane j is the sum for row j, from vectors that hold rows j and j + 8 in their halves."""
    half = len(pairs) // 2
    while half >= 1:
        kept = [i if not i & half else LANES + i for i in range(LANES)]
        crossed = [i ^ half if not i & half else LANES + (i ^ half) for i in range(LANES)]
        pairs = [
            builder.fadd(_shuffle(builder, a, b, kept), _shuffle(builder, a, b, crossed))
            for a, b in zip(pairs[:half], pairs[half:], strict=True)
        ]
        half //= 2
    return pairs[0]


@intrinsic
def dot_rows(typingctx, table, offsets, first, theta, at, width):
    """xᵀθ for sixteen rows x of the table, θ being the `width` numbers from `theta[at]` on."""
    vector, half = VECTORS[str(table.dtype)], LANES // 2

    def codegen(context, builder, sig, args):
        data, where, begin, parameters, at, width = args
        origins = [_row_offset(context, builder, offsets, where, begin, j) for j in range(LANES)]
        zero = ir.Constant(_llvm(vector), [0.0] * LANES)
        sums = [cgutils.alloca_once_value(builder, zero) for _ in range(half)]

        def joined(arrayty, array, one, other):  # half a vector from here and half from there
            halves = (_load(context, builder, arrayty, array, index, half) for index in (one, other))
            return _shuffle(builder, *halves, lanes=list(range(LANES)))

        with cgutils.for_range_slice(builder, _integer(0), width, _integer(half), ir.IntType(64)) as (k, _):
            place = builder.add(at, k)
            t = joined(theta, parameters, place, place)
            for j, total in enumerate(sums):
                x = joined(table, data, builder.add(origins[j], k), builder.add(origins[j + half], k))
                builder.store(_call(builder, "fmuladd", x.type, x, t, builder.load(total)), total)
        return _sums_of_lanes(builder, [builder.load(total) for total in sums])

    args = (table, offsets, types.intp, theta, types.intp, types.intp)
    return signature(vector, *args), codegen


@intrinsic
def add_weighted_rows(typingctx, table, offsets, first, column, weights, at, total):
    """total + Σ_j weights[at + j] · (sixteen numbers of row j from `column` on), over sixteen rows."""

    def codegen(context, builder, sig, args):
        data, where, begin, column, w, at, value = args
        partial = [value, None]
        for j in range(LANES):
            origin = _row_offset(context, builder, offsets, where, begin, j)
            x = _load(context, builder, table, data, builder.add(origin, column))
            pointer = _pointer(context, builder, weights, w, builder.add(at, _integer(j)))
            weight, before = _splat(builder, builder.load(pointer)), partial[j % 2]
            if before is None:
                partial[j % 2] = builder.fmul(weight, x)
            else:
                partial[j % 2] = _call(builder, "fmuladd", x.type, weight, x, before)
        return builder.fadd(*partial)

    args = (table, offsets, types.intp, types.intp, weights, types.intp, total)
    return signature(total, *args), codegen


@intrinsic
def add_rows(typingctx, table, offsets, first, column, total):
    """total + Σ_j (sixteen numbers of row j from `column` on), over sixteen rows."""

    def codegen(context, builder, sig, args):
        data, where, begin, column, value = args
        rows = [value]
        for j in range(LANES):
            origin = _row_offset(context, builder, offsets, where, begin, j)
            rows.append(_load(context, builder, table, data, builder.add(origin, column)))
        while len(rows) > 1:
            paired = [builder.fadd(a, b) for a, b in zip(rows[::2], rows[1::2], strict=False)]
            rows = paired + rows[len(paired) * 2 :]
        return rows[0]

    return signature(total, table, offsets, types.intp, types.intp, total), codegen


@intrinsic
def column_of_rows(typingctx, table, offsets, first, column):
    """One entry of each of sixteen rows."""
    vector = VECTORS[str(table.dtype)]

    def codegen(context, builder, sig, args):
        data, where, begin, column = args
        value = ir.Constant(_llvm(vector), ir.Undefined)
        for j in range(LANES):
            origin = _row_offset(context, builder, offsets, where, begin, j)
            entry = builder.load(_pointer(context, builder, table, data, builder.add(origin, column)))
            value = builder.insert_element(value, entry, ir.Constant(ir.IntType(32), j))
        return value

    return signature(vector, table, offsets, types.intp, types.intp), codegen


@intrinsic
def transpose(typingctx, source, source_at, source_stride, target, target_at, target_stride):
    """target[…j, i] = source[…i, j] for a tile of 16 × 16 numbers."""

    def codegen(context, builder, sig, args):
        data, source_at, source_stride, out, target_at, target_stride = args
        at = lambda start, stride, i: builder.add(start, builder.mul(stride, _integer(i)))  # noqa: E731
        rows = [_load(context, builder, source, data, at(source_at, source_stride, i)) for i in range(LANES)]
        half = LANES // 2
        while half >= 1:  # exchange the off-diagonal blocks of every 2·half × 2·half block
            upper = [i if not i & half else LANES + (i ^ half) for i in range(LANES)]
            lower = [i ^ half if not i & half else LANES + i for i in range(LANES)]
            for i in range(LANES):
                if not i & half:
                    a, b = rows[i], rows[i + half]
                    rows[i], rows[i + half] = _shuffle(builder, a, b, upper), _shuffle(builder, a, b, lower)
            half //= 2
        for i, row in enumerate(rows):
            pointer = _pointer(context, builder, target, out, at(target_at, target_stride, i))
            builder.store(row, builder.bitcast(pointer, row.type.as_pointer())).align = 4
        return context.get_dummy_value()

    args = (source, types.intp, types.intp, target, types.intp, types.intp)
    return signature(types.void, *args), codegen

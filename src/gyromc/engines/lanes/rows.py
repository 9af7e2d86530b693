"""Whole rows of a table as vectors, as mini-batches read them.

The input is a table whose rows are multiples of sixteen numbers wide, and the offsets of the rows drawn; the output is their dot
products with one chain's θ, weighted or plain sums of rows, and transposed tiles. A row is read in one piece from where it is
stored, which is impossible with one chain per lane; everything else in a step has chains as lanes, and a 16 × 16 transposition
converts one layout into the other.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import signature

from gyromc.engines.lanes.vectors import (
    LANES,
    VECTORS,
    call_intrinsic,
    intrinsic,
    llvm_type,
    load_lanes,
    pointer_to,
    shuffle,
    splat,
)


def _integer(value: int) -> ir.Constant:
    return ir.Constant(ir.IntType(64), value)


def _row_offset(context, builder, offsetsty, offsets, first, j: int):
    """The offset of the j-th of sixteen rows; those of one chain lie sixteen apart."""
    pointer = pointer_to(context, builder, offsetsty, offsets, builder.add(first, _integer(LANES * j)))
    return builder.zext(builder.load(pointer), ir.IntType(64))


def _sums_of_lanes(builder, pairs: list):
    """The vector whose lane j is the sum for row j, from vectors that hold rows j and j + 8 in their halves."""
    half = len(pairs) // 2
    while half >= 1:
        kept = [i if not i & half else LANES + i for i in range(LANES)]
        crossed = [i ^ half if not i & half else LANES + (i ^ half) for i in range(LANES)]
        pairs = [
            builder.fadd(shuffle(builder, a, b, kept), shuffle(builder, a, b, crossed))
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
        zero = ir.Constant(llvm_type(vector), [0.0] * LANES)
        sums = [cgutils.alloca_once_value(builder, zero) for _ in range(half)]

        def joined(arrayty, array, one, other):  # half a vector from here and half from there
            halves = (load_lanes(context, builder, arrayty, array, index, half) for index in (one, other))
            return shuffle(builder, *halves, lanes=list(range(LANES)))

        with cgutils.for_range_slice(builder, _integer(0), width, _integer(half), ir.IntType(64)) as (k, _):
            place = builder.add(at, k)
            t = joined(theta, parameters, place, place)
            for j, total in enumerate(sums):
                x = joined(table, data, builder.add(origins[j], k), builder.add(origins[j + half], k))
                builder.store(call_intrinsic(builder, "fmuladd", x.type, x, t, builder.load(total)), total)
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
            x = load_lanes(context, builder, table, data, builder.add(origin, column))
            pointer = pointer_to(context, builder, weights, w, builder.add(at, _integer(j)))
            weight, before = splat(builder, builder.load(pointer)), partial[j % 2]
            if before is None:
                partial[j % 2] = builder.fmul(weight, x)
            else:
                partial[j % 2] = call_intrinsic(builder, "fmuladd", x.type, weight, x, before)
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
            rows.append(load_lanes(context, builder, table, data, builder.add(origin, column)))
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
        value = ir.Constant(llvm_type(vector), ir.Undefined)
        for j in range(LANES):
            origin = _row_offset(context, builder, offsets, where, begin, j)
            entry = builder.load(pointer_to(context, builder, table, data, builder.add(origin, column)))
            value = builder.insert_element(value, entry, ir.Constant(ir.IntType(32), j))
        return value

    return signature(vector, table, offsets, types.intp, types.intp), codegen


@intrinsic
def transpose(typingctx, source, source_at, source_stride, target, target_at, target_stride):
    """target[…j, i] = source[…i, j] for a tile of 16 × 16 numbers."""

    def codegen(context, builder, sig, args):
        data, source_at, source_stride, out, target_at, target_stride = args
        at = lambda start, stride, i: builder.add(start, builder.mul(stride, _integer(i)))
        rows = [load_lanes(context, builder, source, data, at(source_at, source_stride, i)) for i in range(LANES)]
        half = LANES // 2
        while half >= 1:  # exchange the off-diagonal blocks of every 2·half × 2·half block
            upper = [i if not i & half else LANES + (i ^ half) for i in range(LANES)]
            lower = [i ^ half if not i & half else LANES + i for i in range(LANES)]
            for i in range(LANES):
                if not i & half:
                    a, b = rows[i], rows[i + half]
                    rows[i], rows[i + half] = shuffle(builder, a, b, upper), shuffle(builder, a, b, lower)
            half //= 2
        for i, row in enumerate(rows):
            pointer = pointer_to(context, builder, target, out, at(target_at, target_stride, i))
            builder.store(row, builder.bitcast(pointer, row.type.as_pointer())).align = 4
        return context.get_dummy_value()

    args = (source, types.intp, types.intp, target, types.intp, types.intp)
    return signature(types.void, *args), codegen


@intrinsic
def read_bytes(typingctx, descriptor, array, at, count, place):
    """Read `count` bytes of an open file, from `place` on, into the array from `array[at]` on; how many were read.

    The system's `pread`: several threads may use one file.
    """

    def codegen(context, builder, sig, args):
        file, data, at, count, place = args
        word, byte = ir.IntType(64), ir.IntType(8).as_pointer()
        pointer = builder.bitcast(pointer_to(context, builder, array, data, at), byte)
        kind = ir.FunctionType(word, [ir.IntType(32), byte, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "pread")
        return builder.call(function, [builder.trunc(file, ir.IntType(32)), pointer, count, place])

    return signature(types.int64, types.int64, array, types.intp, types.int64, types.int64), codegen


@intrinsic
def copy_lanes(typingctx, target, at, source, first):
    """target[at + k] = source[first + k] for sixteen k, converted to the target's precision."""

    def codegen(context, builder, sig, args):
        out, at, data, first = args
        value = load_lanes(context, builder, source, data, first)
        wanted = llvm_type(VECTORS[str(target.dtype)])
        if source.dtype.bitwidth != target.dtype.bitwidth:
            narrower = source.dtype.bitwidth > target.dtype.bitwidth
            value = builder.fptrunc(value, wanted) if narrower else builder.fpext(value, wanted)
        pointer = pointer_to(context, builder, target, out, at)
        builder.store(value, builder.bitcast(pointer, wanted.as_pointer())).align = 4
        return context.get_dummy_value()

    return signature(types.void, target, types.intp, source, types.intp), codegen


@intrinsic
def prefetch(typingctx, array, at):
    """Begin to load the cache line of array[at]: nothing waits for it."""

    def codegen(context, builder, sig, args):
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        pointer = builder.bitcast(pointer_to(context, builder, array, *args), byte)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [pointer, word(0), word(3), word(1)])  # to read, into the nearest cache, data
        return context.get_dummy_value()

    return signature(types.void, array, types.intp), codegen

"""SIMD vectors for Numba: sixteen numbers as one value; and whole rows of a table as vectors, as mini-batches read them.

Numba code such as `a * b + 0.5` on a `Vector` becomes LLVM vector instructions, which LLVM splits into the registers that the
processor has. Rows of a table are multiples of sixteen numbers wide, and are given by their offsets. A row is read in one piece,
which is impossible with one chain per lane; a 16 × 16 transposition converts one layout into the other.
"""

import operator
from typing import Any

import numba.extending
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.extending import lower_builtin, lower_cast, register_model
from numba.core.typeconv.castgraph import Conversion
from numba.core.typing import templates
from numba.core.typing.templates import AbstractTemplate, signature

intrinsic: Any = numba.extending.intrinsic  # changes the signature in a way no type checker knows
infer_global: Any = templates.infer_global

LANES = 16
WIDTH = 4 * LANES  # chains in a block: four vectors, so that one computes while the others wait for results
_ELEMENTS = {"float32": types.float32, "float64": types.float64, "uint32": types.uint32, "uint64": types.uint64}
_IN_LLVM = {"float32": ir.FloatType(), "float64": ir.DoubleType(), "uint32": ir.IntType(32), "uint64": ir.IntType(64)}
_INT64 = ir.IntType(64)


class Vector(types.Type):
    """Sixteen numbers of one kind, or one for each chain of a block."""

    def __init__(self, kind: str, lanes: int = LANES):
        self.kind, self.lanes, self.is_float, self.bits = kind, lanes, kind.startswith("float"), int(kind[-2:])
        super().__init__(name=f"Vector({kind}, {lanes})")

    def can_convert_from(self, typingctx, other):
        return Conversion.unsafe if isinstance(other, types.Number) else None


VECTORS = {kind: Vector(kind) for kind in _ELEMENTS}


def llvm_type(vector: Vector) -> ir.VectorType:
    """The LLVM type of a vector."""
    return ir.VectorType(_IN_LLVM[vector.kind], vector.lanes)


register_model(Vector)(lambda dmm, fe_type: models.PrimitiveModel(dmm, fe_type, llvm_type(fe_type)))


def shuffle(builder, a, b, lanes: list[int]):
    """The lanes with these numbers, of a and b one after the other."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes))


def splat(builder, value, lanes: int = LANES):
    """The value in every lane."""
    undefined = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    vector = builder.insert_element(undefined, value, ir.IntType(32)(0))
    return shuffle(builder, vector, vector, [0] * lanes)


@lower_cast(types.Number, Vector)
def _from_number(context, builder, fromty, toty, value):
    return splat(builder, context.cast(builder, value, fromty, _ELEMENTS[toty.kind]), toty.lanes)


def _operation(op, float_instruction: str | None, integer_instruction: str | None, arity: int = 2) -> None:
    @infer_global(op)
    class _Template(AbstractTemplate):
        def generic(self, args, kws):
            vectors = [a for a in args if isinstance(a, Vector)]
            fits = all(isinstance(a, Vector | types.Number) for a in args) and len(set(vectors)) == 1
            if len(args) == arity and fits and (float_instruction if vectors[0].is_float else integer_instruction):
                return signature(*[vectors[0]] * (arity + 1))
            return None

    @lower_builtin(op, *[Vector] * arity)
    def _lower(context, builder, sig, args):
        name = float_instruction if sig.return_type.is_float else integer_instruction
        return getattr(builder, name)(*args)  # type: ignore[arg-type]  # `generic` accepts only types that have one


for _op, _float, _integer in (
    (operator.add, "fadd", "add"),
    (operator.sub, "fsub", "sub"),
    (operator.mul, "fmul", "mul"),
    (operator.truediv, "fdiv", None),
    (operator.and_, None, "and_"),
    (operator.or_, None, "or_"),
    (operator.xor, None, "xor"),
    (operator.lshift, None, "shl"),
    (operator.rshift, None, "lshr"),
):
    _operation(_op, _float, _integer)
_operation(operator.neg, "fneg", None, arity=1)


def call_intrinsic(builder, name: str, result: ir.VectorType, *args):
    """Call the LLVM intrinsic of that name."""
    element = {"float": "f32", "double": "f64"}.get(str(result.element), str(result.element))
    kind = ir.FunctionType(result, [a.type for a in args])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{result.count}{element}")
    return builder.call(function, args)


def _same(name: str, *arguments):
    """The signature and code of an LLVM intrinsic of vectors of one kind; numbers among them are copied to all lanes."""
    vector = next(a for a in arguments if isinstance(a, Vector))
    codegen = lambda context, builder, sig, args: call_intrinsic(builder, name, args[0].type, *args)
    return signature(vector, *[vector] * len(arguments)), codegen


@intrinsic
def fma(typingctx, a, b, c):
    """a·b + c, in one instruction where the processor has one."""
    return _same("fmuladd", a, b, c)


@intrinsic
def sqrt(typingctx, a):
    """The square root."""
    return _same("sqrt", a)


@intrinsic
def minimum(typingctx, a, b):
    """The smaller; the other one where one is NaN."""
    return _same("minnum" if isinstance(a, Vector) and a.is_float else "umin", a, b)


@intrinsic
def maximum(typingctx, a, b):
    """The larger; the other one where one is NaN."""
    return _same("maxnum" if isinstance(a, Vector) and a.is_float else "umax", a, b)


def _conversion(instruction: str, kind: str):
    """A function of one vector: the LLVM instruction that converts its lanes to this kind, of the same width."""

    @intrinsic
    def convert(typingctx, a):
        to = Vector(f"{kind}{a.bits}", a.lanes)
        codegen = lambda context, builder, sig, args: getattr(builder, instruction)(args[0], llvm_type(to))
        return signature(to, a), codegen

    return convert


bits, from_bits = _conversion("bitcast", "uint"), _conversion("bitcast", "float")
"""The bits of floats as unsigned integers, and floats from their bits."""
unsigned_to_float, signed_to_float = _conversion("uitofp", "float"), _conversion("sitofp", "float")
"""Integers as floats, read as unsigned or in two's complement."""


def _resized(a, to: Vector):
    def codegen(context, builder, sig, args):
        if a == to:
            return args[0]
        longer = builder.fpext if a.is_float else builder.zext
        return (longer if a.bits < to.bits else builder.fptrunc)(args[0], llvm_type(to))

    return to, codegen


@intrinsic
def widened(typingctx, a):
    """uint32 as uint64, float32 as float64."""
    to, codegen = _resized(a, Vector(f"{'float' if a.is_float else 'uint'}64", a.lanes))
    return signature(to, a), codegen


@intrinsic
def converted(typingctx, a, array):
    """Floats in the precision of an array."""
    to, codegen = _resized(a, Vector(str(array.dtype), a.lanes))
    return signature(to, a, array), codegen


@intrinsic
def shift_signed(typingctx, a, count):
    """Integers in two's complement, shifted right with their sign."""
    return signature(a, a, a), lambda context, builder, sig, args: builder.ashr(*args)


@intrinsic
def scaled_down(typingctx, a, factor):
    """⌊a · factor / 2³²⌋ for uint32, by two 32 × 32 → 64 bit products: one for the even lanes, one for the odd."""

    def codegen(context, builder, sig, args):
        pair = ir.VectorType(_INT64, LANES // 2)
        constant = lambda value: ir.Constant(pair, [value] * (LANES // 2))
        x, low = builder.bitcast(args[0], pair), constant(0xFFFFFFFF)
        f = builder.and_(builder.bitcast(args[1], pair), low)
        even = builder.lshr(builder.mul(builder.and_(x, low), f), constant(32))
        odd = builder.and_(builder.mul(builder.lshr(x, constant(32)), f), constant(0xFFFFFFFF00000000))
        return builder.bitcast(builder.or_(even, odd), args[0].type)

    return signature(a, a, a), codegen


@intrinsic
def any_above(typingctx, a, limit):
    """Whether some lane of unsigned integers exceeds the limit."""

    def codegen(context, builder, sig, args):
        mask = builder.bitcast(builder.icmp_unsigned(">", *args), ir.IntType(LANES))
        return builder.icmp_unsigned("!=", mask, ir.Constant(ir.IntType(LANES), 0))

    return signature(types.boolean, a, a), codegen


@intrinsic
def where_equal(typingctx, a, b, yes, no):
    """`yes` in the lanes where a and b, unsigned integers, are equal, `no` in the others."""
    choose = lambda context, builder, sig, args: builder.select(builder.icmp_unsigned("==", *args[:2]), *args[2:])
    return signature(a, a, a, a, a), choose


def pointer_to(context, builder, arrayty, array, index):
    """The address of array[index]."""
    data = context.make_array(arrayty)(context, builder, array).data
    return builder.gep(data, [index])


def load_lanes(context, builder, arrayty, array, index, lanes: int = LANES):
    """Neighbours of a one-dimensional array, as a vector of so many lanes."""
    vector = Vector(str(arrayty.dtype), lanes)
    pointer = pointer_to(context, builder, arrayty, array, index)
    loaded = builder.load(builder.bitcast(pointer, llvm_type(vector).as_pointer()))
    loaded.align = vector.bits // 8  # rows may start anywhere; aligned loads are as fast
    return loaded


def store_lanes(context, builder, arrayty, array, index, value):
    """Store a vector in neighbouring places of a one-dimensional array."""
    pointer = pointer_to(context, builder, arrayty, array, index)
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer())).align = arrayty.dtype.bitwidth // 8
    return context.get_dummy_value()


def _load(lanes: int):
    @intrinsic
    def load(typingctx, array, index):
        vector = Vector(str(array.dtype), lanes)
        codegen = lambda context, builder, sig, args: load_lanes(context, builder, array, *args, lanes=lanes)
        return signature(vector, array, types.intp), codegen

    return load


def _zeros(lanes: int):
    @intrinsic
    def zeros(typingctx, array):
        vector = Vector(str(array.dtype), lanes)
        zero = ir.Constant(llvm_type(vector), [0.0 if vector.is_float else 0] * lanes)
        return signature(vector, array), lambda context, builder, sig, args: zero

    return zeros


load, load_block = _load(LANES), _load(WIDTH)
zeros_like, zero_block = _zeros(LANES), _zeros(WIDTH)


@intrinsic
def store(typingctx, array, index, vector):
    """Store a vector in neighbouring places of a one-dimensional array."""
    codegen = lambda context, builder, sig, args: store_lanes(context, builder, array, *args)
    return signature(types.void, array, types.intp, vector), codegen


@intrinsic
def number(typingctx, array, index):
    """array[index] without the wrap-around of negative indices; the index must be inside."""
    codegen = lambda context, builder, sig, args: builder.load(pointer_to(context, builder, array, *args))
    return signature(array.dtype, array, types.intp), codegen


@intrinsic
def called(typingctx, address, t, y):
    """The vector that a function makes of two, given its address; they are passed as pointers, and it replaces the first."""

    def codegen(context, builder, sig, args):
        places = [cgutils.alloca_once_value(builder, x) for x in args[1:]]
        kind = ir.FunctionType(ir.VoidType(), [place.type for place in places])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), places)
        return builder.load(places[0])

    return signature(t, types.int64, t, y), codegen


def _row_offset(context, builder, offsetsty, offsets, first, j: int):
    """The offset of the j-th of sixteen rows; those of one chain lie sixteen apart."""
    pointer = pointer_to(context, builder, offsetsty, offsets, builder.add(first, _INT64(LANES * j)))
    return builder.zext(builder.load(pointer), _INT64)


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

        with cgutils.for_range_slice(builder, _INT64(0), width, _INT64(half), _INT64) as (k, _):
            place = builder.add(at, k)
            t = joined(theta, parameters, place, place)
            for j, total in enumerate(sums):
                x = joined(table, data, builder.add(origins[j], k), builder.add(origins[j + half], k))
                builder.store(call_intrinsic(builder, "fmuladd", x.type, x, t, builder.load(total)), total)
        pairs, apart = [builder.load(total) for total in sums], half // 2  # rows j and j + 8 in their halves
        while apart >= 1:
            kept = [i if not i & apart else LANES + i for i in range(LANES)]
            crossed = [i ^ apart if not i & apart else LANES + (i ^ apart) for i in range(LANES)]
            pairs = [
                builder.fadd(shuffle(builder, a, b, kept), shuffle(builder, a, b, crossed))
                for a, b in zip(pairs[:apart], pairs[apart:], strict=True)
            ]
            apart //= 2
        return pairs[0]

    args = (table, offsets, types.intp, theta, types.intp, types.intp)
    return signature(vector, *args), codegen


@intrinsic
def add_weighted_rows(typingctx, table, offsets, first, column, weights, at, total):
    """total + Σ_j weights[at + j] · (sixteen numbers of row j from `column` on), over sixteen rows."""

    def codegen(context, builder, sig, args):
        data, where, begin, column, w, at, value = args
        partial = [value]
        for j in range(LANES):
            origin = _row_offset(context, builder, offsets, where, begin, j)
            x = load_lanes(context, builder, table, data, builder.add(origin, column))
            pointer = pointer_to(context, builder, weights, w, builder.add(at, _INT64(j)))
            weight = splat(builder, builder.load(pointer))
            if j == 1:
                partial.append(builder.fmul(weight, x))
            else:
                partial[j % 2] = call_intrinsic(builder, "fmuladd", x.type, weight, x, partial[j % 2])
        return builder.fadd(*partial)

    args = (table, offsets, types.intp, types.intp, weights, types.intp, total)
    return signature(total, *args), codegen


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
            value = builder.insert_element(value, entry, ir.IntType(32)(j))
        return value

    return signature(vector, table, offsets, types.intp, types.intp), codegen


@intrinsic
def transpose(typingctx, source, source_at, source_stride, target, target_at, target_stride):
    """target[…j, i] = source[…i, j] for a tile of 16 × 16 numbers."""

    def codegen(context, builder, sig, args):
        data, source_at, source_stride, out, target_at, target_stride = args
        at = lambda start, stride, i: builder.add(start, builder.mul(stride, _INT64(i)))
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
            store_lanes(context, builder, target, out, at(target_at, target_stride, i), row)
        return context.get_dummy_value()

    args = (source, types.intp, types.intp, target, types.intp, types.intp)
    return signature(types.void, *args), codegen


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

"""SIMD vectors for Numba: sixteen numbers as one value.

Numba code such as `a * b + 0.5` on a `Vector` becomes LLVM vector instructions. A `Vector` is sixteen float32, float64, uint32
or uint64. LLVM splits it into the registers the processor has (one AVX-512 register of float32, two of AVX2, four of NEON), so
the same code works everywhere. Nothing is left to a loop vectoriser, which gives up on aliasing and on short loops.
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
_ELEMENTS = {"float32": types.float32, "float64": types.float64, "uint32": types.uint32, "uint64": types.uint64}
_IN_LLVM = {"float32": ir.FloatType(), "float64": ir.DoubleType(), "uint32": ir.IntType(32), "uint64": ir.IntType(64)}


class Vector(types.Type):
    """Sixteen numbers of one kind."""

    def __init__(self, kind: str):
        self.kind, self.is_float, self.bits = kind, kind.startswith("float"), int(kind[-2:])
        super().__init__(name=f"Vector({kind})")

    def can_convert_from(self, typingctx, other):
        return Conversion.unsafe if isinstance(other, types.Number) else None


VECTORS = {kind: Vector(kind) for kind in _ELEMENTS}


def llvm_type(vector: Vector, lanes: int = LANES) -> ir.VectorType:
    """The LLVM type of a vector, or of some of its lanes."""
    return ir.VectorType(_IN_LLVM[vector.kind], lanes)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, llvm_type(fe_type))


def splat(builder, value, lanes: int = LANES):
    """The value in every lane."""
    vector = builder.insert_element(
        ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined), value, ir.Constant(ir.IntType(32), 0)
    )
    return shuffle(builder, vector, vector, [0] * lanes)


def shuffle(builder, a, b, lanes: list[int]):
    """The lanes with these numbers, of a and b one after the other."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes))


@lower_cast(types.Number, Vector)
def _from_number(context, builder, fromty, toty, value):
    return splat(builder, context.cast(builder, value, fromty, _ELEMENTS[toty.kind]))


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
    _operation(getattr(operator, "i" + _op.__name__.rstrip("_")), _float, _integer)
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

    def codegen(context, builder, sig, args):
        return call_intrinsic(builder, name, args[0].type, *args)

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
        to = VECTORS[f"{kind}{a.bits}"]
        return signature(to, a), lambda context, builder, sig, args: getattr(builder, instruction)(
            args[0], llvm_type(to)
        )

    return convert


bits, from_bits = _conversion("bitcast", "uint"), _conversion("bitcast", "float")
"""The bits of floats as unsigned integers, and floats from their bits."""
unsigned_to_float, signed_to_float = _conversion("uitofp", "float"), _conversion("sitofp", "float")
"""Integers as floats, read as unsigned or in two's complement."""


@intrinsic
def widened(typingctx, a):
    """uint32 as uint64, float32 as float64."""
    wide = VECTORS[f"{'float' if a.is_float else 'uint'}64"]

    def codegen(context, builder, sig, args):
        if a == wide:
            return args[0]
        return (builder.fpext if a.is_float else builder.zext)(args[0], llvm_type(wide))

    return signature(wide, a), codegen


@intrinsic
def shift_signed(typingctx, a, count):
    """Integers in two's complement, shifted right with their sign."""
    return signature(a, a, a), lambda context, builder, sig, args: builder.ashr(*args)


@intrinsic
def scaled_down(typingctx, a, factor):
    """⌊a · factor / 2³²⌋ for uint32, by two 32 × 32 → 64 bit products: one for the even lanes, one for the odd."""

    def codegen(context, builder, sig, args):
        pair = ir.VectorType(ir.IntType(64), LANES // 2)
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


def _comparison(predicate: str, ordered: bool = True):
    """A function of two vectors of floats: all bits set where the comparison holds, none where it does not."""

    @intrinsic
    def compare(typingctx, a, b):
        vector = a if isinstance(a, Vector) else b
        mask = VECTORS[f"uint{vector.bits}"]

        def codegen(context, builder, sig, args):
            holds = (builder.fcmp_ordered if ordered else builder.fcmp_unordered)(predicate, *args)
            return builder.sext(holds, llvm_type(mask))

        return signature(mask, vector, vector), codegen

    return compare


less, at_most, equal, unequal = _comparison("<"), _comparison("<="), _comparison("=="), _comparison("!=", ordered=False)


@intrinsic
def selected(typingctx, mask, yes, no):
    """`yes` in the lanes where the mask of a comparison is set, `no` in the others; both floats."""
    vector = VECTORS[f"float{mask.bits}"]

    def codegen(context, builder, sig, args):
        mask, yes, no = args
        return builder.select(builder.icmp_unsigned("!=", mask, ir.Constant(mask.type, [0] * LANES)), yes, no)

    return signature(vector, mask, vector, vector), codegen


@intrinsic
def where_equal(typingctx, a, b, yes, no):
    """`yes` in the lanes where a and b, unsigned integers, are equal, `no` in the others."""

    def codegen(context, builder, sig, args):
        a, b, yes, no = args
        return builder.select(builder.icmp_unsigned("==", a, b), yes, no)

    return signature(a, a, a, a, a), codegen


def pointer_to(context, builder, arrayty, array, index):
    """The address of array[index]."""
    data = context.make_array(arrayty)(context, builder, array).data
    return builder.gep(data, [index])


def load_lanes(context, builder, arrayty, array, index, lanes: int = LANES):
    """Neighbours of a one-dimensional array, as a vector of so many lanes."""
    vector = VECTORS[str(arrayty.dtype)]
    pointer = pointer_to(context, builder, arrayty, array, index)
    loaded = builder.load(builder.bitcast(pointer, llvm_type(vector, lanes).as_pointer()))
    loaded.align = vector.bits // 8  # rows may start anywhere; aligned loads are as fast
    return loaded


@intrinsic
def load(typingctx, array, index):
    """Load sixteen neighbours from a one-dimensional array."""
    return signature(VECTORS[str(array.dtype)], array, types.intp), lambda context, builder, sig, args: load_lanes(
        context, builder, array, *args
    )


@intrinsic
def store(typingctx, array, index, vector):
    """Store sixteen neighbours in a one-dimensional array."""

    def codegen(context, builder, sig, args):
        pointer = pointer_to(context, builder, array, args[0], args[1])
        builder.store(args[2], builder.bitcast(pointer, args[2].type.as_pointer())).align = vector.bits // 8
        return context.get_dummy_value()

    return signature(types.void, array, types.intp, vector), codegen


@intrinsic
def number(typingctx, array, index):
    """array[index] without the wrap-around of negative indices; the index must be inside."""
    return signature(array.dtype, array, types.intp), lambda context, builder, sig, args: builder.load(
        pointer_to(context, builder, array, *args)
    )


@intrinsic
def zeros_like(typingctx, array):
    """Sixteen zeros of the array's kind."""
    vector = VECTORS[str(array.dtype)]
    return signature(vector, array), lambda context, builder, sig, args: ir.Constant(
        llvm_type(vector), [0.0 if vector.is_float else 0] * LANES
    )

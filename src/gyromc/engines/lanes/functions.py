"""Functions on vectors (log, exp, sin, cos, tanh, softplus, logistic) and their random numbers: words, normals, row numbers.

Each function reduces its argument to a short interval and evaluates a polynomial there, interpolated at Chebyshev points. Largest
errors, tested (one ulp is 1.2e-7 relative in float32, 2.2e-16 in float64):

| function | range | float32 | float64 |
|---|---|---|---|
| `log`, `exp` | normal numbers; ±87, ±708, clamped beyond | 2 ulp | 2 ulp |
| `sin`; `cos` | up to 10⁴; up to 10 | 2e-7; 5e-7 absolute | 2e-15 absolute |
| `tanh`, `logistic` | everywhere | 2.5e-7 absolute | 5e-16 absolute |
| `softplus` | everywhere | 3 ulp of 1 + value | 3 ulp of 1 + value |

Each chain has its own stream of random numbers, of xoshiro128++ (128 bits of state, period 2¹²⁸ - 1; it passes BigCrush), whose
initial state is SplitMix64's output for (seed, chain): threads, blocks and chunks do not change a result. Two of R streams of T
words overlap with a probability of at most R²T/2¹²⁸. Normals come in pairs by Box and Muller's formula: in float32 the radius
uses one word of 32 bits and reaches 6.7 standard deviations; in float64 two words, and 9.4.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core.typing.templates import signature
from numba.extending import overload

from gyromc.engines.lanes.vectors import (
    Vector,
    bits,
    call_intrinsic,
    fma,
    from_bits,
    intrinsic,
    maximum,
    minimum,
    scaled_down,
    shift_signed,
    signed_to_float,
    sqrt,
    unsigned_to_float,
    widened,
)

COMPILED: Any = {"error_model": "numpy", "_nrt": False}
inlined: Any = njit(forceinline=True, **COMPILED)


def polynomial(function: Callable, low: float, high: float, degrees: tuple[int, int]):
    """A Numba function: the polynomial that equals `function` at Chebyshev points; `degrees` in float32 and float64."""
    fits = (np.polynomial.Chebyshev.interpolate(function, degree, domain=[low, high]) for degree in degrees)
    single, double = (fit.convert(kind=np.polynomial.Polynomial).coef for fit in fits)
    # LLVM requires a float32 constant to be exactly representable.
    tables = {"float32": single.astype(np.float32).tolist(), "float64": double.tolist()}

    @intrinsic
    def evaluate(typingctx, x):
        def codegen(context, builder, sig, args):
            vector = args[0].type
            value, *rest = (ir.Constant(vector, [c] * vector.count) for c in reversed(tables[x.kind]))
            for constant in rest:
                value = call_intrinsic(builder, "fmuladd", vector, value, args[0], constant)  # Horner
            return value

        return signature(x, x), codegen

    return evaluate


# The series without their leading terms, which the functions below add exactly.
_series = lambda term, count=60: np.polynomial.Polynomial([term(k) for k in range(count)])
_LOG = polynomial(_series(lambda k: (-1) ** k / (k + 3)), math.sqrt(0.5) - 1, math.sqrt(2) - 1, (8, 20))
_EXP = polynomial(_series(lambda k: 1 / math.factorial(k + 2)), -math.log(2) / 2, math.log(2) / 2, (4, 10))
_SIN = polynomial(_series(lambda k: (-1) ** (k + 1) / math.factorial(2 * k + 3), 30), 0.0, math.pi**2 / 4, (3, 8))
_COS = polynomial(_series(lambda k: (-1) ** k / math.factorial(2 * k + 4), 30), 0.0, math.pi**2 / 4, (3, 8))


@inlined
def sin_small(x):
    """sin x for |x| ≤ π/2."""
    u = x * x
    return fma(x * u, _SIN(u), x)


@inlined
def cos_small(x):
    """cos x for |x| ≤ π/2."""
    u = x * x
    return fma(u * u, _COS(u), fma(u, -0.5, 1.0))


def on_vectors(numpy_function):
    """Decorate a function that returns the implementation for a type of vector; NumPy's function then means this on vectors."""

    def register(implementation):
        @overload(numpy_function)
        def choose(x):
            return implementation(x) if isinstance(x, Vector) and x.is_float else None

        return numpy_function

    return register


@on_vectors(np.log)
def log(x):
    """The natural logarithm of positive normal numbers, from x = 2ᵉ (1 + f) with √½ ≤ 1 + f < √2."""
    root_half = int(np.array(math.sqrt(0.5), x.kind).view(f"uint{x.bits}"))
    mantissa = 23 if x.bits == 32 else 52
    ln2_high = float(np.float32(math.log(2)))
    ln2_low = math.log(2) - ln2_high

    def impl(x):
        i = bits(x)
        exponent = shift_signed(i - root_half, mantissa)
        e, f = signed_to_float(exponent), from_bits(i - (exponent << mantissa)) - 1.0
        u = f * f
        tail = fma(e, ln2_low, fma(f * u, _LOG(f), u * -0.5))
        return fma(e, ln2_high, f + tail)

    return impl


@on_vectors(np.exp)
def exp(x):
    """The exponential; arguments beyond the range of the floats are clamped."""
    mantissa = 23 if x.bits == 32 else 52
    low, high = (-87.3, 88.3) if x.bits == 32 else (-708.0, 709.0)
    magic = 1.5 * 2.0**mantissa  # adding it leaves the whole number in the low bits
    ln2_high = 0.693359375 if x.bits == 32 else math.ldexp(math.floor(math.ldexp(math.log(2), 40)), -40)
    ln2_low = float(np.log(np.longdouble(2)) - np.longdouble(ln2_high))

    def impl(x):
        x = minimum(maximum(x, low), high)
        t = fma(x, 1.4426950408889634, magic)
        q = t - magic
        r = fma(q, -ln2_low, fma(q, -ln2_high, x))
        p = fma(r * r, _EXP(r), r) + 1.0
        return from_bits(bits(p) + (bits(t) << mantissa))

    return impl


@on_vectors(np.sin)
def sin(x):
    """The sine."""
    mantissa = 23 if x.bits == 32 else 52
    magic = 1.5 * 2.0**mantissa
    high = 3.140625 if x.bits == 32 else math.ldexp(math.floor(math.ldexp(math.pi, 30)), -30)
    low = float(np.longdouble("3.14159265358979323846264338327950288") - np.longdouble(high))
    sign_shift = x.bits - 1
    edge = math.pi / 2

    def impl(x):
        t = fma(x, 0.3183098861837907, magic)  # x/π to the nearest whole number q
        q = t - magic
        r = fma(q, -low, fma(q, -high, x))
        r = minimum(maximum(r, -edge), edge)  # for huge x, where r has no digits left, sin stays in [-1, 1]
        return from_bits(bits(sin_small(r)) ^ (bits(t) << sign_shift))  # sin x = (-1)^q sin r

    return impl


@inlined
def cos(x):
    """The cosine."""
    return sin(x + 1.5707963267948966)


@inlined
def logistic(x):
    """1/(1 + e^{-x})."""
    return 1.0 / (exp(0.0 - x) + 1.0)


@inlined
def tanh(x):
    """The hyperbolic tangent."""
    return 1.0 - 2.0 / (exp(x * 2.0) + 1.0)


@inlined
def softplus(x):
    """log(1 + eˣ) = max(x, 0) + log(1 + e^{-|x|})."""
    return maximum(x, 0.0) + log(exp(0.0 - maximum(x, 0.0 - x)) + 1.0)


GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mixed(x: np.ndarray) -> np.ndarray:
    """SplitMix64's output function: a bijection of 64 bits in which every bit of the input affects all of the output."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def streams(seed: int, num_chains: int) -> np.ndarray:
    """The initial states, num_chains × 4 words; more chains leave the first streams as they are."""
    with np.errstate(over="ignore"):
        origin = _mixed(np.array([seed, seed ^ 0x5851F42D4C957F2D], np.uint64) + GOLDEN)
        counter = np.arange(1, num_chains + 1, dtype=np.uint64)[:, None] * GOLDEN
        words = _mixed(_mixed(origin) + counter)
    return np.ascontiguousarray(words).view(np.uint32).reshape(num_chains, 4)


@inlined
def _rotated(x, count):
    return (x << count) | (x >> (32 - count))


@inlined
def next_word(s):
    """xoshiro128++: the next states of the generators, and a word of 32 random bits from each."""
    a, b, c, d = s
    word = _rotated(a + d, 7) + a
    t = b << 9
    c = c ^ a
    d = d ^ b
    b = b ^ c
    a = a ^ d
    c = c ^ t
    d = _rotated(d, 11)
    return (a, b, c, d), word


@inlined
def next_index(s, count):
    """Row numbers from 0 to count - 1; no two probabilities differ by more than a factor 1 + count/2³²."""
    s, word = next_word(s)
    return s, scaled_down(word, count)


@inlined
def next_wide(s):
    """A word of 64 random bits from each generator."""
    s, high = next_word(s)
    s, low = next_word(s)
    return s, (widened(high) << 32) | widened(low)


def normal_pair(s, like) -> Any:
    """Two vectors of independent standard normals, in the precision of the array `like`."""
    raise NotImplementedError("for Numba code on vectors")


@overload(normal_pair, jit_options={"forceinline": True, "error_model": "numpy"})
def _normal_pair(s, like):
    width = like.dtype.bitwidth
    next_bits = next_word if width == 32 else next_wide
    unit, half_turn, sign = 2.0**-width, math.pi / 2 * 2.0 ** (1 - width), 1 << (width - 1)

    def pair(s, like):
        s, first = next_bits(s)
        s, second = next_bits(s)
        u = (unsigned_to_float(first) + 0.5) * unit  # in (0, 1], with a fine grid near 0, where the tails are
        radius = sqrt(maximum(log(u) * -2.0, 0.0))
        angle = signed_to_float(second << 1) * half_turn  # half a turn; the top bit chooses the half
        radius = from_bits(bits(radius) ^ (second & sign))
        return s, radius * sin_small(angle), radius * cos_small(angle)

    return pair

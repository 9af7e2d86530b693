"""The kernel's instructions in Pallas' Mosaic GPU lowering, the one that JAX keeps; for GPUs of compute capability 9 and newer.

A block is one warpgroup: 128 threads, each with one entry of every tile. What Pallas itself cannot lower there (reading a row of
data by number, exchanges between threads, assembly, functions such as log1p) is inlined as operations on one thread's number.
"""

import contextlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm, math, memref

from gyromc.engines.pallas.instructions import Instructions, approximate_pair, broadcast, exchange
from gyromc.engines.unrolled import Unsupported, replacing

THREADS = 128
TILE = (THREADS,)
_SIGNED = {"int32": True, "uint32": False, "float32": None}
_FUNCTIONS = """
    acos acosh asin asinh atan atanh cbrt ceil cosh expm1 floor log log1p sinh sqrt tan
"""  # named alike in JAX and in MLIR's dialect `math`


class Mosaic(Instructions):
    """One warpgroup per block; memory is read and written by number."""

    unrolls = True
    whole = True
    warps_per_block = THREADS // 32

    def high_word(self, constant: int, x):
        return _assembled(f"mul.hi.u32 $0, $1, {constant};", x, "r")

    def pair(self, u, angle):
        return approximate_pair(lambda assembly, x: _assembled(assembly, x, "f"), u, angle)

    def exchanged(self, x, distance: int):
        return _assembled(exchange(distance), x, "f", moves=True)

    def from_thread(self, x, number: int, team: int):
        return _assembled(broadcast(number, team), x, "f", moves=True)

    def apart(self, tiles: list) -> list:
        return tiles

    def condition(self, holds):
        return _full(holds) != 0

    def index(self, tile):
        return plgpu.layout_cast(
            jax.lax.broadcasted_iota(jnp.int32, tile, 0), plgpu.Layout.WG_STRIDED(TILE, vec_size=1)
        )

    def read(self, ref, row, where):
        return _inlined(
            lambda r, c, memory: memref.load(memory, [_index(r), _index(c)]),
            ref.dtype,
            _full(row),
            _full(where),
            ref=ref,
        )

    def write(self, ref, row, where, value) -> None:
        def store(r, c, v, memory):
            memref.store(v, memory, [_index(r), _index(c)])

        _inlined(store, None, _full(row), where, value, ref=ref)

    def refusing(self) -> contextlib.AbstractContextManager:
        return replacing({"rem": _remainder})

    def functions(self) -> contextlib.AbstractContextManager:
        return replacing(_replacements())

    def block(self):
        return jax.lax.axis_index("block")

    def call(self, body: Callable, inputs, shapes, num_blocks: int, warps: int) -> Callable:
        del inputs, warps
        return plgpu.kernel(body, out_type=tuple(shapes), grid=(num_blocks,), grid_names=("block",))


def _full(x):
    return jnp.broadcast_to(jnp.asarray(x, jnp.int32), TILE)


def _index(word):
    return arith.index_cast(ir.IndexType.get(), word)


def _assembled(assembly: str, x, kind: str, moves: bool = False):
    """One instruction on a number of every thread; `moves` says that threads take part together."""

    def emit(value):
        return llvm.inline_asm(value.type, [value], assembly, f"={kind},{kind}", has_side_effects=moves)

    return _inlined(emit, x.dtype, x)


def _inlined(emit: Callable, dtype, *tiles, ref=None):
    """`emit` applied to the numbers of each thread, and to the memory `ref` if given; a tile, or None without a `dtype`."""
    layout = plgpu.Layout.WG_STRIDED(TILE, vec_size=1)
    result = None if dtype is None else plgpu.ShapeDtypeStruct(TILE, dtype, layout=layout)
    memory = () if ref is None else (ref,)

    def inline(_, *args):
        *rest, first = args[len(memory) :][::-1]
        others: list = []
        for array in rest[::-1]:
            array.foreach(lambda value, _: others.append(value))
        signed = None if dtype is None else _SIGNED[np.dtype(dtype).name]
        made = first.foreach(
            lambda value, _: emit(value, *others, *args[: len(memory)]),
            create_array=dtype is not None,
            is_signed=signed,
        )
        return made if dtype is not None else ()

    types = (*(plgpu.RefType() for _ in memory), *(layout for _ in tiles))
    return plgpu.inline_mgpu(arg_types=types, return_type=() if result is None else result)(inline)(
        *memory, *(plgpu.layout_cast(tile, layout) for tile in tiles)
    )


def _replacements() -> dict[str, Callable]:
    """Functions of tiles in place of JAX operations that Mosaic does not lower in every release."""
    found: dict[str, Callable] = {
        name: lambda x, name=name, **_: _inlined(getattr(math, name), x.dtype, x) for name in _FUNCTIONS.split()
    }
    found["pow"] = lambda x, y: _inlined(math.powf, x.dtype, x, y.astype(x.dtype))
    found["atan2"] = lambda y, x: _inlined(math.atan2, x.dtype, y, x)
    found["rem"] = _remainder
    found["is_finite"] = lambda x: jnp.abs(x) < np.float32(np.inf)
    found["integer_pow"] = _whole_power
    found["stop_gradient"] = found["copy"] = lambda x: x
    return found


def _remainder(x, y):
    if jnp.issubdtype(x.dtype, jnp.floating):
        raise Unsupported("the operation `rem` of floats, which the lowering `mosaic` lacks")
    return jax.lax.rem(x, y)


def _whole_power(x, y: int):
    return jax.lax.integer_pow(x, y) if y > 1 else 1 / jax.lax.integer_pow(x, -y) if y < -1 else x if y == 1 else 1 / x

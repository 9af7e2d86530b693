"""A user's scalar function as machine code for vectors: the slopes of custom losses and of potentials.

`VectorFunction` writes the operations of a function's jaxpr as LLVM instructions on sixteen numbers; `address` is where the loop
calls them. A new function takes milliseconds, not a loop of its own. `Unsupported` is raised for an operation that vectors lack.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.core.typing.templates import signature

from gyromc.engines.lanes import functions
from gyromc.engines.lanes.vectors import LANES, VECTORS, call_intrinsic, llvm_type
from gyromc.engines.unrolled import Unsupported, entries, unroll

INSTRUCTIONS = {
    **{"add": "fadd", "add_any": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "neg": "fneg"},
    **{"and": "and_", "or": "or_", "not": "not_"},
}
"""Operations of a jaxpr as methods of llvmlite's builder."""
COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "=="}
INTRINSICS = {"max": "maxnum", "min": "minnum", "abs": "fabs", "sqrt": "sqrt"}
CALLED = ("exp", "log", "sin", "cos", "tanh", "logistic")
"""Those that are functions of `functions`."""
FORMULAS: dict[str, Callable] = {
    "log1p": lambda x: jnp.log(x + 1),
    "expm1": lambda x: jnp.exp(x) - 1,
    "rsqrt": lambda x: 1 / jnp.sqrt(x),
    "cosh": lambda x: (jnp.exp(x) + jnp.exp(-x)) * 0.5,
    "sinh": lambda x: (jnp.exp(x) - jnp.exp(-x)) * 0.5,
    "sign": lambda x: jnp.where(x > 0, 1, jnp.where(x < 0, -1, 0)).astype(x.dtype),
    "square": lambda x: x * x,
}
OF_TRUTH = ("and", "or", "not", "select_n", "convert_element_type", "stop_gradient", "copy")
"""Operations that take what a comparison returns."""
MAX_POWER = 16


class VectorFunction:
    """A function of one or two numbers, compiled for vectors of a precision; its code is released with it."""

    def __init__(self, function: Callable, num_arguments: int, kind: str):
        text, *libraries = written(function, num_arguments, kind)
        module = llvm.parse_assembly(text)
        for library in libraries:
            module.link_in(llvm.parse_assembly(library))
        for linked in module.functions:
            if not linked.is_declaration and linked.name != "users":
                linked.linkage = "internal"
                linked.add_function_attribute("alwaysinline")
        passes = llvm.create_new_module_pass_manager()
        passes.add_global_dead_code_eliminate_pass()
        passes.add_always_inliner_pass()
        passes.add_sroa_pass()
        passes.add_simplify_cfg_pass()
        passes.run(module, _pass_builder())
        # An engine of its own: what Numba's engine has compiled stays in memory until the process ends.
        self.engine = llvm.create_mcjit_compiler(module, _machine())
        self.engine.finalize_object()
        self.address = self.engine.get_function_address("users")


def _machine() -> llvm.TargetMachine:
    cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target.create_target_machine(cpu=cpu, features=features, opt=3, jit=True)


@functools.cache
def _pass_builder() -> Any:
    """One for all functions: its memory is never given back."""
    return llvm.create_pass_builder(_machine(), llvm.create_pipeline_tuning_options())


def written(function: Callable, num_arguments: int, kind: str) -> list[str]:
    """The LLVM text of `users(a, b)`, which replaces the vector at the first pointer by the values; and of what it calls."""
    vector, module = llvm_type(VECTORS[kind]), ir.Module()
    module.triple = llvm.get_process_triple()
    place = ir.Function(module, ir.FunctionType(ir.VoidType(), [vector.as_pointer()] * 2), "users")
    builder = ir.IRBuilder(place.append_basic_block())
    writer, vectors = _Writer(builder, kind), [builder.load(argument) for argument in place.args[:num_arguments]]
    with jax.enable_x64(kind == "float64"):
        scalar = jax.ShapeDtypeStruct((), np.dtype(kind))
        unrolled = unroll(function, *[scalar] * num_arguments, operation=writer.operation)
        result = unrolled(*(entries([x], ()) for x in vectors))[()]
    instructions: list[Any] = [*vectors, builder.store(writer.vector(result), place.args[0])]
    for instruction in instructions:
        instruction.align = VECTORS[kind].bits // 8  # a vector may lie wherever a number may
    builder.ret_void()
    return [str(module), *(text for _, text in writer.libraries.values())]


class _Writer:
    """Writes operations on vectors; numbers among their arguments are copied to all lanes."""

    def __init__(self, builder: ir.IRBuilder, kind: str):
        self.builder, self.kind = builder, kind
        self.libraries: dict[str, tuple[str, str]] = {}

    def vector(self, x):
        if isinstance(x, ir.Value):
            return x
        if np.asarray(x).dtype == bool:
            return ir.Constant(ir.VectorType(ir.IntType(1), LANES), [int(x)] * LANES)
        return ir.Constant(llvm_type(VECTORS[self.kind]), [float(x)] * LANES)

    def operation(self, equation) -> Callable:
        return lambda *args: self.write(equation.primitive.name, equation, *map(self.vector, args))

    def write(self, name: str, equation, *args):
        builder = self.builder
        if name not in OF_TRUTH and any(x.type.element == ir.IntType(1) for x in args):
            raise Unsupported(f"the operation `{name}` of truth values")
        if name in INSTRUCTIONS:
            return getattr(builder, INSTRUCTIONS[name])(*args)
        if name in COMPARISONS:
            return builder.fcmp_ordered(COMPARISONS[name], *args)
        if name == "ne":
            return builder.fcmp_unordered("!=", *args)
        if name in INTRINSICS:
            return call_intrinsic(builder, INTRINSICS[name], args[0].type, *args)
        if name in CALLED:
            return self.called(name, *args)
        if name in FORMULAS:
            scalar = jax.ShapeDtypeStruct((), np.dtype(self.kind))
            return self.vector(unroll(FORMULAS[name], scalar, operation=self.operation)(entries(args, ()))[()])
        if name == "integer_pow" and 1 <= abs(equation.params["y"]) <= MAX_POWER:
            power = functools.reduce(builder.fmul, args * abs(equation.params["y"]))
            return power if equation.params["y"] > 0 else builder.fdiv(self.vector(1.0), power)
        if name == "select_n" and len(args) == 3:
            return builder.select(args[0], args[2], args[1])
        if name in ("stop_gradient", "copy"):
            return args[0]
        if name == "convert_element_type" and jnp.issubdtype(equation.params["new_dtype"], jnp.floating):
            truth = args[0].type.element == ir.IntType(1)
            return builder.uitofp(args[0], llvm_type(VECTORS[self.kind])) if truth else args[0]
        raise Unsupported(f"the operation `{name}`")

    def called(self, name: str, x):
        """A function of `functions`, to be linked from what Numba makes of it: it stores its result and returns a status."""
        builder = self.builder
        symbol, _ = self.libraries[name] = _library(name, self.kind)
        place, none = builder.alloca(x.type), ir.Constant(ir.IntType(8).as_pointer(), None)
        kind = ir.FunctionType(ir.IntType(32), [place.type, none.type, x.type])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, symbol), [place, none, x])
        return builder.load(place)


@functools.cache
def _library(name: str, kind: str) -> tuple[str, str]:
    """A function of `functions` as LLVM text, after its name there."""
    own, vector = getattr(functions, name), VECTORS[kind]
    compiled = numba.cfunc(signature(vector, vector), forceinline=True, **functions.COMPILED)(lambda x: own(x))
    return compiled.native_name.removeprefix("cfunc."), compiled.inspect_llvm()

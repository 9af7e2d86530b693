"""PyMC models as targets, through the JAX form of their log density.

A target is over the model's value variables (the unconstrained parameters), and reports its random variables and deterministics.
"""

# PyMC is not in the environment that types are checked in: it needs other versions of packages than the other extras.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from gyromc.checks import cause, require
from gyromc.errors import InvalidInput
from gyromc.extras import needs
from gyromc.interop.models import LARGEST_REPORTED, ModelPosterior, Structure
from gyromc.runtime.precision import fresh


@contextlib.contextmanager
def _settings_kept() -> Iterator[None]:
    """Keep JAX as it is: PyMC's module for JAX asks for 100 devices and switches to double precision."""
    flags, x64 = os.environ.get("XLA_FLAGS"), jax.config.jax_enable_x64  # type: ignore[attr-defined]  # JAX adds it at run time
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", x64)
        if flags is None:
            os.environ.pop("XLA_FLAGS", None)
        else:
            os.environ["XLA_FLAGS"] = flags


with needs("pymc", "`gyromc.interop.pymc`"), _settings_kept():
    import pymc
    import pytensor
    from pymc.sampling.jax import get_jaxified_graph
    from pytensor.graph.replace import graph_replace
    from pytensor.graph.traversal import ancestors

__all__ = ["PyMCPosterior", "target"]


class Graphs:
    """The functions of a model, made of PyTensor graphs when first used, once for each precision of JAX."""

    def __init__(self, model: Any):
        self.model, self._made = model, {}
        self.latent = {rv.name: rv for rv in model.free_RVs}
        # The random variables, then the deterministics.
        self.reported = {**self.latent, **{rv.name: rv for rv in model.deterministics}}
        with _settings_kept():
            self.logp = model.logp()
        # Arrays of 10 000 numbers and more are arguments of the compiled functions, not constants in them.
        large = {}
        for variable in ancestors([self.logp]):
            value = getattr(variable, "data", None)
            if isinstance(variable, pytensor.compile.SharedVariable):
                value = variable.get_value(borrow=True)
            if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size >= 10_000:
                large[variable] = value
        self.data = tuple(np.asarray(value, float) for value in large.values())
        self.places = {variable: variable.type() for variable in large}

    def call(self, what: str, inputs: Sequence[Any], data: Sequence[Any]):
        x64 = bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]  # JAX adds it at run time
        if (what, x64) not in self._made:
            taken, outputs = self._graph(what)
            replaced = graph_replace(outputs, self.places, strict=False)
            with jax.ensure_compile_time_eval(), _quiet():
                self._made[what, x64] = get_jaxified_graph([*taken, *self.places.values()], replaced)
        with _quiet():
            return self._made[what, x64](*inputs, *fresh(tuple(data)))

    def structure(self) -> Structure:
        first = self.model.initial_point()
        parameters = {v.name: np.shape(first[v.name]) for v in self.model.value_vars}
        with jax.enable_x64(True):
            point = [jax.ShapeDtypeStruct(shape, float) for shape in parameters.values()]
            found = jax.eval_shape(lambda inputs: self.call("values", inputs, self.data), point)
        shapes = {name: tuple(one.shape) for name, one in zip(self.reported, found, strict=True)}
        dims = {}
        for site, shape in shapes.items():
            named = [*self.model.named_vars_to_dims.get(site, ()), *[None] * len(shape)][: len(shape)]
            dims[site] = tuple(name or f"{site}_dim_{axis}" for axis, name in enumerate(named))
        derived = [name for name in self.reported if name not in self.latent]
        large = [name for name in derived if np.prod(shapes[name]) > LARGEST_REPORTED]
        usual = tuple(name for name in derived if name not in large)
        known = {"parameters": parameters, "shapes": shapes, "dims": dims}
        return Structure(sites=tuple(self.latent), deterministic=usual, on_rows=tuple(large), **known)

    def _graph(self, what: str):
        """The inputs and the outputs of a function: those of the value variables, and these from the random variables."""
        if what == "potential":
            return self.model.value_vars, [-self.logp]
        if what == "values":
            return self.model.value_vars, self.model.replace_rvs_by_values([*self.reported.values()])
        if what == "likelihoods":
            return self.model.value_vars, self.model.logp(vars=self.model.observed_RVs, sum=False)
        given, how = {rv: rv.type(name) for name, rv in self.latent.items()}, self.model.rvs_to_transforms
        move = lambda rv, value: value if how[rv] is None else how[rv].forward(value, *rv.owner.inputs)
        return list(given.values()), graph_replace([move(*one) for one in given.items()], given, strict=False)


class PyMCPosterior(ModelPosterior):
    """A model's posterior; parameters are {value variable: array}, such as `tau_log__`, or one vector in alphabetical order."""

    graphs: Graphs = eqx.field(static=True)
    data: tuple
    structure: Structure = eqx.field(static=True)

    def __init__(self, graphs: Graphs):
        self.graphs, self.data, self.structure = graphs, graphs.data, graphs.structure()

    @property
    def coords(self) -> dict[str, Sequence]:
        return {name: labels for name, labels in self.graphs.model.coords.items() if labels is not None}

    def potential(self, params):
        return jnp.reshape(self._call("potential", self.by_site(params))[0], ())

    def values(self, params):
        return dict(zip(self.graphs.reported, self._call("values", params), strict=True))

    def parameters_at(self, values):
        found = self.graphs.call("parameters", [values[site] for site in self.sites], self.data)
        return dict(zip(self.parameters, found, strict=True))

    def log_likelihoods(self, params):
        found = self._call("likelihoods", self.by_site(params))
        return dict(zip([rv.name for rv in self.graphs.model.observed_RVs], found, strict=True))

    def _call(self, what: str, params: Mapping[str, Any]):
        return self.graphs.call(what, [params[name] for name in self.parameters], self.data)


def target(model: Any = None) -> PyMCPosterior:
    """A PyMC model's posterior as a target: `gm.expect(target(model))` has the mean of every variable.

    `model` is a `pymc.Model` whose free variables are continuous; left out: the one of the surrounding `with` block. Parameters
    are its value variables, what is reported are random variables and deterministics, with the model's `dims`.

    ```python
    import numpy as np
    import pymc as pm
    from gyromc.interop import pymc as gpm

    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1.0)
        pm.Normal("y", 0.0, scale, observed=np.array([0.3, -1.2]))

    target = gpm.target(model)
    print(target.sites, list(target.parameters))  # ('scale',) ['scale_log__']
    ```
    """
    model = pymc.modelcontext(model)
    require(isinstance(model, pymc.Model), f"`model` must be a `pymc.Model`: got {type(model).__name__}.")
    discrete = [rv.name for rv in model.free_RVs if rv.dtype.startswith(("int", "uint", "bool"))]
    remedy = "sum them out, for example with `pm.Mixture`"
    require(not discrete, f"Free variables {', '.join(map(repr, discrete))} are discrete: {remedy}.")
    known = ", ".join(model.named_vars) or "none"
    require(model.free_RVs, f"The model has no free variable to sample: it has {known}.")
    try:
        found, first = PyMCPosterior(Graphs(model)), model.initial_point()
        with jax.enable_x64(True):
            at = ravel_pytree({name: jnp.asarray(first[name], float) for name in found.parameters})[0]
            value, slope = eqx.filter_jit(lambda t, theta: jax.value_and_grad(t.potential)(theta))(found, at)
    except InvalidInput:
        raise
    except Exception as error:
        remedy = "PyTensor says which operation has no JAX form; `pm.Minibatch` and random operations inside the model have none."
        raise InvalidInput(f"The model's log density cannot be computed by JAX: {cause(error)}. {remedy}") from error
    wrong = f"The model's log density or its gradient is not finite at its initial point ({float(value):.6g})"
    remedy = "`model.debug()` names the variable. Check data and supports, or pass `initval=`."
    require(np.isfinite(value) and np.all(np.isfinite(slope)), f"{wrong}: {remedy}")
    return found


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without JAX's warning that a float64 of the graph is float32 here, which is meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Ee]xplicitly requested dtype.*")
        yield

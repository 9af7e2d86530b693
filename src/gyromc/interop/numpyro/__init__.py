"""NumPyro models as targets, and results by site.

Input: a NumPyro model and its arguments. Output: a target over the unconstrained sites (`target`), U = -log p(sites, data) - log
|Jacobian|, a plan for it (`plan`), and results by site name, in constrained space (`summary`, `draws`, `predictive`). A plate
with a `subsample_size` makes U a sum over that plate's rows, with every site outside the plate as the prior.

A site theta ~ Normal(loc, scale) whose scale is sampled has a funnel for a posterior where the data say little about theta, and
in (theta - loc)/scale a thin curved one where they say much. So every element is centred as far as the data inform it more
than the prior: c = 0 is the noise, c = 1 theta as written (Papaspiliopoulos, Roberts and Sköld 2007).
"""

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

from gyromc.checks import cause, require, require_finite, whole
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.extras import needs
from gyromc.interop.models import ModelPosterior, Sites
from gyromc.observables import Observable
from gyromc.oracles import ControlVariate
from gyromc.plan import FIELDS, Plan
from gyromc.posterior import Posterior as Found
from gyromc.results import Run
from gyromc.runtime.evaluation import doubled, over_rows
from gyromc.runtime.precision import fresh, private
from gyromc.solve.draws import NO_DRAWS
from gyromc.solve.question import elements
from gyromc.targets import SumOverData

with needs("numpyro", "`gyromc.interop.numpyro`"):
    import numpyro
    from numpyro import distributions as dist
    from numpyro import handlers
    from numpyro.distributions import biject_to
    from numpyro.infer import Predictive
    from numpyro.infer.reparam import LocScaleReparam
    from numpyro.infer.util import constrain_fn, potential_energy

from gyromc.interop.numpyro.reading import DrivePlates, NumPyroStructure, OnlyPart, on_device, place, read, unwrapped

__all__ = ["Posterior", "SubsampledPosterior"]
__all__ += ["draws", "observables", "plan", "predictive", "summary", "target", "tune"]

# rows of a plate whose curvatures are computed together, where there are at least `WHOLE`: they stay in a processor's cache
BLOCK = 8192
WHOLE = 8 * BLOCK
# random points at which U is looked at before a model is refused
TRIES = 20
# for `over_rows`, which compiles it once
_block_product = lambda target, at, rows, v: jax.jvp(lambda t: target.batch_gradient(t, rows), (at,), (v,))[1]


@eqx.filter_jit
def _slope(part: Callable, target: "NumPyroPosterior", params):
    """The gradient of a part of U. Always compiled: a model consists of many small operations."""
    return jax.grad(lambda p: part(target, p))(params)


@eqx.filter_jit
def _value_and_slope(target: "NumPyroPosterior", theta):
    return target.potential(theta), target.gradient(theta)


class NumPyroPosterior(ModelPosterior):
    """A model's posterior; parameters have the names of sites, or `theta_decentered` where `theta` is not sampled as written."""

    model: Callable
    args: tuple
    kwargs: dict
    structure: NumPyroStructure = eqx.field(static=True)

    def potential(self, params):
        return potential_energy(self.on(), *self.given(), self.by_site(params))

    def gradient(self, params):
        return _slope(NumPyroPosterior.potential, on_device(self), params)

    def values(self, params, deterministic: bool = True):
        """The values of the latent and, optionally, the deterministic sites at unconstrained parameters."""
        return constrain_fn(self.on(), *self.given(), self.by_site(params), deterministic)

    def parameters_at(self, values):
        sites = self.traced(values, DrivePlates(private(self.model)))
        found = {}
        for name, value in values.items():
            prior = sites[name]["fn"]
            if name in self.structure.centred:
                c, inner = fresh(self.structure.centred[name]), unwrapped(prior)
                found[f"{name}_decentered"] = (value - inner.loc) / inner.scale ** (1 - c) + c * inner.loc
            else:
                found[name] = biject_to(prior.support).inv(value)
        return found

    def log_likelihoods(self, params):
        sites = self.traced(self.values(params, deterministic=False), self.on())
        observed = [(name, sites[name]["fn"], sites[name]["value"]) for name in self.structure.observed]
        return {name: law.log_prob(value) for name, law, value in observed if not isinstance(law, dist.Unit)} or None

    def traced(self, values: Mapping[str, Any], model: Callable) -> dict[str, Any]:
        """All sites of the model where some have these values."""
        args, kwargs = self.given()
        return handlers.trace(handlers.substitute(model, data=dict(values))).get_trace(*args, **kwargs)

    def given(self) -> tuple[tuple, dict]:
        """The model's arguments with JAX arrays, which a model can index with the plate's indices."""
        return on_device((self.args, self.kwargs))

    def on(self, index=None) -> DrivePlates:
        """The model on the given rows of its subsampled plate, or on all of them, in the coordinates of the parameters."""
        noise, centred = self.structure.hierarchical, self.structure.centred.items()
        config: Any = {name: LocScaleReparam(fresh(c), noise[name]) for name, c in centred}
        return DrivePlates(handlers.reparam(private(self.model), config=config), index)

    def recentred(self, centred: Mapping[str, Any]) -> "NumPyroPosterior":
        """The posterior as written, with named sites as loc + scale^(1-c) · (parameter - c·loc), c = centred[site]."""
        moved = {name: c for name, c in centred.items() if not np.all(np.asarray(c) == 1)}
        shapes = self.structure.parameters.items()
        renamed = {f"{name}_decentered" if name in moved else name: shape for name, shape in shapes}
        structure = dataclasses.replace(self.structure, parameters=renamed, centred=moved)
        return dataclasses.replace(self, structure=structure)


Posterior = NumPyroPosterior


class SubsampledPosterior(NumPyroPosterior, SumOverData):
    """A posterior whose subsampled plate is a sum over data. The oracle chooses the rows, not the model."""

    @property
    def num_data(self) -> int:
        assert self.structure.num_data is not None
        return self.structure.num_data

    def prior(self, params):
        """The part of U outside the plate, the Jacobian of the constraints included."""
        part = OnlyPart(self.on(), self.structure.plate, inside=False)
        return potential_energy(part, *self.given(), self.by_site(params))

    def likelihood(self, params, index):
        """Σ_{i ∈ index} ℓ_i, counted with multiplicity."""
        params, rows = self.by_site(params), len(index)
        if rows >= self.num_data:
            # A plate with as many indices as rows uses its data in order and ignores the indices, which is wrong for a batch
            # drawn with replacement: it is split into equal parts.
            rows = max((part for part in range(1, self.num_data) if rows % part == 0), default=1)

        # NumPyro scales by N/rows.
        def portion(index):
            part = OnlyPart(self.on(index), self.structure.plate, inside=True)
            return potential_energy(part, *self.given(), params)

        portions = jnp.reshape(index, (-1, rows))
        total = portion(portions[0]) if len(portions) == 1 else jnp.sum(jax.vmap(portion)(portions))
        return total * (rows / self.num_data)

    def batch_gradient(self, params, index):
        return jax.grad(self.likelihood)(params, index)

    def prior_gradient(self, params):
        return _slope(SubsampledPosterior.prior, on_device(self), params)

    def weighted_gradient(self, params, index, weight):
        # One pass over the batch.
        return jax.grad(lambda p: weight * self.likelihood(p, index) + self.prior(p))(params)

    def data_hessian(self, theta):
        if self.num_data < WHOLE:
            return super().data_hessian(theta)
        with jax.enable_x64(True):
            here, at = doubled(self), jnp.asarray(theta, float)
        blocks = np.array_split(np.arange(self.num_data), math.ceil(self.num_data / BLOCK))
        return sum(over_rows(_block_product, np.eye(len(theta)), here, at, rows) for rows in blocks)


def target(model: Callable, *args: Any, noncentre: bool | Sequence[str] | None = None, **kwargs: Any) -> Posterior:
    """A NumPyro model's posterior as a target: `gm.expect(gnp.target(model, …))` has the mean of every site.

    Constrained sites are transformed to unconstrained space; the log-Jacobian is part of U. A plate with a `subsample_size`,
    whatever it is, makes the target a sum over its rows, a `SubsampledPosterior`: mini-batches then choose the rows of every
    gradient. The model must use the plate's indices, or `numpyro.subsample`, inside it.

    **Arguments:**

    - `model`: a NumPyro model; all latent sites continuous, at least one site observed.
    - `args`, `kwargs`: the model's arguments.
    - `noncentre`: which sites loc + scale · noise with a sampled scale are sampled as the noise, by NumPyro's `LocScaleReparam`.
      Left out: those elements about which the data say little. True: all of them, False: none, or the sites' names. Results
      have the sites of the model either way.

    ```python
    import numpy as np
    import numpyro
    from numpyro import distributions as dist
    from gyromc.interop import numpyro as gnp

    def model(y):
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("data", len(y), subsample_size=1):
            numpyro.sample("y", dist.Normal(0.0, scale), obs=numpyro.subsample(y, event_dim=0))

    target = gnp.target(model, np.array([0.3, -1.2, 0.5]))
    print(target.num_data, target.sites)  # 3 ('scale',)
    ```
    """
    require(callable(model), f"`model` must be a NumPyro model, a function: got {type(model).__name__}.")
    args, kwargs, structure = read(model, args, kwargs)
    kind = NumPyroPosterior if structure.plate is None else SubsampledPosterior
    written = kind(model=model, args=args, kwargs=kwargs, structure=structure)
    possible = tuple(structure.hierarchical)
    sites: Any = (noncentre,)
    if noncentre is None or isinstance(noncentre, bool):
        sites = () if noncentre is False else possible
    elif isinstance(noncentre, list | tuple):
        sites = tuple(noncentre)
    unknown = [name for name in sites if name not in possible]
    known = f"sites of a location-scale family with a sampled scale are {', '.join(map(repr, possible)) or 'none'} in this model"
    require(not unknown, f"`noncentre` names {', '.join(map(repr, unknown))}: {known}.")
    found = written.recentred(dict.fromkeys(sites, 0.0))
    point = _finite_point(found)
    return written.recentred(_centredness(found, point)) if noncentre is None and sites else found


def _centredness(found: NumPyroPosterior, start: np.ndarray) -> dict[str, Any]:
    """For every non-centred site how far its elements are centred, 0 where the data inform them no more than the prior.

    In z = (theta - loc)/scale the Hessian is 1 + scale²·I for an element, I the information of the data, and the variance that
    the elements suggest is scale²·mean z². So the information of the data over that of the prior is (H - 1)·mean z².
    """
    names = {site: f"{site}_decentered" for site in found.structure.centred}
    place = found.unravel(np.arange(found.dim))
    moved = np.isin(np.arange(found.dim), np.concatenate([np.ravel(place[name]) for name in names.values()]))
    # random directions for the diagonal of the Hessian: an order of magnitude is enough
    step, probes = 1e-4, np.random.default_rng(0).choice([-1.0, 1.0], (8, found.dim))
    with jax.enable_x64(True):
        pieces = doubled(found)
        both = lambda theta: tuple(np.asarray(x, float) for x in _value_and_slope(pieces, jnp.asarray(theta)))
        descent = optimize.minimize(both, start, jac=True, method="L-BFGS-B", options={"maxiter": 200})
        # There may be no mode: a scale falls to zero, and curvatures there say nothing.
        if not descent.success:
            return dict.fromkeys(names, 0.0)
        diagonal = np.zeros(found.dim)
        for v in np.where(moved, probes, 0.0):
            up, down = (both(descent.x + sign * step * v)[1] for sign in (1, -1))
            diagonal += v * (up - down) / (2 * step * len(probes))
    noise, curvature, chosen = found.unravel(descent.x), found.unravel(diagonal), {}
    for site, name in names.items():
        ratio = (curvature[name] - 1) * np.mean(np.square(noise[name]))
        # less two standard deviations of a variance that is estimated from as many elements as the site has
        surely = np.clip(ratio / (1 + 2 * math.sqrt(2 / ratio.size)) - 1, 0, None)
        c = surely / (1 + surely)
        c = np.where(c > 0.95, 1.0, c)
        chosen[site] = c if np.any(c) else 0.0
    return chosen


def _finite_point(target: NumPyroPosterior) -> np.ndarray:
    """A point with finite U and ∇U; raises `InvalidInput` where the posterior cannot be sampled, with the cause."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        for _ in range(TRIES):
            theta = jnp.asarray(rng.uniform(-0.5, 0.5, target.dim))
            potential, slope = _value_and_slope(doubled(target), theta)
            if np.isfinite(potential) and np.all(np.isfinite(slope)):
                if isinstance(target, SubsampledPosterior) and target.num_data > 1:
                    _check_additive(target, theta, float(potential))
                return np.asarray(theta)
        for path, leaf in jax.tree_util.tree_leaves_with_path((target.args, target.kwargs)):
            if isinstance(leaf, np.ndarray):
                require_finite(leaf, place(path))
        # To find distributions with impossible parameters.
        with numpyro.validation_enabled(False):
            sites = target.traced(target.values(theta, deterministic=False), target.on())
            drawn = {repr(name): site for name, site in sites.items() if site["type"] == "sample"}
            bad = [name for name, site in drawn.items() if not np.all(np.isfinite(site["fn"].log_prob(site["value"])))]
    where = f"at {TRIES} points near the origin of the unconstrained space"
    remedy = f"look at {', '.join(bad)}" if bad else "only the gradient, so look for 0/0, log(0) or sqrt(0)"
    raise InvalidInput(f"The model's log density or its gradient is not finite {where}: {remedy}.")


def _check_additive(target: SubsampledPosterior, theta, potential: float) -> None:
    """Raise unless ℓ over all rows is the sum of ℓ over two random halves, which makes a mini-batch unbiased."""
    plate, N = target.structure.plate, target.num_data
    shuffled = np.random.default_rng(0).permutation(N)
    halves = jnp.asarray(shuffled[: N // 2]), jnp.asarray(shuffled[N // 2 :])
    parts = eqx.filter_jit(lambda t, at, *rows: (t.prior(at), *(t.likelihood(at, half) for half in rows)))
    try:
        prior, first, second = map(float, parts(doubled(target), theta, *halves))
    except Exception as error:
        wrong = f"The model fails on {N // 2} of the {N} rows of its subsampled plate {plate!r}: {cause(error)}."
        remedy = "write `X[index]` for every array over the data, or `numpyro.subsample(X, event_dim=1)`."
        raise InvalidInput(f"{wrong} Inside `with numpyro.plate(…) as index` {remedy}") from error
    whole, both = potential - prior, first + second
    what = f"The likelihood is not a sum over the rows of plate {plate!r}"
    remedy = "Inside the plate index every array over the data, and standardise the data before the model."
    # a sum in another order, in float64; some models compute parts in float32
    same = abs(whole - both) <= 1e-6 * max(1.0, abs(potential), abs(prior), abs(first), abs(second))
    require(same, f"{what}: all {N} rows give {-whole:.6g}, two halves together {-both:.6g}. {remedy}")


class SiteElement(Observable):
    """One element of a site's constrained value, or its square; `values` is the function from parameters to sites."""

    values: Callable
    site: str = eqx.field(static=True)
    index: tuple[int, ...] = eqx.field(static=True)
    power: int = eqx.field(static=True)

    def __call__(self, params):
        return jnp.asarray(self.values(params)[self.site])[self.index] ** self.power


def observables(
    target: Posterior, sites: Sequence[str] | None = None, *, squares: bool = False
) -> dict[str, Observable]:
    """The elements of the model's sites, in constrained space, as observables by name: `"tau"`, `"beta[0]"`, `"W[1, 2]"`.

    **Arguments:**

    - `target`: from `gyromc.interop.numpyro.target`.
    - `sites`: which sites; default: all latent sites, and the deterministic ones outside a subsampled plate.
    - `squares`: add the square of each, `"tau^2"`, for posterior standard deviations.

    ```python
    import numpyro
    from numpyro import distributions as dist
    from gyromc.interop import numpyro as gnp

    def model(y):
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        numpyro.deterministic("variance", scale**2)
        numpyro.sample("y", dist.Normal(0.0, scale), obs=y)

    print(list(gnp.observables(gnp.target(model, 0.3), squares=True)))  # ['scale', 'variance', 'scale^2', 'variance^2']
    ```
    """
    require(isinstance(target, Posterior), f"`target` must be a posterior of a model: got {type(target).__name__}.")
    values = Sites(target, target.reported_sites(sites))
    # Compiled once for all elements.
    compiled = jax.jit(lambda params: values(params))
    found = {}
    for power, mark in ((1, ""), (2, "^2"))[: 1 + squares]:
        for site in values.names:
            shape = target.structure.shapes[site]
            for name, index in zip(elements(site, shape), np.ndindex(shape), strict=True):
                found[name + mark] = SiteElement(compiled, site, index, power)
    return found


def tune(
    target: Posterior,
    sites: Sequence[str] | None = None,
    *,
    squares: bool = True,
    batch_size: int | None = None,
    **budget: Any,
) -> Any:
    """`gyromc.tune` with the model's sites as observables.

    **Arguments:**

    - `target`, `sites`, `squares`: as for `observables`.
    - `batch_size`: rows of the subsampled plate per gradient, by a control variate anchored at the mode.
    - `budget`: the other arguments of `gyromc.tune`: `gradients`, `error` or `seconds`, `oracle`, `num_chains`, `seed`.
    """
    # imported when used: `gyromc.expect` needs no tuner
    from gyromc.tuning.tune import tune as tune_any

    if batch_size is not None:
        budget["oracle"] = ControlVariate(batch_size)
    return tune_any(target, observables(target, sites, squares=squares), **budget)


def plan(target: Posterior, **asked: Any) -> Plan:
    """The plan of `tune`, ready to run, which warns where the tuner could not know enough.

    `asked` are arguments of `tune`, and fields of `gyromc.Plan` in place of what was chosen.
    """
    fixed = {name: asked.pop(name) for name in FIELDS if name in asked and name not in ("oracle", "num_chains", "seed")}
    found = tune(target, **asked)
    if found.warnings:
        warnings.warn(" ".join(found.warnings), GyromcWarning, stacklevel=2)
    return found.plan.replace(**fixed)


def summary(result: Found | Run) -> Any:
    """The table of posterior means by site, with their errors: the result of `gyromc.expect`, or a run's `gyromc.estimate`."""
    _posterior(result)
    if isinstance(result, Found):
        return result
    from gyromc.estimation.estimate import estimate

    return estimate(result)


def draws(result: Run | Found, sites: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """The kept states in constrained space: {site: chains × draws × the site's shape}; `sites` as for `observables`.

    `result` is of `gyromc.expect`, whose draws have `weights`, or a run of a plan, made with `thin`.
    """
    target = _posterior(result)
    require(result.draws is not None, NO_DRAWS)
    return target.reported(result.draws, sites)


def predictive(
    result: Run | Found, *args: Any, draws_used: int | None = None, seed: int = 0, **kwargs: Any
) -> dict[str, np.ndarray]:
    """New data from the posterior, by `numpyro.infer.Predictive`: {site: draws × the site's shape}, on all rows of every plate.

    **Arguments:**

    - `result`: as for `draws`.
    - `args`, `kwargs`: the model's arguments for the new data, without observations; default: the posterior's own,
      with the observed sites drawn anew.
    - `draws_used`: how many posterior draws, spread evenly over chains and time; default: all.
    - `seed`: of the new data.
    """
    target = _posterior(result)
    every = draws(result, target.sites)
    count = math.prod(next(iter(every.values())).shape[:2])
    wanted = count if draws_used is None else whole(draws_used, "draws_used", least=1, most=count)
    if isinstance(result, Found):  # equal weights
        every, count = target.reported(result.resampled(wanted, seed)[None], target.sites), wanted
    rows = np.linspace(0, count - 1, wanted).round().astype(int)
    kept = {name: value.reshape(-1, *value.shape[2:])[rows] for name, value in every.items()}
    model = DrivePlates(private(target.model), drawing=True)
    if not args and not kwargs:
        args, kwargs, model = target.args, target.kwargs, handlers.uncondition(model)
    args, kwargs = on_device((args, kwargs))
    new = Predictive(model, posterior_samples=kept)(jax.random.key(seed), *args, **kwargs)
    return {name: np.asarray(value) for name, value in new.items()}


def _posterior(result: Run | Found) -> Posterior:
    known = isinstance(result, Run | Found)
    require(known, f"What `gm.expect` or `gm.run` returned is needed: got {type(result).__name__}.")
    target = result.plan.target if isinstance(result, Run) else result.model.target
    remedy = "use `gyromc.interop.numpyro.target`."
    named = f"This result's target is not a NumPyro model ({type(target).__name__})"
    require(isinstance(target, Posterior), f"{named}: {remedy}")
    return target  # type: ignore[return-value]  # checked above

"""From a NumPyro model to its posterior: the model is read, coordinates are chosen for its hierarchies, and it is checked.

Input: a model and its arguments. Output: a `Posterior`. Raises `InvalidInput` with what was wrong, where, and what to do: U and
∇U must be finite, and the likelihood a sum over the rows of the subsampled plate.

A site theta ~ Normal(loc, scale) whose scale is sampled has a funnel for a posterior where the data say little about theta, and
in (theta - loc)/scale a thin curved one where they say much. So every element is centred as far as the data are worth more
than the prior: c = 0 is the noise, c = 1 theta as written (Papaspiliopoulos, Roberts and Sköld 2007).
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import handlers
from scipy import optimize

from gyromc.checks import require, require_finite
from gyromc.errors import InvalidInput
from gyromc.evaluation import doubled
from gyromc.interop.numpyro.posterior import NumPyroPosterior, SubsampledPosterior, value_and_slope
from gyromc.interop.numpyro.reading import arguments, place, read

__all__ = ["target"]

TRIES = 20
TOLERANCE = 1e-6  # float64 sums in another order; some models compute parts in float32


@dataclasses.dataclass(frozen=True)
class Centring:
    """The settings of the choice between centred and non-centred sites."""

    descent: int = 200  # steps of L-BFGS
    probes: int = 8  # random directions for the diagonal of the Hessian; an order of magnitude is enough
    step: float = 1e-4  # of the differences of gradients
    as_written: float = 0.95  # centred so far, an element stays as written
    deviations: float = 2.0  # of a variance estimated from as many elements as the site has


CENTRING = Centring()


def target(
    model: Callable, *args: Any, noncentre: bool | Sequence[str] | None = None, **kwargs: Any
) -> NumPyroPosterior:
    """A NumPyro model's posterior as a target: `gm.expect(gnp.target(model, …))` has the mean of every site.

    Constrained sites are transformed to unconstrained space; the log-Jacobian is part of U. A plate with a
    `subsample_size` makes the target a sum over its rows: mini-batches then choose the rows of every gradient, whatever the
    `subsample_size` is. The model must use the plate's indices, or `numpyro.subsample`, inside it.

    **Arguments:**

    - `model`: a NumPyro model; all latent sites continuous, at least one site observed.
    - `args`, `kwargs`: the model's arguments.
    - `noncentre`: which sites loc + scale · noise with a sampled scale are sampled as the noise, by NumPyro's `LocScaleReparam`.
      Left out: those elements about which the data say little. True: all of them, False: none, or the sites' names. Results
      have the sites of the model either way.

    **Returns:** a `SubsampledPosterior` (a sum over data) or a `Posterior`.

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
    assert target.num_data == 3 and target.sites == ("scale",)
    ```
    """
    require(callable(model), f"`model` must be a NumPyro model, a function: got {type(model).__name__}.")
    args, kwargs = arguments(args, kwargs)
    structure = read(model, args, kwargs)
    kind = NumPyroPosterior if structure.plate is None else SubsampledPosterior
    written = kind(model, args, kwargs, structure)  # type: ignore[call-arg]  # the base class's `__init__`
    sites = _to_move(noncentre, structure)
    found = written.recentred(dict.fromkeys(sites, 0.0))
    point = check(found)
    if noncentre is None and sites:
        centred = _centredness(found, point)
        return written.recentred(centred) if any(np.any(c) for c in centred.values()) else found
    return found


def _to_move(noncentre: bool | Sequence[str] | None, structure) -> tuple[str, ...]:
    """The sites that are not centred, or may not be."""
    possible = tuple(structure.hierarchical)
    if noncentre is None or isinstance(noncentre, bool):
        return () if noncentre is False else possible
    wanted = (noncentre,) if isinstance(noncentre, str) else tuple(noncentre)
    unknown = [name for name in wanted if name not in possible]
    require(
        not unknown,
        f"`noncentre` names {', '.join(map(repr, unknown))}: sites of a location-scale family whose scale is sampled are "
        f"{', '.join(map(repr, possible)) or 'none'} in this model.",
    )
    return wanted


def _centredness(found: NumPyroPosterior, start: np.ndarray) -> dict[str, Any]:
    """For every non-centred site how far its elements are centred, 0 where the data are worth no more than the prior."""
    chosen = {}
    for site, worth in _worths(found, start).items():
        surely = np.clip(worth / (1 + CENTRING.deviations * math.sqrt(2 / worth.size)) - 1, 0, None)
        c = surely / (1 + surely)
        c = np.where(c > CENTRING.as_written, 1.0, c)
        chosen[site] = c if np.any(c) else 0.0
    return chosen


def _worths(found: NumPyroPosterior, start: np.ndarray) -> dict[str, np.ndarray]:
    """What the data are worth over the prior, for every element of the non-centred sites.

    With z = (theta - loc)/scale the Hessian has 1 + scale²·I for an element, I the information of the data about it, and the
    variance that the elements suggest is scale²·mean z²: so it is (H - 1)·mean z², about 1 where all elements are equal.
    """
    names = {site: f"{site}_decentered" for site in found.structure.centred}
    place = found.unravel(np.arange(found.dim))
    moved = np.isin(np.arange(found.dim), np.concatenate([np.ravel(place[name]) for name in names.values()]))
    with jax.enable_x64(True):
        pieces = doubled(found)
        both = lambda theta: tuple(np.asarray(x, float) for x in value_and_slope(pieces, jnp.asarray(theta)))
        descent = optimize.minimize(both, start, jac=True, method="L-BFGS-B", options={"maxiter": CENTRING.descent})
        if not descent.success:  # there may be no mode: a scale falls to zero, and curvatures there say nothing
            return {site: np.zeros(np.shape(place[name])) for site, name in names.items()}
        diagonal = np.zeros(found.dim)
        for probe in np.random.default_rng(0).choice([-1.0, 1.0], (CENTRING.probes, found.dim)):
            v = np.where(moved, probe, 0.0)
            up, down = (both(descent.x + sign * CENTRING.step * v)[1] for sign in (1, -1))
            diagonal += v * (up - down) / (2 * CENTRING.step * CENTRING.probes)
    noise, curvature = found.unravel(descent.x), found.unravel(diagonal)
    return {site: (curvature[name] - 1) * np.mean(np.square(noise[name])) for site, name in names.items()}


def check(target: NumPyroPosterior) -> np.ndarray:
    """A point with finite U and ∇U; raises `InvalidInput` where the posterior cannot be sampled."""
    with jax.enable_x64(True):
        halves = _halves(target)
        rng = np.random.default_rng(1)
        for _ in range(TRIES):
            theta = jnp.asarray(rng.uniform(-0.5, 0.5, target.dim))
            potential, slope = value_and_slope(doubled(target), theta)
            if np.isfinite(potential) and np.all(np.isfinite(slope)):
                break
        else:
            _blame(target, theta)
        parts = () if halves is None else _parts(doubled(target), theta, halves)
    if halves is not None:
        _check_additive(target, float(potential), *map(float, parts))
    return np.asarray(theta)


def _halves(target: Any) -> tuple | None:
    """The rows of the plate, split into two at random, after a check that the model accepts half of them."""
    plate, N = target.structure.plate, target.structure.num_data
    if plate is None or N == 1:
        return None
    shuffled = np.random.default_rng(0).permutation(N)
    halves = jnp.asarray(shuffled[: N // 2]), jnp.asarray(shuffled[N // 2 :])
    try:
        eqx.filter_eval_shape(target.likelihood, jnp.zeros(target.dim), halves[0])
    except Exception as error:
        raise InvalidInput(
            f"The model fails on {N // 2} of the {N} rows of its subsampled plate {plate!r}: {type(error).__name__}: "
            f"{str(error).splitlines()[0]}. Inside the plate use its indices for every array over the data, "
            f"`with numpyro.plate({plate!r}, {N}, subsample_size=…) as index: … X[index] … obs=y[index]`, or "
            "`numpyro.subsample(X, event_dim=1)`."
        ) from error
    return halves


@eqx.filter_jit
def _parts(target, theta, halves):
    """The prior's part of U, and ℓ over each half of the rows."""
    return target.prior(theta), *(target.likelihood(theta, half) for half in halves)


def _check_additive(target: Any, potential: float, prior: float, first: float, second: float) -> None:
    """Raise unless ℓ over all rows is the sum of ℓ over two halves, which makes a mini-batch unbiased."""
    plate, N, whole = target.structure.plate, target.structure.num_data, potential - prior
    require(
        abs(whole - (first + second)) <= TOLERANCE * max(1.0, abs(potential), abs(prior), abs(first), abs(second)),
        f"The likelihood is not a sum over the rows of plate {plate!r}: all {N} rows give {-whole:.6g}, two halves together "
        f"{-(first + second):.6g}. Inside the plate every term must depend on its own row alone: index every array over the data "
        "with the plate's indices, and standardise the data before the model, not inside it.",
    )


def _blame(target: Any, theta) -> None:
    """Raise with the cause of a density that is not finite: an argument, a site, or the gradient."""
    for path, leaf in jax.tree_util.tree_leaves_with_path((target.args, target.kwargs)):
        if isinstance(leaf, np.ndarray):
            require_finite(leaf, place(path))
    args, kwargs = target.given()
    with numpyro.validation_enabled(False):  # to find distributions with impossible parameters
        values = target.constrained(theta, deterministic=False)
        sites = handlers.trace(handlers.substitute(target.on(None), data=values)).get_trace(*args, **kwargs)
        bad = [
            repr(name)
            for name, site in sites.items()
            if site["type"] == "sample" and not np.all(np.isfinite(site["fn"].log_prob(site["value"])))
        ]
    raise InvalidInput(
        f"The model's log density or its gradient is not finite at {TRIES} points near the origin of the unconstrained space: "
        f"{'look at ' + ', '.join(bad) if bad else 'only the gradient, so look for 0/0, log(0) or sqrt(0)'}. "
        "Check the data against the model, and bounds of its supports against the data."
    )

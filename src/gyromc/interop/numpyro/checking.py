"""Checks of a posterior before it is sampled: U and ∇U are finite, and the likelihood is a sum over the rows of its plate.

Input: a posterior. Raises `InvalidInput` with what was wrong, where, and what to do.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import handlers

from gyromc.checks import require, require_finite
from gyromc.errors import InvalidInput
from gyromc.evaluation import doubled
from gyromc.interop.numpyro.reading import place

TRIES = 20
TOLERANCE = 1e-6  # float64 sums in another order; some models compute parts in float32


def check(target: Any) -> None:
    """Raise `InvalidInput` where the posterior cannot be sampled."""
    with jax.enable_x64(True):
        halves = _halves(target)
        rng = np.random.default_rng(1)
        for _ in range(TRIES):
            theta = jnp.asarray(rng.uniform(-0.5, 0.5, target.dim))
            potential, slope, parts = _evaluated(doubled(target), theta, halves)
            if np.isfinite(potential) and np.all(np.isfinite(slope)):
                break
        else:
            _blame(target, theta)
    if halves is not None:
        _check_additive(target, float(potential), *map(float, parts))


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
def _evaluated(target, theta, halves):
    """U, ∇U and, where there are halves, the prior's part of U and ℓ over each half."""
    parts = () if halves is None else (target.prior(theta), *(target.likelihood(theta, half) for half in halves))
    return *jax.value_and_grad(target.potential)(theta), parts


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

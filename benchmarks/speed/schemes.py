"""What schemes and the martingale cost: pieces of work to be compared with each other, not with other packages.

Output: pieces of work for the engine `lanes`, and for `pallas` where there is a GPU; `against` names the piece that a time is
divided by.
"""

import functools

import numpy as np

import gyromc as gm
from gyromc.engines import pallas
from speed.peers import WORK, Work

CHAINS = {"lanes": 2000, "pallas": 20_000}


def _gaussian(chains: int, d: int, scheme: str, count: int, martingale: bool) -> gm.Plan:
    """A Gaussian with a diagonal precision, preconditioned by a diagonal: D, S and the noise are numbers per coordinate."""
    precision = np.linspace(1.0, 3.0, d)
    directions = np.random.default_rng(0).standard_normal((count, d)) / np.sqrt(d)
    profile = gm.observables.linear if count == 1 else gm.observables.tanh
    return gm.Plan(
        target=gm.targets.Quadratic(precision, np.full(d, 0.3)),
        dynamics=gm.dynamics.general(1 / precision, 0),
        scheme=gm.schemes.balanced(precision) if scheme == "balanced" else scheme,
        observables={f"h{i}": profile(a) for i, a in enumerate(directions)},
        martingale=martingale,
        step_size=0.3,
        num_chains=chains,
        dtype="float32",
    )


def _logistic(chains: int, martingale: bool, whitened: bool = True) -> gm.Plan:
    """Logistic regression with a control variate and ten predictive probabilities, preconditioned by its covariance or not."""
    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(202), rng.standard_normal((202, 13))])
    y = (rng.random(202) < 1 / (1 + np.exp(-X @ rng.standard_normal(14) / 2))).astype(float)
    target = gm.targets.LogisticRegression(X, y)
    covariance = np.linalg.inv(gm.Model(target).gaussian_fit.precision)
    return gm.Plan(
        target=target,
        dynamics=gm.dynamics.general(covariance, 0) if whitened else gm.dynamics.overdamped(14),
        oracle=gm.oracles.ControlVariate(32, order=2),
        observables={f"row {i}": gm.observables.predictive(X[i]) for i in range(10)},
        martingale=martingale,
        step_size=0.3 if whitened else 0.01,
        num_chains=chains,
        dtype="float32",
    )


def _pair(engine: str, names: tuple[str, str], description: str, plans: tuple[gm.Plan, gm.Plan]) -> list[Work]:
    terms, only = plans[0].oracle.evaluations(plans[0].target), (f"gyromc {engine}",)
    return [
        Work(name, description, plan, terms, only=only, against=against)
        for name, plan, against in zip(names, plans, ("", names[0]), strict=True)
    ]


def _gaussian_pairs(engine: str, d: int) -> list[Work]:
    chains = CHAINS[engine]
    what = f"a Gaussian with structured noise, d = {d}, {chains} chains"
    plans = _gaussian(chains, d, "euler", 1, False), _gaussian(chains, d, "balanced", 1, False)
    more = _gaussian(chains, d, "balanced", 10, False), _gaussian(chains, d, "balanced", 10, True)
    return [
        *_pair(engine, (f"euler {d}", f"balanced {d}"), what, plans),
        *_pair(engine, (f"plain {d}", f"martingale {d}"), f"{what}, ten observables", more),
    ]


def _logistic_pair(engine: str, suffix: str, whitened: bool) -> list[Work]:
    chains, names = CHAINS[engine], (f"plain {suffix}", f"martingale {suffix}")
    what = f"logistic regression, d = 14, 32 of 202 rows, ten observables, {chains} chains"
    return _pair(engine, names, what, (_logistic(chains, False, whitened), _logistic(chains, True, whitened)))


@functools.cache
def scheme_work() -> tuple[Work, ...]:
    """Pairs: Euler's step and balanced noise, averages without and with their martingale; for a GPU where there is one."""
    if pallas.why_not(WORK[0].plan) is None:
        return (
            *_gaussian_pairs("pallas", 14),
            *_gaussian_pairs("pallas", 32),
            *_logistic_pair("pallas", "logistic", True),
        )
    return (
        *_gaussian_pairs("lanes", 14),
        *_gaussian_pairs("lanes", 64),
        *_logistic_pair("lanes", "logistic", True),
        *_logistic_pair("lanes", "logistic, D = I", False),
    )

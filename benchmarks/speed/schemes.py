"""What schemes and the martingale cost: pieces of work to be compared with each other, not with other packages.

Output: pieces of work for the engine `pallas`, which needs a GPU; `against` names the piece that a time is divided by.
"""

import functools

import numpy as np

import gyromc as gm
from gyromc.engines import pallas
from speed.peers import WORK, Work

CHAINS = 20_000
ONLY = ("gyromc pallas",)


def _gaussian(d: int, scheme: str, count: int, martingale: bool) -> gm.Plan:
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
        num_chains=CHAINS,
        dtype="float32",
    )


def _logistic(martingale: bool) -> gm.Plan:
    """Logistic regression, preconditioned by its own covariance, with a control variate and ten predictive probabilities."""
    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(202), rng.standard_normal((202, 13))])
    y = (rng.random(202) < 1 / (1 + np.exp(-X @ rng.standard_normal(14) / 2))).astype(float)
    target = gm.targets.LogisticRegression(X, y)
    return gm.Plan(
        target=target,
        dynamics=gm.dynamics.general(np.linalg.inv(gm.Model(target).gaussian_fit.precision), 0),
        oracle=gm.oracles.ControlVariate(32, order=2),
        observables={f"row {i}": gm.observables.predictive(X[i]) for i in range(10)},
        martingale=martingale,
        step_size=0.3,
        num_chains=CHAINS,
        dtype="float32",
    )


def _pair(names: tuple[str, str], description: str, plans: tuple[gm.Plan, gm.Plan]) -> list[Work]:
    terms = plans[0].oracle.evaluations(plans[0].target)
    return [
        Work(name, description, plan, terms, only=ONLY, against=against)
        for name, plan, against in zip(names, plans, ("", names[0]), strict=True)
    ]


def _gaussian_pairs(d: int) -> list[Work]:
    what = f"a Gaussian with structured noise, d = {d}, {CHAINS} chains"
    plans = _gaussian(d, "euler", 1, False), _gaussian(d, "balanced", 1, False)
    more = _gaussian(d, "balanced", 10, False), _gaussian(d, "balanced", 10, True)
    return [
        *_pair((f"euler {d}", f"balanced {d}"), what, plans),
        *_pair((f"plain {d}", f"martingale {d}"), f"{what}, ten observables", more),
    ]


@functools.cache
def gpu_work() -> tuple[Work, ...]:
    """Pairs: Euler's step and balanced noise, averages without and with their martingale; nothing where there is no GPU."""
    if pallas.why_not(WORK[0].plan) is not None:
        return ()
    logistic = f"logistic regression, d = 14, 32 of 202 rows, ten observables, {CHAINS} chains"
    pair = _pair(("plain logistic", "martingale logistic"), logistic, (_logistic(False), _logistic(True)))
    return (*_gaussian_pairs(14), *_gaussian_pairs(32), *pair)

"""Diagnostics of a fit, each with a sentence: Monte Carlo error, step-size bias, agreement of the chains, failures, prior."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from gyromc.regression.fit import Coefficient, Fit
from gyromc.show.numbers import counted, listed

__all__ = ["checkup", "label"]

MOST_ERROR = 0.15  # of a posterior spread: a 95 % interval with such an error still covers 94.5 %
MOST_BIAS = 0.15
CHANCE = 0.001  # of a false alarm, over all coefficients


def checkup(fit: Fit, X: np.ndarray, prior_scale: float) -> list[dict[str, Any]]:
    """Check a fit to the design matrix X; return dictionaries with `name`, `good` and `sentence`."""
    return [_monte_carlo(fit), _bias(fit), _halves(fit), _failures(fit), _prior(fit, X, prior_scale), _rows(fit, X)]


def _check(name: str, good: bool, sentence: str, remedy: str = "") -> dict[str, Any]:
    return {"name": name, "good": bool(good), "sentence": sentence if good else f"{sentence} {remedy}".strip()}


def label(c: Coefficient) -> str:
    """Return the name of a coefficient, after its class where there are several."""
    return c.name if c.output is None else f"{c.output}: {c.name}"


def _largest(fit: Fit, size: Callable[[Coefficient], float]) -> tuple[float, Coefficient]:
    """Return the largest size of an error in posterior spreads, and the coefficient that has it."""
    return max(((size(c) / max(c.sd, 1e-300), c) for c in fit.coefficients), key=lambda pair: pair[0])


def _monte_carlo(fit: Fit) -> dict[str, Any]:
    ratio, worst = _largest(fit, lambda c: c.std_error)
    if ratio == 0:
        return _check("Monte Carlo error", True, "none: the means are integrals.")
    least = f"{worst.ess:.0f}" if math.isfinite(worst.ess) else "infinitely many"
    text = f"at most {100 * ratio:.1f} % of a posterior spread ({label(worst)}): worth {least} independent draws."
    return _check("Monte Carlo error", ratio < MOST_ERROR, text, "Pass `--effort thorough`.")


def _bias(fit: Fit) -> dict[str, Any]:
    ratio, worst = _largest(fit, lambda c: abs(c.bias))
    if ratio == 0:
        return _check("step-size bias", True, "none.")
    text = f"at most {100 * ratio:.1f} % of a posterior spread ({label(worst)}), as the tuning estimates it; not subtracted."
    return _check("step-size bias", ratio < MOST_BIAS, text, "Pass `--effort thorough`.")


def _halves(fit: Fit) -> dict[str, Any]:
    """Compare the halves of the chains, and R-hat with the value that chains this short should have."""
    draws = fit.draws
    chains, half = draws.shape[0], draws.shape[1] // 2
    parts = np.stack([draws[:, :half].mean(axis=1), draws[:, half : 2 * half].mean(axis=1)])
    drift = parts[0] - parts[1]
    z = np.abs(drift.mean(axis=0)) / np.maximum(drift.std(axis=0, ddof=1) / math.sqrt(chains), 1e-300)
    worst = int(np.argmax(z))
    limit = float(-special.stdtrit(chains - 1, CHANCE / 2 / z.size))
    within = np.mean([draws[:, :half].var(axis=1, ddof=1), draws[:, half : 2 * half].var(axis=1, ddof=1)], axis=(0, 1))
    between = parts.reshape(2 * chains, -1).var(axis=0, ddof=1)
    r_hat = float(np.sqrt(np.max((half - 1) / half + between / np.maximum(within, 1e-300))))
    expected = math.sqrt((half - 1) / half + 1 / max(half - 1, 1e-9))
    text = (
        f"first and second halves of the {chains} chains differ by at most {z[worst]:.1f} standard errors "
        f"({label(fit.coefficients[worst])}; chance allows {limit:.1f}). R-hat is at most {r_hat:.2f}; half-chains of "
        f"{half} independent draws should show {expected:.2f}."
    )
    return _check("agreement of the chains", z[worst] < limit, text, "The start still shows: pass `--effort thorough`.")


def _failures(fit: Fit) -> dict[str, Any]:
    failed = 0 if fit.run is None else len(fit.run.failures)
    text = f"{counted(failed, 'chain')} failed and are left out." if failed else "none."
    return _check("diverged chains", failed == 0, text)


def _prior(fit: Fit, X: np.ndarray, prior_scale: float) -> dict[str, Any]:
    """Find coefficients whose posterior spread is nearly the prior's."""
    scale = dict(zip(fit.names, X.std(axis=0) / fit.posterior.units.y_scale, strict=True))
    vague = [c.name for c in fit.coefficients if c.name in scale and c.sd * scale[c.name] > 0.5 * prior_scale]
    if not vague:
        return _check("weight of the prior", True, "the data narrow every coefficient to less than half its prior.")
    names = list(dict.fromkeys(vague))
    text = f"the data say little about {listed(names, 5)}: classes that a line separates, or columns that go together."
    return _check("weight of the prior", False, text, "Compare with another `--prior-scale`.")


def _rows(fit: Fit, X: np.ndarray) -> dict[str, Any]:
    count = len(fit.coefficients)
    text = f"{counted(len(X), 'row')} for {counted(count, 'coefficient')}."
    return _check("rows per coefficient", len(X) >= 5 * count, text, "Intervals are wide and lean on the prior.")

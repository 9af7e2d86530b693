"""Can the numbers be trusted? What a fit says of its own computation (E6), each finding with a sentence and a remedy.

Receives a `Fit` and its design; hands on checks as plain values: Monte Carlo error, step-size bias, agreement of the chains, what the
prior decides.
"""

from typing import Any

import numpy as np

from gyromc.fitting.encoding import counted
from gyromc.fitting.regression import Fit

__all__ = ["checkup"]


def checkup(fit: Fit, X: np.ndarray, prior_scale: float) -> list[dict[str, Any]]:
    """The checks of a fit.

    **Arguments:**

    - `fit`: what to look at; `X`: the design it was fitted to.
    - `prior_scale`: of the prior.

    **Returns:** dictionaries with `name`, `good` and `sentence`.
    """
    return [_monte_carlo(fit), _bias(fit), _chains(fit), _failures(fit), _prior(fit, X, prior_scale), _rows(fit, X)]


def _check(name: str, good: bool, sentence: str) -> dict[str, Any]:
    return {"name": name, "good": bool(good), "sentence": sentence}


def _monte_carlo(fit: Fit) -> dict[str, Any]:
    worst = max(fit.coefficients, key=lambda c: c.mc_error / max(c.sd, 1e-300))
    ratio = worst.mc_error / max(worst.sd, 1e-300)
    text = f"at most {100 * ratio:.1f} % of a posterior spread ({worst.name}), as much as {worst.effective_size:.0f} independent draws leave."
    return _check("Monte Carlo error", ratio < 0.15, text + ("" if ratio < 0.15 else " Pass `--effort thorough`."))


def _bias(fit: Fit) -> dict[str, Any]:
    worst = max(fit.coefficients, key=lambda c: abs(c.bias) / max(c.sd, 1e-300))
    ratio = abs(worst.bias) / max(worst.sd, 1e-300)
    text = f"at most {100 * ratio:.1f} % of a posterior spread ({worst.name}), estimated and taken off."
    return _check("step-size bias", ratio < 0.25, text)


def _chains(fit: Fit) -> dict[str, Any]:
    """Split R-hat of the kept draws, the worst over coefficients."""
    draws = fit.draws
    half = draws.shape[1] // 2
    parts = np.concatenate([draws[:, :half], draws[:, half : 2 * half]])
    within = parts.var(axis=1, ddof=1).mean(axis=0)
    between = parts.mean(axis=1).var(axis=0, ddof=1)
    r_hat = np.sqrt((half - 1) / half + between / np.maximum(within, 1e-300))
    worst = int(np.argmax(r_hat))
    text = (
        f"R-hat is at most {r_hat[worst]:.3f} ({fit.coefficients[worst].name}) over {counted(draws.shape[0], 'chain')}"
    )
    return _check(
        "agreement of the chains",
        r_hat[worst] < 1.1,
        text + (" (1 is perfect)." if r_hat[worst] < 1.1 else ": run longer."),
    )


def _failures(fit: Fit) -> dict[str, Any]:
    failed = len(fit.run.failures)
    return _check(
        "divergences",
        failed == 0,
        "no chain left the sane range." if not failed else f"{counted(failed, 'chain')} failed.",
    )


def _prior(fit: Fit, X: np.ndarray, prior_scale: float) -> dict[str, Any]:
    """Coefficients about which the data say little: their spread is nearly the prior's."""
    scale = X.std(axis=0) / fit.posterior.units.y_scale
    by_name = dict(zip(fit.names, scale, strict=True))
    vague = [c.name for c in fit.coefficients if c.name in by_name and c.sd * by_name[c.name] > 0.5 * prior_scale]
    if not vague:
        return _check(
            "what the prior decides", True, "no coefficient: the data narrow every one to less than half its prior."
        )
    some = ", ".join(dict.fromkeys(vague[:5])) + ("…" if len(vague) > 5 else "")
    return _check(
        "what the prior decides", False,
        f"the data say little about {some}: separable classes, or columns that go together. Compare with another `--prior-scale`.",
    )  # fmt: skip


def _rows(fit: Fit, X: np.ndarray) -> dict[str, Any]:
    n, p = X.shape
    text = f"{n} rows for {counted(len(fit.coefficients), 'coefficient')}."
    return _check(
        "rows per coefficient",
        n >= 5 * len(fit.coefficients),
        text + ("" if n >= 5 * len(fit.coefficients) else " Intervals are wide and lean on the prior."),
    )

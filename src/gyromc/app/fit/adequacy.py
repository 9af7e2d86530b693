"""Whether the model fits, as plain values for fit.json: checks in sentences, a headline, LOO, WAIC, R², deviance, figures.

Input: the fit to all rows, the rows, and the coverage found on held-out rows. Output: the part `adequacy` of fit.json.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gyromc.app.fit.advice import NAMES, Setting, advise, headline
from gyromc.app.fit.datatable import DataTable
from gyromc.app.fit.encoding import Encoding
from gyromc.regression.adequacy.assess import Adequacy, assess, figure_numbers, held_out_coverage
from gyromc.regression.adequacy.checks import Aspect, ModelCheck, ModelVerdict
from gyromc.regression.fit import Fit
from gyromc.show.numbers import plain

__all__ = ["adequacy", "coverage"]

ROWS_NAMED = 20


def coverage(
    fit: Fit,
    X: np.ndarray,
    y: np.ndarray,
    beside: Mapping[str, Any] | None = None,
    weights: np.ndarray | None = None,
) -> dict[str, Any] | None:
    """Return the coverage of predictive intervals on held-out rows; None for classes. `beside`, `weights` as for `adequacy`."""
    found = held_out_coverage(fit.posterior, X, y, beside, weights=weights)
    return None if found is None else {"share": found.statistic, "p": found.p, "large": found.large, **found.details}


def adequacy(
    fit: Fit,
    encoding: Encoding,
    table: DataTable,
    X: np.ndarray,
    y: np.ndarray,
    held_out: dict[str, Any] | None,
    command: str,
    beside: Mapping[str, Any] | None = None,
    weights: np.ndarray | None = None,
) -> dict[str, Any]:
    """Return the part of fit.json on whether the model fits.

    `command`: the command line that made the fit; `beside`: what `Draws.predictors` takes beside X, by name; `weights`: how many
    observations each row stands for.
    """
    covered = [] if held_out is None else _covered(held_out.get("coverage"))
    found = assess(
        fit.posterior,
        X,
        y,
        names=encoding.names,
        sources=_sources(encoding),
        further=covered,
        beside=beside,
        weights=weights,
    )
    setting = Setting(encoding, table.take(found.rows), command, bool(np.min(y) > 0) and not encoding.response.classes)
    checks = [_written(check, setting) for check in found.checks]
    return {
        "verdict": found.judgement.value,
        "headline": headline(checks),
        "checks": checks,
        "rows": len(found.rows),
        "of_rows": found.num_rows,
        "draws": found.law.num_draws,
        **_quoted(found),
        "figures": figure_numbers(found),
    }


def _sources(encoding: Encoding) -> list[str]:
    """The column of the file, or the term of the formula, that each column of X comes from."""
    return list(encoding.sources.values())


def _covered(found: dict[str, Any] | None) -> list[ModelCheck]:
    """The check of coverage, from the part of fit.json on held-out rows."""
    if found is None:
        return []
    details = {key: found[key] for key in ("level", "rows", "expected", "least")}
    return [ModelCheck(Aspect.COVERAGE, found["share"], found["p"], found["large"], details)]


def _written(check: ModelCheck, setting: Setting) -> dict[str, Any]:
    advice = advise(check, setting)
    wrong = check.verdict is not ModelVerdict.FINE
    rows = check.details["rows"] if check.aspect in (Aspect.OUTLIERS, Aspect.INFLUENCE) else []
    return {
        "name": NAMES[check.aspect],
        "verdict": check.verdict.value,
        "statistic": plain(check.statistic),
        "p": plain(check.p),
        "p_adjusted": plain(check.adjusted),
        "sentence": advice.sentence,
        "remedy": advice.remedy if wrong else "",
        "command": advice.command if wrong else None,
        "lines": list(dict.fromkeys(setting.table.lines[rows].tolist()))[:ROWS_NAMED] if rows else [],
    }


def _quoted(found: Adequacy) -> dict[str, Any]:
    """LOO, WAIC, R² and deviance."""
    loo, waic = found.loo, found.waic
    low, high = np.quantile(found.r_squared, [0.025, 0.975])
    return {
        "loo": {
            "elpd": loo.elpd,
            "std_error": loo.std_error,
            "p_loo": loo.p_loo,
            "looic": loo.looic,
            "rows_above_0.7": int(loo.influential.size),
        },
        "waic": {"elpd": waic.elpd, "std_error": waic.std_error, "p_waic": waic.p_waic, "waic": waic.waic},
        "r_squared": {"mean": float(found.r_squared.mean()), "interval_95": [float(low), float(high)]},
        "deviance": {"mean": float(found.deviance.mean()), "sd": float(found.deviance.std(ddof=1))},
    }

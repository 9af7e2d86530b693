"""Models of the same rows compared by leave-one-out cross-validation: differences of elpd, stacking weights.

Input: the findings of fits (fit.json), each with log p(y_i | all other rows) of the same rows. Output: a `ModelComparison`. The
standard error of a difference is that of paired rows, √n sd(elpd_i - elpd'_i). Stacking weights w maximise
Σ_i log Σ_k w_k p_k(y_i | all other rows), the log score of the mixture (Yao, Vehtari, Simpson and Gelman 2018).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gyromc.checks import one_of, require
from gyromc.regression.comparing import ComparedFamily
from gyromc.show.numbers import number
from gyromc.show.tables import Shown, Table
from gyromc.targets.families import FAMILIES
from gyromc.targets.likelihoods import ResponseKind

__all__ = ["ComparedModel", "ModelComparison", "compared", "stacked"]

ROUNDS = 2000  # of the fixed-point iteration; its gain per round is below 1e-6 long before


@dataclasses.dataclass(frozen=True)
class ComparedModel(ComparedFamily):
    """One model of a comparison.

    - `name`: its formula or file; `r_squared`: of rows left out; `weight`: in the stacked mixture; all else as for a family.
    """

    name: str = ""
    r_squared: float | None = None
    weight: float = 0.0


@dataclasses.dataclass(frozen=True, repr=False)
class ModelComparison(Shown):
    """Models compared, the best first; `print(comparison)` shows the table."""

    models: tuple[ComparedModel, ...]
    target: str
    rows: int

    def __getitem__(self, name: str) -> ComparedModel:
        found = {one.name: one for one in self.models}
        return found[one_of(name, found, "name")]

    def to_dict(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "rows": self.rows,
            "models": [{**dataclasses.asdict(one), "verdict": one.verdict} for one in self.models],
        }

    def shown(self) -> Sequence[Table | str]:
        rows = [
            [one.name, one.family, *one.cells[:-1], number(one.r_squared), f"{one.weight:.2f}", one.cells[-1]]
            for one in self.models
        ]
        numbers = ["elpd", "difference", "effective parameters", "LOO R²", "stacking weight"]
        columns = ["model", "family", *numbers, "verdict"]
        note = (
            f"elpd: log density of {self.rows} rows of {self.target}, each left out in turn; the difference is that to the best, "
            "± one standard error from paired rows. Clearly worse: by more than 4 and two standard errors, with all rows or "
            "without the one that differs most. The weights make the mixture of all models that predicts best."
        )
        return [Table(columns, rows, "Models compared", [note], left=[*columns[:2], columns[-1]], style="simple")]


def compared(findings: Mapping[str, Mapping[str, Any]]) -> ModelComparison:
    """Compare models by name, from the content of their fit.json."""
    require(len(findings) > 1, "Name two models or more, of different formulas or files.")
    (first, reference), *others = findings.items()
    for name, found in findings.items():
        require("pointwise" in found["adequacy"], f"{name} was saved by an earlier gyromc: fit and save it again.")
    for name, found in others:
        _require_same(first, reference, name, found)
    rows = np.array([found["adequacy"]["pointwise"]["elpd"] for found in findings.values()])
    best = rows[int(np.argmax(rows.sum(axis=1)))]
    count, weights = rows.shape[1], stacked(rows)
    scale = reference["adequacy"]["of_rows"] / count
    models = []
    for (name, found), elpd, weight in zip(findings.items(), rows, weights, strict=True):
        loo = found["adequacy"]["loo"]
        one = ComparedModel(
            found["model"]["name"],
            **{key: loo[key] for key in ("elpd", "std_error", "p_loo")},
            **ComparedFamily.against(elpd, best, scale),
            heavy=loo["rows_above_0.7"],
            name=name,
            r_squared=found["adequacy"]["loo_r_squared"],
            weight=float(weight),
        )
        models.append(one)
    models.sort(key=lambda one: -one.difference)
    return ModelComparison(tuple(models), reference["model"]["target"], reference["adequacy"]["of_rows"])


def _require_same(first: str, reference: Mapping[str, Any], name: str, found: Mapping[str, Any]) -> None:
    """Raise unless two models predict the same responses of the same rows, both with densities or both with probabilities."""
    targets = [one["model"]["target"] for one in (reference, found)]
    require(
        targets[0] == targets[1],
        f"{first} predicts {targets[0]!r} and {name} {targets[1]!r}: densities of different responses cannot be compared.",
    )
    points = [one["adequacy"]["pointwise"] for one in (reference, found)]
    require(
        all(points[0][key] == points[1][key] for key in ("rows", "observed")),
        f"{first} ({len(points[0]['rows'])} rows) and {name} ({len(points[1]['rows'])} rows) were not fitted to the same rows. "
        "Fit both to rows that have all columns, as with `--missing drop` and one list of columns.",
    )
    kinds = [FAMILIES[one["model"]["name"]].response is ResponseKind.NUMBERS for one in (reference, found)]
    require(
        kinds[0] == kinds[1],
        f"{first} has a density of numbers and {name} probabilities of whole numbers: list both families in one fit, "
        "as in `--family poisson,linear`, which compares them on one scale.",
    )


def stacked(elpd: np.ndarray) -> np.ndarray:
    """Stacking weights from log densities, models × rows."""
    p = np.exp(elpd - elpd.max(axis=0))
    w = np.full(len(p), 1 / len(p))
    for _ in range(ROUNDS):
        w = w * np.mean(p / (w @ p), axis=1)
    return w / w.sum()

"""Columns that are no predictors: weights, offset, exposure, trials and clusters of the rows.

Input: a table and the names of such columns. Output: their numbers, checked, with the place of what is wrong.
"""

import dataclasses

import numpy as np

from gyromc.app.fit.columns import as_numbers, as_text
from gyromc.app.fit.datatable import DataTable
from gyromc.checks import require
from gyromc.errors import InvalidInput

__all__ = ["NO_ROLES", "Roles"]

LOG_LINK = ("poisson", "negative-binomial", "gamma")
"""Families whose linear predictor is a logarithm, so that an exposure multiplies."""
OF_TRIALS = ("binomial", "beta-binomial")
"""Families of counts of successes."""
RULES = {
    "weights": ("a number of 0 or more", lambda x: x >= 0),
    "offset": ("a finite number", lambda x: np.isfinite(x)),
    "exposure": ("a positive number", lambda x: x > 0),
    "trials": ("a whole number of 1 or more", lambda x: (x >= 1) & (x == np.round(x))),
}


@dataclasses.dataclass(frozen=True)
class Roles:
    """The column of each role, or None."""

    weights: str | None = None
    offset: str | None = None
    exposure: str | None = None
    trials: str | None = None
    cluster: str | None = None

    @property
    def given(self) -> dict[str, str]:
        """The columns by role."""
        return {role: name for role, name in dataclasses.asdict(self).items() if name is not None}

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that have a role."""
        return tuple(dict.fromkeys(self.given.values()))

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns that new rows must have to be predicted for."""
        return tuple(name for name in (self.offset, self.exposure, self.trials) if name is not None)

    def require(self, target: str, model: str) -> None:
        """Raise where a role does not suit the model."""
        for role, name in self.given.items():
            require(name != target, f"`--{role} {name}`: that is the target itself.")
        require(
            self.exposure is None or model in LOG_LINK,
            f"`--exposure` multiplies an expected count: it suits {', '.join(LOG_LINK)}, not {model}. Use `--offset`.",
        )
        require(
            self.trials is None or model in OF_TRIALS,
            f"`--trials` is for counts of successes: pass `--family binomial` or `--family beta-binomial`, not {model}.",
        )
        require(
            self.trials is not None or model not in OF_TRIALS,
            f"The family {model} needs the number of trials of each row: pass `--trials COLUMN`.",
        )

    def numbers(self, table: DataTable, role: str) -> np.ndarray | None:
        """Return the numbers of a role, None where no column has it."""
        name = self.given.get(role)
        if name is None:
            return None
        table.require_column(name, f"--{role}")
        values, bad = as_numbers(table.columns[name])
        what, rule = RULES[role]
        wrong = bad | np.isnan(values) | ~rule(np.where(np.isnan(values), 1.0, values))
        if wrong.any():
            raise InvalidInput(
                f"{table.path}, {table.place(wrong)}: `--{role} {name}` must be {what}, but is "
                f"{table.columns[name][wrong].iloc[0]!s} there. Correct it, or remove the row."
            )
        return values

    def total_offset(self, table: DataTable) -> np.ndarray | None:
        """Return the offset, the logarithm of the exposure added to it."""
        offset, exposure = self.numbers(table, "offset"), self.numbers(table, "exposure")
        if exposure is None:
            return offset
        return np.log(exposure) if offset is None else offset + np.log(exposure)

    def clusters(self, table: DataTable) -> np.ndarray | None:
        """Return the number of each row's cluster, from 0."""
        if self.cluster is None:
            return None
        table.require_column(self.cluster, "--cluster")
        texts = as_text(table.columns[self.cluster])
        missing = texts.isna().to_numpy()
        require(
            not missing.any(),
            f"{table.path}: `--cluster {self.cluster}` lacks values. Fill them in, or remove those rows.",
        )
        return np.unique(texts.to_numpy(str), return_inverse=True)[1]


NO_ROLES = Roles()
"""No column has a role."""

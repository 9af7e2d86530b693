"""A fitted model, its file, predictions from it without the data that it was fitted to, and comparisons of such models."""

import dataclasses
import itertools
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gyromc.checks import one_of, read_path, require, shown, whole
from gyromc.extras import needs
from gyromc.io.archive import Archive, Codec, known_classes, write_archive
from gyromc.regression.comparing import ComparedFamily
from gyromc.regression.draws import POSTERIOR_CLASSES, Draws, Predictions, Predictive
from gyromc.regression.fit import Coefficient
from gyromc.runtime.machine import require_memory
from gyromc.show.files import write_atomically
from gyromc.show.numbers import number
from gyromc.show.tables import Shown, Table
from gyromc.tables.datatable import DataTable, pandas_module, read_table
from gyromc.tables.effects import level_rows
from gyromc.tables.encoding import CategoricalColumn, DateColumn, Encoding, GroupFactor, NumericColumn, Response, Roles
from gyromc.tables.formula import FormulaDesign
from gyromc.tables.report import render, summary_tables
from gyromc.targets.families import FAMILIES
from gyromc.targets.likelihoods import ResponseKind


@dataclasses.dataclass(frozen=True)
class ComparedModel(ComparedFamily):
    """One model of a comparison: `name`, its formula or file; `r_squared`, of rows left out; `weight`, in the stacked mixture."""

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
        models = [{**dataclasses.asdict(one), "verdict": one.verdict} for one in self.models]
        return {"target": self.target, "rows": self.rows, "models": models}

    def shown(self) -> Sequence[Table | str]:
        further = lambda one: [number(one.r_squared), f"{one.weight:.2f}", one.cells[-1]]
        rows = [[one.name, one.family, *one.cells[:-1], *further(one)] for one in self.models]
        numbers = ["elpd", "difference", "effective parameters", "LOO R²", "stacking weight"]
        columns = ["model", "family", *numbers, "verdict"]
        note = f"elpd: log density of {self.rows} rows of {self.target}, each left out in turn; the difference is that to the"
        note += " best, ± one standard error from paired rows. Clearly worse: by more than 4 and two standard errors, with all"
        note += (
            " rows or without the one that differs most. The weights make the mixture of all models that predicts best."
        )
        return [Table(columns, rows, "Models compared", [note], left=[*columns[:2], columns[-1]], style="simple")]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class FittedModel(Shown):
    """A fitted model: what `gyromc.fit` returns, and `gyromc.load` for a file of `gyromc fit … --save`.

    **Attributes:**

    - `encoding`: what the columns of a table become; `encoding.needs`: the columns that new rows must have.
    - `posterior`: the draws; `coefficients`: a tuple of `Coefficient`, those of further parameters last.
    - `about`: the file, the formula, the number of rows, the command and the date of the fit.
    - `results`: the content of fit.json: all findings, checks of the computation and of the model.
    - `model["age"]`: a `Coefficient`; `predict(data)`: a `Predictions`; `simulate(data)`: draws of the response;
      `summary()`, `plot()`, `report(path)`, `save(path)`.
    """

    encoding: Encoding
    posterior: Draws
    coefficients: tuple[Coefficient, ...]
    about: Mapping[str, Any]
    results: Mapping[str, Any] | None = None

    def __getitem__(self, name: str) -> Coefficient:
        found = {one.label: one for one in reversed(self.coefficients)}
        return found[one_of(name, reversed(found), "name")]

    def shown(self) -> Sequence[Table | str]:
        return summary_tables(self._findings())

    def summary(self) -> str:
        """Coefficients, further parameters, what people quote, and the verdicts of all checks, as text."""
        return repr(self)

    @property
    def groups(self) -> dict[str, Any]:
        """The deviations of the levels of each group, as data frames: level, effect, mean, sd, low_95, high_95."""
        found = {}
        for group in self.posterior.groups:
            frame = pandas_module().DataFrame(level_rows(group))
            frame[["low_95", "high_95"]] = frame["interval_95"].tolist()
            found[group.name] = frame.drop(columns=["rows", "interval_95"])
        return found

    def parameters(self) -> dict[str, np.ndarray]:
        """Draws of coefficients, further parameters and deviations of groups, in the units of the file: chains × draws each."""
        posterior = self.posterior
        every = np.concatenate([posterior.coefficients(), posterior.further()], axis=-1)
        found = dict(zip((one.label for one in self.coefficients), np.moveaxis(every, -1, 0), strict=True))
        for group in posterior.groups:
            for (i, level), (j, effect) in itertools.product(enumerate(group.levels), enumerate(group.columns)):
                found[f"{effect} | {group.name}[{level}]"] = group.deviations[:, :, i, j]
        return found

    @property
    def draws(self) -> Any:
        """The draws as a data frame: chain, draw, and a column for each parameter, in the units of the file."""
        found = self.parameters()
        chain, draw = np.indices(next(iter(found.values())).shape)
        columns = {"chain": chain, "draw": draw, **found}
        return pandas_module().DataFrame({name: values.ravel() for name, values in columns.items()})

    def to_dataframe(self) -> Any:
        """The coefficients and further parameters as a data frame, a row for each: as the columns of `Posterior.to_dataframe`."""
        names = ("mean", "sd", "std_error", "relative_error", "ess", "low", "high")
        rows = {one.label: [getattr(one, name) for name in names] for one in self.coefficients}
        return pandas_module().DataFrame.from_dict(rows, orient="index", columns=list(names))

    def save_draws(self, path: str | Path) -> None:
        """Write the draws to a CSV or Parquet file, by its name."""
        require_draws_file(read_path(path))
        _write_frame(path, self.draws)

    def to_datatree(self) -> Any:
        """The draws as an ArviZ DataTree with the group `posterior`, one variable for each parameter."""
        with needs("arviz", "`to_datatree`"):
            import arviz_base
        with warnings.catch_warnings():
            # more groups of draws than draws in each: they are independent
            warnings.simplefilter("ignore", UserWarning)
            return arviz_base.from_dict({"posterior": self.parameters()})

    def plot(self, kind: str = "coefficients") -> Any:
        """Draw a Matplotlib figure: `coefficients`, `groups`, `effects`, `predictive`, `residuals`, `trace`, `prior`, `pit`,
        `calibration`, `curve`."""
        with needs("fit", "A figure of a fit"):
            from gyromc.tables.figures import drawn
        return drawn(kind, self._findings())

    def report(self, path: str | Path) -> None:
        """Write the report as one HTML page."""
        write_atomically(read_path(path), render(self._findings()))

    def _findings(self) -> dict[str, Any]:
        require(self.results is not None, "The file of this model has no findings: it was saved by an earlier gyromc.")
        return dict(self.results or {})

    def compare(self, *others: "FittedModel") -> ModelComparison:
        """Compare models of the same rows and response by leave-one-out cross-validation."""
        found: dict[str, Any] = {}
        for one in (self, *others):
            require(isinstance(one, FittedModel), f"Models are compared with models: got {shown(one)}.")
            name = one.about["formula"] or one.about["command"]
            name = f"{name}, {one.about['family']}" if name in found else name
            found[f"{name} ({len(found) + 1})" if name in found else name] = one._findings()
        return compared(found)

    def save(self, path: str | Path) -> None:
        """Write the model to a file, whole or not at all."""
        write_archive(path, "fit", self, Codec(CLASSES))

    def table(self, data: Any, **text: Any) -> DataTable:
        """Return new rows as a table: of a file, with the options of `read_table`, a data frame or a mapping of columns."""
        in_memory = text and not isinstance(data, str | Path)
        require(not in_memory, f"{', '.join(text)}: for files, and the rows are in memory. Leave it out.")
        needs = self.encoding.needs
        return read_table(data, needs[:1], keep=needs, role="needed by the model", **text)

    def predict(self, data: Any, **text: Any) -> Predictions:
        """Return what the model expects of new rows: mean, Monte Carlo error, posterior standard deviation and noise apart.

        `data`: a file, a data frame or a mapping, in the units of the fitted file; other columns than those needed are ignored.
        """
        rows = self.encoding.rows_of(self.table(data, **text), fitted=False)
        return self.posterior.predict(rows.X, **rows.beside())

    def simulate(self, data: Any, draws: int = 1000, seed: int = 0, **text: Any) -> np.ndarray:
        """Return draws of the response at new rows, rows × draws: parameters and noise drawn anew, classes as places."""
        draws, rng = whole(draws, "draws", least=1), np.random.default_rng(whole(seed, "seed", least=0))
        rows = self.encoding.rows_of(self.table(data, **text), fitted=False)
        require_memory(16 * draws * len(rows.X), f"`draws` = {draws:,} of {len(rows.X):,} rows", "Take fewer.")
        law = Predictive.of(self.posterior, rows.X, self.posterior.count, **rows.beside())
        return law.replicate(rng)[rng.choice(law.num_draws, draws, replace=draws > law.num_draws)].T

    def save_responses(self, path: str | Path, data: Any, draws: int = 1000, seed: int = 0, **text: Any) -> None:
        """Write what `simulate` returns to a CSV or Parquet file: rows × draws, classes by name."""
        require_draws_file(read_path(path))
        table, found = self.table(data, **text), self.simulate(data, draws, seed, **text)
        classes = self.encoding.response.classes
        values = np.array(classes, object)[found.astype(int)] if classes else found
        frame = pandas_module().DataFrame(values, columns=[f"draw {k}" for k in range(1, draws + 1)])
        frame.insert(0, table.unit, table.lines)
        _write_frame(path, frame)


def _write_frame(path: str | Path, frame: Any) -> None:
    csv = str(path).endswith(".csv")
    text = frame.to_csv(index=False, float_format="%.9g") if csv else ""
    write_atomically(Path(path), text if csv else lambda file: frame.to_parquet(file, index=False))


def require_draws_file(path: str | Path | None) -> None:
    """Raise unless draws can be written to a file of that name; None is fine."""
    known = path is None or str(path).endswith((".csv", ".parquet"))
    require(known, f"Draws are written as CSV or Parquet: name a file .csv or .parquet, not {path}.")


def compared(findings: Mapping[str, Mapping[str, Any]]) -> ModelComparison:
    """Compare models by name, from the content of their fit.json: by log p(y_i | all other rows) of each, row by row."""
    require(len(findings) > 1, "Name two models or more, of different formulas or files.")
    (first, reference), *others = findings.items()
    target = reference["model"]["target"]
    for name, found in findings.items():
        require("pointwise" in found["adequacy"], f"{name} was saved by an earlier gyromc: fit and save it again.")
    for name, found in others:
        both = f"{first} predicts {target!r} and {name} {found['model']['target']!r}"
        same = found["model"]["target"] == target
        require(same, f"{both}: densities of different responses cannot be compared.")
        points = [one["adequacy"]["pointwise"] for one in (reference, found)]
        both = f"{first} ({len(points[0]['rows'])} rows) and {name} ({len(points[1]['rows'])} rows)"
        remedy = "Fit both to rows that have all columns, as with `--missing drop` and one list of columns."
        same = all(points[0][key] == points[1][key] for key in ("rows", "observed"))
        require(same, f"{both} were not fitted to the same rows. {remedy}")
        kinds = [FAMILIES[one["model"]["name"]].response is ResponseKind.NUMBERS for one in (reference, found)]
        both = "a density of numbers and probabilities of whole numbers"
        remedy = "List both families in one fit, as in `--family poisson,linear`, which compares them on one scale."
        require(kinds[0] == kinds[1], f"{first} and {name} have {both}. {remedy}")
    rows = np.array([found["adequacy"]["pointwise"]["elpd"] for found in findings.values()])
    best = rows[int(np.argmax(rows.sum(axis=1)))]
    of_rows = reference["adequacy"]["of_rows"]
    models = []
    for (name, found), elpd, weight in zip(findings.items(), rows, stacked(rows), strict=True):
        loo, r_squared = found["adequacy"]["loo"], found["adequacy"]["loo_r_squared"]
        known = {key: loo[key] for key in ("elpd", "std_error", "p_loo")} | {"heavy": loo["rows_above_0.7"]}
        known |= ComparedFamily.against(elpd, best, of_rows / len(best))
        further = {"name": name, "r_squared": r_squared, "weight": float(weight)}
        models.append(ComparedModel(found["model"]["name"], **known, **further))
    models.sort(key=lambda one: -one.difference)
    return ModelComparison(tuple(models), target, of_rows)


def stacked(elpd: np.ndarray) -> np.ndarray:
    """Stacking weights w from log densities, models × rows: they maximise Σ_i log Σ_k w_k p_k(y_i | all other rows)."""
    p = np.exp(elpd - elpd.max(axis=0))
    w = np.full(len(p), 1 / len(p))
    # The gain per round is below 1e-6 long before the last.
    for _ in range(2000):
        w = w * np.mean(p / (w @ p), axis=1)
    return w / w.sum()


CLASSES = POSTERIOR_CLASSES | known_classes(
    *(FittedModel, Coefficient, Encoding, NumericColumn, CategoricalColumn, GroupFactor, Response),
    *(FormulaDesign, Roles, DateColumn),
)


def restored_model(archive: Archive) -> FittedModel:
    """Return the model of an archive that was read."""
    found = Codec(CLASSES).unpack(archive)
    require(isinstance(found, FittedModel), "It holds no fitted model. Save one with `gyromc fit … --save FILE`.")
    width, columns = len(found.encoding.names), found.posterior.num_columns
    if found.encoding.formula is not None:
        found.encoding.formula.check([feature.name for feature in found.encoding.features])
    drawn = found.posterior
    needed = drawn.likelihood.outputs * drawn.units.rows(np.zeros((1, columns))).shape[1]
    fits = lambda group: group.deviations.shape == (*drawn.theta.shape[:2], len(group.levels), len(group.columns))
    if drawn.theta.shape[2] != needed or not all(map(fits, drawn.groups)):
        raise ValueError("the draws of the posterior do not have the shape of the model")
    require(columns == width, f"It is damaged: {width} columns, but a posterior of {columns}. Save it anew.")
    return found

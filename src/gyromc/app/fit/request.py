"""The options of `gyromc fit`, each with its type, default and help, for the command line and for Python."""

import inspect
import shlex
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["ALIASES", "FAMILIES", "Request", "family_named"]

FAMILIES = (
    "linear",
    "student-t",
    "logistic",
    "softmax",
    "ordinal",
    "poisson",
    "negative-binomial",
    "gamma",
    "binomial",
    "beta-binomial",
)
"""All families of models."""
ALIASES = {
    "gaussian": "linear",
    "normal": "linear",
    "t": "student-t",
    "student": "student-t",
    "bernoulli": "logistic",
    "multinomial": "softmax",
    "categorical": "softmax",
    "cumulative": "ordinal",
    "negbinomial": "negative-binomial",
    "negbin": "negative-binomial",
    "nb": "negative-binomial",
    "nbinom2": "negative-binomial",
    "betabinomial": "beta-binomial",
}
"""Names that R's packages have for the families."""


def family_named(text: str) -> str:
    """Return the family that a name stands for; an unknown one as it is."""
    plain = text.strip().lower().replace("_", "-")
    return ALIASES.get(plain.replace("-", ""), plain)


def _option(help: str, *names: str, metavar: str | None = None):
    return typer.Option(*names, metavar=metavar, help=help)


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of `gyromc fit`; the annotation of each says what it means."""

    data: Annotated[
        str,
        typer.Argument(metavar="DATA", help="A CSV file with a header line (also .gz), an Excel or a Parquet file."),
    ]
    target: Annotated[
        str | None, _option("The column to predict, from all others.", "--target", "-t", metavar="COLUMN")
    ] = None
    formula: Annotated[
        str | None,
        _option(
            "The model in R's notation, instead of --target: 'y ~ x1 * x2 + bs(age, 4) + (1 | subject)'.",
            "--formula",
            "-f",
        ),
    ] = None
    family: Annotated[
        str | None,
        _option(
            f"{', '.join(FAMILIES)}. Several with commas, or auto: the best of them by LOO. Left out: by the target's values.",
            metavar="NAME",
        ),
    ] = None
    model: Annotated[str | None, _option("The older name of --family.", metavar="NAME")] = None
    predict: Annotated[str | None, _option("New rows to predict for: predictions.csv.", metavar="FILE")] = None
    save: Annotated[
        str | None, _option("Save the model, for `gyromc predict-rows` and `gyromc.load`.", metavar="FILE")
    ] = None
    out: Annotated[str | None, _option("Where results go; results/fit-NAME when left out.", metavar="DIR")] = None
    columns: Annotated[list[str], _option("Predict from these columns only.", metavar="A,B,…")] = field(
        default_factory=list
    )
    drop: Annotated[list[str], _option("Leave these columns out.", metavar="A,B,…")] = field(default_factory=list)
    categorical: Annotated[
        list[str], _option("Treat these columns as categories, even if they hold numbers.", metavar="A,B,…")
    ] = field(default_factory=list)
    dates: Annotated[
        list[str], _option("Turn these dates into year, month, weekday and days since the first.", metavar="A,B,…")
    ] = field(default_factory=list)
    reference: Annotated[list[str], _option("The level that others are compared with.", metavar="COLUMN=LEVEL")] = (
        field(default_factory=list)
    )
    positive: Annotated[str | None, _option("The class whose probability is wanted.", metavar="CLASS")] = None
    order: Annotated[str | None, _option("The classes of an ordinal target, lowest first.", metavar="A,B,…")] = None
    weights: Annotated[str | None, _option("How many observations each row stands for.", metavar="COLUMN")] = None
    offset: Annotated[str | None, _option("Added to the linear predictor as it is.", metavar="COLUMN")] = None
    exposure: Annotated[
        str | None, _option("What counts are proportional to; its logarithm is an offset.", metavar="COLUMN")
    ] = None
    trials: Annotated[str | None, _option("The number of trials of each count.", metavar="COLUMN")] = None
    prior: Annotated[
        list[str],
        _option(
            "A coefficient's prior, per unit of its column: 'age=normal(0, 1)'; 'all=normal(0, 1)'.",
            metavar="NAME=PRIOR",
        ),
    ] = field(default_factory=list)
    robust: Annotated[bool, _option("Show robust (sandwich) spreads beside the model's.", "--robust")] = False
    cluster: Annotated[
        str | None, _option("Robust spreads that allow rows of a cluster to depend on each other.", metavar="COLUMN")
    ] = None
    impute: Annotated[bool, _option("Replace missing values by medians and most frequent categories.", "--impute")] = (
        False
    )
    test_fraction: Annotated[float, _option("Share of the rows held out to judge predictions; 0: none.")] = 0.25
    prior_scale: Annotated[
        float, _option("Prior standard deviation of a coefficient, per standard deviation of its column.")
    ] = 2.5
    effort: Annotated[
        str, _option("quick, standard or thorough; or the Monte Carlo error wanted, in posterior spreads (0.02).")
    ] = "standard"
    seed: Annotated[int, _option("The seed of the split and of all noise.")] = 0
    encoding: Annotated[str, _option("The encoding of a CSV file's text.")] = "utf-8"
    decimal: Annotated[str, _option("The decimal sign in a CSV file: . or ,")] = "."
    sheet: Annotated[str | None, _option("The sheet of an Excel file; the first when left out.", metavar="NAME")] = None
    explain: Annotated[
        bool, _option("Show the columns of the model, where each comes from and its prior; fit nothing.", "--explain")
    ] = False

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        """Return the options as parameters of a command."""
        found = []
        for name, parameter in inspect.signature(cls).parameters.items():
            factory = cls.__dataclass_fields__[name].default_factory is list  # the signature has a placeholder there
            found.append(parameter.replace(default=[] if factory else parameter.default))
        return found

    @property
    def directory(self) -> Path:
        """The directory of the results."""
        stem = Path(self.data.removesuffix(".gz")).stem
        return Path(self.out) if self.out is not None else Path("results") / f"fit-{stem}"

    @property
    def command(self) -> str:
        """The command line with the same options."""
        parts = ["gyromc fit", shlex.quote(self.data)]
        for entry in fields(self)[1:]:
            value = getattr(self, entry.name)
            option = f"--{entry.name.replace('_', '-')}"
            if value is True and entry.name != "explain":
                parts.append(option)
            elif isinstance(value, list | tuple):
                parts += [f"{option} {shlex.quote(text)}" for text in value]
            elif value != entry.default and not isinstance(value, bool):
                parts.append(f"{option} {shlex.quote(str(value))}")
        return " ".join(parts)

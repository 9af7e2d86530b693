"""The options of a fit to a table, each with its type, default and help, for the command line and for Python."""

import re
import shlex
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated


class Option:
    """How an option is shown on the command line: its help, its names where they are not its own, what stands for its value."""

    def __init__(self, help: str, *names: str, metavar: str | None = None):
        self.help, self.names, self.metavar = help, names, metavar


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of `gyromc fit`; the annotation of each says what it means."""

    data: Annotated[
        str,
        Option(
            "A CSV file with a header line (also .gz), an Excel or a Parquet file; or example:NAME (`gyromc examples`).",
            metavar="DATA",
        ),
    ]
    target: Annotated[
        str | None, Option("The column to predict, from all others.", "--target", "-t", metavar="COLUMN")
    ] = None
    formula: Annotated[
        str | None,
        Option(
            "The model in R's notation, instead of --target: 'y ~ x1 * x2 + bs(age, 4) + (1 | subject)'.",
            "--formula",
            "-f",
        ),
    ] = None
    family: Annotated[
        str | None,
        Option(
            "FAMILIES. Several with commas, or auto: the best of them by LOO. Left out: by the target's values.",
            "--family",
            "--model",
            metavar="NAME",
        ),
    ] = None
    predict: Annotated[str | None, Option("New rows to predict for: predictions.csv.", metavar="FILE")] = None
    save: Annotated[str | None, Option("Save the model, for `gyromc apply` and `gyromc.load`.", metavar="FILE")] = None
    draws: Annotated[
        str | None, Option("Write the draws of all parameters, in the file's units: .csv or .parquet.", metavar="FILE")
    ] = None
    out: Annotated[str | None, Option("Where results go; results/fit-NAME when left out.", metavar="DIR")] = None
    columns: Annotated[list[str], Option("Predict from these columns only.", metavar="A,B,…")] = field(
        default_factory=list
    )
    drop: Annotated[list[str], Option("Leave these columns out.", metavar="A,B,…")] = field(default_factory=list)
    categorical: Annotated[
        list[str], Option("Treat these columns as categories, even if they hold numbers.", metavar="A,B,…")
    ] = field(default_factory=list)
    dates: Annotated[
        list[str], Option("Turn these dates into year, month, weekday and days since the first.", metavar="A,B,…")
    ] = field(default_factory=list)
    reference: Annotated[list[str], Option("The level that others are compared with.", metavar="COLUMN=LEVEL")] = field(
        default_factory=list
    )
    positive: Annotated[str | None, Option("The class whose probability is wanted.", metavar="CLASS")] = None
    order: Annotated[str | None, Option("The classes of an ordinal target, lowest first.", metavar="A,B,…")] = None
    weights: Annotated[str | None, Option("How many observations each row stands for.", metavar="COLUMN")] = None
    offset: Annotated[str | None, Option("Added to the linear predictor as it is.", metavar="COLUMN")] = None
    exposure: Annotated[
        str | None, Option("What counts are proportional to; its logarithm is an offset.", metavar="COLUMN")
    ] = None
    trials: Annotated[str | None, Option("The number of trials of each count.", metavar="COLUMN")] = None
    prior: Annotated[
        list[str],
        Option(
            "A coefficient's prior, per unit of its column: 'age=normal(0, 1)'; 'all=normal(0, 1)'.",
            metavar="NAME=PRIOR",
        ),
    ] = field(default_factory=list)
    robust: Annotated[bool, Option("Show robust (sandwich) standard deviations next to the model's.", "--robust")] = (
        False
    )
    cluster: Annotated[
        str | None,
        Option("Robust standard deviations that allow rows of a cluster to depend on each other.", metavar="COLUMN"),
    ] = None
    impute: Annotated[bool, Option("Replace missing values by medians and most frequent categories.", "--impute")] = (
        False
    )
    missing: Annotated[
        str | None,
        Option("drop: leave out rows that lack a value of a column in use, as R's na.omit does.", metavar="drop"),
    ] = None
    test_fraction: Annotated[float, Option("Share of the rows held out to judge predictions; 0: none.")] = 0.25
    prior_scale: Annotated[
        float, Option("Prior standard deviation of a coefficient, per standard deviation of its column.")
    ] = 2.5
    effort: Annotated[
        str,
        Option(
            "quick, standard or thorough; or the Monte Carlo error wanted, in posterior standard deviations (0.02)."
        ),
    ] = "standard"
    seed: Annotated[int, Option("The seed of the split and of all noise.")] = 0
    encoding: Annotated[str, Option("The encoding of a CSV file's text.")] = "utf-8"
    decimal: Annotated[str, Option("The decimal sign in a CSV file: . or ,")] = "."
    sheet: Annotated[str | None, Option("The sheet of an Excel file; the first when left out.", metavar="NAME")] = None
    explain: Annotated[
        bool, Option("Show the columns of the model, where each comes from and its prior; fit nothing.", "--explain")
    ] = False

    @property
    def directory(self) -> Path:
        """The directory of the results."""
        stem = Path(self.data.removesuffix(".gz").removeprefix("example:")).stem
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


FLAGS = [one.name for one in fields(Request) if isinstance(one.default, bool)]


def in_python(text: str) -> str:
    """Return a message or JSON with options of the command line as arguments of `gyromc.fit`, and command lines as calls.

    ```python
    from gyromc.tables.request import in_python
    assert in_python("pass `--impute`, or `--drop age`.") == "pass `impute=True`, or `drop='age'`."
    assert in_python("gyromc fit data --formula 'y ~ x' --family gamma") == "gm.fit('y ~ x', data, family='gamma')"
    ```
    """
    text = re.sub(r"gyromc fit data((?: (?:'[^']*'|[^\s'\"`]+))*)", lambda match: _call(match[1]), text)
    return re.sub(r"`--([a-z][a-z-]*)(?:[ =]([^`]*))?`", lambda match: f"`{_argument(match[1], match[2])}`", text)


def _argument(option: str, value: str | None) -> str:
    name = option.replace("-", "_")
    if value is None:
        return f"{name}=True" if name in FLAGS else name
    return f"{name}={value if _is_number(value) else repr(value)}"


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", text) is not None


def _call(options: str) -> str:
    """A call of `gyromc.fit` with the options of a command line."""
    words, given = shlex.split(options), []
    formula = "'…'"
    while words:
        option = words.pop(0).removeprefix("--")
        value = words.pop(0) if words and not words[0].startswith("--") else None
        if option == "formula":
            formula = repr(value)
        elif (option, value) != ("test-fraction", "0.0"):  # the default there
            given.append(_argument(option, value))
    return f"gm.fit({', '.join([formula, 'data', *given])})"

"""The options of a fit to a table, each with its type, default and help, for the command line and for Python."""

# ruff: noqa: RUF009  # fields of the dataclass are made by functions
import re
import shlex
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

DATA = "A CSV file with a header line (also .gz), an Excel or a Parquet file; or example:NAME (`gyromc examples`)."
FAMILY = "FAMILIES. Several with commas, or auto: the best of them by LOO. Left out: by the target's values."
PRIOR = "A prior, in units of the file: 'age=normal(0, 1)', 'all=student_t(3, 0, 2.5)', 'sigma=exponential(1)', 'cor=lkj(4)'."
EFFORT = "quick, standard or thorough; or the Monte Carlo error wanted, in posterior standard deviations (0.02)."


def option(help: str, *names: str, metavar: str | None = None, default: Any = None) -> Any:
    """A field of `Request`: its help, its names where they are not its own, and what stands for its value."""
    found: Any = {"default_factory": list} if isinstance(default, list) else {"default": default}
    return field(**found, metadata={"help": help, "names": names, "metavar": metavar})


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of `gyromc fit`; each says what it means."""

    data: str = option(DATA, metavar="DATA", default=MISSING)
    target: str | None = option("The column to predict, from all others.", "--target", "-t", metavar="COLUMN")
    formula: str | None = option("Or a model: 'y ~ x1 * x2 + bs(age, 4) + (1 | subject)'.", "--formula", "-f")
    family: str | None = option(FAMILY, "--family", "--model", metavar="NAME")
    predict: str | None = option("New rows to predict for: predictions.csv.", metavar="FILE")
    save: str | None = option("Save the model, for `gyromc apply` and `gyromc.load`.", metavar="FILE")
    draws: str | None = option("Write the draws of all parameters: .csv or .parquet.", metavar="FILE")
    out: str | None = option("Where results go; results/fit-NAME when left out.", metavar="DIR")
    columns: list[str] = option("Predict from these columns only.", metavar="A,B,…", default=[])
    drop: list[str] = option("Leave these columns out.", metavar="A,B,…", default=[])
    categorical: list[str] = option("Columns of codes: categories, though numbers.", metavar="A,B,…", default=[])
    dates: list[str] = option("Dates: split into year, month, weekday and days.", metavar="A,B,…", default=[])
    reference: list[str] = option("The level that others are compared with.", metavar="COLUMN=LEVEL", default=[])
    positive: str | None = option("The class whose probability is modelled.", metavar="CLASS")
    order: str | None = option("The classes of an ordinal target, lowest first.", metavar="A,B,…")
    weights: str | None = option("How many observations each row stands for.", metavar="COLUMN")
    offset: str | None = option("Added to the linear predictor as it is.", metavar="COLUMN")
    exposure: str | None = option("Counts are proportional to it: its logarithm is an offset.", metavar="COLUMN")
    trials: str | None = option("The number of trials of each count.", metavar="COLUMN")
    censored: str | None = option("1 where a time is right-censored, else 0.", metavar="COLUMN")
    event: str | None = option("1 where the event was observed, as in Surv(time, event).", metavar="COLUMN")
    prior: list[str] = option(PRIOR, metavar="NAME=PRIOR", default=[])
    robust: bool = option("Show robust (sandwich) standard deviations next to the model's.", "--robust", default=False)
    cluster: str | None = option("The same, with clusters of rows that may be correlated.", metavar="COLUMN")
    impute: bool = option("Replace missing values by medians and most frequent categories.", "--impute", default=False)
    missing: str | None = option("drop: leave out rows that lack a value, as R's na.omit does.", metavar="drop")
    test_fraction: float = option("Share of the rows held out to judge predictions; 0: none.", default=0.25)
    prior_scale: float = option("Prior sd of a coefficient, per sd of its column.", default=2.5)
    effort: str = option(EFFORT, default="standard")
    seed: int = option("The seed of the split and of all random numbers.", default=0)
    encoding: str = option("The encoding of a CSV file's text.", default="utf-8")
    decimal: str = option("The decimal sign in a CSV file: . or ,", default=".")
    sheet: str | None = option("The sheet of an Excel file; the first when left out.", metavar="NAME")
    explain: bool = option("Show the columns of the model and their priors; fit nothing.", "--explain", default=False)
    prior_predictive: str | None = option("Draw data from the prior: .png, .svg or .pdf; fit nothing.", metavar="FILE")

    def __post_init__(self):
        # R's notation of times with events
        pattern = r"\s*Surv\s*\(\s*(`[^`]+`|[\w.]+)\s*,\s*`?([^`,()]+?)`?\s*\)\s*(~.*)"
        if survival := re.match(pattern, self.formula or "", re.DOTALL):
            object.__setattr__(self, "formula", f"{survival[1]} {survival[3]}")
            object.__setattr__(self, "event", survival[2])

    @property
    def text(self) -> dict[str, Any]:
        return {"encoding": self.encoding, "decimal": self.decimal}

    @property
    def directory(self) -> Path:
        stem = Path(self.data.removesuffix(".gz").removeprefix("example:")).stem
        return Path(self.out) if self.out is not None else Path("results") / f"fit-{stem}"

    @property
    def command(self) -> str:
        parts = ["gyromc fit", shlex.quote(self.data)]
        for entry in fields(self)[1:]:
            value, option = getattr(self, entry.name), f"--{entry.name.replace('_', '-')}"
            if value is True and entry.name != "explain":
                parts.append(option)
            elif isinstance(value, list | tuple):
                parts += [f"{option} {shlex.quote(text)}" for text in value]
            elif value != entry.default and not isinstance(value, bool):
                parts.append(f"{option} {shlex.quote(str(value))}")
        return " ".join(parts)


def in_python(value: Any) -> Any:
    """Return texts with options of the command line as arguments of `gyromc.fit` (`impute=True`), command lines as calls."""
    if isinstance(value, dict):
        return {key: in_python(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [in_python(entry) for entry in value]
    if not isinstance(value, str):
        return value
    value = re.sub(r"gyromc fit data((?: (?:'[^']*'|[^\s'\"`]+))*)", lambda match: _call(match[1]), value)
    return re.sub(r"`--([a-z][a-z-]*)(?:[ =]([^`]*))?`", lambda match: f"`{_argument(*match.groups())}`", value)


def _argument(option: str, value: str | None) -> str:
    name = option.replace("-", "_")
    if value is None:
        return f"{name}=True" if isinstance(getattr(Request, name, None), bool) else name
    return f"{name}={value if re.fullmatch(r'-?[0-9]+([.][0-9]+)?', value) else repr(value)}"


def _call(options: str) -> str:
    words, given, formula = shlex.split(options), [], "'…'"
    while words:
        option = words.pop(0).removeprefix("--")
        value = words.pop(0) if words and not words[0].startswith("--") else None
        if option == "formula":
            formula = repr(value)
        elif (option, value) != ("test-fraction", "0.0"):  # the default there
            given.append(_argument(option, value))
    return f"gm.fit({', '.join([formula, 'data', *given])})"

"""The options of `gyromc fit`, each with its type, default and help, for the command line and for Python."""

import inspect
import shlex
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Request"]


def _option(help: str, *names: str, metavar: str | None = None):
    return typer.Option(*names, metavar=metavar, help=help)


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of `gyromc fit`; the annotation of each says what it means."""

    data: Annotated[str, typer.Argument(metavar="DATA", help="A CSV file with a header line, or a Parquet file.")]
    target: Annotated[str, _option("The column to predict.", "--target", "-t", metavar="COLUMN")]
    model: Annotated[
        str | None,
        _option("linear, logistic (softmax for several classes) or poisson; chosen from the target when left out."),
    ] = None
    predict: Annotated[str | None, _option("New rows to predict for: predictions.csv.", metavar="FILE")] = None
    out: Annotated[str | None, _option("Where results go; results/fit-NAME when left out.", metavar="DIR")] = None
    columns: Annotated[list[str], _option("Predict from these columns only.", metavar="A,B,…")] = field(
        default_factory=list
    )
    drop: Annotated[list[str], _option("Leave these columns out.", metavar="A,B,…")] = field(default_factory=list)
    categorical: Annotated[
        list[str], _option("Treat these columns as categories, even if they hold numbers.", metavar="A,B,…")
    ] = field(default_factory=list)
    reference: Annotated[list[str], _option("The level that others are compared with.", metavar="COLUMN=LEVEL")] = (
        field(default_factory=list)
    )
    positive: Annotated[str | None, _option("The class whose probability is wanted.", metavar="CLASS")] = None
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
        return Path(self.out) if self.out is not None else Path("results") / f"fit-{Path(self.data).stem}"

    @property
    def command(self) -> str:
        """The command line with the same options."""
        parts = ["gyromc fit", shlex.quote(self.data), "--target", shlex.quote(self.target)]
        for entry in fields(self)[2:]:
            value = getattr(self, entry.name)
            option = f"--{entry.name.replace('_', '-')}"
            if value is True:
                parts.append(option)
            elif isinstance(value, list | tuple):
                parts += [f"{option} {shlex.quote(text)}" for text in value]
            elif value != entry.default:
                parts.append(f"{option} {shlex.quote(str(value))}")
        return " ".join(parts)

"""`gyromc fit`: the options of the command, and its answer as tables or JSON."""

from typing import Annotated

import typer

from gyromc.app.output import Json, print_json, print_tables

__all__ = ["register"]

EXAMPLES = """Examples:

gyromc fit heart.csv --target disease

gyromc fit heart.csv --target disease --categorical thal --predict new.csv --out results/heart

gyromc fit claims.parquet --target claims --model poisson --drop id,date --impute --json"""


def _option(help: str, *names: str, metavar: str | None = None):
    return typer.Option(*names, metavar=metavar, help=help)


Data = Annotated[str, typer.Argument(metavar="DATA", help="A CSV file with a header line, or a Parquet file.")]
Target = Annotated[str, _option("The column to predict.", "--target", "-t", metavar="COLUMN")]
Model = Annotated[
    str | None,
    _option("linear, logistic (softmax for several classes) or poisson; chosen from the target when left out."),
]
Predict = Annotated[str | None, _option("New rows to predict for: predictions.csv.", metavar="FILE")]
Out = Annotated[str | None, _option("Where results go; results/fit-NAME when left out.", metavar="DIR")]
Columns = Annotated[list[str] | None, _option("Predict from these columns only.", metavar="A,B,…")]
Drop = Annotated[list[str] | None, _option("Leave these columns out.", metavar="A,B,…")]
Categories = Annotated[
    list[str] | None, _option("Treat these columns as categories, even if they hold numbers.", metavar="A,B,…")
]
References = Annotated[list[str] | None, _option("The level that others are compared with.", metavar="COLUMN=LEVEL")]
Positive = Annotated[str | None, _option("The class whose probability is wanted.", metavar="CLASS")]
Impute = Annotated[bool, _option("Replace missing values by medians and most frequent categories.", "--impute")]
TestFraction = Annotated[float, _option("Share of the rows held out to judge predictions; 0: none.")]
PriorScale = Annotated[
    float, _option("Prior standard deviation of a coefficient, per standard deviation of its column.")
]
Effort = Annotated[
    str, _option("quick, standard or thorough; or the Monte Carlo error wanted, in posterior spreads (0.02).")
]
Seed = Annotated[int, _option("The seed of the split and of all noise.")]
TextEncoding = Annotated[str, _option("The encoding of a CSV file's text.")]
Decimal = Annotated[str, _option("The decimal sign in a CSV file: . or ,")]


def register(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command("fit", epilog=EXAMPLES)(fit)


def fit(
    data: Data,
    target: Target,
    model: Model = None,
    predict: Predict = None,
    out: Out = None,
    columns: Columns = None,
    drop: Drop = None,
    categorical: Categories = None,
    reference: References = None,
    positive: Positive = None,
    impute: Impute = False,
    test_fraction: TestFraction = 0.25,
    prior_scale: PriorScale = 2.5,
    effort: Effort = "standard",
    seed: Seed = 0,
    encoding: TextEncoding = "utf-8",
    decimal: Decimal = ".",
    json: Json = False,
) -> None:
    """Fit a regression to a table: coefficients, predictions, scores, each with its error, and a report."""
    from gyromc.app.fit.study import Request, study
    from gyromc.app.fit.terminal import tables
    from gyromc.errors import InvalidInput
    from gyromc.show.progress import say

    request = Request(
        data=data, target=target, model=model, predict=predict, out=out, columns=tuple(columns or ()), drop=tuple(drop or ()),
        categorical=tuple(categorical or ()), reference=tuple(reference or ()), positive=positive, impute=impute,
        test_fraction=test_fraction, prior_scale=prior_scale, effort=effort, seed=seed, encoding=encoding, decimal=decimal,
    )  # fmt: skip
    try:
        directory, results = study(request, say)
    except KeyboardInterrupt:
        say("interrupted: nothing was written, and what was there before is as it was.")
        raise typer.Exit(130) from None
    except MemoryError:
        raise InvalidInput(
            f"{data} does not fit into memory. Select columns with `--columns`, or take fewer rows."
        ) from None
    if json:
        print_json({"out": str(directory), **results})
    else:
        print_tables(*tables(results))
        print((directory / "report.html").resolve())

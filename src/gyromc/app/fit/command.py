"""`gyromc fit`: from a file of data to coefficients and predictions with their errors (E4); no logic, words in and words out.

Receives a Typer app; hands it on with one command. Tables or JSON go to standard output, progress and remarks to standard error.
"""

import sys
from typing import Annotated, Any

import typer

__all__ = ["register"]

EXAMPLES = """Examples:

gyromc fit heart.csv --target disease

gyromc fit heart.csv --target disease --categorical thal --predict new.csv --out results/heart

gyromc fit claims.parquet --target claims --model poisson --drop id,date --impute --json"""


def register(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command("fit", epilog=EXAMPLES)(fit)


def fit(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A CSV file with a header line, or a Parquet file.")],
    target: Annotated[str, typer.Option("--target", "-t", metavar="COLUMN", help="The column to predict.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="linear, logistic (softmax for several classes) or poisson; chosen from the target when left out."
        ),
    ] = None,
    predict: Annotated[
        str | None, typer.Option(metavar="FILE", help="New rows to predict for: predictions.csv.")
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where results go; results/fit-NAME when left out.")
    ] = None,
    columns: Annotated[list[str] | None, typer.Option(metavar="A,B,…", help="Predict from these columns only.")] = None,
    drop: Annotated[list[str] | None, typer.Option(metavar="A,B,…", help="Leave these columns out.")] = None,
    categorical: Annotated[
        list[str] | None,
        typer.Option(metavar="A,B,…", help="Take these columns for categories, even if they are numbers."),
    ] = None,
    reference: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=LEVEL", help="The level that others are compared with."),
    ] = None,
    positive: Annotated[
        str | None, typer.Option(metavar="CLASS", help="The class whose probability is wanted.")
    ] = None,
    impute: Annotated[
        bool, typer.Option("--impute", help="Replace missing values by medians and most frequent categories.")
    ] = False,
    test_fraction: Annotated[
        float, typer.Option(help="Share of the rows held out to judge predictions; 0: none.")
    ] = 0.25,
    prior_scale: Annotated[
        float, typer.Option(help="Prior standard deviation of a coefficient, per standard deviation of its column.")
    ] = 2.5,
    effort: Annotated[
        str,
        typer.Option(help="quick, standard or thorough; or the Monte Carlo error wanted, in posterior spreads (0.02)."),
    ] = "standard",
    seed: Annotated[int, typer.Option(help="What the split and all noise are derived from.")] = 0,
    encoding: Annotated[str, typer.Option(help="How the text of a CSV file is written.")] = "utf-8",
    decimal: Annotated[str, typer.Option(help="The decimal sign in a CSV file: . or ,")] = ".",
    json: Annotated[bool, typer.Option("--json", help="Print the content of fit.json instead of tables.")] = False,
) -> None:
    """Fit a regression to a table: coefficients, predictions, scores, each with its error, and a report."""
    from gyromc.app.fit.study import Request, study
    from gyromc.errors import InvalidInput

    request = Request(
        data=data, target=target, model=model, predict=predict, out=out, columns=tuple(columns or ()), drop=tuple(drop or ()),
        categorical=tuple(categorical or ()), reference=tuple(reference or ()), positive=positive, impute=impute,
        test_fraction=test_fraction, prior_scale=prior_scale, effort=effort, seed=seed, encoding=encoding, decimal=decimal,
    )  # fmt: skip
    try:
        directory, results = study(request, say=_say)
    except KeyboardInterrupt:
        _say("interrupted: nothing was written, and what was there before is as it was.")
        raise typer.Exit(130) from None
    except MemoryError:
        raise InvalidInput(
            f"{data} does not fit into memory. Select columns with `--columns`, or take fewer rows."
        ) from None
    if json:
        import json as writer

        print(writer.dumps({"out": str(directory), **results}, ensure_ascii=False, allow_nan=False))
        return
    _print(results)
    print((directory / "report.html").resolve())


def _print(results: dict[str, Any]) -> None:
    from rich.console import Console

    from gyromc.app.fit.terminal import tables

    console = Console(width=None if sys.stdout.isatty() else 130)
    for table in tables(results):
        console.print(table)
        console.print()


def _say(text: str) -> None:
    print(f"gyromc: {text}", file=sys.stderr)

"""`gyromc fit` on the command line: a study, and its answer as tables or JSON."""

import inspect
from typing import Any

import typer

from gyromc.app.fit.request import Request
from gyromc.app.output import Json, answer

__all__ = ["register"]

EXAMPLES = """Examples:

gyromc fit heart.csv --target disease

gyromc fit heart.csv --target disease --categorical thal --predict new.csv --out results/heart

gyromc fit claims.parquet --target claims --model poisson --drop id,date --impute --json"""


def register(app: typer.Typer) -> None:
    """Add the command to an app; its options are those of a `Request`."""
    json = inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)
    fit.__signature__ = inspect.Signature([*Request.parameters(), json])  # what Typer reads
    app.command("fit", epilog=EXAMPLES)(fit)


def fit(json: bool, **options: Any) -> None:
    """Fit a regression to a table: coefficients, predictions, scores, each with its error, and a report."""
    from gyromc.app.fit.report import tables
    from gyromc.app.fit.study import study
    from gyromc.errors import InvalidInput
    from gyromc.show.progress import say

    request = Request(**options)
    try:
        directory, results = study(request, say)
    except KeyboardInterrupt:
        say("interrupted: nothing was written, and what was there before is as it was.")
        raise typer.Exit(130) from None
    except MemoryError:
        raise InvalidInput(
            f"{request.data} does not fit into memory. Select columns with `--columns`, or take fewer rows."
        ) from None
    answer(json, {"out": str(directory), **results}, *tables(results), path=directory / "report.html")

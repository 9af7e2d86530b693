"""`gyromc fit` on the command line: a study, and its answer as tables or JSON."""

import inspect
from typing import Any

import typer

from gyromc.app.fit.request import Request
from gyromc.app.output import Json, answer

__all__ = ["register"]

EXAMPLES = """Examples:

gyromc fit heart.csv --target disease

gyromc fit heart.csv --target disease --categorical thal --predict new.csv --save heart.gyromc

gyromc fit trial.csv --formula "y ~ age * C(arm) + bs(dose, 4) + (1 | clinic)" --explain

gyromc fit claims.parquet --target claims --family poisson --exposure years --drop id --impute --json"""


def register(app: typer.Typer) -> None:
    """Add the command to an app; its options are those of a `Request`."""
    json = inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)
    fit.__signature__ = inspect.Signature([*Request.parameters(), json])  # what Typer reads
    app.command("fit", epilog=EXAMPLES)(fit)


def fit(json: bool, **options: Any) -> None:
    """Fit a regression to a table: coefficients, predictions, scores, each with its error, and a report."""
    from gyromc.extras import require_extra

    require_extra("fit", "`gyromc fit`")  # before the work, not at its end
    from gyromc.app.fit.large import is_large, large_study, large_tables
    from gyromc.app.fit.report import tables
    from gyromc.app.fit.study import study
    from gyromc.errors import InvalidInput
    from gyromc.show.progress import say

    request = Request(**options)
    large = is_large(request)
    if request.explain and not large:
        from gyromc.app.fit.explain import explained, explanation_tables
        from gyromc.app.fit.preparation import prepare

        found = explained(prepare(request), request.prior_scale)
        answer(json, found, *explanation_tables(found))
        return
    try:
        directory, results = large_study(request, say) if large else study(request, say)
    except KeyboardInterrupt:
        say("interrupted: nothing was written, and what was there before is as it was.")
        raise typer.Exit(130) from None
    except MemoryError:
        raise InvalidInput(
            f"{request.data} does not fit into memory. Select columns with `--columns`, or take fewer rows."
        ) from None
    shown = large_tables(results) if large else tables(results)
    page = directory / ("sample_report.html" if large else "report.html")
    answer(json, {"out": str(directory), **results}, *shown, path=page)

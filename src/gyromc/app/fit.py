"""`gyromc fit`, `gyromc examples` and `gyromc apply`: a study, the tables to try it on, predictions of a saved model."""

import dataclasses
import inspect
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from gyromc.app.output import Json, answer, app, print_json
from gyromc.errors import InvalidInput
from gyromc.extras import require_extra
from gyromc.show.numbers import counted
from gyromc.show.progress import say
from gyromc.show.tables import Table
from gyromc.tables.request import Request

FIT_EXAMPLES = """Examples:

gyromc fit heart.csv --target disease --categorical thal --predict new.csv --save heart.gyromc

gyromc fit trial.csv --formula "y ~ age * C(arm) + bs(dose, 4) + (1 | clinic)" --explain"""


class _Fit(TyperCommand):
    """The command `fit`, whose help lists the families; only then they are imported, since that takes a second."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from gyromc.targets.families import FAMILIES

        family: Any = next(parameter for parameter in self.params if parameter.name == "family")
        family.help = family.help.replace("FAMILIES", ", ".join(FAMILIES))
        super().format_help(ctx, formatter)


def of_request(command: Any) -> Any:
    """Give a command with `json` and `options` the options of a `Request`: Typer reads signatures."""
    kind, kinds = inspect.Parameter.KEYWORD_ONLY, get_type_hints(Request)
    parameters = []
    for field in dataclasses.fields(Request):
        shown = dict(field.metadata)
        declared, default = typer.Option(*shown.pop("names"), **shown), field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        elif default is dataclasses.MISSING:
            declared, default = typer.Argument(**shown), inspect.Parameter.empty
        annotation = Annotated[kinds[field.name], declared]
        parameters.append(inspect.Parameter(field.name, kind, default=default, annotation=annotation))
    parameters.append(inspect.Parameter("json", kind, default=False, annotation=Json))
    command.__signature__ = inspect.Signature(parameters)
    return command


@app.command(epilog=FIT_EXAMPLES, cls=_Fit)
@of_request
def fit(json: bool, **options: Any) -> None:
    """Fit a regression to a table: coefficients, predictions, scores, each with its error, and a report."""
    # Before the work, not at its end.
    require_extra("fit", "`gyromc fit`")
    from gyromc.tables.findings import explained
    from gyromc.tables.preparation import prepare
    from gyromc.tables.report import explanation_tables, tables
    from gyromc.tables.study import REPORT, draw_prior, is_large, large_study, large_tables, study

    request = Request(**options)
    large = is_large(request)
    if request.explain and not large:
        found = explained(prepare(request), request.prior_scale)
        answer(json, found, *explanation_tables(found))
        return
    if request.prior_predictive is not None and not large:
        path = Path(request.prior_predictive)
        answer(json, draw_prior(request, path)["prior"], path=path)
        return
    try:
        directory, results = large_study(request, say) if large else study(request, say)
    except KeyboardInterrupt:
        say("interrupted: nothing was written, and what was there before is as it was.")
        raise typer.Exit(130) from None
    except MemoryError:
        remedy = "Select columns with `--columns`, or take fewer rows."
        raise InvalidInput(f"{request.data} does not fit into memory. {remedy}") from None
    shown, page = (large_tables(results), REPORT) if large else (tables(results), "report.html")
    answer(json, {"out": str(directory), **results}, *shown, path=directory / page)


@app.command(epilog="Example: gyromc compare constant.gyromc line.gyromc curve.gyromc")
def compare(
    models: Annotated[list[str], typer.Argument(metavar="MODEL", help="Models saved by `gyromc fit … --save`.")],
    json: Json = False,
) -> None:
    """Compare saved models of the same rows by leave-one-out cross-validation, with stacking weights."""
    from gyromc.checks import require
    from gyromc.io.runs import load
    from gyromc.tables.saved import FittedModel, compared

    found = {}
    for path in models:
        model = load(path)
        require(isinstance(model, FittedModel), f"{path} holds no model of `gyromc fit`: a {type(model).__name__}.")
        found[path] = model._findings()
    result = compared(found)
    answer(json, result.to_dict(), *result.shown())


@app.command()
def examples(json: Json = False) -> None:
    """List the tables that come with the package, each with a command that fits it."""
    from gyromc.datasets import EXAMPLES

    columns = ["example", "rows", "what it is", "licence"]
    command = {name: f"gyromc fit example:{name} {one.options}" for name, one in EXAMPLES.items()}
    of = lambda name, one: {"command": command[name], **dataclasses.asdict(one), "path": str(one.path)}
    content = {name: of(name, one) for name, one in EXAMPLES.items()}
    rows = [[name, f"{one.rows:,}", one.about, one.licence] for name, one in EXAMPLES.items()]
    shown = Table(columns, rows, left=["example", *columns[2:]], style="simple")
    sources = "\n".join(f"{name}: {one.source}." for name, one in EXAMPLES.items())
    answer(json, content, shown, "\n".join(command.values()), f"\nSources\n{sources}")


# Its name before 0.3.
@app.command("predict-rows", hidden=True)
@app.command("apply", epilog="Example: gyromc apply model.gyromc new.xlsx --out predictions.csv")
def apply_model(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model saved by `gyromc fit … --save`.")],
    data: Annotated[str, typer.Argument(metavar="DATA", help="New rows: a CSV (also .gz), Excel or Parquet file.")],
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Write there, not to standard output.")] = None,
    draws: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write 1000 draws of the response at each row: .csv or .parquet.")
    ] = None,
    encoding: Annotated[str, typer.Option(help="The encoding of a CSV file's text.")] = "utf-8",
    decimal: Annotated[str, typer.Option(help="The decimal sign in a CSV file: . or ,")] = ".",
    sheet: Annotated[str | None, typer.Option(metavar="NAME", help="The sheet of an Excel file.")] = None,
    json: Json = False,
) -> None:
    """Apply a saved model to the rows of a file: one line of CSV per row, with its errors."""
    from gyromc.checks import require
    from gyromc.io.runs import load
    from gyromc.show.files import csv_text, require_output, write_atomically
    from gyromc.tables.findings import predictions
    from gyromc.tables.saved import FittedModel, require_draws_file

    require_output(out, "--out", model, data)
    require_output(draws, "--draws", model, data)
    require_draws_file(draws)
    found = load(model)
    arrays = f"{model} holds a {type(found).__name__}, which predicts from arrays: use `gyromc.load` in Python."
    require(isinstance(found, FittedModel), arrays)
    text = {"encoding": encoding, "decimal": decimal, "sheet": sheet}
    table = found.table(data, **text)
    for note in [*table.notes, *found.encoding.notes(table)]:
        say(note)
    rows = found.encoding.rows_of(table, fitted=False)
    if draws is not None:
        found.save_responses(draws, data, **text)
        say(f"draws of {counted(table.num_rows, 'response')} written to {draws}")
    columns, values = predictions(found.posterior, found.encoding, table, rows, y=None)
    if json:
        print_json({"model": model, "data": data, "columns": columns, "rows": values})
    if out is not None:
        write_atomically(Path(out), csv_text(columns, values))
        say(f"{counted(len(values), 'prediction')} written to {out}")
    elif not json:
        print(csv_text(columns, values), end="")

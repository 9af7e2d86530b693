"""`gyromc predict-rows` on the command line: predictions of a saved model for the rows of a file."""

from pathlib import Path
from typing import Annotated

import typer

from gyromc.app.output import Json

__all__ = ["register"]

EXAMPLES = """Examples:

gyromc predict-rows model.gyromc new.csv > predictions.csv

gyromc predict-rows model.gyromc new.xlsx --out predictions.csv"""


def register(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command("predict-rows", epilog=EXAMPLES)(predict_rows)


def predict_rows(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model saved by `gyromc fit … --save`.")],
    data: Annotated[str, typer.Argument(metavar="DATA", help="New rows: a CSV (also .gz), Excel or Parquet file.")],
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the predictions there, not to standard output.")
    ] = None,
    encoding: Annotated[str, typer.Option(help="The encoding of a CSV file's text.")] = "utf-8",
    decimal: Annotated[str, typer.Option(help="The decimal sign in a CSV file: . or ,")] = ".",
    sheet: Annotated[str | None, typer.Option(metavar="NAME", help="The sheet of an Excel file.")] = None,
    json: Json = False,
) -> None:
    """Predict for the rows of a file from a saved model: one line of CSV per row, with its errors."""
    from gyromc.app.fit.findings import predictions
    from gyromc.app.fit.saved import FittedModel
    from gyromc.app.output import print_json
    from gyromc.checks import require
    from gyromc.io.saved import load
    from gyromc.show.files import csv_text, require_output, write_atomically
    from gyromc.show.numbers import counted
    from gyromc.show.progress import say

    require_output(out, "--out", model, data)
    found = load(model)
    require(
        isinstance(found, FittedModel),
        f"{model} holds a {type(found).__name__}, which predicts from arrays: use `gyromc.load` in Python.",
    )
    table = found.table(data, encoding=encoding, decimal=decimal, sheet=sheet)
    for note in [*table.notes, *found.encoding.notes(table)]:
        say(note)
    rows = found.encoding.rows_of(table, fitted=False)
    columns, values = predictions(found.posterior, found.encoding, table, rows, y=None)
    if json:
        print_json({"model": model, "data": data, "columns": columns, "rows": values})
    if out is not None:
        write_atomically(Path(out), csv_text(columns, values))
        say(f"{counted(len(values), 'prediction')} written to {out}")
    elif not json:
        print(csv_text(columns, values), end="")

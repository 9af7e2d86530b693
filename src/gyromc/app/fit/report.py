"""What is shown of a fit: tables in the terminal, and the files fit.json, report.html and tables as CSV.

Input: the findings of a study, as the content of fit.json. The tables and the page show what that holds and nothing else.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gyromc.app.fit.choosing import family_cells, family_note, family_table
from gyromc.app.fit.coefficient_tables import by_class, coefficient_table, error_sentence, parameter_table
from gyromc.app.fit.quotable import effect_cells, effect_table
from gyromc.app.fit.robustness import robust_table
from gyromc.extras import needs
from gyromc.show.files import ResultsFile, csv_text, write_atomically
from gyromc.show.numbers import bounds, number, plus_minus
from gyromc.show.tables import Table

__all__ = ["FILES", "RESULTS", "model_note", "quoted", "render", "tables", "verdicts", "write"]

RESULTS = ResultsFile("fit.json", "gyromc.fit", 1, "gyromc fit … --out {directory}")
FILES = (RESULTS.name, "report.html", "coefficients.csv", "held_out.csv", "predictions.csv")
"""All files that a fit may write."""
SHOWN = 6  # predictions
MOST_COMMANDS = 3
SIGNS = {"fine": ("fine", "green"), "look": ("look", "yellow"), "misfit": ("misfit", "bold red")}


def write(
    results: Mapping[str, Any], tables: Mapping[str, tuple[Sequence[str], Sequence[Sequence[Any]]]], folder: Path
) -> dict[str, Any]:
    """Write fit.json, report.html, and the columns and rows of each CSV file; return what a reader of fit.json gets."""
    saved = RESULTS.save(results, folder)
    for name, (columns, rows) in tables.items():
        write_atomically(folder / name, csv_text(columns, rows))
    write_atomically(folder / "report.html", render(saved))
    return saved


def render(results: Mapping[str, Any]) -> str:
    """Return the page as text, from the content of fit.json."""
    with needs("fit", "The report of a fit"):
        from gyromc.app.fit.figures import pictures
    from gyromc.show.pages import environment

    template = environment("gyromc.app.fit").get_template("fit.html.j2")
    return template.render(
        results=results,
        pictures=pictures(dict(results)),
        quoted=quoted(results["adequacy"]),
        effects=effect_cells(results["effects"]) if results.get("effects") else None,
        model_note=model_note(results["adequacy"]),
        groups=list(by_class(results["coefficients"])),
        errors=error_sentence(results["coefficients"]),
        families=_families(results.get("families")),
        zip=zip,
        cell=cell,
        heading=heading,
    )


def tables(results: dict[str, Any]) -> Iterator[Table | str]:
    """Yield the tables of a fit, with an empty line after each, from the content of fit.json."""
    data, model = results["data"], results["model"]
    yield (
        f"{data['file']}: {data['rows']} rows. {model['title'].capitalize()} of {model['target']}, {model['reason']}.\n"
    )
    families = [family_table(results["families"])] if results.get("families") else []
    parts = [_columns(results), coefficient_table(results), *map(_predictions, results["predictions"])]
    if results["held_out"] is not None:
        parts.append(_scores(results["held_out"]))
    if results.get("robust") is not None:
        parts.insert(2, robust_table(results))
    if results.get("parameters"):
        parts.insert(2, parameter_table(results["parameters"]))
    if results.get("effects"):
        parts.insert(2, effect_table(results["effects"]))
    for table in [
        *families,
        *parts,
        _quoted(results["adequacy"]),
        _checks(results),
        _model_checks(results["adequacy"]),
    ]:
        yield table
        yield ""
    yield "\n".join(verdicts(results)) + "\n"


def _families(found: Mapping[str, Any] | None) -> tuple[list[str], list[list[str]], str] | None:
    """Return columns, rows and note of the table of families; None where none were compared."""
    return None if found is None else (*family_cells(found), family_note(found))


def verdicts(results: Mapping[str, Any]) -> list[str]:
    """Return the answers to both questions: whether the computation can be trusted, and whether the model fits."""
    wrong = [check["name"] for check in results["checks"] if not check["good"]]
    found = results["adequacy"]
    computed = f"look at {', '.join(wrong)}" if wrong else "nothing speaks against it"
    lines = [f"Computation: {computed}.", f"Model: {found['headline']}"]
    commands = list(dict.fromkeys(c["command"] for c in found["checks"] if c["verdict"] == "misfit" and c["command"]))
    return [*lines, *(f"Try: {command}" for command in commands[:MOST_COMMANDS])]


def _columns(results: dict[str, Any]) -> Table:
    model, notes = results["model"], list(results["data"]["notes"])
    if model["positive"] is not None:
        notes.append(f"probabilities are those of {model['target']} = {model['positive']}")
    columns = ["column", "kind", "what became of it"]
    return Table(columns, results["columns"], "Columns", notes, left=columns, style="simple")


def _predictions(part: dict[str, Any]) -> Table:
    rows = [list(map(cell, part["columns"], row)) for row in part["first"][:SHOWN]]
    some = f"the first {SHOWN} of {part['rows']}; all are" if part["rows"] > SHOWN else "they are"
    notes = [f"{some} in {part['file']}"]
    return Table(list(map(heading, part["columns"])), rows, part["title"], notes, left=(), style="simple")


def _scores(held: dict[str, Any]) -> Table:
    rows = []
    for s in held["scores"]:
        value, difference = (
            plus_minus(s["value"], s["std_error"]),
            plus_minus(s["difference"], s["difference_std_error"]),
        )
        rows.append([s["name"], value, number(s["baseline"]), difference, s["verdict"]])
    title = f"Judged on {held['rows']} held-out rows, fitted to {held['trained_on']}"
    notes = [f"± is one standard error over rows; the baseline predicts from {held['baseline']} alone"]
    return Table(["score", "model", "baseline", "difference", "verdict"], rows, title, notes, style="simple")


def _quoted(found: Mapping[str, Any]) -> Table:
    rows = [[name, value, meaning] for name, value, meaning in quoted(found)]
    return Table(
        ["", "value", "what it is"], rows, "What people quote", left=["", "value", "what it is"], style="simple"
    )


def quoted(found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return name, value and meaning of R², LOO, WAIC and deviance, from the part `adequacy` of fit.json."""
    loo, waic, r, deviance = found["loo"], found["waic"], found["r_squared"], found["deviance"]
    sample = f", from {found['rows']} of the rows" if found["rows"] < found["of_rows"] else ""
    return [
        (
            "Bayesian R²",
            f"{number(r['mean'])} {bounds(r['interval_95'])}",
            f"share of the variance that the columns explain{sample}",
        ),
        (
            "LOO elpd",
            plus_minus(loo["elpd"], loo["std_error"]),
            f"log density of each row, left out{sample}; LOOIC {number(loo['looic'], 5)}, "
            f"{number(loo['p_loo'])} effective parameters",
        ),
        ("WAIC", number(waic["waic"], 5), f"much the same as LOOIC; {number(waic['p_waic'])} effective parameters"),
        ("deviance", plus_minus(deviance["mean"], deviance["sd"]), "−2 × log-likelihood, posterior mean and spread"),
    ]


def _checks(results: dict[str, Any]) -> Table:
    rows = [
        [SIGNS["fine" if check["good"] else "look"], check["name"], check["sentence"]] for check in results["checks"]
    ]
    columns = ["", "check", "finding"]
    return Table(columns, rows, "Can the computation be trusted?", left=columns, style="simple")


def _model_checks(found: Mapping[str, Any]) -> Table:
    rows = [
        [SIGNS[check["verdict"]], check["name"], f"{check['sentence']} {check['remedy']}".strip()]
        for check in found["checks"]
    ]
    columns = ["", "check", "finding"]
    return Table(columns, rows, "Does the model fit?", [model_note(found)], left=columns, style="simple")


def model_note(found: Mapping[str, Any]) -> str:
    """Return how the verdicts on the model are made."""
    sample = (
        f"checked on {found['rows']} of {found['of_rows']} rows, drawn at random; "
        if found["rows"] < found["of_rows"]
        else ""
    )
    return f"{sample}p is corrected for the number of checks: a model that is right is called wrong in at most 5 % of cases"


def cell(column: str, value: Any) -> str:
    """Return a value of a table of predictions as text: probabilities with three decimals, errors with two digits."""
    if isinstance(value, str | int):
        return str(value)
    if column == "probability":
        return f"{value:.3f}"
    return number(value, 2 if column == "monte_carlo_error" else 3)


def heading(column: str) -> str:
    """Return the name of a column of predictions as a heading: "Monte Carlo error" for "monte_carlo_error"."""
    return column.replace("_", " ").replace("monte carlo", "Monte Carlo")

"""What is shown of a fit: tables in the terminal, and the files fit.json, report.html and tables as CSV.

Input: the findings of a study, as the content of fit.json. The tables and the page show what that holds and nothing else. Rows of
several classes are grouped by class. The errors of the computation are said once, in a sentence; for each coefficient they are in
coefficients.csv and behind a fold of the page.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gyromc.extras import needs
from gyromc.show.files import ResultsFile, csv_text, write_atomically
from gyromc.show.numbers import bounds as plain_bounds
from gyromc.show.numbers import capital, counted, plus_minus
from gyromc.show.numbers import readable as number
from gyromc.show.tables import Cell, Table
from gyromc.tables.effects import level_table
from gyromc.targets.families import FAMILIES
from gyromc.targets.likelihoods import ResponseKind

MOST_COEFFICIENTS = 60
ESTIMATES = ["mean", "95\u00a0% credible interval", "posterior sd"]
ERRORS = {"Monte Carlo error": "std_error", "step-size bias": "bias"}
"""Columns that are left out where all are zero: integrals have no Monte Carlo error, and without a chain there is no bias."""
Rows = Sequence[Mapping[str, Any]]


def bounds(interval: Sequence[float] | None, digits: int = 3) -> str:
    """Return an interval in brackets, with numbers that people read."""
    return plain_bounds(interval, digits, number)


def by_class(rows: Rows) -> list[tuple[str | None, list[Mapping[str, Any]]]]:
    """Return each class with its rows; None where there is no class."""
    return [(name, list(some)) for name, some in itertools.groupby(rows, key=lambda row: row["class"])]


def error_sentence(rows: Rows) -> str:
    """Return how large the errors of the computation are at most, in posterior standard deviations."""
    most = lambda error: max(error(row) / max(row["sd"], 1e-300) for row in rows)
    sizes = {
        "means": most(lambda row: row["std_error"]),
        "standard deviations": most(lambda row: row["sd_error"]),
        "interval ends": most(lambda row: max(row["interval_std_error"])),
    }
    if not any(sizes.values()):
        return "Means, standard deviations and interval ends are integrals: they have no Monte Carlo error."
    parts = [f"{name} {number(100 * size, 2)} %" for name, size in sizes.items()]
    return f"Monte Carlo errors of {', '.join(parts)} of the posterior standard deviation, at most."


def coefficient_table(results: Mapping[str, Any]) -> Table:
    """Return the coefficients for the terminal; those whose interval holds zero are dim."""
    every = results["coefficients"]
    by_clarity = sorted(every, key=lambda c: abs(c["mean"]) / max(c["sd"], 1e-300), reverse=True)
    clearest = {c["label"] for c in by_clarity[:MOST_COEFFICIENTS]}
    shown = [c for c in every if c["label"] in clearest]
    errors = _errors(every)
    columns = ["coefficient", *ESTIMATES, *errors]
    rows: list[list[Cell]] = []
    for name, some in by_class(shown):
        if name is not None:
            rows.append([(str(name), "bold"), *[""] * (len(columns) - 1)])
        for c in some:
            low, high = c["interval_95"]
            first = c["label"] if name is None else f"  {c['name']}"
            style = "" if low > 0 or high < 0 else "dim"
            rows.append([(text, style) for text in [first, *_cells(c, errors)]])
    notes = [error_sentence(every), results["model"]["prior"], results["model"]["noise"] or ""]
    if len(shown) < len(every):
        notes.insert(0, f"the clearest {len(shown)} of {len(every)}; all are in coefficients.csv")
    return Table(columns, rows, "Coefficients, in the units of the file", list(filter(None, notes)), style="simple")


def parameter_table(parameters: Rows) -> Table:
    """Return the further parameters for the terminal."""
    errors = [name for name in _errors(parameters) if name != "step-size bias"]
    rows = [[p["name"], *_cells(p, errors)] for p in parameters]
    return Table(["parameter", *ESTIMATES, *errors], rows, "Further parameters", [], style="simple")


def _errors(rows: Rows) -> list[str]:
    return [name for name, key in ERRORS.items() if any(row[key] for row in rows)]


def _cells(c: Mapping[str, Any], errors: Sequence[str]) -> list[str]:
    found = [number(c["mean"], 4), bounds(c["interval_95"]), number(c["sd"])]
    return [*found, *(number(c[ERRORS[name]], 2) for name in errors)]


MOST_SHOWN = 40
CLOSE, CLOSEST = 0.005, 1e-12  # distances of a ratio from 1 between which its digits are counted from 1


def effect_table(found: Mapping[str, Any]) -> Table:
    """Return ratios, average changes and contrasts."""
    heads = {"ratio": found["ratio"], "change": "average change"}
    shown = [key for key in heads if any(row[key] is not None for row in found["rows"])]
    columns = ["change of the row", *(text for key in shown for text in (heads[key], "95\u00a0% interval"))]
    rows = [
        [row["name"], *(text for key in shown for text in _estimate(key, row[key], row[f"{key}_interval_95"]))]
        for row in found["rows"][:MOST_SHOWN]
    ]
    notes = []
    if "change" in shown:
        what = found.get("what", f"the expected {found['target']}")
        notes.append(
            f"the average change is that of {what}, over the rows, all else as it is; a slope is per unit of its column"
        )
    if len(found["rows"]) > MOST_SHOWN:
        notes.append(f"the first {MOST_SHOWN} of {len(found['rows'])}; all are in fit.json")
    return Table(columns, rows, "What goes with what", notes, left=(columns[0],), style="simple")


def _estimate(kind: str, value: float | None, interval: Sequence[float] | None) -> list[str]:
    """A value and its interval; a ratio close to 1 with as many digits as show how far from 1 it is, and not `1 [1, 1]`."""
    away = 0.0 if value is None or interval is None else max(abs(x - 1) for x in (value, *interval))
    if value is None or interval is None or kind != "ratio" or not CLOSEST < away < CLOSE:
        return [number(value, 3), bounds(interval)]
    low, middle, high = (f"{x:.{1 - math.floor(math.log10(away))}f}" for x in (interval[0], value, interval[1]))
    return [middle, f"[{low}, {high}]"]


def robust_table(results: Mapping[str, Any]) -> Table:
    """Return robust standard deviations beside those of the posterior."""
    sd = {c["name"]: number(c["sd"]) for c in results["coefficients"]}
    rows = [
        [c["name"], sd[c["name"]], number(c["sd"]), bounds(c["interval_95"]), number(c["ratio"], 2)]
        for c in results["robust"]["coefficients"]
    ]
    columns = ["coefficient", "posterior sd", "robust sd", "robust 95\u00a0% interval", "ratio"]
    return Table(columns, rows, "Robust standard deviations", [results["robust"]["sentence"]], style="simple")


def family_table(found: Mapping[str, Any]) -> Table:
    """Return the families that were compared, the best first, from the part `families` of fit.json."""
    columns = ["family", "elpd", "difference", "effective parameters", ""]
    rows = []
    for one in sorted(found["candidates"], key=lambda one: (one["elpd"] is None, -(one["elpd"] or 0.0))):
        if one["elpd"] is None:
            rows.append([one["family"], "–", "–", "–", f"not fitted: {one['refused']}"])
            continue
        best = one["difference"] == 0
        gap = "–" if best else plus_minus(one["difference"], one["difference_std_error"])
        verdict = "clearly worse" if one["clearly_worse"] else "not clearly worse"
        words = ["chosen" if one["family"] == found["chosen"] else verdict]
        words += [f"{counted(one['heavy'], 'row')} with k > 0.7"] if one["heavy"] else []
        elpd = plus_minus(one["elpd"], one["std_error"])
        rows.append([one["family"], elpd, gap, number(one["p_loo"]), "; ".join(words)])
    sample = f" ({found['rows']} of them, drawn at random)" if found["rows"] < found["of_rows"] else ""
    kinds = {FAMILIES[one["family"]].response for one in found["candidates"]}
    both = kinds >= {ResponseKind.COUNTS, ResponseKind.NUMBERS}
    rounded = " Laws of numbers count with the probability of the numbers within ½." if both else ""
    note = (
        f"The elpd is the log density of the {found['of_rows']} rows that are not held out{sample}, each left out in turn, from "
        "short runs; the difference is that to the best, ± one standard error. The simplest family is taken that is not worse "
        f"than the best by more than 4 and two standard errors, with all rows or without the one that differs most.{rounded}"
    )
    return Table(columns, rows, "Which family?", [note], left=(columns[0], columns[-1]), style="simple")


RESULTS = ResultsFile("fit.json", "gyromc.fit", 2, "gyromc fit … --out {directory}")
FILES = (RESULTS.name, "report.html", "coefficients.csv", "groups.csv", "held_out.csv", "predictions.csv")
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
        from gyromc.tables.figures import pictures
    from gyromc.show.pages import environment

    found = environment("gyromc.tables")
    found.filters |= {"num": number, "ci": bounds, "capital": capital}
    return found.get_template("fit.html.j2").render(
        results=results,
        pictures=pictures(dict(results)),
        quoted=quoted(results["adequacy"]),
        effects=effect_table(results["effects"]) if results.get("effects") else None,
        model_note=model_note(results["adequacy"]),
        by_class=by_class(results["coefficients"]),
        groups=list(map(level_table, results.get("groups") or ())),
        errors=error_sentence(results["coefficients"]),
        families=family_table(results["families"]) if results.get("families") else None,
        zip=zip,
        cell=cell,
        heading=heading,
    )


def tables(results: dict[str, Any]) -> Iterator[Table | str]:
    """Yield the tables of a fit, with an empty line after each, from the content of fit.json."""
    data, model = results["data"], results["model"]
    yield (f"{data['file']}: {data['rows']} rows. {capital(model['title'])} of {model['target']}, {model['reason']}.\n")
    for table in _chosen_tables(results, short=False):
        yield table
        yield ""
    yield "\n".join(verdicts(results)) + "\n"


def _chosen_tables(results: Mapping[str, Any], short: bool) -> list[Table]:
    """The tables of a fit, or of its summary, in their order."""
    some = lambda key, make, in_short=False: (
        [make(results[key])] if results.get(key) and (in_short or not short) else []
    )
    return [
        *some("families", family_table),
        *([] if short else [_columns(results)]),
        coefficient_table(results),
        *some("effects", effect_table),
        *some("parameters", parameter_table, True),
        *map(level_table, results.get("groups") or ()),
        *some("robust", lambda _: robust_table(results)),
        *([] if short else map(_predictions, results["predictions"])),
        *some("held_out", _scores, True),
        _quoted(results["adequacy"]),
        *some("checks", lambda _: _checks(results)),
        *some("adequacy", _model_checks),
    ]


def summary_tables(results: Mapping[str, Any]) -> list[Table | str]:
    """Return the summary of a fit: coefficients, further parameters, what people quote, and the verdicts."""
    data, model = results["data"], results["model"]
    head = f"{capital(model['title'])} of {model['target']}, {model['reason']}. {data['file']}: {data['rows']} rows."
    parts: list[Table | str] = [head, ""]
    for table in _chosen_tables(results, short=True):
        parts += [table, ""]
    return [*parts, "\n".join([*data["notes"], *verdicts(results)])]


def verdicts(results: Mapping[str, Any]) -> list[str]:
    """Return the answers to both questions: whether the computation can be trusted, and whether the model fits."""
    wrong = [check["name"] for check in results["checks"] if not check["good"]]
    found = results["adequacy"]
    computed = f"look at {', '.join(wrong)}" if wrong else "no problem found"
    lines = [f"Computation: {computed}.", f"Model: {found['headline']}"]
    commands = list(dict.fromkeys(c["command"] for c in found["checks"] if c["verdict"] == "misfit" and c["command"]))
    return [*lines, *(f"Try: {command}" for command in commands[:MOST_COMMANDS])]


def _columns(results: Mapping[str, Any]) -> Table:
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
        value = plus_minus(s["value"], s["std_error"])
        difference = plus_minus(s["difference"], s["difference_std_error"])
        rows.append([s["name"], value, number(s["baseline"]), difference, s["verdict"]])
    title = f"Judged on {held['rows']} held-out rows, fitted to {held['trained_on']}"
    notes = [f"± is one standard error over rows; the baseline predicts from {held['baseline']} alone"]
    return Table(["score", "model", "baseline", "difference", "verdict"], rows, title, notes, style="simple")


def _quoted(found: Mapping[str, Any]) -> Table:
    columns = ["", "value", "what it is"]
    return Table(columns, [list(row) for row in quoted(found)], "What people quote", left=columns, style="simple")


def quoted(found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return name, value and meaning of R², LOO, WAIC and deviance, from the part `adequacy` of fit.json."""
    loo, waic, r, deviance = found["loo"], found["waic"], found["r_squared"], found["deviance"]
    share = found.get("loo_r_squared")
    of_left_out = [("LOO R²", number(share), "the same for rows that are left out, each predicted from all others")]
    sample = f", from {found['rows']} of the rows" if found["rows"] < found["of_rows"] else ""
    return [
        (
            "Bayesian R²",
            f"{number(r['mean'])} {bounds(r['interval_95'])}",
            f"share of the variance that the columns explain{sample}",
        ),
        *(of_left_out if share is not None else []),
        (
            "LOO elpd",
            plus_minus(loo["elpd"], loo["std_error"]),
            f"log density of each row, left out{sample}; LOOIC {number(loo['looic'], 5)}, "
            f"{number(loo['p_loo'])} effective parameters",
        ),
        ("WAIC", number(waic["waic"], 5), f"much the same as LOOIC; {number(waic['p_waic'])} effective parameters"),
        ("deviance", plus_minus(deviance["mean"], deviance["sd"]), "−2 × log-likelihood, posterior mean and sd"),
    ]


def _checks(results: Mapping[str, Any]) -> Table:
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

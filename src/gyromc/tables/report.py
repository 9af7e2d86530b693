"""What is shown of a fit: tables in the terminal, and the page report.html.

They show what fit.json holds and nothing else; each table is made once, for both. Errors of the computation are in one sentence.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gyromc.extras import needs
from gyromc.regression.comparing import ComparedFamily
from gyromc.show.files import ResultsFile
from gyromc.show.numbers import bounds, capital, counted, number, plus_minus, readable
from gyromc.show.pages import environment
from gyromc.show.tables import Cell, Table
from gyromc.tables.effects import level_table
from gyromc.targets.families import FAMILIES
from gyromc.targets.likelihoods import ResponseKind

RESULTS = ResultsFile("fit.json", "gyromc.fit", 2, "gyromc fit … --out {directory}")
MOST_COEFFICIENTS, MOST_EFFECTS, MOST_COMMANDS, MOST_SHOWN = 60, 40, 3, 12
CLOSEST = 1e-12  # to 1: a ratio nearer than this is 1
HEADINGS = {"monte_carlo_error": "Monte Carlo error", "low_95": "95\u00a0% from", "high_95": "to"}
Results = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]
in_brackets = functools.partial(bounds, text=readable)


def render(results: Results) -> str:
    """Return the page as text, from the content of fit.json."""
    with needs("fit", "The report of a fit"):
        from gyromc.tables.figures import pictures
    found = environment("gyromc.tables")
    found.filters["capital"] = capital
    return found.get_template("fit.html.j2").render(
        results=results,
        pictures={picture.kind: picture for picture in pictures(dict(results))},
        tables={name: make(results) for name, make in TABLES.items()},
        coefficients=_coefficients(results, page=True),
        parameters=_parameters(results, page=True),
        error_sentence=error_sentence(results),
        mark=mark,
    )


def tables(results: Results) -> Iterator[Table | str]:
    """Yield the tables of a fit, with an empty line after each, from the content of fit.json."""
    yield f"{results['data']['file']}: {counted(results['data']['rows'], 'row')}. {_title(results['model'])}\n"
    for table in itertools.chain.from_iterable(make(results) for make in TABLES.values()):
        yield table
        yield ""
    yield "\n".join(verdicts(results)) + "\n"


def summary_tables(results: Results) -> list[Table | str]:
    """Return the summary of a fit: coefficients, further parameters, what people quote, and the verdicts."""
    data = results["data"]
    head = f"{_title(results['model'])} {data['file']}: {counted(data['rows'], 'row')}."
    parts = [part for name in SUMMARY for table in TABLES[name](results) for part in (table, "")]
    return [head, "", *parts, "\n".join([*data["notes"], *verdicts(results)])]


def _title(model: Mapping[str, Any]) -> str:
    """A sentence on the family, the target and the groups."""
    family = FAMILIES[model["name"]].words.title
    return f"{capital(family)} of {model['target']}{model['title'].removeprefix(family)}, {model['reason']}."


def verdicts(results: Results) -> list[str]:
    """Return the answers to both questions: whether the computation can be trusted, and whether the model fits."""
    wrong = [check["name"] for check in results["checks"] if not check["good"]]
    found = results["adequacy"]
    computed = f"Look at {', '.join(wrong)}" if wrong else "No problem found"
    lines = [f"Computation: {computed}.", f"Model: {found['headline']}"]
    commands = list(dict.fromkeys(c["command"] for c in found["checks"] if c["verdict"] == "misfit" and c["command"]))
    return [*lines, *(f"Try: {command}" for command in commands[:MOST_COMMANDS])]


def error_sentence(results: Results) -> str:
    """Return how large the errors of all parameters are at most, in posterior standard deviations."""
    rows = [*results["coefficients"], *results["parameters"]]
    errors = np.array([[row["std_error"], row["sd_error"], *row["interval_std_error"]] for row in rows])
    mean, sd, *ends = np.max(errors / np.maximum([[row["sd"]] for row in rows], 1e-300), axis=0)
    if not errors.any():
        return "Means, standard deviations and interval ends are integrals: they have no Monte Carlo error."
    mean, sd, end = (f"{readable(100 * size, 2)} %" for size in (mean, sd, max(ends)))
    of = f"{mean} of a posterior standard deviation for means, {sd} for standard deviations and {end} for interval ends"
    return f"The Monte Carlo error is at most {of}."


def _coefficients(results: Results, page: bool = False) -> list[Table]:
    """The coefficients; a terminal has the clearest, with errors, those whose interval holds zero dim."""
    every = shown = results["coefficients"]
    model, some = results["model"], ""
    if not every:
        return []
    if not page and len(every) > MOST_COEFFICIENTS:
        by_clarity = sorted(every, key=lambda c: -abs(c["mean"]) / max(c["sd"], 1e-300))
        clearest = {c["label"] for c in by_clarity[:MOST_COEFFICIENTS]}
        shown = [c for c in every if c["label"] in clearest]
        some = f"the clearest {len(shown)} of {len(every)}; all are in coefficients.csv"
    notes = [text for text in (some, error_sentence(results), model["prior"], model["noise"]) if text]
    made = _estimates(shown, "coefficient", model["target"], page)
    return [Table(*made, "Coefficients, in the units of the file", notes, style="simple")]


def _estimates(shown: Rows, first: str, target: str = "", page: bool = False) -> tuple[list[str], list[list[Cell]]]:
    """Columns and rows of posterior means, intervals and sds, class by class; in a terminal with their errors."""
    with_error, scaled = not page and any(row["std_error"] for row in shown), page and "standardised" in shown[0]
    # short on the page, where a phone shows them side by side
    names = ["95\u00a0% interval", "sd"] if page else ["95\u00a0% credible interval", "posterior sd"]
    columns = [first, "mean", *names, *["Monte Carlo error"] * with_error, *["per sd of the column"] * scaled]
    rows: list[list[Cell]] = []
    for name, some in itertools.groupby(shown, key=lambda row: row["class"]):
        if name is not None:
            rows.append([(f"{target} = {name}" if page else str(name), "bold"), *[""] * (len(columns) - 1)])
        for c in some:
            low, high = c["interval_95"]
            named = c["name"] if name is None else f"  {c['name']}"
            cells = [named, readable(c["mean"], 4), in_brackets(c["interval_95"]), readable(c["sd"])]
            cells += [readable(c["std_error"], 2)] * with_error
            if scaled:
                cells.append(readable(c["standardised"]["mean"]) if c["standardised"] else " ")
            rows.append([(text, "" if low > 0 or high < 0 else "dim") for text in cells])
    return columns, rows


def _parameters(results: Results, page: bool = False) -> list[Table]:
    """The further parameters; those of an ordinal model without columns stand alone."""
    rows, alone = results["parameters"], not results["coefficients"]
    if not rows:
        return []
    notes = [error_sentence(results), results["model"]["prior"]] if alone and not page else []
    return [Table(*_estimates(rows, "parameter", page=page), "Further parameters", notes, style="simple")]


def effect_table(found: Mapping[str, Any]) -> Table:
    """Return ratios, average changes and contrasts."""
    heads = {"ratio": found["ratio"], "change": "average change"}
    shown = [key for key in heads if any(row[key] is not None for row in found["rows"])]
    columns = ["change", *(text for key in shown for text in (heads[key], "95\u00a0% interval"))]
    cells = lambda row: (text for key in shown for text in _estimate(key, row[key], row[f"{key}_interval_95"]))
    rows = [[row["name"], *cells(row)] for row in found["rows"][:MOST_EFFECTS]]
    what = found.get("what", f"the expected {found['target']}")
    said = f"the average change is that of {what}, over the rows, with all other columns unchanged"
    notes = [f"{said}; a slope is per unit of its column"] if "change" in shown else []
    if len(found["rows"]) > MOST_EFFECTS:
        notes.append(f"the first {MOST_EFFECTS} of {len(found['rows'])}; all are in fit.json")
    return Table(columns, rows, "Effect sizes", notes, style="simple")


def _estimate(kind: str, value: float | None, interval: Sequence[float] | None) -> list[str]:
    """A value and its interval as text."""
    text = _ratio if kind == "ratio" else readable
    return [text(value), bounds(interval, text=text)]


def _ratio(value: float | None, digits: int = 3) -> str:
    """A ratio as text; one that would read "1" and is not 1 has two digits of its distance from 1."""
    text = readable(value, digits)
    if value is None or text != "1" or abs(value - 1) < CLOSEST:
        return text
    return f"{value:.{1 - math.floor(math.log10(abs(value - 1)))}f}"


def _robust(robust: Results, coefficients: Rows) -> Table:
    cells = lambda c: [readable(c["sd"]), in_brackets(c["interval_95"]), readable(c["ratio"], 2)]
    pairs = zip(coefficients, robust["coefficients"], strict=True)
    rows = [[own["name"], readable(own["sd"]), *cells(c)] for own, c in pairs]
    columns = ["coefficient", "posterior sd", "robust sd", "robust 95\u00a0% interval", "ratio"]
    return Table(columns, rows, "Robust standard deviations", [robust["sentence"]], style="simple")


def family_table(found: Mapping[str, Any]) -> Table:
    """Return the families that were compared, the best first, from the part `families` of fit.json."""
    columns = ["family", "elpd", "difference", "effective parameters", "verdict"]
    rows = []
    for one in sorted(found["candidates"], key=lambda one: (one["elpd"] is None, -(one["elpd"] or 0.0))):
        known = ComparedFamily(**{key: value for key, value in one.items() if key != "clearly_worse"})
        *numbers, words = known.cells
        chosen = words.replace(known.verdict, "chosen", 1) if known.family == found["chosen"] else words
        rows.append([known.family, *numbers, chosen])
    sample = f" ({found['rows']} of them, drawn at random)" if found["rows"] < found["of_rows"] else ""
    kinds = {FAMILIES[one["family"]].response for one in found["candidates"]}
    rounded = " Laws of numbers count with the probability of the numbers within ½."
    rounded = rounded if kinds >= {ResponseKind.COUNTS, ResponseKind.NUMBERS} else ""
    elpd = f"The elpd is the log density of the {found['of_rows']} rows that are not held out{sample}, each left out in turn"
    note = f"{elpd}, from short runs; the difference is that to the best, ± one standard error. The simplest family is taken"
    than = "that is not worse than the best by more than 4 and two standard errors, with all rows or without the one"
    note = f"{note} {than} that differs most.{rounded}"
    return Table(columns, rows, "Which family?", [note], left=(columns[0], columns[-1]), style="simple")


def _columns(results: Results) -> Table:
    model, notes, columns = results["model"], [*results["data"]["notes"]], ["column", "kind", "what became of it"]
    if model["positive"] is not None:
        notes.append(f"probabilities are those of {model['target']} = {model['positive']}")
    return Table(columns, results["columns"], "Columns", notes, left=columns, style="simple")


def _predictions(part: Results) -> Table:
    def cell(column: str, value: Any) -> str:
        if isinstance(value, str | int):
            return str(value)
        return f"{value:.3f}" if column == "probability" else readable(value, 2 if column == "monte_carlo_error" else 3)

    rows = [list(map(cell, part["columns"], row)) for row in part["first"]]
    some = f"the first {len(rows)} of {part['rows']}; all are" if part["rows"] > len(rows) else "they are"
    names = [HEADINGS.get(name, str(name).replace("_", " ")) for name in part["columns"]]
    return Table(names, rows, part["title"], [f"{some} in {part['file']}"], left=(), style="simple")


def _scores(held: Results) -> Table:
    rows = []
    for s in held["scores"]:
        verdict = (s["verdict"], "green" if s["verdict"] == "better" else "yellow")
        difference = plus_minus(s["difference"], s["difference_std_error"])
        rows.append([s["name"], plus_minus(s["value"], s["std_error"]), readable(s["baseline"]), difference, verdict])
    title = f"Judged on {held['rows']} held-out rows, fitted to {held['trained_on']}"
    notes = [f"± is one standard error over rows; the baseline predicts from {held['baseline']} alone"]
    return Table(["score", "model", "baseline", "difference", "verdict"], rows, title, notes, style="simple")


def _quoted(found: Results) -> Table:
    """R², LOO, WAIC and deviance, each with its meaning."""
    loo, waic, r, deviance = found["loo"], found["waic"], found["r_squared"], found["deviance"]
    share = found.get("loo_r_squared")
    sample = f", from {found['rows']} of the rows" if found["rows"] < found["of_rows"] else ""
    r_squared = f"{readable(r['mean'])} {in_brackets(r['interval_95'])}"
    of_each = f"log density of each row, left out{sample}; LOOIC {readable(loo['looic'], 5)}, {readable(loo['p_loo'])}"
    rows = [
        ["Bayesian R²", r_squared, f"share of the variance that the columns explain{sample}"],
        ["LOO R²", readable(share), "the same for rows that are left out, each predicted from all others"],
        ["LOO elpd", plus_minus(loo["elpd"], loo["std_error"]), f"{of_each} effective parameters"],
        ["WAIC", readable(waic["waic"], 5), f"much the same as LOOIC; {readable(waic['p_waic'])} effective parameters"],
        ["deviance", plus_minus(deviance["mean"], deviance["sd"]), "−2 × log-likelihood, posterior mean and sd"],
    ]
    rows = [row for row in rows if row[0] != "LOO R²" or share is not None]
    columns = ["quantity", "value", "what it is"]
    return Table(columns, rows, "Fit statistics", left=columns, style="simple")


def mark(check: Mapping[str, Any]) -> str:
    """Return the verdict of a check, of the computation or of the model: `fine`, `look` or `misfit`."""
    return check["verdict"] if "verdict" in check else "fine" if check["good"] else "look"


def _checks(title: str, checks: Rows, notes: Sequence[str] = ()) -> Table:
    text = lambda check: f"{check['sentence']} {check.get('remedy', '')}".strip()
    signs, columns = {"fine": "green", "look": "yellow", "misfit": "bold red"}, ["", "check", "finding"]
    rows = [[(mark(check), signs[mark(check)]), check["name"], text(check)] for check in checks]
    return Table(columns, rows, title, notes, left=columns, style="simple")


def _of_model(found: Results) -> Table:
    some = found["rows"] < found["of_rows"]
    sample = f"checked on {found['rows']} of {found['of_rows']} rows, drawn at random; " if some else ""
    rule = "the p-values are corrected for the number of checks: a correct model is rejected in at most 5 % of cases"
    return _checks("Does the model fit?", found["checks"], [sample + rule])


def _made(make: Callable[[Any], Table], *parts: Any) -> list[Table]:
    """The tables of the parts that a fit has."""
    return [make(part) for part in parts if part]


TABLES: dict[str, Callable[[Results], list[Table]]] = {
    "families": lambda results: _made(family_table, results.get("families")),
    "columns": lambda results: [_columns(results)],
    "coefficients": _coefficients,
    "effects": lambda results: _made(effect_table, results.get("effects")),
    "parameters": _parameters,
    "groups": lambda results: _made(level_table, *(results.get("groups") or ())),
    "robust": lambda results: _made(lambda found: _robust(found, results["coefficients"]), results.get("robust")),
    "predictions": lambda results: _made(_predictions, *results["predictions"]),
    "scores": lambda results: _made(_scores, results["held_out"]),
    "quoted": lambda results: _made(_quoted, results["adequacy"]),
    "computation": lambda results: [_checks("Can the computation be trusted?", results["checks"])],
    "model": lambda results: _made(_of_model, results["adequacy"]),
}
"""Every table of a fit, in the order of the terminal."""
SUMMARY = ("coefficients", "parameters", "groups", "scores", "quoted")


def explanation_tables(found: Results) -> Iterator[Table | str]:
    """Yield the tables of `gyromc fit --explain`, with an empty line after each."""
    classes = f" Classes: {', '.join(found['classes'])}." if found["classes"] else ""
    family = f"Family {found['family']} for {found['target']}, {found['reason']}.{classes}"
    yield f"{found['file']}: {counted(found['rows'], 'row')}. {family}\n"
    keys = ("least", "mean", "most")
    cells = lambda c: [c["name"], c["source"], c["coding"], *(number(c[key]) for key in keys), c["prior"]]
    rows = list(map(cells, found["columns"]))
    notes = [f"intercept: {found['intercept']}" if found["intercept"] else "no intercept", *found["notes"]]
    notes += [found["further"]] if found["further"] else []
    notes += [f"{role}: column {name}" for role, name in found["other"].items()]
    left = ["column", "from", "coding", "prior per unit"]
    yield Table([*left[:3], *keys, left[3]], rows, "Design matrix", notes, left=left, style="simple")
    yield ""
    if found["groups"]:
        left = ["grouped by", "effects that differ", "levels", "the first", "prior"]
        text = lambda value: ", ".join(value) if isinstance(value, list) else str(value)
        groups = [[text(value) for value in group.values()] for group in found["groups"]]
        yield Table(left, groups, "Group terms", [], left=left, style="simple")
        yield ""
    names = [column["name"] for column in found["columns"]]
    offset = ["offset"] if found["offset"] is not None else []
    beside = [found["observed"], *([found["offset"]] if offset else []), *list(zip(*found["first_rows"], strict=True))]
    cells = [[x if isinstance(x, str) else number(x) for x in column] for column in beside[: MOST_SHOWN + 2]]
    notes = [f"the first {MOST_SHOWN} of {len(names)} columns"] if len(names) > MOST_SHOWN else []
    headings = ["line", found["target"], *offset, *names][: len(cells) + 1]
    rows = [list(row) for row in zip(map(str, found["lines"]), *cells, strict=True)]
    yield Table(headings, rows, "First rows", notes, left=(), style="simple")

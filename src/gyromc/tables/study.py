"""All steps of a fit to a table: read, encode, choose a family, hold rows out, fit, judge, fit again to all rows, check.

Of a Parquet file that is too large for memory the coefficients come from all rows, read in pieces, the checks from a sample.
"""

import dataclasses
import datetime
import json
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gyromc.checks import flag, require, shown
from gyromc.data import Parquet
from gyromc.data.files import pyarrow
from gyromc.datasets import located
from gyromc.errors import DivergenceError, GyromcWarning, InvalidInput
from gyromc.extras import needs
from gyromc.regression import fit as regression
from gyromc.regression.comparing import compare
from gyromc.regression.draws import prior_findings
from gyromc.regression.problem import of_family, read
from gyromc.regression.streamed import fit_streamed
from gyromc.runtime.machine import free_memory, release_memory
from gyromc.show.files import (
    ResultsFile,
    csv_text,
    json_text,
    require_apart,
    require_output,
    results_folder,
    write_atomically,
)
from gyromc.show.numbers import counted, number
from gyromc.show.progress import Interruption, Progress, interruptible, progress
from gyromc.show.tables import Table
from gyromc.tables import checks, effects, findings, report
from gyromc.tables.datatable import split_names
from gyromc.tables.encoding import DesignRows
from gyromc.tables.preparation import Prepared, prepare
from gyromc.tables.request import Request, in_python
from gyromc.tables.saved import FittedModel, require_draws_file
from gyromc.targets.regressions import BY_FAMILY

Tables = dict[str, findings.Rows]
PATIENCE = 1.0  # seconds that Ctrl-C may wait for the end of a stage
OTHERS = {"data", "target", "formula", "family", "predict", "save", "draws", "out", "explain", "prior_predictive"}
OPTIONS = tuple(field.name for field in dataclasses.fields(Request) if field.name not in OTHERS)
FILES = ("fit.json", "report.html", "coefficients.csv", "groups.csv", "held_out.csv", "predictions.csv")
LARGE = 100_000_000  # numbers in a Parquet file, beyond which it is not read into memory
RESULTS = ResultsFile("fit.json", "gyromc.fit-large", 2, "gyromc fit … --out {directory}")
REPORT = "sample_report.html"
# Options of a request that need not have all rows in memory.
IN_PIECES = {"data", "target", "family", "out", "columns", "drop", "test_fraction", "prior_scale", "effort", "seed"}
IN_PIECES |= {"encoding", "decimal", "sheet"}


def fit(
    formula: str,
    data: Any,
    family: str | None = "auto",
    *,
    test_fraction: float = 0.0,
    progress: bool | None = None,
    **options: Any,
) -> FittedModel:
    """Fit a Bayesian regression to a table, by a formula in R's notation.

    **Arguments:**

    - `formula`: `"y ~ x1 * x2 + bs(age, 4) + (1 | subject)"`; `"y ~ ."` takes all other columns.
    - `data`: a data frame, a mapping of columns, or the path of a CSV, Excel or Parquet file.
    - `family`: one of `gyromc.targets.families.FAMILIES`; several, joined by commas, or `"auto"`: the simplest that is not
      clearly worse than the best, by leave-one-out cross-validation. None: by the values of y alone.
    - `test_fraction`: the share of the rows that are held out for scores; the model is then fitted twice.
    - `progress`: whether to show it; None: where standard error is a terminal.
    - `options`: those of `gyromc fit` by their names: `categorical`, `dates`, `reference` (a mapping from columns to levels),
      `positive`, `order`, `weights`, `offset`, `exposure`, `trials`, `censored`, `event`, `robust`, `cluster`, `impute`,
      `missing`, `priors` (a mapping, `{"age": "normal(0, 1)", "sigma": "student_t(3, 0, 5)"}`), `prior_scale`, `effort`,
      `seed`; of files `encoding`, `decimal` and `sheet`.

    **Returns:** a `FittedModel`: `print(model)`, `model.summary()`, `model.predict(new)`, `model.plot()`, `model.report(path)`,
    `model.save(path)`.

    ```python
    import numpy as np
    import gyromc as gm
    rng = np.random.default_rng(0)
    x = rng.normal(size=100)
    model = gm.fit("y ~ x", {"x": x, "y": 1 + 2 * x + rng.normal(size=100)}, family="linear")
    print(round(model["x"].mean, 1), model.predict({"x": [0.0, 1.0]}).mean.round())  # 2.1 [1. 3.]
    ```
    """
    require(isinstance(formula, str), f"`formula` must be a text such as 'y ~ x1 + x2': got {type(formula).__name__}.")
    options = {"prior" if name == "priors" else name: value for name, value in options.items()}
    unknown = [name for name in options if name not in OPTIONS]
    require(not unknown, f"`fit` has no option {', '.join(unknown)}: there are {', '.join(OPTIONS)}.")
    require(data is not None, "`data` must be a file, a data frame or a mapping of columns: got None.")
    path = isinstance(data, str | Path)
    of_files = [name for name in ("encoding", "decimal", "sheet") if name in options and not path]
    require(not of_files, f"`{'`, `'.join(of_files)}` is for files, and the rows are in memory. Leave it out.")
    given = {"family": family, "test_fraction": test_fraction, **options}
    chosen = {name: _as_text(name, value) for name, value in given.items()}
    request = Request(data=str(data) if path else "data", formula=formula, **chosen)
    watch = Watch(warn=lambda message: warnings.warn(message, GyromcWarning, stacklevel=5))
    try:
        model, _ = computed(request, None if path else data, watch, progress)
    except InvalidInput as error:
        raise type(error)(in_python(str(error))) from None
    return dataclasses.replace(model, results=in_python(model.results))


def _as_text(name: str, value: Any) -> Any:
    """An option as the command line has it: lists of texts for lists and mappings; numbers are checked where they are used."""
    kind = next(field for field in dataclasses.fields(Request) if field.name == name)
    several = kind.default_factory is not dataclasses.MISSING
    if isinstance(kind.default, bool):
        return flag(value, name)
    if name == "effort" or isinstance(kind.default, int | float):
        return value
    if value is None and not isinstance(kind.default, str):
        return [] if several else None
    entries: list[Any] = [value]
    if isinstance(value, Mapping) and several:
        entries = [f"{key}={entry}" for key, entry in value.items()]
    elif isinstance(value, list | tuple) and (several or name in ("order", "family")):
        entries = [str(entry) if isinstance(entry, int | float) else entry for entry in value]
    texts = all(isinstance(entry, str) for entry in entries)
    require(texts, f"`{name}` must be {'texts' if several else 'a text'}: got {shown(value)}.")
    return entries if several else ",".join(entries)


def study(request: Request, say: Callable[[str], object] = lambda text: None) -> tuple[Path, dict[str, Any]]:
    """Do all that `gyromc fit` does. After Ctrl-C nothing is written and `KeyboardInterrupt` is raised."""
    inputs = (request.data, request.predict)
    require_output(request.save, "--save", *inputs)
    require_output(request.draws, "--draws", *inputs)
    require_draws_file(request.draws)
    require_apart({"--save": request.save, "--draws": request.draws})
    watch = Watch(say, lambda message: say(f"warning: {message}"))
    with results_folder(request.directory, FILES, *inputs, request.save, request.draws) as folder:
        model, tables = computed(request, None, watch)
        watch.stage("writing the report")
        results = report.RESULTS.save(model.results or {}, folder)
        for name, (columns, rows) in tables.items():
            write_atomically(folder / name, csv_text(columns, rows))
        write_atomically(folder / "report.html", report.render(results))
        watch.stop.check()
        if request.save is not None:
            model.save(request.save)
        if request.draws is not None:
            model.save_draws(request.draws)
    return request.directory, results


@dataclasses.dataclass
class Watch:
    """Shows each stage, and warns; raises `KeyboardInterrupt` between stages after Ctrl-C."""

    say: Callable[[str], object] = lambda text: None
    warn: Callable[[str], object] = lambda text: None
    stop: Interruption = dataclasses.field(default_factory=Interruption)
    shown: Progress = dataclasses.field(default_factory=Progress)
    large: bool = False

    def stage(self, text: str) -> None:
        self.stop.check()
        if self.large:  # for small tables it costs more than it helps
            release_memory()
        self.say(text)
        self.shown.describe(text)


def computed(request: Request, data: Any, watch: Watch, wanted: bool | None = None) -> tuple[FittedModel, Tables]:
    """Return the fitted model, with the content of fit.json as its results, and the tables that stand beside it."""
    began, started = time.perf_counter(), datetime.datetime.now(datetime.UTC)
    regression.relative_error(request.effort)
    prepared = prepare(request, data)
    for note in prepared.notes:
        watch.say(note)
    if not prepared.given_away["good"]:
        watch.warn(prepared.given_away["sentence"])
    with interruptible(patience=PATIENCE) as stop, progress(wanted=wanted) as shown:
        watch.stop, watch.shown, watch.large = stop, shown, prepared.rows.X.size > 1_000_000
        results, tables, model = _findings(request, prepared, watch)
    results["data"]["notes"] = prepared.notes
    results["checks"].append(prepared.given_away)
    times = {"started": started.isoformat(timespec="seconds"), "wall": time.perf_counter() - began, **results["times"]}
    settings = {"command": request.command, "settings": dataclasses.asdict(request)}
    results = {**settings, **results, "files": ["fit.json", "report.html", *tables], "times": times}
    return dataclasses.replace(model, results=json.loads(json_text(results))), tables


def chosen_family(request: Request, prepared: Prepared) -> tuple[Prepared, dict[str, Any] | None]:
    """Compare the families on the rows that are not held out; return the fit with the chosen one, and the comparison."""
    families, response, values = prepared.families, prepared.encoding.response, None
    if not families:
        return prepared, None
    family, reason = families[0], f"the only natural family for {response.name!r}"
    if len(families) > 1:
        rows = prepared.rows.take(prepared.train)
        given = {**_given(request, prepared, rows), "priors": prepared.priors}
        found = compare(rows.X, prepared.y[prepared.train], families, seed=request.seed, **given)
        family, reason = found.chosen, f"chosen because {found.reason}"
        candidates = [{**dataclasses.asdict(one), "clearly_worse": one.clearly_worse} for one in found.candidates]
        values = {name: getattr(found, name) for name in ("chosen", "reason", "rows", "of_rows")}
        values["candidates"] = candidates
    response = dataclasses.replace(response, model=family, reason=reason)
    return dataclasses.replace(prepared, encoding=dataclasses.replace(prepared.encoding, response=response)), values


def _findings(request: Request, prepared: Prepared, watch: Watch) -> tuple[dict[str, Any], Tables, FittedModel]:
    spent, judged, held_out = {}, None, None
    if len(prepared.families) > 1:
        watch.stage(f"comparing families: {', '.join(prepared.families)}")
    began = time.perf_counter()
    prepared, families = chosen_family(request, prepared)
    spent |= {} if families is None else {"comparing": time.perf_counter() - began}
    table, encoding, rows, y = prepared.table, prepared.encoding, prepared.rows, prepared.y
    train, test = prepared.train, prepared.test
    if test.size:
        watch.stage(f"fitting {counted(train.size, 'row')}, to judge on {test.size}")
        # Rows without weight, not fewer rows: what is compiled for so many rows serves the fit to all of them.
        weights = np.ones(len(y)) if rows.weights is None else rows.weights.copy()
        weights[test] = 0.0
        try:
            judged, spent["judging"] = _fit(request, prepared, dataclasses.replace(rows, weights=weights), watch)
            held_out = findings.held_out(judged, encoding, rows.take(test), y[test], y[train])
        except (InvalidInput, DivergenceError) as error:
            judged, why = None, f"the fit to the others failed ({error})"
            prepared.notes.append(f"predictions were not judged on held-out rows: {why}")
            watch.warn(prepared.notes[-1])
    watch.stage(f"fitting {'all ' if test.size else ''}{counted(table.num_rows, 'row')}")
    fit, spent["fitting"] = _fit(request, prepared, rows, watch, judged)
    results = findings.results(fit, prepared, request.prior_scale)
    robust = request.robust or request.cluster is not None
    results["robust"] = findings.robust_findings(fit, rows, y, request.cluster) if robust else None
    every, results["predictions"] = (*fit.coefficients, *fit.auxiliary), []
    tables: Tables = {"coefficients.csv": findings.coefficient_table(every, results["robust"])}
    if prepared.new is not None:
        tables["predictions.csv"] = found = findings.predictions(fit, encoding, *prepared.new, y=None)
        results["predictions"].append(findings.part("predictions.csv", encoding, found, table.num_rows, new=True))
    if judged is not None:
        unseen = table.take(test), rows.take(test), y[test]
        tables["held_out.csv"] = found = findings.predictions(judged, encoding, *unseen)
        results["predictions"].append(findings.part("held_out.csv", encoding, found, train.size, new=False))
    results["groups"] = effects.group_findings(fit, rows, y) if rows.groups else []
    if results["groups"]:
        keys = ["level", "effect", "rows", "mean", "sd"]
        every_level = [(one["name"], row) for one in results["groups"] for row in one["rows"]]
        lines = [[name, *(row[key] for key in keys), *row["interval_95"]] for name, row in every_level]
        tables["groups.csv"] = ["group", *keys, "low_95", "high_95"], lines
    results["effects"] = effects.effect_findings(fit, prepared)
    results["prior"] = _prior_findings(request, prepared)
    watch.stage("checking the model")
    results["adequacy"] = checks.adequacy(fit, prepared, held_out, request)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    about = {"file": located(request.data).name, "rows": table.num_rows, "formula": request.formula}
    target = {"target": encoding.response.name, "family": encoding.response.model}
    about |= {**target, "command": request.command, "date": now}
    model = FittedModel(encoding, fit.posterior, every, about)
    return {**results, "held_out": held_out, "families": families, "times": spent}, tables, model


def _fit(
    request: Request, prepared: Prepared, rows: DesignRows, watch: Watch, before: regression.Fit | None = None
) -> tuple[regression.Fit, float]:
    began, family = time.perf_counter(), prepared.encoding.response.model
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", GyromcWarning)
        about = {"effort": request.effort, "seed": request.seed, "before": before, **_given(request, prepared, rows)}
        found = regression.fit(rows.X, prepared.y, family, **about)
    if found.partial:
        raise KeyboardInterrupt
    watch.stop.check()
    for warning in caught:
        watch.warn(str(warning.message))
    return found, time.perf_counter() - began


def _given(request: Request, prepared: Prepared, rows: DesignRows) -> dict[str, Any]:
    encoding = prepared.encoding
    priors, classes = of_family(prepared.priors, encoding.response.model), encoding.response.classes or None
    known = {"prior_scale": request.prior_scale, "priors": priors, "weights": rows.weights, **rows.beside()}
    return {**known, "intercept": encoding.intercept, "names": encoding.names, "classes": classes}


def _prior_findings(request: Request, prepared: Prepared) -> dict[str, Any]:
    """What the picture of the prior predictive law shows."""
    rows, family = prepared.rows, prepared.encoding.response.model
    given = {"groups": (), "offset": None, **_given(request, prepared, rows)}
    return prior_findings(read(rows.X, prepared.y, family, **given), request.seed)


def draw_prior(request: Request, path: Path) -> dict[str, Any]:
    """Draw the data beside data from the prior into a file; return what it shows. Nothing is fitted."""
    kinds = (".png", ".svg", ".pdf")
    require(path.suffix in kinds, f"`--prior-predictive` draws a .png, .svg or .pdf: got {path.name}.")
    require_output(str(path), "--prior-predictive", request.data)
    prepared = prepare(request)
    found = {"prior": _prior_findings(request, prepared), "model": {"target": prepared.encoding.response.name}}
    with needs("fit", "A figure of a fit"):
        from gyromc.show.pages import image
        from gyromc.tables.figures import drawn
    write_atomically(path, image(drawn("prior", found), path.suffix[1:], dpi=150))
    return found


def is_large(request: Request) -> bool:
    """Whether a request's file is a Parquet file that is not read into memory; `InvalidInput` for a CSV file beyond it."""
    path = Path(request.data)
    if not path.is_file():
        return False  # what reads it says so
    with path.open("rb") as file:
        first = file.read(4)
    if first != b"PAR1":
        # It takes about ten times its size in memory.
        size = path.stat().st_size
        memory = f"{path} has {size / 1e9:.2g} GB: as CSV it is read into memory, and there is not enough of it."
        remedy = "Write it as Parquet (DuckDB, Polars and pandas with `chunksize` do), which is read in pieces."
        require(10 * size < free_memory() or first[:2] == b"PK", f"{memory} {remedy}")
        return False
    try:
        with pyarrow().parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            columns = len(split_names(request.columns, names)) or len(names) - len(split_names(request.drop, names))
            return file.metadata.num_rows * columns >= LARGE
    except (pyarrow().ArrowInvalid, OSError):
        return False


def _source(request: Request) -> Parquet:
    """The rows, after refusing what cannot be done without all of them in memory."""
    large = f"{request.data} has {LARGE:,} numbers or more, so that it is read in pieces"
    remedy = "Leave it out, take fewer `--columns`, or fit a sample of the rows."
    for name, value in dataclasses.asdict(request).items():
        unread = value and name not in IN_PIECES
        option = f"--{name.replace('_', '-')}"
        require(not unread, f"{large}, and `{option}` needs all rows in memory. {remedy}")
    known = f"of the families only {', '.join(BY_FAMILY)} are: got {request.family!r}."
    require(request.family in (None, "auto", *BY_FAMILY), f"{request.data} is read in pieces, and {known}")
    target = request.target or ""
    require(target, "Say what to predict: `--target COLUMN`.")
    with pyarrow().parquet.ParquetFile(request.data) as file:
        names = file.schema_arrow.names
    only, drop = split_names(request.columns, names), split_names(request.drop, names)
    unknown = [name for name in (target, *only, *drop) if name not in names]
    require(not unknown, f"{request.data} has no column {', '.join(unknown)}: it has {', '.join(names[:30])}.")
    return Parquet(request.data, target, [name for name in only or names if name not in (*drop, target)])


def large_study(request: Request, say: Callable[[str], object] = lambda text: None) -> tuple[Path, dict[str, Any]]:
    """Fit a large Parquet file and write the results."""
    began, started = time.perf_counter(), datetime.datetime.now(datetime.UTC)
    source = _source(request)
    say(f"{request.data}: {source.num_rows:,} rows, read in pieces; the model is checked on a sample of them")
    with results_folder(request.directory, (RESULTS.name, "coefficients.csv", REPORT), request.data) as folder:
        family, error = None if request.family == "auto" else request.family, regression.relative_error(request.effort)
        asked = {"prior_scale": request.prior_scale, "error": error, "seed": request.seed}
        found = fit_streamed(source, family, names=source.columns, say=say, **asked)
        spent = time.perf_counter() - began
        jax.clear_caches()  # programs of the passes, which the sample does not use
        release_memory()
        checked = _check_sample(request, found, source, folder, say)
        columns, rows = findings.coefficient_table(found.coefficients)
        write_atomically(folder / "coefficients.csv", csv_text(columns, rows))
        started = started.isoformat(timespec="seconds")
        results = {
            "command": request.command,
            "settings": dataclasses.asdict(request),
            "data": {"file": request.data, "rows": source.num_rows, "columns": list(source.columns)},
            "model": {"family": found.family, "target": request.target, "reason": found.reason},
            "coefficients": [dict(zip(columns, row, strict=True)) for row in rows],
            "warnings": list(found.warnings),
            "sample": checked,
            "files": [RESULTS.name, "coefficients.csv", *([REPORT] if "report" in checked else [])],
            "times": {"started": started, "fitting": spent, "wall": time.perf_counter() - began},
        }
        results = RESULTS.save(results, folder)
    return request.directory, results


def _check_sample(request: Request, found, source: Parquet, folder: Path, say) -> dict[str, Any]:
    """The ordinary fit of the sampled rows: what its checks say, and its report as a file of the folder."""
    X, y = found.sample
    say(f"checking the model on {len(y):,} rows, drawn at random")
    columns = {name: X[:, j] for j, name in enumerate(source.columns)} | {request.target: y}
    chosen = list(source.columns) if request.columns or request.drop else []
    model, _ = computed(dataclasses.replace(request, columns=chosen, drop=[], family=found.family), columns, Watch())
    results = model.results or {}
    write_atomically(folder / REPORT, report.render(results))
    return {"rows": len(y), "verdicts": report.verdicts(results), "held_out": results["held_out"], "report": REPORT}


def large_tables(results: dict[str, Any]) -> list[Table | str]:
    """The tables that the command prints."""
    data, model = results["data"], results["model"]
    names = ("name", "mean", "sd", "low_95", "high_95", "monte_carlo_error")
    rows = [[c["name"], *(number(c[name], 6) for name in names[1:])] for c in results["coefficients"]]
    head = f"{data['file']}: {data['rows']:,} rows. {model['family'].capitalize()} regression of {model['target']}.\n"
    sample = results["sample"]
    title = f"On a sample of {sample['rows']:,} rows, with a fit of its own:"
    said = "\n".join([title, *sample["verdicts"], *results["warnings"]])
    return [head, Table(names, rows, title="Coefficients"), "", model["reason"] + "\n", said + "\n"]

"""`gyromc predict`, `run`, `continue`, `tune` and `schema` of plans; `list`, `reproduce` and `report` of experiments."""

import contextlib
import functools
import io
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gyromc import __version__
from gyromc.app.output import Json, answer, app, print_json
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.extras import require_extra
from gyromc.show.interruption import unhurried
from gyromc.show.numbers import counted, did_you_mean, duration
from gyromc.show.progress import say
from gyromc.show.tables import Table

if TYPE_CHECKING:
    from gyromc.plan import Plan
    from gyromc.results import Run

PLAN = "An experiment of the catalogue, or a plan file."
What = Annotated[str, typer.Argument(metavar="EXPERIMENT|PLAN.toml", help=PLAN)]
IMPORT = "Import the modules of functions named in the file, which runs their code."
AllowImport = Annotated[bool, typer.Option("--allow-import", help=IMPORT)]
StepSize = Annotated[float | None, typer.Option(help="Another step size than the plan's (N = ⌊η⁻²⌋ follows it).")]
of_several = functools.partial(typer.Option, rich_help_panel="Several processes")
STARTED = "Run as one of several processes, started by SLURM, Open MPI, Kubernetes or by hand."
LEFT_OUT = "left out: GYROMC_{}, or what the launcher says."
Distributed = Annotated[bool, of_several("--distributed", help=STARTED)]
Coordinator = Annotated[str | None, of_several(help=f"HOST:PORT of process 0; {LEFT_OUT.format('COORDINATOR')}")]
ProcessId = Annotated[int | None, of_several(help=f"Which process this is, from 0; {LEFT_OUT.format('PROCESS_ID')}")]
Processes = Annotated[int | None, of_several(help=f"How many processes there are; {LEFT_OUT.format('PROCESSES')}")]
Wait = Annotated[float, of_several(help="Seconds to wait for the other processes at the start.")]


def is_plan_file(what: str) -> bool:
    """Whether the name is that of a plan file: a path ending in .toml, or any path that exists."""
    return what.endswith(".toml") or os.path.isfile(what)


def find(what: str, step_size: float | None = None, allow_import: bool = False) -> "Plan":
    """Return the plan of a file or of an experiment in the catalogue."""
    from gyromc.io.planfiles import load
    from gyromc.paper.catalogue import CATALOGUE
    from gyromc.plan import read_step_size

    step_size = None if step_size is None else read_step_size(step_size)
    if is_plan_file(what):
        plan = load(what, allow_import)
        return plan if step_size is None else plan.replace(step_size=step_size)
    if what not in CATALOGUE:
        hint = did_you_mean(what, list(CATALOGUE), "There are:", cutoff=0.4)
        raise InvalidInput(f"{what!r} is neither a plan file (those end in .toml) nor an experiment. {hint}")
    experiment = CATALOGUE[what]
    return experiment.plan(step_size=min(experiment.step_sizes) if step_size is None else step_size)


@app.command(epilog="Example: gyromc predict nld-nonquadratic --step-size 0.025")
def predict(
    what: What,
    step_size: StepSize = None,
    digits: Annotated[int, typer.Option(help="Digits of V where the Poisson equation is solved.")] = 6,
    allow_import: AllowImport = False,
    json: Json = False,
) -> None:
    """Predict the error of a plan without sampling: variance, bias, stability, assumptions of the limit theorem."""
    from gyromc.prediction.predict import predict

    prediction = predict(find(what, step_size, allow_import), digits=digits)
    answer(json, prediction.to_dict(), prediction)


@app.command(
    epilog="Exit status: 0 done; 2 refused or diverged; 130 after Ctrl-C and 143 after SIGTERM, with a checkpoint saved "
    "where --checkpoint is given; 75 because another process of the run ended. Examples: "
    "gyromc run nld-quadratic --step-size 0.025 --num-chains 500 --json; "
    "gyromc run plan.toml --checkpoint DIR --every 30s --save run.gyromc"
)
def run(
    what: What,
    step_size: StepSize = None,
    num_chains: Annotated[int | None, typer.Option(help="Another number of chains.")] = None,
    num_steps: Annotated[int | None, typer.Option(help="Another number of steps.")] = None,
    seed: Annotated[int | None, typer.Option(help="Another seed.")] = None,
    reversible: Annotated[bool, typer.Option("--reversible", help="Run the reversible baseline (Q = 0).")] = False,
    engine: Annotated[str, typer.Option(help="auto, scan, lanes or pallas.")] = "auto",
    on_divergence: Annotated[str, typer.Option(help="raise; or report: go on without failed chains.")] = "raise",
    thin: Annotated[int | None, typer.Option(help="Keep every n-th state, for --save.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the run, for `continue` and `gyromc.load`.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Save checkpoints there; go on from the newest.")] = None,
    every: Annotated[str, typer.Option(help="Between checkpoints: 30s, 5min, 2h, or a number of steps.")] = "60s",
    keep: Annotated[int, typer.Option(help="How many checkpoints stay.")] = 3,
    allow_import: AllowImport = False,
    json: Json = False,
    distributed: Distributed = False,
    coordinator: Coordinator = None,
    process_id: ProcessId = None,
    processes: Processes = None,
    wait: Wait = 300,
) -> None:
    """Run a plan: averages over chains, with standard errors and the estimated V."""
    from gyromc.engines import run
    from gyromc.show.files import require_output

    progress = join(distributed, coordinator, process_id, processes, wait)
    require_output(save if is_first() else None, "--save", what)
    plan = find(what, step_size, allow_import)
    changes = {"num_chains": num_chains, "num_steps": num_steps, "seed": seed}
    plan = plan.replace(**{name: value for name, value in changes.items() if value is not None})
    plan = plan.reversible() if reversible else plan
    saving = {"checkpoint": checkpoint, "every": int(every) if every.isdigit() else every, "keep": keep}
    _finish(run(plan, engine, progress=progress, on_divergence=on_divergence, thin=thin, **saving), save, json)


@app.command("continue", epilog="Example: gyromc continue run.gyromc --steps 10000 --save longer.gyromc")
def continue_(
    saved: Annotated[Path, typer.Argument(metavar="RUN.gyromc", help="A file of `gyromc run … --save` or `run.save`.")],
    steps: Annotated[int | None, typer.Option(help="More steps; left out: what an interrupted run lacks.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the longer run to a file, which may be the same.")] = None,
    allow_import: AllowImport = False,
    json: Json = False,
    distributed: Distributed = False,
    coordinator: Coordinator = None,
    process_id: ProcessId = None,
    processes: Processes = None,
    wait: Wait = 300,
) -> None:
    """Continue a saved run: the result equals one longer run, bit for bit."""
    from gyromc.checks import require, whole
    from gyromc.io.runs import load
    from gyromc.results import Run
    from gyromc.show.files import require_output

    join(distributed, coordinator, process_id, processes, wait)
    require_output(save if is_first() else None, "--save")
    run = load(saved, allow_import=allow_import)
    kind = f"{saved} holds no run but a {type(run).__name__}. Save one with `gyromc run … --save`."
    require(isinstance(run, Run), kind)
    require(steps is not None or run.partial, "This run is complete: say with `--steps` how many more steps to make.")
    steps = None if steps is None else whole(steps, "--steps", least=1)
    _finish(run.continue_(steps), save, json)


def _finish(result: "Run", save: Path | None, json: bool) -> None:
    """Save a run where that is asked for, print it, and end with the status of Ctrl-C where it was interrupted."""
    from gyromc.processes import agree

    # After Ctrl-C too, the steps that were made are not lost.
    with unhurried():
        try:
            if save is not None and is_first():
                result.save(save)
                say(f"wrote {save}")
        # What was computed is printed where it cannot be written, too.
        finally:
            if is_first():
                answer(json, result.to_dict(), result)
        # Until process 0 has written its files: it loses the run where another process ends before that.
        agree(None)
    if result.partial:
        raise typer.Exit(130)


@app.command(epilog="Example: gyromc schema > plan.schema.json")
def schema() -> None:
    """Print the JSON Schema of plan files, with which editors check and complete them."""
    from gyromc.io.planfiles import plan_schema

    print_json(plan_schema())


@app.command(
    epilog="Examples: gyromc tune plan.toml --gradients 4000 --save tuned.toml; gyromc tune plan.toml --error 0.01"
)
def tune(
    what: What,
    gradients: Annotated[float | None, typer.Option(help="The budget, in gradients over all the data.")] = None,
    error: Annotated[float | None, typer.Option(help="Or the RMSE to reach, in posterior sd.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Or how long the run may take here.")] = None,
    seed: Annotated[int, typer.Option(help="Of the tuning and of the plan.")] = 0,
    html: Annotated[Path | None, typer.Option(help="Write the account as a page.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the tuned plan as a plan file.")] = None,
    json: Json = False,
) -> None:
    """Choose the sampler and step size with the smallest error for a budget: the plan's own when none is given."""
    from gyromc.checks import require
    from gyromc.io.planfiles import text_of
    from gyromc.show.files import require_apart, require_output, write_atomically
    from gyromc.tuning.tune import tune

    require_output(html, "--html", what)
    require_output(save, "--save", what)
    require_apart({"--html": html, "--save": save})
    if html is not None:
        require_extra("report", "`--html`")
    plan = find(what)
    needed = f"`--save` needs a plan file to take target and observables from: {what!r} is an experiment."
    require(save is None or is_plan_file(what), f"{needed} Write its target into one, or use `gyromc.tune` in Python.")
    tuned = tune(plan, gradients=gradients, error=error, seconds=seconds, seed=seed, say=say)
    if save is not None:
        write_atomically(save, text_of(tuned.plan, Path(what), save))
        say(f"wrote {save}")
    if html is not None:
        from gyromc.show.pages import environment

        account = {"what": what, "account": tuned._repr_html_(), "version": __version__}
        write_atomically(html, environment("gyromc.app").get_template("tune.html.j2").render(**account))
        say(f"wrote {html}")
    answer(json, tuned.to_dict(), tuned)


def join(
    distributed: bool, coordinator: str | None, process_id: int | None, processes: int | None, wait: float
) -> bool | None:
    """Connect to the other processes where that is asked for; returns `progress` for `run`: False where nothing is shown."""
    if not distributed and (coordinator, process_id, processes) == (None, None, None):
        return None
    from gyromc.processes import start

    # Libraries write to standard error, so that output has the answer alone: Gloo, through which processors exchange arrays,
    # writes a line when processes connect. Streams of a test have no number, and no library writes to them.
    with contextlib.suppress(OSError, ValueError, io.UnsupportedOperation):
        kept = os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        sys.stdout = open(kept, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)  # noqa: SIM115  # for the process
    start(coordinator, processes, process_id, timeout=wait)
    if is_first():
        return None
    # Process 0 has the same ones.
    warnings.simplefilter("ignore", GyromcWarning)
    return False


def is_first() -> bool:
    """Whether this process prints and writes: the only one, or process 0."""
    from gyromc.processes import index

    return index() == 0


@app.command("list", epilog="Example: gyromc list --json")
def list_experiments(json: Json = False) -> None:
    """List the paper's experiments and what each costs."""
    from gyromc.paper.catalogue import CATALOGUE, PROFILES, seconds

    brief = lambda seconds: "< 1 s" if seconds < 1 else duration(seconds)
    content, rows = [], []
    for e in CATALOGUE.values():
        costs, cells = {}, [e.name, e.title, f"{e.step_sizes[0]:g} … {e.step_sizes[-1]:g}"]
        for profile in PROFILES.values():
            steps = profile.chain_steps(e)
            scan, lanes = (seconds(e, steps, engine) for engine in ("scan", "lanes"))
            costs[profile.name] = {"chain_steps": steps, "seconds_scan": scan, "seconds_lanes": lanes}
            cells += [f"{steps:.2g}", f"{brief(scan)} / {brief(lanes)}"]
        sizes = {"step_sizes": list(e.step_sizes), "dynamics": list(e.roles)}
        content.append({"name": e.name, "title": e.title, **sizes, "cost": costs})
        rows.append(cells)
    left = ["name", "what", "step sizes"]
    columns = [*left, *(text for name in PROFILES for text in (f"{name}: chain-steps", "about"))]
    notes = ["about: time on two cores, engine scan / lanes; equal pieces are computed once"]
    answer(json, content, Table(columns, rows, notes=notes, left=left))


@app.command(epilog="Example: gyromc reproduce nld-quadratic linear-nld --out results/two")
def reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments; all twelve when left out.")] = None,
    profile: Annotated[str, typer.Option(help="quick: minutes; paper: R = 2000, every step size.")] = "quick",
    engine: Annotated[str, typer.Option(help="auto, or one of the engines by name.")] = "auto",
    out: Annotated[str | None, typer.Option(help="Directory for results, figures, report and cache.")] = None,
    seed: Annotated[int, typer.Option(help="The seed that all noise is derived from.")] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Compute again what the cache holds.")] = False,
    workers: Annotated[int | None, typer.Option(help="Processes that share the work; left out: what suits it.")] = None,
    sensitivity: Annotated[bool, typer.Option(help="Vary data, rows and starts too (profile paper).")] = True,
    json: Json = False,
) -> None:
    """Run the paper's experiments and report every claim with a verdict."""
    # Before the work, not at its end.
    require_extra("report", "`gyromc reproduce`")
    from gyromc.paper.report import took
    from gyromc.paper.reproduction import reproduce

    chosen = {"engine": engine, "workers": workers, "sensitivity": sensitivity}
    try:
        done = reproduce(names or (), profile, out=out, seed=seed, fresh=fresh, **chosen)
    except KeyboardInterrupt as stop:
        say(f"interrupted{f': {stop}' if str(stop) else ''}. The same command goes on from there.")
        raise typer.Exit(130) from None
    every = (cells for found in done.results["experiments"].values() for cells in found["cells"].values())
    if failed := sum(cell["failed_chains"] for cells in every for cell in cells):
        say(f"warning: {counted(failed, 'chain')} failed; the report says which")
    say(f"{done.computed} pieces computed, {done.reused} from the cache")
    say(took(done.results["times"]))
    content = {"report": str(done.report), "computed": done.computed, "reused": done.reused, "results": done.results}
    answer(json, content, _verdicts(done.results), path=done.report)


@app.command(epilog="Example: gyromc report results/quick")
def report(
    directory: Annotated[str, typer.Argument(help="A directory with results.json.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the verdict table as Markdown instead.")] = False,
    json: Json = False,
) -> None:
    """Rebuild figures and report.html from results.json, without sampling."""
    from gyromc.paper import report

    results = report.RESULTS.load(Path(directory))
    with report.RESULTS.using(Path(directory)):
        if markdown:
            print(report.markdown(results), end="")
            return
        path = report.write_report(results, Path(directory))
    answer(json, {"report": str(path.resolve())}, path=path)


def _verdicts(results: dict[str, Any]):
    from gyromc.paper.report import COLUMNS, judged

    colours = {"confirmed": "green", "true so far": "green", "not resolved": "yellow", "refuted": "red"}
    rows = []
    for name, found in results["experiments"].items():
        claims = {claim["key"]: (claim["verdict"], claim["value"]) for claim in found["claims"]}
        shown = {key: (f"{word} {value:.3g}", colours[word]) for key, (word, value) in claims.items()}
        rows.append([name, judged(found), *(shown.get(key, "–") for key in COLUMNS)])
    columns = ["experiment", "judged", *COLUMNS.values()]
    return Table(columns, rows, title=f"Verdicts, {results['profile']} profile", left=columns)

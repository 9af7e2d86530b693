"""`gyromc predict`, `run`, `continue` and `tune`: what a plan will deliver, what it delivers, and a better plan."""

import contextlib
import io
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gyromc import __version__
from gyromc.app.output import Json, answer, app
from gyromc.errors import GyromcWarning

if TYPE_CHECKING:
    from gyromc.plan import Plan
    from gyromc.results import Run

INTERRUPTED = 130
"""The status after Ctrl-C."""

What = Annotated[
    str, typer.Argument(metavar="EXPERIMENT|PLAN.toml", help="An experiment of the catalogue, or a plan file.")
]
AllowImport = Annotated[
    bool,
    typer.Option("--allow-import", help="Import the modules of functions named in the file, which runs their code."),
]
StepSize = Annotated[float | None, typer.Option(help="Another step size than the plan's (N = ⌊η⁻²⌋ follows it).")]


def _process_option(help: str, *names: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Several processes")


STARTED = "Run as one of several processes, started by SLURM, Open MPI, Kubernetes or by hand."
LEFT_OUT = "left out: GYROMC_{}, or what the launcher says."
HOST = f"HOST:PORT of process 0; {LEFT_OUT.format('COORDINATOR')}"
WHICH = f"Which process this is, from 0; {LEFT_OUT.format('PROCESS_ID')}"
HOW_MANY = f"How many processes there are; {LEFT_OUT.format('PROCESSES')}"
Distributed = Annotated[bool, _process_option(STARTED, "--distributed")]
Coordinator = Annotated[str | None, _process_option(HOST)]
ProcessId = Annotated[int | None, _process_option(WHICH)]
Processes = Annotated[int | None, _process_option(HOW_MANY)]
Wait = Annotated[float, _process_option("Seconds to wait for the other processes at the start.")]


def is_plan_file(what: str) -> bool:
    """Whether the name is that of a plan file: a path ending in .toml, or any path that exists."""
    return what.endswith(".toml") or os.path.isfile(what)


def find(what: str, step_size: float | None = None, allow_import: bool = False) -> "Plan":
    """Return the plan of a file (a path ending in .toml, or any path that exists) or of an experiment in the catalogue."""
    from gyromc.errors import InvalidInput
    from gyromc.io.planfiles import load
    from gyromc.paper.catalogue import CATALOGUE
    from gyromc.plan import read_step_size
    from gyromc.show.numbers import did_you_mean

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
    """Predict what a plan will deliver: V, V_0, RMSE, bias, stability, verdicts. Nothing is sampled."""
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
    on_divergence: Annotated[
        str, typer.Option(help="raise, or report to continue without the chains that failed.")
    ] = "raise",
    thin: Annotated[int | None, typer.Option(help="Keep every n-th state, for --save.")] = None,
    save: Annotated[
        Path | None, typer.Option(help="Write the run to a file, for `continue` and `gyromc.load`.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Save checkpoints to this directory; go on from the newest one there.")
    ] = None,
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
    steps: Annotated[
        int | None, typer.Option(help="More steps of every chain; left out: what an interrupted run lacks.")
    ] = None,
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
    from gyromc.show.interruption import unhurried
    from gyromc.show.progress import say

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
        raise typer.Exit(INTERRUPTED)


@app.command(
    epilog="Examples: gyromc tune plan.toml --gradients 4000 --save tuned.toml; gyromc tune nld-nonquadratic --error 0.01"
)
def tune(
    what: What,
    gradients: Annotated[float | None, typer.Option(help="The budget, in gradients over all the data.")] = None,
    error: Annotated[
        float | None, typer.Option(help="In place of it: the RMSE to reach, in posterior standard deviations.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="In place of it: how long the run may take here.")] = None,
    seed: Annotated[int, typer.Option(help="Of the tuning and of the plan.")] = 0,
    html: Annotated[Path | None, typer.Option(help="Write the account as a page.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the tuned plan as a plan file.")] = None,
    json: Json = False,
) -> None:
    """Choose the sampler and step size with the smallest error for a budget: the plan's own when none is given."""
    from gyromc.checks import require
    from gyromc.extras import require_extra
    from gyromc.io.planfiles import text_of
    from gyromc.show.files import require_output, write_atomically
    from gyromc.show.progress import say
    from gyromc.tuning.tune import tune

    require_output(html, "--html", what, save)
    if html is not None:
        require_extra("report", "`--html`")
    require_output(save, "--save", what)
    plan = find(what)
    require(
        save is None or is_plan_file(what),
        f"`--save` needs a plan file to take target and observables from: {what!r} is an experiment. Write its target into a "
        "plan file, or use `gyromc.tune` in Python.",
    )
    tuned = tune(plan, gradients=gradients, error=error, seconds=seconds, seed=seed, say=say)
    if save is not None:
        write_atomically(save, text_of(tuned.plan, Path(what), save))
        say(f"wrote {save}")
    if html is not None:
        from gyromc.show.pages import environment

        template = environment("gyromc.app").get_template("tune.html.j2")
        page = template.render(what=what, account=tuned._repr_html_(), version=__version__)
        write_atomically(html, page)
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

"""`gyromc predict`, `gyromc run` and `gyromc tune`: what a plan will deliver, what it delivers, and a better plan."""

from pathlib import Path
from typing import Annotated

import typer

from gyromc.app.output import Json, answer

__all__ = ["register"]

What = Annotated[
    str, typer.Argument(metavar="EXPERIMENT|PLAN.toml", help="An experiment of the catalogue, or a plan file.")
]
StepSize = Annotated[float | None, typer.Option(help="Another step size than the plan's (N = ⌊η⁻²⌋ follows it).")]


def register(app: typer.Typer) -> None:
    """Add the commands to an app."""
    app.command(epilog="Example: gyromc predict nld-nonquadratic --step-size 0.025")(predict)
    app.command(epilog="Example: gyromc run nld-quadratic --step-size 0.025 --num-chains 500 --json")(run)
    app.command(
        epilog="Examples: gyromc tune plan.toml --gradients 4000 --save tuned.toml; gyromc tune nld-nonquadratic --error 0.01"
    )(tune)


def predict(
    what: What,
    step_size: StepSize = None,
    digits: Annotated[int, typer.Option(help="Digits of V where the Poisson equation is solved.")] = 6,
    json: Json = False,
) -> None:
    """Predict what a plan will deliver: V, V_0, RMSE, bias, stability, verdicts. Nothing is sampled."""
    from gyromc.app.planfiles import find
    from gyromc.prediction.predict import predict

    prediction = predict(find(what, step_size), digits=digits)
    answer(json, prediction.to_dict(), prediction)


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
    json: Json = False,
) -> None:
    """Run a plan: averages over chains, with standard errors, intervals and the estimated V."""
    from gyromc.app.planfiles import find
    from gyromc.engines import run

    plan = find(what, step_size)
    changes = {"num_chains": num_chains, "num_steps": num_steps, "seed": seed}
    plan = plan.replace(**{name: value for name, value in changes.items() if value is not None})
    result = run(plan.reversible() if reversible else plan, engine, on_divergence=on_divergence)
    answer(json, result.to_dict(), result)


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
    from gyromc.app.accounts import page
    from gyromc.app.planfiles import find
    from gyromc.app.saving import require_file, require_saveable, text_of
    from gyromc.show.files import write_atomically
    from gyromc.show.progress import say
    from gyromc.tuning.tune import tune

    require_file(html, "--html")
    require_file(save, "--save")
    plan = find(what)
    if save is not None:
        require_saveable(what)
    tuned = tune(plan, gradients=gradients, error=error, seconds=seconds, seed=seed, say=say)
    if save is not None:
        write_atomically(save, text_of(tuned.plan, Path(what), save))
        say(f"wrote {save}")
    if html is not None:
        write_atomically(html, page(tuned, what))
        say(f"wrote {html}")
    answer(json, tuned.to_dict(), tuned)

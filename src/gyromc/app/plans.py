"""`gyromc predict` and `gyromc run`: the prediction of a plan, and the averages that running it gives."""

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

"""`gyromc predict`: what an experiment or a plan file will deliver (SPEC §3-§4), as tables or JSON.

Receives a name or a path; hands a plan to `predict` and prints the answer.
"""

import typer


def register(app: typer.Typer) -> None:
    """Add the commands of this part to the command line."""
    app.command()(predict)


def predict(
    what: str = typer.Argument(metavar="EXPERIMENT|PLAN.toml", help="An experiment of the catalogue, or a plan file."),
    step_size: float | None = typer.Option(None, help="Another step size than the plan's (N = ⌊η⁻²⌋ follows it)."),
    digits: int = typer.Option(6, help="Digits of V where the Poisson equation is solved."),
    json: bool = typer.Option(False, "--json", help="JSON on standard output instead of tables."),
) -> None:
    """Say what a plan will deliver, before it runs: V, V_0, RMSE, bias, stability, verdicts."""
    from gyromc.planfiles import find
    from gyromc.theory.prediction import predict as forecast

    prediction = forecast(find(what, step_size), digits=digits)
    if json:
        import json as writer

        typer.echo(writer.dumps(prediction.to_dict(), ensure_ascii=False, indent=2, allow_nan=False))
        return
    from rich.console import Console

    console = Console()
    console.print(
        prediction.__rich__() if console.is_terminal else str(prediction), markup=False, highlight=False, soft_wrap=True
    )

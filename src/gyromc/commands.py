"""`gyromc run`: do what an experiment or a plan file says (E3, E4), as a table or JSON.

Receives a name or a path; hands a plan to `run` and prints the answer. Progress goes to standard error, the answer to standard output.
"""

import typer


def register(app: typer.Typer) -> None:
    """Add the commands of this part to the command line."""
    app.command(epilog="Example: gyromc run nld-quadratic --step-size 0.025 --num-chains 500 --json")(run)


def run(
    what: str = typer.Argument(metavar="EXPERIMENT|PLAN.toml", help="An experiment of the catalogue, or a plan file."),
    step_size: float | None = typer.Option(None, help="Another step size than the plan's (N = ⌊η⁻²⌋ follows it)."),
    num_chains: int | None = typer.Option(None, help="Another number of chains."),
    num_steps: int | None = typer.Option(None, help="Another number of steps."),
    seed: int | None = typer.Option(None, help="Another seed."),
    reversible: bool = typer.Option(False, "--reversible", help="The reversible baseline (Q = 0) instead."),
    engine: str = typer.Option("auto", help="auto, scan, lanes or pallas."),
    on_divergence: str = typer.Option("raise", help="raise, or report to go on without failed chains."),
    json: bool = typer.Option(False, "--json", help="JSON on standard output instead of a table."),
) -> None:
    """Run a plan: averages over chains, with standard errors, intervals and the estimated V."""
    from gyromc.engines import run as execute
    from gyromc.planfiles import find

    plan = find(what, step_size)
    changes = {"num_chains": num_chains, "num_steps": num_steps, "seed": seed}
    plan = plan.replace(**{name: value for name, value in changes.items() if value is not None})
    result = execute(plan.reversible() if reversible else plan, engine, on_divergence=on_divergence)
    if json:
        import json as writer

        typer.echo(writer.dumps(result.to_dict(), ensure_ascii=False, indent=2, allow_nan=False))
        return
    typer.echo(repr(result))

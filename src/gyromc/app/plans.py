"""`gyromc predict`, `run` and `bench`: what a plan will deliver, what it does deliver (E3, E4), and how fast.

Receives words; hands a plan or a piece of work to the library and prints the answer. Data go to standard output, progress to
standard error.
"""

from typing import Annotated, Any

import typer

What = Annotated[
    str, typer.Argument(metavar="EXPERIMENT|PLAN.toml", help="An experiment of the catalogue, or a plan file.")
]
StepSize = Annotated[float | None, typer.Option(help="Another step size than the plan's (N = ⌊η⁻²⌋ follows it).")]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output instead of tables.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this part to the command line."""
    app.command(epilog="Example: gyromc predict nld-nonquadratic --step-size 0.025")(predict)
    app.command(epilog="Example: gyromc run nld-quadratic --step-size 0.025 --num-chains 500 --json")(run)
    app.command(epilog="Example: gyromc bench nonquadratic --repeats 3 --out results/bench")(bench)


def predict(
    what: What,
    step_size: StepSize = None,
    digits: int = typer.Option(6, help="Digits of V where the Poisson equation is solved."),
    json: Json = False,
) -> None:
    """Say what a plan will deliver, before it runs: V, V_0, RMSE, bias, stability, verdicts."""
    from gyromc.app.planfiles import find
    from gyromc.prediction.predict import predict as forecast

    prediction = forecast(find(what, step_size), digits=digits)
    _answer(prediction.to_dict() if json else prediction)


def run(
    what: What,
    step_size: StepSize = None,
    num_chains: int | None = typer.Option(None, help="Another number of chains."),
    num_steps: int | None = typer.Option(None, help="Another number of steps."),
    seed: int | None = typer.Option(None, help="Another seed."),
    reversible: bool = typer.Option(False, "--reversible", help="The reversible baseline (Q = 0) instead."),
    engine: str = typer.Option("auto", help="auto, scan, lanes or pallas."),
    on_divergence: str = typer.Option("raise", help="raise, or report to go on without failed chains."),
    json: Json = False,
) -> None:
    """Run a plan: averages over chains, with standard errors, intervals and the estimated V."""
    from gyromc.app.planfiles import find
    from gyromc.engines import run as execute

    plan = find(what, step_size)
    changes = {"num_chains": num_chains, "num_steps": num_steps, "seed": seed}
    plan = plan.replace(**{name: value for name, value in changes.items() if value is not None})
    result = execute(plan.reversible() if reversible else plan, engine, on_divergence=on_divergence)
    _answer(result.to_dict() if json else result)


def bench(
    work: Annotated[list[str] | None, typer.Argument(help="Which work; all of it when left out.")] = None,
    repeats: int = typer.Option(5, help="Timings of each competitor."),
    seconds: float = typer.Option(0.5, help="About how long one timing takes."),
    growth: bool = typer.Option(False, "--growth", help="Also vary chains, dimension and steps."),
    out: Annotated[str | None, typer.Option(help="Directory for bench.json, bench.png and growth.png.")] = None,
    json: Json = False,
) -> None:
    """Measure the engines beside the peers and the limit, in chain-steps per second."""
    benchmark = _developers_tool()

    results = benchmark.measure(work or (), repeats, seconds, growth, lambda text: typer.echo(text, err=True))
    if out is not None:
        import json as writer
        from pathlib import Path

        Path(out).mkdir(parents=True, exist_ok=True)
        (Path(out) / "bench.json").write_text(writer.dumps(benchmark.report(results), indent=2))
        benchmark.plot(results, Path(out) / "bench.png")
        benchmark.plot_growth(results, Path(out) / "growth.png")
    _answer(benchmark.report(results) if json else benchmark.table(results))


def _answer(answer: Any) -> None:
    """JSON for a dictionary, a table for anything else."""
    if isinstance(answer, dict):
        import json

        typer.echo(json.dumps(answer, ensure_ascii=False, indent=2, allow_nan=False))
        return
    from rich.console import Console

    console = Console()
    if not console.is_terminal:  # a pipe has no width to fit into
        console = Console(width=150)
    console.print(answer)


def _developers_tool() -> Any:
    """`benchmarks/speed` of a checkout: it is no part of the installed package."""
    import importlib
    import sys
    from pathlib import Path

    from gyromc.errors import InvalidInput

    folder = Path(__file__).parents[3] / "benchmarks"
    if not (folder / "speed").is_dir():
        raise InvalidInput(
            "`gyromc bench` measures a checkout of the source and is not in the installed package. "
            "Clone gyromc and run `make bench`."
        )
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return importlib.import_module("speed")

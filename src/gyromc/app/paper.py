"""The commands `list`, `reproduce` and `report` (the paper's §6): no logic, only words in and words out.

Receives a Typer app; hands it on with three commands. Data go to standard output, progress and remarks to standard error.
"""

import sys
from typing import Annotated, Any

import typer

__all__ = ["register"]

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def register(app: typer.Typer) -> None:
    """Add the commands to an app."""
    app.command("list", epilog="Example: gyromc list --json")(list_experiments)
    app.command("reproduce", epilog="Example: gyromc reproduce nld-quadratic linear-nld --out results/two")(reproduce)
    app.command("report", epilog="Example: gyromc report results/quick")(report)


def list_experiments(json: Json = False) -> None:
    """Show the paper's experiments, with what each costs."""
    from gyromc.paper.catalogue import CATALOGUE
    from gyromc.paper.profiles import PROFILES, seconds

    rows = [
        {
            "name": e.name,
            "title": e.title,
            "step_sizes": list(e.step_sizes),
            "dynamics": list(e.roles),
            "cost": {
                p.name: {
                    "chain_steps": p.chain_steps(e),
                    "seconds_scan": seconds(e, p.chain_steps(e), "scan"),
                    "seconds_lanes": seconds(e, p.chain_steps(e), "lanes"),
                }
                for p in PROFILES.values()
            },
        }
        for e in CATALOGUE.values()
    ]
    if json:
        _print_json(rows)
        return
    from rich.table import Table

    table = Table(
        "name", "what", "step sizes", caption="seconds on two cores, engine scan / lanes; equal pieces are shared"
    )
    for name in PROFILES:
        table.add_column(f"{name}: chain-steps", justify="right")
        table.add_column("about", justify="right")
    for row in rows:
        cells = [row["name"], row["title"], f"{row['step_sizes'][0]:g} … {row['step_sizes'][-1]:g}"]
        for cost in row["cost"].values():
            cells += [f"{cost['chain_steps']:.2g}", f"{_brief(cost['seconds_scan'])} / {_brief(cost['seconds_lanes'])}"]
        table.add_row(*cells)
    _console().print(table)


def reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments; all twelve when left out.")] = None,
    profile: Annotated[
        str, typer.Option(help="quick: minutes; paper: R = 2000 and every published step size.")
    ] = "quick",
    engine: Annotated[str, typer.Option(help="auto, or one of the engines by name.")] = "auto",
    out: Annotated[str | None, typer.Option(help="Directory for results, figures, report and cache.")] = None,
    seed: Annotated[int, typer.Option(help="What all noise is derived from.")] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Compute also what is already there.")] = False,
    json: Json = False,
) -> None:
    """Run the paper's experiments and report every claim with a verdict."""
    from gyromc.paper.execution import Interrupted
    from gyromc.paper.reproduction import reproduce

    try:
        done = reproduce(names or (), profile, engine=engine, out=out, seed=seed, fresh=fresh)
    except KeyboardInterrupt as stop:
        kept = f": {stop}" if isinstance(stop, Interrupted) else ""
        _say(f"interrupted{kept}. The same command goes on from there.")
        raise typer.Exit(130) from None
    for text in done.warnings:
        _say(f"warning: {text}")
    _say(f"{done.computed} pieces computed, {done.reused} from the cache")
    if json:
        _print_json(
            {"report": str(done.report), "computed": done.computed, "reused": done.reused, "results": done.results}
        )
    else:
        _console().print(_verdicts(done.results))
        print(done.report.resolve())


def report(
    directory: Annotated[str, typer.Argument(help="A directory with results.json.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the verdict table as Markdown instead.")] = False,
    json: Json = False,
) -> None:
    """Rebuild figures and report.html from results.json, without sampling."""
    from pathlib import Path

    from gyromc.paper import report
    from gyromc.paper.store import load

    results = load(Path(directory))
    if markdown:
        print(report.markdown(results), end="")
        return
    path = report.write_report(results, Path(directory))
    if json:
        _print_json({"report": str(path.resolve())})
    else:
        print(path.resolve())


def _verdicts(results: dict[str, Any]):
    from rich.table import Table

    from gyromc.paper.report import COLUMNS, SHORT

    table = Table(
        "experiment", *COLUMNS.values(), title=f"Verdicts, {results['profile']} profile", title_justify="left"
    )
    colours = {"confirmed": "green", "not resolved": "yellow", "refuted": "red"}
    for name, found in results["experiments"].items():
        by_key = {claim["key"]: claim for claim in found["claims"]}
        cells = []
        for key in COLUMNS:
            claim = by_key.get(key)
            word = SHORT[claim["verdict"]] if claim else ""
            cells.append(f"[{colours[word]}]{word}[/] {claim['value']:.3g}" if claim else "–")
        table.add_row(name, *cells)
    return table


def _brief(seconds: float) -> str:
    return (
        "< 1 s"
        if seconds < 1
        else f"{seconds:.0f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 6000
        else f"{seconds / 3600:.1f} h"
    )


def _console():
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 140)


def _print_json(value: Any) -> None:
    import json

    print(json.dumps(value, ensure_ascii=False))


def _say(text: str) -> None:
    print(f"gyromc: {text}", file=sys.stderr)

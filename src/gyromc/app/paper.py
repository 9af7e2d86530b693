"""`gyromc list`, `gyromc reproduce` and `gyromc report`: the paper's experiments on the command line."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gyromc.app.output import Json, answer, app

WORKERS = (
    "Processes that share the work; the numbers are the same for any. Left out: the fastest on this machine, which is one "
    "for each processor, but a single one for less than half a minute of work."
)


@app.command("list", epilog="Example: gyromc list --json")
def list_experiments(json: Json = False) -> None:
    """List the paper's experiments and what each costs."""
    from gyromc.paper.catalogue import CATALOGUE, PROFILES, seconds

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
    answer(json, rows, _costs(rows))


@app.command(epilog="Example: gyromc reproduce nld-quadratic linear-nld --out results/two")
def reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments; all twelve when left out.")] = None,
    profile: Annotated[
        str, typer.Option(help="quick: minutes; paper: R = 2000 and every published step size.")
    ] = "quick",
    engine: Annotated[str, typer.Option(help="auto, or one of the engines by name.")] = "auto",
    out: Annotated[str | None, typer.Option(help="Directory for results, figures, report and cache.")] = None,
    seed: Annotated[int, typer.Option(help="The seed that all noise is derived from.")] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Compute again what the cache holds.")] = False,
    workers: Annotated[int | None, typer.Option(help=WORKERS)] = None,
    sensitivity: Annotated[
        bool, typer.Option(help="Judge claim (i) over other data, rows and starts too (profile paper).")
    ] = True,
    json: Json = False,
) -> None:
    """Run the paper's experiments and report every claim with a verdict."""
    from gyromc.extras import require_extra

    # Before the work, not at its end.
    require_extra("report", "`gyromc reproduce`")
    from gyromc.paper.computation import Interrupted
    from gyromc.paper.report import took
    from gyromc.paper.reproduction import reproduce
    from gyromc.show.numbers import counted
    from gyromc.show.progress import say

    try:
        chosen = {"engine": engine, "workers": workers, "sensitivity": sensitivity}
        done = reproduce(names or (), profile, out=out, seed=seed, fresh=fresh, **chosen)
    except KeyboardInterrupt as stop:
        kept = f": {stop}" if isinstance(stop, Interrupted) else ""
        say(f"interrupted{kept}. The same command goes on from there.")
        raise typer.Exit(130) from None
    every = [
        cell for found in done.results["experiments"].values() for cells in found["cells"].values() for cell in cells
    ]
    if failed := sum(cell["failed_chains"] for cell in every):
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


def _costs(rows: list[dict[str, Any]]):
    from gyromc.show.numbers import duration
    from gyromc.show.tables import Table

    def brief(seconds: float) -> str:
        return "< 1 s" if seconds < 1 else duration(seconds)

    cells = []
    for row in rows:
        line = [row["name"], row["title"], f"{row['step_sizes'][0]:g} … {row['step_sizes'][-1]:g}"]
        for cost in row["cost"].values():
            line += [f"{cost['chain_steps']:.2g}", f"{brief(cost['seconds_scan'])} / {brief(cost['seconds_lanes'])}"]
        cells.append(line)
    costs = [text for name in rows[0]["cost"] for text in (f"{name}: chain-steps", "about")]
    notes = ["about: time on two cores, engine scan / lanes; equal pieces are computed once"]
    return Table(["name", "what", "step sizes", *costs], cells, notes=notes, left=["name", "what", "step sizes"])


def _verdicts(results: dict[str, Any]):
    from gyromc.paper.report import COLUMNS, judged
    from gyromc.show.tables import Table

    colours = {"confirmed": "green", "true so far": "green", "not resolved": "yellow", "refuted": "red"}
    rows = []
    for name, found in results["experiments"].items():
        claims = {claim["key"]: claim for claim in found["claims"]}
        cells = [
            (f"{claim['verdict']} {claim['value']:.3g}", colours[claim["verdict"]]) if claim else "–"
            for claim in map(claims.get, COLUMNS)
        ]
        rows.append([name, judged(found), *cells])
    columns = ["experiment", "judged", *COLUMNS.values()]
    return Table(columns, rows, title=f"Verdicts, {results['profile']} profile", left=columns)

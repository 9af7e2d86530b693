"""report.html: one self-contained page with the paper's claims, the measurements and the predictions; and its figures.

Every number comes from results.json, so `gyromc report DIR` rebuilds everything without sampling.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gyromc
from gyromc.checks import require
from gyromc.datasets import HEART
from gyromc.extras import require_extra
from gyromc.paper import claims
from gyromc.paper.catalogue import ROLE_NAMES
from gyromc.paper.workers import WorkerTask, computed
from gyromc.runtime.machine import num_threads
from gyromc.show.files import ResultsFile, csv_text, require_writable, write_atomically
from gyromc.show.numbers import bounds, counted, duration, number
from gyromc.show.pages import Picture, environment, image
from gyromc.show.progress import Progress

RESULTS = ResultsFile("results.json", "gyromc.reproduction", 2, "gyromc reproduce --out {directory}")

COLUMNS = {
    "smaller-error": "(i) smaller RMSE",
    "asymptotic": "(ii) RMSE/√(ηV) → 1",
    "slope": "(iii) slope → ½",
    "normality": "(iv) normal errors",
    "exact": "RMSE = exact prediction",
    "smaller-error-sgld": "beats plain SGLD",
}
"""The verdict table: claim by column, the paper's four first."""
SIGNS = {claims.CONFIRMED: "✓", claims.HOLDS_HERE: "✓", claims.UNRESOLVED: "?", claims.REFUTED: "✗"}
CLASSES = {"✓": "yes", "?": "open", "✗": "no"}
STATUS_CLASSES = {"holds": "yes", "certified": "yes", "confirmed": "yes", "fails": "no", "violated": "no"}
FORMATS = ("svg", "png", "pdf", "csv")
SAVED: Mapping[str, dict[str, Any]] = {"png": {"dpi": 160}, "pdf": {"metadata": {"CreationDate": None}}}
"""How Matplotlib saves figures."""
SECONDS_PER_FIGURES = 1.4
"""Of one experiment, for the progress bar."""
FEW_EXPERIMENTS = 5
"""So many, and fewer, are drawn before another process has started."""


def write_report(
    results: Mapping[str, Any],
    directory: Path,
    shown: Progress | None = None,
    formats: tuple[str, ...] = FORMATS,
    workers: int | None = None,
) -> Path:
    """Draw the figures in so many processes, left out: the fastest, and write report.html; return its path."""
    directory = Path(directory)
    experiments = results["experiments"]
    for name in experiments:
        require(
            re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name),
            f"{RESULTS.name} has an experiment {name!r}; a name has letters, digits and hyphens only, as files are named after "
            f"it. Nothing was written. Run `{RESULTS.command.format(directory=directory)}` again.",
        )
    require_extra("report", "The report of a reproduction")
    require_writable(directory)
    tasks = [
        WorkerTask(f"{name}: figures", drawn, (name, found, formats), SECONDS_PER_FIGURES)
        for name, found in experiments.items()
    ]
    pictures: dict[str, list[Picture]] = {}
    if workers is None:
        workers = 1 if len(tasks) <= FEW_EXPERIMENTS else min(num_threads(), len(tasks))
    for i, (made, files) in computed(tasks, workers, shown):
        pictures[list(experiments)[i]] = made
        for file, content in files.items():
            write_atomically(directory / "figures" / file, content)
    path = directory / "report.html"
    write_atomically(path, render(results, pictures))
    return path


def drawn(name: str, found: dict[str, Any], formats: tuple[str, ...]) -> tuple[list[Picture], dict[str, str | bytes]]:
    """Draw one experiment's panels; return the pictures of the page, and by name the files in every format."""
    from gyromc.paper.figures import panels

    pictures, files = [], {}
    for panel in panels(name, found):
        picture = Picture.of(panel.kind, panel.figure, panel.alt, panel.caption)
        pictures.append(picture)
        content = {"csv": csv_text(panel.columns, panel.rows), "svg": picture.svg}
        content |= {kind: image(panel.figure, kind, **SAVED[kind]) for kind in formats if kind in SAVED}
        files |= {f"{name}-{panel.kind}.{kind}": content[kind] for kind in formats}
    return pictures, files


def render(results: Mapping[str, Any], pictures: Mapping[str, list[Picture]]) -> str:
    """The page as text, with the pictures of each experiment."""
    experiments = results["experiments"]
    counts = {source: dict.fromkeys(SIGNS, 0) for source in ("paper", "beyond")}
    for claim in (claim for found in experiments.values() for claim in found["claims"]):
        counts[claim["source"]][claim["verdict"]] += 1
    template = environment("gyromc.paper").get_template("report.html.j2")
    return template.render(
        results=results,
        answer=answer(experiments),
        experiments=experiments,
        pictures=pictures,
        columns=COLUMNS,
        verdicts={name: {c["key"]: c for c in found["claims"]} for name, found in experiments.items()},
        judged=judged,
        counts=counts,
        exact=_exact(experiments),
        signs=SIGNS,
        classes=CLASSES,
        role_names=ROLE_NAMES,
        status_classes=STATUS_CLASSES,
        heart=HEART.citation if any(f["family"] == "logistic" for f in experiments.values()) else None,
        tolerances=claims,
        version=gyromc.__version__,
        took=took,
    )


def answer(experiments: Mapping[str, Any]) -> str:
    """The answer to the page's title in a sentence: where claim (i) holds, by how much, and why not elsewhere."""
    found = {name: next(c for c in one["claims"] if c["key"] == "smaller-error") for name, one in experiments.items()}
    lower = {name: c for name, c in found.items() if c["verdict"] in (claims.CONFIRMED, claims.HOLDS_HERE)}
    refuted = [name for name, c in found.items() if c["verdict"] == claims.REFUTED]
    unclear = [name for name in found if name not in lower and name not in refuted]
    gains = [100 * (1 - c["value"]) for c in lower.values()]
    by = f", by {min(gains):.0f} to {max(gains):.0f} %" if gains else ""
    parts = [f"Rotation lowers the error in {len(lower)} of {counted(len(found), 'experiment')}{by}"]
    if refuted:
        biased = [name for name in refuted if _is_biased(experiments[name])]
        why = ", because its larger bias outweighs its smaller variance" if biased == refuted else ""
        parts.append(f"in {len(refuted)} it does not ({', '.join(refuted)}){why}")
    if unclear:
        parts.append(f"in {len(unclear)} the sample is too small to tell ({', '.join(unclear)})")
    return "; ".join(parts) + "."


def _is_biased(found: Mapping[str, Any]) -> bool:
    """Whether, where the rotation does worst, its standard deviation is smaller than the baseline's and its bias larger."""
    ours, theirs = found["cells"]["nonreversible"], found["cells"]["reversible"]
    worst = max(range(len(ours)), key=lambda i: ours[i]["rmse"] / theirs[i]["rmse"])
    return ours[worst]["std"] < theirs[worst]["std"] and abs(ours[worst]["bias"]) > abs(theirs[worst]["bias"])


def took(times: Mapping[str, Any]) -> str:
    """The time by the clock, and the time that all processes and devices took together, as text."""
    text = (
        f"{duration(times['wall'])} by the clock; {duration(times['sampling'])} of device time, added over all pieces"
    )
    reused = times.get("pieces", {}).get("reused", 0)
    return text + (f"; {counted(reused, 'piece')} computed by an earlier run" if reused else "")


def judged(found: Mapping[str, Any]) -> str:
    """The step sizes at which an experiment's claims were judged, as text."""
    run = found["step_sizes"]
    if set(found["published_step_sizes"]) <= set(run):
        return f"all {counted(len(run), 'step size')}"
    return f"at η = {', '.join(f'{eta:g}' for eta in run)}"


def markdown(results: Mapping[str, Any]) -> str:
    """The verdict table as Markdown, with the command and the machine that made it."""
    where = results["environment"]
    lines = [
        f"`{results['command']}`, gyromc {where['gyromc']}, {where['processor']}, {where['cores']} cores, "
        f"{took(results['times'])}.",
        "",
        "| experiment | judged | " + " | ".join(COLUMNS.values()) + " |",
        "|---" * (len(COLUMNS) + 2) + "|",
    ]
    for name, found in results["experiments"].items():
        verdicts = {claim["key"]: claim for claim in found["claims"]}
        cells = [
            f"{c['verdict']}, {number(c['value'])} {bounds(c['interval'])}".strip() if c else "–"
            for c in (verdicts.get(key) for key in COLUMNS)
        ]
        lines.append(f"| {name} | {judged(found)} | " + " | ".join(cells) + " |")
    lines += ["", _exact(results["experiments"])]
    rows = [
        f"| {name} | {h['about']} | {h['cases']} | {h['every']} | {h['below']} | {h['clearly_below']} | {h['clearly_above']} |"
        for name, found in results["experiments"].items()
        for h in found.get("sensitivity", {"groups": ()})["groups"]
    ]
    head = "| experiment | judged by | cases | ratio < 1 at every η | at the smallest η | clearly | clearly > 1 |"
    said = "Claim (i) over other data, test rows and starts, against the reversible baseline:"
    lines += ["", said, "", head, "|---" * 7 + "|", *rows] if rows else []
    return "\n".join(lines) + "\n"


def _exact(experiments: Mapping[str, Any]) -> str:
    """How far the RMSEs of the paper's dynamics are from their exact predictions, as a sentence; empty where none are known."""
    roles = [cells for found in experiments.values() for role, cells in found["cells"].items() if role != "sgld"]
    z = [cell["z"] for cells in roles for cell in cells if cell["z"] is not None]
    if not z:
        return ""
    mean = sum(x * x for x in z) / len(z)
    return f"In {len(z)} cells with an exact prediction the largest |z| is {max(map(abs, z)):.2f}, the mean of z² {mean:.2f}."

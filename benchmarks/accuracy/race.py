"""The race: processor seconds from a cold start to posterior means, and how wrong they are, for gyromc and other packages.

python benchmarks/accuracy/race.py [NAME ...] [--methods gyromc nuts mclmc nuts-sharpen] [--seeds 3] [--errors 0.01]
                                   [--first-seed 0] [--processes 1] [--out docs/measured/race.json] [--pages]

Every competitor runs on every posterior in a new process (`accuracy.contestants`) without a compilation cache. Its estimates are
compared with the references of `accuracy.make_references`. The score is processor seconds × mean squared error in posterior
variances, its geometric mean over seeds: what a method needs for an error of one standard deviation if its error falls like a
square root. Ratios are to NUTS; † and a number say how many runs warned of their own answer.
With several errors, or many seeds, the same command is the study of calibration: z = (estimate - truth) / claimed error.
Output: a table; rows in the JSON file, from which a second run resumes; with `--pages`, tables in docs/accuracy.md and README.
"""

import argparse
import concurrent.futures
import json
import math
import os
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    # run as a script, Python looks for modules beside it
    sys.path[:1] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

from accuracy.contestants import BEGAN, METHODS  # noqa: E402
from accuracy.make_references import REFERENCES, read_reference  # noqa: E402
from accuracy.posteriors import KINDS, POSTERIORS, posterior  # noqa: E402

__all__ = [
    "RACE",
    "calibration",
    "judged",
    "main",
    "means",
    "race",
    "race_of",
    "run_one",
    "standing",
    "summary",
    "text",
    "write_pages",
]

RACE = ROOT / "docs" / "measured" / "race.json"
ERROR, SEEDS = 0.01, 3  # asked of gyromc, in posterior standard deviations; repetitions
TINY = 1e-24  # a squared error of zero has no logarithm
LIMIT = 300.0  # seconds of wall time after which a competitor is stopped
FAR = 4.0  # standard errors: an estimate this far off should have been warned of
ROWS = 8  # of warnings that are stored
LABELS = {"gyromc": "gyromc", "nuts": "NumPyro NUTS", "mclmc": "BlackJAX MCLMC", "nuts-sharpen": "NUTS + gm.sharpen"}
FRESH = 400  # no setting was chosen with this seed or later ones: they are those of the calibration
Row = dict


# --- one competitor on one posterior ----------------------------------------------------------------------------------


def run_one(
    method: str, name: str, seed: int, error: float, cores: Sequence[int] | None = None, limit: float = LIMIT
) -> Row:
    """Start a process, wait for its answer, and judge it; a failure is a row with `failed`."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]),
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "JAX_PLATFORMS": "cpu",
        BEGAN: repr(time.time()),
    }
    pin = None if cores is None else lambda: os.sched_setaffinity(0, cores)
    command = [sys.executable, "-m", "accuracy.contestants", method, name, str(seed), repr(error)]
    row: Row = {"posterior": name, "method": method, "seed": seed, "asked": error}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=limit, preexec_fn=pin, check=False
        )
    except subprocess.TimeoutExpired:
        return row | {"failed": f"stopped after {limit:.0f} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        return row | {"failed": (done.stderr.strip().splitlines() or ["no answer"])[-1][:300]}
    answer = json.loads(lines[-1])
    kept = {"processor": answer["processor"], "wall": answer["wall"], "gradients": answer["gradients"]}
    kept["warnings"] = [text[:300] for text in answer["warnings"][:ROWS]]
    return (
        row
        | kept
        | judged(np.array(answer["mean"]), np.array(answer["error"]), read_reference(name), answer["warnings"])
    )


def judged(mean: np.ndarray, error: np.ndarray, truth: dict, warnings: list[str]) -> Row:
    """How wrong the estimates are, in posterior standard deviations, and how far beyond their claimed errors."""
    if len(mean) != len(truth["mean"]):
        return {"failed": "the reference is of other observables: make it again"}
    if not np.isfinite(mean).all():
        return {"failed": f"{int(np.sum(~np.isfinite(mean)))} estimates are not finite"}
    off, doubt = (mean - truth["mean"]) / truth["sd"], truth["error"] / truth["sd"]
    claimed = error / truth["sd"]
    z = off / np.sqrt(np.maximum(claimed**2 + doubt**2, 1e-24))
    # A claimed error of NaN says nothing: such a z does not enter means, and counts as far where the estimate is.
    known = np.isfinite(z)
    far = np.abs(np.where(known, z, off / 1e-3)) > FAR
    worst = int(np.argmax(np.abs(off)))
    return {
        "mean_square": _without_doubt(float(np.mean(off**2)), float(np.mean(doubt**2))),
        "median": float(np.median(np.abs(off))),
        "worst": float(np.abs(off[worst])),
        "worst_name": truth["names"][worst],
        "claimed": float(np.median(claimed[known])) if known.any() else None,
        "claimed_worst": float(np.max(claimed[known])) if known.any() else None,
        "z2": float(np.mean(z[known] ** 2)) if known.any() else None,
        "largest_z": float(np.max(np.abs(z[known]))) if known.any() else None,
        "far": int(np.sum(far)),
        "silent": 0 if warnings else int(np.sum(far)),
        "without_error": int(np.sum(~known)),
        "reference": float(np.sqrt(np.mean(doubt**2))),
    }


def _without_doubt(square: float, doubt: float) -> float:
    """The mean squared error without the part that the reference's own error explains; never less than half of what was seen."""
    return max(square - doubt, square / 2, TINY)


# --- all of them ------------------------------------------------------------------------------------------------------


def race(
    names: Sequence[str],
    methods: Sequence[str],
    seeds: int,
    errors: Sequence[float],
    path: Path | None,
    processes: int = 1,
    say: Callable[[str], None] = print,
    limit: float = LIMIT,
    first_seed: int = 0,
) -> list[Row]:
    """All rows; those that the file has are not measured again, unless they failed. Only gyromc is asked for several errors."""
    known = {_key(row): row for row in stored(path)}
    wanted = [
        (method, name, seed, error)
        for seed in range(first_seed, first_seed + seeds)
        for name in names
        for method in methods
        for error in (errors if method == "gyromc" else errors[:1])
    ]
    missing = [task for task in wanted if task not in known or "failed" in known[task]]
    slots: queue.SimpleQueue = queue.SimpleQueue()
    for cores in _shares(processes):
        slots.put(cores)

    def task(asked: tuple[str, str, int, float]) -> Row:
        cores = slots.get()
        try:
            return run_one(*asked, cores=cores, limit=limit)
        finally:
            slots.put(cores)

    pool = concurrent.futures.ThreadPoolExecutor(processes)
    try:
        for done in concurrent.futures.as_completed([pool.submit(task, asked) for asked in missing]):
            row = done.result()
            known[_key(row)] = row
            say(_line(row))
            if path is not None:
                _write(path, known.values())
    finally:
        # after Ctrl-C, what has not begun does not begin
        pool.shutdown(cancel_futures=True)
    return [known[task] for task in wanted]


def race_of(
    names: Sequence[str], quick: bool, path: Path | None, processes: int, say: Callable[[str], None]
) -> list[Row]:
    """The race as `gyromc bench accuracy --race` runs it; `quick`: gyromc and NUTS, one seed."""
    methods = ["gyromc", "nuts"] if quick else list(METHODS)
    return race(names or _with_reference(), methods, 1 if quick else SEEDS, [ERROR], path, processes, say)


def _with_reference() -> list[str]:
    """The posteriors whose answers are known."""
    known = json.loads(REFERENCES.read_text(encoding="utf-8"))["posteriors"] if REFERENCES.exists() else {}
    return [name for name in POSTERIORS if name in known]


def _shares(processes: int) -> list[list[int] | None]:
    """The cores of each process: all of them for one, else a share each, so that processor seconds stay comparable."""
    if processes == 1:
        return [None]
    cores = sorted(os.sched_getaffinity(0))
    each = max(1, len(cores) // processes)
    return [[cores[(k * each + i) % len(cores)] for i in range(each)] for k in range(processes)]


def _key(row: Row) -> tuple[str, str, int, float]:
    return row["method"], row["posterior"], row["seed"], row["asked"]


def stored(path: Path | None) -> list[Row]:
    """The rows of a file; none where there is no file."""
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path is not None and path.exists() else []


def _write(path: Path, rows: Iterable[Row]) -> None:
    from pages import write_measured

    order = list(POSTERIORS), list(METHODS)
    place = lambda row: (order[0].index(row["posterior"]), order[1].index(row["method"]), row["asked"], row["seed"])
    write_measured(path, {"rows": sorted(rows, key=place)}, extended=True)


def _line(row: Row) -> str:
    start = f"{row['posterior']:18} {row['method']:12} seed {row['seed']} error {row['asked']:g}:"
    if "failed" in row:
        return f"{start} {row['failed']}"
    z2 = "–" if row["z2"] is None else f"{row['z2']:.2f}"
    warned = f", {len(row['warnings'])} warnings" if row["warnings"] else ""
    return (
        f"{start} {row['processor']:.1f} s ({row['wall']:.1f} wall), off by {row['median']:.4f} and at most "
        f"{row['worst']:.4f} sd ({row['worst_name']}), z² {z2}, {row['silent']} silent{warned}"
    )


# --- what comes out ---------------------------------------------------------------------------------------------------


def summary(rows: Sequence[Row], name: str, method: str, error: float | None = None) -> Row | None:
    """One method on one posterior over its seeds; None where nothing was measured."""
    some = [row for row in rows if row["posterior"] == name and row["method"] == method]
    some = [row for row in some if error is None or row["asked"] == error]
    if not some:
        return None
    good = [row for row in some if "failed" not in row]
    if not good:
        return {"failed": some[0]["failed"], "runs": len(some), "failures": len(some)}
    average = lambda key: float(np.mean([row[key] for row in good]))
    zs = [row["z2"] for row in good if row["z2"] is not None]
    return {
        "runs": len(some),
        "failures": len(some) - len(good),
        "processor": average("processor"),
        "wall": average("wall"),
        "gradients": None if any(row["gradients"] is None for row in good) else average("gradients"),
        "rmse": math.sqrt(average("mean_square")),
        "median": average("median"),
        "worst": max(row["worst"] for row in good),
        "claimed": float(np.median([row["claimed"] for row in good if row["claimed"] is not None] or [math.nan])),
        "z2": float(np.mean(zs)) if zs else math.nan,
        "largest_z": max((row["largest_z"] for row in good if row["largest_z"] is not None), default=math.nan),
        "silent": sum(row["silent"] for row in good),
        "warned": sum(bool(row["warnings"]) for row in good),
        # The geometric mean: one stuck chain, of whichever method, does not decide a ratio alone.
        "score": math.exp(float(np.mean([math.log(row["processor"] * row["mean_square"]) for row in good]))),
    }


def standing(rows: Sequence[Row], method: str, error: float | None = None) -> dict[str, float]:
    """NUTS' score over the method's, by posterior; a method that never answered has none."""
    found = {}
    for name in POSTERIORS:
        ours, theirs = summary(rows, name, method, error if method == "gyromc" else None), summary(rows, name, "nuts")
        if ours and theirs and "score" in ours and "score" in theirs and ours["score"] > 0:
            found[name] = theirs["score"] / ours["score"]
    return found


def means(ratios: dict[str, float]) -> dict[str, float]:
    """Geometric means of the ratios by kind, and of all."""
    kinds = {name: POSTERIORS[name]().kind for name in ratios}
    groups = {kind: [ratio for name, ratio in ratios.items() if kinds[name] == kind] for kind in KINDS}
    groups["all"] = list(ratios.values())
    return {kind: float(np.exp(np.mean(np.log(some)))) for kind, some in groups.items() if some}


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.{digits}g}"


def _times(value: float | None) -> str:
    """A ratio with two digits and no exponent: 15,000."""
    return _number(value) if value is None or not value >= 100 else f"{float(f'{value:.2g}'):,.0f}"


def _seconds_cell(found: Row | None) -> list[str]:
    """Seconds and error of one method."""
    if found is None:
        return ["–", "–"]
    if "score" not in found:
        return [found["failed"].split(":")[0][:40], "–"]
    mark = "" if found["warned"] == 0 else f" †{found['warned']}"
    return [f"{found['processor']:.1f}", f"{_number(found['median'])} / {_number(found['worst'])}{mark}"]


def table(rows: Sequence[Row], error: float) -> str:
    """The scores against NUTS as Markdown: a line for each posterior, and the geometric means."""
    from pages import markdown

    methods = [method for method in LABELS if method != "nuts" and any(row["method"] == method for row in rows)]
    ratios = {method: standing(rows, method, error) for method in methods}
    lines = [
        [
            name,
            POSTERIORS[name]().kind,
            str(posterior(name).dim),
            *(_times(ratios[method].get(name)) for method in methods),
        ]
        for name in POSTERIORS
        if any(row["posterior"] == name for row in rows)
    ]
    for kind in (*KINDS, "all"):
        found = (_times(means(ratios[method]).get(kind)) for method in methods)
        lines.append([f"**{kind}**", "", "", *(f"**{ratio}**" for ratio in found)])
    return markdown(["posterior", "kind", "d", *(LABELS[method] for method in methods)], lines, left=2)


def seconds_table(rows: Sequence[Row], error: float) -> str:
    """Seconds and errors of every method as Markdown, a line for each posterior."""
    from pages import markdown

    methods = [method for method in LABELS if any(row["method"] == method for row in rows)]
    columns = ["posterior", *(text for method in methods for text in (f"{LABELS[method]}, s", "error, sd"))]
    lines = []
    for name in (name for name in POSTERIORS if any(row["posterior"] == name for row in rows)):
        found = (summary(rows, name, method, error if method == "gyromc" else None) for method in methods)
        lines.append([name, *(cell for one in found for cell in _seconds_cell(one))])
    return markdown(columns, lines)


def calibration(rows: Sequence[Row]) -> str:
    """How the claimed errors of gyromc compare with the actual ones: each posterior at the raced error, then all."""
    from pages import markdown

    ours = [row for row in rows if row["method"] == "gyromc"]
    columns = ["posterior", "mean z²", "largest z", f"z > {FAR:g} unwarned", "runs", "warned", "claimed, sd", "failed"]
    lines = []
    for name in (name for name in POSTERIORS if any(row["posterior"] == name for row in ours)):
        found = summary(ours, name, "gyromc", ERROR)
        if found is None or "score" not in found:
            continue
        counts = [str(found["silent"]), str(found["runs"]), str(found["warned"])]
        lines.append([name, _number(found["z2"]), _number(found["largest_z"]), *counts, _number(found["claimed"])])
        lines[-1].append(str(found["failures"]))
    for error in sorted({row["asked"] for row in ours}, reverse=True):
        some = [row for row in ours if row["asked"] == error]
        good = [row for row in some if "failed" not in row]
        z2 = float(np.mean([row["z2"] for row in good if row["z2"] is not None] or [math.nan]))
        largest = max((row["largest_z"] or 0.0 for row in good), default=math.nan)
        counts = [sum(row["silent"] for row in good), len(some), sum(bool(row["warnings"]) for row in good)]
        lines.append([f"**all, error {error:g}**", _number(z2), _number(largest), *map(str, counts), ""])
        lines[-1].append(str(len(some) - len(good)))
    return markdown(columns, lines)


def text(rows: Sequence[Row], error: float = ERROR) -> str:
    """The tables that the rows are enough for."""
    raced = [row for row in rows if row["method"] != "gyromc" or row["asked"] == error]
    parts = [table(raced, error), seconds_table(raced, error)]
    if not any(row["method"] == "nuts" for row in rows):
        parts = []
    return "\n\n".join([*parts, calibration(rows)] if any(row["method"] == "gyromc" for row in rows) else parts)


def short_table(rows: Sequence[Row], error: float) -> str:
    """Seconds and errors by kind of posterior, geometric means, for the README."""
    from pages import markdown

    methods = [method for method in LABELS if any(row["method"] == method for row in rows)]

    def cell(kind: str, method: str) -> str:
        asked = error if method == "gyromc" else None
        found = [summary(rows, name, method, asked) for name in POSTERIORS if kind in (POSTERIORS[name]().kind, "all")]
        good = [one for one in found if one and "score" in one]
        if not good:
            return "–"
        seconds, off = (math.exp(float(np.mean([math.log(one[key]) for one in good]))) for key in ("processor", "rmse"))
        return f"{seconds:.0f} s, {off:.1g}"

    counts = {kind: sum(POSTERIORS[name]().kind == kind for name in POSTERIORS) for kind in KINDS}
    counts["all"] = len(POSTERIORS)
    lines = [[f"{kind} ({count})", *(cell(kind, method) for method in methods)] for kind, count in counts.items()]
    return markdown(["posteriors", *(LABELS[method] for method in methods)], lines)


def write_pages(rows: Sequence[Row], error: float, docs: Path, readme: Path | None) -> None:
    """Put the tables between `race`, `race seconds` and `calibration` of docs/accuracy.md, and `race` of the README."""
    from pages import replace_between

    first = [row for row in rows if row["seed"] < FRESH and (row["method"] != "gyromc" or row["asked"] == error)]
    replace_between(docs / "accuracy.md", "race", table(first, error))
    replace_between(docs / "accuracy.md", "race seconds", seconds_table(first, error))
    replace_between(docs / "accuracy.md", "calibration", calibration([row for row in rows if row["seed"] >= FRESH]))
    if readme is not None:
        replace_between(readme, "race", short_table(first, error))


def main(given: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument(
        "--first-seed", type=int, default=0, help="a study on seeds that nothing was set with begins here"
    )
    parser.add_argument("--errors", nargs="+", type=float, default=[ERROR], help="asked of gyromc; the first is raced")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds after which a competitor is stopped")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--pages", action="store_true", help="write the tables of what --out holds")
    asked = parser.parse_args(given)
    wrong = [name for name in asked.names if name not in POSTERIORS]
    if wrong:
        parser.error(f"no posterior is named {', '.join(wrong)}. There is: {', '.join(POSTERIORS)}.")
    rows = race(
        asked.names or _with_reference(),
        asked.methods,
        asked.seeds,
        asked.errors,
        asked.out,
        asked.processes,
        limit=asked.limit,
        first_seed=asked.first_seed,
    )
    print(f"\n{text(rows, asked.errors[0])}")
    if asked.pages:
        write_pages(stored(asked.out), asked.errors[0], ROOT / "docs", ROOT / "README.md")


if __name__ == "__main__":
    main()

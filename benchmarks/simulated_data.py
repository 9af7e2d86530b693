"""Simulated data: ranks of true parameters, alarms of the checks, coverage of intervals of twelve rows.

    python benchmarks/simulated_data.py ranks|alarms|right|wrong|coverage [--only TEXT] [--out docs/measured/simulated-data.json]
        [--page docs/checked.md]

Each record is written as soon as it is there; what has a record is measured again only with `--again`.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy import stats

from gyromc.errors import GyromcWarning
from gyromc.regression.adequacy.checks import holm
from pages import markdown, replace_between, write_measured
from simulated.alarms import EVERY, GROUPED, alarms
from simulated.coverage import coverage
from simulated.ranks import STUDIES, exact_mixed_places, least_p_value
from simulated.verdicts import RIGHT, WRONG, right, wrong

ALARMS, ROWS = 200, (40, 150)
COVERAGE = 2000
REPEATED = 8  # data sets of a right design
SEEDS = range(9, 12)  # of known faults; rules were changed after runs with smaller ones


def ranks_record(family: str) -> dict:
    """p-values of uniform ranks, parameter by parameter."""
    places, simulations = STUDIES[family]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GyromcWarning)
        found = places(simulations, seed=1)
    p = [float(stats.kstest(column, "uniform").pvalue) for column in found.T]
    record = {"simulations": len(found), "p": p, "least": least_p_value(found)}
    if family == "linear with groups":
        exact = exact_mixed_places(simulations, seed=1)
        away = found - exact
        record["exact"] = least_p_value(exact)
        record["again"] = {"simulations": simulations, "least": least_p_value(places(simulations, seed=2))}
        record["away"] = (away.mean(axis=0) / (away.std(axis=0) / np.sqrt(len(away)))).tolist()
    return record


def alarms_record(case: str) -> dict:
    """How many of the right models are called wrong."""
    family, _, n = case.rpartition(", ")
    wrong, p = alarms(family, ALARMS, int(n))
    shares = {aspect.value: float(np.mean(np.array(values) < 0.05)) for aspect, values in p.items()}
    return {"wrong": wrong, "simulations": ALARMS, "shares": shares}


def coverage_record(case: str) -> dict:
    """The share of 95 % intervals that contain the truth, over all coefficients and for each."""
    held = coverage(COVERAGE)
    by_fit = held.mean(axis=1)  # coefficients of one fit share σ
    error = float(by_fit.std(ddof=1) / np.sqrt(len(by_fit)))
    return {"simulations": COVERAGE, "share": float(held.mean()), "error": error, "each": held.mean(axis=0).tolist()}


def ranks_page(rows: dict[str, dict]) -> str:
    """The table of ranks."""
    known = [name for name in STUDIES if name in rows]
    corrected = holm([rows[name]["least"] for name in known])
    lines = [
        [
            name,
            str(rows[name]["simulations"]),
            str(len(rows[name]["p"])),
            f"{rows[name]['least']:.3f}",
            f"{adjusted:.3f}",
        ]
        for name, adjusted in zip(known, corrected, strict=True)
    ]
    titles = ["family", "simulations", "parameters", "least p, corrected for parameters", "and for families (Holm)"]
    text = markdown(titles, lines)
    groups = rows.get("linear with groups")
    if groups:
        text += (
            f"\n\nLinear with groups: the exact ranks of the same {groups['simulations']} data sets, by quadrature, give p = "
            f"{groups['exact']:.3f}; the ranks found differ from these on average by {np.abs(groups['away']).max():.1f} standard "
            "errors at most. So what deviates is the draw of the truths, not the posterior"
            f"; {groups['again']['simulations']} others give p = {groups['again']['least']:.3f}."
        )
    return text


def alarms_page(rows: dict[str, dict]) -> str:
    """The table of false alarms."""
    lines = []
    for case, row in rows.items():
        family, _, n = case.rpartition(", ")
        worst = max(row["shares"], key=row["shares"].get)
        most = f"{worst} ({100 * row['shares'][worst]:.1f} %)"
        lines.append(
            [
                family,
                n,
                str(row["simulations"]),
                str(row["wrong"]),
                f"{100 * row['wrong'] / row['simulations']:.1f} %",
                most,
            ]
        )
    titles = ["family", "rows", "simulations", "rejected", "share", "check that most often has p < 0.05 by itself"]
    return markdown(titles, lines)


def right_page(rows: dict[str, dict]) -> str:
    """Right models by family, and by which check some were called wrong."""
    families: dict[str, list[dict]] = {}
    for case, row in rows.items():
        families.setdefault(case.partition(":")[0], []).append(row)
    lines = []
    for family, some in families.items():
        causes = sorted({cause for row in some for cause in row["causes"]})
        total = [sum(row[key] for row in some) for key in ("simulations", "wrong")]
        lines.append([family, str(len(some)), *map(str, total), ", ".join(causes) or "–"])
    every, called = (sum(row[key] for row in rows.values()) for key in ("simulations", "wrong"))
    lines.append(["all", str(len(rows)), str(every), f"{called} ({100 * called / every:.1f} %)", ""])
    table = markdown(["family", "designs", "data sets", "rejected", "by"], lines)
    grouped = sum("|" in case for case in rows)
    return f"{len(rows)} of {len(RIGHT)} designs have been measured, {grouped} with groups.\n\n{table}"


def wrong_page(rows: dict[str, dict]) -> str:
    """Known faults, and how many of them are named first."""
    lines = [[case, WRONG[case].family, str(row["simulations"]), str(row["named"])] for case, row in rows.items()]
    totals = [str(sum(row[key] for row in rows.values())) for key in ("simulations", "named")]
    return markdown(["fault", "fitted as", "data sets", "named first"], [*lines, ["all", "", *totals]])


def coverage_page(rows: dict[str, dict]) -> str:
    """The coverage, as a sentence."""
    (row,) = rows.values()
    return (
        f"Linear regression of 12 rows on 6 columns, {row['simulations']} simulations: 95 % intervals contain "
        f"{100 * row['share']:.1f} ± {100 * row['error']:.1f} % of the coefficients; {100 * min(row['each']):.1f} to "
        f"{100 * max(row['each']):.1f} % of each."
    )


CASES: dict[str, tuple[list[str], Callable, Callable]] = {
    "ranks": (list(STUDIES), ranks_record, ranks_page),
    "alarms": ([f"{family}, {n}" for n in ROWS for family in (*EVERY, *GROUPED)], alarms_record, alarms_page),
    "right": (list(RIGHT), lambda case: right(RIGHT[case], REPEATED, seed=1), right_page),
    "wrong": (list(WRONG), lambda case: wrong(WRONG[case], SEEDS), wrong_page),
    "coverage": (["12 rows, 6 columns"], coverage_record, coverage_page),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=list(CASES))
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--again", action="store_true", help="measure also what has a record")
    parser.add_argument("--out", type=Path, default=Path("docs/measured/simulated-data.json"))
    parser.add_argument("--page", type=Path, help="a Markdown page with markers of the study's name")
    options = parser.parse_args()
    kept = json.loads(options.out.read_text()) if options.out.exists() else {}
    rows = kept.setdefault(options.study, {})
    cases, measure, page = CASES[options.study]
    for case in cases:
        if options.only not in case or (case in rows and not options.again):
            continue
        began = time.perf_counter()
        rows[case] = measure(case)
        write_measured(options.out, kept, extended=True)
        print(f"{case}: {rows[case]}, {time.perf_counter() - began:.0f} s", flush=True)
    if options.page and rows:
        replace_between(options.page, options.study, page(rows))


if __name__ == "__main__":
    main()

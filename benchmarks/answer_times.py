"""How long `predict` and `estimate` take: every call in the documentation's examples, and the paper's twelve experiments.

    python benchmarks/answer_times.py [--limit 60] [--only examples experiments]

Prints one row per call, then the 95th percentile of each kind, in seconds and in seconds of the processor,
the fairer number on a busy machine. A call that takes longer than the limit is stopped and counts with it. Everything runs in
one process, so that a compiled function is compiled once.
"""

import argparse
import ast
import contextlib
import os
import re
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import gyromc as gm
from gyromc.paper import CATALOGUE

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
STEPS, CHAINS = 4000, 8  # of the runs that are estimated from


class TooLong(Exception):
    """A call took longer than the limit."""


class Clock:
    """Times calls by place and kind, and stops them at the limit."""

    def __init__(self, limit: int):
        self.limit, self.place = limit, ""
        self.calls: list[tuple[str, str, float, float, str]] = []

    def timed(self, kind: str, function):
        def call(*arguments, **options):
            began, busy, note = time.perf_counter(), time.process_time(), ""
            signal.alarm(self.limit)
            try:
                return function(*arguments, **options)
            except TooLong:
                note = "stopped"
                raise
            except Exception as error:
                note = type(error).__name__
                raise
            finally:
                signal.alarm(0)
                spent = time.perf_counter() - began, time.process_time() - busy
                self.calls.append((self.place, kind, *spent, note))
                print(
                    f"| {spent[0]:.2f} | {spent[1]:.2f} | {kind} | {self.place} | {note} |",
                    file=sys.__stdout__,
                    flush=True,
                )

        return call


def examples() -> Iterator[tuple[str, str]]:
    """The examples that predict or estimate, by place: docstrings, and whole pages as a reader would type them."""
    for path in sorted((ROOT / "src" / "gyromc").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                for match in BLOCK.finditer(ast.get_docstring(node) or ""):
                    yield f"{path.stem}.{getattr(node, 'name', 'module')}", match.group(2)
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        yield path.name, "\n".join(match.group(2) for match in BLOCK.finditer(path.read_text(encoding="utf-8")))


def run_examples(clock: Clock) -> None:
    """Execute every example that calls one of the two."""
    for place, code in examples():
        if "predict(" in code or "estimate(" in code:
            clock.place = place
            with (
                tempfile.TemporaryDirectory() as folder,
                contextlib.chdir(folder),
                Path(os.devnull).open("w") as nothing,
                contextlib.suppress(TooLong),
                contextlib.redirect_stdout(nothing),
            ):
                exec(compile(code, place, "exec"), {"__name__": "__main__"})


def run_experiments(clock: Clock) -> None:
    """Predict each dynamics of each experiment, for the panels' observable and for all, and estimate from a short run."""
    for name, experiment in CATALOGUE.items():
        for role in experiment.roles:
            plan = experiment.plan(experiment.step_sizes[-1], role, num_chains=CHAINS)
            first = experiment.problem.primary
            panel = plan.replace(observables={first: plan.observables[first]})
            short = plan.replace(num_steps=STEPS)
            for what, call in (
                (f"h, {role}", lambda panel=panel: gm.predict(panel)),
                (f"{len(plan.observables)} observables, {role}", lambda plan=plan: gm.predict(plan)),
                (f"a short run, {role}", lambda short=short: gm.estimate(gm.run(short, progress=False))),
            ):
                clock.place = f"{name}: {what}"
                with contextlib.suppress(TooLong):
                    call()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=60)
    parser.add_argument("--only", nargs="+", choices=("examples", "experiments"), default=("examples", "experiments"))
    options = parser.parse_args()
    clock = Clock(options.limit)

    def stop(*_):
        raise TooLong

    signal.signal(signal.SIGALRM, stop)
    warnings.simplefilter("ignore")
    gm.predict, gm.estimate = clock.timed("predict", gm.predict), clock.timed("estimate", gm.estimate)
    print("| seconds | of the processor | call | where | |\n|---|---|---|---|---|")
    for part in options.only:
        (run_examples if part == "examples" else run_experiments)(clock)
    for kind in ("predict", "estimate"):
        mine = [call for call in clock.calls if call[1] == kind]
        for what, k in (("seconds", 2), ("seconds of the processor", 3)) if mine else ():
            times = [float(call[k]) for call in mine]
            p95, over = np.quantile(times, 0.95), sum(seconds >= options.limit for seconds in times)
            print(f"{kind}: {len(times)} calls, {what}: p95 {p95:.1f}, largest {max(times):.1f}, {over} over the limit")


if __name__ == "__main__":
    main()

"""Coverage of 95 % intervals: how often they contain the truth. Five problems with known answers, 1000 runs each.

    python benchmarks/interval_coverage.py [--runs 1000] [--out docs/measured/coverage.json] [--page docs/intervals.md]

All chains of a case run at once, as one plan; each chain, or each group of eight, is then treated as a run of its own and
passed to `gyromc.estimate`. Writes the JSON file, and the table between the two markers of the page.
"""

import collections
import concurrent.futures
import copy
import dataclasses
import math
import multiprocessing
import time
import warnings

import numpy as np

import gyromc as gm
from gyromc.engines import loop
from gyromc.results import Run
from pages import coverage_options, markdown, replace_between, save_rows

J1 = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])
TURN = np.array([[0.0, -1.0], [1.0, 0.0]])
BEND = 0.5  # of the banana
FIELDS = ("problem", "dynamics", "case", "observable")  # of a row, which name it


@dataclasses.dataclass(frozen=True)
class Problem:
    """A target with known expectations, two dynamics, and the length of its chains."""

    name: str
    target: gm.targets.Target
    rotation: np.ndarray
    observables: dict
    truth: dict[str, float]
    step_size: float
    num_steps: int  # of a single chain; one of eight makes a quarter
    oracle: gm.oracles.Oracle = dataclasses.field(default_factory=gm.oracles.Exact)
    predictable: bool = True  # whether `predict` knows its bias by formula

    def plan(self, rotated: bool, chains: int, steps: int, seed: int) -> gm.Plan:
        J = self.rotation if rotated else np.zeros_like(self.rotation)
        return gm.Plan(
            target=self.target,
            dynamics=gm.dynamics.nonreversible(J) if rotated else gm.dynamics.overdamped(len(J)),
            oracle=self.oracle,
            observables=self.observables,
            step_size=self.step_size,
            num_steps=steps,
            num_chains=chains,
            seed=seed,
        )


def regression() -> gm.targets.LinearRegression:
    rng = np.random.default_rng(7)
    X = rng.uniform(-0.5, 0.5, (128, 3))
    return gm.targets.LinearRegression(X, X @ [1.0, -1.0, 0.5] + rng.standard_normal(128), prior_scale=2.0)


def bent(theta):
    """log density of x ~ N(0, 1), y | x ~ N(BEND (x² - 1), 1)."""
    return -0.5 * theta[0] ** 2 - 0.5 * (theta[1] - BEND * (theta[0] ** 2 - 1)) ** 2


def cosine_square(beta: float) -> float:
    """E θ₁² under exp(-½t² - β cos t), by the trapezoidal rule, which is exact to rounding here."""
    t = np.linspace(-12, 12, 200_001)
    weight = np.exp(-0.5 * t**2 - beta * np.cos(t))
    return float(np.sum(t**2 * weight) / np.sum(weight))


def problems() -> list[Problem]:
    linear, square, tanh = gm.observables.linear, gm.observables.square, gm.observables.tanh
    target = regression()
    K, m = target.gaussian()
    half = math.sqrt(0.5)
    return [
        Problem(
            "linear regression, mini-batches",
            target,
            0.3377 * J1,
            {"β₁-β₂": linear([half, -half, 0.0]), "β₁²": square([1.0, 0.0, 0.0])},
            {"β₁-β₂": half * float(m[0] - m[1]), "β₁²": float(m[0] ** 2 + np.linalg.inv(K)[0, 0])},
            step_size=0.002,
            num_steps=16384,
            oracle=gm.oracles.Minibatch(32),
        ),
        Problem(
            "isotropic Gaussian",
            gm.targets.Quadratic([1.0, 1.0, 1.0]),
            J1,
            {"θ₁-θ₂": linear([half, -half, 0.0]), "θ₁²": square([1.0, 0.0, 0.0])},
            {"θ₁-θ₂": 0.0, "θ₁²": 1.0},
            step_size=0.05,
            num_steps=8192,
            oracle=gm.oracles.Gaussian(1.0),
        ),
        Problem(
            "Gaussian of condition 100",
            gm.targets.Quadratic([1.0, 100.0]),
            3 * TURN,
            {"θ₁+θ₂": linear([1.0, 1.0]), "θ₁²": square([1.0, 0.0])},
            {"θ₁+θ₂": 0.0, "θ₁²": 1.0},
            step_size=0.0025,
            num_steps=131072,
        ),
        Problem(
            "cosine target",
            gm.targets.CosinePerturbed(3, 1.2),
            J1,
            {"tanh": tanh([half, -half, 0.0]), "θ₁²": square([1.0, 0.0, 0.0])},
            {"tanh": 0.0, "θ₁²": cosine_square(1.2)},
            step_size=0.05,
            num_steps=16384,
            oracle=gm.oracles.Gaussian(1.0),
        ),
        Problem(
            "banana",
            gm.targets.LogDensity(bent),
            TURN,
            {"x": linear([1.0, 0.0]), "y": linear([0.0, 1.0]), "x²": square([1.0, 0.0])},
            {"x": 0.0, "y": 0.0, "x²": 1.0},
            step_size=0.05,
            num_steps=8192,
            predictable=False,
        ),
    ]


def fewer_chains(plan: gm.Plan, count: int) -> gm.Plan:
    """The same plan with fewer chains."""
    small = copy.copy(plan)
    object.__setattr__(small, "num_chains", count)
    return small


def part(run: Run, plan: gm.Plan, chains: slice) -> Run:
    """Some chains of a run, as a run of their own."""
    state = run.state
    small = dataclasses.replace(
        state,
        z=state.z[chains],
        high=state.high[chains],
        low=state.low[chains],
        failed_at=state.failed_at[chains],
        snapshots={k: v[chains] for k, v in state.snapshots.items()},
    )
    draws = None if run.draws is None else run.draws[chains]
    return dataclasses.replace(run, plan=plan, state=small, draws=draws, resume=None)


@dataclasses.dataclass(frozen=True)
class Case:
    """The number of chains of a run, and the arguments of `estimate`."""

    name: str
    chains: int
    method: str
    shorter: int = 1  # how many times less steps


CASES = (
    Case("1 chain", 1, "auto"),
    Case("8 chains", 8, "auto", shorter=4),
    Case("8 chains, replicate", 8, "replicate chains", shorter=4),
)


def study(problem: Problem, rotated: bool, case: Case, runs: int, seed: int) -> list[dict]:
    """One row per observable: coverage, and statistics of the intervals."""
    began = time.perf_counter()
    plan = problem.plan(rotated, runs * case.chains, problem.num_steps // case.shorter, seed)
    loop.SETTINGS = dataclasses.replace(loop.SETTINGS, blocks=(128, 128))  # chains are judged in small groups
    everything, small = gm.run(plan, progress=False), fewer_chains(plan, case.chains)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # pairs share their noise: more of them would not change what a single run is corrected by
        bias = gm.estimate(everything, bias="predict" if problem.predictable else "richardson").biases
    found = collections.defaultdict(list)
    warned = 0
    for i in range(runs):
        chains = slice(i * case.chains, (i + 1) * case.chains)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            estimates = gm.estimate(part(everything, small, chains), method=case.method, bias=bias)
        warned += bool(caught)
        for name, row in estimates.items():
            found[name].append(row)
    seconds = time.perf_counter() - began
    return [summary(problem, rotated, case, name, rows, plan, warned, seconds) for name, rows in found.items()]


def shares(rows: list, truth: float) -> dict[str, float]:
    """The shares of intervals that contain the truth, with and without regard to the bias, and of those that were corrected."""
    inside = lambda pair: pair[0] <= truth <= pair[1]
    return {
        "coverage": sum(inside(row.recommended) for row in rows) / len(rows),
        "coverage_ignoring_bias": sum(inside(row.interval) for row in rows) / len(rows),
        "corrected_share": sum(row.bias_matters for row in rows) / len(rows),
    }


def summary(problem, rotated, case, name, rows, plan, warned, seconds) -> dict:
    truth, runs = problem.truth[name], len(rows)
    methods = collections.Counter(str(row.method) for row in rows)
    errors = np.array([row.std_error for row in rows])
    means = np.array([row.mean for row in rows])
    return {
        "problem": problem.name,
        "dynamics": "non-reversible" if rotated else "reversible",
        "case": case.name,
        "observable": name,
        **shares(rows, truth),
        "methods": dict(methods),
        "bias_method": rows[0].bias_method,
        "bias": float(np.mean([row.bias for row in rows])),
        "std_error": float(math.sqrt(np.mean(errors**2))),
        "measured_bias": float(means.mean() - truth),
        "measured_bias_error": float(means.std() / math.sqrt(runs)),
        "error_ratio": float(math.sqrt(np.mean(errors**2)) / means.std(ddof=1)),
        "dof": float(np.median([row.dof for row in rows])),
        "runs": runs,
        "step_size": plan.step_size,
        "num_steps": plan.num_steps,
        "chains": case.chains,
        "warned": warned,
        "seconds": round(seconds, 1),
    }


def table(rows: list[dict]) -> str:
    """A row of Markdown for each problem and dynamics: the least and the largest coverage of its cases."""
    groups: dict[tuple[str, str], list[dict]] = {}
    for row in rows:
        groups.setdefault((row["problem"], row["dynamics"]), []).append(row)
    columns = ["problem", "dynamics", "cases", "largest bias, in std. errors", "coverage", "bias ignored"]
    span = lambda found, field: " to ".join(f"{100 * f(row[field] for row in found):.1f}" for f in (min, max)) + " %"
    bias = lambda found: max(abs(row["measured_bias"] / row["std_error"]) for row in found)
    lines = [
        [*key, str(len(found)), f"{bias(found):.2f}", span(found, "coverage"), span(found, "coverage_ignoring_bias")]
        for key, found in groups.items()
    ]
    return markdown(columns, lines, left=2)


def _place(row: dict) -> tuple[int, bool, int]:
    """The sort key of a row."""
    problem = [one.name for one in problems()].index(row["problem"])
    return problem, row["dynamics"] != "reversible", [case.name for case in CASES].index(row["case"])


def line(row: dict) -> str:
    """One row for the terminal."""
    return (
        f"{row['problem'][:18]:18} {row['dynamics'][:8]:8} {row['case'][:24]:24} {row['observable']:6} "
        f"{100 * row['coverage']:5.1f} ({100 * row['coverage_ignoring_bias']:5.1f}) bias {row['bias']:.4f} "
        f"seen {row['measured_bias']:.4f} ± {row['measured_bias_error']:.4f}, error ratio {row['error_ratio']:.3f} "
        f"dof {row['dof']:.0f} {row['methods']} warned {row['warned']} {row['seconds']} s"
    )


def work(job: tuple[int, bool, int, int]) -> list[dict]:
    """Run one case; called in a separate process."""
    number, rotated, place, runs = job
    return study(problems()[number], rotated, CASES[place], runs, 1000 * number + 100 * rotated + 10 * place)


def jobs(runs: int, only: str) -> list[tuple[int, bool, int, int]]:
    found = []
    for number, problem in enumerate(problems()):
        for rotated in (False, True):
            for place, case in enumerate(CASES):
                if only in f"{problem.name}, {case.name}":
                    found.append((number, rotated, place, runs))
    return found


def main() -> None:
    parser = coverage_options(__doc__, 1000)
    parser.add_argument("--only", default="", help="problems or cases whose name contains this")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    began, rows, everything = time.perf_counter(), [], []
    with concurrent.futures.ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(work, job) for job in jobs(options.runs, options.only)]
        for done in concurrent.futures.as_completed(waiting):
            rows += done.result()
            for row in done.result():
                print(line(row), flush=True)
            everything = (
                save_rows(options.out, done.result(), FIELDS, _place) if options.out else sorted(rows, key=_place)
            )
    outside = [row for row in rows if not 0.93 <= row["coverage"] <= 0.97]
    seconds = time.perf_counter() - began
    print(f"{len(rows)} intervals, {len(outside)} of them outside 93 to 97 %, {seconds:.0f} s")
    if options.page:
        replace_between(options.page, "coverage", table(everything))


if __name__ == "__main__":
    main()

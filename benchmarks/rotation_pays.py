"""Where rotation pays, measured: gyromc with a rotation and without one, at equal gradients and equal bias.

    python benchmarks/rotation_pays.py [ROW …] [--out docs/measured/rotation.json] [--page docs/concepts/rotation.md]

Every row compares squared errors of many independent runs or chains with the truth, which is exact or comes from a run with a
fifty times the gradients. Its gain is the ratio of the mean squared errors without and with the rotation, in posterior standard
deviations of each observable, ± its standard error by a jackknife over the runs. Rows that are named are measured again and
replace those of the file; the table of the page is written from the file.
"""

import argparse
import dataclasses
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import gyromc as gm
from concept_figures import EFFECTS, ERRORS, eight_schools
from gyromc.coordinates import pulled
from gyromc.prediction.rotations import compare_rotations
from pages import markdown, measured_rows, replace_between, write_measured

ROOT = Path(__file__).parent.parent
GROUPS = 20  # of runs, left out one after the other by the jackknife
EFFECTS_OF_SCHOOLS = {f"effect {j + 1}": (lambda t, j=j: t[0] + jnp.exp(t[1]) * t[2 + j]) for j in range(8)}
SCHOOLS = {"μ": lambda t: t[0], "τ": lambda t: jnp.exp(t[1]), **EFFECTS_OF_SCHOOLS}


@dataclasses.dataclass(frozen=True)
class Arms:
    """Errors in posterior standard deviations, runs × observables, without and with the rotation.

    - `settings`: of both arms, in words.
    - `gradients`: of one run.
    """

    without: np.ndarray
    rotated: np.ndarray
    gradients: int
    settings: tuple[str, str] = ("", "")

    def row(self, where: str, what: str, columns: slice = slice(None), centred: bool = False) -> dict:
        """The gain over some observables; `centred`: of the variances, where a bias of both arms is shown beside it."""
        arms = [arm[:, columns] for arm in (self.without, self.rotated)]
        away = [arm - arm.mean(axis=0) if centred else arm for arm in arms]
        logs = lambda kept: float(np.log(np.mean(away[0][kept[0]] ** 2) / np.mean(away[1][kept[1]] ** 2)))
        group = [np.arange(len(arm)) * GROUPS // len(arm) for arm in arms]
        left_out = np.array([logs([g != k for g in group]) for k in range(GROUPS)])
        gain = float(np.exp(logs([slice(None)] * 2)))
        error = gain * float(np.sqrt((GROUPS - 1) * np.var(left_out)))
        bias = [float(np.max(np.abs(arm.mean(axis=0)))) for arm in arms]
        noise = [float(np.max(arm.std(axis=0, ddof=1)) / np.sqrt(len(arm))) for arm in arms]
        return {
            "where": where, "what": what, "gain": gain, "error": error, "worst_bias": bias, "bias_error": noise,
            "runs": [len(arm) for arm in arms], "gradients": self.gradients, "settings": self.settings,
        }  # fmt: skip


# --- the estimator


def schools_truth() -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of `SCHOOLS`, by quadrature over τ: given τ everything else is normal."""
    y, s = np.array(EFFECTS), np.array(ERRORS)
    x, w = np.polynomial.legendre.leggauss(4000)
    tau = np.exp((x + 1) / 2 * (np.log(2000) - np.log(1e-6)) + np.log(1e-6))
    v = s**2 + tau[:, None] ** 2
    precision = 1 / 25 + np.sum(1 / v, axis=1)
    mu = np.sum(y / v, axis=1) / precision
    log = -np.log1p((tau / 5) ** 2) + np.log(tau) - 0.5 * np.sum(np.log(v), axis=1) - 0.5 * np.log(precision)
    log = log - 0.5 * np.sum(y**2 / v, axis=1) + 0.5 * precision * mu**2
    weight = w * np.exp(log - log.max())
    weight /= weight.sum()
    share = tau[:, None] ** 2 / v
    means = np.column_stack([mu, tau, share * y + (1 - share) * mu[:, None]])
    inner = (1 - share) * tau[:, None] ** 2 + (1 - share) ** 2 / precision[:, None]
    inner = np.column_stack([1 / precision, np.zeros_like(tau), inner])
    mean = weight @ means
    return mean, np.sqrt(weight @ (inner + (means - mean) ** 2))


def estimator(target, observables, truth, sd, gradients: int, seeds: int, start=None) -> Arms:
    """`gm.expect` with and without rotated fields: the same draws, the same seeds."""
    errors = {False: [], True: []}
    for seed in range(seeds):
        for rotations, found in errors.items():
            given = {"gradients": gradients, "start": start, "seed": seed, "rotations": rotations, "progress": False}
            answer = gm.expect(target, observables, error=1e-9, seconds=1e4, **given)
            found.append([answer[name].mean for name in observables])
    return Arms(*((np.array(errors[arm]) - truth) / sd for arm in (False, True)), gradients)


def schools() -> list[dict]:
    mean, sd = schools_truth()
    arms = estimator(gm.targets.LogDensity(eight_schools), SCHOOLS, mean, sd, 40_000, 80, np.zeros(10))
    where = "estimator, eight schools"
    return [arms.row(where, "the eight effects", slice(2, None)), arms.row(where, "μ and τ", slice(0, 2))]


def heart() -> tuple[gm.targets.LogisticRegression, dict]:
    data = gm.datasets.heart_split(0)
    risks = {f"patient {i}": gm.observables.predictive(x) for i, x in enumerate(data.X_test[:10])}
    return gm.targets.LogisticRegression(data.X_train, data.y_train), risks


def heart_risks() -> list[dict]:
    target, risks = heart()
    known = gm.expect(target, risks, error=1e-9, seconds=1e4, gradients=400_000, seed=999, progress=False)
    mean, sd = (np.array([getattr(row, field) for row in known.values()]) for field in ("mean", "sd"))
    arms = estimator(target, risks, mean, sd, 8_000, 40)
    return [arms.row("estimator, heart disease", "ten predictive probabilities")]


# --- the chain


def chain_errors(plan: gm.Plan, truth: np.ndarray, sd: np.ndarray) -> np.ndarray:
    run = gm.run(plan, progress=False)
    return (np.stack([run[name].averages for name in plan.observables], axis=1) - truth) / sd


def coordinates_and_squares(d: int) -> dict:
    every = np.eye(d)
    means = {f"m{i}": gm.observables.linear(every[i]) for i in range(d)}
    return means | {f"s{i}": gm.observables.square(every[i]) for i in range(d)}


def gaussian(d: int, condition: float, steps: int, chains: int) -> list[dict]:
    """D = I without a rotation and with `equal_bias`, at steps where a variance is off by 10 % at worst."""
    K = np.exp(np.linspace(0, np.log(condition), d))
    table = compare_rotations(K)
    truth, sd = np.concatenate([np.zeros(d), 1 / K]), np.concatenate([K**-0.5, 2**0.5 / K])
    begin = np.random.default_rng(1).standard_normal((chains, d)) / np.sqrt(K)
    found, names = [], ("no rotation", "equal bias")
    for seed, name in enumerate(names):
        plan = gm.Plan(
            target=gm.targets.Quadratic(K), dynamics=table[name].dynamics, step_size=table[name].step_size, num_steps=steps,
            num_chains=chains, start=begin, seed=seed, observables=coordinates_and_squares(d),
        )  # fmt: skip
        found.append(chain_errors(plan, truth, sd))
    arms = Arms(*found, steps, tuple(f"η = {table[name].step_size:.3g}" for name in names))
    where = f"chain, D = I: Gaussian, d = {d}, condition {condition:g}"
    return [arms.row(where, "means", slice(0, d)), arms.row(where, "squares", slice(d, None), centred=True)]


def moments_of_heart(target) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Truth and standard deviations of θ and θ², and the covariance, from a long run."""
    names = coordinates_and_squares(target.dim)
    known = gm.expect(target, names, error=1e-9, seconds=1e4, gradients=800_000, seed=999, progress=False)
    mean, sd = (np.array([getattr(row, field) for row in known.values()]) for field in ("mean", "sd"))
    rows = known.draws.reshape(-1, target.dim)
    return mean, sd, np.cov(rows, rowvar=False, aweights=np.maximum(np.ravel(known.weights), 0))


def heart_chain() -> list[dict]:
    target, _ = heart()
    mean, sd, _ = moments_of_heart(target)
    table = compare_rotations(gm.Model(target).precision, excess=0.05)
    found, names, d = [], ("no rotation", "equal bias"), target.dim
    for seed, name in enumerate(names):
        plan = gm.Plan(
            target=target, dynamics=table[name].dynamics, step_size=table[name].step_size, num_steps=4000, burn_in=500,
            num_chains=600, start=mean[:d], seed=seed, observables=coordinates_and_squares(d),
        )  # fmt: skip
        found.append(chain_errors(plan, mean, sd))
    arms = Arms(*found, 4500, tuple(f"η = {table[name].step_size:.3g}" for name in names))
    where = "chain, D = I: logistic regression, heart disease"
    return [arms.row(where, "means", slice(0, d), True), arms.row(where, "squares", slice(d, None), True)]


def heart_whitened() -> list[dict]:
    """D = the posterior's covariance, balanced noise, each arm at its best step for the squared error of the means."""
    target, _ = heart()
    mean, sd, C = moments_of_heart(target)
    d, R = target.dim, np.linalg.cholesky(C)
    J = R @ np.asarray(gm.dynamics.nonreversible(gm.dynamics.rotations(d)).Q) @ R.T
    rows = []
    for martingale in (False, True):
        arms, settings = [], []
        for Q, steps in ((0, (1.0, 0.8, 0.6)), (J, (0.5, 0.4, 0.3))):
            errors = {}
            for eta in steps:
                plan = gm.Plan(
                    target=target, dynamics=gm.dynamics.general(C, Q), scheme="balanced", step_size=eta, num_steps=500,
                    burn_in=20, num_chains=1000, start=mean[:d], observables=coordinates_and_squares(d), martingale=martingale,
                )  # fmt: skip
                errors[eta] = chain_errors(plan, mean, sd)
            best = min(steps, key=lambda eta, errors=errors: np.mean(np.log(np.mean(errors[eta][:, :d] ** 2, axis=0))))
            arms.append(errors[best])
            settings.append(f"η = {best:g}")
        found = Arms(*arms, 520, tuple(settings))
        where = f"chain, whitened, balanced noise{', martingale' if martingale else ''}: heart disease"
        rows += [found.row(where, "means", slice(0, d)), found.row(where, "squares", slice(d, None))]
    return rows


def schools_chain() -> list[dict]:
    """Coordinates learned from draws and whitened, balanced noise with the martingale, at a step that the bias of τ limits."""
    (mean, sd), eta = schools_truth(), 0.05
    target = gm.targets.LogDensity(eight_schools)
    answer = gm.expect(target, gradients=20_000, error=1e-9, seconds=1e4, start=np.zeros(10), seed=5, progress=False)
    rows = answer.draws.reshape(-1, 10)
    learned = gm.coordinates.learn(rows)
    z = learned.zs(rows)
    white = gm.coordinates.Linear(np.linalg.cholesky(np.cov(z, rowvar=False)), z.mean(axis=0))
    coordinates = gm.coordinates.Compose(learned, white)
    gradients = pulled(target, coordinates).gradients(white.zs(z))
    scheme = gm.schemes.balanced(gradients.T @ gradients / len(gradients))
    begin, found = rows[np.random.default_rng(3).choice(len(rows), 400)], []
    for rate in (0.0, 1.0):
        plan = gm.Plan(
            target=target, coordinates=coordinates, dynamics=gm.dynamics.nonreversible(gm.dynamics.rotations(10, rate)),
            scheme=scheme, step_size=eta, num_steps=4000, burn_in=100, num_chains=400, start=begin, observables=SCHOOLS,
            martingale=True, seed=int(rate),
        )  # fmt: skip
        found.append(chain_errors(plan, mean, sd))
    arms, where = Arms(*found, 4100, (f"η = {eta:g}",) * 2), "chain, learned coordinates, balanced noise: eight schools"
    return [arms.row(where, "the eight effects", slice(2, None), True), arms.row(where, "μ and τ", slice(0, 2), True)]


def schools_momenta(leimkuhler_matthews: float, hfhr_splitting: float, chains: int) -> list[np.ndarray]:
    """Errors of single chains, whitened: without a rotation, and with that of momenta, at the given steps."""
    (mean, sd), target = schools_truth(), gm.targets.LogDensity(eight_schools)
    answer = gm.expect(target, gradients=40_000, error=1e-9, seconds=1e4, start=np.zeros(10), seed=5, progress=False)
    rows = answer.draws.reshape(-1, 10)
    C = np.cov(rows, rowvar=False)
    begin = rows[np.random.default_rng(3).choice(len(rows), chains)]
    arms = [
        ("leimkuhler_matthews", leimkuhler_matthews, gm.dynamics.general(C, 0)),
        ("hfhr_splitting", hfhr_splitting, gm.dynamics.hfhr(10, 0.01, 1.0, preconditioner=C)),
    ]
    return [
        chain_errors(
            gm.Plan(
                target=target, dynamics=dynamics, scheme=scheme, step_size=eta, num_steps=600, burn_in=22,
                num_chains=chains, start=begin, observables=SCHOOLS, martingale=True, seed=seed,
            ), mean, sd,
        )
        for seed, (scheme, eta, dynamics) in enumerate(arms)
    ]  # fmt: skip


def schools_tuned() -> list[dict]:
    """What `gm.tune` tries: the best scheme without a rotation, and HFHR's splitting, whitened, at the steps that it chose."""
    steps = {"leimkuhler_matthews": 0.183, "hfhr_splitting": 0.273}
    # a tuned plan for 20,000 gradients has 32 chains
    found = [errors.reshape(50, 32, -1).mean(axis=1) for errors in schools_momenta(**steps, chains=1600)]
    arms = Arms(*found, 32 * 622, tuple(f"{scheme}, η = {eta:g}" for scheme, eta in steps.items()))
    where = "chain, whitened, rotation with momenta (what `gm.tune` chooses): eight schools"
    return [arms.row(where, "the eight effects", slice(2, None)), arms.row(where, "μ and τ", slice(0, 2))]


def schools_equal() -> list[dict]:
    """The same at steps where both are biased alike, in their worst observable, τ."""
    steps = {"leimkuhler_matthews": 0.13, "hfhr_splitting": 0.385}
    settings = tuple(f"{scheme}, η = {eta:g}" for scheme, eta in steps.items())
    arms = Arms(*schools_momenta(**steps, chains=3200), 622, settings)
    where = "chain, whitened, rotation with momenta, at equal bias: eight schools"
    return [arms.row(where, "the eight effects", slice(2, None), True), arms.row(where, "μ and τ", slice(0, 2), True)]


ROWS: dict[str, Callable[[], list[dict]]] = {
    "schools": schools,
    "heart-risks": heart_risks,
    "gaussian-50": lambda: gaussian(14, 50.0, 20_000, 400),
    "gaussian-10000": lambda: gaussian(20, 1e4, 400_000, 60),
    "heart-chain": heart_chain,
    "schools-tuned": schools_tuned,
    "schools-equal": schools_equal,
    "schools-chain": schools_chain,
    "heart-whitened": heart_whitened,
}


def table(rows: list[dict]) -> str:
    """The rows as Markdown, the largest bias of both arms in posterior standard deviations."""
    cells = [
        [
            row["where"], row["what"], f"{row['gain']:.3g} ± {row['error']:.2g}",
            " / ".join(f"{b:.2g}" for b in row["worst_bias"]), f"{row['gradients']:,}", f"{min(row['runs'])}",
        ]
        for row in rows
    ]  # fmt: skip
    columns = ["where", "of what", "gain of the rotation", "worst bias, without / with", "gradients a run", "runs"]
    return markdown(columns, cells, left=2)


def main() -> None:
    """Measure rows, and write file and page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--out", type=Path, default=ROOT / "docs/measured/rotation.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs/concepts/rotation.md")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in options.rows or ROWS:
        began = time.process_time()
        found = [{"row": name, **row} for row in ROWS[name]()]
        seconds = time.process_time() - began
        for row in found:
            row["processor_seconds"] = seconds
            print(f"{row['where']}, {row['what']}: {row['gain']:.3g} ± {row['error']:.2g}, {seconds:.0f} s", flush=True)
        kept = [row for row in measured_rows(options.out) if row["row"] != name]
        order = list(ROWS)
        write_measured(options.out, sorted([*kept, *found], key=lambda row: order.index(row["row"])), extended=True)
    replace_between(options.page, "where rotation pays", table(measured_rows(options.out)))


if __name__ == "__main__":
    main()

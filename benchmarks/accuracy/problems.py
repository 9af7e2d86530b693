"""The problems of the accuracy benchmark: a target, observables by kind, and their exact means and variances.

`problem(name)` builds one; `PROBLEMS` lists all names. Truths that take long to compute are read from docs/measured/references/,
which `PYTHONPATH=src:benchmarks python -m accuracy.references` writes.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import gyromc as gm
from accuracy import hierarchies, network
from accuracy.models import regressions, shapes
from gyromc.approx.modes import inverse_root
from gyromc.checks import require
from gyromc.datasets import heart_split
from gyromc.observables import PROFILES, Observable, Ridge
from gyromc.prediction.exact.closed_forms import ridge_moments
from gyromc.runtime.evaluation import doubled

__all__ = ["KINDS", "PROBLEMS", "REFERENCES", "Draft", "Problem", "draft", "problem", "regression_observables"]

KINDS = ("means", "squares", "predictive")
REFERENCES = Path(__file__).parents[2] / "docs" / "measured" / "references"
CONDITIONS, DIMENSIONS = (1, 50, 10_000), (3, 14, 100, 1000)
AT_MOST = 14  # observables of a kind
POWER = 40  # iterations for the largest curvature
Rows = dict[str, tuple[float, float, float]]
"""Mean, variance and error of the mean, by observable."""


@dataclasses.dataclass(frozen=True, eq=False)
class Draft:
    """A target and its observables by kind, before the truth is known."""

    name: str
    description: str
    target: gm.targets.Target
    dim: int
    kinds: dict[str, dict[str, Observable]]
    rows: int = 1  # that a full gradient reads
    batch: int | None = None  # rows of a mini-batch, for the samplers that use them
    size: float = 1.0  # of budgets and repetitions, against those of a small problem
    exact: Callable[[], Rows] | None = None  # None: by sampling, in `references`
    near: Callable[[int, int], np.ndarray] | None = (
        None  # starts by (count, seed), where no Gaussian fits the posterior
    )

    @functools.cached_property
    def observables(self) -> dict[str, Observable]:
        """All observables by name."""
        return {name: h for group in self.kinds.values() for name, h in group.items()}

    @functools.cached_property
    def model(self) -> gm.Model:
        """The target over one vector."""
        return gm.Model(self.target, np.zeros(self.dim))


@dataclasses.dataclass(frozen=True, eq=False)
class Problem(Draft):
    """A draft with the posterior mean and variance of each observable, and the error of that mean."""

    truth: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    spread: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))  # variances under the posterior
    truth_error: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))

    @functools.cached_property
    def columns(self) -> dict[str, slice]:
        """The places of each kind among the observables."""
        ends = np.cumsum([len(group) for group in self.kinds.values()])
        return {kind: slice(end - len(group), end) for (kind, group), end in zip(self.kinds.items(), ends, strict=True)}

    @functools.cached_property
    def condition(self) -> float:
        """The ratio of the largest to the smallest curvature at the mode."""
        return float(np.linalg.cond(self.model.precision))

    @functools.cached_property
    def steepest(self) -> float:
        """The largest curvature at the mode, or at a start where there are many modes."""
        if self.near is not None:
            return _steepest_at(self.model.flat_target, self.near(1, 0)[0])
        return float(np.linalg.eigvalsh(self.model.precision)[-1])

    def starts(self, count: int, seed: int) -> np.ndarray:
        """Where chains start, for every sampler: draws of the Laplace approximation unless `near` is given, count × dim."""
        if self.near is not None:
            return self.near(count, seed)
        center = self.model.laplace
        noise = np.random.default_rng([seed, 77]).standard_normal((count, self.dim))
        return center.mean + noise @ inverse_root(center.precision).T

    def values(self, rows: np.ndarray) -> np.ndarray:
        """All observables at rows of θ: rows × observables, in float64."""
        with jax.enable_x64(True):
            return np.asarray(self._over_rows(jnp.asarray(rows, float)))

    @functools.cached_property
    def _over_rows(self) -> Callable:
        return jax.jit(jax.vmap(self.evaluate))

    def evaluate(self, theta):
        """All observables at one θ as a vector, for JAX; ridge functions of one kind by one product."""
        parts = []
        for group in self.kinds.values():
            some = list(group.values())
            if all(isinstance(h, Ridge) and h.profile == some[0].profile for h in some):  # type: ignore[attr-defined]  # ridges
                t = jnp.asarray(np.array([h.direction for h in some])) @ theta  # type: ignore[attr-defined]  # ridges
                parts.append(PROFILES[some[0].profile](t))  # type: ignore[attr-defined]  # ridges
            else:
                parts.append(jnp.stack([h(theta) for h in doubled(some)]))
        return jnp.concatenate(parts)


def _steepest_at(target: gm.targets.Target, theta: np.ndarray) -> float:
    """The largest eigenvalue of the Hessian of U at a point, by power iteration."""
    with jax.enable_x64(True):
        gradient, at = doubled(target).gradient, jnp.asarray(theta)
        product = jax.jit(lambda v: jax.jvp(gradient, (at,), (v,))[1])
        v = jnp.asarray(np.random.default_rng(0).standard_normal(len(theta)))
        for _ in range(POWER):
            v = product(v / jnp.linalg.norm(v))
        return float(jnp.linalg.norm(v))


def regression_observables(d: int, rows: np.ndarray, most: int = AT_MOST) -> dict[str, dict[str, Observable]]:
    """θ_i and θ_i² for some coordinates, and the predictive probabilities of a logistic model at the rows, by kind."""
    some = np.unique(np.linspace(0, d - 1, min(d, most)).astype(int))
    found: dict[str, dict[str, Observable]] = {
        "means": {f"m{i}": gm.observables.linear(np.eye(d)[i]) for i in some},
        "squares": {f"s{i}": gm.observables.square(np.eye(d)[i]) for i in some},
    }
    if len(rows):
        found["predictive"] = {f"p{i}": gm.observables.predictive(x) for i, x in enumerate(rows)}
    return found


def gaussian(condition: float, d: int) -> Draft:
    """A Gaussian with curvatures from 1/κ to 1 in directions that no coordinate shows; observables along some of them.

    Its mean lies one standard deviation off zero, so that no answer is right by symmetry alone.
    """
    precision, mean, basis, rows = shapes.gaussian_of(condition, d)
    some = np.unique(np.linspace(0, d - 1, min(d, AT_MOST)).astype(int))
    kinds: dict[str, dict[str, Observable]] = {
        "means": {f"m{i}": gm.observables.linear(basis[:, i]) for i in some},
        "squares": {f"s{i}": gm.observables.square(basis[:, i]) for i in some},
        "predictive": {f"p{i}": gm.observables.predictive(x) for i, x in enumerate(rows)},
    }

    def exact():
        found = {}
        for name, h in ((name, h) for group in kinds.values() for name, h in group.items()):
            found[name] = *ridge_moments(h, precision, mean), 0.0  # type: ignore[arg-type]  # all are ridge functions
        return found

    target = gm.targets.Quadratic(precision, mean)
    about = f"a Gaussian, d = {d}, condition number {condition:g}"
    return Draft(
        f"gaussian-{condition:g}-{d}", about, target, d, kinds, size={100: 0.25, 1000: 0.0625}.get(d, 1.0), exact=exact
    )


def cosine() -> Draft:
    """The paper's potential ½|θ|² + 1.2 Σ cos θ_i, d = 3: two modes in every coordinate."""
    d, beta = 3, 1.2
    axes = np.eye(d)
    kinds: dict[str, dict[str, Observable]] = {
        "means": {f"m{i}": gm.observables.linear(axes[i]) for i in range(d)},
        "squares": {f"s{i}": gm.observables.square(axes[i]) for i in range(d)},
        "predictive": {f"p{i}": gm.observables.predictive(2 * axes[i]) for i in range(d)},
    }

    def exact():
        t = np.linspace(-12, 12, 20_001)
        weight = np.exp(-0.5 * t**2 - beta * np.cos(t))
        weight /= weight.sum()
        found = {}
        for group in kinds.values():
            for name, h in group.items():
                value = h.rho(t * float(np.max(h.direction)))  # type: ignore[attr-defined]  # a ridge function of one coordinate
                found[name] = float(weight @ value), float(weight @ value**2 - (weight @ value) ** 2), 0.0
        return found

    return Draft("cosine", "½|θ|² + 1.2 Σ cos θ_i, d = 3", gm.targets.CosinePerturbed(d, beta), d, kinds, exact=exact)


def heart() -> Draft:
    """Logistic regression on the heart data, the paper's split."""
    split = heart_split(0)
    target = gm.targets.LogisticRegression(split.X_train, split.y_train)
    kinds = regression_observables(target.dim, split.X_test[:AT_MOST])
    rows = target.num_data
    return Draft("heart", f"logistic regression, {rows} rows, d = 14", target, target.dim, kinds, rows, batch=32)


def many_rows() -> Draft:
    """Simulated logistic regression with a million rows and 50 columns."""
    rng, (N, d) = np.random.default_rng(11), (1_000_000, 50)
    X = np.column_stack([np.ones(N), rng.standard_normal((N, d - 1)) * np.exp(0.5 * rng.standard_normal(d - 1))])
    y = rng.random(N) < 1 / (1 + np.exp(-X @ (rng.standard_normal(d) * 0.7 / math.sqrt(d))))
    target = gm.targets.LogisticRegression(X, y.astype(float), prior_scale=5.0)
    kinds = regression_observables(d, X[:8])
    return Draft("million-rows", "logistic regression, 10⁶ rows, d = 50", target, d, kinds, N, batch=64, size=0.25)


def nes() -> Draft:
    """Simulated votes of 1200 people by income, ideology, age and six more columns."""
    X, y = regressions.votes()
    target = gm.targets.LogisticRegression(X, y, prior_scale=2.5)
    kinds = regression_observables(target.dim, X[:AT_MOST])
    return Draft("nes", "logistic regression of votes, 1200 rows, d = 9", target, target.dim, kinds, len(y), batch=32)


def poisson() -> Draft:
    """Simulated counts of 300 rows on five columns."""
    X, y = regressions.counts()
    n, d = X.shape
    target = gm.targets.PoissonRegression(X, y, prior_scale=2.0)
    kinds = regression_observables(d, X[:0])
    none = lambda x: gm.observables.function(lambda theta: jnp.exp(-jnp.exp(jnp.asarray(x) @ theta)))  # P(y = 0 | x)
    kinds["predictive"] = {f"p{i}": none(x) for i, x in enumerate(X[:8])}
    return Draft("poisson", f"Poisson regression, {n} rows, d = {d}", target, d, kinds, n, batch=32)


def softmax() -> Draft:
    """Simulated classes, three of them, of 300 rows on four columns."""
    X, y = regressions.classes()
    target = gm.targets.SoftmaxRegression(X, y, prior_scale=1.5)
    kinds = regression_observables(target.dim, X[:0])
    basis = np.array(target.basis)

    def first(x):
        weights = lambda theta: jnp.asarray(basis) @ theta.reshape(basis.shape[1], -1)
        return gm.observables.function(lambda theta: jax.nn.softmax(weights(theta) @ jnp.asarray(x))[0])

    kinds["predictive"] = {f"p{i}": first(x) for i, x in enumerate(X[:8])}
    return Draft(
        "softmax",
        f"softmax regression, 3 classes, {len(y)} rows, d = {target.dim}",
        target,
        target.dim,
        kinds,
        len(y),
        batch=32,
    )


def _hierarchy(name: str, description: str, make: Callable[[], hierarchies.Hierarchy]) -> Draft:
    h = make()
    return Draft(name, description, h.target(), h.dim, h.observables(), len(h.y), exact=h.expectations)


def digits() -> Draft:
    """A network with one hidden layer on noisy images of digits."""
    about = f"a network of {network.DIM} weights, {network.LABELLED} images"
    kinds = network.network_kinds()
    rest = {"batch": 32, "size": 0.25, "near": network.network_starts}
    return Draft("digits", about, network.network_target(), network.DIM, kinds, network.LABELLED, **rest)


PROBLEMS: dict[str, Callable[[], Draft]] = {
    **{f"gaussian-{k:g}-{d}": functools.partial(gaussian, k, d) for d in DIMENSIONS for k in CONDITIONS},
    "cosine": cosine,
    "heart": heart,
    "million-rows": many_rows,
    "poisson": poisson,
    "softmax": softmax,
    "eight-schools": lambda: _hierarchy(
        "eight-schools", "eight schools, non-centred, d = 10", hierarchies.eight_schools
    ),
    "radon": lambda: _hierarchy("radon", "a hierarchical regression, 200 rows, 20 counties, d = 24", hierarchies.radon),
    "ar5": lambda: _hierarchy("ar5", "an autoregression of order 5, d = 7", hierarchies.autoregression),
    "nes": nes,
    "digits": digits,
}
"""Functions that build the problems, by name."""


def draft(name: str) -> Draft:
    """A problem without its truth; `InvalidInput` for a name that is not in `PROBLEMS`."""
    require(name in PROBLEMS, f"No problem is named {name}. There is: {', '.join(PROBLEMS)}.")
    return PROBLEMS[name]()


def problem(name: str) -> Problem:
    """A problem with its truth: by a formula for Gaussians and the cosine potential, else from its reference file.

    ```python
    from accuracy.problems import problem
    found = problem("gaussian-50-3")
    assert found.truth.shape == (12,) and found.columns["squares"] == slice(3, 6)
    ```
    """
    found = draft(name)
    if found.exact is not None and (name == "cosine" or name.startswith("gaussian")):
        rows = found.exact()
    else:
        path = REFERENCES / f"{name}.json"
        require(
            path.exists(),
            f"There is no {path}. Run `PYTHONPATH=src:benchmarks python -m accuracy.references {name}` first.",
        )
        rows = {key: (v["mean"], v["variance"], v["error"]) for key, v in json.loads(path.read_text())["rows"].items()}
    require(list(rows) == list(found.observables), f"The reference of {name} is of other observables: make it again.")
    truth, spread, error = np.array(list(rows.values())).T
    fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(Draft)}
    return Problem(**fields, truth=truth, spread=spread, truth_error=error)

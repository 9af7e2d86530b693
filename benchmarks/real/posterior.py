"""The posteriors of regressions computed without gyromc: by quadrature for linear models, by importance sampling for the others.

Input: a table, a formula and a family. Output: means, spreads and errors of the coefficients in the units of the file. Design
matrices are made by patsy, densities are those of `scipy.stats`, and the priors are written down again from the documentation:
N(0, 2.5²) for a coefficient per standard deviation of its column (per half of the distance of a column's two values), N(0, 10²)
for the intercept at the columns' means, both times the standard deviation of y where y is a number.
"""

import dataclasses
import re
from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy import log  # formulas call it
from scipy import optimize, special, stats
from scipy.stats import qmc

__all__ = ["Design", "Reference", "design", "reference"]

PRIOR, INTERCEPT = 2.5, 10.0
SCRAMBLES, MOST_POINTS = 16, 4096  # independent sets of Sobol points, and the size of each
ENTRIES = 120_000_000  # points × rows in all, beyond which fewer points are taken
FREEDOM = 6.0  # of the t-distribution that points are drawn from
AT_ONCE = 4_000_000  # points × rows held at a time
HEALTHY = 0.05  # share of the points that their weights must leave


@dataclasses.dataclass(frozen=True, eq=False)
class Design:
    """Names and columns of a design matrix without its intercept, the offset, and the response."""

    names: list[str]
    X: np.ndarray
    offset: np.ndarray
    y: np.ndarray

    @property
    def standard(self) -> tuple[np.ndarray, np.ndarray]:
        """Means of the columns and what their prior is per unit of."""
        two = np.array([len(np.unique(column)) == 2 for column in self.X.T])
        half = (self.X.max(axis=0) - self.X.min(axis=0)) / 2
        return self.X.mean(axis=0), np.where(two, half, self.X.std(axis=0))

    @property
    def Z(self) -> np.ndarray:
        """The standardised columns after one of ones."""
        mean, scale = self.standard
        return np.column_stack([np.ones(len(self.X)), (self.X - mean) / scale])

    @property
    def back(self) -> np.ndarray:
        """The matrix from standardised coefficients to those in the units of the file, intercept first."""
        mean, scale = self.standard
        M = np.diag([1.0, *(1 / scale)])
        M[0, 1:] = -mean / scale
        return M


@dataclasses.dataclass(frozen=True, eq=False)
class Reference:
    """Posterior means, spreads and the errors of the means, by name; `worth`: the share of points their weights leave."""

    names: list[str]
    mean: np.ndarray
    sd: np.ndarray
    error: np.ndarray
    worth: float
    method: str


def design(frame: pd.DataFrame, formula: str) -> Design:
    """The design matrix of a formula in R's notation, by patsy."""
    import patsy

    left, _, right = formula.partition("~")
    terms = [term.strip() for term in right.split(" + ")]
    known = [term[len("offset(") : -1] for term in terms if term.startswith("offset(")]
    right = " + ".join(term for term in terms if not term.startswith("offset("))
    if right.strip() == ".":
        right = " + ".join(f"`{name}`" for name in frame.columns if name != left.strip())
    quoted = lambda text: re.sub(r"`([^`]*)`", r'Q("\1")', text)
    matrix = patsy.dmatrix(quoted(right), frame, return_type="dataframe").drop(columns="Intercept")
    y = (
        frame[left.strip().strip("`")]
        if left.strip().strip("`") in frame
        else frame.eval(left, local_dict={"log": log})
    )
    offset = np.sum([np.asarray(frame.eval(text)) for text in known], axis=0) if known else np.zeros(len(frame))
    return Design([_plain(name) for name in matrix.columns], matrix.to_numpy(float), offset, np.asarray(y))


def _plain(name: str) -> str:
    """A column's name as gyromc writes it: `race[2]` for patsy's `C(race)[T.2]`."""
    name = re.sub(r'Q\("([^"]*)"\)', r"\1", name)
    return re.sub(r"C\(([^)]*)\)", r"\1", name).replace("[T.", "[")


def reference(found: Design, family: str, classes: int, trials: np.ndarray | None = None) -> Reference:
    """The posterior of a regression."""
    if family == "linear":
        return _linear(found)
    return _sampled(found, family, classes, trials)


def _linear(found: Design) -> Reference:
    """σ on a grid; given σ coefficients are Gaussian. p(log σ) ∝ exp(-ε²/2σ² - σ²/2B²), ε = 0.001 and B = 10 sd of y."""
    y_scale = found.y.std()
    y = (found.y - found.y.mean()) / y_scale
    spread = np.array([INTERCEPT, *[PRIOR] * found.X.shape[1]])
    U, s, Vt = np.linalg.svd(found.Z * spread, full_matrices=False)
    along = U.T @ y
    apart = max(0.0, float(y @ y - along @ along))
    grid = np.linspace(-9, 3, 60_001)[:, None]
    v = np.exp(2 * grid)
    logs = -0.5 * np.sum(np.log(v + s**2) + along**2 / (v + s**2), axis=1)
    logs += -0.5 * ((len(y) - len(s)) * 2 * grid + apart / v + 1e-6 / v + v / 100)[:, 0]
    w = special.softmax(logs)
    T = y_scale * found.back @ (spread[:, None] * Vt.T)
    means = (s * along / (s**2 + v)) @ T.T
    inside = (v / (s**2 + v)) @ (T**2).T
    mean = w @ means
    sd = np.sqrt(w @ (inside + (means - mean) ** 2))
    mean = mean + np.array([found.y.mean(), *[0.0] * found.X.shape[1]])
    return Reference(["intercept", *found.names], mean, sd, np.zeros(len(mean)), 1.0, "quadrature")


Density = Callable[[np.ndarray], np.ndarray]


def _sampled(found: Design, family: str, classes: int, trials: np.ndarray | None) -> Reference:
    """Sobol points of a t-distribution around the mode, weighted; errors from independent scrambles."""
    posterior, start, T = _POSTERIORS[family](found, classes, trials)
    center, covariance = _mode(posterior, start)
    rows = len(found.y) * (classes if family == "softmax" else 1)
    points = int(np.clip(2 ** int(np.log2(ENTRIES / rows / SCRAMBLES)), 256, MOST_POINTS))
    for seed in range(3):  # each round takes mean and covariance from the one before
        theta, logs = _points(posterior, center, covariance, points, 100 + seed)
        w = special.softmax(logs)
        center = w @ theta
        away = theta - center
        covariance = (away.T * w) @ away
    sets = [_points(posterior, center, covariance, points, seed) for seed in range(SCRAMBLES)]
    each = [special.softmax(logs) @ (theta @ T.T) for theta, logs in sets]
    theta, logs = np.concatenate([a for a, _ in sets]), np.concatenate([b for _, b in sets])
    w, values = special.softmax(logs), theta @ T.T
    mean = w @ values
    sd = np.sqrt(w @ (values - mean) ** 2)
    names = found.names if family == "ordinal" else ["intercept", *found.names]
    names = [f"{name} ({c})" for c in range(classes) for name in names] if family == "softmax" else names
    shift = np.zeros(len(mean))
    if family == "student-t":
        shift[0] = found.y.mean()
    error = np.std(each, axis=0, ddof=1) / np.sqrt(SCRAMBLES)
    return Reference(names, mean + shift, sd, error, float(1 / np.sum(w**2) / len(w)), "Sobol points")


def _points(posterior: Density, center: np.ndarray, covariance: np.ndarray, count: int, seed: int):
    """Points of the t-distribution and the logarithms of their weights."""
    d = len(center)
    u = np.clip(qmc.Sobol(d + 1, seed=np.random.default_rng([seed, d])).random(count), 1e-12, 1 - 1e-12)
    stretch = np.sqrt(FREEDOM / stats.chi2.ppf(u[:, :1], FREEDOM))
    x = special.ndtri(u[:, 1:]) * stretch
    theta = center + x @ np.linalg.cholesky(covariance).T
    return theta, posterior(theta) + (FREEDOM + d) / 2 * np.log1p(np.sum(x**2, axis=1) / FREEDOM)


def _mode(posterior: Density, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mode and the inverse of the curvature there, by difference quotients."""
    d, step = len(start), 1e-4
    steps = step * np.eye(d)

    def value_and_slope(x):
        values = -posterior(np.concatenate([x[None], x + steps, x - steps]))
        return values[0], (values[1 : d + 1] - values[d + 1 :]) / (2 * step)

    mode = optimize.minimize(value_and_slope, start, jac=True, method="BFGS", options={"gtol": 1e-4, "maxiter": 500}).x
    H = np.array([value_and_slope(mode + s)[1] - value_and_slope(mode - s)[1] for s in 10 * steps]) / (20 * step)
    values, basis = np.linalg.eigh((H + H.T) / 2)
    return mode, (basis / np.maximum(values, 1e-3)) @ basis.T


def _by_parts(density: Density, rows: int) -> Density:
    """A density evaluated for as many points at a time as memory allows."""
    most = max(1, AT_ONCE // rows)
    return lambda theta: np.concatenate([density(theta[i : i + most]) for i in range(0, len(theta), most)])


def _normal_prior(theta: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """Σ log density of the coefficients, intercept first."""
    return -0.5 * (theta[:, 0] / INTERCEPT / scale) ** 2 - 0.5 * np.sum((theta[:, 1:] / PRIOR / scale) ** 2, axis=1)


def _root_prior(l: np.ndarray) -> np.ndarray:
    """Log density of l = log k where 1/√k is exponential with mean 1."""
    return -np.exp(-l / 2) - l / 2


def _with_predictor(found: Design, extra: int, law: Callable, scale: float = 1.0):
    """(log posterior, start, T) of one linear predictor and further parameters; `law(t, *extra)`: log densities, points × n."""
    Z, p = found.Z, found.X.shape[1] + 1

    def density(theta):
        t = theta[:, :p] @ Z.T + found.offset
        return np.sum(law(t, *theta[:, p:].T[..., None]), axis=1) + _normal_prior(theta[:, :p])

    T = np.concatenate([scale * found.back, np.zeros((p, extra))], axis=1)
    return _by_parts(density, len(Z)), np.zeros(p + extra), T


def _poisson(found, classes, trials):
    density, start, T = _with_predictor(found, 0, lambda t: found.y * t - np.exp(t))
    start[0] = np.log(found.y.sum() / np.exp(found.offset).sum())
    return density, start, T


def _negative_binomial(found, classes, trials):
    values, place = np.unique(found.y, return_inverse=True)  # few: log Γ is slow

    def law(t, l):
        s = np.exp(l)
        constants = special.gammaln(values + s) - special.gammaln(s) - special.gammaln(values + 1)
        return constants[:, place] + found.y * (t - l) - (found.y + s) * np.log1p(np.exp(t - l))

    density, start, T = _with_predictor(found, 1, law)
    start[0] = np.log(found.y.mean())
    return lambda theta: density(theta) + _root_prior(theta[:, -1]), start, T


def _gamma(found, classes, trials):
    def law(t, l):
        return stats.gamma.logpdf(found.y, np.exp(l), scale=np.exp(t - l))

    density, start, T = _with_predictor(found, 1, law)
    start[0] = np.log(found.y.mean())
    return lambda theta: density(theta) + _root_prior(theta[:, -1]), start, T


def _beta_binomial(found, classes, trials):
    def law(t, l):
        a, b = np.exp(l) * special.expit(t), np.exp(l) * special.expit(-t)
        return special.betaln(found.y + a, trials - found.y + b) - special.betaln(a, b)

    density, start, T = _with_predictor(found, 1, law)
    return lambda theta: density(theta) + _root_prior(theta[:, -1]), start, T


def _student(found, classes, trials):
    """σ per standard deviation of y is exponential with mean 1; log(ν - 2) ~ N(2.73, 0.8²)."""
    y = (found.y - found.y.mean()) / found.y.std()

    def law(t, log_sigma, x):
        return stats.t.logpdf(y, 2 + np.exp(x), loc=t, scale=np.exp(log_sigma))

    density, start, T = _with_predictor(found, 2, law, scale=found.y.std())
    start[-2:] = -1.0, 2.73
    prior = lambda a, x: a - np.exp(a) - 0.5 * ((x - 2.73) / 0.8) ** 2
    return lambda theta: density(theta) + prior(theta[:, -2], theta[:, -1]), start, T


def _logistic(found, classes, trials):
    sign = np.where(found.y == 1, 1.0, -1.0)
    return _with_predictor(found, 0, lambda t: special.log_expit(sign * t))


def _softmax(found, classes, trials):
    """Each class has coefficients of its own; those against the average of all classes are reported."""
    Z, p = found.Z, found.X.shape[1] + 1
    own = found.y.astype(int)

    def density(theta):
        W = theta.reshape(-1, classes, p)
        t = np.einsum("mcp,np->mnc", W, Z)
        chosen = np.take_along_axis(t, own[None, :, None], axis=2)[..., 0]
        fitted = np.sum(chosen - special.logsumexp(t, axis=2), axis=1)
        return fitted + sum(_normal_prior(W[:, c], 2**-0.5) for c in range(classes))

    T = np.kron(np.eye(classes) - 1 / classes, found.back)
    return _by_parts(density, len(Z) * classes), np.zeros(classes * p), T


def _ordinal(found, classes, trials):
    """P(y ≤ k) = expit(c_k - t); at the columns' means the classes' probabilities are Dirichlet(1, …, 1)."""
    Z, p, own = found.Z[:, 1:], found.X.shape[1], found.y.astype(int)

    def density(theta):
        t = theta[:, :p] @ Z.T
        first, gaps = theta[:, p : p + 1], np.exp(theta[:, p + 1 :])
        cuts = np.concatenate([first, first + np.cumsum(gaps, axis=1)], axis=1)
        below = np.concatenate([np.full_like(first, -np.inf), cuts, np.full_like(first, np.inf)], axis=1)
        high, low = special.expit(below[:, own + 1] - t), special.expit(below[:, own] - t)
        prior = np.sum(special.log_expit(cuts) + special.log_expit(-cuts), axis=1) + np.sum(theta[:, p + 1 :], axis=1)
        fitted = np.sum(np.log(np.maximum(high - low, 1e-300)), axis=1)
        return fitted + prior - 0.5 * np.sum((theta[:, :p] / PRIOR) ** 2, axis=1)

    start = np.zeros(p + classes - 1)
    share = np.cumsum(np.bincount(own, minlength=classes))[:-1] / len(own)
    cuts = special.logit(share)
    start[p], start[p + 1 :] = cuts[0], np.log(np.diff(cuts))
    return _by_parts(density, len(Z)), start, np.concatenate([found.back[1:, 1:], np.zeros((p, classes - 1))], axis=1)


_POSTERIORS = {
    "poisson": _poisson,
    "negative-binomial": _negative_binomial,
    "gamma": _gamma,
    "beta-binomial": _beta_binomial,
    "student-t": _student,
    "logistic": _logistic,
    "softmax": _softmax,
    "ordinal": _ordinal,
}

"""The regression of observables on zero-mean functions: averages with less variance, and with errors that hold (T11).

Input: states of chains with the gradients there and the values of the observables, in pieces of any length. Output: `Sharpened`,
the corrected average of every chain. An observable h is regressed on functions f of mean zero, h = μ + cᵀf + rest, and
mean(h - cᵀf) is reported. The coefficients for a chain come from other chains (four folds), so its corrected average does not
depend on them and the standard deviation between chains is the standard error. The group of fields is chosen for each
observable by the square of the rest on chains that were left out.

Only sums are kept: memory does not grow with the number of states.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from gyromc.fields.functions import FieldGroup, Fields

__all__ = ["SETTINGS", "FieldRegression", "Sharpened", "between", "calibrated_weights"]


@dataclasses.dataclass(frozen=True)
class RegressionSettings:
    """The numbers of the regression.

    - `folds`: into which chains are divided; four leave three quarters of the rows for the coefficients.
    - `segments`: of a chain in time, at least, for a standard error with more degrees of freedom.
    - `caution`: factor of every standard error. A run states hundreds, each uncertain by 13 % with 32 chains, and coefficients
      from the same states make them a little too small: on fresh seeds mean z² was 1.0 to 1.7 for posteriors with 1000
      functions, and 3 of 7,000 estimates were off by more than 4 errors, the worst by 5.2.
    - `together`: rows of every chain that are added to the normal equations at once; one by one, memory is the limit.
    - `ridge`: added to the diagonal of the standardised normal equations, for columns that are nearly equal.
    - `rows_per_function`: that a group needs at least in the rows for its coefficients; with fewer they are mostly noise.
    - `draws_per_function`: the same for the weights of draws.
    - `better`: by what factor the rest of a larger group must be smaller to be taken: the choice must not follow noise.
    - `skewness`: by what part of it, beyond chance, a standard error grows (`skewness_factor`).
    - `least_share`: of a plain standard error that is left at least: what the ridge leaves is no noise between chains.
    - `heavy_share`: of a plain standard error that is added where averages of some observable are skew. In a logistic model with
      100 groups, runs that had missed the tail of log τ were off by 5 stated errors in a third of the groups.
    - `rare_share`, `usual_kurtosis`, `large_kurtosis`: the same for an observable with heavy tails, growing with its kurtosis
      from the usual one of squares. E x² of a mild funnel was off by 8 stated errors where its largest values had not been seen.
    """

    folds: int = 4
    segments: int = 8
    caution: float = 1.2
    together: int = 25
    ridge: float = 1e-7
    rows_per_function: float = 1.5
    draws_per_function: int = 8
    better: float = 0.98
    skewness: float = 0.75
    least_share: float = 1e-4
    heavy_share: float = 0.05
    rare_share: float = 0.5
    usual_kurtosis: float = 16.0
    large_kurtosis: float = 34.0


SETTINGS = RegressionSettings()


@dataclasses.dataclass(frozen=True, eq=False)
class Sharpened:
    """Averages of every chain, plain and corrected; one column for each observable.

    - `plain`, `corrected`: chains × observables.
    - `groups`: the group of fields that each observable was regressed on.
    - `sd`: posterior standard deviations of the observables.
    - `without_rotations`, `with_rotations`: the corrected averages with gradients of quadratics at most, and with rotations too.
    - `kurtosis`: of the observables over single states; 3 for a normal law.
    - `segment_error`: the standard error from the differences between segments of chains, which are more than chains; too small
      where they depend on each other.
    - `least_share`: of a plain standard error that is left at least.
    """

    plain: Float[np.ndarray, "chains k"]
    corrected: Float[np.ndarray, "chains k"]
    without_rotations: Float[np.ndarray, "chains k"]
    with_rotations: Float[np.ndarray, "chains k"]
    groups: list[FieldGroup]
    sd: Float[np.ndarray, " k"]
    kurtosis: Float[np.ndarray, " k"]
    segment_error: Float[np.ndarray, " k"]
    least_share: float = SETTINGS.least_share

    @property
    def mean(self) -> np.ndarray:
        """The corrected averages over all chains."""
        return self.corrected.mean(axis=0)

    @property
    def std_error(self) -> np.ndarray:
        """The standard errors of `mean`, from the differences between chains, larger where few chains decide."""
        own = np.maximum(between(self.corrected) * skewness_factor(self.corrected), self.segment_error)
        # where one observable has a heavy, slowly explored tail, all depend on it a little
        heavy = min(1.0, float(np.max(skewness_factor(self.plain), initial=1.0)) - 1)
        share = self.least_share + SETTINGS.heavy_share * heavy
        # an observable whose fourth moment rests on few states: they may be too few
        rare = np.clip((self.kurtosis - SETTINGS.usual_kurtosis) / SETTINGS.large_kurtosis, 0.0, 1.0)
        return SETTINGS.caution * np.hypot(own, np.maximum(share, SETTINGS.rare_share * rare) * between(self.plain))

    @property
    def gain(self) -> np.ndarray:
        """How many times more states plain averages would need for the same error."""
        return _ratio(self.plain, self.corrected)

    @property
    def rotation_gain(self) -> np.ndarray:
        """The part of `gain` that rotations z_a e_b - z_b e_a bring beyond gradients of quadratics."""
        return _ratio(self.without_rotations, self.with_rotations)


def between(averages: Float[np.ndarray, "chains k"]) -> np.ndarray:
    """The standard error of the mean over independent chains."""
    return averages.std(axis=0, ddof=1) / np.sqrt(len(averages))


def skewness_factor(averages: Float[np.ndarray, "chains k"]) -> np.ndarray:
    """By how much a standard error from skew averages is made larger: 1 where their skewness is within chance.

    With heavy tails most chains miss what a few have seen, and the mean and its error are too small together. Measured on E y²
    of a banana and on mixtures: with skewness 1.5 to 5, errors were 1.3 to 3 times too small.
    """
    away = averages - averages.mean(axis=0)
    size = np.sqrt(np.mean(away**2, axis=0))
    skewness = np.abs(np.mean(away**3, axis=0)) / np.where(size > 0, size, 1.0) ** 3
    chance = 2 * np.sqrt(6 / len(averages))
    return 1 + SETTINGS.skewness * np.maximum(0.0, skewness - chance)


def _ratio(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    old, new = between(before) ** 2, between(after) ** 2
    return np.where(new > 0, old / np.where(new > 0, new, 1.0), 1.0)


class Segment(NamedTuple):
    """Consecutive states of every chain: their number, and the sums of functions and observables over them."""

    states: int
    functions: np.ndarray
    values: np.ndarray


class FieldRegression:
    """Sums over the states of chains, from which averages are corrected at any time.

    **Arguments:**

    - `fields`: the zero-mean functions.
    - `num_chains`: how many chains there are, at least eight.
    - `center`: rough means of the observables, so that sums of squares lose no digits.
    - `block`: consecutive states of a chain that become one row; neighbours say nearly the same, and fewer rows take less time.

    ```python
    import numpy as np
    from gyromc.fields.functions import Fields
    from gyromc.fields.regression import FieldRegression
    x = np.random.default_rng(0).standard_normal((50, 8, 1))  # a normal law, U = x²/2, ∇U = x
    fields = Fields(np.zeros(1), np.ones(1), np.zeros((2, 1), int), np.zeros((3, 0), int))
    sums = FieldRegression(fields, num_chains=8, center=np.zeros(2))
    sums.add(x, x, np.concatenate([x, x**2], axis=2))
    found = sums.sharpened()
    assert np.allclose(found.corrected, [0.0, 1.0], atol=1e-3)  # no variance is left
    ```
    """

    def __init__(self, fields: Fields, num_chains: int, center: Float[np.ndarray, " k"], block: int = 1):
        self.fields, self.center, self.block = fields, np.asarray(center, float), block
        self.states = self.rows = 0
        self.pending: list[tuple[np.ndarray, np.ndarray]] = []
        p, k = fields.count, len(self.center)
        self.fold = np.arange(num_chains) % SETTINGS.folds
        self.moments = np.zeros((SETTINGS.folds, p, p))
        self.products = np.zeros((SETTINGS.folds, p, k))
        self.segments: list[Segment] = []
        self.length = 0
        self.row_squares = np.zeros((SETTINGS.folds, k))
        self.squares = np.zeros(k)
        self.fourths = np.zeros(k)

    def add(
        self,
        theta: Float[np.ndarray, "steps chains d"],
        gradient: Float[np.ndarray, "steps chains d"],
        values: Float[np.ndarray, "steps chains k"],
    ) -> None:
        """Add states of all chains; their number must be a multiple of the block."""
        steps, chains, d = theta.shape
        rows = steps // self.block
        h = values - self.center
        # a row for each function: in this order sums over states run along memory
        f = self.fields(theta.reshape(-1, d), gradient.reshape(-1, d)).T.reshape(
            self.fields.count, rows, self.block, chains
        )
        f, h_rows = f.mean(axis=2), h.reshape(rows, self.block, chains, -1).mean(axis=1)
        self._append(Segment(steps, self.block * f.sum(axis=1).T, h.sum(axis=0)))
        self.squares += np.einsum("tck,tck->k", h, h)
        self.fourths += np.einsum("tck,tck->k", h**2, h**2)
        self.states += steps
        self.rows += rows * chains
        self.pending.append((f, h_rows))
        if sum(part.shape[1] for part, _ in self.pending) >= SETTINGS.together:
            self._accumulate()

    def _accumulate(self) -> None:
        """Add the rows that wait to the normal equations."""
        if not self.pending:
            return
        f = np.concatenate([part for part, _ in self.pending], axis=1)
        h = np.concatenate([part for _, part in self.pending])
        self.pending = []
        for fold in range(SETTINGS.folds):
            mine = self.fold == fold
            x = f[:, :, mine].reshape(len(f), len(h) * mine.sum())
            y = h[:, mine].reshape(x.shape[1], h.shape[2])
            self.moments[fold] += x @ x.T
            self.products[fold] += x @ y
            self.row_squares[fold] += np.einsum("nk,nk->k", y, y)

    def _append(self, new: Segment) -> None:
        """Add states to the last segment, or a segment where that one is full; twice as long ones when there are many."""
        join = lambda a, b: Segment(*(x + y for x, y in zip(a, b, strict=True)))
        if not self.segments:
            self.length = new.states
        elif self.segments[-1].states < self.length:
            new = join(self.segments.pop(), new)
        self.segments.append(new)
        if len(self.segments) == 2 * SETTINGS.segments and new.states >= self.length:
            self.segments = [join(*self.segments[i : i + 2]) for i in range(0, len(self.segments), 2)]
            self.length *= 2

    def sd(self) -> np.ndarray:
        """Posterior standard deviations of the observables."""
        count = self.states * len(self.fold)
        offset = np.sum([one.values for one in self.segments], axis=(0, 1)) / count
        found = self.squares / count - offset**2
        # a constant leaves rounding errors only
        return np.sqrt(np.where(found > 1e-14 * (offset + self.center) ** 2, found, 0.0))

    def sharpened(self) -> Sharpened:
        """The corrected averages of all chains so far."""
        self._accumulate()
        sd = self.sd()
        lengths = np.array([one.states for one in self.segments])
        functions, plain = (
            np.array([getattr(one, name) / one.states for one in self.segments]) for name in ("functions", "values")
        )
        whole = lambda averages: np.average(averages, axis=0, weights=lengths)
        best, rest = plain, self.row_squares.sum(axis=0) - self.rows * whole(plain).mean(axis=0) ** 2
        plainer = turned = best
        groups = np.full(plain.shape[2], FieldGroup.NONE, dtype=object)
        fitted_rows = self.rows * (1 - 1 / SETTINGS.folds)
        for group, size in self.fields.sizes.items():
            if size * SETTINGS.rows_per_function > fitted_rows:
                break
            corrected, left = self._corrected(plain, functions[:, :, :size], lengths)
            taken = left < SETTINGS.better * rest
            best = np.where(taken, corrected, best)
            rest = np.where(taken, left, rest)
            groups[taken] = group
            if group in (FieldGroup.CONSTANT, FieldGroup.POTENTIAL):
                plainer = best
            if group is not FieldGroup.QUADRATIC:
                turned = best
        fourth = self.fourths / (self.states * len(self.fold))
        kurtosis = np.where(sd > 0, fourth / np.where(sd > 0, sd, 1.0) ** 4, 3.0)
        # of the mean over all states, if segments were independent
        away = best - whole(best).mean(axis=0)
        variance = np.einsum("s,sck->k", lengths.astype(float), away**2) / (len(lengths) * len(self.fold) - 1)
        errors = np.sqrt(variance / (len(self.fold) * self.states))
        plain, best, plainer, turned = (whole(x) + self.center for x in (plain, best, plainer, turned))
        return Sharpened(plain, best, plainer, turned, list(groups), sd, kurtosis, errors)

    def _corrected(
        self, plain: np.ndarray, functions: np.ndarray, lengths: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The averages of segments corrected by the functions, and the squares of the rest on the chains left out."""
        size = functions.shape[2]
        moments, products = self.moments[:, :size, :size], self.products[:, :size]
        total, total_products = moments.sum(axis=0), products.sum(axis=0)
        function_means, means = (np.average(x, axis=0, weights=lengths) for x in (functions, plain))
        rows = self.rows / len(self.fold)
        corrected, rest = np.empty_like(plain), np.zeros(plain.shape[2])
        for fold in range(SETTINGS.folds):
            mine = self.fold == fold
            f, h, n = function_means[~mine].mean(axis=0), means[~mine].mean(axis=0), rows * np.sum(~mine)
            # moments about the means of the other chains: the regression has an intercept
            left = total - moments[fold] - n * np.outer(f, f)
            right = total_products - products[fold] - n * np.outer(f, h)
            c = _solved(left, right)
            corrected[:, mine] = plain[:, mine] - functions[:, mine] @ c  # T11
            # the sum of (h - cᵀf - mean)² over the rows left out
            mean = means[mine].mean(axis=0) - function_means[mine].mean(axis=0) @ c
            quadratic = np.einsum("pk,pk->k", c, moments[fold] @ c - 2 * products[fold])
            rest += np.maximum(self.row_squares[fold] + quadratic - rows * mine.sum() * mean**2, 0.0)
        return corrected, rest


def _solved(moments: np.ndarray, products: np.ndarray) -> np.ndarray:
    """The coefficients of a ridge regression on standardised columns."""
    size = np.sqrt(np.diag(moments))
    size = np.where(size > 0, size, 1.0)
    scaled = moments / np.outer(size, size)
    scaled[np.diag_indices_from(scaled)] += SETTINGS.ridge
    return np.linalg.solve(scaled, products / size[:, None]) / size[:, None]


def calibrated_weights(
    fields: Fields, theta: Float[np.ndarray, "n d"], gradient: Float[np.ndarray, "n d"]
) -> Float[np.ndarray, " n"]:
    """Weights of draws with Σw = 1 and Σ w f = 0: one set for every observable, quantiles and densities included (T11).

    As many groups of functions are used as there are draws for. Few weights are slightly negative; they are set to zero.
    """
    n = len(theta)
    size = max((size for size in fields.sizes.values() if size * SETTINGS.draws_per_function <= n), default=0)
    functions = fields(theta, gradient)[:, :size]
    mean = functions.mean(axis=0)
    centred = functions - mean
    direction = _solved(centred.T @ centred / n, mean[:, None])[:, 0]
    weights = np.maximum(1.0 - centred @ direction, 0.0)  # T11
    return weights / weights.sum()

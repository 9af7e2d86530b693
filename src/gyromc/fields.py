"""Zero-mean functions, and the regression of observables on them (T11).

For every vector field v, ∇·v - v·∇U has mean zero under exp(-U), and a chain has computed ∇U anyway. With z = (θ - m)/σ and the
score s = -σ∇U, the monomial q(z) in direction b gives the function q(z)·s_b + ∂q/∂z_b. An observable h = μ + cᵀf + rest is
regressed on such functions f, and mean(h - cᵀf) is reported. The coefficients for a chain come from other chains (four folds), so
the standard deviation between corrected chains is the standard error. Only sums are kept: memory does not grow with the states.
"""

import dataclasses
import enum
import functools

import numpy as np
from jaxtyping import Float, Int


class FieldGroup(enum.StrEnum):
    """The groups of fields, each containing the ones before it; the text names what is added."""

    NONE = "plain average"
    CONSTANT = "constant fields"
    POTENTIAL = "gradients of quadratics"
    ROTATION = "rotations"
    QUADRATIC = "quadratic fields"


Rows = Float[np.ndarray, "n d"]
States = Float[np.ndarray, "steps chains d"]

MOST = 1000  # fields: the normal equations of so many take half a second, and 25,000 states fit their coefficients
PAIR_SHARE = 0.3  # of what constants and squares leave, for gradients of products and as much again for rotations
BOUND = 3.0  # sd at which the factors of quadratic fields level off: cubic functions far out must not decide
AT_ONCE = 100  # points whose functions are computed together: 1000 functions of them fit into a processor's cache


@dataclasses.dataclass(frozen=True, eq=False)
class Fields:
    """A set of vector fields over z = (θ - center)/scale."""

    center: Float[np.ndarray, " d"]
    scale: Float[np.ndarray, " d"]
    # Columns (a, b), a ≤ b: gradients of z_a z_b, and rotations z_a e_b - z_b e_a where a < b.
    pairs: Int[np.ndarray, "2 pairs"]
    # Columns (a, c, b): the field w_a w_c e_b, where w is z levelled off in the tails.
    triples: Int[np.ndarray, "3 triples"]
    constants: bool = True  # whether the fields e_b are used
    rotations: bool = True  # without, no pair rotates, and a triple stands for the gradient of w_a w_c w_b

    @functools.cached_property
    def _ends(self) -> list[int]:
        """Where each group ends."""
        a, b = self.pairs
        apart = int(np.sum(a != b)) * self.rotations
        return np.cumsum([len(self.center) * self.constants, len(a), apart, self.triples.shape[1]]).tolist()

    @functools.cached_property
    def sizes(self) -> dict[FieldGroup, int]:
        groups = zip(list(FieldGroup)[1:], self._ends, [0, *self._ends], strict=False)
        return {group: end for group, end, before in groups if end > before}

    count = property(lambda self: self._ends[-1])

    def __call__(self, theta: Rows, gradient: Rows) -> np.ndarray:
        found = np.empty((self.count, len(theta)))
        for first in range(0, len(theta), AT_ONCE):
            points = slice(first, first + AT_ONCE)
            self._fill(found[:, points], theta[points], gradient[points])
        return found.T

    def _fill(self, out: np.ndarray, theta: np.ndarray, gradient: np.ndarray) -> None:
        """Write the functions at a few points: a row each, so that products run along memory."""
        z = np.ascontiguousarray(((theta - self.center) / self.scale).T)
        s = np.ascontiguousarray((-gradient * self.scale).T)
        constants, potentials, rotations, quadratics = np.split(out, self._ends[:-1])
        # ∇·v - v·∇U for v = e_b; ∇(z_a z_b); z_a e_b - z_b e_a; w_a w_c e_b
        constants[:] = s[: len(constants)]
        a, b = self.pairs
        forward, backward = z[a] * s[b], z[b] * s[a]  # T11
        np.add(forward, backward, out=potentials)
        potentials[a == b] += 2.0
        if len(rotations):
            apart = a != b
            np.subtract(forward[apart], backward[apart], out=rotations)
        a, c, b = self.triples
        # w = z/√(1 + z²/bound²) is z in the bulk and at most the bound in the tails; its two derivatives
        root = 1 / np.sqrt(1 + (z / BOUND) ** 2)
        w, slope = z * root, root**3
        if self.rotations:
            np.multiply(w[a] * w[c], s[b], out=quadratics)
            for one, other in ((a, c), (c, a)):
                (same,) = np.nonzero(other == b)
                quadratics[same] += w[one[same]] * slope[other[same]]
            return
        bend = -3 * z * root**5 / BOUND**2
        turn = slope * s + bend
        quadratics[:] = 0
        # each term is a third of the gradient of w_a w_c w_b: v = w_i w_j w_k′ e_k
        for i, j, k in ((a, c, b), (c, b, a), (b, a, c)):
            inside = w[i] * slope[j] * (j == k)[:, None] + w[j] * slope[i] * (i == k)[:, None]
            quadratics += w[i] * w[j] * turn[k] + inside * slope[k]

    def virial(self, theta: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """1 - z_i σ_i ∂_iU of every coordinate: its average is the relative error of a variance (T13)."""
        return 1.0 - (theta - self.center) * gradient  # T13


def choose_fields(
    theta: Rows, gradient: Rows, covariance: np.ndarray | None = None, rotations: bool = True, most: int = MOST
) -> Fields:
    """The fields for a target: all where they are few, else those of coordinates that depend on each other.

    The points must not be averaged later: pairs that correlate by chance would be taken, and their functions would no longer
    have mean zero.
    """
    d = theta.shape[1]
    center, scale = theta.mean(axis=0), theta.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    if d * (d + 1) ** 2 // 2 + 2 * d <= most:
        corner = np.stack(np.meshgrid(*[np.arange(d)] * 3, indexing="ij")).reshape(3, -1)
        kept = corner[0] <= corner[1]
        if not rotations:
            kept &= corner[1] <= corner[2]
        return Fields(center, scale, np.stack(np.triu_indices(d)), corner[:, kept], rotations=rotations)
    if 2 * d > most:
        return Fields(center, scale, np.zeros((2, 0), int), np.zeros((3, 0), int), constants=d <= most)
    # how far each coordinate (row) changes the curvature of another (column): |corr(z_j, z_i s_i)|
    z = (theta - center) / scale
    work = z * gradient * scale
    spread = work.std(axis=0)
    # a few points far out must not decide
    work = np.clip((work - work.mean(axis=0)) / np.where(spread > 0, spread, 1.0), -5, 5)
    drives = np.abs(z.T @ work) / len(z)
    np.fill_diagonal(drives, 0.0)
    near = np.maximum(drives, drives.T)
    if covariance is not None:
        precision = np.linalg.pinv(covariance, hermitian=True)
        size = np.sqrt(np.maximum(np.diag(precision), 1e-300))
        near = np.maximum(near, np.abs(precision) / np.outer(size, size))
    budget = int(PAIR_SHARE * (most - 2 * d))
    products = np.stack(np.triu_indices(d, 1))
    if products.shape[1] > budget:
        products = products[:, np.argsort(-near[products[0], products[1]], kind="stable")[:budget]]
    pairs = np.concatenate([np.stack([np.arange(d)] * 2), products], axis=1)
    # all z_i² e_i, then z_j z_i e_i, z_j² e_i and z_i² e_j where z_j changes the curvature of z_i most
    left = most - 2 * d - 2 * products.shape[1]
    j, i = np.unravel_index(np.argsort(-drives, axis=None, kind="stable")[: max(0, (left - d) // 3)], drives.shape)
    alone = np.stack([np.arange(d)] * 3)
    driven = [np.stack(part) for part in ((j, i, i), (j, j, i), (i, i, j))]
    triples = np.concatenate([alone, *driven], axis=1)[:, : max(0, left)]
    if not rotations:
        triples = np.unique(np.sort(triples, axis=0), axis=1)
    return Fields(center, scale, pairs, triples, rotations=rotations)


@dataclasses.dataclass(frozen=True)
class RegressionSettings:
    """The numbers of the regression."""

    folds: int = 4  # into which chains are divided; four leave three quarters of the rows for the coefficients
    segments: int = 8  # of a chain in time, at least, for a standard error with more degrees of freedom
    # Factor of every standard error: a run states hundreds, each uncertain by 13 % with 32 chains. Mean z² was 1.0 to 1.7 on
    # fresh seeds, and 3 of 7,000 estimates were off by more than 4 errors.
    caution: float = 1.2
    # Rows of every chain that are added to the normal equations at once; one by one, memory is the limit.
    together: int = 25
    ridge: float = 1e-7  # added to the diagonal of the standardised normal equations, for columns that are nearly equal
    rows_per_function: float = 1.5  # that a group of fields needs for coefficients …
    draws_per_function: int = 8  # … and for weights of draws
    # Factor by which a larger group must lower the rest to be taken: the choice must not follow noise.
    better: float = 0.98
    # Part of it, beyond chance, by which a standard error grows: it was up to 3 times too small without.
    skewness: float = 0.75
    # Of a plain standard error that is left at least: what the ridge leaves is no noise between chains.
    least_share: float = 1e-4
    # Of a plain standard error that is added where averages of some observable are skew; the same for an observable with heavy
    # tails, growing from `usual_kurtosis` over `large_kurtosis`. Runs that had missed a tail were off by 5 to 8 stated errors.
    heavy_share: float = 0.05
    rare_share: float = 0.5
    usual_kurtosis: float = 16.0
    large_kurtosis: float = 34.0


SETTINGS = RegressionSettings()


@dataclasses.dataclass(frozen=True, eq=False)
class Sharpened:
    """Averages of every chain, plain and corrected; one column for each observable."""

    plain: Float[np.ndarray, "chains k"]
    corrected: Float[np.ndarray, "chains k"]
    without_rotations: Float[np.ndarray, "chains k"]  # corrected with gradients of quadratics at most …
    with_rotations: Float[np.ndarray, "chains k"]  # … and with rotations too
    groups: list[FieldGroup]  # that each observable was regressed on
    sd: Float[np.ndarray, " k"]
    kurtosis: Float[np.ndarray, " k"]
    segment_error: Float[np.ndarray, " k"]  # from segments of chains, too small where these depend on each other
    least_share: float

    mean = property(lambda self: self.corrected.mean(axis=0))
    gain = property(lambda self: _ratio(self.plain, self.corrected))

    @property
    def std_error(self) -> np.ndarray:
        """The standard errors of `mean`, from the differences between chains, larger where few chains decide."""
        own = np.maximum(between(self.corrected) * _skewness_factor(self.corrected), self.segment_error)
        # where one observable has a heavy, slowly explored tail, all depend on it a little
        heavy = min(1.0, float(np.max(_skewness_factor(self.plain), initial=1.0)) - 1)
        share = self.least_share + SETTINGS.heavy_share * heavy
        # an observable whose fourth moment rests on few states: they may be too few
        rare = np.clip((self.kurtosis - SETTINGS.usual_kurtosis) / SETTINGS.large_kurtosis, 0.0, 1.0)
        return SETTINGS.caution * np.hypot(own, np.maximum(share, SETTINGS.rare_share * rare) * between(self.plain))

    @property
    def rotation_gain(self) -> np.ndarray:
        """The part of `gain` that rotations bring beyond gradients of quadratics."""
        return _ratio(self.without_rotations, self.with_rotations)


def between(averages: Float[np.ndarray, "chains k"]) -> np.ndarray:
    """The standard error of the mean over independent chains."""
    return averages.std(axis=0, ddof=1) / np.sqrt(len(averages))


def _ratio(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    old, new = between(before) ** 2, between(after) ** 2
    return np.where(new > 0, old / np.where(new > 0, new, 1.0), 1.0)


def _skewness_factor(averages: Float[np.ndarray, "chains k"]) -> np.ndarray:
    """The factor for a standard error from skew averages: most chains miss what a few have seen."""
    away = averages - averages.mean(axis=0)
    size = np.sqrt(np.mean(away**2, axis=0))
    skewness = np.abs(np.mean(away**3, axis=0)) / np.where(size > 0, size, 1.0) ** 3
    chance = 2 * np.sqrt(6 / len(averages))
    return 1 + SETTINGS.skewness * np.maximum(0.0, skewness - chance)


class FieldRegression:
    """Sums over the states of chains, from which averages are corrected at any time.

    - `num_chains`: at least eight.
    - `center`: rough means of the observables, so that sums of squares lose no digits.
    - `block`: consecutive states of a chain that become one row; neighbours say nearly the same, and fewer rows take less time.
    - `least`: the share of a plain standard error that is left at least.
    """

    def __init__(
        self, fields: Fields, num_chains: int, center: np.ndarray, block: int = 1, least: float = SETTINGS.least_share
    ):
        self.fields, self.center, self.block, self.least_share = fields, np.asarray(center, float), block, least
        self.states = self.rows = self.length = 0
        p, k = fields.count, len(self.center)
        self.fold = np.arange(num_chains) % SETTINGS.folds
        self.moments = np.zeros((SETTINGS.folds, p, p))
        self.products = np.zeros((SETTINGS.folds, p, k))
        self.row_squares = np.zeros((SETTINGS.folds, k))
        self.squares, self.fourths = np.zeros(k), np.zeros(k)
        # rows that wait for the normal equations; segments in time: states, sums of functions and of observables by chain
        self.pending: list[tuple[np.ndarray, np.ndarray]] = []
        self.segments: list[tuple[int, np.ndarray, np.ndarray]] = []

    def add(self, theta: States, gradient: States, values: Float[np.ndarray, "steps chains k"]) -> None:
        """Add states of all chains; their number must be a multiple of the block."""
        steps, chains, d = theta.shape
        rows = steps // self.block
        h = values - self.center
        # a row for each function: in this order sums over states run along memory
        f = self.fields(theta.reshape(-1, d), gradient.reshape(-1, d)).T
        f = f.reshape(self.fields.count, rows, self.block, chains).mean(axis=2)
        # States join the last segment, or begin one where that is full; when there are many, segments become twice as long.
        new = steps, self.block * f.sum(axis=1).T, h.sum(axis=0)
        join = lambda a, b: (a[0] + b[0], a[1] + b[1], a[2] + b[2])
        if not self.segments:
            self.length = steps
        elif self.segments[-1][0] < self.length:
            new = join(self.segments.pop(), new)
        self.segments.append(new)
        if len(self.segments) == 2 * SETTINGS.segments and new[0] >= self.length:
            self.segments = [join(*self.segments[i : i + 2]) for i in range(0, len(self.segments), 2)]
            self.length *= 2
        self.squares += np.einsum("tck,tck->k", h, h)
        self.fourths += np.einsum("tck,tck->k", h**2, h**2)
        self.states += steps
        self.rows += rows * chains
        self.pending.append((f, h.reshape(rows, self.block, chains, -1).mean(axis=1)))
        if sum(part.shape[1] for part, _ in self.pending) >= SETTINGS.together:
            self._accumulate()

    def _accumulate(self) -> None:
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

    def sd(self) -> np.ndarray:
        count = self.states * len(self.fold)
        offset = np.sum([values for _, _, values in self.segments], axis=(0, 1)) / count
        found = self.squares / count - offset**2
        # a constant leaves rounding errors only
        return np.sqrt(np.where(found > 1e-14 * (offset + self.center) ** 2, found, 0.0))

    def sharpened(self) -> Sharpened:
        """The corrected averages of all chains so far."""
        if self.pending:
            self._accumulate()
        sd = self.sd()
        lengths, functions, plain = (np.array(part) for part in zip(*self.segments, strict=True))
        functions, plain = functions / lengths[:, None, None], plain / lengths[:, None, None]
        whole = lambda averages: np.average(averages, axis=0, weights=lengths)
        best, rest = plain, self.row_squares.sum(axis=0) - self.rows * whole(plain).mean(axis=0) ** 2
        plainer, turned, groups = best, best, np.full(plain.shape[2], FieldGroup.NONE, dtype=object)
        fitted_rows = self.rows * (1 - 1 / SETTINGS.folds)
        for group, size in self.fields.sizes.items():
            if size * SETTINGS.rows_per_function > fitted_rows:
                break
            corrected, left = self._corrected(plain, functions[:, :, :size], lengths)
            taken = left < SETTINGS.better * rest
            best, rest = np.where(taken, corrected, best), np.where(taken, left, rest)
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
        return Sharpened(plain, best, plainer, turned, list(groups), sd, kurtosis, errors, self.least_share)

    def _corrected(self, plain: np.ndarray, functions: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, ...]:
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


def calibrated_weights(fields: Fields, theta: Rows, gradient: Rows) -> Float[np.ndarray, " n"]:
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

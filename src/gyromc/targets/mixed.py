"""Regressions with further parameters and groups: U(θ) = Σ_i w_i loss(t_i, y_i, …) + |θ|²/2 in scaled coordinates.

θ holds the coefficients of the columns, N(0, prior_scale²) a priori; the likelihood's further parameters; and for each group
its standard deviations, correlations and deviations. All but the coefficients are standard normal a priori, correlations
nearly; for another `Prior` U gets the logarithm of the ratio of both densities. A group with a level for every single row can
be integrated out, by quadrature row by row, and drawn afterwards. Nothing is compiled for that: `parts` takes NumPy arrays too.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Float, Int

from gyromc.checks import numbers, positive, require, shown
from gyromc.targets.base import SumOverData, of_rows, read_rows
from gyromc.targets.evidence import STEP, Evidence, RoughFit
from gyromc.targets.functions import exponential, library
from gyromc.targets.likelihoods import Likelihood
from gyromc.targets.priors import Domain, Prior, read_priors

LKJ = Prior("lkj", (2.0,))
INFORMED = 5.0  # information of a level's rows over that of the law of the levels, from which on a group is centred
NEWTON = 8  # steps to the largest value of an integrand
NODES = 20  # of the quadrature about it
REACH, GRID = 6.0, 97  # of the grid on which deviations are drawn afterwards, in the integrand's standard deviations
MOST_AT_ONCE = 4_000_000  # linear predictors held while U is evaluated at many points


class Group(eqx.Module):
    """A grouping of the rows whose levels have deviations: t_i gets Σ_c Z_ic b_{index_i, c}.

    The deviations b of a level are N(0, S R S): standard deviations S, exponential a priori with the means `scale`, and a
    correlation matrix R with the density ∝ det R^(η - 1), LKJ(η).

    **Arguments:**

    - `Z`: rows × k: ones for a random intercept, a column for a random slope.
    - `index`: the level of every row, from 0.
    - `num_levels`: how many levels there are.
    - `scale`: k prior means of the standard deviations.
    - `centred`: whether θ holds the deviations themselves, in units of `scale`; otherwise standard normal numbers that the
      standard deviations and correlations turn into them. The first suits levels with many rows, the second those with few.
    - `priors`: for each standard deviation a `Prior` or its text, None for the exponential one.
    - `correlations`: the prior of the correlations, `"lkj(2)"`.
    - `integrated`: whether the deviations, one for each row, are integrated out by quadrature: θ does not hold them.
    - `evidence`: what the rows say of the levels; then θ holds numbers that are nearly standard normal given the rest of θ.

    ```python
    import numpy as np
    import gyromc as gm
    group = gm.targets.Group(np.ones((4, 1)), [0, 0, 1, 1], num_levels=2, scale=[1.0])
    print(group.sizes)  # (1, 0, 2)
    ```
    """

    Z: Float[np.ndarray, "rows k"]
    index: Int[np.ndarray, " rows"]
    scale: Float[np.ndarray, " k"]
    num_levels: int = eqx.field(static=True)
    centred: bool = eqx.field(static=True, default=False)
    priors: tuple[Prior | None, ...] = eqx.field(static=True, default=())
    correlations: Prior = eqx.field(static=True, default=LKJ)
    integrated: bool = eqx.field(static=True, default=False)
    evidence: Evidence | None = None

    def __init__(
        self,
        Z,
        index,
        num_levels: int,
        scale,
        centred: bool = False,
        priors: Sequence[str | Prior | None] = (),
        correlations: str | Prior = LKJ,
        integrated: bool = False,
        evidence: Evidence | None = None,
    ):
        self.Z, self.index, self.scale = numbers(Z, "Z"), np.asarray(index, np.int32), numbers(scale, "scale")
        self.num_levels, self.centred, self.integrated, self.evidence = num_levels, centred, integrated, evidence
        shapes = self.Z.shape, self.index.shape
        fits = len(shapes[0]) == 2 and shapes[1] == shapes[0][:1] and self.scale.shape == shapes[0][1:]
        require(fits, f"`Z` must be rows × columns with a level for each row: got {shapes[0]} and {shapes[1]}.")
        inside = self.index.size == 0 or (self.index.min() >= 0 and self.index.max() < num_levels)
        require(inside, f"`index` must hold levels 0 … {num_levels - 1}: got up to {int(self.index.max(initial=0))}.")
        listed = isinstance(priors, list | tuple) and len(priors) in (0, self.Z.shape[1])
        each = f"`priors` must be a list with one entry for each of {self.Z.shape[1]} columns of `Z`"
        require(listed, f"{each}: got {shown(priors)}.")
        of = "The prior of a group's standard deviation"
        self.priors = tuple(p if p is None else Prior.read(p, of).require(Domain.POSITIVE, of) for p in priors)
        alone = not integrated or self.by_row
        require(alone, "`integrated` is for a group whose levels have one row and one column each.")
        of = "The prior of a group's correlations"
        self.correlations = Prior.read(correlations, of).require(Domain.CORRELATIONS, of)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """How many numbers of θ make the standard deviations, the correlations and the deviations."""
        k = self.Z.shape[1]
        return k, k * (k - 1) // 2, 0 if self.integrated else k * self.num_levels

    @property
    def by_row(self) -> bool:
        """Whether every row is a level of its own, with one deviation."""
        alone = self.num_levels == len(self.Z) == len(np.unique(self.index))
        return alone and self.Z.shape[1] == 1 and bool(np.all(self.Z))

    def sds(self, u):
        return exponential(u) * self.scale

    @property
    def _partial(self) -> list[tuple[int, int, float, float]]:
        """Partial correlations of columns i and j given those before j: sd and a of z = artanh r, p(z) ∝ cosh(z)^{-2a}."""
        k, eta = self.Z.shape[1], self.correlations["concentration"]
        law = [eta + (k - 2 - j) / 2 for j in range(k - 1)]
        sd = [math.sqrt(scipy.special.polygamma(1, a) / 2) for a in law]
        return [(i, j, sd[j], law[j]) for j in range(k - 1) for i in range(j + 1, k)]

    def correlation_root(self, u):
        """The Cholesky factor of the correlation matrix, from partial correlations: … × k × k."""
        xp, k = library(u), self.Z.shape[1]
        r = {(i, j): xp.tanh(scale * u[..., n]) for n, (i, j, scale, _) in enumerate(self._partial)}
        one, zero = xp.ones(u.shape[:-1], u.dtype), xp.zeros(u.shape[:-1], u.dtype)
        rows = []
        for i in range(k):
            row, left = [], one
            for j in range(i):
                row.append(r[i, j] * left)
                left = left * xp.sqrt(1 - r[i, j] ** 2)
            rows.append(xp.stack([*row, left, *[zero] * (k - 1 - i)], axis=-1))
        return xp.stack(rows, axis=-2)

    def root(self, u_sd, u_correlation):
        """The Cholesky factor of the covariance of a level's deviations: … × k × k."""
        return self.sds(u_sd)[..., :, None] * self.correlation_root(u_correlation)

    def deviations(self, u_sd, u_correlation, z, effects=None):
        """The deviations, … × levels × k; `effects`: what the evidence says of them, … × levels."""
        if self.evidence is not None:
            # The law of b given the effects e, b + N(0, c), and b ~ N(0, σ²): N(we, wc), w = σ²/(σ² + c).
            variance, chance = self.sds(u_sd) ** 2, self.evidence.variance
            share = variance / (variance + chance)
            return (library(z).sqrt(share * chance) * z + share * effects)[..., None]
        z = z.reshape(*z.shape[:-1], self.num_levels, self.Z.shape[1])
        if self.centred:
            return z * self.scale
        return z @ library(z).swapaxes(self.root(u_sd, u_correlation), -1, -2)

    def law_energy(self, u_sd, u_correlation):
        """-log p of the numbers that make standard deviations and correlations, up to a constant: …."""
        xp, sds = library(u_sd), self.sds(u_sd)
        found = 0.5 * xp.sum(u_sd**2, axis=-1)
        for k, prior in enumerate(self.priors):
            if prior is not None:
                found = found - sds[..., k] / self.scale[k] - prior.log_density(sds[..., k])
        for n, (_, _, scale, a) in enumerate(self._partial):
            z = scale * u_correlation[..., n]
            found = found + 2 * a * xp.logaddexp(z, -z)
        return found

    def drawn(self, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Draws from the prior: roots of the covariance of a level's deviations, and deviations."""
        k = self.Z.shape[1]
        sds = self.sds(rng.standard_normal((*shape, k)))
        for j, prior in enumerate(self.priors):
            if prior is not None:
                sds[..., j] = prior.draw(rng, shape, 0.0)
        u = [np.arctanh(2 * rng.beta(a, a, shape) - 1) / scale for _, _, scale, a in self._partial]
        root = sds[..., :, None] * self.correlation_root(np.stack(u or [np.zeros(shape)], axis=-1))
        return root, rng.standard_normal((*shape, self.num_levels, k)) @ np.swapaxes(root, -1, -2)

    def energy(self, u_sd, u_correlation, z, b):
        """-log p of the numbers z that make the deviations b, given the others, up to a constant."""
        if self.integrated:
            return 0.0
        if self.evidence is not None:
            variance = self.sds(u_sd) ** 2
            return 0.5 * jnp.sum(b**2 / variance + jnp.log(variance + self.evidence.variance)[:, None])
        if not self.centred:
            return 0.5 * jnp.sum(z**2)
        L = self.root(u_sd, u_correlation)
        standard = jax.scipy.linalg.solve_triangular(L, b.T, lower=True)
        return 0.5 * jnp.sum(standard**2) + self.num_levels * jnp.sum(jnp.log(jnp.diagonal(L)))


def _center(loss, sd):
    """Where exp(-loss(sd z)) N(z; 0, 1) is largest, and its width there, by short Newton steps with difference quotients."""
    xp = library(sd)
    longest = xp.minimum(2.0, 3.0 / xp.maximum(xp.abs(sd), STEP))

    def newton(_, found):
        z, _ = found
        low, middle, high = (loss(sd * z + h) for h in (-STEP, 0.0, STEP))
        slope = z + sd * (high - low) / (2 * STEP)
        width = 1 / xp.sqrt(1 + sd**2 * xp.maximum((high - 2 * middle + low) / STEP**2, 0.0))
        return z - xp.clip(slope * width**2, -longest, longest), width

    start = xp.zeros_like(sd), xp.ones_like(sd)
    if xp is np:
        return functools.reduce(lambda found, i: newton(i, found), range(NEWTON), start)
    # written out, the steps took most of the time to compile a model
    return jax.lax.fori_loop(0, NEWTON, newton, start)


def _drawn(loss, sd: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A draw of sd·z for every row from exp(-loss(sd z)) N(z; 0, 1): its distribution function on a grid, inverted."""
    center, width = _center(loss, sd)
    grid = np.linspace(-REACH, REACH, GRID)
    terms = np.stack([-loss(sd * z) - z**2 / 2 for z in (center + width * step for step in grid)])
    density = np.exp(terms - terms.max(axis=0))
    # Uniform within the cell about each point of the grid.
    below = np.cumsum(density, axis=0)
    u = rng.random(sd.shape) * below[-1]
    cell = np.minimum(np.sum(below < u, axis=0), GRID - 1)
    before, inside = (np.take_along_axis(x, cell[None], axis=0)[0] for x in (below - density, density))
    step = grid[1] - grid[0]
    return sd * (center + width * (grid[cell] + step * ((u - before) / inside - 0.5)))


def integrated_loss(loss, sd, still=None):
    """-log ∫ exp(-loss(sd z)) N(z; 0, 1) dz for every row, by Gauss-Hermite quadrature about the largest integrand.

    `loss` takes rows, or nodes × rows; `still`: the same without derivatives, which places the nodes.
    """
    nodes, weights = np.polynomial.hermite.hermgauss(NODES)
    center, width = jax.lax.stop_gradient(_center(still or loss, jax.lax.stop_gradient(sd)))
    z = center + math.sqrt(2) * width * nodes[:, None]
    terms = (np.log(weights) + nodes**2)[:, None] - loss(sd * z) - z**2 / 2
    return -jax.scipy.special.logsumexp(terms, axis=0) - jnp.log(width / math.sqrt(math.pi))


class MixedRegression(SumOverData):
    """A regression with any `Likelihood`, its further parameters, an offset, weights and groups.

    **Arguments:**

    - `X`, `y`: as for all regressions; `X` may have no columns.
    - `likelihood`: the law of y given its linear predictors.
    - `prior_scale`: of the coefficients.
    - `offset`: a known part of each linear predictor; `weights`: how much each row counts.
    - `known`: what the likelihood is given for every row, such as trials.
    - `groups`: `Group`s.
    - `priors`: by name of a further parameter (`"sigma"`, `"shape"`, `"cutpoints"`, …) or number of a coefficient (`"0"`): a
      `Prior` or its text.

    ```python
    import numpy as np
    from gyromc.targets import MixedRegression
    from gyromc.targets.families import NegativeBinomial
    target = MixedRegression([[1.0], [1.0], [1.0]], [0, 3, 1], NegativeBinomial(), prior_scale=2.0)
    print(target.dim, np.isfinite(target.potentials(np.zeros((1, 2)))[0]))  # 2 True
    ```
    """

    X: Float[np.ndarray, "rows d"]
    y: Float[np.ndarray, " rows"]
    offset: Float[np.ndarray, " rows"]
    weights: Float[np.ndarray, " rows"]
    known: tuple[Float[np.ndarray, " rows"], ...]
    groups: tuple[Group, ...]
    prior_precision: Float[np.ndarray, ""]
    likelihood: Likelihood = eqx.field(static=True)
    priors: tuple[tuple[str, Prior], ...] = eqx.field(static=True, default=())

    def __init__(
        self,
        X,
        y,
        likelihood: Likelihood,
        prior_scale: float = 1.0,
        *,
        offset=None,
        weights=None,
        known: tuple = (),
        groups: tuple[Group, ...] = (),
        priors: Mapping[str, str | Prior] | None = None,
    ):
        self.X, self.y = read_rows(X, y, least=(0, 0))
        rows = len(self.X)
        self.offset = np.zeros(rows) if offset is None else of_rows(offset, "offset", rows)
        self.weights = np.ones(rows) if weights is None else of_rows(weights, "weights", rows)
        self.known, self.groups, self.likelihood = tuple(numbers(k, "known") for k in known), tuple(groups), likelihood
        for group in self.groups:
            require(len(group.Z) == rows, f"A group has {len(group.Z)} rows, but `X` has {rows}.")
        require(not (likelihood.vector and self.groups), "Groups are for models with one linear predictor per row.")
        self.prior_precision = np.asarray(positive(prior_scale, "prior_scale") ** -2)
        domains = {one.name: one.domain for one in likelihood.further}
        domains |= {str(j): Domain.REAL for j in range(self.num_coefficients)}
        self.priors = tuple(read_priors(priors, domains).items())

    @property
    def num_data(self) -> int:
        return self.X.shape[0]

    @property
    def design(self) -> tuple[np.ndarray, np.ndarray]:
        return self.X, self.y

    @property
    def num_coefficients(self) -> int:
        """How many entries of θ are coefficients of columns; they come first."""
        return self.likelihood.outputs * self.X.shape[1]

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        of_groups = [n for group in self.groups for n in group.sizes]
        return np.cumsum([self.num_coefficients, len(self.likelihood.auxiliary), *of_groups])

    @property
    def dim(self) -> int:
        return int(self._ends[-1])

    @functools.cached_property
    def _order(self) -> list[int]:
        """The groups, those with few levels first: the evidence of a group depends on the deviations of those before it."""
        key = lambda i: (self.groups[i].integrated, self.groups[i].num_levels)
        return sorted(range(len(self.groups)), key=key)

    def parts(self, theta) -> tuple[Any, Any, list[list[Any]]]:
        """θ cut into coefficients, further parameters, and for each group its three pieces: … × size each."""
        beta, further, *rest = (theta[..., a:b] for a, b in itertools.pairwise([0, *self._ends]))
        return beta, further, [rest[i : i + 3] for i in range(0, len(rest), 3)]

    def given(self, theta) -> tuple[Any, ...]:
        """The likelihood's further parameters on their own scale, each of shape …."""
        return self.likelihood.natural(self.parts(theta)[1])

    def deviations(self, theta, rng: np.random.Generator | None = None) -> list[Any]:
        """The deviations of the levels of each group, … × levels × k; integrated ones are drawn with `rng`, else zero."""
        known, _, pieces = self.parts(theta)
        xp = library(theta)
        found: list[Any] = [None] * len(self.groups)
        for i in self._order:
            group = self.groups[i]
            if not group.integrated:
                u_sd, u_correlation, z = pieces[i]
                effects = None if group.evidence is None else group.evidence.given(known)
                found[i] = group.deviations(u_sd, u_correlation, z, effects)
                columns = xp.swapaxes(found[i], -1, -2)
                known = xp.concatenate([known, columns.reshape(*columns.shape[:-2], -1)], axis=-1)
            elif rng is None:
                found[i] = xp.zeros((*theta.shape[:-1], group.num_levels, 1))
            else:
                flat = theta.reshape(-1, self.dim)
                at_once = max(1, MOST_AT_ONCE // (GRID * self.num_data))
                drawn = [self._integrated(flat[n : n + at_once], i, rng) for n in range(0, len(flat), at_once)]
                found[i] = np.concatenate(drawn).reshape(*theta.shape[:-1], group.num_levels, 1)
        return found

    def _integrated(self, theta: np.ndarray, i: int, rng: np.random.Generator) -> np.ndarray:
        """Draws of the deviations of a group that was integrated out: points × levels."""
        group, (beta, _, pieces) = self.groups[i], self.parts(theta)
        t = beta @ self.X.T + self.offset
        for other, b in zip(self.groups, self.deviations(theta), strict=True):
            t = t + np.sum(other.Z * b[:, other.index], axis=-1)
        given = *self.known, *(value[:, None] for value in self.given(theta))
        loss = lambda more: self.weights * self.likelihood.loss(t + more, self.y, *given)
        drawn, sd = np.empty((len(theta), group.num_levels)), group.sds(pieces[i][0]) * group.Z[:, 0]
        drawn[:, group.index] = _drawn(loss, sd, rng) / group.Z[:, 0]  # by row, in units of the column
        return drawn

    def roots(self, theta) -> list[Any]:
        """The Cholesky factors of the covariance of the deviations of each group: … × k × k."""
        return [group.root(*pieces[:2]) for group, pieces in zip(self.groups, self.parts(theta)[2], strict=True)]

    def _losses(self, theta, rows):
        X, y, offset, weights, known, groups = rows
        beta, _, pieces = self.parts(theta)
        t = X @ beta.reshape(self.likelihood.outputs, -1).T if self.likelihood.vector else X @ beta + offset
        for (Z, index), b in zip(groups, self.deviations(theta), strict=True):
            t = t + jnp.sum(Z * b[index], axis=-1)
        law = t, self.given(theta)
        loss = lambda t, given, more: weights * self.likelihood.loss(t + more, y, *known, *given)
        for i, group in enumerate(self.groups):
            if group.integrated:
                still = functools.partial(loss, *jax.lax.stop_gradient(law))
                sd = group.sds(pieces[i][0])[0] * groups[i][0][:, 0]
                return integrated_loss(functools.partial(loss, *law), sd, still)
        return loss(*law, 0.0)

    def _rows(self, index=None):
        whole = (self.X, self.y, self.offset, self.weights, self.known, tuple((g.Z, g.index) for g in self.groups))
        return jax.tree.map(jnp.asarray if index is None else lambda x: jnp.asarray(x)[index], whole)

    @property
    def coefficient_priors(self) -> dict[int, Prior]:
        return {int(name): prior for name, prior in self.priors if name.isdigit()}

    def _prior(self, params):
        beta, further, pieces = self.parts(params)
        found = 0.5 * self.prior_precision * jnp.vdot(beta, beta) + self.law_energy(further, pieces)
        for j, prior in self.coefficient_priors.items():
            found = found - 0.5 * self.prior_precision * beta[j] ** 2 - prior.log_density(beta[j])
        for group, (u_sd, u_correlation, z), b in zip(self.groups, pieces, self.deviations(params), strict=True):
            found = found + group.energy(u_sd, u_correlation, z, b)
        return found

    def law_energy(self, further, pieces):
        """-log p of the further parameters and of the groups' standard deviations and correlations, as in `parts`: …."""
        found = 0.5 * library(further).sum(further**2, axis=-1)
        if asked := {name: prior for name, prior in self.priors if not name.isdigit()}:
            found = found + self.likelihood.prior_change(self.likelihood.natural(further), asked)
        return found + sum(group.law_energy(*own[:2]) for group, own in zip(self.groups, pieces, strict=True))

    def in_good_coordinates(self) -> "MixedRegression":
        """The same model with deviations of single rows integrated out, and the others nearly independent of what they depend on.

        A deviation that varies with its group's standard deviation makes a narrow curved ridge where rows determine it, a funnel
        where they do not, and which it is differs between levels. Groups with several columns are centred or not.
        """
        if not self.groups:
            return self
        found = self.centred([False] * len(self.groups))
        rough = RoughFit(self, [self.groups[i] for i in found._order])
        groups = list(found.groups)
        for place, i in enumerate(found._order):
            evidence, more = rough.evidence(place)
            if groups[i].Z.shape[1] > 1:
                groups[i] = dataclasses.replace(groups[i], centred=more > INFORMED)
            elif not groups[i].integrated and np.isfinite(evidence.effects).all():
                groups[i] = dataclasses.replace(groups[i], evidence=evidence)
        return eqx.tree_at(lambda target: target.groups, found, tuple(groups))

    def centred(self, which: Sequence[bool]) -> "MixedRegression":
        """The same model with these groups centred, the others not, and the first group of single rows integrated out."""
        alone = [group.by_row and self.likelihood.convex and not self.likelihood.vector for group in self.groups]
        each = zip(self.groups, which, [own and not any(alone[:i]) for i, own in enumerate(alone)], strict=True)
        groups = tuple(dataclasses.replace(group, centred=centred, integrated=out) for group, centred, out in each)
        return eqx.tree_at(lambda target: target.groups, self, groups)

    def potential(self, params):
        return jnp.sum(self._losses(params, self._rows())) + self._prior(params)

    def batch_gradient(self, params, index):
        return jax.grad(lambda theta: jnp.sum(self._losses(theta, self._rows(index))))(params)

    def prior_gradient(self, params):
        return jax.grad(self._prior)(params)

    def log_likelihoods(self, params):
        unweighted = eqx.tree_at(lambda target: target.weights, self, np.ones_like(self.weights))
        constant = self.likelihood.constant(np.asarray(self.y), *map(np.asarray, self.known))
        return {"y": -unweighted._losses(params, unweighted._rows()) - constant}

    def points_at_once(self, products):
        most = max(1, MOST_AT_ONCE // (products * self.num_data * self.likelihood.outputs))
        return min(2**15, 1 << (most.bit_length() - 1))  # a power of two

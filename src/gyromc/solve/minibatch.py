"""Chains for many rows of data, with the interface of `LangevinChains`: Leimkuhler–Matthews steps with mini-batch gradients.

The target is a sum over data, near Gaussian around one mode. The noise that the control variate of order 2 leaves has mean zero:
gradients serve the regression on zero-mean functions as exact ones do. The size of the batch follows from the noise.
"""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gyromc.approx.modes import descend
from gyromc.errors import InvalidInput
from gyromc.model import Model
from gyromc.oracles import ControlVariate
from gyromc.runtime.evaluation import compiled, doubled
from gyromc.solve.chains import ChainSettings, DenseMetric, Round, stacked
from gyromc.targets import StreamedRegression, SumOverData
from gyromc.targets.regressions import KnownLikelihood


@dataclasses.dataclass(frozen=True)
class MinibatchSettings:
    """The numbers of the mini-batch chains."""

    least_work: float = (
        4e5  # rows × parameters, and rows, from which on they are used: below, all rows take a second or two
    )
    least_rows: int = 20_000
    most_parameters: int = 500  # up to which the curvature at the mode is formed
    step: float = 0.5  # η; second order, exact on a Gaussian, and far below the limit 2
    first_size: int = 16  # of the batch with which the noise is measured
    noise: float = (
        0.02  # in units of the posterior's own gradients; η/2 of it is the relative error of a plain variance
    )
    most_share: float = 0.02  # of the rows that a batch may have; beyond, all rows are read
    fewest: int = 4  # rounds of warm-up, as chains start from the Gaussian at the mode
    first_look: int = 20  # rounds before the first estimate


SETTINGS = MinibatchSettings()


class NoServiceError(Exception):
    """Mini-batches do not serve here; the text says why."""


@compiled
def _round(target, oracle, state, metric, eta, key_data, steps: int):
    """Steps of all chains, with the states and the gradients that moved them; the key comes as two whole numbers."""

    def step(carry, key):
        theta, noise = carry
        batch_key, noise_key = jax.random.split(key)
        zeta = oracle.draw(batch_key, target, len(theta), theta.shape[1], theta.dtype)
        g = jax.vmap(lambda t, z: oracle.gradient(target, t, z))(theta, zeta)
        fresh = jax.random.normal(noise_key, theta.shape)
        move = -eta * metric.pull(g) + jnp.sqrt(2 * eta) * 0.5 * (noise + fresh)
        return (theta + metric.push(move), fresh), (theta, g)

    return jax.lax.scan(step, state, jax.random.split(jax.random.wrap_key_data(key_data, impl="threefry2x32"), steps))


def serves_minibatches(target: Any, dim: int) -> bool:
    """Whether a target has so many rows that mini-batches are worth their set-up, or rows that are not in memory."""
    if not isinstance(target, SumOverData) or target.gaussian() is not None or dim > SETTINGS.most_parameters:
        return False
    rows = math.inf if isinstance(target, StreamedRegression) else target.num_data
    return rows >= SETTINGS.least_rows and rows * dim >= SETTINGS.least_work


class MinibatchChains:
    """As `LangevinChains`, with gradients from mini-batches; `NoServiceError` from `begin` where these are too noisy."""

    thetas = staticmethod(lambda states: states)
    first_look, step_size = SETTINGS.first_look, SETTINGS.step

    def __init__(self, model: Model, seed: int = 0, settings: ChainSettings | None = None):
        self.settings = settings or ChainSettings()
        self.model, self.dim = model, model.dim
        self.rng = np.random.default_rng(seed)
        self.gradients, self._rows = 0, 0
        self.warm: list[Round] = []

    def begin(self, start: np.ndarray) -> None:
        target: Any = self.model.flat_target
        try:
            known = isinstance(target, KnownLikelihood)
            mode = self.model.mode if known else descend(target, start, gradient=1e-6)[0].x
            oracle = ControlVariate(SETTINGS.first_size, center=mode, order=2).prepared(self.model)
            assert oracle.operator is not None
            with jax.enable_x64(True):
                prior = np.asarray(eqx.filter_jit(lambda t, x: jax.jacfwd(t.prior_gradient)(x))(doubled(target), mode))
            # K = ∇²U at the mode: the data's part is the oracle's
            K = oracle.operator.dense() + prior
            root = np.linalg.inv(np.linalg.cholesky((K + K.T) / 2)).T
        except (InvalidInput, np.linalg.LinAlgError) as error:
            raise NoServiceError(str(error)) from error
        self.gradients += 30 + self.dim
        theta = mode + self.rng.standard_normal((self.settings.chains, self.dim)) @ root.T
        with jax.enable_x64(True):
            self.target, self.metric, self.oracle = doubled(target), DenseMetric(root), doubled(oracle)
            self.state = jnp.asarray(theta), jnp.asarray(self.rng.standard_normal(theta.shape))
        # steps of length zero: the gradients at the same points differ by their batches alone
        gradient = self._moved(0.0)[1] @ root
        noise = float(np.mean(gradient.var(axis=0, ddof=1)))
        size = math.ceil(SETTINGS.first_size * max(1.0, noise / SETTINGS.noise)) if math.isfinite(noise) else math.inf
        if size > SETTINGS.most_share * target.num_data:
            raise NoServiceError(f"{size} rows a step would be needed")
        if size != self.oracle.size:
            self.oracle = eqx.tree_at(lambda o: o.size, self.oracle, size)

    def _moved(self, eta: float) -> tuple[np.ndarray, np.ndarray]:
        """A round of steps of length η: states and gradients, steps × chains × d."""
        key, steps = self.rng.integers(2**32, size=2, dtype=np.uint32), self.settings.steps
        with jax.enable_x64(True):
            self.state, found = _round(self.target, self.oracle, self.state, self.metric, np.float64(eta), key, steps)
            return np.asarray(found[0]), np.asarray(found[1])

    def sample(self) -> Round:
        theta, gradient = self._moved(SETTINGS.step)
        self._rows += self.settings.steps * self.settings.chains * 2 * self.oracle.size
        self.gradients = 30 + self.dim + math.ceil(self._rows / self.target.num_data)
        if not np.isfinite(theta).all():
            raise NoServiceError("chains with mini-batches diverged")
        ones = np.ones(theta.shape[:2])
        return Round(theta, gradient, ones, ones)

    def warm_up(self) -> None:
        self.warm.append(self.sample())

    @property
    def settled(self) -> bool:
        """Whether the chains have forgotten the Gaussian they started from."""
        return len(self.warm) >= SETTINGS.fewest

    def warm_states(self) -> tuple[np.ndarray, np.ndarray]:
        return stacked(self.warm)

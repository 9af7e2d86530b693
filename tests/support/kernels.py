"""The engine `pallas` in tests: states after some steps, and the same steps in float64 from the same random numbers.

Without a GPU the kernel is interpreted (the fixture `kernels` of tests/engines), in one large block, since interpreting costs per
block.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from gyromc.engines import pallas
from gyromc.engines.pallas import threads as philox
from gyromc.engines.pallas.threads import Layout
from gyromc.oracles import Batch, Gaussian

ON_GPU = jax.default_backend() == "gpu"


def block(plan, team=None) -> Layout:
    """On the CPU one large block, on the GPU the default."""
    team = team or pallas.team_size(plan)
    if ON_GPU:
        return pallas.default_layout(plan, team)
    return Layout(min(2**15, 1 << (plan.num_chains - 1).bit_length()), 1, interpret=True)


def advanced(plan, chunks=None, team=None, layout=None, bound=1e8):
    """The state after the plan's steps, made in the given chunks."""
    session = pallas.Session(plan, pallas.initial_state(plan), bound, None, 0, team, layout or block(plan, team))
    for steps in chunks or [plan.num_steps + plan.burn_in]:
        session.advance(steps)
    return session.state()


def same(a, b) -> bool:
    """Whether two states are equal to the last bit."""
    return all(np.array_equal(getattr(a, f), getattr(b, f)) for f in ("z", "high", "low", "failed_at"))


def words(plan, k: int, count: int, stream: int):
    """The random words of step k: chains × count, rounded up to whole draws."""
    return _words(*_counted(plan, k, stream), plan.num_chains, count)


def _counted(plan, k: int, stream: int):
    """The seed, the step and the stream as words."""
    return np.array([plan.seed & 0xFFFFFFFF, plan.seed >> 32], np.uint32), np.uint32(k), np.uint32(stream)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _words(seed, k, stream, num_chains, count):
    chain, draw = jnp.indices((num_chains, -(-count // 4)), jnp.uint32)
    counter = jnp.full_like(chain, k), chain, draw, jnp.full_like(chain, stream)
    return jnp.stack(philox.random_words((seed[0], seed[1]), counter), -1).reshape(num_chains, -1)


def normals(plan, k: int, count: int, stream: int) -> np.ndarray:
    """The normals of step k: chains × count."""
    return np.asarray(_normals(*_counted(plan, k, stream), plan.num_chains, count), float)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _normals(seed, k, stream, num_chains, count):
    drawn = _words(seed, k, stream, num_chains, count)
    return jnp.stack(philox.normals([drawn[:, i] for i in range(drawn.shape[1])]), 1)[:, :count]


def reference_step(plan, y, k):
    """y⁺ = Ay + Bĝ + Cξ for all chains with the kernel's random numbers, by the plan's own oracle and scheme in float64."""
    n, d, step = plan.dynamics.size, plan.dim, plan.step_matrices
    g = np.concatenate([_gradient(plan, y[:, :d], k), y[:, d:n]], 1)
    drift = y @ step.A.T + g @ step.B.T
    xi, noise = normals(plan, k, n, philox.NOISE), step.C
    if isinstance(plan.oracle, Gaussian):
        spread = float(plan.oracle.tau) * step.B[:, :d]
        if plan.martingale or len(step.A) > n:
            drift = drift + normals(plan, k, d, philox.ORACLE) @ spread.T
        else:
            noise = np.linalg.cholesky(noise @ noise.T + spread @ spread.T)
    return drift + xi @ noise.T


def _gradient(plan, theta, k) -> np.ndarray:
    theta = jnp.asarray(theta, jnp.float32)
    if not isinstance(plan.oracle, Batch):
        return np.asarray(jax.jit(jax.vmap(plan.flat_target.gradient))(theta), float)
    drawn = words(plan, k, plan.oracle.size, philox.ROWS)[:, : plan.oracle.size]
    index = batches(plan.oracle, drawn, plan.target.num_data)
    oracle, target = plan.prepared_oracle, plan.flat_target
    return np.asarray(jax.jit(jax.vmap(lambda t, i: oracle.gradient(target, t, i)))(theta, index), float)


def batches(oracle, drawn, num_rows):
    """Row numbers from words; distinct ones by Floyd's rule, one chain at a time."""
    if oracle.replace:
        return philox.row_numbers(drawn, num_rows)
    rows = []
    for row in np.asarray(drawn).astype(object):
        taken = []
        for last, word in zip(range(num_rows - oracle.size, num_rows), row, strict=True):
            number = word * (last + 1) >> 32
            taken.append(last if number in taken else number)
        rows.append(taken)
    return jnp.asarray(np.array(rows, np.int32))

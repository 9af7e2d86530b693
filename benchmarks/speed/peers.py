"""The work and the competitors of the speed benchmark: gyromc's engines, other packages, a plain loop and a lower bound.

Input: a piece of work. Output: functions that make a number of steps of it. Every competitor runs what its users would write:
BlackJAX's samplers vmapped over chains inside one compiled `lax.scan`; posteriors' in a loop over steps with the chains as a
batch; the plain `lax.scan` holds all chains as one array and is the fastest of its kind that we could write.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gyromc as gm
from gyromc.engines import ENGINES, scan

ETA = 0.00125


@dataclasses.dataclass(frozen=True, eq=False)
class Work:
    """A plan with fixed chains and sampler; the timing chooses the number of steps."""

    name: str
    description: str
    plan: gm.Plan
    terms: int = 1
    first_steps: int = 50
    only: tuple[str, ...] = ()
    steps: int | None = None  # None: as many as the time allows
    varied: str = ""  # the quantity that varies in a series
    against: str = ""  # the work whose time this one's is divided by

    @property
    def chains(self) -> int:
        return self.plan.num_chains


@dataclasses.dataclass(frozen=True)
class Competitor:
    """`prepare(work)` compiles and returns a function of the number of steps."""

    prepare: Callable[[Work], Callable[[int], None]]
    can: Callable[[Work], bool] = lambda work: True
    needs: str | None = None


INTEGRATION_STEPS = 10  # BlackJAX's SGHMC draws momenta anew after so many gradients: its default


def _logistic_data(rows=202, d=14):
    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(rows), rng.standard_normal((rows, d - 1))])
    return X, (rng.random(rows) < 1 / (1 + np.exp(-X @ rng.standard_normal(d) / 2))).astype(float)


def _nonquadratic(chains=2000, dim=3, first_steps=50, name="nonquadratic", **rest) -> Work:
    u = np.zeros(dim)
    u[:2] = np.sqrt(0.5), -np.sqrt(0.5)
    plan = gm.Plan(
        target=gm.targets.CosinePerturbed(dim, 1.2),
        dynamics=gm.dynamics.overdamped(dim),
        oracle=gm.oracles.Gaussian(1.0),
        observables={"h": gm.observables.tanh(u)},
        step_size=0.0125,
        num_chains=chains,
        dtype="float32",
    )
    return Work(
        name, f"U = ½|θ|² + 1.2 Σ cos θ_i, d = {dim}, Gaussian oracle, {chains} chains", plan, 1, first_steps, **rest
    )


def _regression(kind: str) -> Work:
    if kind == "linear":
        rng = np.random.default_rng(0)
        X = rng.uniform(-0.5, 0.5, (128, 3))
        y, b = X @ [1, -1, 0.5] + rng.standard_normal(128), 16
        target = gm.targets.LinearRegression(X, y, prior_scale=2.0)
        h = gm.observables.linear([np.sqrt(0.5), -np.sqrt(0.5), 0.0])
    else:
        X, y = _logistic_data()
        target, b, h = gm.targets.LogisticRegression(X, y, prior_scale=1.0), 32, gm.observables.predictive(X[0])
    plan = gm.Plan(
        target=target,
        dynamics=gm.dynamics.overdamped(target.dim),
        oracle=gm.oracles.Minibatch(b),
        observables={"h": h},
        step_size=ETA,
        num_chains=2000,
        dtype="float32",
    )
    return Work(kind, f"{kind} regression, d = {target.dim}, N = {target.num_data}, b = {b}, 2000 chains", plan, b, 10)


def _quadratic() -> Work:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((64, 64)) / 8
    plan = gm.Plan(
        target=gm.targets.Quadratic(np.eye(64) + A @ A.T),
        dynamics=gm.dynamics.overdamped(64),
        oracle=gm.oracles.Gaussian(1.0),
        observables={"h": gm.observables.linear(np.eye(64)[0])},
        step_size=0.0125,
        num_chains=2000,
        dtype="float32",
    )
    return Work("quadratic", "a Gaussian target with a dense precision matrix, d = 64, 2000 chains", plan, 1, 10)


def _network() -> Work:
    """A network with 10⁶ weights, one chain: here the gradient is the cost, and an engine can only add to it."""
    rng = np.random.default_rng(0)
    sizes = (784, 1100, 120, 10)
    pixels, labels = rng.standard_normal((512, sizes[0])).astype(np.float32), rng.integers(0, sizes[-1], 512)

    def log_likelihood(weights, datum):
        x, label = datum
        for W in weights[:-1]:
            x = jnp.tanh(W @ x)
        return jax.nn.log_softmax(weights[-1] @ x)[label]

    start = [rng.standard_normal((b, a)).astype(np.float32) / np.sqrt(a) for a, b in itertools.pairwise(sizes)]
    prior = lambda weights: sum(-0.5 * jnp.sum(W**2) for W in weights)
    plan = gm.Plan(
        target=gm.targets.FiniteSum(log_likelihood, prior, (pixels, labels)),
        dynamics=gm.dynamics.overdamped(start),
        oracle=gm.oracles.Minibatch(64),
        observables={"h": gm.observables.function(lambda weights: weights[-1][0, 0])},
        step_size=1e-5,
        num_steps=1000,
        num_chains=1,
        start=start,
        dtype="float32",
    )
    return Work(
        "network", f"a network of {plan.dim} weights, b = 64, 1 chain", plan, 64, 3, ("gyromc scan", "lax.scan")
    )


def _gradient_and_noise(work: Work):
    """The stochastic gradient and its randomness, one chain at a time, as a user of JAX would write them."""
    target, oracle, d = work.plan.flat_target, work.plan.prepared_oracle, work.plan.dim
    target, oracle = scan.cast((target, oracle), jnp.float32)
    draw = lambda key: jax.tree.map(lambda x: x[0], oracle.draw(key, target, 1, d, jnp.float32))
    return lambda theta, zeta: oracle.gradient(target, theta, zeta), draw


def _over_steps(work: Work, one_step) -> Callable[[int], None]:
    """Chains vmapped, steps by `lax.scan`, the observable averaged: `one_step(theta, key)` is the peer's."""
    (h,), R, d = work.plan.observables.values(), work.chains, work.plan.dim

    def chain(key, steps):
        def body(carry, key):
            state, total = carry
            return (one_step(state, key), total + h(state)), None

        start = (jnp.zeros(d), jnp.zeros(()))
        (_, total), _ = jax.lax.scan(body, start, jax.random.split(key, steps))
        return total / steps

    run = jax.jit(lambda key, steps: jax.vmap(lambda k: chain(k, steps))(jax.random.split(key, R)), static_argnums=1)
    return lambda steps: jax.block_until_ready(run(jax.random.key(0), steps))


def _blackjax_sgld(work: Work):
    import blackjax

    gradient, draw = _gradient_and_noise(work)
    sampler: Any = blackjax.sgld(lambda theta, zeta: -gradient(theta, zeta))

    def one_step(theta, key):
        key_oracle, key_step = jax.random.split(key)
        return sampler.step(key_step, theta, draw(key_oracle), work.plan.step_size)

    return _over_steps(work, one_step)


def _blackjax_sghmc(work: Work):
    """Steps are gradients: an update of ten integration steps counts ten."""
    import blackjax

    gradient, draw = _gradient_and_noise(work)
    sampler: Any = blackjax.sghmc(lambda theta, zeta: -gradient(theta, zeta), num_integration_steps=INTEGRATION_STEPS)

    def one_step(theta, key):
        key_oracle, key_step = jax.random.split(key)
        return sampler.step(key_step, theta, draw(key_oracle), work.plan.step_size)

    updates = _over_steps(work, one_step)
    return lambda steps: updates(max(1, steps // INTEGRATION_STEPS))  # one gradient counts as one step


def _bare_scan(work: Work):
    """All chains as one array, one key per step, no vmap around the loop."""
    target, oracle, unravel = work.plan.flat_target, work.plan.prepared_oracle, work.plan.unravel
    target, oracle = scan.cast((target, oracle), jnp.float32)
    (h,), R, d, eta = work.plan.observables.values(), work.chains, work.plan.dim, work.plan.eta

    def run(key, steps):
        def body(carry, key):
            theta, total = carry
            key_oracle, key_noise = jax.random.split(key)
            zeta = oracle.draw(key_oracle, target, R, d, jnp.float32)
            g = jax.vmap(lambda t, z: oracle.gradient(target, t, z))(theta, zeta)
            xi = jax.random.normal(key_noise, (R, d))
            return (
                theta - eta * g + jnp.sqrt(2 * eta) * xi,
                total + jax.vmap(lambda t: h(unravel(t)))(theta),
            ), None

        start = (jnp.zeros((R, d)), jnp.zeros(R))
        return jax.lax.scan(body, start, jax.random.split(key, steps))[0][1] / steps

    compiled = jax.jit(run, static_argnums=1)
    return lambda steps: jax.block_until_ready(compiled(jax.random.key(0), steps))


def _posteriors_sgld(work: Work):
    import torch  # type: ignore[import-not-found]  # no dependency: compared where it is installed
    from posteriors import sgmcmc  # type: ignore[import-not-found]  # likewise

    h: Any = next(iter(work.plan.observables.values()))
    u, R, d = torch.tensor(h.direction, dtype=torch.float32), work.chains, work.plan.dim

    def log_posterior(theta, batch):
        noise = (theta * torch.randn_like(theta)).sum()
        return -(0.5 * (theta**2).sum() + 1.2 * torch.cos(theta).sum() + noise), torch.zeros(())

    sampler = sgmcmc.sgld.build(log_posterior, lr=work.plan.step_size)

    def go(steps):
        state, total = sampler.init(torch.zeros(R, d)), torch.zeros(R)
        for _ in range(steps):
            total += torch.tanh(state.params @ u)
            state, _ = sampler.update(state, None, inplace=False)

    return go


def _engine(name: str):
    def prepare(work: Work):
        plan = work.plan
        session = ENGINES[name].open_session(plan, ENGINES[name].initial_state(plan), 1e8, None, 0)
        return session.advance

    return Competitor(prepare, lambda work: ENGINES[name].why_not(work.plan) is None)


def _limit(work: Work):
    """The `lanes` loop with its arithmetic left out: the random numbers that the work needs and nothing else."""
    from numba import njit

    from gyromc.engines.lanes import OPTIONS, Session, initial_state
    from gyromc.engines.lanes.gradients import WIDTH, draw_rows
    from gyromc.engines.lanes.kernel import LANES, draw_normals

    @njit(**OPTIONS)
    def random_numbers(p, c, task, workspace):
        first_block, last_block, _, step, num_steps, _ = task
        floats, words, _ = workspace
        for block in range(first_block, last_block):
            generator = c.generator[block * 4 * WIDTH : (block + 1) * 4 * WIDTH]
            spare = c.spare[block * WIDTH : (block + 1) * WIDTH]
            for k in range(step, step + num_steps):
                draw_normals(p, generator, floats, (p.m + p.d) * WIDTH, spare, k)
                for w in range(0, WIDTH, LANES):
                    draw_rows(p, generator, w, words, p.row_width)

    session = Session(work.plan, initial_state(work.plan), 1e8, None, 0)
    session.loop = random_numbers
    session.advance(0)  # compiles
    return session.advance


COMPETITORS = {
    **{f"gyromc {name}": _engine(name) for name in ENGINES},
    "BlackJAX SGLD": Competitor(_blackjax_sgld, needs="blackjax"),
    "BlackJAX SGHMC": Competitor(_blackjax_sghmc, needs="blackjax"),
    "posteriors SGLD": Competitor(_posteriors_sgld, lambda work: work.name == "nonquadratic", needs="posteriors"),
    "lax.scan": Competitor(_bare_scan),
    "limit: random numbers only": Competitor(_limit, lambda work: ENGINES["lanes"].why_not(work.plan) is None),
}
"""By the name they have in tables."""

WORK = (_nonquadratic(), _regression("linear"), _regression("logistic"), _quadratic(), _network())
"""What every competitor does."""

ENGINES_ALONE = ("gyromc lanes", "gyromc scan")
GROWTH = [
    *[
        _nonquadratic(R, 3, max(10, 20_000 // R), f"chains {R}", only=ENGINES_ALONE, varied="chains")
        for R in (10, 100, 1000, 10_000, 100_000, 1_000_000)
    ],
    *[
        _nonquadratic(2000, d, 20, f"dimension {d}", only=ENGINES_ALONE, varied="dimension")
        for d in (3, 10, 30, 100, 300)
    ],
    *[
        _nonquadratic(2000, 3, 10, f"steps {N}", only=ENGINES_ALONE, varied="steps", steps=N)
        for N in (10, 100, 1000, 10_000)
    ],
    _nonquadratic(2000, 3, 10, "steps 100000", only=("gyromc lanes",), varied="steps", steps=100_000),
]
"""The same work with other numbers of chains, dimensions and steps; from 257 on, a dimension is `scan`'s alone."""

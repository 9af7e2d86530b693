"""A plan for many parameters, from gradients alone, without matrices: HFHR's splitting with a diagonal preconditioner.

A `Model`, observables, an oracle and a budget of gradients in; a `Plan` and an `Account` of how it was found out. At most a tenth
of the budget is spent, in this order: a descent to a mode; the shape of the law there; a short chain away from the mode; the
shape where that chain ends, which gives step size and friction; and runs at two step sizes, which must agree.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gyromc.checks import require, whole
from gyromc.dynamics import hfhr
from gyromc.engines.scan import cast
from gyromc.errors import InvalidInput
from gyromc.model import Model
from gyromc.observables import Function, Observable
from gyromc.oracles import ControlVariate, Exact, Minibatch, Oracle
from gyromc.plan import Plan
from gyromc.schemes.integrators import HfhrSplitting, hfhr_splitting
from gyromc.tuning.batch_size import suited
from gyromc.tuning.large_notes import LEAST_TIMES, notes_on
from gyromc.tuning.matrix_free import Gradients, descend, shrunk, temperatures
from gyromc.tuning.preconditioning import Numbers, Shape, measured, numbers_for, shape_at
from gyromc.tuning.step_check import Check, check_step, ran, with_squares

__all__ = ["Account", "large_plan"]

LEAST_GRADIENTS = 4000
SHARE = 10  # a tenth of the budget is spent
SPENT_ON = {
    "start": 0.04,
    "descent": 0.14,
    "mode": 0.12,
    "warm": 0.15,
    "shape": 0.3,
}  # of the tenth; the rest on the check
LONGEST = 20_000  # steps of the descent
OF_LIMIT = 0.7  # of the largest stable step
WARM = 0.35  # and of the chain that leaves the mode
TRIES = 2  # to leave the mode
CHAINS = 8  # at most, before the plan itself
RELAXATIONS = 20  # that a run must hold: friction is not made smaller than that allows
HOT = 0.2  # by which an array's (θ - c)ᵀ∇U / d may exceed 1
BLATANT = 4.0  # a value of it that is too large whatever its error
VIRIALS = 4  # gradients for it at each point
RUNS = 3  # step sizes that the check has gradients for
BURN_IN = 5.0  # relaxation times
MOST_BURN_IN = 5  # a fifth of the run
NUDGE = 0.1  # off the start, in units of 1/√curvature, in case the start is a saddle


@dataclasses.dataclass(frozen=True, eq=False)
class Account:
    """How a plan was found.

    - `gradients`, `seconds`: what it cost, in gradients of the given oracle; a product with a Hessian counts as two.
    - `step_limit`: 2/√λ_max, from the largest curvature λ_max in the preconditioned coordinates; `smallest`: λ_min.
    - `step_size`, `friction`: what was taken.
    - `rank`: how many stiff directions are treated apart from the diagonal; `diagonal_steps`, `stretched_steps`: the steps that a
      relaxation is predicted to take with a diagonal alone and with them, NaN where none was looked for or stood out.
    - `noise`: the largest diagonal entry of the gradients' noise in those coordinates, 0 for exact gradients.
    - `halvings`: how often the step size was halved; `agrees`: whether two step sizes agreed in the end, None where the gradients
      did not suffice to see; `differences`: between them, in standard deviations, by observable.
    - `temperature`: (θ - c)ᵀ∇U / d at the end of the check, c the mode: 1 on average over the law.
    - `notes`: what a user should know, as sentences.
    """

    gradients: int
    seconds: float
    step_limit: float
    smallest: float
    step_size: float
    friction: float
    rank: int
    diagonal_steps: float
    stretched_steps: float
    noise: float
    halvings: int
    agrees: bool | None
    differences: Mapping[str, float]
    temperature: float
    notes: tuple[str, ...]

    @property
    def condition(self) -> float:
        """λ_max / λ_min in the preconditioned coordinates."""
        return 4 / self.step_limit**2 / self.smallest


class StartRows:
    """A start: one of some points, drawn at random, shaped like the parameters."""

    def __init__(self, rows: np.ndarray, unravel: Any):
        self.rows, self.unravel = rows, unravel

    def __call__(self, key):
        return self.unravel(jnp.asarray(self.rows)[jax.random.randint(key, (), 0, len(self.rows))])


def large_plan(
    model: Model,
    observables: Mapping[str, Any],
    oracle: Oracle | None,
    gradients: int,
    num_chains: int = 8,
    seed: int = 0,
    dtype: str | None = None,
    free_batches: bool = False,
) -> tuple[Plan, Account]:
    """A plan for a model with many parameters that uses so many gradients, with those spent to find it.

    **Arguments:**

    - `model`: what to sample; the descent begins at `model.start`.
    - `observables`: what to average, by name.
    - `oracle`: where gradients come from; exact when None. A control variate without `center` is anchored where the descent ends.
    - `gradients`: the budget of all chains together, at least 4000. At most a tenth of it is spent here.
    - `num_chains`, `seed`, `dtype`: as for `gm.Plan`.
    - `free_batches`: whether mini-batches may be made larger, up to all rows, where that needs fewer rows for one relaxation
      time. The budget stays what it is in rows.

    **Returns:** a `Plan` for the rest of the budget, and an `Account`.

    ```python
    import numpy as np
    import gyromc as gm
    from gyromc.tuning.large import large_plan
    model = gm.Model(gm.targets.Quadratic(np.geomspace(0.01, 1.0, 50)))
    h = gm.observables.square(np.eye(50)[0])
    plan, account = large_plan(model, {"slowest": h}, None, gradients=20_000, num_chains=4)
    assert account.gradients <= 2000 and account.gradients + plan.gradients <= 20_000 and abs(account.condition - 1) < 0.1
    ```
    """
    gradients = whole(gradients, "gradients", least=1)
    num_chains = whole(num_chains, "num_chains", least=1)
    require(
        gradients >= max(LEAST_GRADIENTS, 100 * num_chains),
        f"`gradients` must be at least {max(LEAST_GRADIENTS, 100 * num_chains)}, so that a tenth of them suffices to choose a "
        f"plan for {num_chains} chains: got {gradients}.",
    )
    oracle = Exact() if oracle is None else oracle
    oracle.check(model.target)
    require(
        oracle.memory(1) == 0,
        f"{oracle.name} keeps an anchor for each chain, and a plan cannot be tuned for that: leave `refresh` out.",
    )
    chosen = dtype or ("float64" if jax.config.jax_enable_x64 else "float32")  # type: ignore[attr-defined]  # JAX adds its settings at run time
    with jax.enable_x64(chosen == "float64"):
        return _Search(model, observables, oracle, gradients, num_chains, seed, chosen, free_batches).plan()


class _Spending:
    """A budget in gradients of the given oracle, and what was spent of it; `weight` is what one of the present oracle costs."""

    def __init__(self, gradients: int, num_chains: int):
        self.budget, self.share, self.num_chains = gradients, gradients // SHARE, num_chains
        self.spent, self.weight = 0.0, 1.0

    def allowed(self, part: str) -> int:
        """Gradients that a part may spend."""
        return self.calls(SPENT_ON[part] * self.share)

    def calls(self, amount: float) -> int:
        """How many gradients of the present oracle cost as much as so many of the given one."""
        return int(amount / self.weight)

    def pay(self, count: int) -> None:
        """Count gradients of the present oracle."""
        self.spent += count * self.weight

    def numbers(self, shape: Shape) -> Numbers:
        """Step size and friction for the run."""
        return numbers_for(shape, self.calls(self.budget) // self.num_chains, OF_LIMIT, RELAXATIONS)


class _Search(_Spending):
    """One search for a plan: its pieces, and what it has spent."""

    def __init__(
        self, model, observables, oracle: Oracle, gradients: int, num_chains: int, seed: int, dtype: str, free: bool
    ):
        self.model, self.oracle, self.budget, self.dtype = model, oracle, gradients, dtype
        self.seed, self.num_chains, self.spent = seed, num_chains, 0.0
        self.free, self.weight = (
            free and type(oracle) is Minibatch,
            1.0,
        )  # rows of a gradient, in those of the given oracle
        self.chains, self.share = min(num_chains, CHAINS), gradients // SHARE
        self.observables: Mapping[str, Observable] = {
            name: h if isinstance(h, Observable) else Function(h) for name, h in observables.items()
        }
        self.keys = iter(jax.random.split(jax.random.key(seed), 16))
        self.groups = tuple(math.prod(leaf.shape) for leaf in jax.tree.leaves(model.template))
        self.notes: list[str] = []
        self.temperature = math.nan

    def plan(self) -> tuple[Plan, Account]:
        """The whole search."""
        began = time.perf_counter()
        mode = self.descended()
        h = with_squares(self.observables, self.model.unravel, mode)
        shape = self.shape(self.repeated(mode), "mode")
        hot = lambda theta: self.hot(theta, mode)
        points = self.warm(shape, np.asarray(mode), h, hot)
        shape, numbers = self.steady(self.shape(jnp.asarray(points, self.dtype), "shape"), points, h, hot)
        check = self.checked(shape, numbers, points, h, hot)
        numbers = dataclasses.replace(numbers, eta=check.step_size)
        plan = self.final(shape, numbers, check.theta)
        return plan, Account(
            gradients=math.ceil(self.spent),
            seconds=time.perf_counter() - began,
            step_limit=shape.step_limit,
            smallest=shape.smallest,
            step_size=plan.eta,
            friction=numbers.gamma,
            rank=shape.rank,
            diagonal_steps=shape.diagonal_steps,
            stretched_steps=shape.stretched_steps,
            noise=shape.most_noise,
            halvings=check.halvings,
            agrees=check.agrees,
            differences=check.differences,
            temperature=self.temperature,
            notes=tuple(self.notes),
        )

    def stochastic(self, oracle: Oracle) -> Gradients:
        """Gradients in the run's precision."""
        target, oracle = cast((self.model.flat_target, oracle), jnp.dtype(self.dtype))
        return Gradients(target, oracle, self.model.dim)

    def repeated(self, theta):
        """One point for every chain, so that what is compiled for it serves for many points."""
        return jnp.broadcast_to(theta, (self.chains, self.model.dim))

    def descended(self):
        """A point near a mode; a control variate without center is anchored there."""
        anchored = isinstance(self.oracle, ControlVariate) and self.oracle.center is None
        first = Minibatch(self.oracle.size, self.oracle.replace) if anchored else self.oracle  # type: ignore[attr-defined]  # a batch
        gradients = self.stochastic(first if anchored else first.prepared(self.model))
        start = jnp.asarray(self.model.start, self.dtype)
        found, cost = measured(gradients, self.repeated(start), self.allowed("start"), next(self.keys))
        scale = jnp.asarray(1 / np.sqrt(shrunk(found, self.groups)), self.dtype)
        start = start + NUDGE * scale * jax.random.normal(next(self.keys), start.shape, self.dtype)
        steps = max(1, min(self.allowed("descent"), LONGEST))
        self.pay(steps + cost)
        mode = descend(gradients, start, scale, next(self.keys), steps)
        require(
            bool(jnp.all(jnp.isfinite(mode))),
            "No plan can be chosen: a descent from the start met gradients that are not finite. Pass a `start` where U is "
            "finite.",
        )
        if anchored:
            center = np.asarray(mode, float)
            self.oracle = eqx.tree_at(lambda o: o.center, self.oracle, center, is_leaf=lambda x: x is None)
            self.pay(math.ceil(self.model.flat_target.num_data / first.size))  # type: ignore[attr-defined]  # a sum over data
        return mode

    def shape(self, points, part: str) -> Shape:
        """The shape of the law over the points, paid for; where batches are free, with the batches that suit it."""
        found, share = self._shape(points, part, 0.5 if self.free else 1.0), self.weight
        if self.free:
            target = self.model.flat_target
            before = self.oracle.evaluations(target)
            most = self.budget / LEAST_GRADIENTS * before / self.weight  # so that enough gradients remain
            self.oracle = suited(found, self.oracle, target, most)
            self.weight *= self.oracle.evaluations(target) / before
        return found if share == self.weight else self._shape(points, part, 0.5)

    def _shape(self, points, part: str, of_allowed: float) -> Shape:
        gradients, allowed = self.stochastic(self.oracle.prepared(self.model)), int(of_allowed * self.allowed(part))
        found = shape_at(gradients, points, allowed, next(self.keys), self.groups, part == "shape")
        self.pay(found.cost)
        return found

    def hot(self, theta: np.ndarray, center) -> bool:
        """Whether some array of parameters is spread more widely than the law allows: by a fifth and by 4 standard errors."""
        self.pay(VIRIALS * len(theta))
        gradients = self.stochastic(self.oracle.prepared(self.model))
        points, key = jnp.asarray(theta, self.dtype), jax.random.key(self.seed + 1)
        found, error = temperatures(gradients, points, center, key, VIRIALS, self.groups)
        self.temperature = float(np.average(found, weights=self.groups))
        blatant = not np.all(found < BLATANT)  # or not a number: chains far away have large errors too
        return blatant or bool(np.any(found - 1 > HOT + 4 * error))

    def dynamics(self, shape: Shape, numbers: Numbers) -> dict[str, Any]:
        """Dynamics, scheme and oracle as fields of a plan."""
        exact = isinstance(self.oracle, Exact)
        return {
            "dynamics": hfhr(self.model.dim, numbers.alpha, numbers.gamma, preconditioner=shape.preconditioner),
            "scheme": hfhr_splitting if exact else HfhrSplitting(moments=(shape.curvature, shape.noise), whitened=True),
            "oracle": self.oracle,
            "seed": self.seed,
            "dtype": self.dtype,
        }

    def short(
        self, shape: Shape, numbers: Numbers, points: np.ndarray, h: Mapping[str, Observable], steps: int
    ) -> Plan:
        """A plan over the vector θ for few chains from the points with random momenta, half of it burn-in."""
        theta = points[np.arange(self.chains) % len(points)]
        momenta = np.random.default_rng(self.seed).standard_normal(theta.shape, np.dtype(self.dtype))
        return Plan(
            target=self.model.flat_target,
            observables=h,
            step_size=numbers.eta,
            burn_in=steps // 2,
            num_steps=steps - steps // 2,
            num_chains=self.chains,
            start=np.concatenate([theta, momenta], axis=1),
            **self.dynamics(shape, numbers),
        )

    def warm(self, shape: Shape, mode: np.ndarray, h: Mapping[str, Observable], hot: Callable) -> np.ndarray:
        """Where a short chain from the mode ends: points where curvature is that of the law, not that of the mode."""
        steps = max(2, self.allowed("warm") // (TRIES * self.chains))
        for k in range(TRIES):
            numbers = numbers_for(shape, steps, WARM / 4**k, 3.0)
            plan = self.short(shape, numbers, mode[None], h, steps)
            self.pay(plan.gradients)
            found = ran(plan)
            if found is not None and not hot(found.state.z[:, : self.model.dim]):
                return np.array(found.state.z[:, : self.model.dim])
        self.notes.append(
            "Chains that leave the mode diverged or spread too widely: curvature was measured at the mode only."
        )
        return np.broadcast_to(mode, (self.chains, len(mode)))

    def steady(
        self, shape: Shape, points: np.ndarray, h: Mapping[str, Observable], hot: Callable
    ) -> tuple[Shape, Numbers]:
        """The shape with numbers for it; one with stiff directions must stand a short run, or it is taken without them."""
        if shape.plain is None:
            return shape, self.numbers(shape)
        allowed = self.calls(self.share - self.spent) - (RUNS + 1) * VIRIALS * self.chains
        plan = self.short(shape, self.numbers(shape), points, h, max(4, allowed // (2**RUNS * self.chains)))
        self.pay(plan.gradients)
        found = ran(plan)
        if found is None or hot(found.state.z[:, : self.model.dim]):
            shape = shape.plain
        return shape, self.numbers(shape)

    def checked(
        self, shape: Shape, numbers: Numbers, points: np.ndarray, h: Mapping[str, Observable], hot: Callable
    ) -> Check:
        """The comparison of two step sizes, and notes on it."""
        allowed = self.calls(self.share - self.spent) - RUNS * VIRIALS * self.chains
        steps = max(4, allowed // ((2**RUNS - 1) * self.chains))
        make = lambda eta, n: self.short(shape, dataclasses.replace(numbers, eta=eta), points, h, n)
        check = check_step(make, numbers.eta, steps, allowed, hot)
        self.pay(allowed if check is None else check.gradients)
        if check is None:
            raise InvalidInput(_diverged(numbers.eta, shape.step_limit))
        times = numbers.eta * steps / numbers.relaxation
        held = numbers.eta * self.calls(self.budget - self.spent) / self.num_chains / numbers.relaxation
        self.notes += notes_on(check, numbers, times, held, self.temperature)
        if times < LEAST_TIMES:  # too short to see
            check = dataclasses.replace(check, agrees=None)
        return check

    def final(self, shape: Shape, numbers: Numbers, theta: np.ndarray) -> Plan:
        """The plan for what is left of the budget, from where the check ended."""
        steps = self.calls(self.budget - self.spent) // self.num_chains
        burn_in = min(math.ceil(BURN_IN * numbers.relaxation / numbers.eta), steps // MOST_BURN_IN)
        return Plan(
            target=self.model.target,
            observables=self.observables,
            step_size=numbers.eta,
            burn_in=burn_in,
            num_steps=steps - burn_in,
            num_chains=self.num_chains,
            start=StartRows(theta, self.model.unravel),
            **self.dynamics(shape, numbers),
        )


def _diverged(eta: float, limit: float) -> str:
    return (
        f"No plan can be chosen: chains diverge at the step sizes {eta:.3g}, {eta / 2:.3g} and {eta / 4:.3g}, where the "
        f"curvature allows {limit:.3g}. The law may have tails much steeper than its bulk: choose other coordinates, or give "
        "a small `step_size` in `gm.Plan`."
    )

"""Chains followed from a plan's starts until they come to the bulk of the target, with the noise of every step.

Input: a plan. Output: a `Transient`, what the start adds to a sum of h; and how many chains went to infinity. Far out gradients
are steep, and the noise of mini-batches grows: no expansion around the posterior holds there.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gyromc.evaluation import doubled
from gyromc.oracles import Exact
from gyromc.plan import Plan
from gyromc.prediction.exact.chain import start_rows


@dataclasses.dataclass(frozen=True)
class FollowSettings:
    """How many chains are followed, and how far.

    - `chains`: what happens to one in a hundred is seen in 92 of 100 predictions; `starts`: so many different ones of the plan's.
    - `at_once`: steps of one compiled call, more than a chain that goes to infinity takes; `most_steps`: in all.
    - `near`: standard deviations within which a solution of the Poisson equation is used.
    """

    chains: int = 256
    starts: int = 100
    at_once: int = 64
    most_steps: int = 2048
    near: float = 3.0


SETTINGS = FollowSettings()


class Transient(NamedTuple):
    """What the start adds to a sum of h - μ(h) over a chain: its mean, the error of that, and its variance over chains."""

    value: float
    error: float
    variance: float

    @classmethod
    def of(cls, sums: np.ndarray, drawn: bool = True) -> "Transient":
        """From the sums of single chains; `drawn`: whether chance decided them, so that others would have other sums."""
        error = float(np.std(sums)) / math.sqrt(len(sums)) if drawn else 0.0
        return cls(float(np.mean(sums)), error, float(np.var(sums)))


NOT_ARRIVED = Transient(math.nan, math.nan, math.nan)


class Followed:
    """The chains of one plan, computed in parts of `at_once` steps when they are asked for."""

    def __init__(self, plan: Plan):
        self.plan, self._parts, self._here = plan, [], None
        rows = start_rows(plan)
        self.different = rows[np.linspace(0, len(rows) - 1, min(len(rows), SETTINGS.starts)).astype(int)]
        self.starts = np.tile(self.different, (-(-SETTINGS.chains // len(self.different)), 1))

    @property
    def lost(self) -> int:
        """How many chains are not finite any more, of those steps that were made; at least one part is made."""
        self.part(0)
        return int(np.sum(~np.all(np.isfinite(self._parts), axis=(0, 1, 3))))

    def part(self, number: int) -> np.ndarray:
        """States z, steps × chains × n; the first one of the first part is the start."""
        while len(self._parts) <= number:
            first = len(self._parts) * SETTINGS.at_once
            own = self.plan.step_size
            etas = [float(own(k)) if callable(own) else own for k in range(first, first + SETTINGS.at_once)]
            with jax.enable_x64(True):
                if self._here is None:
                    memory = np.zeros((len(self.starts), self.plan.state_size - self.starts.shape[1]))
                    self._here = jnp.asarray(np.concatenate([self.starts, memory], axis=1))
                keys = jax.random.split(jax.random.fold_in(jax.random.key(self.plan.seed), first), len(etas))
                self._here, states = self._advance(self._here, keys, jnp.asarray(etas))
            self._parts.append(np.asarray(states))
        return self._parts[number]

    @functools.cached_property
    def _advance(self) -> Callable:
        """(y, keys, step sizes) → the last y, and z at every step."""
        plan, d, n = self.plan, self.plan.dim, self.plan.dynamics.size
        oracle = Exact() if plan.oracle.memory(d) else plan.prepared_oracle  # anchors that move are not followed
        target, oracle, dynamics, scheme = doubled((plan.flat_target, oracle, plan.dynamics, plan.prepared_scheme))

        def step(y: Any, now: Any) -> tuple[Any, Any]:
            (first, second), eta = jax.random.split(now[0]), now[1]
            zeta = oracle.draw(first, target, len(y), d, y.dtype)
            g = jax.vmap(lambda t, s: oracle.gradient(target, t, s))(y[:, :d], zeta)
            g = jnp.concatenate([g, y[:, d:n]], axis=1)
            xi = jax.random.normal(second, (len(y), n), y.dtype)
            return jax.vmap(lambda y, g, xi: scheme(dynamics, y, g, xi, eta))(y, g, xi), y[:, :n]

        return jax.jit(lambda y, keys, etas: jax.lax.scan(step, y, (keys, etas)))

    def transient(self, inside: Callable, values: Callable, ahead: Callable) -> Transient:
        """Σ η(h(z_k) - μ(h)) of chains after burn-in: h - μ(h) by `values` until they are inside, by `ahead` what follows.

        `NOT_ARRIVED` where a chain is not inside in time, or went to infinity.
        """
        if np.all(inside(self.different)):
            return Transient.of(ahead(self.different), drawn=False)
        plan, chains = self.plan, len(self.starts)
        z, totals, away = self.starts.copy(), np.zeros(chains), np.ones(chains, bool)
        most = min(SETTINGS.most_steps, plan.num_steps + plan.burn_in)
        for number in range(-(-most // SETTINGS.at_once)):
            states = self.part(number)
            if not np.all(np.isfinite(states[:, away])):
                break
            flat = states.reshape(-1, states.shape[2])
            out = ~np.maximum.accumulate(inside(flat).reshape(states.shape[:2]), axis=0) & away
            k = number * SETTINGS.at_once + np.arange(len(states))[:, None]
            counted = out & (k >= plan.burn_in)
            if np.any(counted):
                h = np.zeros(counted.shape)
                h[counted] = values(flat[counted.ravel()])
                totals += h.sum(axis=0)
            arrived = away & ~out[-1]
            z[arrived] = states[out.sum(axis=0)[arrived], arrived]
            away &= out[-1]
            if np.any(out & (k >= most - 1)):
                break
            if not np.any(away):
                return Transient.of(plan.eta * totals + ahead(z))
        return NOT_ARRIVED


@functools.lru_cache(maxsize=4)
def followed(plan: Plan) -> Followed:
    """The chains of a plan, the same ones for all its observables."""
    return Followed(plan)

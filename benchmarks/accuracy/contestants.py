"""One competitor of the race on one posterior, in a process of its own: `python -m accuracy.contestants METHOD NAME SEED ERROR`.

Input: the name of a method, of a posterior, a seed, and the error asked for in posterior standard deviations (only gyromc can be
asked). Output: one line of JSON: the estimates of all observables, the errors claimed for them, warnings, gradients, and the
processor and wall seconds from the start of the process until the estimates were there, imports and compilation included.
Everything is in float64. A package is imported only by the method that uses it.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["BEGAN", "METHODS", "Answer"]

BEGAN = "GYROMC_RACE_BEGAN"
"""The variable of the environment that holds the time at which the process was started."""


@dataclass(frozen=True)
class Settings:
    """What the other packages are given."""

    # NUTS as its users run it: four chains at once, 500 draws of warm-up and 1000 kept.
    chains: int = 4
    warm_up: int = 500
    draws: int = 1000
    # Steps of a chain of MCLMC, about as many gradients as NUTS makes, every tenth of them kept; its tuning comes on top.
    steps: int = 10_000
    every: int = 10
    # Chains start at the posterior's start plus noise of this size.
    noise: float = 0.1
    # Above this R-hat the chains are said not to agree (Vehtari et al., 2021).
    r_hat: float = 1.01
    # Batches of each chain of MCLMC, for a standard error.
    batches: int = 10


SETTINGS = Settings()


@dataclass(frozen=True)
class Answer:
    """What a method says: means of all observables, their claimed standard errors, what it warned of, gradients it counted."""

    mean: np.ndarray
    error: np.ndarray
    warnings: list[str] = field(default_factory=list)
    gradients: float | None = None


def gyromc(one: Any, seed: int, error: float) -> Answer:
    """`gyromc.expect` for every observable."""
    import gyromc as gm

    target = gm.targets.LogDensity(one.log_density)
    found = gm.expect(target, {"q": one.quantities}, error=error, start=one.first, seed=seed, progress=False)
    return _answer(one, found, float(found.gradient_evaluations))


def nuts(one: Any, seed: int, error: float) -> Answer:
    """NumPyro's NUTS; the gradients of its warm-up are not counted, because it does not return their number."""
    import jax
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    draws, gradients, divergences = _nuts_draws(one, seed)
    values = np.asarray(jax.jit(jax.vmap(jax.vmap(one.observables)))(draws))
    effective = np.asarray(effective_sample_size(values))
    warnings = [] if divergences == 0 else [f"{divergences} divergent draws"]
    unmixed = int(np.sum(np.asarray(split_gelman_rubin(values)) > SETTINGS.r_hat))
    warnings += [] if unmixed == 0 else [f"R-hat above {SETTINGS.r_hat} for {unmixed} observables"]
    return Answer(values.mean(axis=(0, 1)), values.std(axis=(0, 1)) / np.sqrt(effective), warnings, gradients)


def _nuts_draws(one: Any, seed: int) -> tuple[Any, float, int]:
    """Draws, chains × draws × parameters; gradients made for them; divergent draws."""
    import jax
    from numpyro.infer import MCMC, NUTS

    kernel = NUTS(potential_fn=lambda theta: -one.log_density(theta))
    counts = {"num_warmup": SETTINGS.warm_up, "num_samples": SETTINGS.draws, "num_chains": SETTINGS.chains}
    sampler = MCMC(kernel, **counts, chain_method="vectorized", progress_bar=False)
    sampler.run(jax.random.key(seed), init_params=_starts(one, seed), extra_fields=("num_steps", "diverging"))
    fields = sampler.get_extra_fields()
    gradients, divergences = float(np.sum(fields["num_steps"])), int(np.sum(fields["diverging"]))
    return sampler.get_samples(group_by_chain=True), gradients, divergences


def sharpened(one: Any, seed: int, error: float) -> Answer:
    """NUTS followed by `gyromc.sharpen`."""
    import gyromc as gm

    draws, gradients, _ = _nuts_draws(one, seed)
    target = gm.targets.LogDensity(one.log_density)
    found = gm.sharpen(np.asarray(draws), target, {"q": one.quantities}, start=one.first)
    return _answer(one, found, gradients)


def mclmc(one: Any, seed: int, error: float) -> Answer:
    """BlackJAX's MCLMC with its own tuning, four chains; a step has two gradients."""
    import blackjax
    import jax
    import jax.numpy as jnp

    kernel = blackjax.mclmc.build_kernel()

    def chain(key, start):
        key_start, key_tune, key_run = jax.random.split(key, 3)
        state = blackjax.mcmc.mclmc.init(start, one.log_density, key_start)
        state, tuned, count = blackjax.mclmc_find_L_and_step_size(
            mclmc_kernel=kernel, num_steps=SETTINGS.steps, state=state, rng_key=key_tune, logdensity_fn=one.log_density
        )

        def step(state, key):
            return kernel(key, state, one.log_density, tuned.inverse_mass_matrix, tuned.L, tuned.step_size)[0], None

        def kept(state, keys):
            state, _ = jax.lax.scan(step, state, keys)
            return state, one.observables(state.position)

        keys = jax.random.split(key_run, (SETTINGS.steps // SETTINGS.every, SETTINGS.every))
        return jax.lax.scan(kept, state, keys)[1], jnp.asarray(count)

    keys = jax.random.split(jax.random.key(seed), SETTINGS.chains)
    values, counts = (np.asarray(a) for a in jax.jit(jax.vmap(chain))(keys, _starts(one, seed)))
    parts = np.stack(np.array_split(values, SETTINGS.batches, axis=1))
    means = np.array([part.mean(axis=1) for part in parts]).reshape(-1, values.shape[-1])
    claimed = means.std(axis=0, ddof=1) / np.sqrt(len(means))
    warnings = [] if np.isfinite(values).all() else ["values that are not finite"]
    return Answer(values.mean(axis=(0, 1)), claimed, warnings, 2.0 * (SETTINGS.chains * SETTINGS.steps + counts.sum()))


METHODS: dict[str, Callable[[Any, int, float], Answer]] = {
    "gyromc": gyromc,
    "nuts": nuts,
    "mclmc": mclmc,
    "nuts-sharpen": sharpened,
}
"""The methods by name."""


def _starts(one: Any, seed: int):
    """Where the chains of the other packages start."""
    import jax.numpy as jnp

    noise = np.random.default_rng([7, seed]).standard_normal((SETTINGS.chains, one.dim))
    return jnp.asarray(one.first + SETTINGS.noise * noise)


def _answer(one: Any, found: Any, gradients: float | None) -> Answer:
    """What gyromc's estimates of the function `q` say, in the order of the observables."""
    rows = [found[f"q.{name}"] for name in one.names]
    mean, error = np.array([row.mean for row in rows]), np.array([row.total_error for row in rows])
    return Answer(mean, error, [str(warning) for warning in found.warnings], gradients)


def main() -> None:
    """Print what one method answers."""
    method, name, seed, error = sys.argv[1:]
    import jax

    jax.config.update("jax_enable_x64", True)
    from accuracy.posteriors import posterior

    one = posterior(name)
    answer = METHODS[method](one, int(seed), float(error))
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = {"processor": used.ru_utime + used.ru_stime, "wall": time.time() - float(os.environ[BEGAN])}
    plain = {"mean": answer.mean.tolist(), "error": answer.error.tolist()}
    rest = {"warnings": answer.warnings, "gradients": answer.gradients}
    # other packages print too: the answer is the last line
    print("\n" + json.dumps({**seconds, **plain, **rest}))


if __name__ == "__main__":
    main()

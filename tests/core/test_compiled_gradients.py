"""A gradient that is compiled wrongly for many chains is refused, with the row, before anything is sampled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc import model as models

DENSITY = gm.targets.LogDensity(lambda x: -0.5 * jnp.sum(jnp.cumsum(x) ** 2))


def plan():
    return gm.Plan(
        target=DENSITY,
        dynamics=gm.dynamics.overdamped(3),
        observables={"x": gm.observables.linear([1.0, 0.0, 0.0])},
        step_size=0.01,
        num_steps=4,
        num_chains=3,
        start=[0.1, 0.2, 0.3],
    )


def wrong(target, rows):
    """As a compiler that is off by 1 in one entry of a batch."""
    right = jax.lax.map(target.gradient, rows)
    return right.at[1, 2].add(1.0), right


@pytest.mark.parametrize("call", [lambda: gm.run(plan(), "scan", progress=False), lambda: gm.expect(plan(), seconds=5)])
def test_a_wrong_batched_gradient_is_refused_with_its_row(call, monkeypatch):
    monkeypatch.setattr(models, "_both_ways", wrong)
    with pytest.raises(gm.InvalidInput, match=r"compiled wrongly for many chains .* its entry 2 is .* computed alone"):
        call()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_right_gradients_pass_and_are_compared_once(dtype, monkeypatch):
    model, count = plan().model, []
    both = models._both_ways
    monkeypatch.setattr(models, "_both_ways", lambda *given: count.append(1) or both(*given))
    models.check_gradient(model, dtype)
    models.check_gradient(model, dtype)
    models.check_gradient(gm.Model(gm.targets.Quadratic(np.ones(2))), dtype)
    # formulas of ours are compared on other devices only, each time with a processor
    assert len(count) == (1 if jax.default_backend() == "cpu" else 4)

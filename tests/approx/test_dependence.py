"""Which coordinates a function reads: never too few, and exact for the functions people write."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.runtime.evaluation import indices_read

EXACT = {
    "a product with a step": (lambda t: t[0] ** 2 * jnp.where(t[1] > -0.5, 1.0, 0.0), (0, 1)),
    "a comparison": (lambda t: t[0] * (t[3] > 0.5), (0, 3)),
    "a slice": (lambda t: jnp.sum(t[1:3]), (1, 2)),
    "a row of a matrix": (lambda t: jnp.linalg.norm(t.reshape(2, 2)[1]), (2, 3)),
    "a softmax of a part": (lambda t: jax.nn.softmax(t[:2])[0] + t[-1], (0, 1, 3)),
    "the largest of some": (lambda t: jnp.max(t[2:]), (2, 3)),
    "nothing": (lambda t: jnp.asarray(3.0), ()),
}


@pytest.mark.parametrize("name", EXACT)
def test_common_functions_are_read_exactly(name):
    function, expected = EXACT[name]
    assert indices_read(function, 4) == expected


@pytest.mark.parametrize(
    "function",
    [
        lambda t: jnp.sort(t)[0],
        lambda t: jnp.cumsum(t)[2],
        lambda t: jax.lax.cond(t[0] > 0, lambda: t[1], lambda: t[2]),
        lambda t: t[jnp.argmax(t[:2])] + t[3],
        lambda t: jax.lax.fori_loop(0, 3, lambda i, c: c + t[i], 0.0),
        lambda t: jnp.linalg.solve(jnp.eye(2) + jnp.outer(t[:2], t[:2]), t[2:])[0],
    ],
    ids=["sort", "cumulative sum", "branch", "computed index", "loop", "linear system"],
)
def test_what_changes_the_value_is_always_named(function):
    assert moved(function, 4) <= set(indices_read(function, 4))


def moved(function, size, tries=60):
    """The coordinates whose change was seen to change the value."""
    rng = np.random.default_rng(0)
    seen = set()
    points = rng.normal(0, 2, (tries, size))
    each = jax.jit(jax.vmap(function))
    for i in range(size):
        other = points.copy()
        other[:, i] = rng.normal(0, 4, tries)
        if np.any(np.asarray(each(jnp.asarray(points))) != np.asarray(each(jnp.asarray(other)))):
            seen.add(i)
    return seen


PIECES = (
    lambda rng, i: lambda t: jnp.tanh(t[i]),
    lambda rng, i: lambda t: jnp.where(t[i] > rng, 1.0, -0.5),
    lambda rng, i: lambda t: jnp.abs(t[i] - rng),
    lambda rng, i: lambda t: jnp.cos(9 * t[i]),
    lambda rng, i: lambda t: jnp.sum(t[i : i + 2] ** 2),
    lambda rng, i: lambda t: jnp.clip(t[i], -rng, 1.0 + rng),
    lambda rng, i: lambda t: jnp.floor(t[i] * 3),
)


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_random_functions_with_kinks_and_steps(count):
    """Random products and sums of pieces, flat in large regions: no coordinate that matters is missed."""
    rng = np.random.default_rng(3)
    for _ in range(count):
        size = int(rng.integers(2, 6))
        chosen = [
            PIECES[rng.integers(len(PIECES))](float(rng.normal()), int(rng.integers(size)))
            for _ in range(rng.integers(1, 4))
        ]
        operation = [jnp.prod, jnp.sum, jnp.max][rng.integers(3)]
        function = lambda t, chosen=chosen, operation=operation: operation(jnp.stack([f(t) for f in chosen]))
        assert moved(function, size, tries=40) <= set(indices_read(function, size))


def test_a_model_reads_observables_of_any_pytree():
    target = gm.targets.LogDensity(lambda p: -0.5 * (p["a"] @ p["a"]) - 0.5 * p["b"] ** 2)
    model = gm.Model(target, template={"a": np.zeros(3), "b": np.zeros(())})
    assert model.coordinates_of(gm.observables.function(lambda p: p["b"] * (p["a"][1] > 0))) == (1, 3)
    assert model.coordinates_of(gm.observables.linear([0.0, 2.0, 0.0, 0.0])) == (1,)

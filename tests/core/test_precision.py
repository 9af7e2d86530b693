"""The same NumPy arrays in single and in double precision, in turn: theirs by JAX's default, ours for predictions."""

import functools
import pickle
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.runtime.precision import _arrays, owned, private

TABLE = np.random.default_rng(0).normal(size=(5, 2))


def on_a_global(x):
    return -jnp.sum((TABLE @ x) ** 2) - jnp.sum(jnp.square(TABLE)) - 0.5 * jnp.sum(x**2)


def through_another(x):
    return on_a_global(x)


def density(table, x):
    return -jnp.sum((table @ x) ** 2) - jnp.sum(jnp.square(table)) - 0.5 * jnp.sum(x**2)


class Holder:
    def __init__(self, table):
        self.table = table

    def density(self, x):
        return density(self.table, x)


def functions():
    """Ways to close over one array, each with the array: what JAX reads outside a trace is `jnp.square(table)`."""
    tables = [TABLE.copy() for _ in range(7)]
    nested = {"rows": [tables[3]]}
    space = types.SimpleNamespace(table=tables[6])
    return {
        "closure": (tables[0], lambda x: density(tables[0], x)),
        "default value": (tables[1], lambda x, table=tables[1]: density(table, x)),
        "partial": (tables[2], functools.partial(density, tables[2])),
        "pytree": (tables[3], lambda x: density(nested["rows"][0], x)),
        "bound method": (tables[4], Holder(tables[4]).density),
        "compiled": (tables[5], jax.jit(lambda x: density(tables[5], x))),
        "namespace": (tables[6], lambda x: density(space.table, x)),
        "module": (TABLE, on_a_global),
        "another function": (TABLE, through_another),
    }


def hold(table, double: bool):
    """What a program of the user's does that reads the array in one precision and stays compiled."""
    with jax.enable_x64(double):
        return jax.make_jaxpr(lambda x: table @ x)(jnp.zeros(table.shape[-1]))


@pytest.mark.parametrize(("how", "double"), [(how, i % 2 == 0) for i, how in enumerate(functions())])
def test_a_function_reads_its_arrays_in_the_precision_asked_for(how, double):
    table, function = functions()[how]
    held = hold(table, not double)
    with jax.enable_x64(double):
        for mode in (double, not double):
            with jax.enable_x64(mode):
                found = jax.jit(jax.value_and_grad(lambda x: private(function)(x)))(jnp.ones(2))
            kind = jnp.float64 if mode else jnp.float32
            assert all(value.dtype == kind for value in found)
            expected = -((table @ np.ones(2)) ** 2).sum() - (table**2).sum() - 1
            assert float(found[0]) == pytest.approx(expected, rel=1e-12 if mode else 1e-5)
    assert held is not None


def test_a_function_keeps_what_it_may_assign_to():
    calls, table = 0, np.ones(2)

    def count(x):
        nonlocal calls
        calls += 1
        return count and table @ x

    assert private(count)(np.ones(2)) == 2
    assert calls == 1
    plain = lambda x: x
    assert private(plain) is plain


def test_a_name_that_refers_to_another_array_is_followed():
    table = np.ones(2)
    total = lambda x: table @ x
    assert private(total)(np.ones(2)) == 2
    table = 3 * np.ones(2)
    assert private(total)(np.ones(2)) == 6


def test_a_target_made_after_the_data_changed_has_the_new_data():
    """JAX compiles the function once; the same function on other data is another target, and the first keeps its own."""
    data = np.array([1.0, 3.0])
    density = lambda x: -0.5 * jnp.sum((x - data) ** 2)
    value = lambda x: data @ jnp.ones(2) + 0 * x[0]

    def mode(target):
        return gm.Model(target, np.zeros(1)).mode

    first, h = gm.targets.LogDensity(density), gm.observables.function(value)
    assert mode(first) == pytest.approx([2.0])
    assert gm.Model(first, np.zeros(1)).values(h, np.zeros((1, 1))) == 4
    data = np.array([10.0, 30.0])
    assert mode(gm.targets.LogDensity(density)) == pytest.approx([20.0])
    assert mode(first) == pytest.approx([2.0])
    changed = gm.observables.function(value)
    assert gm.Model(first, np.zeros(1)).values(changed, np.zeros((1, 1))) == 40
    assert changed == gm.observables.function(value)  # compiled once for the same data
    assert h != changed


def test_an_owned_function_is_pickled_by_its_name():
    assert pickle.loads(pickle.dumps(owned(on_a_global))) == owned(on_a_global) != owned(through_another)


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_predictions_and_runs_take_turns_on_the_same_arrays(whole):
    """Mode, curvature and values in float64, which predictions read, and the loop in float32, twice each."""
    weights = np.array([1.0, 4.0])
    held = hold(weights, True)
    pieces = {
        "dynamics": gm.dynamics.overdamped(2),
        "step_size": 0.05,
        "num_steps": 50,
        "num_chains": 8,
        "start": np.zeros(2),
        "observables": {"h": lambda x: weights @ x + jnp.sum(jnp.square(weights)) - 17},
    }
    own = gm.Plan(target=gm.targets.LogDensity(lambda x: -0.5 * weights @ x**2), **pieces)
    means = []
    for _ in range(2):
        np.testing.assert_allclose(own.model.precision, np.diag(weights), rtol=1e-9, atol=1e-9)
        assert own.model.values(own.observables["h"], np.ones((1, 2))) == pytest.approx(5, rel=1e-14)
        if whole:
            found = gm.predict(own).rows["h"]
            # Σ 2a²/p² with a = p, from a sample since the two parameters are not known to separate
            assert found.variance_error < 0.04 * found.variance
            assert abs(found.variance - 2 * (1 + 1)) < 3 * found.variance_error
        run = gm.run(own, "scan")
        means.append(run.mean["h"])
        assert abs(means[-1]) < 5 * run.std_error["h"]  # μ(h) = 0
    assert means[0] == means[1]
    assert held


def test_data_of_a_sum_may_have_been_read_before():
    data = np.array([0.5, -0.5, 1.0])
    held = hold(data, False)
    sums = gm.targets.FiniteSum(lambda m, x: -0.5 * (x - m) ** 2, lambda m: -0.5 * m**2, data)
    assert gm.Model(sums, np.zeros(())).mode == pytest.approx([0.25])
    assert held


def nested(rng, depth: int):
    """A random function that reaches arrays through closures, defaults, partials, pytrees, objects and recursion."""
    table = rng.normal(size=3)
    if depth == 0:
        return [table], lambda x: float(table.sum()) * x
    arrays, inner = nested(rng, depth - 1)
    way = rng.integers(8)
    if way == 0:
        return [*arrays, table], lambda x, t=table: inner(x) + float(t[0])
    if way == 1:
        return [*arrays, table], functools.partial(lambda t, x: inner(x) * float(t[1]), table)
    if way == 2:
        held = {"a": [table, (inner,)]}
        return [*arrays, table], lambda x: held["a"][1][0](x) - float(held["a"][0][2])
    if way == 3:
        space = types.SimpleNamespace(table=table, inner=inner)
        return [*arrays, table], lambda x: space.inner(x) + float(space.table.max())
    if way == 4:
        holder = Holder(table)
        holder.inner = inner
        return [*arrays, table], types.MethodType(lambda self, x: self.inner(x) + float(self.table.min()), holder)
    if way == 5:

        def again(x, left=2):
            return inner(x) + (again(x, left - 1) if left else float(table.mean()))

        return [*arrays, table], again
    if way == 6:
        return arrays, lambda x: [inner(x) for _ in range(2)][1]
    pair = np.array([inner]), table  # an array of objects is an array; what is in it stays as it is
    return [table], lambda x: x + float(pair[1][0])


def test_no_array_of_the_users_is_reached_from_a_private_or_an_owned_function():
    """300 random functions: the same values, and none of the original array objects can be reached any more."""
    rng = np.random.default_rng(1)
    for _ in range(300):
        arrays, function = nested(rng, int(rng.integers(1, 6)))
        for made in (private(function), owned(function), private(owned(function))):
            assert made(0.7) == pytest.approx(function(0.7), rel=1e-12)
            reached = {id(a) for a in _arrays(private(made), vars(sys.modules[__name__]), set())}
            assert reached
            assert not reached & {id(a) for a in arrays}

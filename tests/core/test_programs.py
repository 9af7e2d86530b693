"""Compiled programs and the users' functions in them leave memory: the least used first, and none stays for ever."""

import gc
import os
import weakref
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.runtime import evaluation
from gyromc.runtime.evaluation import Programs, compiled
from gyromc.runtime.machine import release_memory


def test_a_program_is_compiled_once_for_what_is_not_an_array():
    traced = []

    @compiled
    def scaled(function, x, times):
        traced.append(times)
        return function(x) * times

    double = lambda x: 2 * x
    assert [float(scaled(double, jnp.asarray(v), 3)) for v in (1.0, 2.0)] == [6.0, 12.0]
    assert float(scaled(double, np.float64(5.0), 4)) == 40.0
    assert traced == [3, 4]


def test_the_program_that_was_not_used_for_the_longest_time_goes(monkeypatch):
    monkeypatch.setattr(evaluation, "MOST_PROGRAMS", 2)
    programs = Programs(lambda tree, x: tree * x)
    first, second = programs.of(2)[0], programs.of(3)[0]
    assert programs.of(2)[0] is first
    programs.of(4)
    assert programs.of(2)[0] is first
    assert programs.of(3)[0] is not second


def run(number):
    observed, density = lambda x: x[0] * number, lambda x: -0.5 * jnp.sum(x**2)
    plan = gm.Plan(
        target=gm.targets.LogDensity(density),
        dynamics=gm.dynamics.overdamped(2),
        observables={"h": observed},
        step_size=0.1,
        num_steps=4,
        num_chains=3,
        start=[0.0, 0.0],
    )
    gm.run(plan, "scan", progress=False)
    return weakref.ref(observed), weakref.ref(density)


def expect(number):
    observed, density = lambda x: x[0] * number, lambda x: -0.5 * jnp.sum(x**2)
    gm.expect(gm.targets.LogDensity(density), {"h": observed}, start=jnp.zeros(2), gradients=3000, error=1.0)
    return weakref.ref(observed), weakref.ref(density)


@pytest.mark.parametrize("call", [run, expect])
@pytest.mark.filterwarnings("ignore::gyromc.errors.GyromcWarning")
def test_functions_of_earlier_calls_are_forgotten(call, monkeypatch):
    """JAX's own caches hold what a program was compiled for: 500 new functions took gigabytes."""
    monkeypatch.setattr(evaluation, "MOST_PROGRAMS", 1)
    references = [call(number) for number in range(3)]
    gc.collect()
    assert [[one() is None for one in pair] for pair in references[:2]] == [[True, True], [True, True]]


@pytest.mark.slow
def test_memory_is_flat_over_500_new_functions():
    resident = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    # 64 programs are kept.
    for number in range(100):
        run(number)
    release_memory()
    before = resident()
    for number in range(100, 600):
        run(number)
    release_memory()
    # Where all were kept, 170 functions took 730 MB.
    assert resident() - before < 40

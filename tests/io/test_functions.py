"""A function counts as changed when it would compute something else: its own code, and what it reads and calls elsewhere."""

import sys
import types

import pytest

import gyromc as gm
from gyromc.io.functions import References
from gyromc.io.runs import described as description
from gyromc.results import RunOptions

HELPERS = """
FACTOR = 2.0
def inner(t): return FACTOR * t[0]
"""
MODULE = """
import functools
import equinox as eqx
import jax.numpy as jnp
import numpy as np
import helpers_of_a_test as helpers
from helpers_of_a_test import inner

SCALE, WEIGHTS, NAMES = 3.0, np.array([1.0, 2.0]), {"power": 2}
def helper(t): return SCALE * t
def calls(t): return helper(jnp.sum(t))
def reads(t): return WEIGHTS @ t
def looks_up(t): return t[0] ** NAMES["power"]
def imported(t): return inner(t)
def through_a_module(t): return helpers.inner(t)
def recursive(t, n=4): return t[0] if n == 0 else recursive(t, n - 1)
def raised(t, power): return jnp.sum(t**power)
partial = functools.partial(raised, power=2)
class Object:
    def __init__(self, power): self.power = power
    def __call__(self, t): return raised(t, self.power)
    def method(self, t): return t[0] * self.power
made = Object(2)
bound = made.method
class Module(eqx.Module):
    power: float
    def __call__(self, t): return self.value(t)
    def value(self, t): return t[0] ** self.power
module = Module(2.0)
"""
CHANGES = {  # function: what in the text becomes what
    "calls": [("SCALE * t", "SCALE + t"), ("SCALE, WEIGHTS, NAMES = 3.0", "SCALE, WEIGHTS, NAMES = 4.0")],
    "reads": [("[1.0, 2.0]", "[1.0, 2.5]")],
    "looks_up": [('{"power": 2}', '{"power": 3}')],
    "imported": [("FACTOR = 2.0", "FACTOR = 2.5"), ("FACTOR * t", "FACTOR - t")],
    "through_a_module": [("FACTOR = 2.0", "FACTOR = 2.5")],
    "recursive": [("n - 1", "n - 2")],
    "partial": [("power=2", "power=3"), ("t**power", "t*power")],
    "made": [("Object(2)", "Object(3)"), ("raised(t, self.power)", "raised(-t, self.power)")],
    "bound": [("Object(2)", "Object(3)"), ("t[0] * self.power", "t[1] * self.power")],
    "module": [("Module(2.0)", "Module(3.0)"), ("t[0] ** self.power", "t[1] ** self.power")],
}


def described(name, monkeypatch, before="", now=""):
    """The lines that describe one function, after a change of the text of its modules."""
    for module, text in (("helpers_of_a_test", HELPERS), ("module_of_a_test", MODULE)):
        made = types.ModuleType(module)
        monkeypatch.setitem(sys.modules, module, made)
        exec(text.replace(before, now) if before else text, made.__dict__)
    plan = gm.Plan(
        target=gm.targets.Quadratic([1.0, 2.0]),
        dynamics=gm.dynamics.overdamped(2),
        observables={"h": getattr(sys.modules["module_of_a_test"], name)},
        step_size=0.1,
    )
    return description(plan, RunOptions("scan", "", None, "raise", None, 1e6))


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_function_reads_and_calls_counts(name, monkeypatch):
    unchanged = described(name, monkeypatch)
    assert described(name, monkeypatch) == unchanged
    assert described(name, monkeypatch, "class Object", "# a comment\nclass Object") == unchanged
    for before, now in CHANGES[name]:
        assert described(name, monkeypatch, before, now) != unchanged, now


def test_a_saved_function_that_computes_something_else_is_said(monkeypatch, recwarn):
    described("calls", monkeypatch)
    stored = References().pack(sys.modules["module_of_a_test"].calls)
    found = References(allow_import=True)
    assert found.unpack(stored)
    assert not recwarn
    described("calls", monkeypatch, *CHANGES["calls"][0])
    with pytest.warns(
        gm.errors.GyromcWarning, match=r"`module_of_a_test:calls`, or what it calls and reads, is not what"
    ):
        found.unpack(stored)
    found.unpack({**stored, "code": "2.7 another"})  # by another Python: nothing is known
    assert not recwarn


def test_functions_of_gyromc_are_known_by_name():
    # their code changes with the version of gyromc or of Python, which is no other plan
    assert References(compared=True).pack(gm.schemes.base.euler_step) == {"function": "gyromc.schemes.base:euler_step"}

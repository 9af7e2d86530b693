"""Every engine provides what the protocol asks for, and a plan is given to the one that can run it."""

import inspect

import pytest

import gyromc as gm
from gyromc.engines import ENGINES, base, choose, lanes, pallas, scan
from gyromc.results import EngineState
from gyromc.schemes import Scheme

MODULES = {"pallas": pallas, "lanes": lanes, "scan": scan}


def parameters(function, skip=0):
    """(name, default) of each parameter, less the first few."""
    return [(p.name, p.default) for p in list(inspect.signature(function).parameters.values())[skip:]]


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_has_the_signatures_of_the_protocol(name):
    engine = ENGINES[name]
    for function in ("why_not", "initial_state", "open_session"):
        asked = parameters(getattr(base.Engine, function), skip=1)
        assert parameters(getattr(engine, function)) == asked
        assert parameters(getattr(MODULES[name], function)) == asked
    methods = [method for method in vars(base.Session) if not method.startswith("_")]
    assert sorted(methods) == ["advance", "failed", "kept", "state"]
    for method in methods:
        assert parameters(getattr(MODULES[name].Session, method)) == parameters(getattr(base.Session, method))


@pytest.mark.parametrize("name", ["scan", "lanes"])
def test_a_session_does_what_the_protocol_says(plan, name):
    engine = ENGINES[name]
    assert engine.why_not(plan) is None
    state = engine.initial_state(plan)
    assert isinstance(state, EngineState)
    assert state.step == 0
    session = engine.open_session(plan, state, 1e8, 2, 3)
    session.advance(5, 0)
    assert session.kept(3).shape == (3, plan.num_chains, plan.dim)
    assert session.state().step == 5
    assert session.state().sums.shape == (plan.num_chains, len(plan.observables))
    assert sum(session.state().clock) == pytest.approx(plan.step_size * (5 - plan.burn_in))
    assert not session.failed()


def test_the_choice_and_its_reason(plan):
    assert choose(plan, "scan") == ("scan", "asked for")
    name, reason = choose(plan)
    assert name in ENGINES
    assert reason
    with pytest.raises(gm.InvalidInput, match=r"`engine` must be one of .*: got 'gpu'"):
        choose(plan, "gpu")


def still(dynamics, z, gradient, xi, eta):
    """A scheme that never moves."""
    return z


def test_a_scheme_of_ones_own_runs_where_it_can(plan):
    own = plan.replace(scheme=Scheme("still", still))
    assert str(own.scheme) == "still"
    assert not own.scheme.is_euler
    assert choose(own)[0] == "scan"
    with pytest.raises(gm.InvalidInput, match="the scheme is still, which is not linear in its noise"):
        choose(own, "lanes")
    assert not gm.run(own, engine="auto").averages["x"].any()
    assert gm.predict(own).rmse_method["x"] != gm.predict(plan).rmse_method["x"]


def test_a_scheme_by_name_and_as_a_value(plan):
    assert plan.scheme is gm.schemes.euler
    assert plan.replace(scheme=gm.schemes.euler).scheme is plan.replace(scheme="euler").scheme

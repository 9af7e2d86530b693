"""Every engine on the plans of all twelve experiments, shortened: against exact moments, or against each other.

The GPU engine's kernel is interpreted here, which takes long to compile: one of the twelve by default, all with the slow tests.
"""

import pytest

import gyromc as gm
from gyromc.engines import pallas
from gyromc.engines.pallas.kernel import Layout
from gyromc.paper import CATALOGUE
from gyromc.prediction.exact.moments import exact_moments
from support.zscores import largest, two_sample_scores, z_scores

CHAINS, STEPS = 20_000, 40
LIMIT = 4.0  # standard errors; 60 comparisons exceed it by chance once in 260 suites


def short(name):
    experiment = CATALOGUE[name]
    plan = experiment.plan(max(experiment.step_sizes), "nonreversible", num_chains=CHAINS)
    first = dict([next(iter(plan.observables.items()))])
    return plan.replace(num_steps=STEPS, observables=first), next(iter(first))


def some(names, *by_default):
    """Names as parameters, all but a few among the slow tests."""
    return [name if name in by_default else pytest.param(name, marks=pytest.mark.slow) for name in names]


GAUSSIAN = [n for n in CATALOGUE if n.startswith("linear") or n.endswith("-quadratic")]


@pytest.mark.parametrize("engine", ["scan", "lanes"])
@pytest.mark.parametrize("name", some(GAUSSIAN, "linear-hfhr"))
def test_gaussian_targets_have_their_exact_moments(name, engine):
    plan, h = short(name)
    exact = exact_moments(plan)[h]
    z = z_scores(gm.run(plan, engine).averages[h], exact.mean, exact.variance)
    assert largest(z) < LIMIT, f"z = {z}"


OTHERS = [n for n in CATALOGUE if n.startswith("logistic") or n.endswith("-nonquadratic")]


@pytest.mark.parametrize("name", some(OTHERS, "gaul-nonquadratic"))
def test_on_other_targets_the_engines_agree(name):
    plan, h = short(name)
    agree(*(gm.run(plan, engine).averages[h] for engine in ("scan", "lanes")))


def agree(a, b):
    """Means and variances of two samples, within LIMIT standard errors."""
    assert largest(*two_sample_scores(a, b)) < LIMIT


def interpreted(plan):
    """The averages by the GPU engine's kernel, interpreted: all chains in one block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GYROMC_PALLAS_INTERPRET", "1")
        assert pallas.why_not(plan) is None
        layout = Layout(1 << (plan.num_chains - 1).bit_length(), 1, interpret=True)
        session = pallas.Session(plan, pallas.initial_state(plan), 1e8, None, 0, None, layout)
        session.advance(plan.num_steps)
    return session.state().sums[:, 0] / plan.num_steps


@pytest.mark.parametrize("name", some(CATALOGUE, "nld-quadratic"))
def test_the_gpu_kernel_agrees_too(name):
    plan, h = short(name)
    plan = plan.replace(num_steps=20, dtype="float32")
    ours, exact = interpreted(plan), exact_moments(plan).get(h)
    if exact is not None:
        z = z_scores(ours, exact.mean, exact.variance)
        assert largest(z) < LIMIT, f"z = {z}"
        return
    agree(ours, gm.run(plan, "lanes").averages[h])

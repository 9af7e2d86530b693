"""Every CPU engine on the plans of all twelve experiments, shortened: against exact moments, or against each other."""

import numpy as np
import pytest

import gyromc as gm
import reference
from gyromc.experiments import CATALOGUE
from gyromc.theory.moments import exact_moments

CHAINS, STEPS = 20_000, 40
LIMIT = 4.0  # standard errors; 60 comparisons exceed it by chance once in 260 suites


def short(name):
    experiment = CATALOGUE[name]
    plan = experiment.plan(max(experiment.step_sizes), "nonreversible", num_chains=CHAINS)
    first = dict([next(iter(plan.observables.items()))])
    return plan.replace(num_steps=STEPS, observables=first), next(iter(first))


@pytest.mark.parametrize("engine", ["scan", "lanes"])
@pytest.mark.parametrize("name", [n for n in CATALOGUE if n.startswith("linear") or n.endswith("-quadratic")])
def test_gaussian_targets_have_their_exact_moments(name, engine):
    plan, h = short(name)
    exact = exact_moments(plan)[h]
    z = reference.z_scores(gm.run(plan, engine).averages[h], exact.mean, exact.variance)
    assert max(map(abs, z)) < LIMIT, f"z = {z}"


@pytest.mark.parametrize("name", [n for n in CATALOGUE if n.startswith("logistic") or n.endswith("-nonquadratic")])
def test_on_other_targets_the_engines_agree(name):
    plan, h = short(name)
    a, b = (gm.run(plan, engine).averages[h] for engine in ("scan", "lanes"))
    assert abs(a.mean() - b.mean()) < LIMIT * np.sqrt((a.var() + b.var()) / CHAINS)
    spread = [np.sqrt((np.mean((x - x.mean()) ** 4) - x.var() ** 2) / CHAINS) for x in (a, b)]
    assert abs(a.var() - b.var()) < LIMIT * np.hypot(*spread)

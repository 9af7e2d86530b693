"""The martingale control variate (T9) in engine `lanes`: boundary terms to rounding, exact variances, and `scan`'s averages."""

import equinox as eqx
import numpy as np
import pytest

import gyromc as gm
from gyromc.engines import lanes
from gyromc.engines.lanes import program as increments
from gyromc.prediction.martingale import martingale
from support import recursion
from support.values import quadratic, skew, spd
from support.zscores import largest, mean_score, two_sample_scores, z_scores

LIMIT = 4.0
U = np.array([1.0, -0.5, 0.7])
DYNAMICS = {
    "general": gm.dynamics.general(spd(3, 1, 0.4, 1.2), skew(3, 2)),
    "preconditioned": gm.dynamics.general(spd(3, 1, 0.4, 1.2), 0),
    "hfhr": gm.dynamics.hfhr(3, 0.6, 1.5),
    "gaul": gm.dynamics.gaul([0.5, 1.5, 1.0], 1.0, 2.0),
}
SCHEMES = {
    "euler": "general",
    "balanced": "gaul",
    "leimkuhler_matthews": "preconditioned",
    "lm_ab2": "general",
    "hfhr_splitting": "hfhr",
    "gaul_splitting": "gaul",
}


def make(scheme, dynamics, **changes) -> gm.Plan:
    values = DYNAMICS[dynamics] if isinstance(dynamics, str) else dynamics
    defaults = {"observables": {"u": gm.observables.linear(U)}, "step_size": 0.12, "num_steps": 30, "burn_in": 3}
    return gm.Plan(
        target=quadratic(3), dynamics=values, scheme=scheme, start=np.linspace(-1.5, 2.0, values.size), martingale=True,
        **{**defaults, "num_chains": 5, "dtype": "float64", **changes},
    )  # fmt: skip


def _ends(plan):
    """A run's sums of the observables and of their increments, y when the averages begin and y at the end."""
    session = lanes.Session(plan, lanes.initial_state(plan), 1e8, None, 0)
    session.advance(plan.burn_in)
    first = session.state()
    session.advance(plan.num_steps)
    last, k = session.state(), len(plan.observables)
    return last.sums[:, :k], last.sums[:, k:], first.z, last.z


@pytest.mark.parametrize("scheme", SCHEMES)
def test_of_a_linear_observable_only_the_boundary_is_left(scheme):
    plan = make(scheme, SCHEMES[scheme])
    sums, psi, first, last = _ends(plan)
    M, _ = recursion.affine_step(plan)
    u = np.pad(U, (0, plan.state_size - 3))
    v = np.linalg.solve((np.eye(len(u)) - M).T, u)
    left = sums[:, 0] - psi[:, 0] - plan.num_steps * (U @ plan.target.mean)
    assert np.allclose(left, (first - last) @ v, rtol=1e-10, atol=1e-10)


def _of_a_square(plan) -> float:
    """The largest gap between what is left of a square's average and its boundary terms, on a whitened Gaussian.

    There M = (1-η)I, so φ(y) = (2 aᵀm / η) aᵀ(y-m) + (aᵀ(y-m))² / (1-(1-η)²).
    """
    (a,) = (h.direction for h in plan.observables.values())
    sums, psi, first, last = _ends(plan)
    _, m = plan.target.gaussian()
    rate = 1 - (1 - plan.eta) ** 2
    stationary = (a @ m) ** 2 + a @ plan.step_matrices.C @ plan.step_matrices.C.T @ a / rate
    phi = lambda y: 2 * (a @ m) / plan.eta * ((y - m) @ a) + ((y - m) @ a) ** 2 / rate
    return float(np.max(np.abs(sums[:, 0] - psi[:, 0] - plan.num_steps * stationary - (phi(first) - phi(last)))))


@pytest.mark.parametrize("scheme", ["euler", "balanced"])
def test_of_a_square_only_the_boundary_is_left(scheme, monkeypatch):
    whitened = gm.dynamics.general(np.linalg.inv(quadratic(3).precision), 0)
    plan = make(scheme, whitened, observables={"q": gm.observables.square(U)})
    assert _of_a_square(plan) < 1e-8
    wrong = {
        "sign": lambda m: eqx.tree_at(lambda m: (m.linear, m.weight), m, (-m.linear, -m.weight)),
        "no offset": lambda m: eqx.tree_at(lambda m: m.offset, m, np.zeros_like(m.offset)),
        "half the quadratic part": lambda m: eqx.tree_at(lambda m: m.weight, m, m.weight / 2),
    }
    for name, change in wrong.items():
        monkeypatch.setattr(increments, "martingale", lambda plan, change=change: change(martingale(plan)))
        assert _of_a_square(plan) > 0.1, name


@pytest.mark.parametrize("scheme", SCHEMES)
def test_with_a_noisy_oracle_the_variance_is_exact(scheme):
    plan = make(
        scheme, SCHEMES[scheme], oracle=gm.oracles.Gaussian(1.2), num_chains=40_000, dtype="float32", num_steps=20
    )
    sums, psi, _, _ = _ends(plan)
    plain, corrected = recursion.moments(plan, U), recursion.moments(plan, U, martingale(plan).linear[0])
    averages = (sums - psi)[:, 0] / plan.num_steps
    assert largest(z_scores(sums[:, 0] / plan.num_steps, *plain), z_scores(averages, *corrected)) < LIMIT
    assert largest(z_scores((sums + psi)[:, 0] / plan.num_steps, *corrected)) > LIMIT  # the wrong sign


def _logistic(rows=60, d=4):
    rng = np.random.default_rng(3)
    X = np.column_stack([np.ones(rows), rng.standard_normal((rows, d - 1))])
    return X, (rng.random(rows) < 0.4).astype(float)


def _curved(**changes) -> gm.Plan:
    X, y = _logistic()
    target = gm.targets.LogisticRegression(X, y, prior_scale=1.0)
    fit = gm.Model(target).gaussian_fit
    observables = {
        "p": gm.observables.predictive(X[0]),
        "entropy": gm.observables.entropy(X[1]),
        "square": gm.observables.square(X[2]),
        "brier": gm.observables.brier(X[0], 1),
        "first": gm.observables.linear([0.0, 1.0, 0.0, 0.0]),
    }
    whitened = gm.dynamics.general(np.linalg.inv(fit.precision), 0)
    defaults = {"dynamics": whitened, "step_size": 0.3, "scheme": "balanced", "num_chains": 40_000}
    return gm.Plan(
        target=target, oracle=gm.oracles.ControlVariate(20), observables=observables, num_steps=60,
        start=fit.mean, martingale=True, dtype="float32", **{**defaults, **changes},
    )  # fmt: skip


def test_increments_of_curved_observables_have_mean_zero_and_help():
    run = gm.run(_curved(num_chains=10_000), "lanes")
    k = len(run.plan.observables)
    h, psi = run.state.sums[:, :k], run.state.sums[:, k:]
    assert largest(mean_score(psi, 0.0)) < LIMIT
    assert np.all(np.var(h - psi, axis=0) < np.var(h, axis=0))
    assert np.all(np.var(h + psi, axis=0) > np.var(h, axis=0))  # the wrong sign
    assert run.gain["first"] > 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{}, {"dynamics": gm.dynamics.hfhr(4, 1.0, 2.0), "scheme": "euler", "step_size": 0.05}],
    ids=["whitened", "many terms"],
)
def test_curved_observables_agree_with_scan(changes):
    plan = _curved(**changes)
    ours, k = gm.run(plan, "lanes"), len(plan.observables)
    theirs = gm.run(plan.replace(seed=1, num_chains=4000), "scan")
    assert largest(mean_score(ours.state.sums[:, k:], 0.0)) < LIMIT
    less = lambda run: (run.state.sums[:, :k] - run.state.sums[:, k:]) / plan.num_steps
    assert largest(*two_sample_scores(less(ours), less(theirs))) < LIMIT
    for name in plan.observables:
        assert ours.gain[name] == pytest.approx(theirs.gain[name], rel=0.15)
    assert ours.gain["first"] > 3

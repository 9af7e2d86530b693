"""Plans whose runs are saved, killed and resumed, one for each engine and for each piece that a file must hold, and how they end.

They are built from values alone, so that another process builds the same ones.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.engines import loop
from gyromc.targets.families import StudentT

SCALE = np.array([1.0, 2.0])


def weighted(theta):
    """An observable that reads an array of its module."""
    return SCALE @ theta


def log_density(theta):
    return -0.5 * (theta @ theta) - 0.1 * (theta**4).sum()


def of_table(params):
    return -(params["a"] @ params["a"]) - params["b"] ** 2


def quartic(t):
    return t**4


def log_likelihood(theta, datum):
    return -((datum["x"] @ theta - datum["y"]) ** 2)


def start(key):
    return jax.random.normal(key, (2,))


def decreasing(k):
    return 0.2 / (1.0 + 0.01 * k)


def _data(n=60):
    rng = np.random.default_rng(5)
    X = rng.standard_normal((n, 2))
    return X, (rng.random(n) < 0.5).astype(float)


def small(**changes):
    """A Gaussian plan; `changes` replaces its fields."""
    fields = {
        "target": gm.targets.Quadratic([[2.0, 0.5], [0.5, 1.0]], mean=[1.0, -1.0]),
        "dynamics": gm.dynamics.nonreversible([[0.0, -1.0], [1.0, 0.0]]),
        "observables": {"x": gm.observables.linear([1.0, 0.0]), "y": gm.observables.tanh([0.0, 1.0])},
        "step_size": 0.1,
        "num_steps": 200,
        "num_chains": 24,
        "burn_in": 7,
        "seed": 3,
    }
    return gm.Plan(**{**fields, **changes})


def balanced(**changes):
    """Logistic regression with balanced noise, an anchored oracle and a martingale: much is computed before the first step."""
    more = {"oracle": gm.oracles.ControlVariate(8, order=2), "scheme": "balanced", "martingale": True}
    return small(
        target=gm.targets.LogisticRegression(*_data()), dynamics=gm.dynamics.overdamped(2), **{**more, **changes}
    )


def _mixed():
    X, y = _data(12)
    groups = [gm.targets.Group(np.ones((12, 1)), np.arange(12) % 3, 3, [1.0])]
    return gm.targets.MixedRegression(X, y, StudentT(), prior_scale=2.0, groups=groups)


PLANS = {
    "gaussian": small,
    "balanced": balanced,
    "minibatch": lambda: balanced(oracle=gm.oracles.Minibatch(8, replace=False), scheme="euler", martingale=False),
    "following anchors": lambda: balanced(
        oracle=gm.oracles.ControlVariate(8, refresh=5), scheme="euler", martingale=False
    ),
    "momentum": lambda: small(
        dynamics=gm.dynamics.hfhr(2, 1.0, 2.0, preconditioner=[2.0, 1.0]),
        scheme="hfhr_splitting",
        oracle=gm.oracles.Gaussian(0.5),
        start=[1.0, 2.0, 0.5, 0.0],
        dtype="float64",
    ),
    "rotations": lambda: small(dynamics=gm.dynamics.nonreversible(gm.dynamics.rotations(2, 0.5)), scheme="lm_ab2"),
    "gaul": lambda: small(dynamics=gm.dynamics.gaul([0.5, 1.5], 1.0, 2.0)),
    "second moment": lambda: small(scheme=gm.schemes.balanced([2.0, 1.0]), dynamics=gm.dynamics.general([1.0, 0.5], 0)),
    "cosine": lambda: small(
        target=gm.targets.CosinePerturbed(2, 1.2), scheme="leimkuhler_matthews", dynamics=gm.dynamics.overdamped(2)
    ),
    "softmax": lambda: small(
        target=gm.targets.SoftmaxRegression(_data()[0], np.arange(60) % 2),
        dynamics=gm.dynamics.overdamped(2),
        observables={"x": gm.observables.square([1.0, 0.0])},
    ),
    "mixed": lambda: small(
        target=_mixed(),
        dynamics=gm.dynamics.overdamped(8),
        observables={"x": gm.observables.linear(np.eye(8)[0])},
        step_size=0.02,
    ),
    "coordinates": lambda: small(
        coordinates=gm.coordinates.Compose(
            gm.coordinates.Linear([[1.0, 0.0], [0.3, 2.0]], [0.1, 0.0]), gm.coordinates.Bijection(jnp.sinh, jnp.arcsinh)
        ),
        step_size=0.01,
    ),
    "functions": lambda: small(
        target=gm.targets.LogDensity(log_density),
        observables={"w": gm.observables.function(weighted)},
        start=start,
        step_size=decreasing,
        weighting="step_size",
    ),
}
"""Plans by name."""


class Killed(BaseException):
    """The process is gone."""


def killed_at(monkeypatch, step):
    """Let the loop stop dead once it has made so many steps, as SIGKILL would: nothing more is saved."""
    advance = loop._Loop.chunk

    def chunk(self, *arguments):
        if self.step >= step:
            raise Killed
        return advance(self, *arguments)

    monkeypatch.setattr(loop._Loop, "chunk", chunk)


def start_and_kill(monkeypatch, plan, step, directory, **options):
    """Run a plan with checkpoints until it is killed at a step."""
    with monkeypatch.context() as patch:
        killed_at(patch, step)
        with pytest.raises(Killed):
            gm.run(plan, progress=False, checkpoint=directory, **options)


def names(directory, kind="step"):
    """The files of checkpoints, or of their draws, in order."""
    return sorted(path.name for path in directory.iterdir() if path.name.startswith(f"{kind}-"))

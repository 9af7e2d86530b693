"""Compile the loops of the engine `lanes` before the tests do: once, not once in every test process.

Run as `python tests/kernels.py I N`: compiles every N-th loop, beginning with the I-th, and leaves them in Numba's cache on disk.
"""

import sys

import numpy as np

import gyromc as gm
from gyromc.engines import lanes


def plans():
    """One plan for each loop and precision."""
    T, O, D = gm.targets, gm.oracles, gm.dynamics
    rng = np.random.default_rng(0)
    X, wide = rng.standard_normal((8, 3)), rng.standard_normal((8, 20))
    y = np.arange(8) % 2
    cases = [
        (T.LogisticRegression(X, y), O.Minibatch(4)),
        (T.LogisticRegression(wide, y), O.Minibatch(4)),
        (T.LinearRegression(X, y), O.Minibatch(4)),
        (T.LinearRegression(wide[:, :5], y), O.Minibatch(4)),
        (T.LogisticRegression(X, y), O.Exact()),
        (T.SoftmaxRegression(X, np.arange(8) % 3), O.Exact()),
        (T.CosinePerturbed(3, 1.2), O.Exact()),
        (T.Quadratic([1.0, 2.0]), O.Exact()),
    ]
    for target, oracle in cases:
        for dtype in ("float32", "float64"):
            yield gm.Plan(
                target=target,
                oracle=oracle,
                dynamics=D.overdamped(target.dim),
                observables={"first": gm.observables.linear(np.eye(target.dim)[0])},
                step_size=0.01,
                num_steps=1,
                num_chains=2,
                dtype=dtype,
            )


if __name__ == "__main__":
    first, every = map(int, sys.argv[1:])
    for plan in list(plans())[first::every]:
        lanes.Session(plan, lanes.initial_state(plan), 1e8, None, 0)

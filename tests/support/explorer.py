"""What the explorer's page gets from the package: the real posterior it shows, and test vectors for its mathematics.

`python tests/support/explorer.py --write` writes both. `src/gyromc/explore/data/logistic.json` is the logistic regression of
heart disease on two columns of the heart data: equal rows counted together, mode and standard deviations there.
`tests/explore/vectors.json` has settings, and what `gyromc.predict` says of them; `tests/explore/test_mathematics.py`
recomputes the table and compares the page's own functions with it. The values for the cosine and the bent target are kept: they
were computed once, from the law of the chain on a fine grid, to more digits than `predict` has there.
"""

import json
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import gyromc as gm

FILE = Path(__file__).parents[1] / "explore" / "vectors.json"
POSTERIOR = Path(gm.__file__).parent / "explore" / "data" / "logistic.json"
COLUMNS = ("st_depression", "st_slope")
COMMAND = "python tests/support/explorer.py --write"
LONG = 10**6  # steps of burn-in, after which a chain has its stationary law
STEPS, FEW = 1000, 40
POINT = [1.5, -0.5]


def posterior() -> dict:
    """Rows x₁, x₂ with how often they occur and how many have the disease; mode and scale of θ."""
    heart = gm.datasets.heart()
    X = heart.predictors[:, [heart.columns.index(name) for name in COLUMNS]]
    X, y = (X - X.mean(axis=0)) / X.std(axis=0), np.asarray(heart.disease, float)
    laplace = gm.Model(gm.targets.LogisticRegression(X, y)).laplace
    rows, place = np.unique(X, axis=0, return_inverse=True)
    count, ones = np.bincount(place), np.bincount(place, weights=y)
    return {
        "command": COMMAND,
        "source": "Statlog (Heart), UCI Machine Learning Repository, doi:10.24432/C57303, CC BY 4.0",
        "columns": list(COLUMNS),
        "rows": [[float(a), float(b), int(n), int(k)] for (a, b), n, k in zip(rows, count, ones, strict=True)],
        "mode": laplace.mean.tolist(),
        "scale": np.sqrt(np.diag(np.linalg.inv(laplace.precision))).tolist(),
    }


def precision(kappa: float, degrees: float) -> np.ndarray:
    """R diag(1, κ) Rᵀ, the long axis at the angle."""
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    R = np.array([[c, -s], [s, c]])
    return R @ np.diag([1.0, kappa]) @ R.T


def case(kappa, degrees, kind, scheme, eta, tau, u, square, **values):
    settings = {"dynamics": kind, **values}
    h = {"u": u, "square": square}
    return {"kappa": kappa, "degrees": degrees, "settings": settings, "scheme": scheme, "eta": eta, "tau": tau, "h": h}


ROUND, OVAL = (1.0, 0.0), (8.0, 30.0)
FIRST, SUM = [1.0, 0.0], [1.0, 1.0]
GAUL = {"a": 1.0, "gaulGamma": 2.0, "c1": 0.5, "c2": 1.5}
HFHR = {"alpha": 1.0, "gamma": 2.0}
GAUSSIANS = [
    case(*ROUND, "reversible", "euler", 0.1, 0.0, FIRST, False),
    case(*ROUND, "rotation", "euler", 0.1, 1.0, FIRST, True, omega=1.0),
    case(*OVAL, "rotation", "euler", 0.05, 0.0, SUM, False, omega=1.5),
    case(*OVAL, "rotation", "euler", 0.03, 2.0, SUM, True, omega=-3.0),
    case(*OVAL, "rotation", "balanced", 0.08, 1.0, FIRST, False, omega=1.0),
    case(*OVAL, "rotation", "balanced", 0.05, 0.0, SUM, True, omega=1.0),
    case(*OVAL, "rotation", "lm_ab2", 0.04, 1.0, FIRST, True, omega=1.0),
    case(*OVAL, "rotation", "balanced", 0.3, 0.5, SUM, True, omega=1.0, coordinates="white"),
    case(*OVAL, "reversible", "leimkuhler_matthews", 0.2, 0.0, FIRST, True),
    case(*OVAL, "reversible", "leimkuhler_matthews", 0.1, 1.0, SUM, False),
    case(*OVAL, "hfhr", "euler", 0.05, 1.0, FIRST, True, **HFHR),
    case(*OVAL, "hfhr", "hfhr_splitting", 0.1, 0.0, FIRST, False, alpha=0.1, gamma=1.0),
    case(*OVAL, "hfhr", "hfhr_splitting", 0.05, 1.0, SUM, True, alpha=0.1, gamma=2.0),
    case(*OVAL, "hfhr", "lm_ab2", 0.03, 0.0, SUM, True, **HFHR),
    case(*ROUND, "hfhr", "balanced", 0.3, 0.5, FIRST, True, **HFHR),
    case(*OVAL, "gaul", "euler", 0.02, 1.0, FIRST, True, **GAUL),
    case(*OVAL, "gaul", "balanced", 0.02, 0.5, SUM, False, **GAUL),
    case(*ROUND, "gaul", "lm_ab2", 0.1, 0.0, SUM, True, **GAUL),
]


def on_cosine(kind, eta, tau, u, square, **values):
    return {"beta": 1.2, **case(0, 0, kind, "euler", eta, tau, u, square, **values)}


COSINES = [
    on_cosine("rotation", 0.06, 1.0, FIRST, True, omega=1.0),
    on_cosine("rotation", 0.06, 0.0, SUM, False, omega=1.5),
    on_cosine("hfhr", 0.1, 0.5, FIRST, True, **HFHR),
    on_cosine("gaul", 0.1, 0.0, SUM, False, **GAUL),
]


WIDTH = 0.5  # of the banana, across
BENT = [
    {"bend": 0.6, "straighten": 0.6, **case(0, 0, "rotation", "euler", 0.1, 0.0, SUM, False, omega=1.0)},
    {"bend": 0.6, "straighten": 0.6, **case(0, 0, "rotation", "euler", 0.1, 0.5, [0.0, 1.0], True, omega=1.0)},
    {"bend": 0.3, "straighten": 0.3, **case(0, 0, "rotation", "euler", 0.05, 0.0, SUM, True, omega=1.5)},
]


def dynamics(settings, K=None):
    kind = settings["dynamics"]
    if settings.get("coordinates") == "white":
        rate = settings["omega"] / np.sqrt(np.linalg.det(K))
        return gm.dynamics.general(np.linalg.inv(K), [[0.0, -rate], [rate, 0.0]])
    if kind == "rotation":
        return gm.dynamics.nonreversible([[0.0, -settings["omega"]], [settings["omega"], 0.0]])
    if kind == "hfhr":
        return gm.dynamics.hfhr(2, settings["alpha"], settings["gamma"])
    if kind == "gaul":
        return gm.dynamics.gaul([settings["c1"], settings["c2"]], settings["a"], settings["gaulGamma"])
    return gm.dynamics.overdamped(2)


def oracle(tau):
    return gm.oracles.Gaussian(tau) if tau else gm.oracles.Exact()


def observable(h):
    return gm.observables.square(h["u"]) if h["square"] else gm.observables.linear(h["u"])


def on_gaussian(asked) -> dict:
    """What `predict` says of a case: V, V_0, the long run, a short run from a point, and the largest step."""
    K = precision(asked["kappa"], asked["degrees"])
    plan = gm.Plan(
        target=gm.targets.Quadratic(K),
        dynamics=dynamics(asked["settings"], K),
        observables={"h": observable(asked["h"])},
        step_size=asked["eta"],
        oracle=oracle(asked["tau"]),
        scheme=asked["scheme"],
        num_steps=STEPS,
        burn_in=LONG,
        dtype="float64",
    )
    long = gm.predict(plan)
    short = gm.predict(plan.replace(num_steps=FEW, burn_in=0, start=POINT))
    return {
        "variance": long.variance["h"],
        "reversible_variance": long.reversible_variance["h"],
        "expectation": long.expectation["h"],
        "bias": long.bias["h"],
        "std": long.std["h"],
        "short_mean": short.mean["h"],
        "short_std": short.std["h"],
        "largest_step_size": long.largest_step_size,
    }


def on_ripples(asked):
    """What `predict` says of a case of the cosine target."""
    plan = gm.Plan(
        target=gm.targets.CosinePerturbed(2, asked["beta"]),
        dynamics=dynamics(asked["settings"]),
        observables={"h": observable(asked["h"])},
        step_size=asked["eta"],
        oracle=oracle(asked["tau"]),
        num_steps=STEPS,
        burn_in=LONG,
        dtype="float64",
    )
    return gm.predict(plan)["h"]


def on_banana(asked):
    """What `predict` says of a chain in bent coordinates."""
    bend, c = asked["bend"], asked["straighten"]
    there = lambda z: jnp.stack([z[0], z[1] + c * (z[0] ** 2 - 1)])
    back = lambda t: jnp.stack([t[0], t[1] - c * (t[0] ** 2 - 1)])
    plan = gm.Plan(
        target=gm.targets.LogDensity(lambda t: -(t[0] ** 2) / 2 - ((t[1] - bend * (t[0] ** 2 - 1)) / WIDTH) ** 2 / 2),
        coordinates=gm.coordinates.Bijection(there, back, lambda z: 0.0 * z[0]),
        dynamics=dynamics(asked["settings"]),
        scheme=asked["scheme"],
        observables={"h": observable(asked["h"])},
        step_size=asked["eta"],
        oracle=oracle(asked["tau"]),
        num_steps=STEPS,
        burn_in=LONG,
        start=np.zeros(2),
        dtype="float64",
    )
    return gm.predict(plan)["h"]


def table() -> dict:
    known = {what: json.loads(FILE.read_text())[what] for what in ("cosine", "bent")}
    expected = {what: [one["expected"] for one in cases] for what, cases in known.items()}
    return {
        "command": COMMAND,
        "gaussian": [{**asked, "expected": on_gaussian(asked)} for asked in GAUSSIANS],
        "cosine": [{**asked, "expected": own} for asked, own in zip(COSINES, expected["cosine"], strict=True)],
        "bent": [{**asked, "expected": own} for asked, own in zip(BENT, expected["bent"], strict=True)],
        **{"steps": STEPS, "few": FEW, "point": POINT},
    }


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(f"usage: {COMMAND}")
    POSTERIOR.write_text(json.dumps(posterior()) + "\n", encoding="utf-8")
    FILE.write_text(json.dumps(table(), indent=1) + "\n")

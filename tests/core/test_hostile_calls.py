"""Every argument of the Python interface with every kind of value that it cannot be: each is refused in a sentence.

`ARGUMENTS` × `VALUES` is the table of what is tried. A call must raise `InvalidInput` with the given piece of a message, in less
than 400 letters, unless the value is listed as one that the argument takes. Any other exception is a fault.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.regression.fit import fit
from support.hostile import VALUES, answer

D, H, O, T = gm.dynamics, gm.observables, gm.oracles, gm.targets
X, Y = np.arange(6.0).reshape(3, 2), np.array([0, 1, 1])


def plan(**changes):
    pieces = {
        "target": T.Quadratic([1.0, 2.0]),
        "dynamics": D.overdamped(2),
        "observables": {"x": H.linear([1.0, 0.0])},
        "step_size": 0.1,
        "num_steps": 4,
        "num_chains": 3,
    }
    return gm.Plan(**{**pieces, **changes})


@pytest.fixture(scope="module")
def run():
    return gm.run(plan(), "scan", progress=False)


REGRESSIONS = (T.LinearRegression, T.LogisticRegression, T.PoissonRegression, T.SoftmaxRegression)
REAL = ("negative", "zero", "true", "1e308", "1e-320", "2**62")


def observe(h):
    return plan(observables={"h": h})


# name: (call, piece of the message, values that are taken)
ARGUMENTS = {
    "Quadratic precision": (T.Quadratic, "`precision`", ()),
    "Quadratic mean": (lambda v: T.Quadratic([1.0, 2.0], v), "`mean`", ("none",)),
    "CosinePerturbed dim": (lambda v: T.CosinePerturbed(v, 0.5), "`dim`", ("2**62",)),
    "CosinePerturbed beta": (lambda v: T.CosinePerturbed(2, v), "`beta`", REAL),
    "LogDensity fn": (lambda v: plan(target=T.LogDensity(v)), "`fn`|target's gradient", ()),
    "FiniteSum data": (
        lambda v: plan(target=T.FiniteSum(lambda m, x: -jnp.sum(x) * jnp.sum(m), lambda m: -jnp.sum(m**2), v)),
        "`data|data\\b",
        ("cube",),
    ),
    "FiniteSum log_likelihood": (
        lambda v: plan(target=T.FiniteSum(v, lambda m: -jnp.sum(m**2), X)),
        "`log_likelihood`|target's gradient",
        (),
    ),
    "FiniteSum log_prior": (
        lambda v: plan(target=T.FiniteSum(lambda m, x: -jnp.sum(m**2), v, X)),
        "`log_prior`|target's gradient",
        (),
    ),
    "Separable potential": (lambda v: T.Separable(v, [1.0, 1.0]), "`potential|nonlinearity", ()),
    "Separable precision": (lambda v: T.Separable(lambda t: t**4, v), "`precision`", ()),
    **{
        f"Separable {name}": (
            lambda v, name=name: T.Separable(lambda t: t**4, [1.0, 1.0], **{name: v}),
            f"`{name}`",
            ("none",),
        )
        for name in ("mean", "weights")
    },
    **{f"{kind.__name__} X": (lambda v, kind=kind: kind(v, Y), "`X`", ()) for kind in REGRESSIONS},
    **{f"{kind.__name__} y": (lambda v, kind=kind: kind(X, v), "`y`", ()) for kind in REGRESSIONS},
    **{
        f"{kind.__name__} prior_scale": (lambda v, kind=kind: kind(X, Y, v), "`prior_scale`", ("2**62",))
        for kind in REGRESSIONS
    },
    "SoftmaxRegression num_classes": (
        lambda v: T.SoftmaxRegression(X, Y, 1.0, v),
        "`num_classes`|classes would take .* GiB",
        ("none",),
    ),
    "Gaussian tau": (O.Gaussian, "`tau`", tuple(set(REAL) - {"negative", "1e308"})),
    "Minibatch size": (O.Minibatch, "`size`", ()),
    "Minibatch replace": (lambda v: O.Minibatch(1, v), "`replace`", ("true",)),
    "ControlVariate size": (O.ControlVariate, "`size`", ()),
    "ControlVariate center": (
        lambda v: plan(target=T.LinearRegression(X, Y), oracle=O.ControlVariate(1, v)).prepared_oracle,
        "`center`",
        ("none",),
    ),
    "ControlVariate order": (lambda v: O.ControlVariate(1, order=v), "`order`", ()),
    "ControlVariate refresh": (lambda v: O.ControlVariate(1, refresh=v), "`refresh`", ("none",)),
    "ControlVariate curvature": (lambda v: O.ControlVariate(1, order=2, curvature=v), "`curvature`", ("none",)),
    "overdamped dim": (D.overdamped, "`dim`", ("masked", "cube", "2**62")),
    "hfhr dim": (lambda v: D.hfhr(v, 1.0, 1.0), "`dim`", ("masked", "cube")),
    "hfhr alpha": (lambda v: D.hfhr(2, v, 1.0), "`alpha`", ("2**62",)),
    "hfhr gamma": (lambda v: D.hfhr(2, 1.0, v), "`gamma`", ("2**62",)),
    "gaul C": (lambda v: D.gaul(v, 1.0, 1.0), "`C`", ()),
    "gaul a": (lambda v: D.gaul([1.0, 1.0], v, 1.0), "`a`", ("2**62",)),
    "gaul gamma": (lambda v: D.gaul([1.0, 1.0], 1.0, v), "`gamma`", ("2**62",)),
    "general D": (lambda v: D.general(v, 0.0), "`D`", ()),
    "general Q": (lambda v: D.general([1.0, 1.0], v), "`Q`", ("zero",)),
    "nonreversible J": (D.nonreversible, "`J`", ()),
    "rotations dim": (D.rotations, "`dim`|pairs would take .* GiB|at least two coordinates", ("masked", "cube")),
    "rotations rate": (lambda v: D.rotations(2, v), "`rate`", REAL),
    "Dynamics diffusion": (lambda v: D.Dynamics(v, D.rotations(2)), "`diffusion`", ()),
    "Dynamics rotation": (lambda v: D.Dynamics(D.overdamped(2).diffusion, v), "`rotation`", ()),
    "linear u": (H.linear, "direction", ()),
    "square u": (H.square, "direction", ()),
    "tanh u": (H.tanh, "direction", ()),
    "predictive x": (H.predictive, "`x`|direction", ()),
    "predictive x, the other class": (lambda v: H.predictive(v, label=0), "`x`|direction", ()),
    "brier x": (lambda v: H.brier(v, 1), "direction", ()),
    "entropy x": (H.entropy, "direction", ()),
    "predictive label": (lambda v: H.predictive([1.0, 2.0], label=v), "`label`.*`model`", ("zero", "true")),
    "brier y": (lambda v: H.brier([1.0, 2.0], v), "`y`.*`model`", ("zero", "true")),
    "predictive model": (
        lambda v: observe(H.predictive([1.0, 0.0], v)),
        "`model` must be a function|'h' cannot be evaluated",
        ("none",),
    ),
    "brier model": (
        lambda v: observe(H.brier([1.0, 0.0], 1, v)),
        "`model` must be a function|'h' cannot be evaluated",
        ("none",),
    ),
    "entropy model": (
        lambda v: observe(H.entropy([1.0, 0.0], v)),
        "`model` must be a function|'h' cannot be evaluated",
        ("none",),
    ),
    "function f": (lambda v: observe(H.function(v)), "`f`|'h' cannot be evaluated", ()),
    "Ridge profile": (lambda v: H.Ridge([1.0, 0.0], v), "`profile`", ()),
    "Plan target": (lambda v: plan(target=v), "`target`", ()),
    "Plan dynamics": (lambda v: plan(dynamics=v), "`dynamics`", ()),
    "Plan oracle": (lambda v: plan(oracle=v), "`oracle`", ("none",)),
    "Plan observables": (lambda v: plan(observables=v), "[Oo]bservable", ()),
    "Plan observable": (observe, "Observable 'h'", ()),
    "Plan observable's name": (
        lambda v: plan(observables={v: H.linear([1.0, 0.0])} if v.__hash__ else {}),
        "[Oo]bservable",
        ("text", "long text", "half a letter"),
    ),
    "Plan step_size": (lambda v: plan(step_size=v), "`step_size`|schedule", ("2**62",)),
    "Plan step_size alone": (lambda v: plan(step_size=v, num_steps=None), "`step_size`|schedule", ()),
    "Plan num_steps": (lambda v: plan(num_steps=v), "`num_steps`", ("none", "2**62")),
    "Plan num_chains": (lambda v: plan(num_chains=v), "`num_chains`|chains .* GiB", ()),
    "Plan burn_in": (lambda v: plan(burn_in=v), "`burn_in`", ("zero", "2**62")),
    "Plan seed": (lambda v: plan(seed=v), "`seed`", ("zero", "2**62")),
    "Plan scheme": (lambda v: plan(scheme=v), "`scheme`", ()),
    "Plan start": (lambda v: plan(start=v), "`start`|start\\[|Parameters must be", ("none",)),
    "Plan weighting": (lambda v: plan(weighting=v), "`weighting`", ()),
    "Plan dtype": (lambda v: plan(dtype=v), "`dtype`", ("none",)),
    "Model target": (gm.Model, "`target`", ()),
    "Model template": (
        lambda v: gm.Model(T.LogDensity(lambda x: -jnp.sum(x**2)), v),
        "start|template|Parameters",
        ("masked", "cube"),
    ),
    "Model start": (lambda v: gm.Model(T.Quadratic([1.0, 1.0]), start=v), "`start`", ("none",)),
    "run plan": (gm.run, "`Plan`", ()),
    "predict plan": (gm.predict, "`Plan`", ()),
    "predict sample": (lambda v: gm.predict(plan(), v), "`sample`", ("none",)),
    "predict digits": (lambda v: gm.predict(plan(), digits=v), "`digits`", ()),
    "estimate run": (gm.estimate, "`Run`", ()),
    "fit X": (lambda v: fit(v, Y), "`X`", ()),
    "fit y": (lambda v: fit(X, v), "`y`", ()),
    "fit family": (lambda v: fit(X, Y, v), "`family`", ()),
    "fit prior_scale": (lambda v: fit(X, Y, prior_scale=v), "`prior_scale`", ()),
    "fit effort": (lambda v: fit(X, Y, effort=v), "`effort`", ()),
    "fit level": (lambda v: fit(X, Y, level=v), "`level`", ()),
    "fit num_chains": (lambda v: fit(X, Y, num_chains=v), "`num_chains`|draws .* GiB", ()),
    "fit num_draws": (lambda v: fit(X, Y, num_draws=v), "`num_draws`", ()),
    "fit seed": (lambda v: fit(X, Y, seed=v), "`seed`", ()),
    "fit intercept": (lambda v: fit(X, Y, intercept=v), "`intercept`", ()),
    "fit names": (lambda v: fit(X, Y, names=v), "`names`", ()),
    "fit classes": (lambda v: fit(X, Y, "logistic", classes=v), "`classes`", ()),
}
# arguments of a run: (call with the run and the value, piece of the message, values that are taken)
OF_A_RUN = {
    "run engine": (lambda run, v: gm.run(run.plan, v, progress=False), "`engine`", ()),
    **{
        f"run {name}": (
            lambda run, v, name=name: gm.run(run.plan, "scan", **{"progress": False, name: v}),
            f"`{name}`",
            taken,
        )
        for name, taken in {
            "progress": ("none", "true", "function", "type"),
            "on_divergence": (),
            "thin": ("none",),
            "sane_range": ("none", "2**62"),
        }.items()
    },
    "continue_ more_steps": (lambda run, v: run.continue_(v), "`more_steps`|years|at most", ()),
    "interval name": (lambda run, v: run.interval(v), "No observable", ()),
    "interval level": (lambda run, v: run.interval("x", v), "`level`", ("1e-320",)),
    "a row of a run": (lambda run, v: run[v], "No observable", ()),
    "replace step_size": (lambda run, v: run.plan.replace(step_size=v), "`step_size`|schedule", ("2**62",)),
    "estimate level": (lambda run, v: gm.estimate(run, level=v), "`level`", ("1e-320",)),
    "estimate method": (lambda run, v: gm.estimate(run, v), "`method`", ()),
    "estimate bias": (lambda run, v: gm.estimate(run, bias=v), "`bias`", ()),
}
SKIPPED = {  # what the argument takes, and would only cost time here
    **dict.fromkeys(("fit prior_scale", "fit effort", "fit num_draws", "fit seed"), ("2**62",)),
    "fit seed": ("zero", "2**62"),
    "fit level": ("1e-320",),
    "fit intercept": ("true",),
    "fit names": ("none", "texts", "NaNs"),
    "fit classes": ("none", "texts", "NaNs"),
    "run progress": ("none", "true"),
}


def faults(name, call, message, taken):
    found = {
        kind: answer(call, value, message, kind in taken)
        for kind, value in VALUES.items()
        if kind not in SKIPPED.get(name, ())
    }
    return {kind: text for kind, text in found.items() if text is not None}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument_refuses_what_it_cannot_be(name):
    assert faults(name, *ARGUMENTS[name]) == {}


@pytest.mark.parametrize("name", OF_A_RUN)
@pytest.mark.filterwarnings("ignore::gyromc.errors.GyromcWarning")
def test_an_argument_of_a_run_refuses_what_it_cannot_be(name, run):
    call, message, taken = OF_A_RUN[name]
    assert faults(name, lambda value: call(run, value), message, taken) == {}


def raising(*arguments):
    raise ValueError


@pytest.mark.parametrize(
    "build",
    [
        lambda: plan(target=T.LogDensity(raising)),
        lambda: plan(target=T.FiniteSum(raising, lambda m: -jnp.sum(m**2), X)),
        lambda: plan(observables={"h": raising}),
        lambda: plan(step_size=raising),
        lambda: plan(start=raising),
        lambda: T.Separable(raising, [1.0]),
    ],
)
def test_a_function_that_raises_without_a_message_is_named(build):
    with pytest.raises(gm.InvalidInput, match=r"cannot be evaluated .*ValueError: it has no message"):
        build()


def test_the_table_is_as_large_as_it_says():
    assert len(VALUES) * (len(ARGUMENTS) + len(OF_A_RUN)) > 3000

"""The functions that answer whole questions, called wrongly: each call is refused in a sentence, and soon.

`ARGUMENTS` × `VALUES` (of `support.hostile`) and the single calls of `CALLS` are the table of what is tried: `expect`, `check`,
`sharpen`, `fit`, `compare`, `tune`, coordinates, rotations and data sets. For most of them nothing is compiled.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.prediction.rotations import compare_rotations
from gyromc.regression.comparing import compare
from gyromc.regression.fit import fit
from support.hostile import VALUES, answer, single

C, D, H, O, T = gm.coordinates, gm.dynamics, gm.observables, gm.oracles, gm.targets
TWO = T.Quadratic([1.0, 2.0])
DENSITY = T.LogDensity(lambda x: -jnp.sum(x**2))
FRAME = {"x": np.arange(30.0) % 7, "g": np.array(list("abc") * 10), "y": np.arange(30.0) % 5 + 0.25}
X, Y = np.random.default_rng(0).normal(size=(30, 2)), np.arange(30.0) % 4
DRAWS = np.random.default_rng(1).normal(size=(4, 100, 2))
ONE = H.linear([1.0, 0.0])


def tabled(**changes):
    return lambda v: gm.fit("y ~ x", FRAME, "linear", progress=False, **{name: v for name in changes})


# name: (call, piece of the message, values that are taken or would only cost time)
ARGUMENTS = {
    "expect target": (gm.expect, "`target`", ()),
    "expect observables": (lambda v: gm.expect(TWO, v), "`observables`|[Oo]bservable", ("none",)),
    "expect observable": (lambda v: gm.expect(TWO, {"h": v}), "Observable 'h'", ()),
    "expect error": (lambda v: gm.expect(TWO, error=v), "`error`", ("true", "2**62")),
    "expect seconds": (lambda v: gm.expect(TWO, seconds=v), "`seconds`", ("none", "true", "2**62")),
    "expect gradients": (lambda v: gm.expect(TWO, gradients=v), "`gradients`", ("none", "true", "2**62")),
    "expect level": (lambda v: gm.expect(TWO, level=v), "`level`", ("1e-320",)),
    "expect start": (lambda v: gm.expect(TWO, start=v), "`start`", ("none",)),
    "expect start of a density": (
        lambda v: gm.expect(DENSITY, start=v),
        "start",
        ("zero", "true", "cube", "set", "1e308", "1e-320", "2**62", "negative"),
    ),
    "expect coordinates": (lambda v: gm.expect(TWO, coordinates=v), "`coordinates`", ("none",)),
    "expect rotations": (lambda v: gm.expect(TWO, rotations=v), "`rotations`", ("true",)),
    "expect seed": (lambda v: gm.expect(TWO, seed=v), "`seed`", ("zero", "2**62")),
    "expect progress": (lambda v: gm.expect(TWO, progress=v), "`progress`", ("none", "true", "function", "type")),
    "check draws": (lambda v: gm.check(v, TWO), "[Dd]raws", ()),
    "check target": (lambda v: gm.check(DRAWS, v), "`target`", ()),
    "check start": (lambda v: gm.check(DRAWS, TWO, v), "`start`", ("none",)),
    "sharpen draws": (lambda v: gm.sharpen(v, TWO), "[Dd]raws", ()),
    "sharpen observables": (lambda v: gm.sharpen(DRAWS, TWO, v), "`observables`|[Oo]bservable", ("none",)),
    "sharpen level": (lambda v: gm.sharpen(DRAWS, TWO, level=v), "`level`", ("1e-320",)),
    "fit formula": (lambda v: gm.fit(v, FRAME), "formula", ()),
    "fit data": (lambda v: gm.fit("y ~ x", v), "[Dd]ata|column|file|table|path", ()),
    "fit column": (lambda v: gm.fit("y ~ x", {"x": v, "y": v}), "'x'|column|row|table|target", ("texts",)),
    "fit family": (lambda v: gm.fit("y ~ x", FRAME, v), "famil", ("none",)),
    "fit test_fraction": (
        lambda v: gm.fit("y ~ x", FRAME, "linear", test_fraction=v),
        "test.fraction",
        ("zero", "1e-320"),
    ),
    "fit prior_scale": (tabled(prior_scale=0), "`prior_scale`", ("true", "2**62")),
    "fit effort": (tabled(effort=0), "effort", ("true", "2**62")),
    "fit seed": (tabled(seed=0), "`seed`", ("zero", "2**62")),
    "fit weights": (tabled(weights=0), "weights", ("none",)),
    "fit offset": (tabled(offset=0), "offset", ("none",)),
    "fit prior": (tabled(prior=0), "prior", ("none", "empty")),
    "fit reference": (tabled(reference=0), "reference", ("none", "empty")),
    "fit categorical": (tabled(categorical=0), "categorical", ("none", "empty")),
    "fit robust": (tabled(robust=0), "robust", ("true",)),
    "fit cluster": (tabled(cluster=0), "cluster", ("none",)),
    "fit missing": (tabled(missing=0), "missing", ("none",)),
    "fit progress": (
        lambda v: gm.fit("y ~ x", FRAME, "linear", progress=v),
        "`progress`",
        ("none", "true", "function", "type"),
    ),
    "compare families": (lambda v: compare(X, Y, v), "famil", ()),
    "compare X": (lambda v: compare(v, Y, ["linear"]), "`X`", ()),
    "compare y": (lambda v: compare(X, v, ["linear"]), "`y`", ()),
    "compare weights": (lambda v: compare(X, Y, ["linear"], weights=v), "`weights`", ("none",)),
    "compare offset": (lambda v: compare(X, Y, ["linear"], offset=v), "`offset`", ("none",)),
    "compare seed": (lambda v: compare(X, Y, ["linear"], seed=v), "`seed`", ("zero", "2**62")),
    "compare groups": (lambda v: compare(X, Y, ["linear"], groups=v), "`groups`", ("empty",)),
    "fit groups": (lambda v: fit(X, Y, "linear", groups=v), "`groups`", ("empty",)),
    "fit offset of rows": (lambda v: fit(X, Y, "poisson", offset=v), "`offset`", ("none",)),
    "fit trials": (lambda v: fit(X, Y, "binomial", trials=v), "`trials`", ()),
    "fit weights of rows": (lambda v: fit(X, Y, "poisson", weights=v), "`weights`", ("none",)),
    "fit priors": (lambda v: fit(X, Y, "poisson", priors=v), "`priors`", ("none",)),
    "Linear matrix": (C.Linear, "`matrix`", ()),
    "Linear shift": (lambda v: C.Linear([1.0, 2.0], v), "`shift`", ("none",)),
    "Bijection forward": (lambda v: C.Bijection(v, jnp.log), "`forward`", ("type", "function")),
    "Bijection log_det": (lambda v: C.Bijection(jnp.exp, jnp.log, v), "`log_det`", ("none", "type", "function")),
    "Compose": (C.Compose, "`Compose`", ()),
    "learn draws": (C.learn, "`draws`", ()),
    "thetas": (C.Linear([1.0, 2.0]).thetas, "`rows`", ("empty", "cube")),
    **{f"{make.__name__} K": (make, "`K`", ()) for make in (D.pairing, D.fastest, D.equal_bias)},
    "pairing D": (lambda v: D.pairing([1.0, 2.0], v), "`D`", ("none",)),
    "pairing dim": (lambda v: D.pairing(lambda x: x, dim=v), "`dim`", ()),
    "pairing count": (lambda v: D.pairing(lambda x: x * np.arange(1, 6), dim=5, count=v), "`count`", ("2**62",)),
    "equal_bias bias": (lambda v: D.equal_bias([1.0, 2.0], bias=v), "`bias`", ("true", "2**62")),
    "least_variance directions": (lambda v: D.least_variance([1.0, 2.0], v), "`directions`", ()),
    "least_variance rate": (lambda v: D.least_variance([1.0, 2.0], [1.0, 0.0], v), "`rate`", ("true", "2**62")),
    "compare_rotations plan": (compare_rotations, "`K`|`plan`", ()),
    "compare_rotations excess": (lambda v: compare_rotations([1.0, 2.0], v), "`excess`", ("true", "2**62")),
    "heart_split seed": (gm.datasets.heart_split, "`seed`", ("zero", "2**62")),
    "heart_split num_test": (lambda v: gm.datasets.heart_split(0, v), "`num_test`", ()),
    "linear_regression num_data": (lambda v: gm.datasets.linear_regression(0, v), "`num_data`|GiB", ()),
    "linear_regression coefficients": (lambda v: gm.datasets.linear_regression(0, 3, v), "`coefficients`", ()),
    "located": (gm.datasets.located, "path|file", ("text",)),
    "tune target": (gm.tune, "a target of", ()),
    "tune observables": (lambda v: gm.tune(TWO, v), "`observables`|[Oo]bservable", ("none",)),
    "tune gradients": (lambda v: gm.tune(TWO, gradients=v), "`gradients`", ("none", "true", "2**62")),
    "tune error": (lambda v: gm.tune(TWO, error=v), "`error`", ("none", "true", "2**62")),
    "tune seconds": (lambda v: gm.tune(TWO, seconds=v), "`seconds`", ("none", "true", "2**62")),
    "tune oracle": (lambda v: gm.tune(TWO, oracle=v), "`oracle`", ("none",)),
    "tune num_chains": (lambda v: gm.tune(TWO, num_chains=v), "`num_chains`", ("none",)),
    "tune start": (lambda v: gm.tune(TWO, start=v), "`start`|start is|start.* is ", ("none",)),
    "tune seed": (lambda v: gm.tune(TWO, seed=v), "`seed`", ("zero", "2**62")),
    "tune say": (lambda v: gm.tune(TWO, say=v), "`say`", ("none", "function", "type")),
}


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.filterwarnings("ignore::gyromc.errors.GyromcWarning")
def test_an_argument_refuses_what_it_cannot_be(name):
    call, message, taken = ARGUMENTS[name]
    found = {kind: answer(call, value, message, False) for kind, value in VALUES.items() if kind not in taken}
    assert {kind: text for kind, text in found.items() if text is not None} == {}


def returns(value):
    return T.LogDensity(lambda x: value)


def bent(x):
    return -jnp.sum(x**2) * jnp.where(x[0] > 0, jnp.nan, 1.0)


def branching(x):
    return -(x[0] ** 2) if x[0] > 0 else -(x[1] ** 2)


def fitted(formula="y ~ x", frame=FRAME, family="linear", **options):
    return lambda: gm.fit(formula, frame, family, progress=False, **options)


def with_columns(**columns):
    return {**FRAME, **{name: np.asarray(values) for name, values in columns.items()}}


def frame_of(names, values):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(values, columns=names)


TINY = T.LogisticRegression(X, Y > 1)
SIX = np.random.default_rng(2).normal(size=(6, 2))
# what is called: (call, piece of the message)
CALLS = {
    # targets of expect
    "a density that returns an array": (
        lambda: gm.expect(T.LogDensity(lambda x: x), start=np.zeros(2)),
        "single number",
    ),
    "a density that returns a complex": (
        lambda: gm.expect(T.LogDensity(lambda x: jnp.sum(x) * 1j), start=np.zeros(2)),
        "real|complex",
    ),
    "a density that returns a text": (lambda: gm.expect(returns("x"), start=np.zeros(2)), "gradient"),
    "a density that returns None": (lambda: gm.expect(returns(None), start=np.zeros(2)), "gradient"),
    "a density that branches": (lambda: gm.expect(T.LogDensity(branching), start=np.zeros(2)), "gradient|jnp.where"),
    "a density of NumPy": (
        lambda: gm.expect(T.LogDensity(lambda x: -np.sum(np.asarray(x) ** 2)), start=np.zeros(2)),
        "gradient|jax.numpy",
    ),
    "a density that raises": (lambda: gm.expect(T.LogDensity(lambda x: 1 / 0), start=np.zeros(2)), "ZeroDivisionError"),
    "a density of another shape": (
        lambda: gm.expect(T.LogDensity(lambda x: -(x["a"] ** 2)), start=np.zeros(2)),
        "gradient",
    ),
    "a density without start": (lambda: gm.expect(DENSITY), "pass `start`"),
    "a density with an empty start": (lambda: gm.expect(DENSITY, start={}), "start"),
    "a start outside the support": (
        lambda: gm.expect(T.LogDensity(lambda x: jnp.log(x[0])), start=np.array([-100.0])),
        "start|finite",
    ),
    "a start of NaN": (lambda: gm.expect(DENSITY, start=np.array([np.nan])), "finite"),
    "a start of whole numbers in a tree": (lambda: gm.expect(DENSITY, start={"a": "text"}), "start"),
    "a start of another length": (lambda: gm.expect(TWO, start=np.zeros(3)), "`start` must hold 2 numbers"),
    "a function in place of a target": (lambda: gm.expect(lambda x: -(x**2)), "LogDensity"),
    "a class in place of a target": (lambda: gm.expect(T.Quadratic), "`target`"),
    # observables of expect
    "an observable without a name": (lambda: gm.expect(TWO, [ONE]), "by name"),
    "no observable": (lambda: gm.expect(TWO, {}), "without entries"),
    "an observable named by a number": (lambda: gm.expect(TWO, {1: ONE}), "named by strings"),
    "an observable of another length": (
        lambda: gm.expect(TWO, {"h": H.linear([1.0, 2.0, 3.0])}),
        "direction of 3 numbers",
    ),
    "an observable that raises": (
        lambda: gm.expect(TWO, {"h": lambda x: 1 / 0}),
        "'h' cannot be evaluated.*ZeroDivision",
    ),
    "a complex observable": (lambda: gm.expect(TWO, {"h": lambda x: x[0] * 1j}), "must return real numbers"),
    "an observable that is None": (lambda: gm.expect(TWO, {"h": lambda x: None}), "returned nothing"),
    "an observable of a text": (lambda: gm.expect(TWO, {"h": lambda x: "x"}), "must return real numbers"),
    "an observable with a branch": (
        lambda: gm.expect(TWO, {"h": lambda x: 1.0 if x[0] > 0 else 0.0}),
        "'h' cannot be evaluated",
    ),
    "an observable of NumPy": (lambda: gm.expect(TWO, {"h": lambda x: np.sin(np.asarray(x))[0]}), "jax.numpy"),
    "an observable beyond the last entry": (
        lambda: gm.expect(TWO, {"h": lambda x: x[:, 3]}),
        "'h' cannot be evaluated",
    ),
    "two observables of one name": (lambda: gm.expect(TWO, {"h": lambda x: {"a": x[0]}, "h.a": ONE}), "same name"),
    "an observable that is infinite": (lambda: gm.expect(TWO, {"h": lambda x: 1 / (x[0] - x[0])}), "must be finite"),
    "an observable that is NaN somewhere": (lambda: gm.expect(TWO, {"h": lambda x: jnp.sqrt(x[0])}), "must be finite"),
    "a class as an observable": (lambda: gm.expect(TWO, {"h": H.Ridge}), "'h'"),
    # numbers of expect
    "an error of a million": (lambda: gm.expect(TWO, error=-1e6), "`error`"),
    "an error as a text": (lambda: gm.expect(TWO, error="0.01"), "`error`"),
    "no time": (lambda: gm.expect(TWO, seconds=0), "`seconds`"),
    "less than no time": (lambda: gm.expect(TWO, seconds=-1), "`seconds`"),
    "no gradients": (lambda: gm.expect(TWO, gradients=0), "`gradients`"),
    "a level in per cent": (lambda: gm.expect(TWO, level=95), "`level`"),
    "a seed that is no whole number": (lambda: gm.expect(TWO, seed=1.5), "`seed`"),
    "rotations as a text": (lambda: gm.expect(TWO, rotations="yes"), "`rotations`"),
    "unknown coordinates": (lambda: gm.expect(TWO, coordinates="polar"), "`coordinates`.*learned"),
    "coordinates of another length": (
        lambda: gm.expect(TWO, coordinates=C.Linear([1.0, 2.0, 3.0])),
        "`coordinates` cannot be evaluated",
    ),
    "coordinates that are no bijection": (
        lambda: gm.expect(TWO, coordinates=C.Bijection(jnp.exp, jnp.sin)),
        "not a bijection",
    ),
    "coordinates with another determinant": (
        lambda: gm.expect(TWO, start=[2.0, 2.0], coordinates=C.Bijection(jnp.exp, jnp.log, lambda z: 0.0)),
        "`log_det` must be",
    ),
    "coordinates with a vector as determinant": (
        lambda: gm.expect(TWO, start=[2.0, 2.0], coordinates=C.Bijection(jnp.exp, jnp.log, lambda z: z)),
        "`log_det` must return one number",
    ),
    "coordinates that raise": (
        lambda: gm.expect(TWO, coordinates=C.Bijection(lambda z: 1 / 0, lambda t: t)),
        "cannot be evaluated",
    ),
    "coordinates that return a number": (
        lambda: gm.expect(TWO, coordinates=C.Bijection(jnp.sum, lambda t: t)),
        "must map 2 numbers",
    ),
    "coordinates that are NaN at the start": (
        lambda: gm.expect(TWO, coordinates=C.Bijection(jnp.exp, jnp.log)),
        "Pass a `start`",
    ),
    # draws
    "no draws": (lambda: gm.check(np.zeros((0, 2)), TWO), "draws"),
    "chains without draws": (lambda: gm.check(np.zeros((4, 0, 2)), TWO), "draws"),
    "one draw": (lambda: gm.check(np.zeros((1, 2)), TWO), "too few"),
    "draws of another length": (lambda: gm.check(np.zeros((100, 3)), TWO), "2 parameters"),
    "draws transposed": (lambda: gm.check(np.zeros((2, 100)), TWO), "transpose"),
    "draws with NaN": (lambda: gm.check(np.full((4, 100, 2), np.nan), TWO), "finite"),
    "draws that are complex": (lambda: gm.check(DRAWS * 1j, TWO), "real"),
    "draws that are texts": (lambda: gm.check(DRAWS.astype(str), TWO), "must be numeric"),
    "draws of four axes": (lambda: gm.check(np.zeros((2, 2, 100, 2)), TWO), "parameters"),
    "draws that are ragged": (lambda: gm.check({"a": np.zeros((4, 100)), "b": np.zeros((4, 99))}, TWO), "parameters"),
    "draws that are empty": (lambda: gm.check({}, TWO), "`draws`"),
    "the path of draws": (lambda: gm.check("draws.csv", TWO), "`draws`"),
    "draws that never move": (lambda: gm.check(np.ones((4, 100, 2)), TWO), "never"),
    "a check of a function": (lambda: gm.check(DRAWS, lambda x: x), "`target`"),
    "sharpen without draws": (lambda: gm.sharpen(None, TWO), "`draws`"),
    "sharpen six draws": (lambda: gm.sharpen(SIX, TWO), "too few"),
    "sharpen a wrong observable": (lambda: gm.sharpen(DRAWS, TWO, {"h": H.linear([1.0])}), "direction of 1"),
    "sharpen to a level of 1": (lambda: gm.sharpen(DRAWS, TWO, level=1), "`level`"),
    # tables
    "a formula without a response": (fitted("~ x"), "response|left|target"),
    "a formula that is empty": (fitted(""), "formula"),
    "a formula of a text": (fitted("hello"), "formula|~"),
    "a formula with two tildes": (fitted("y ~ x ~ z"), "formula"),
    "a formula with an unknown column": (fitted("y ~ zz"), "zz"),
    "a formula with an unknown response": (fitted("zz ~ x"), "zz"),
    "a formula that runs code": (fitted("y ~ __import__('os').system('true')"), "formula"),
    "a formula with an unknown function": (fitted("y ~ magic(x)"), "magic"),
    "a formula with an open bracket": (fitted("y ~ (x"), "formula"),
    "a formula with a group of nothing": (fitted("y ~ x + (1 | )"), "group|formula"),
    "a formula with a group of numbers": (fitted("y ~ x + (1 | zz)"), "zz"),
    "a formula with a nested group": (fitted("y ~ x + (1 | (g))"), "group|formula"),
    "a formula with a group of a slope": (fitted("y ~ x + (zz | g)"), "zz"),
    "a spline of too few points": (fitted("y ~ bs(x, 400)"), "bs|spline|basis"),
    "a spline of text": (fitted("y ~ bs(g, 4)"), "g"),
    "a product of the response": (fitted("y ~ y"), "y"),
    "a formula that never ends": (fitted("y ~ (x + g) ** 40"), "formula|terms|power"),
    "a formula of a million letters": (fitted("y ~ " + " + ".join(["x"] * 200_000)), "formula|terms|long"),
    "a family in another case": (fitted(family="Poissson"), "Unknown family"),
    "an empty family": (fitted(family=""), "famil"),
    "families of numbers and classes": (fitted(family="linear,logistic"), "class|cannot be compared"),
    "a family twice": (fitted(family="linear,linear"), "twice"),
    "an unknown option": (fitted(magic=1), "no option magic"),
    "no rows": (fitted(frame={"x": [], "y": []}), "no rows|empty"),
    "one row": (fitted(frame={"x": [1.0], "y": [2.0]}), "row|value"),
    "a response that is constant": (fitted(frame=with_columns(y=np.ones(30))), "one value"),
    "a column that is constant": (fitted(frame=with_columns(x=np.ones(30))), "constant"),
    "a column of NaN": (fitted(frame=with_columns(x=np.full(30, np.nan))), "is empty"),
    "a response with a NaN": (fitted(frame=with_columns(y=[np.nan, *range(29)])), "lacks 1 value"),
    "a column with infinity": (fitted(frame=with_columns(x=[np.inf, *range(29)])), "inf"),
    "a column that is huge": (fitted(frame=with_columns(x=np.arange(30) * 1e300)), "too large"),
    "columns of other lengths": (fitted(frame={"x": [1.0, 2.0], "y": [1.0, 2.0, 3.0]}), "length"),
    "a table of a list": (fitted(frame=[1, 2, 3]), "mapping of columns"),
    "a table of None": (fitted(frame=None), "`data`"),
    "a table of a number": (fitted(frame=3.5), "mapping of columns"),
    "a table of two columns of one name": (
        lambda: fitted("y ~ x", frame_of(["x", "x", "y"], np.arange(30.0).reshape(10, 3)))(),
        "must differ",
    ),
    "a table of matrices": (fitted(frame={"x": np.ones((5, 2)), "y": np.arange(5.0)}), "dimension|mapping of columns"),
    "a column of complex numbers": (fitted(frame=with_columns(x=np.arange(30) * 1j)), "complex"),
    "an example that is missing": (fitted(frame="example:nothing"), "There is no example"),
    "a file that is missing": (fitted(frame="nothing.csv"), "There is no file"),
    "a directory as a table": (fitted(frame="."), "is a directory"),
    "counts that are negative": (
        fitted(frame=with_columns(y=np.arange(30) - 3), family="poisson"),
        "negative|count|whole",
    ),
    "counts that are no whole numbers": (fitted(family="poisson"), "whole|count"),
    "two classes for numbers": (fitted(frame=with_columns(y=["a", "b"] * 15)), "number|class"),
    "probabilities beyond 1": (fitted(family="beta"), "between 0 and 1|0 < y < 1|strictly"),
    "a logarithm of zero": (fitted(frame=with_columns(y=np.arange(30.0)), family="lognormal"), "positive"),
    "gamma of zero": (fitted(frame=with_columns(y=np.arange(30.0)), family="gamma"), "positive"),
    "trials fewer than successes": (
        fitted(frame=with_columns(y=np.arange(30), n=np.ones(30)), family="binomial", trials="n"),
        "trials",
    ),
    "binomial without trials": (fitted(frame=with_columns(y=np.arange(30)), family="binomial"), "trials"),
    "trials of a Poisson": (
        fitted(frame=with_columns(y=np.arange(30), n=np.full(30, 40)), family="poisson", trials="n"),
        "trials",
    ),
    "weights that are negative": (fitted(frame=with_columns(w=-np.ones(30)), weights="w"), "weights|w"),
    "weights that are zero": (fitted(frame=with_columns(w=np.zeros(30)), weights="w"), "weight|w"),
    "weights of text": (fitted(weights="g"), "g"),
    "an offset of text": (fitted(offset="g"), "g"),
    "an exposure of zero": (
        fitted(frame=with_columns(y=np.arange(30), e=np.zeros(30)), family="poisson", exposure="e"),
        "exposure|positive",
    ),
    "a prior of nothing": (fitted(prior={"x": "normal(0, 0)"}), "prior|positive"),
    "a prior of an unknown column": (fitted(prior={"zz": "normal(0, 1)"}), "zz"),
    "a prior of an unknown law": (fitted(prior={"x": "zipf(0, 1)"}), "normal"),
    "a prior of text": (fitted(prior="x"), "prior"),
    "a reference of an unknown level": (fitted("y ~ g", reference={"g": "zz"}), "level"),
    "a positive class of numbers": (fitted(positive="yes"), "positive"),
    "an order of numbers": (fitted(order=["a", "b"]), "order"),
    "a fraction of 2": (fitted(test_fraction=2), "test fraction"),
    "an effort of nothing": (fitted(effort=0), "effort"),
    "an effort far too great": (fitted(effort=1e-12), "effort"),
    "a cluster of nothing": (fitted(cluster="zz"), "zz"),
    # comparing
    "no families": (lambda: compare(X, Y, []), "`families`"),
    "an unknown family": (lambda: compare(X, Y, ["linear", "magic"]), "`families`"),
    "one family twice": (lambda: compare(X, Y, ["linear", "linear"]), "once"),
    "families as a text": (lambda: compare(X, Y, "linear"), "`families`"),
    "no rows to compare": (lambda: compare(np.zeros((0, 2)), np.zeros(0), ["linear"]), "row"),
    "weights of zero to compare": (lambda: compare(X, Y, ["linear"], weights=np.zeros(30)), "weight"),
    "families that cannot be fitted": (lambda: compare(X, Y - 10, ["poisson"]), "No family could be fitted"),
    "an unknown argument of a comparison": (lambda: compare(X, Y, ["linear"], names=[1]), "`names`"),
    # coordinates
    "a singular matrix": (lambda: C.Linear([[1.0, 1.0], [1.0, 1.0]]), "nonsingular"),
    "a diagonal with 0": (lambda: C.Linear([1.0, 0.0]), "nonsingular"),
    "a matrix that is not square": (lambda: C.Linear(np.ones((2, 3))), "square"),
    "a shift of another length": (lambda: C.Linear([1.0, 2.0], [1.0]), "`shift`"),
    "Compose of nothing": (lambda: C.Compose(), "got none"),
    "Compose of functions": (lambda: C.Compose(jnp.exp), "`Compose`"),
    "vectors of another length": (lambda: C.Linear([1.0, 2.0]).thetas([1.0, 2.0, 3.0]), "cannot be evaluated at 3"),
    "vectors of texts": (lambda: C.Linear([1.0]).zs(["a"]), "text"),
    "draws to learn that are few": (lambda: C.learn(np.zeros((5, 2))), "at least 100"),
    "draws to learn that never move": (lambda: C.learn(np.zeros((500, 2))), "differ"),
    "draws to learn that are NaN": (lambda: C.learn(np.full((500, 2), np.nan)), "finite"),
    "draws to learn of no parameters": (lambda: C.learn(np.zeros((500, 0))), "`draws`"),
    # rotations
    "a K that is negative": (lambda: D.pairing([-1.0, 1.0]), "positive definite"),
    "a K that is singular": (lambda: D.fastest([0.0, 1.0]), "positive definite"),
    "a K that is not symmetric": (lambda: D.fastest([[1.0, 0.5], [0.0, 1.0]]), "symmetric"),
    "a K that is not square": (lambda: D.equal_bias(np.ones((2, 3))), "`K`"),
    "a K of products without dim": (lambda: D.pairing(lambda x: x), "pass `dim`"),
    "a K of products with D": (lambda: D.pairing(lambda x: x, np.eye(5) + 0.1, 5), "leave `D` out"),
    "a K of products that raises": (lambda: D.pairing(lambda x: 1 / 0, dim=6), "ZeroDivisionError"),
    "a K of products of another length": (lambda: D.pairing(lambda x: x[:2], dim=6), "`K`"),
    "a K of products that is NaN": (lambda: D.pairing(lambda x: x * np.nan, dim=30), "`K`"),
    "a K of equal eigenvalues by products": (lambda: D.pairing(lambda x: x, dim=30), "eigenvalues that differ"),
    "a D of another size": (lambda: D.pairing([1.0, 2.0], [1.0, 1.0, 1.0]), "got 3 × 3"),
    "a D that is not positive": (lambda: D.pairing([1.0, 2.0], [1.0, -1.0]), "positive definite"),
    "a bias below 1": (lambda: D.equal_bias([1.0, 2.0], bias=0.5), "at least 1"),
    "directions of 0": (lambda: D.least_variance([1.0, 2.0], [0.0, 0.0]), "none of them 0"),
    "a table of rotations without a row": (lambda: compare_rotations([1.0, 2.0])["magic"], "must be one of"),
    "a gain of another kind": (lambda: compare_rotations([1.0, 2.0]).gain("pairing", "cubes"), "`of`"),
    "rotations of 1000 parameters": (lambda: compare_rotations(np.ones(1000)), "at most 200"),
    "rotations of a K with 0": (lambda: compare_rotations([1.0, 0.0]), "positive definite"),
    "an excess of nothing": (lambda: compare_rotations([1.0, 2.0], 0), "`excess`"),
    # data sets
    "an unknown example": (lambda: gm.datasets.located("example:hart"), "Did you mean 'heart'"),
    "an example of nothing": (lambda: gm.datasets.located("example:"), "There is no example"),
    "a split without test rows": (lambda: gm.datasets.heart_split(0, 0), "`num_test`"),
    "a split with only test rows": (lambda: gm.datasets.heart_split(0, 270), "`num_test`"),
    "a data set of 10¹⁵ rows": (lambda: gm.datasets.linear_regression(0, 10**15), "GiB"),
    "a data set without columns": (lambda: gm.datasets.linear_regression(0, 3, []), "`coefficients`"),
    # tune
    "two budgets": (lambda: gm.tune(TWO, gradients=100, error=0.1), "Pass one of"),
    "a budget as a text": (lambda: gm.tune(TWO, gradients="many"), "`gradients`"),
    "tune a function": (lambda: gm.tune(lambda x: x), "a target of"),
    "tune without start": (lambda: gm.tune(DENSITY), "Pass `start`"),
    "tune a tree": (
        lambda: gm.tune(T.LogDensity(lambda p: -jnp.sum(p["a"] ** 2)), start={"a": np.zeros(2)}),
        "Pass `observables`",
    ),
    "tune a ragged tree": (lambda: gm.tune(DENSITY, start=(np.zeros(2), np.zeros(3))), "Pass `observables`"),
    "tune with mini-batches of no data": (lambda: gm.tune(TWO, oracle=O.Minibatch(3)), "sum over data|data"),
    "tune with too large batches": (lambda: gm.tune(TINY, oracle=O.Minibatch(300, replace=False)), "300|rows|size"),
    "tune with another observable": (lambda: gm.tune(TWO, {"h": H.linear([1.0])}), "direction of 1"),
    "tune with an observable that raises": (lambda: gm.tune(TWO, {"h": lambda x: 1 / 0}), "ZeroDivisionError"),
    "tune with a plan and a start": (lambda: gm.tune(small(), start=[0.0, 0.0]), "a plan has its own"),
    "tune with no chains": (lambda: gm.tune(TWO, num_chains=0), "`num_chains`"),
    "tune with 10⁹ chains": (lambda: gm.tune(TWO, num_chains=10**9), "`num_chains`"),
    "tune that says to a text": (lambda: gm.tune(TWO, say="print"), "`say`"),
}


def small():
    return gm.Plan(
        target=TWO, dynamics=D.overdamped(2), observables={"h": ONE}, step_size=0.1, num_steps=4, num_chains=3
    )


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_refused_in_time(name):
    assert single(*CALLS[name]) is None

"""Results and models of other packages, used wrongly: each call is refused in a sentence, and soon.

`CALLS` is the table of what is tried on a posterior, a fitted model, scikit-learn's estimators and NumPyro's targets.
"""

import numpy as np
import numpyro
import pytest
from numpyro import distributions as dist

import gyromc as gm
from gyromc.interop import numpyro as gnp
from gyromc.regression.fit import fit
from gyromc.sklearn import BayesianLinearRegression, BayesianLogisticRegression, BayesianPoissonRegression
from support.hostile import single

X, Y = np.random.default_rng(0).normal(size=(30, 2)), np.arange(30.0) % 4
FRAME = {"x": X[:, 0], "y": X[:, 0] + Y}
ONE = np.array([0.3, -1.2])


def normal(y):
    numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal(0.0, 2.0)), 0.5), obs=y)


def discrete(y):
    numpyro.sample("y", dist.Normal(numpyro.sample("k", dist.Poisson(3.0)), 0.5), obs=y)


def unobserved():
    numpyro.sample("m", dist.Normal(0.0, 1.0))


def no_sites(y):
    numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)


def outside(y):
    numpyro.sample("y", dist.Exponential(numpyro.sample("r", dist.HalfNormal(1.0))), obs=y)


def raising(y):
    numpyro.sample("m", dist.Normal(0.0, 1.0))
    raise KeyError("nothing")


def branching(y):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(0.0, 1.0 if m > 0 else 2.0), obs=y)


def twice(y):
    numpyro.sample("m", dist.Normal(0.0, 1.0))
    numpyro.sample("m", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)


@pytest.fixture(scope="module")
def known():
    """A posterior, a fitted model and fitted estimators."""
    return {
        "posterior": gm.expect(gm.targets.Quadratic([1.0, 2.0]), error=0.1),
        "model": gm.fit("y ~ x", FRAME, "linear", progress=False),
        "linear": BayesianLinearRegression().fit(X, Y),
        "target": gnp.target(normal, ONE),
    }


def P(use):
    return lambda known: use(known["posterior"])


def M(use):
    return lambda known: use(known["model"])


def L(use):
    return lambda known: use(known["linear"])


def N(use):
    return lambda known: use(known["target"])


def G(model, *data, **options):
    return lambda known: gnp.target(model, *data, **options)


def S(kind, X=X, y=Y, weights=None, **options):
    return lambda known: kind(**options).fit(X, y, weights)


CALLS = {
    # a posterior
    "a quantile beyond 1": (P(lambda p: p.quantile("theta[0]", 2)), "robabilit"),
    "a quantile below 0": (P(lambda p: p.quantile("theta[0]", [-0.1, 0.5])), "robabilit"),
    "a quantile of NaN": (P(lambda p: p.quantile("theta[0]", np.nan)), "robabilit"),
    "a quantile as a text": (P(lambda p: p.quantile("theta[0]", "half")), "robabilit"),
    "a quantile of another name": (P(lambda p: p.quantile("zz", 0.5)), "No observable"),
    "a quantile of a number": (P(lambda p: p.quantile(0, 0.5)), "No observable"),
    "a level of 95": (P(lambda p: p.credible("theta[0]", 95)), "`level`"),
    "a row of another name": (P(lambda p: p["theta"]), "No observable"),
    "a row of a list": (P(lambda p: p[["theta[0]"]]), "No observable"),
    "minus one draw": (P(lambda p: p.resampled(-1)), "`count`"),
    "no draw": (P(lambda p: p.resampled(0)), "`count`"),
    "half a draw": (P(lambda p: p.resampled(0.5)), "`count`"),
    "draws with another seed": (P(lambda p: p.resampled(5, "a")), "`seed`"),
    "a figure of another kind": (P(lambda p: p.plot(kind="pie")), "no figure 'pie'"),
    "a figure of a list": (P(lambda p: p.plot(kind=["density"])), "no figure"),
    "a figure of an array of kinds": (P(lambda p: p.plot(kind=np.zeros(2))), "no figure array"),
    "more draws than memory holds": (P(lambda p: p.resampled(10**12)), "`count` = 1,000,000,000,000 draws would take"),
    "a figure of nothing": (P(lambda p: p.plot([])), "observable"),
    "a figure of another name": (P(lambda p: p.plot("zz")), "No observable"),
    "a figure of a number": (P(lambda p: p.plot(3)), "observable"),
    "a comparison with a text": (M(lambda m: m.compare("other")), "compared with models"),
    "a comparison with nothing": (M(lambda m: m.compare()), "two models"),
    "a coefficient of another name": (M(lambda m: m["zz"]), "`name` must be one of"),
    "a coefficient of a list": (M(lambda m: m[["x"]]), "`name` must be one of"),
    "a figure of a model of another kind": (M(lambda m: m.plot("pie")), "pie"),
    "a figure of a model of a list": (M(lambda m: m.plot([])), "no figure \\[\\]"),
    "more simulated draws than memory holds": (
        M(lambda m: m.simulate({"x": [1.0]}, 10**12)),
        "`draws` = .* would take",
    ),
    "a figure of a model of a number": (M(lambda m: m.plot(3)), "3"),
    "predictions without the column": (M(lambda m: m.predict({"z": [1.0]})), "'x'"),
    "predictions of no rows": (M(lambda m: m.predict({"x": []})), "no rows"),
    "predictions of None": (M(lambda m: m.predict(None)), "mapping of columns"),
    "predictions of a list": (M(lambda m: m.predict([1.0, 2.0])), "mapping of columns"),
    "predictions of NaN": (M(lambda m: m.predict({"x": [np.nan]})), "lacks|missing"),
    "predictions of infinity": (M(lambda m: m.predict({"x": [np.inf]})), "inf"),
    "predictions of text": (M(lambda m: m.predict({"x": ["a"]})), "'a'"),
    "predictions of complex numbers": (M(lambda m: m.predict({"x": np.array([1j])})), "complex"),
    "predictions of a missing file": (M(lambda m: m.predict("nothing.csv")), "There is no file"),
    "predictions with another option": (M(lambda m: m.predict({"x": [1.0]}, encoding=3)), "for files"),
    "no simulated draws": (M(lambda m: m.simulate({"x": [1.0]}, 0)), "`draws`"),
    "a simulation with another seed": (M(lambda m: m.simulate({"x": [1.0]}, 3, -1)), "`seed`"),
    "draws as a picture": (M(lambda m: m.save_draws("draws.png")), "CSV or Parquet"),
    "draws to nowhere": (M(lambda m: m.save_draws(None)), "path|name a file"),
    "a model to nowhere": (M(lambda m: m.save(None)), "path"),
    "a model to a directory": (M(lambda m: m.save("/")), "Cannot write"),
    "a report to a number": (M(lambda m: m.report(3)), "path"),
    "a report to a directory": (M(lambda m: m.report("/")), "Cannot write"),
    # scikit-learn
    "a prior scale of 0": (S(BayesianLinearRegression, prior_scale=0), "`prior_scale`"),
    "a prior scale as a text": (S(BayesianLinearRegression, prior_scale="wide"), "`prior_scale`"),
    "an effort of another name": (S(BayesianLinearRegression, effort="much"), "`effort`"),
    "no draws": (S(BayesianLinearRegression, num_draws=0), "`num_draws`"),
    "an intercept as a text": (S(BayesianLinearRegression, fit_intercept="no"), "`fit_intercept`"),
    "a negative seed": (S(BayesianLinearRegression, random_state=-1), "`seed`|random_state"),
    "counts that are negative": (S(BayesianPoissonRegression, y=Y - 2), "count"),
    "counts that are halves": (S(BayesianPoissonRegression, y=Y + 0.5), "count|whole"),
    "one class": (S(BayesianLogisticRegression, y=np.ones(30)), "at least 2 classes"),
    "an X of 10¹⁵ numbers": (lambda known: _sparse(BayesianLinearRegression()), "GiB"),
    "an estimator to nowhere": (L(lambda m: m.save(None)), "path"),
    # regressions
    "a group of another length": (lambda known: fit(X, Y, "linear", groups=[_group(3)]), "rows"),
    "a softmax of groups": (lambda known: fit(X, Y, "softmax", groups=[_group(30)]), "not available"),
    "an ordinal of halves": (lambda known: fit(X, Y + 0.5, "ordinal"), "class"),
    "a beta of 0": (lambda known: fit(X, Y / 4, "beta"), "between 0 and 1"),
    "a lognormal of 0": (lambda known: fit(X, Y, "lognormal"), "positive"),
    "a zero-inflated count of halves": (lambda known: fit(X, Y + 0.5, "zero-inflated-poisson"), "count"),
    "a hurdle of negatives": (lambda known: fit(X, Y - 2, "hurdle-poisson"), "count"),
    "a probit of three": (lambda known: fit(X, Y, "probit"), "0 and 1|0 or 1"),
    "a cloglog of three": (lambda known: fit(X, Y, "cloglog"), "0 and 1|0 or 1"),
    "a beta-binomial without trials": (lambda known: fit(X, Y, "beta-binomial"), "trials"),
    "a prior of another name": (lambda known: fit(X, Y, priors={"zz": 1.0}), "zz"),
    "a prior of text": (lambda known: fit(X, Y, priors={"x0": "wide"}), "priors"),
    "a prior of three numbers": (lambda known: fit(X, Y, priors={"x0": (1, 2, 3)}), "priors"),
    "two names for three columns": (lambda known: fit(X, Y, names=["a", "b", "c"]), "`names`"),
    "one name for two columns": (lambda known: fit(X, Y, names=["a", "a"]), "`names`|differ"),
    "classes of numbers": (lambda known: fit(X, Y, classes=["a"]), "`classes`"),
    # NumPyro
    "a model that is a text": (G("model"), "`model`"),
    "a model without its data": (G(normal), "argument|missing"),
    "a model with discrete sites": (G(discrete, ONE), "discrete|continuous"),
    "a model without data": (G(unobserved), "observed"),
    "a model without sites": (G(no_sites, ONE), "latent|sites"),
    "a model with data outside its support": (G(outside, ONE), "support|finite|-1.2"),
    "a model with NaN": (G(normal, np.array([np.nan, 1.0])), "outside the support"),
    "a model with texts": (G(normal, np.array(["a"])), "number|text|a"),
    "a model that raises": (G(raising, ONE), "nothing"),
    "a model that branches": (G(branching, ONE), "jnp.where|branch|traced|Tracer"),
    "a model with a name twice": (G(twice, ONE), "m"),
    "an unknown site that is not centred": (G(normal, ONE, noncentre=["zz"]), "noncentre"),
    "sites that are not centred as a number": (G(normal, ONE, noncentre=3), "noncentre"),
    "observables of another site": (N(lambda t: gnp.observables(t, ["zz"])), "No site 'zz'"),
    "observables of a number": (N(lambda t: gnp.observables(t, 3)), "site"),
    "observables of no site": (N(lambda t: gnp.observables(t, [])), "No site"),
    "observables of a text": (lambda known: gnp.observables("target"), "`target`"),
    "draws of a text": (lambda known: gnp.draws("run"), "result|run"),
    "new data of another posterior": (P(lambda p: gnp.predictive(p)), "NumPyro|model"),
    "a start of another site": (N(lambda t: gm.expect(t, start={"zz": 0.0})), "start|zz"),
    "draws without a site": (N(lambda t: gm.check({"zz": np.zeros((4, 100))}, t)), "'m'"),
    "draws of another shape of a site": (N(lambda t: gm.check({"m": np.zeros((4, 100, 3))}, t)), "'m'"),
    "an observable of another site": (N(lambda t: gm.expect(t, {"h": lambda p: p["zz"]})), "'h' cannot be evaluated"),
}


def _group(rows):
    from gyromc.regression.problem import GroupTerm

    return GroupTerm("g", ("intercept",), np.ones((rows, 1)), np.zeros(rows, int), ("a",))


def _sparse(model):
    from scipy import sparse

    rows = sparse.csr_array((np.ones(30), (np.arange(30), np.arange(30))), shape=(30, 10**9))
    return model.fit(rows, Y)


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_refused_in_time(name, known):
    call, message = CALLS[name]
    assert single(lambda: call(known), message) is None

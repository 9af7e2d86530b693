"""Plans from TOML: every built-in piece, data from CSV, and errors that name the table and the key."""

import dataclasses
import inspect
import re
import tomllib

import jsonschema
import numpy as np
import pytest

import gyromc as gm
from gyromc.app.commands import find
from gyromc.io import planfiles
from gyromc.io.planfiles import line_of, plan_schema
from gyromc.targets import likelihoods
from support.values import ROOT

VALIDATOR = jsonschema.Draft202012Validator(plan_schema())

BASE = """
step_size = 0.05
target = {kind = "quadratic", precision = [1.0, 2.0]}
dynamics = {kind = "overdamped"}
observables.x = {kind = "linear", u = [1.0, 0.0]}
"""

PIECES = {
    "target": [
        'kind = "quadratic"\nprecision = [[2.0, 0.5], [0.5, 1.0]]\nmean = [1.0, 2.0]',
        'kind = "cosine_perturbed"\ndim = 2\nbeta = 1.2',
        'kind = "linear_regression"\nX = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]\ny = [1.0, 2.0, 3.0]\nprior_scale = 2.0',
        'kind = "logistic_regression"\nX = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]\ny = [0, 1, 1]',
        'kind = "poisson_regression"\nX = {npy = "X.npy"}\ny = {npy = "y.npy"}',
        'kind = "softmax_regression"\nX = {npy = "X.npy"}\ny = {npy = "y.npy"}\nnum_classes = 2',
        'kind = "mixed_regression"\nX = [[1.0], [1.0]]\ny = [0.5, 1.0]\nlikelihood = {kind = "normal_noise"}',
        'kind = "streamed_regression"\nX_file = "X.npy"\ny_file = "y.npy"\nfamily = "logistic"\nprior_scale = 2.0',
        'kind = "separable"\nprecision = [1.0, 1.0]\npotential = "support.survivors:quartic"',
        'kind = "log_density"\nfn = "support.survivors:log_density"',
        'kind = "finite_sum"\nlog_likelihood = "support.survivors:log_likelihood"\nlog_prior = "support.survivors:log_density"\n'
        'data = {x = {npy = "X.npy"}, y = [0, 1, 1]}',
    ],
    "dynamics": [
        'kind = "overdamped"',
        'kind = "nonreversible"\nJ = [[0.0, -1.0], [1.0, 0.0]]',
        'kind = "rotations"\nrate = 0.5',
        'kind = "hfhr"\nalpha = 1.0\ngamma = 2.0',
        'kind = "gaul"\nC = [0.5, 1.5]\na = 1.0\ngamma = 2.0',
        'kind = "general"\nD = [1.0, 2.0]\nQ = 0',
        'kind = "general"\nD = [1.0, 1.0]\nQ = {kind = "rotations", dim = 2, rate = 0.5}',
        'kind = "hfhr"\nalpha = 1.0\ngamma = 2.0\npreconditioner = [1.0, 2.0]',
    ],
    "oracle": ['kind = "exact"', 'kind = "gaussian"\ntau = 1.0'],
    "observables.x": [
        'kind = "linear"\nu = [1.0, 0.0]',
        'kind = "square"\nu = [1.0, 0.0]',
        'kind = "tanh"\nu = [1.0, 0.0]',
        'kind = "predictive"\nx = [1.0, 0.5]',
        'kind = "predictive"\nx = [1.0, 0.5]\nlabel = 0',
        'kind = "brier"\nx = [1.0, 0.5]\ny = 1',
        'kind = "entropy"\nx = [1.0, 0.5]',
        'kind = "function"\nf = "support.survivors:weighted"',
    ],
    "scheme": [
        'kind = "euler"',
        'kind = "balanced"\nS = [[1.0, 0.5], [0.5, 1.0]]',
    ],
}


@pytest.mark.parametrize(("table", "body"), [(t, b) for t, bodies in PIECES.items() for b in bodies])
def test_every_piece_can_be_written(table, body, tmp_path):
    np.save(tmp_path / "X.npy", [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    np.save(tmp_path / "y.npy", [0, 1, 1])
    chosen = {name: bodies[0] for name, bodies in PIECES.items()} | {table: body}
    if "support.survivors:log" in body:  # a density without a dimension
        chosen["dynamics"] = 'kind = "overdamped"\ndim = 2'
    text = "step_size = 0.05\n" + "".join(f"[{name}]\n{b}\n" for name, b in chosen.items())
    assert not list(VALIDATOR.iter_errors(tomllib.loads(text)))
    plan = planfiles.loads(text, tmp_path, allow_import=True)
    assert plan.num_steps == 400
    assert plan.dim == 2


def test_numbers_are_the_plans_own():
    plan = planfiles.loads("num_steps = 7\nnum_chains = 5\nseed = 3\nburn_in = 2\nstart = [1.0, 2.0]\n" + BASE)
    assert (plan.num_steps, plan.num_chains, plan.seed, plan.burn_in) == (7, 5, 3, 2)
    np.testing.assert_array_equal(plan.starts.theta, [[1.0, 2.0]])


def test_data_from_a_csv_file(tmp_path):
    (tmp_path / "data.csv").write_text("age,dose,sick\n1,2,0\n3,4,1\n5,7,1\n")
    (tmp_path / "plan.toml").write_text(
        'step_size = 0.05\n[target]\nkind = "logistic_regression"\ncsv = "data.csv"\nresponse = "sick"\nintercept = true\n'
        '[dynamics]\nkind = "overdamped"\n[oracle]\nkind = "minibatch"\nsize = 2\n'
        '[observables.p]\nkind = "predictive"\nx = [1.0, 2.0, 3.0]\n'
    )
    plan = planfiles.load(tmp_path / "plan.toml")
    np.testing.assert_array_equal(plan.target.X, [[1, 1, 2], [1, 3, 4], [1, 5, 7]])
    np.testing.assert_array_equal(plan.target.y, [0, 1, 1])
    assert isinstance(plan.oracle, gm.oracles.Minibatch)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("age,sick\n1,2,0\n3,4,1\n", "data.csv, line 2: 3 values, but the header names 2 columns"),
        ("age,age,sick\n1,2,0\n3,4,1\n", "must differ: 'age' in columns 1, 2"),
        ("age,,sick\n1,2,0\n3,4,1\n", "Column 2 of data.csv has no name"),
        ("age,dose,sick\n1,2,0\n3,high,1\n", "data.csv, line 3: column 'dose' must hold finite numbers: got 'high'"),
        ("age,dose,ill\n1,2,0\n", "needs `response`, a column of data.csv: age, dose, ill. Got 'sick'"),
        ("age,dose,sick\n", "header line but no rows"),
    ],
)
def test_a_data_file_that_does_not_fit_its_header_is_refused(tmp_path, data, message):
    (tmp_path / "data.csv").write_text(data)
    target = 'target = {kind = "logistic_regression", csv = "data.csv", response = "sick"}'
    text = BASE.replace('target = {kind = "quadratic", precision = [1.0, 2.0]}', target)
    with pytest.raises(gm.InvalidInput, match=message):
        planfiles.loads(text, tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step_size = ", "not valid TOML"),
        (BASE.replace("step_size = 0.05", ""), "needs a number `step_size`"),
        (BASE.replace("precision", "precison"), "Did you mean 'precision'"),
        (BASE.replace('"quadratic"', '"quadrtic"'), "Did you mean 'quadratic'"),
        (BASE.replace('"quadratic", precision = [1.0, 2.0]', '"quadratic"'), "lacks precision"),
        ("step_sise = 1\n" + BASE, "Did you mean 'step_size'"),
        (BASE.replace("[1.0, 2.0]", "[1.0, -2.0]"), "positive definite"),
        (BASE.replace('dynamics = {kind = "overdamped"}', ""), r"needs a table \[dynamics\]"),
        (BASE.replace('{kind = "linear", u = [1.0, 0.0]}', "3"), "must be a table with a `kind`"),
        (BASE + 'oracle = {kind = "__import__"}', "needs a `kind` of control_variate, exact"),
    ],
)
def test_errors_name_what_is_wrong(text, message):
    with pytest.raises(gm.InvalidInput, match=message):
        planfiles.loads(text)


def test_missing_files(tmp_path):
    with pytest.raises(gm.InvalidInput, match="no plan file"):
        planfiles.load(tmp_path / "none.toml")
    (tmp_path / "plan.toml").write_text(BASE.replace("precision = [1.0, 2.0]", 'csv = "none.csv"'))
    with pytest.raises(gm.InvalidInput, match=r"plan\.toml, line 3, key `target\.csv`: .*does not exist"):
        planfiles.load(tmp_path / "plan.toml")
    target = 'kind = "streamed_regression", X_file = "no.npy", y_file = "y.npy", family = "logistic"'
    (tmp_path / "plan.toml").write_text(BASE.replace('kind = "quadratic", precision = [1.0, 2.0]', target))
    with pytest.raises(gm.InvalidInput, match=r"line 3, key `target\.X_file`: The file .*no\.npy' does not exist"):
        planfiles.load(tmp_path / "plan.toml")


def test_another_step_size(tmp_path):
    (tmp_path / "plan.toml").write_text(BASE)
    assert find(str(tmp_path / "plan.toml"), 0.1).num_steps == 100


def test_an_experiment_by_name():
    assert find("nld-quadratic", 0.1).num_steps == 100
    with pytest.raises(gm.InvalidInput, match=r"neither a plan file .* Did you mean 'nld-quadratic'"):
        find("nld-quadratc")


def test_schemes_and_the_martingale():
    plan = planfiles.loads(BASE.replace("step_size = 0.05", 'step_size = 0.05\nscheme = "balanced"\nmartingale = true'))
    assert plan.scheme.name == "balanced"
    assert plan.martingale
    plan = planfiles.loads(BASE + 'scheme = {kind = "balanced", S = [1.0, 2.0]}')
    assert plan.scheme.second_moment.size == 2
    assert planfiles.loads(BASE + 'scheme = {kind = "leimkuhler_matthews"}').scheme is gm.schemes.leimkuhler_matthews
    with pytest.raises(gm.InvalidInput, match="Did you mean 'balanced'"):
        planfiles.loads(BASE + 'scheme = {kind = "balancd"}')


WRONG = {
    "no piece": (BASE.replace('"quadratic"', '"quadrtic"'), 3, "target.kind"),
    "no argument": (BASE.replace("precision", "precison"), 3, "target.precison"),
    "a missing argument": (BASE.replace(", precision = [1.0, 2.0]", ""), 3, "target"),
    "no key": ("step_sise = 1\n" + BASE, 1, "step_sise"),
    "a text for numbers": (BASE.replace("[1.0, 2.0]", '"1, 2"'), 3, "target.precision"),
    "a truth value among numbers": (BASE.replace("[1.0, 0.0]", "[1.0, true]"), 5, "observables.x.u"),
    "a number for a truth value": (BASE + "martingale = 1", 6, "martingale"),
    "half a step": (BASE + "num_steps = 1.5", 6, "num_steps"),
    "another precision": (BASE + 'dtype = "float16"', 6, "dtype"),
    "no scheme": (BASE + 'scheme = "midpoint"', 6, "scheme"),
    "no function": (BASE + 'start = "no function"', 6, "start"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_line_and_the_key_are_said_and_the_schema_agrees(name):
    text, line, key = WRONG[name]
    with pytest.raises(gm.InvalidInput, match=rf"^line {line}, key `{re.escape(key)}`: "):
        planfiles.loads(text)
    assert list(VALIDATOR.iter_errors(tomllib.loads(text)))


def test_errors_of_the_plan_have_a_line_too():
    with pytest.raises(gm.InvalidInput, match=r"^line 3, key `target\.precision`: .*positive definite"):
        planfiles.loads(BASE.replace("[1.0, 2.0]", "[1.0, -2.0]"))
    with pytest.raises(gm.InvalidInput, match=r"^line 5, key `observables\.x`: Observable 'x' has a direction of 3"):
        planfiles.loads(BASE.replace("[1.0, 0.0]", "[1.0, 0.0, 2.0]"))
    with pytest.raises(gm.InvalidInput, match=r"^line 6, key `num_chains`: "):
        planfiles.loads(BASE + "num_chains = 0")


DOCUMENT = """a = 1
[target]
kind = "x"  # b = 2
"q.r" = [1,
 2, {z = 3, w = [1, {k = 1}]}]
[[target.groups]]
Z = 1
[[target.groups]]
Z = \"\"\"
a = [
\"\"\"
s.t = 5
[observables.x]
kind = '#'
"""


def test_lines_of_keys():
    lines = {
        ("a",): 1,
        ("target",): 2,
        ("target", "kind"): 3,
        ("target", "q.r", 2, "w", 1, "k"): 5,
        ("target", "groups"): 6,
        ("target", "groups", 1): 8,
        ("target", "groups", 1, "Z"): 9,
        ("target", "groups", 1, "s", "t"): 12,
        ("observables", "x", "kind"): 14,
    }
    assert {path: line_of(DOCUMENT, path) for path in lines} == lines


def test_functions_and_arrays_are_data_until_they_are_allowed(tmp_path):
    text = BASE.replace("step_size = 0.05", 'step_size = "support.survivors:decreasing"\nnum_steps = 10')
    with pytest.raises(
        gm.InvalidInput, match=r"`support\.survivors:decreasing` would have to be imported.*--allow-import"
    ):
        planfiles.loads(text)
    assert planfiles.loads(text, allow_import=True).scheduled
    np.save(tmp_path / "bad.npy", np.array([object()], object), allow_pickle=True)
    with pytest.raises(gm.InvalidInput, match=r"bad\.npy cannot be read as an array of numbers"):
        planfiles.loads(BASE.replace("[1.0, 2.0]", '{npy = "bad.npy"}'), tmp_path)
    start = BASE.replace(
        '{kind = "quadratic", precision = [1.0, 2.0]}', '{kind = "log_density", fn = "support.survivors:of_table"}'
    )
    start = start.replace('kind = "overdamped"', 'kind = "overdamped", dim = 2').replace(
        'kind = "linear", u = [1.0, 0.0]', 'kind = "function", f = "support.survivors:of_table"'
    )
    assert planfiles.loads(start + "start = {a = [0.5], b = 1.0}", allow_import=True).dim == 2


def families():
    """The classes of all families, found by their base."""
    found, below = [], [likelihoods.Likelihood]
    while below:
        below = [known for one in below for known in one.__subclasses__()]
        public = [one for one in below if one.__module__.startswith("gyromc.") and not one.__name__.startswith("_")]
        found += [one for one in public if not inspect.isabstract(one)]
    return found


@pytest.mark.parametrize("family", families(), ids=lambda family: family.__name__)
def test_every_family_can_be_written(family):
    """In a mixed regression, by the name of its class as Python and as a plan file write it."""
    jsonschema.Draft202012Validator.check_schema(plan_schema())
    classes = ", num_classes = 3" if "num_classes" in {one.name for one in dataclasses.fields(family)} else ""
    given = "" if classes else {(): "", ("trials",): "3, 4, 5", ("censored",): "0, 1, 0"}[family().known]
    known = f"known = [[{given}]]" if given else ""
    likelihood = f'{{kind = "{family.__name__}"{classes}}}'
    text = f"""
        step_size = 0.05
        target = {{kind = "mixed_regression", X = [[1.0], [1.0], [2.0]], y = [1, 1, 1], likelihood = {likelihood}}}
        dynamics = {{kind = "overdamped"}}
        observables.x = {{kind = "function", f = "support.survivors:weighted"}}
    """
    # a beta law has no response of 1
    response = "0.5, 0.5, 0.5" if family.__name__ == "Beta" else "1, 1, 1"
    text = text.replace("y = [1, 1, 1]", f"y = [{response}]{', ' * bool(known)}{known}")
    assert not list(VALIDATOR.iter_errors(tomllib.loads(text)))
    target = planfiles._Reader(ROOT, False).value(tomllib.loads(text)["target"], ("target",))
    assert type(target.likelihood) is family
    assert np.isfinite(target.potentials(np.zeros((1, target.dim)))[0])


def test_plans_in_the_documentation_can_be_read_and_follow_the_schema(tmp_path):
    np.save(tmp_path / "X.npy", np.eye(3))
    np.save(tmp_path / "y.npy", [0, 1, 1])
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    blocks = [block for page in pages for block in re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.M | re.S)]
    plans = [block for block in blocks if "target" in tomllib.loads(block)]
    assert plans
    for block in plans:
        assert not list(VALIDATOR.iter_errors(tomllib.loads(block)))
        assert planfiles.loads(block, tmp_path).num_steps

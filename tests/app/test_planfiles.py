"""Plans from TOML: every built-in piece, data from CSV, and errors that name the table and the key."""

import numpy as np
import pytest

import gyromc as gm
from gyromc.app import planfiles

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
    ],
    "dynamics": [
        'kind = "overdamped"',
        'kind = "nonreversible"\nJ = [[0.0, -1.0], [1.0, 0.0]]',
        'kind = "rotations"\nrate = 0.5',
        'kind = "hfhr"\nalpha = 1.0\ngamma = 2.0',
        'kind = "gaul"\nC = [0.5, 1.5]\na = 1.0\ngamma = 2.0',
        'kind = "general"\nD = [1.0, 2.0]\nQ = 0',
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
    ],
}


@pytest.mark.parametrize(("table", "body"), [(t, b) for t, bodies in PIECES.items() for b in bodies])
def test_every_piece_can_be_written(table, body):
    chosen = {name: bodies[0] for name, bodies in PIECES.items()} | {table: body}
    text = "step_size = 0.05\n" + "".join(f"[{name}]\n{b}\n" for name, b in chosen.items())
    plan = planfiles.loads(text)
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
        (BASE + 'oracle = {kind = "__import__"}', "needs a `kind` of exact"),
    ],
)
def test_errors_name_what_is_wrong(text, message):
    with pytest.raises(gm.InvalidInput, match=message):
        planfiles.loads(text)


def test_missing_files(tmp_path):
    with pytest.raises(gm.InvalidInput, match="no plan file"):
        planfiles.load(tmp_path / "none.toml")
    (tmp_path / "plan.toml").write_text(BASE.replace("precision = [1.0, 2.0]", 'csv = "none.csv"'))
    with pytest.raises(gm.InvalidInput, match=r"plan.toml: .*does not exist"):
        planfiles.load(tmp_path / "plan.toml")


def test_another_step_size(tmp_path):
    (tmp_path / "plan.toml").write_text(BASE)
    assert planfiles.find(str(tmp_path / "plan.toml"), 0.1).num_steps == 100


def test_an_experiment_by_name():
    assert planfiles.find("nld-quadratic", 0.1).num_steps == 100
    with pytest.raises(gm.InvalidInput, match=r"neither a plan file .* Did you mean nld-quadratic"):
        planfiles.find("nld-quadratc")


def test_schemes_and_the_martingale():
    plan = planfiles.loads(BASE.replace("step_size = 0.05", 'step_size = 0.05\nscheme = "balanced"\nmartingale = true'))
    assert plan.scheme.name == "balanced"
    assert plan.martingale
    plan = planfiles.loads(BASE + 'scheme = {kind = "balanced", S = [1.0, 2.0]}')
    assert plan.scheme.second_moment.size == 2
    assert planfiles.loads(BASE + 'scheme = {kind = "leimkuhler_matthews"}').scheme is gm.schemes.leimkuhler_matthews
    with pytest.raises(gm.InvalidInput, match="Did you mean 'balanced'"):
        planfiles.loads(BASE + 'scheme = {kind = "balancd"}')

"""The accuracy benchmark: its exact answers, its statistics, and every competitor on one problem in tiny sizes."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from accuracy import hierarchies, measure, ours, problems, references, report
from accuracy.peers import Outcome
from accuracy.problems import KINDS, PROBLEMS, REFERENCES, draft, problem
from gyromc.errors import InvalidInput
from pages import markdown, replace_between
from support.zscores import largest

TINY = measure.Profile("tiny", 60, 8, (40, 12), 1e12, ("gaussian-50-3",))
QUICK_TO_COMPILE = {
    label: measure.COMPETITORS[label]
    for label in ("Laplace approximation", "importance sampling", "gyromc untuned", "gyromc tuned, reversible")
}  # one of each kind; all of them run in the slow tests
HIERARCHIES = (hierarchies.eight_schools, hierarchies.radon, hierarchies.autoregression)


# --- exact answers


@pytest.mark.parametrize("make", HIERARCHIES)
def test_the_quadrature_integrates_the_density_that_is_sampled(make):
    """p(y, φ) N(w; mean, covariance) is exp(-U) up to one constant, at points drawn at random."""
    h, rng = make(), np.random.default_rng(1)
    phi = rng.normal(0, 0.7, (20, len(h.scales)))
    rows, logs = [], []
    for point in phi:
        log, mean, covariance, _, _ = h._posterior(point)
        root = np.linalg.cholesky(covariance)
        xi = rng.standard_normal(len(mean))
        rows.append(np.concatenate([point, mean + root @ xi]))
        logs.append(log - 0.5 * xi @ xi - np.sum(np.log(np.diag(root))))
    constant = np.array(logs) + gm.Model(h.target(), np.zeros(h.dim)).flat_target.potentials(np.array(rows))
    assert np.ptp(constant) < 1e-9


@pytest.mark.parametrize("make", HIERARCHIES)
def test_observables_given_the_scales(make):
    """The moments that the quadrature takes are those of the observables that the samplers average."""
    h, rng, count = make(), np.random.default_rng(2), 20_000
    phi = np.full(len(h.scales), -0.3)
    _, mean, covariance, _, _ = h._posterior(phi)
    w = mean + rng.standard_normal((count, len(mean))) @ np.linalg.cholesky(covariance).T
    rows = np.column_stack([np.broadcast_to(phi, (count, len(phi))), w])
    hs = [f for group in h.observables().values() for f in group.values()]
    with jax.enable_x64(True):
        found = np.asarray(jax.jit(jax.vmap(lambda theta: jnp.stack([f(theta) for f in hs])))(jnp.asarray(rows)))
    first, second = h._given(phi)
    moving = found.std(axis=0) > 1e-9
    z = (found.mean(axis=0) - first)[moving] / (found.std(axis=0)[moving] / math.sqrt(count))
    assert largest(z) < 4.5
    np.testing.assert_allclose(found.mean(axis=0)[~moving], first[~moving], rtol=1e-9)
    np.testing.assert_allclose((found**2).mean(axis=0), second, rtol=0.1)


@pytest.mark.parametrize("name", ["eight-schools", "ar5"])
def test_reference_files_are_what_the_command_computes(name):
    stored = json.loads((REFERENCES / f"{name}.json").read_text())
    again = references.reference(draft(name))
    assert list(stored["rows"]) == list(again["rows"])
    for key, row in stored["rows"].items():
        assert again["rows"][key]["mean"] == pytest.approx(row["mean"], rel=1e-9)
        assert again["rows"][key]["variance"] == pytest.approx(row["variance"], rel=1e-7)


def test_weighted_draws_find_the_shift_from_mode_to_mean():
    """The reference for many rows, on few: it agrees with Sobol points within errors, and the Laplace approximation does not."""
    one = draft("nes")
    rows, _ = references.by_weights(one, 2048)
    exact, _ = references.by_sobol(one, 2**13)
    names = [name for name in rows if name.startswith("m")]
    gap = np.array([rows[name][0] - exact[name][0] for name in names])
    error = np.array([math.hypot(rows[name][2], exact[name][2]) for name in names])
    shift = np.array([one.model.mode[int(name[1:])] - exact[name][0] for name in names])
    assert largest(gap / error) < 4
    assert np.abs(shift / error).max() > 6


def test_every_problem_has_its_kinds_and_a_reference():
    for name in PROBLEMS:
        if name not in ("million-rows", "digits") and not name.endswith("1000"):
            one = problem(name)
            assert set(one.kinds) == set(KINDS), name
            assert np.all(one.spread > 0), name
            assert np.all(one.truth_error < 1e-3 * np.sqrt(one.spread)), name


def test_a_problem_without_a_reference_is_left_out_of_a_profile_and_refused_by_name(monkeypatch, tmp_path):
    monkeypatch.setattr(problems, "REFERENCES", tmp_path)
    profile, lines = dataclasses.replace(TINY, problems=("digits",)), []
    done: list[float] = []
    assert measure.measured((), profile, None, lines.append, done.append) == {}
    assert "digits: left out. There is no" in lines[0]
    assert "python -m accuracy.references digits` first" in lines[0]
    assert sum(done) == measure.total((), profile)
    with pytest.raises(InvalidInput, match=r"There is no .*digits\.json"):
        measure.measured(("digits",), profile, None, print)


def test_an_unknown_problem_is_named():
    with pytest.raises(InvalidInput, match=r"No problem is named nothing. There is: gaussian-1-3"):
        draft("nothing")


# --- statistics


@pytest.fixture(scope="module")
def small():
    return problem("gaussian-50-3")


def test_effective_draws_count_bias(small):
    """Errors of exactly half a standard deviation in every repetition are four draws, random or not."""
    sd = np.sqrt(small.spread)
    biased = Outcome(np.tile(small.truth + 0.5 * sd, (6, 1)), 100, 4, seconds=2.0)
    signs = np.array([1, -1, 1, -1, 1, -1])[:, None]
    random = Outcome(small.truth + 0.5 * sd * signs, 100, 4, seconds=2.0)
    for outcome in (biased, random):
        found = measure.statistics(small, outcome, "means")
        assert found["rmse"] == pytest.approx(0.5)
        assert found["per_gradient"] == pytest.approx(4 / 100)
        assert found["per_row"] == pytest.approx(4 / 400)
        assert found["per_second"] == pytest.approx(4 * 6 / 2)
    assert measure.statistics(small, biased, "means")["worst_bias"] == pytest.approx(0.5)
    assert measure.statistics(small, random, "means")["worst_bias"] == pytest.approx(0)


def test_bootstrap_errors_are_those_of_a_mean_square(small):
    """Over 400 repetitions the mean square of a normal error has a relative deviation of √(2/400); a median has little more."""
    estimates = small.truth + np.sqrt(small.spread) * np.random.default_rng(3).standard_normal((400, 12)) / 10
    found = measure.statistics(small, Outcome(estimates, 50, 1, seconds=1.0), "squares")
    relative = found["per_gradient_error"] / found["per_gradient"]
    assert abs(found["per_gradient"] - 2) < 4 * found["per_gradient_error"]
    assert 0.5 * math.sqrt(2 / 400) < relative < 1.5 * math.sqrt(2 / 400)


def test_a_chain_that_explodes_makes_no_draws(small):
    estimates = np.tile(small.truth, (3, 1))
    estimates[1] = np.inf
    found = measure.statistics(small, Outcome(estimates, 50, 1, seconds=1.0), "means")
    assert found["per_gradient"] == 0
    assert found["rmse"] is None
    calm = Outcome(small.truth + np.sqrt(small.spread) * np.ones((3, 12)), 50, 1)
    assert measure._merit(small, calm) > measure._merit(small, Outcome(estimates, 50, 1))


def synthetic(problem, slopes, variances, chains=400):
    """Estimates by rate and step with bias cη and variance v/η, in posterior sds."""
    rng, sd = np.random.default_rng(4), np.sqrt(problem.spread)
    errors = lambda c, v, eta: c * eta + math.sqrt(v / eta) * rng.standard_normal((chains, len(sd)))
    steps = (0.1, 0.2, 0.4, 0.8)
    return {
        rate: {eta: problem.truth + sd * errors(c, variances[rate], eta) for eta in steps} for rate, c in slopes.items()
    }


def test_gain_of_rotation_is_a_ratio_of_variances_at_equal_bias(small):
    """Twice the bias means half the step: of a gain of eight at equal steps, four remains."""
    found = synthetic(small, {0.0: 0.05, 1.0: 0.1}, {0.0: 1e-3, 1.0: 1e-3 / 8})
    gain = ours.gain_at_equal_bias(small, found, 0)
    assert gain["rotating_step"] == pytest.approx(gain["reversible_step"] / 2, rel=0.1)
    assert abs(gain["gain"] - 4) < 4 * gain["error"] + 0.3  # the step itself is known to a few per cent
    assert 0.02 < gain["error"] / gain["gain"] < 0.1
    assert gain["bias_in_sd"]["rotating"] == pytest.approx(gain["bias_in_sd"]["reversible"], rel=0.1)


def test_without_bias_the_rotation_takes_its_best_step(small):
    found = synthetic(small, {0.0: 0.0, 0.5: 0.0, 1.0: 0.0}, {0.0: 1e-3, 0.5: 1e-3, 1.0: 5e-4})
    gain = ours.gain_at_equal_bias(small, found, 0)
    assert (gain["reversible_step"], gain["rotating_step"], gain["rate"]) == (0.8, 0.8, 1.0)
    assert abs(gain["gain"] - 2) < 4 * gain["error"]


def test_a_gain_that_cannot_be_measured_says_why(small):
    found = synthetic(small, {0.0: 0.0, 1.0: 0.0}, {0.0: 1e-3, 1.0: 1e-3})
    found[1.0] = {eta: np.full_like(x, np.inf) for eta, x in found[1.0].items()}
    assert ours.gain_at_equal_bias(small, found, 0) == {
        "gain": None,
        "why": "the rotating sampler fails at every step size",
    }


# --- every competitor


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    path = tmp_path_factory.mktemp("accuracy") / "accuracy.json"
    lines: list[str] = []
    found = measure.measured((), TINY, path, lines.append, competitors=QUICK_TO_COMPILE)
    return found, path, lines


def check_cells(found, name, labels):
    for label in labels:
        cell = found[f"{name}: {label}"]
        assert "left_out" not in cell, cell
        assert all(cell["kinds"][kind]["rmse"] < 2 for kind in KINDS), (name, label)
    assert set(found[f"{name}: rotation"]["gains"]) == {"plain", "martingale"}


def test_competitors_on_one_problem(cells):
    found, path, lines = cells
    assert json.loads(path.read_text())["cells"] == json.loads(json.dumps(found))
    assert len(found) == len(TINY.problems) * (len(QUICK_TO_COMPILE) + 1) == len(lines) - len(TINY.problems)
    for name in TINY.problems:
        check_cells(found, name, QUICK_TO_COMPILE)
    gaussian = {label: found[f"gaussian-50-3: {label}"]["kinds"]["means"] for label in QUICK_TO_COMPILE}
    assert gaussian["Laplace approximation"]["rmse"] < 1e-9
    drawn = gaussian["importance sampling"]  # independent draws, three for each gradient
    assert abs(math.log(drawn["per_gradient"] / 3)) < 4 * drawn["per_gradient_error"] / drawn["per_gradient"] + 0.2
    assert gaussian["gyromc tuned, reversible"]["rmse"] < 0.1 < gaussian["gyromc untuned"]["rmse"]


def test_a_second_run_measures_nothing_and_other_sizes_measure_again(cells):
    path = cells[1]

    def fail(*_):
        raise AssertionError("measured again")

    idle = {label: measure.Competitor(fail) for label in QUICK_TO_COMPILE}
    done: list[float] = []
    again = measure.measured(["gaussian-50-3"], TINY, path, print, done.append, idle)
    assert again == json.loads(path.read_text())["cells"]
    assert sum(done) == len(idle) + 1
    with pytest.raises(AssertionError, match="measured again"):
        measure.measured(["gaussian-50-3"], dataclasses.replace(TINY, budget=61), path, print, competitors=idle)


@pytest.mark.slow
def test_two_processes_measure_the_same(tmp_path):
    """Everything but the times."""
    some = {
        label: measure.COMPETITORS[label] for label in ("SGLD, best step", "Laplace approximation", "gyromc untuned")
    }
    one, two = (
        measure.measured(["gaussian-50-3"], TINY, tmp_path / f"{k}", print, competitors=some, workers=k) for k in (1, 2)
    )
    assert list(json.loads((tmp_path / "2").read_text())["cells"])
    assert set(one) == set(two)
    for key, cell in two.items():
        assert cell.pop("workers") == 2
        for found in (cell, one[key]):
            found.pop("seconds", None)
            for row in found.get("kinds", {}).values():
                row.pop("per_second", None)
        assert cell == one[key]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [name for name in PROBLEMS if not name.startswith("gaussian") and name not in ("million-rows", "digits")]
    + ["gaussian-50-3", "gaussian-10000-100"],  # the others differ in numbers alone
)
def test_all_competitors_on_every_problem(name):
    found = measure.measured([name], TINY, None, print)
    check_cells(found, name, [label for label in measure.COMPETITORS if label != "Laplace approximation"])
    nuts = found[f"{name}: NumPyro NUTS"]
    assert nuts["preparation"] > nuts["gradients"]


def test_ctrl_c_keeps_what_is_done(tmp_path):
    def one(problem, budget, repetitions, seed):
        return [Outcome(np.tile(problem.truth + 1, (repetitions, 1)), budget, 1, seconds=1.0)]

    def interrupt(*_):
        raise KeyboardInterrupt

    path = tmp_path / "accuracy.json"
    competitors = {"first": measure.Competitor(one), "second": measure.Competitor(interrupt)}
    with pytest.raises(KeyboardInterrupt):
        measure.measured(["cosine"], TINY, path, print, competitors=competitors)
    assert list(json.loads(path.read_text())["cells"]) == ["cosine: first"]


def test_what_is_left_out_says_why(small):
    missing = measure.Competitor(lambda *_: [], needs="no_such_package")
    assert measure.why_not(small, missing, TINY) == "no_such_package is not installed"
    for prepares, reason in (
        (0.0, None),
        (1e12, "full gradients would read 2e+14 numbers; the profile tiny allows 1e+12"),
    ):
        full = measure.Competitor(lambda *_: [], prepares=lambda problem, count=prepares: count)
        assert measure.why_not(small, full, TINY) == reason


# --- pages


def test_tables_figure_and_pages(cells, tmp_path):
    found = cells[0]
    assert len(report.rotation(found)) == 1
    assert "importance sampling" in repr(report.table(found).rows)
    (tmp_path / "accuracy.md").write_text("<!-- rotation: begin -->old<!-- rotation: end -->\n")
    report.write_pages(found, tmp_path)
    page = (tmp_path / "accuracy.md").read_text()
    assert "old" not in page
    assert page.count("| gaussian-50-3 |") == 1
    report.plot(found, tmp_path / "accuracy.png")
    assert (tmp_path / "accuracy.png").stat().st_size > 10_000


def test_a_page_without_markers_is_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(InvalidInput, match=r"must have the markers <!-- x: begin -->"):
        replace_between(page, "x", "text")
    assert markdown(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | ---: |\n| 1 | 2 |"

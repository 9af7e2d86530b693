"""Posteriors and predictions draw themselves: every kind, the numbers that they show, and what is refused."""

import numpy as np
import pytest

import gyromc as gm
from gyromc.regression.draws import Predictions


@pytest.fixture(scope="module")
def found():
    return gm.expect(gm.targets.Quadratic([1.0, 4.0]), seed=1, progress=False)


@pytest.mark.parametrize("kind", ["density", "trace", "rank"])
def test_one_panel_for_each_observable(found, kind):
    figure = found.plot(kind=kind)
    assert [ax.get_title(loc="left") for ax in figure.axes] == list(found)
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_densities_and_forests_show_mean_and_interval(found):
    [ax] = found.plot("theta[1]").axes
    assert ax.lines[-1].get_xdata()[0] == found["theta[1]"].mean
    [forest] = found.plot(kind="forest").axes
    ends = forest.collections[0].get_segments()
    np.testing.assert_allclose([end[0] for end in ends[1]], found.credible("theta[1]"))


def test_an_unknown_kind_is_refused(found):
    with pytest.raises(gm.InvalidInput, match="density, forest, trace, rank"):
        found.plot(kind="pie")


def test_predictions_have_the_interval_of_the_mean_and_of_one_observation():
    mean, sd, noise = np.array([1.0, 2.0]), np.array([0.1, 0.2]), np.array([1.0, 1.0])
    [ax] = Predictions(mean, 0 * mean, sd, noise).plot().axes
    outer, inner = (np.array(part.get_segments())[0, :, 0] for part in ax.collections)
    np.testing.assert_allclose(outer, 1 + 1.96 * np.hypot(0.1, 1.0) * np.array([-1, 1]))
    np.testing.assert_allclose(inner, 1 + 1.96 * 0.1 * np.array([-1, 1]))
    classes = Predictions(np.array([[0.1, 0.9]]), *(np.zeros((1, 2)) for _ in range(3)))
    assert classes.plot().axes[0].lines[0].get_xdata() == [0.9]

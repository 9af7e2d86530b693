"""The data of the experiments are what they say: intact, stratified, standardised by the training part alone."""

from pathlib import Path

import numpy as np
import pytest

from gyromc.datasets import HEART, heart, heart_split, linear_regression
from gyromc.errors import InvalidInput


def test_heart_is_the_published_table():
    table = heart()
    assert table.predictors.shape == (HEART.rows, 13)
    assert np.bincount(table.disease).tolist() == [150, 120]
    assert table.columns[0] == "age"
    assert np.all((table.predictors[:, 0] > 20) & (table.predictors[:, 0] < 90))
    assert "10.24432/C57303" in HEART.citation
    assert "CC BY 4.0" in HEART.citation


def test_a_changed_file_is_refused(monkeypatch):
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path).replace(b"70,1,4", b"71,1,4", 1))
    with pytest.raises(InvalidInput, match="SHA-256"):
        heart()


@pytest.mark.parametrize("seed", [0, 1, 7])
@pytest.mark.parametrize("ddof", [0, 1])
def test_split_is_stratified_and_standardised_by_the_training_part_only(seed, ddof):
    table, split = heart(), heart_split(seed=seed, ddof=ddof)
    assert split.X_train.shape == (202, 14)
    assert split.X_test.shape == (68, 14)
    # 150 and 120 of 270, in proportion: 37.8 and 30.2 of 68.
    assert np.bincount(split.y_test).tolist() == [38, 30]
    assert np.bincount(split.y_train).tolist() == [112, 90]
    assert sorted([*split.train_rows, *split.test_rows]) == list(range(270))
    assert np.all(split.X_train[:, 0] == 1)
    assert np.all(split.X_test[:, 0] == 1)
    np.testing.assert_allclose(split.X_train[:, 1:].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(split.X_train[:, 1:].std(axis=0, ddof=ddof), 1, rtol=1e-12)
    # The test part is on the training part's scale, so its own moments differ from (0, 1)…
    assert np.abs(split.X_test[:, 1:].mean(axis=0)).max() > 0.05
    # … and undoing that scale gives the published numbers back.
    np.testing.assert_allclose(
        split.X_test[:, 1:] * split.scale + split.mean, table.predictors[split.test_rows], atol=1e-9
    )
    assert np.array_equal(split.y_test, table.disease[split.test_rows])


def test_the_seed_decides_the_split():
    assert np.array_equal(heart_split(seed=3).test_rows, heart_split(seed=3).test_rows)
    assert not np.array_equal(heart_split(seed=3).test_rows, heart_split(seed=4).test_rows)
    with pytest.raises(InvalidInput, match="seed"):
        heart_split(seed=-1)
    with pytest.raises(InvalidInput, match="ddof"):
        heart_split(ddof=2)


def test_synthetic_regression_has_the_stated_law():
    X, y = linear_regression(seed=0)
    assert X.shape == (128, 3)
    assert y.shape == (128,)
    big, response = linear_regression(seed=1, num_data=200_000)
    # Var Unif[-½, ½] = 1/12, four standard errors of a variance estimate of a uniform law: √(0.8/n)/12.
    np.testing.assert_allclose(big.var(axis=0), 1 / 12, atol=4 * np.sqrt(0.8 / len(big)) / 12)
    residual = response - big @ [1.0, -1.0, 0.5]
    assert abs(residual.mean()) < 4 / np.sqrt(len(big))
    assert abs(residual.var() - 1) < 4 * np.sqrt(2 / len(big))
    fitted = np.linalg.lstsq(big, response, rcond=None)[0]
    np.testing.assert_allclose(fitted, [1.0, -1.0, 0.5], atol=4 * np.sqrt(12 / len(big)))

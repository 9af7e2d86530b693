"""Posteriors in files: what is read is what was saved, and files that do not fit together are refused."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from support.crafting import rewritten


def log_density(p):
    return -0.5 * p["a"] ** 2 - 0.5 * jnp.sum((p["b"] - 1) ** 2) - 0.1 * jnp.sum(p["b"] ** 4)


START = {"a": jnp.zeros(()), "b": jnp.zeros(2)}
ASKED = {"a": gm.observables.function(lambda p: p["a"]), "b₀²": gm.observables.function(lambda p: p["b"][0] ** 2)}


@pytest.fixture(scope="module")
def found():
    return gm.expect(gm.targets.LogDensity(log_density), ASKED, 0.05, start=START, progress=False)


@pytest.fixture(scope="module")
def saved(found, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "found.gyromc"
    found.save(path)
    return path


def test_what_is_read_is_what_was_saved(found, saved):
    again = gm.load(saved)
    assert repr(again) == repr(found)
    assert again.to_dict() == found.to_dict()
    assert jax.tree.all(jax.tree.map(np.array_equal, again.parameters, found.parameters))
    assert again.credible("b₀²", 0.8) == found.credible("b₀²", 0.8)
    assert np.array_equal(again.resampled(50), found.resampled(50))
    assert again.to_dataframe().equals(found.to_dataframe())
    tree, before = again.to_datatree(), found.to_datatree()
    assert all(
        one.equals(other) for one, other in ((tree[k].to_dataset(), before[k].to_dataset()) for k in tree.children)
    )


def test_saving_what_was_read_gives_the_same_bytes(saved, tmp_path):
    gm.load(saved).save(tmp_path / "again.gyromc")
    assert (tmp_path / "again.gyromc").read_bytes() == saved.read_bytes()


class Line(eqx.Module):
    slope: jax.Array
    at: tuple


def test_parameters_of_a_users_class_are_read_by_their_places(tmp_path):
    target = gm.targets.LogDensity(lambda p: -0.5 * p.slope**2 - jnp.sum(p.at[0] ** 2))
    start = Line(jnp.zeros(()), (jnp.zeros(2),))
    found = gm.expect(target, {"slope": gm.observables.function(lambda p: p.slope)}, 0.1, start=start, progress=False)
    found.save(tmp_path / "line.gyromc")
    parameters = gm.load(tmp_path / "line.gyromc").parameters
    assert set(parameters) == {"slope", "at.0"}
    assert np.array_equal(parameters["at.0"], found.parameters.at[0])


def changed(change):
    """The members of an archive, with a change to the fields of its posterior."""

    def members_changed(members):
        content = json.loads(members["content.json"])
        fields = dict(content["pairs"])
        change(fields)
        content["pairs"] = [list(pair) for pair in fields.items()]
        members["content.json"] = json.dumps(content).encode()

    return members_changed


FAULTS = {
    "a row less": lambda fields: fields["rows"]["pairs"].pop(),
    "another name": lambda fields: fields["rows"]["pairs"][0].__setitem__(0, "c"),
    "no level": lambda fields: fields.update(level=2.0),
    "weights of another shape": lambda fields: fields.update(weights=fields["draws"]),
    "no draws": lambda fields: fields.update(draws={"list": []}),
    "no model": lambda fields: fields.update(model=None),
    "no warnings": lambda fields: fields.pop("warnings"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_whose_parts_do_not_fit_is_refused(saved, tmp_path, fault):
    assert isinstance(gm.load(rewritten(saved, tmp_path / "same.gyromc", changed(lambda fields: None))), gm.Posterior)
    with pytest.raises(gm.InvalidInput, match=r"changed\.gyromc"):
        gm.load(rewritten(saved, tmp_path / "changed.gyromc", changed(FAULTS[fault])))

"""States that no run had, in files with right checksums, and calls of the functions that answer: a sentence or a right answer."""

import datetime
import fractions
import io
import json
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from support.crafting import npy, rewritten
from support.hostile import PATIENCE, single, within

C, D, H, T = gm.coordinates, gm.dynamics, gm.observables, gm.targets
TWO = T.Quadratic([1.0, 2.0])
ONE = H.linear([1.0, 0.0])
DRAWS = np.random.default_rng(1).normal(size=(4, 100, 2)) / np.sqrt([1, 2])
FRAME = {"x": np.arange(30.0) % 7, "g": np.array(list("abc") * 10), "y": np.arange(30.0) % 5 + 0.25}


def plan(**changes):
    pieces = {"target": TWO, "dynamics": D.overdamped(2), "observables": {"x": ONE}, "step_size": 0.1}
    return gm.Plan(**{**pieces, "num_steps": 40, "num_chains": 3, "dtype": "float32", **changes})


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "run.gyromc"
    gm.run(plan(), "scan", progress=False, thin=4).save(path)
    return path


@pytest.fixture(scope="module")
def models():
    fitted = lambda formula, frame: gm.fit(formula, frame, "linear", progress=False, effort="quick")
    half = {name: column[:15] for name, column in FRAME.items()}
    return {"line": fitted("y ~ x", FRAME), "half": fitted("y ~ x", half), "other": fitted("x ~ y", FRAME)}


# --- states


def state(content):
    return dict(content["run"]["pairs"])["state"]["fields"]


def of_run(name, value):
    def change(content, members):
        content["run"]["pairs"] = [[k, value if k == name else v] for k, v in content["run"]["pairs"]]

    return change


def of_state(name, value):
    return lambda content, members: state(content).__setitem__(name, value)


def of_file(name, value):
    return lambda content, members: content.__setitem__(name, value)


def array(name, change):
    def changed(content, members):
        member = f"{state(content)[name]['array']}.npy"
        members[member] = npy(change(np.load(io.BytesIO(members[member]))))

    return changed


NAN, NANS = {"number": "nan"}, {"tuple": [{"number": "nan"}] * 2}
STATES = {
    "a step that is no whole number": of_state("step", 1.5),
    "a step that is true": of_state("step", True),
    "a step of years": of_state("step", 10**9),
    "a step before the first": of_state("step", -1),
    "a step that was not reached": of_state("step", 39),
    "a time of NaN": of_state("clock", NANS),
    "a time that is infinite": of_state("clock", {"tuple": [1e308, 1e308]}),
    "a time of 400 digits": of_state("clock", {"tuple": [10**400, 1]}),
    "a time of other steps": of_state("clock", {"tuple": [5.0, 0.0]}),
    "times of blocks of other steps": lambda content, members: [
        pair.__setitem__(1, 1.0) for pair in state(content)["clocks"]["pairs"]
    ],
    "three times": of_state("clock", {"tuple": [4.0, 0.0, 0.0]}),
    "a check after the end": of_state("checked", 10**30),
    "a check that is a text": of_state("checked", "x"),
    "no blocks": of_state("snapshots", None),
    "blocks without times": of_state("clocks", {"pairs": []}),
    "anchors that no oracle keeps": lambda content, members: of_state("anchors", dict(state(content)["z"]))(
        content, members
    ),
    "seconds of NaN": of_run("wall_time", NAN),
    "seconds below zero": of_run("compile_time", -1.0),
    "another engine": of_run("engine", "gpu"),
    "draws that are missing": of_run("draws", None),
    "a draw less": lambda content, members: members.update(
        {
            name: npy(x[:, 1:])
            for name in members
            if name.endswith(".npy") and (x := np.load(io.BytesIO(members[name]))).shape == (3, 10, 2)
        }
    ),
    "states of NaN": array("z", lambda x: np.full_like(x, np.nan)),
    "chains that failed before": array("failed_at", lambda x: np.full_like(x, 5)),
    "versions that are a list": of_file("versions", {"list": [1]}),
    "options that are a list": of_file("options", {"list": []}),
    "no options to go on with": of_file("options", None),
    "no plan": lambda content, members: content.pop("plan"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", STATES)
def test_a_state_that_no_run_had_is_refused(name, saved, tmp_path):
    """It is refused when it is read, or when the run goes on, as a run whose chains have failed."""

    def edit(members):
        content = dict(json.loads(members["content.json"])["pairs"])
        STATES[name](content, members)
        members["content.json"] = json.dumps({"pairs": [[k, v] for k, v in content.items()]}).encode()

    path = rewritten(saved, tmp_path / "crafted.gyromc", edit)
    with within(6 * PATIENCE), pytest.raises((gm.InvalidInput, gm.DivergenceError)):
        gm.load(path).continue_(3)


CONTENTS = {
    "nothing": b"",
    "null": b"null",
    "a list": b"[]",
    "an empty table": b"{}",
    "a hundred thousand brackets": b"[" * 100_000 + b"]" * 100_000,
    "a list in a list, 500 times": b'{"list":[' * 500 + b"1" + b"]}" * 500,
    "a number of 6000 digits": b"1" + b"0" * 6000,
    "another encoding": "{}".encode("utf-16"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_content_that_is_no_run_is_refused(name, saved, tmp_path):
    path = rewritten(
        saved, tmp_path / "crafted.gyromc", lambda members: members.update({"content.json": CONTENTS[name]})
    )
    with within(PATIENCE), pytest.raises(gm.InvalidInput, match=r"crafted\.gyromc"):
        gm.load(path)


HEADERS = {
    "a version that is true": ("version", True),
    "a version below the first": ("version", -5),
    "a version that is a text": ("version", "1"),
    "another kind": ("kind", "poem"),
    "the kind of an estimator": ("kind", "estimator"),
    "the kind of a file of draws": ("kind", "draws"),
    "no checksums": ("sha256", None),
    "a checksum of a file elsewhere": ("sha256", {"../x": ""}),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_does_not_fit_is_refused(name, saved, tmp_path):
    with zipfile.ZipFile(saved) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    key, value = HEADERS[name]
    header = {**json.loads(members["header.json"]), key: value}
    with zipfile.ZipFile(tmp_path / "crafted.gyromc", "w") as archive:
        for member, data in {**members, "header.json": json.dumps(header).encode()}.items():
            archive.writestr(member, data)
    with within(6 * PATIENCE), pytest.raises(gm.InvalidInput, match=r"crafted\.gyromc"):
        gm.load(tmp_path / "crafted.gyromc")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"functions": [1]}, "`functions` must be a mapping"),
        ({"functions": {"a:b": 3}}, "'a:b' is 3"),
        ({"functions": {1: len}}, "`functions` must be a mapping"),
        ({"data": ["a"]}, "`data` must be a mapping"),
        ({"data": {"a": 2}}, "path"),
        ({"data": {"a": "b"}}, "reads no file of rows"),
        ({"allow_import": "yes"}, "`allow_import`"),
    ],
)
def test_an_argument_of_load_that_is_none_is_refused(given, message, saved):
    with pytest.raises(gm.InvalidInput, match=message):
        gm.load(saved, **given)


@pytest.mark.parametrize("path", [None, 5, b"a", "", "a\0b", "\ud800", "/dev/zero", "/"])
def test_a_path_that_names_no_file_is_refused(path):
    with pytest.raises(gm.InvalidInput):
        gm.load(path)


# --- calls


class OwnTarget(T.Target):
    """A target of a user's own whose U is a text."""

    @property
    def dim(self):
        return 2

    def potential(self, params):
        return "x"


class OwnObservable(H.Observable):
    def __call__(self, params):
        raise MemoryError


class OwnCoordinates(C.Coordinates):
    def forward(self, z):
        return z

    def inverse(self, theta):
        return theta

    def log_det(self, z):
        return "x"


class NoNumber(float):
    def __float__(self):
        raise RuntimeError


class NoSequence:
    def __len__(self):
        return 3

    def __getitem__(self, i):
        raise RuntimeError


def fit(**columns):
    return lambda: gm.fit("y ~ x", {**FRAME, **columns}, "linear", progress=False)


CALLS = {
    "expect: a target whose U is a text": (lambda: gm.expect(OwnTarget()), "target's gradient"),
    "expect: a target that JAX is tracing": (
        lambda: jax.jit(lambda p: gm.expect(T.Quadratic(p)).rows)(jnp.ones(2)),
        "`precision`",
    ),
    "expect: a function that makes plans": (lambda: gm.expect(plan), "`target` must be"),
    "expect: a plan and another start": (lambda: gm.expect(plan(), start=[1.0, 2.0, 3.0]), "leave `start` out"),
    "expect: an observable without memory": (lambda: gm.expect(TWO, {"h": OwnObservable()}), "'h'.*MemoryError"),
    "expect: a billion numbers": (lambda: gm.expect(TWO, {"h": lambda x: jnp.zeros(10**9)}), "1,000,000,000 numbers"),
    "expect: an observable of no numbers": (lambda: gm.expect(TWO, {"h": lambda x: x[:0]}), "returned nothing"),
    "expect: an observable of keys": (lambda: gm.expect(TWO, {"h": lambda x: jax.random.key(0)}), "real numbers"),
    "expect: an observable of two arguments": (lambda: gm.expect(TWO, {"h": lambda x, y: x[0]}), "cannot be evaluated"),
    "expect: an error that is no number": (lambda: gm.expect(TWO, error=NoNumber(0.5)), "`error`"),
    "expect: an error in an array": (lambda: gm.expect(TWO, error=np.array([0.5])), "`error`"),
    "expect: a time span": (lambda: gm.expect(TWO, seconds=datetime.timedelta(seconds=1)), "`seconds`"),
    "expect: a start that cannot be read": (lambda: gm.expect(TWO, start=NoSequence()), "`start`"),
    "expect: a start of texts": (lambda: gm.expect(TWO, start=["0", "1"]), "`start`"),
    "expect: a start where U is infinite": (lambda: gm.expect(TWO, start=[1e300, 1e300]), "around the start"),
    "expect: a class of coordinates": (lambda: gm.expect(TWO, coordinates=C.Linear), "`coordinates`"),
    "coordinates: a determinant that is a text": (lambda: gm.expect(TWO, coordinates=OwnCoordinates()), "`log_det`"),
    "coordinates: a number": (lambda: C.Linear(2.0), "`matrix`"),
    "coordinates: two lengths in one": (
        lambda: gm.expect(TWO, coordinates=C.Compose(C.Linear([1.0, 2.0]), C.Linear([1.0, 2.0, 3.0]))),
        "2 parameters",
    ),
    "coordinates: draws beyond what numbers hold": (lambda: C.learn(DRAWS.reshape(-1, 2) * 1e300), "below 1e100"),
    "coordinates: rows of another length": (lambda: C.Linear([1.0, 2.0]).zs([1.0, 2.0, 3.0]), "3 parameters"),
    "check: draws beyond what numbers hold": (lambda: gm.check(DRAWS * 1e300, TWO), "squares are no numbers"),
    "check: draws that hardly differ": (lambda: gm.check(DRAWS * 1e-300, TWO), "squares are no numbers"),
    "check: masked draws": (lambda: gm.check(np.ma.masked_greater(DRAWS, 1.0), TWO), "masked"),
    "check: draws of truth values": (lambda: gm.check(DRAWS > 0, TWO).warnings or None, None),
    "check: one parameter twice": (lambda: gm.check(np.repeat(DRAWS[:, :, :1], 2, axis=2), TWO).warnings or None, None),
    "check: a generator": (lambda: gm.check((x for x in DRAWS), TWO), "`draws`"),
    "check: what cannot be read": (lambda: gm.check(NoSequence(), TWO), "`draws`"),
    "check: the plan of another target": (
        lambda: gm.check(DRAWS, plan(target=T.Quadratic([1.0]), dynamics=D.overdamped(1), observables={"x": lambda x: x[0]})),
        "1 parameters",
    ),
    "sharpen: a plan and a start": (lambda: gm.sharpen(DRAWS, plan(), start=[0.0, 0.0]), "leave `start` out"),
    "sharpen: a level as text": (lambda: gm.sharpen(DRAWS, TWO, level="0.9"), "`level`"),
    "sharpen: an observable that is NaN": (lambda: gm.sharpen(DRAWS, TWO, {"h": lambda x: jnp.log(x[0])}), "'h' is nan"),
    "fit: a column of lists": (fit(x=[[1]] * 30), "lists|1-dimensional"),
    "fit: a column of fractions": (fit(x=[fractions.Fraction(i, 7) for i in range(30)]), "different text"),
    "fit: sets": (fit(x=set(range(30))), "unordered"),
    "fit: a structured array": (
        lambda: gm.fit("y ~ x", np.zeros(30, dtype=[("x", float), ("y", float)]), "linear"),
        "mapping of columns",
    ),
    "fit: an address": (lambda: gm.fit("y ~ x", "https://example.invalid/x.csv"), "There is no file"),
    "fit: a device": (lambda: gm.fit("y ~ x", "/dev/zero"), "device"),
    "fit: bytes": (lambda: gm.fit("y ~ x", b"nothing.csv"), "mapping of columns"),
    "fit: a seed of 31 digits": (lambda: gm.fit("y ~ x", FRAME, seed=10**30), "`seed`"),
    "fit: a prior that is code": (
        lambda: gm.fit("y ~ x", FRAME, "linear", priors={"x": "__import__('os').system('true')"}),
        "the law must be one of",
    ),
    "fit: a decimal comma of numbers in memory": (lambda: gm.fit("y ~ x", FRAME, decimal=","), "`decimal` is for files"),
    "fit: weights as an array": (lambda: gm.fit("y ~ x", FRAME, weights=np.ones(30)), "`weights`"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::gyromc.errors.GyromcWarning")
@pytest.mark.parametrize("name", CALLS)
def test_a_call_ends_in_a_sentence_or_a_right_answer(name):
    call, message = CALLS[name]
    if message is not None:
        assert single(call, message) is None
        return
    with within(6 * PATIENCE):
        assert call() is not None


def test_models_are_compared_with_models_of_the_same_rows(models):
    line = models["line"]
    for others, message in {
        (): "two models or more",
        (3,): "with models: got 3",
        (type(line),): "with models",
        ("a.gyromc",): "with models",
        (line.posterior,): "with models",
        (models["half"],): "not fitted to the same rows",
        (models["other"],): "different responses",
    }.items():
        assert single(lambda others=others: line.compare(*others), message) is None, message
    same = line.compare(line)
    assert len(same.models) == 2
    assert same.models[0].elpd == same.models[1].elpd


def test_new_rows_that_do_not_fit_are_refused(models):
    line = models["line"]
    for rows, message in [
        (None, "mapping of columns"),
        ({}, "no column 'x'"),
        ({"x": []}, "no rows"),
        ({"x": ["a"]}, "holds 'a'"),
        ({"x": [np.nan]}, "lacks 1 value"),
        ({"x": [np.inf]}, "inf"),
        ({"x": np.ones((2, 2))}, "1-dimensional"),
    ]:
        assert single(lambda rows=rows: line.predict(rows), message) is None, message

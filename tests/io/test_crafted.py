"""Crafted files, whose checksums are right, give a sentence or work: never a raw error, never a process that dies."""

import contextlib
import copy
import dataclasses
import io
import json
import random
import shutil
import zipfile

import numpy as np
import pytest

import gyromc as gm
from gyromc.io.archive import Codec, Packed, check_fields
from gyromc.io.runs import CLASSES
from gyromc.results import EngineState
from support.crafting import npy, rewritten
from support.layers import ROOT
from support.survivors import PLANS, start_and_kill

JUNK = [
    *(None, True, 0, -1, 3, 10**9, 1.5, "x", "", [], {}),
    *({"tuple": []}, {"list": [1]}, {"pairs": []}, {"array": "0"}, {"array": "1"}, {"number": "nan"}),
    *({"texts": ["a"], "shape": [1]}, {"scalar": "<f4", "value": 1.0}, {"scalar": "V99999999999", "value": 1}),
    *({"class": "Exact", "fields": {}}, {"class": "Quadratic", "fields": {}}, {"member": "FULL", "of": "Curvature"}),
    {"function": "os:system"},
]
ARRAYS = {
    "flat": lambda x: x.reshape(-1)[:, None] if x.ndim == 1 else x.reshape(-1),
    "bytes": lambda x: x.astype(np.int8),
    "truth values": lambda x: x.astype(bool),
    "words": lambda x: x.astype(np.uint32),
    "half as precise": lambda x: x.astype(np.float32),
    "empty": lambda x: np.zeros((0,) * max(1, x.ndim), x.dtype),
    "twice": lambda x: np.concatenate([x, x]) if x.ndim else np.stack([x, x]),
    "one row": lambda x: x[:1] if x.ndim else x,
    "huge": lambda x: np.full_like(x, 2**31 - 1 if x.dtype.kind in "iu" else 1e300 if x.dtype.itemsize > 4 else 1e30),
}


def places(value, at=()):
    """The paths of everything in plain data."""
    yield at
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in inside:
        yield from places(entry, (*at, key))


def replaced(content, at, new=None, remove=False):
    if not at:
        return new
    parent = content
    for key in at[:-1]:
        parent = parent[key]
    if remove:
        del parent[at[-1]]
    else:
        parent[at[-1]] = new
    return content


def crafted(source, path, seed):
    """The archive with one thing changed: an array, an entry that is something else, or one that is missing."""
    rng = random.Random(seed)

    def change(members):
        arrays = [name for name in members if name.endswith(".npy")]
        if arrays and rng.random() < 0.4:
            name = rng.choice(arrays)
            with np.errstate(all="ignore"):
                members[name] = npy(ARRAYS[rng.choice(list(ARRAYS))](np.load(io.BytesIO(members[name]))))
            return
        content = json.loads(members["content.json"])
        at = rng.choice(list(places(content)))
        content = replaced(content, at, copy.deepcopy(rng.choice(JUNK)), remove=bool(at) and rng.random() < 0.25)
        members["content.json"] = json.dumps(content).encode()

    return rewritten(source, path, change)


def a_run(path):
    gm.run(PLANS["balanced"](), "lanes", thin=50, progress=False).save(path)


def used_run(run):
    assert str(run)
    assert run.to_dict()
    run.continue_(3)


def an_estimator(path):
    from gyromc.sklearn import BayesianLogisticRegression

    X = np.random.default_rng(0).normal(size=(60, 2))
    BayesianLogisticRegression(num_draws=64).fit(X, X[:, 0] > 0).save(path)


def used_estimator(model):
    assert model.predict_proba(np.zeros((2, 2))).shape == (2, 2)


def a_model(path):
    from gyromc.tables.request import Request
    from gyromc.tables.study import study

    rng, file = np.random.default_rng(0), path.with_suffix(".csv")
    rows = [f"{x},{rng.choice(['u', 'v'])},{2 * x + rng.normal()}" for x in rng.normal(size=60)]
    file.write_text("\n".join(["a,b,y", *rows]))
    out = str(path.with_suffix(".out"))
    study(Request(data=str(file), formula="y ~ bs(a, 4) + C(b)", effort="quick", save=str(path), out=out))


def used_model(model):
    model.predict({"a": np.array([0.1, 0.2]), "b": np.array(["u", "v"])})


KINDS = {"run": (a_run, used_run), "estimator": (an_estimator, used_estimator), "model": (a_model, used_model)}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("made"), {}

    def of(kind):
        if kind not in found:
            found[kind] = folder / f"{kind}.gyromc"
            KINDS[kind][0](found[kind])
        return found[kind]

    return of


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "seeds", [range(60), pytest.param(range(60, 400), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_a_crafted_file_gives_a_sentence_or_works(kind, seeds, made, tmp_path):
    refused = 0
    for seed in seeds:
        path = crafted(made(kind), tmp_path / "crafted.gyromc", seed)
        try:
            KINDS[kind][1](gm.load(path))
        except (gm.InvalidInput, gm.DivergenceError):
            refused += 1
    assert refused > len(seeds) / 3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "seeds", [range(30), pytest.param(range(30, 300), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_a_crafted_checkpoint_is_set_aside_or_works(seeds, tmp_path, monkeypatch):
    options = {"engine": "lanes", "thin": 10, "every": 50}
    start_and_kill(monkeypatch, PLANS["balanced"](), 150, tmp_path / "made", **options)
    newest = max((tmp_path / "made").glob("step-*")).name
    for seed in seeds:
        folder = shutil.copytree(tmp_path / "made", tmp_path / f"{seed}")
        crafted(tmp_path / "made" / newest, folder / newest, seed)
        with contextlib.suppress(gm.InvalidInput, gm.DivergenceError):
            gm.run(PLANS["balanced"](), progress=False, checkpoint=folder, **options)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(EngineState)])
def test_a_state_of_other_shapes_never_reaches_a_compiled_loop(name, made, tmp_path):
    """Every array of the state in every other shape and type; on the code before, some of these ended the process."""
    with zipfile.ZipFile(made("run")) as archive:
        content = json.loads(archive.read("content.json"))
    state = next(entry for key, entry in dict(content["pairs"])["run"]["pairs"] if key == "state")["fields"]
    entry = state[name]
    stored = entry if name != "snapshots" else entry["pairs"][0][1]
    if not isinstance(stored, dict) or "array" not in stored:
        pytest.skip("no array in this state")
    member = f"{stored['array']}.npy"
    with zipfile.ZipFile(made("run")) as archive:
        before = np.load(io.BytesIO(archive.read(member)))
    for change in ARRAYS.values():
        after = change(before)
        # Block sums of another precision are the same sums.
        if (after.dtype, after.shape) == (before.dtype, before.shape) or (name, after.dtype) == (
            "snapshots",
            "float32",
        ):
            continue
        changed = {member: npy(after)}
        path = rewritten(made("run"), tmp_path / "crafted.gyromc", lambda members, new=changed: members.update(new))
        with pytest.raises(gm.InvalidInput):
            gm.load(path).continue_(3)


def a_scan_run(path):
    plan = PLANS["following anchors"]()
    gm.run(plan, "scan", thin=50, progress=False).save(path)


NUMBERS = {
    "not a number": lambda x: np.where(np.arange(x.size).reshape(x.shape) == 0, np.nan, x.astype(float)).astype(
        x.dtype
    ),
    "negative": lambda x: (-1 - x.astype(float)).astype(x.dtype),
    "other order": lambda x: x[::-1],
    "zeros": np.zeros_like,
}
"""Other numbers in arrays of the right shape and type."""


def crafted_state(source, path, seed):
    """A saved run with one to three things in the state of its chains changed: other arrays, entries, or none."""
    rng = random.Random(seed)

    def change(members):
        content = json.loads(members["content.json"])
        run = dict(content["pairs"])["run"]["pairs"]
        state = next(entry for key, entry in run if key == "state")
        for _ in range(rng.randint(1, 3)):
            at = rng.choice(list(places(state["fields"]))[1:])
            entry = state["fields"]
            for key in at:
                entry = entry[key]
            if isinstance(entry, dict) and "array" in entry and rng.random() < 0.8:
                name, ways = f"{entry['array']}.npy", {**ARRAYS, **NUMBERS}
                with np.errstate(all="ignore"):
                    members[name] = npy(ways[rng.choice(list(ways))](np.load(io.BytesIO(members[name]))))
            else:
                with contextlib.suppress(LookupError, TypeError):  # the place went with an earlier change
                    replaced(state["fields"], at, copy.deepcopy(rng.choice(JUNK)), remove=rng.random() < 0.25)
        members["content.json"] = json.dumps(content).encode()

    return rewritten(source, path, change)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [a_run, a_scan_run], ids=["lanes", "scan"])
@pytest.mark.parametrize(
    "seeds", [range(20), pytest.param(range(20, 220), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_a_crafted_state_gives_a_sentence_or_works(make, seeds, tmp_path):
    make(tmp_path / "made.gyromc")
    refused = 0
    for seed in seeds:
        path = crafted_state(tmp_path / "made.gyromc", tmp_path / "crafted.gyromc", seed)
        try:
            run = gm.load(path)
            used_run(run)
            assert str(gm.estimate(run, bias=None))
        except (gm.InvalidInput, gm.DivergenceError):
            refused += 1
    assert refused > len(seeds) / 3


@pytest.fixture(scope="module")
def one_experiment():
    """The results of a reproduction, of its smallest experiment."""
    content = json.loads((ROOT / "docs" / "reproduction" / "results.json").read_text())
    smallest = min(content["experiments"], key=lambda name: len(json.dumps(content["experiments"][name])))
    return {**content, "experiments": {smallest: content["experiments"][smallest]}}


@pytest.mark.parametrize(
    "seeds", [range(20), pytest.param(range(20, 220), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_crafted_results_give_a_sentence_or_a_report(seeds, one_experiment, tmp_path):
    from gyromc.paper.report import RESULTS
    from support.commands import gyromc

    refused = 0
    for seed in seeds:
        rng, content = random.Random(seed), copy.deepcopy(one_experiment)
        depth = rng.randint(1, 5)
        at = rng.choice([at for at in places(content) if len(at) == depth])
        replaced(content, at, copy.deepcopy(rng.choice(JUNK)), remove=rng.random() < 0.25)
        RESULTS.save({name: content[name] for name in content if name != "sha256"}, tmp_path)
        options = ["--markdown"] if seed % 5 else []
        done = gyromc("report", tmp_path, *options)
        assert done.returncode in (0, 2), (seed, done)
        assert "Traceback" not in done.stderr
        refused += done.returncode == 2
    assert refused >= len(seeds) / 10


def test_results_nested_too_deeply_are_refused(tmp_path):
    from support.commands import refused

    (tmp_path / "results.json").write_text('{"schema": ' + "[" * 100_000 + "]" * 100_000 + "}")
    assert "cannot be read" in refused("report", tmp_path)


def test_fields_are_checked_against_their_annotations():
    good = {"step": 3, "z": np.zeros((4, 2)), "high": np.zeros((4, 1)), "low": np.zeros((4, 1))}
    good |= {"clock": (0.0, 0.0), "failed_at": np.full(4, -1)}
    check_fields(EngineState, good)
    for wrong, said in [
        ({"step": 1.5}, r"step must be int: got 1\.5"),
        ({"z": np.zeros((4, 2), int)}, "z must be Float.*got an array of int64"),
        ({"low": np.zeros((5, 1))}, "low must be Float"),
        ({"failed_at": np.zeros(3, int)}, "failed_at must be Int"),
        ({"snapshots": {1: np.zeros((4, 3))}}, "snapshots must be"),
    ]:
        with pytest.raises(ValueError, match=said):
            check_fields(EngineState, {**good, **wrong})
    del good["z"]
    with pytest.raises(ValueError, match="EngineState lacks its field z"):
        check_fields(EngineState, good)


def test_constructors_check_what_files_hold():
    codec = Codec(CLASSES)
    packed = codec.pack(gm.targets.Quadratic([1.0, 2.0]))
    with pytest.raises(gm.InvalidInput, match="positive definite"):
        codec.unpack(Packed(packed.content, {**packed.arrays, "0": np.array([1.0, -2.0])}))


def test_every_array_of_a_class_in_the_table_has_its_shape():
    """A plain `np.ndarray` would be set without a check of its size."""
    for known in CLASSES.values():
        if dataclasses.is_dataclass(known):
            for field in dataclasses.fields(known):
                assert field.type is not np.ndarray, f"{known.__name__}.{field.name}"


def a_source(path):
    """A run whose plan reads rows of two files beside it."""
    rng = np.random.default_rng(3)
    for name, array in (("X.npy", rng.normal(size=(60, 2)).astype(np.float32)), ("y.npy", np.arange(60) % 2 == 0)):
        np.save(path.parent / name, array)
    target = gm.targets.StreamedRegression(gm.data.Mapped(path.parent / "X.npy", path.parent / "y.npy"), "logistic")
    plan = gm.Plan(
        target=target, dynamics=gm.dynamics.overdamped(2), oracle=gm.oracles.Minibatch(5), step_size=0.01, num_steps=5,
        num_chains=3, observables={"x": gm.observables.linear([1.0, 0.0])},
    )  # fmt: skip
    gm.run(plan, "scan", progress=False).save(path)


def a_plan(path):
    path.write_text(
        'step_size = 0.1\nnum_chains = 7\nseed = 3\ntarget = {kind = "quadratic", precision = [1.0, 2.0]}\n'
        'dynamics = {kind = "hfhr", alpha = 1.0, gamma = 2.0}\nobservables.x = {kind = "tanh", u = [1.0, 0.5]}\n'
    )


def read_plan(path):
    from gyromc.io import planfiles

    return repr(planfiles.loads(path.read_text(errors="surrogateescape")))


def results(path):
    from gyromc.paper.report import RESULTS

    RESULTS.save({"experiments": {"a-b": {"claims": [1.5, None, "é"], "times": {"wall": 3}}}}, path.parent)


def read_results(path):
    from gyromc.paper.report import RESULTS

    return json.dumps(RESULTS.load(path.parent))


def loaded(path):
    """What a file of ours says of itself."""
    found = gm.load(path)
    return repr(getattr(found, "to_dict", lambda: vars(found))())


# kind: (what makes the file, its name, the file that is damaged, what reads it, whether each change of its meaning is noticed)
FLIPPED = {
    "run": (a_run, "run.gyromc", "run.gyromc", loaded, True),
    "estimator": (an_estimator, "e.gyromc", "e.gyromc", loaded, True),
    "model": (a_model, "m.gyromc", "m.gyromc", loaded, True),
    "rows": (a_source, "rows.gyromc", "X.npy", lambda path: loaded(path.with_name("rows.gyromc")), True),
    "responses": (a_source, "rows.gyromc", "y.npy", lambda path: loaded(path.with_name("rows.gyromc")), True),
    "results": (results, "results.json", "results.json", read_results, True),
    # Text that people write: a changed digit is another plan.
    "plan": (a_plan, "plan.toml", "plan.toml", read_plan, False),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", FLIPPED)
@pytest.mark.parametrize("flips", [20, pytest.param(500, marks=pytest.mark.slow)])
def test_a_flipped_bit_is_noticed_or_means_nothing(kind, flips, made, tmp_path):
    make, name, damaged, read, noticed = FLIPPED[kind]
    if kind in KINDS:
        shutil.copy(made(kind), tmp_path / name)
    else:
        make(tmp_path / name)
    path = tmp_path / damaged
    whole, before, refused = path.read_bytes(), read(path), 0
    rng = random.Random(flips)
    for _ in range(flips):
        place, bit = rng.randrange(len(whole)), rng.randrange(8)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
        try:
            after = read(path)
        except gm.InvalidInput:
            refused += 1
        else:
            assert after == before or not noticed, (place, bit)
    assert refused > flips / 4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("flips", [10, pytest.param(500, marks=pytest.mark.slow)])
def test_a_flipped_bit_in_a_checkpoint_changes_no_result(flips, tmp_path, monkeypatch):
    options = {"engine": "lanes", "thin": 10, "every": 50, "progress": False}
    straight = gm.run(PLANS["balanced"](), checkpoint=tmp_path / "straight", **options)
    start_and_kill(monkeypatch, PLANS["balanced"](), 150, tmp_path / "made", engine="lanes", thin=10, every=50)
    names, rng = sorted(path.name for path in (tmp_path / "made").glob("*.gyromc")), random.Random(flips)
    for number in range(flips):
        folder = shutil.copytree(tmp_path / "made", tmp_path / f"{number}")
        path = folder / rng.choice(names)
        whole = bytearray(path.read_bytes())
        whole[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(whole)
        found = gm.run(PLANS["balanced"](), checkpoint=folder, **options)
        assert found.mean == straight.mean
        np.testing.assert_array_equal(found.draws, straight.draws)
        shutil.rmtree(folder)

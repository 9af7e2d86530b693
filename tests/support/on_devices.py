"""Runs on meshes of eight virtual devices, compared with the same runs on one: `python on_devices.py CASE …` prints JSON.

For each case and mesh: the largest difference of averages, states and draws from the run on one device; for `bits`, how many
chains differ at all.
"""

import contextlib
import json
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

import gyromc as gm
from gyromc.engines import scan
from gyromc.engines.meshes import default_mesh, read_mesh
from gyromc.engines.scan import layout as blocks

STEPS, ETA, ROWS, DIM = 24, 1e-3, 101, 7
RNG = np.random.default_rng(0)
X = RNG.standard_normal((ROWS, DIM))
Y = (RNG.random(ROWS) < 0.5).astype(float)
LEVELS = RNG.integers(0, 4, ROWS)
SKEW = np.triu(np.ones((DIM, DIM)), 1) - np.tril(np.ones((DIM, DIM)), -1)
ALL = {"chains": [2, 1, 1], "data": [1, 4, 1], "parameters": [1, 1, 4], "all": [2, 2, 2]}
MESHES = {name: dict(zip(("chains", "data", "parameters"), sizes, strict=True)) for name, sizes in ALL.items()}
MESHES |= {f"{k} of chains": {"chains": k} for k in (1, 2, 4, 8)}
MESHES |= {"left out": None}


def mixed():
    group = gm.targets.Group(np.ones((ROWS, 1)), LEVELS, num_levels=4, scale=[1.0])
    weights, offset = RNG.random(ROWS) + 0.5, RNG.standard_normal(ROWS)
    family = gm.targets.families.NegativeBinomial()
    return gm.targets.MixedRegression(X, LEVELS, family, offset=offset, weights=weights, groups=(group,))


def network():
    """A network as a pytree; its likelihood reads an array of its own."""
    own, weights = np.linspace(0.9, 1.1, 3), np.linspace(0.5, 2.0, ROWS)

    def log_likelihood(params, row):
        x, y, weight = row
        return -0.5 * weight * (y - jnp.tanh(x @ params["in"] + params["shift"]) @ (own * params["out"])) ** 2

    prior = lambda params: -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
    return gm.targets.FiniteSum(log_likelihood, prior, (X, Y, weights))


START = {"in": np.full((DIM, 3), 0.1), "out": np.ones(3), "shift": np.zeros(3)}


def plan(target=None, oracle=None, dim=DIM, dynamics=None, **more):
    weights = np.ones(dim)
    h = {"sum": gm.observables.linear(weights), "tanh": gm.observables.tanh(weights)}
    given = dict(observables=h, step_size=ETA, num_steps=STEPS, num_chains=6, dtype="float64", seed=3) | more
    target = gm.targets.LogisticRegression(X, Y) if target is None else target
    return gm.Plan(target=target, oracle=oracle, dynamics=dynamics or gm.dynamics.hfhr(dim, 1.0, 2.0), **given)


def on_network(**more):
    h = {"sum": gm.observables.function(lambda p: p["out"].sum() + p["in"][0, 0])}
    return plan(network(), gm.oracles.Minibatch(16), len(jax.tree.leaves(START)), gm.dynamics.hfhr(START, 1.0, 2.0),
                start=START, observables=h, **more)  # fmt: skip


def streamed():
    return gm.targets.StreamedRegression(gm.data.Batches([(X, Y)], ROWS), "logistic")


def memory() -> dict[str, list]:
    """Bytes: arguments and temporary memory of devices that share 10,001 and 20,000 rows; states on eight devices and on one."""
    session_of = lambda given, mesh: scan.Session(given, scan.initial_state(given), 1e8, None, 0, read_mesh(mesh))
    found, counts = [], (jnp.asarray(1, jnp.int32), jnp.asarray(0, jnp.int32), None)
    with jax.enable_x64(True):
        for count in (10_001, 20_000):
            target = gm.targets.LogisticRegression(np.ones((count, DIM)), np.ones(count))
            session = session_of(plan(target, gm.oracles.Minibatch(40)), {"data": 4})
            lowered = session.program.lower(session.arrays, session.carries[0], None, *counts)
            of_step = lowered.compile().memory_analysis()
            found.append([of_step.argument_size_in_bytes, of_step.temp_size_in_bytes])
        states = [session_of(plan(), mesh).carries[0].z for mesh in ({"parameters": 8}, None)]
    return {"rows": found, "states": [z.addressable_shards[0].data.nbytes for z in states]}


O = gm.oracles
ENTRY = {"first": gm.observables.function(lambda theta: theta[0])}
CASES = {
    "no matrix": lambda: plan(gm.targets.CosinePerturbed(DIM, 1.2), O.Gaussian(1.0), num_chains=16, observables=ENTRY),
    "minibatch": lambda: plan(oracle=O.Minibatch(40), num_chains=5),
    "exact": lambda: plan(),
    "distinct rows": lambda: plan(oracle=O.Minibatch(20, replace=False)),
    "every row": lambda: plan(oracle=O.Minibatch(ROWS, replace=False)),
    "order 1": lambda: plan(oracle=O.ControlVariate(8)),
    "order 2": lambda: plan(oracle=O.ControlVariate(8, order=2)),
    "diagonal": lambda: plan(oracle=O.ControlVariate(8, order=2, curvature="diagonal"), scheme="lm_ab2"),
    "matrix-free": lambda: plan(oracle=O.ControlVariate(8, order=2, curvature="matrix-free")),
    "refresh": lambda: plan(oracle=O.ControlVariate(8, refresh=5)),
    "dense dynamics": lambda: plan(dynamics=gm.dynamics.nonreversible(SKEW), scheme="lm_ab2"),
    "martingale": lambda: plan(dynamics=gm.dynamics.overdamped(DIM), martingale=True),
    "splitting": lambda: plan(scheme="hfhr_splitting", dynamics=gm.dynamics.hfhr(DIM, 1.0, 2.0, np.linspace(0.5, 1, DIM))),
    "softmax": lambda: plan(gm.targets.SoftmaxRegression(X, LEVELS), O.Minibatch(16), 3 * DIM),
    "mixed": lambda: plan(mixed(), None, mixed().dim),
    "mixed batches": lambda: plan(mixed(), O.Minibatch(16), mixed().dim),
    "network": on_network,
    "streamed": lambda: plan(streamed(), O.ControlVariate(9, order=2)),
}  # fmt: skip


BITS = {"full": lambda **more: plan(dtype="float32", **more),
        "minibatch": lambda **more: plan(oracle=O.Minibatch(40), **more),
        "refresh": lambda **more: plan(oracle=O.ControlVariate(8, refresh=5), **more),
        "gaussian": lambda **more: plan(gm.targets.Quadratic(np.eye(DIM) + 0.1), O.Gaussian(1.0), **more),
        "cosine": lambda **more: plan(gm.targets.CosinePerturbed(DIM, 1.2), O.Gaussian(1.0), dtype="float32", **more),
        "function": lambda **more: plan(gm.targets.LogDensity(lambda t: -t @ t - jnp.log(jnp.cosh(t[0] * t[1]))), **more),
        "network": on_network,
        "streamed": lambda **more: plan(streamed(), O.Minibatch(9), **more)}  # fmt: skip


def bits(case: str, chains: list[str]) -> dict[str, int]:
    """How many chains differ on 2, 3, 8 and all devices from those on one: in one block where they fit, and in blocks of 7.

    `33 in 7` asks for the blocks of 7 alone, on 3 devices and on all.
    """
    found, usual, sevens = {}, blocks.block_size, lambda plan: 7
    for asked in chains:
        count, _, alone = asked.partition(" in ")
        for blocks.block_size in (sevens,) if alone else (usual, sevens):
            given = BITS[case](num_chains=int(count))
            one = run(given, {"chains": 1})
            meshes = ({"chains": 3}, None) if alone else ({"chains": 2}, {"chains": 3}, {"chains": 8}, None)
            others = [run(given, mesh) for mesh in meshes]
            found[f"{count} in {blocks.block_size(given)}"] = sum(differing(one, other) for other in others)
    blocks.block_size = usual
    return found


def differing(one, other) -> int:
    """How many chains of two runs have other averages, states or draws."""
    leaves = lambda run: [*(run.averages[name] for name in run), run.state.z, *jax.tree.leaves(run.draws)]
    apart = [np.reshape(a != b, (len(a), -1)).any(axis=1) for a, b in zip(leaves(one), leaves(other), strict=True)]
    return int(np.sum(np.any(apart, axis=0)))


def difference(one, other) -> float:
    """The largest of averages, states and draws."""
    parts = [(one.averages[name], other.averages[name]) for name in one]
    parts += [(one.state.z, other.state.z), *zip(jax.tree.leaves(one.draws), jax.tree.leaves(other.draws), strict=True)]
    assert one.state.z.shape == other.state.z.shape
    return max(float(np.max(np.abs(a - b))) for a, b in parts)


def run(given, mesh, **more):
    return gm.run(given, "scan", mesh=mesh, thin=7, progress=False, **more)


def compared(case: str, meshes: list[str]) -> dict[str, float]:
    given = CASES[case]()
    one = run(given, {"chains": 1})
    assert default_mesh(16).shape["chains"] == jax.device_count() == 8
    return {name: difference(one, run(given, MESHES[name])) for name in meshes}


def continued() -> dict[str, float]:
    """Half of the steps on one mesh and the rest on another, by `continue_` and from a checkpoint."""
    given, meshes = CASES["minibatch"](), [MESHES["all"], {"parameters": 3}]
    one, half = run(given, {"chains": 1}), given.replace(num_steps=16)
    by_hand = run(half, meshes[0]).continue_(STEPS - 16, mesh=meshes[1])
    with tempfile.TemporaryDirectory() as folder:

        class Killed(Exception):
            pass

        def killed(steps):
            raise Killed

        with contextlib.suppress(Killed):
            gm.run(given, "scan", mesh=meshes[0], thin=7, progress=_after(2, killed), checkpoint=folder, every=8)
        resumed = run(given, meshes[1], checkpoint=folder, every=8)
    return {"continue_": difference(one, by_hand), "checkpoint": difference(one, resumed)}


def _after(count: int, function):
    """A progress function that calls another one at its so-manyeth call."""
    calls = []

    def progress(steps):
        calls.append(steps)
        if len(calls) > count:
            function(steps)

    return progress


if __name__ == "__main__":
    found = {}
    for argument in sys.argv[1:]:
        case, _, meshes = argument.partition("@")
        bitwise = case.startswith("bits of ")
        as_usual = bitwise or case in ("no matrix", "memory")
        jax.config.update("jax_disable_most_optimizations", not as_usual)  # compiles faster
        special = {"continued": continued, "memory": memory}
        if bitwise:
            found[case] = bits(case.removeprefix("bits of "), meshes.split("+"))
        else:
            found[case] = special[case]() if case in special else compared(case, meshes.split("+"))
    print(json.dumps(found))

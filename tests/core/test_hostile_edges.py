"""Single calls that once ended in a raw error, a hang or a message that blamed the wrong thing: each is refused in a sentence."""

import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm

D, H, O, T = gm.dynamics, gm.observables, gm.oracles, gm.targets
BANANA = T.LogDensity(lambda x: -0.5 * x[0] ** 2 - 5 * (x[1] - x[0] ** 2) ** 2)
ROOTS = T.LogDensity(lambda x: -jnp.sum(jnp.sqrt(x)))
TWO = T.Quadratic([1.0, 2.0])


def plan(**changes):
    pieces = {
        "target": TWO,
        "dynamics": D.overdamped(2),
        "observables": {"x": H.linear([1.0, 0.0])},
        "step_size": 0.1,
        "num_steps": 4,
        "num_chains": 3,
    }
    return gm.Plan(**{**pieces, **changes})


def run(**changes):
    return gm.run(plan(**changes), "scan", progress=False)


def rows():
    return gm.data.Batches([(np.ones((2, 3)), [0, 1])], 2)


def a_file(folder, content=b""):
    path = folder / "file"
    path.write_bytes(content)
    return path


# what is called with a folder: a piece of the message
REFUSED = {
    "complex observable": (lambda _: plan(observables={"h": lambda x: x[0] * 1j}), "'h' must return a real number"),
    "complex observable of expect": (lambda _: gm.expect(TWO, {"h": lambda x: x[0] * 1j}), "'h' must return real"),
    "complex schedule": (lambda _: plan(step_size=lambda k: 0.1 + 0j), "schedule must return a real number"),
    "noise beyond float64": (lambda _: O.Gaussian(1e300), r"`tau` must be below 1e\+150"),
    "no Gaussian fit": (lambda _: run(target=BANANA, start=[0.0, 0.0], martingale=True), "No Gaussian describes this"),
    "columns that depend on each other": (
        lambda _: gm.predict(plan(target=T.LinearRegression(np.ones((9, 2)), np.ones(9), prior_scale=1e9))),
        "columns of X depend on each other",
    ),
    "start beyond float32": (lambda _: plan(start=[1e300, 0.0]), r"`start` holds 1e\+300"),
    "every without checkpoint": (lambda _: gm.run(plan(), every=3), "`every` and `keep` are about checkpoints"),
    "keep without checkpoint": (lambda _: gm.run(plan(), keep=5), "`every` and `keep` are about checkpoints"),
    "progress as text": (lambda _: gm.expect(TWO, progress="yes"), "`progress` must be True, False or None"),  # type: ignore[arg-type]
    "density of other parameters": (
        lambda _: gm.expect(T.LogDensity(lambda x: -jnp.sum(x**4)), start={"a": 1.0}),
        "target's gradient cannot be evaluated on parameters of shape",
    ),
    "no batches": (lambda _: gm.data.Batches(3, 4), "`batches` must yield pairs"),  # type: ignore[arg-type]
    "a function without batches": (lambda _: gm.data.Batches(lambda: 3, 4), "`batches` must return"),  # type: ignore
    "no records": (lambda _: gm.data.Sequenced(3), "`records` must be a sequence"),  # type: ignore[arg-type]
    "records that are no pairs": (lambda _: gm.data.Sequenced([3]), r"cannot be read as a pair \(x, y\)"),
    "no path": (lambda _: gm.data.Mapped(None, 3), "path of a file is needed"),  # type: ignore[arg-type]
    "a header that is no header": (
        lambda folder: gm.data.Mapped(a_file(folder, b"\x93NUMPY\x01\x00\x10\x00{'descr': nonsense"), folder / "file"),
        "no .npy file as `np.save` writes it",
    ),
    "rows stored in a file": (lambda folder: gm.data.store(rows(), a_file(folder)), "is a file: pass a directory"),
    "no rows to store": (lambda folder: gm.data.store(np.ones(3), folder), "`source` must be one of `gyromc.data`"),  # type: ignore
    "letters no disk stores": (lambda folder: run().save(folder / "\ud800"), "letters that no file system stores"),
    "reading such a name": (lambda folder: gm.load(folder / "\ud800"), "letters that no file system stores"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_in_a_sentence(name, tmp_path):
    call, message = REFUSED[name]
    with pytest.raises(gm.InvalidInput, match=message):
        call(tmp_path)


def test_a_gradient_that_is_not_finite_at_the_start_is_not_blamed_on_the_step_size():
    with pytest.raises(gm.DivergenceError, match=r"gradient is NaN or infinite at the start θ₀ = \[0\.0, 0\.0\]"):
        run(target=ROOTS, start=[0.0, 0.0])


def test_expect_reads_a_list_of_numbers_as_a_vector_as_plans_do():
    found = gm.expect(T.LogDensity(lambda x: -0.5 * jnp.sum(x**2)), start=[0.0, 0.0], gradients=4000, error=0.5)
    assert list(found) == ["theta[0]", "theta[1]"]


def test_an_observable_that_does_not_vary_has_no_error():
    found = gm.expect(TWO, {"h": lambda x: 3.0 + 0 * x[0]}, gradients=4000, error=0.5)
    assert (found["h"].mean, found["h"].std_error) == (3.0, 0.0)

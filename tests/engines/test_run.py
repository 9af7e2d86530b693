"""What surrounds the loop: chunks, continuation, interruption, draws, failures, precision."""

import dataclasses
import os
import pickle
import signal
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.engines import choose, draws_bytes, loop
from gyromc.engines.base import two_sum
from gyromc.results import Cause
from gyromc.show.progress import Interruption
from support import exact
from support.values import in_chunks, on_normal, quadratic


@pytest.fixture(params=["scan", "lanes"])
def engine(request):
    """What surrounds the loop must hold for every engine."""
    return request.param


def same(a, b):
    """Two runs with equal averages, states and errors, to the last bit."""
    assert np.array_equal(a.state.z, b.state.z)
    for name in a.averages:
        assert np.array_equal(a.averages[name], b.averages[name])
        assert a.std_error[name] == b.std_error[name]


@pytest.mark.parametrize("chains", [1, 50])
def test_chunks_do_not_change_the_numbers(plan, chains, engine):
    plan = plan.replace(num_chains=chains, burn_in=7)
    same(in_chunks(1, plan, engine=engine), gm.run(plan, engine=engine))
    same(in_chunks(13, plan, engine=engine), gm.run(plan, engine=engine))


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("chains", "parts"),
    [(50, (1, 99)), (1, (30, 30, 30))]  # parts of one length keep equally many draws, and share a program
    + [
        pytest.param(c, p, marks=SLOW) for c, p in ((1, (1, 99)), (1, (30, 30, 40)), (50, (30, 30, 40)), (50, (60, 40)))
    ],
)
def test_a_continued_run_is_one_longer_run(plan, chains, parts, engine):
    plan = plan.replace(num_chains=chains, burn_in=5, num_steps=sum(parts))
    run = gm.run(plan.replace(num_steps=parts[0]), thin=3, engine=engine)
    for more in parts[1:]:
        run = run.continue_(more)
    whole = gm.run(plan, thin=3, engine=engine)
    same(run, whole)
    assert run.plan.num_steps == whole.plan.num_steps == run.steps_done
    assert np.array_equal(run.draws, whole.draws)


@pytest.mark.parametrize("engine", ["lanes", pytest.param("scan", marks=SLOW)])
def test_a_pickled_run_continues_as_the_run_itself(plan, engine):
    run = gm.run(plan.replace(burn_in=5), thin=3, engine=engine, progress=lambda count: None)
    copy = pickle.loads(pickle.dumps(run))
    same(copy, run)
    longer, again = run.continue_(5), copy.continue_(5)
    same(longer, again)
    assert again.steps_done == run.steps_done + 5
    assert np.array_equal(longer.draws, again.draws)
    assert np.array_equal(longer.state.sums, again.state.sums)


def test_seeds(plan, engine):
    same(gm.run(plan, engine=engine), gm.run(plan, engine=engine))
    other = gm.run(plan.replace(seed=1), engine=engine)
    assert not np.any(other.averages["x"] == gm.run(plan, engine=engine).averages["x"])
    far = gm.run(plan.replace(seed=2**32), engine=engine)  # the upper half of the seed counts too
    assert not np.any(far.averages["x"] == gm.run(plan, engine=engine).averages["x"])


def test_more_chains_leave_the_first_ones_alone(plan, engine):
    few, many = gm.run(plan, engine=engine), gm.run(plan.replace(num_chains=80), engine=engine)
    assert np.array_equal(few.averages["x"], many.averages["x"][:50])


def test_the_average_counts_the_start_and_not_the_last_state(plan, engine):
    run = gm.run(plan, thin=1, engine=engine)
    assert run.draws.shape == (50, 100, 2)
    assert not run.draws[:, 0].any()
    assert np.allclose(run.draws[..., 0].mean(axis=1), run.averages["x"], rtol=1e-5, atol=1e-6)
    assert not np.allclose(run.draws[:, -1], run.state.z)


def test_burn_in_drops_exactly_the_first_states(plan, engine):
    everything = gm.run(plan.replace(num_steps=110), thin=1, engine=engine)
    later = gm.run(plan.replace(num_steps=100, burn_in=10), thin=5, engine=engine)
    assert np.array_equal(later.draws, everything.draws[:, 10::5])
    assert np.allclose(later.averages["x"], everything.draws[:, 10:, 0].mean(axis=1), rtol=1e-5, atol=1e-6)
    assert later.gradient_evaluations == 50 * 110


def test_a_constant_schedule_is_a_constant(plan):
    schedule = plan.replace(step_size=lambda k: 0.1, num_steps=100)
    same(gm.run(plan, engine="scan"), gm.run(schedule, engine="scan"))


def test_a_schedule_and_its_weights():
    """A decaying schedule on a quadratic, against the recursion done by hand with the same weights."""
    eta = lambda k: 0.2 / (1 + k)
    plan = gm.Plan(
        target=gm.targets.Quadratic([2.0]),
        dynamics=gm.dynamics.overdamped(1),
        observables={"x": gm.observables.linear([1.0])},
        step_size=eta,
        num_steps=30,
        num_chains=40_000,
        start=[3.0],
    )
    for weighting in ("uniform", "step_size"):
        run = gm.run(plan.replace(weighting=weighting))
        weights = np.array([eta(k) if weighting == "step_size" else 1.0 for k in range(30)])
        x, values = 3.0, []
        for k in range(30):
            values.append(x)
            x = x - eta(k) * 2.0 * x
        exact = weights @ values / weights.sum()
        assert abs(run.mean["x"] - exact) < 4 * run.std_error["x"]
        assert run.std_error["x"] < 0.005 * exact  # 4 standard errors are 2 %
    assert abs(sum(run.state.clock) - sum(eta(k) for k in range(30))) < 1e-6


def sum_of_tenths(num_steps):
    """The average of `num_steps` times float32(0.1) by the scan engine, relative to the truth."""
    plan = gm.Plan(
        target=gm.targets.LogDensity(lambda x: -0.0 * x[0]),
        dynamics=gm.dynamics.overdamped(1),
        observables={"c": lambda x: jnp.float32(0.1) + 0 * x[0]},
        step_size=1e-12,
        num_steps=num_steps,
        num_chains=1,
    )
    return gm.run(plan, engine="scan").averages["c"][0] / np.float64(np.float32(0.1)) - 1


def test_sums_of_ten_million_float32_numbers():
    """1e-6 relative is asked for; a plain float32 sum of 10⁷ numbers near 0.1 is off by far more."""
    count, tenth = 10**7, np.float32(0.1)
    pair = (jnp.float32(0), jnp.float32(0))
    high, low = jax.jit(lambda p: jax.lax.fori_loop(0, count, lambda i, c: two_sum(*c, tenth), p))(pair)
    assert abs((float(high) + float(low)) / (count * float(tenth)) - 1) < 1e-12
    naive = np.add.accumulate(np.full(count, tenth), dtype=np.float32)[-1] / count
    assert abs(naive / 0.1 - 1) > 1e-3
    assert abs(sum_of_tenths(300_000)) < 1e-12


@pytest.mark.slow
def test_ten_million_float32_steps_of_the_engine():
    assert abs(sum_of_tenths(10**7)) < 1e-12


def test_errors_and_intervals_are_what_they_say(engine):
    """Over 2000 chains the spread is V/(Nη); the interval covers the exact finite-step mean."""
    plan = gm.Plan(
        target=quadratic(2),
        dynamics=gm.dynamics.overdamped(2),
        observables={"h": gm.observables.linear([1.0, 0.5])},
        step_size=0.05,
    )
    run = gm.run(plan, engine=engine)
    mean, variance, *_ = exact.moments(plan, np.array([1.0, 0.5]))
    assert run.std_error["h"] == pytest.approx(np.sqrt(variance / 2000), rel=4 / np.sqrt(2 * 2000))
    assert run.variance["h"] == pytest.approx(variance * 400 * 0.05, rel=4 * np.sqrt(2 / 2000))
    low, high = run.interval("h", 0.9999)
    assert low < mean < high
    narrow = run.interval("h", 0.5)
    assert low < narrow[0] < narrow[1] < high
    with pytest.raises(gm.InvalidInput, match="No observable 'g'"):
        run.interval("g")
    with pytest.raises(gm.InvalidInput, match="between 0 and 1"):
        run.interval("h", 95)


@pytest.mark.parametrize(
    ("engine", "seeds"), [("lanes", 30), *(pytest.param(engine, 120, marks=SLOW) for engine in ("lanes", "scan"))]
)
def test_one_long_chain_has_an_error_from_batch_means(engine, seeds):
    """The batch-means error of single chains, averaged over seeds, is the true spread between them (within 10 %)."""
    plan = on_normal(num_steps=8192, num_chains=1)
    runs = [gm.run(plan.replace(seed=s), engine=engine, progress=False) for s in range(seeds)]
    assert runs[0].error_method == "lugsail batch means"
    _, variance, *_ = exact.moments(plan, np.array([1.0]))
    estimate = np.mean([run.std_error["x"] ** 2 for run in runs])
    # 10.5 degrees of freedom for each seed: three standard errors; lugsail leaves no bias of first order in 1/batch
    assert estimate / variance == pytest.approx(1.0, abs=3 * np.sqrt(2 / (10.5 * seeds)))
    low, high = runs[0].interval("x")
    assert high - low == pytest.approx(2 * 2.2 * runs[0].std_error["x"], rel=0.02)


def explosive(**changes):
    pieces = {
        "target": gm.targets.Quadratic([1.0, 50.0]),
        "dynamics": gm.dynamics.overdamped(2),
        "observables": {"x": gm.observables.linear([1.0, 0.0])},
        "step_size": 0.1,
        "num_chains": 20,
        "num_steps": 400,
    }
    return gm.Plan(**{**pieces, **changes})


def test_divergence_raises_with_chain_step_and_cause(engine):
    with pytest.raises(gm.DivergenceError) as raised:
        gm.run(explosive(), engine=engine)
    text = str(raised.value)
    assert "of 20 chains failed, the first: chain" in text
    assert "step_size = 0.1 exceeds the stability limit 0.04" in text
    assert "at step" in text
    assert "report" in text


def test_a_long_diverging_run_stops_early():
    made = []
    with pytest.raises(gm.DivergenceError):
        gm.run(explosive(num_steps=10**9), progress=made.append)
    assert sum(made) < 10**7  # 10⁹ steps would take hours


def test_reported_failures_are_never_averaged_in():
    """One chain starts where a quartic explodes; the others are untouched by it."""
    quartic = gm.targets.LogDensity(lambda x: -0.25 * jnp.sum(x**4))
    start = np.zeros((10, 1))
    plan = gm.Plan(
        target=quartic,
        dynamics=gm.dynamics.overdamped(1),
        observables={"x": gm.observables.linear([1.0])},
        step_size=0.05,
        num_chains=10,
        start=start,
    )
    healthy = gm.run(plan)
    start[3] = 1000.0
    with pytest.warns(gm.GyromcWarning, match="1 chain failed, the first: chain 3 at step 2"):
        run = gm.run(plan.replace(start=start), on_divergence="report")
    assert [failure.chain for failure in run.failures] == [3]
    assert run.failures[0].step == 2
    assert run.failures[0].cause in (Cause.OUT_OF_RANGE, Cause.STATE_NOT_FINITE)
    assert run.to_dict()["failures"] == [{"chain": 3, "step": 2, "reason": run.failures[0].reason}]
    assert run.diverged.tolist() == [i == 3 for i in range(10)]
    assert np.isnan(run.averages["x"][3])
    others = np.delete(healthy.averages["x"], 3)
    assert np.array_equal(np.delete(run.averages["x"], 3), others)
    assert run.mean["x"] == others.mean()
    assert run.std_error["x"] == np.sqrt(others.var(ddof=1) / 9)
    assert "1 of 10 chains FAILED" in repr(run)


def test_an_observable_that_fails_is_named(plan):
    bad = plan.replace(observables={"fine": lambda x: x[0], "root": lambda x: jnp.sqrt(x[0])})
    with pytest.raises(gm.DivergenceError, match="observable root is NaN or infinite, though the state is finite"):
        gm.run(bad)
    with pytest.warns(gm.GyromcWarning, match="Fix the observable"):
        run = gm.run(bad, on_divergence="report")
    assert {(failure.cause, failure.observables) for failure in run.failures} == {
        (Cause.OBSERVABLE_NOT_FINITE, ("root",))
    }


def test_leaving_the_sane_range_is_a_failure(plan, engine):
    with pytest.raises(gm.DivergenceError, match="left the sane range"):
        gm.run(plan, sane_range=0.5, engine=engine)


@pytest.mark.parametrize("engine", ["lanes", pytest.param("scan", marks=SLOW)])
def test_draws_say_what_they_take(plan, capsys, monkeypatch, engine):
    size = draws_bytes(plan, 4)
    assert size == 25 * 50 * 2 * 4
    gm.run(plan, thin=4, engine=engine)
    assert "keeping" not in capsys.readouterr().err  # too small to say
    monkeypatch.setattr(loop, "SETTINGS", dataclasses.replace(loop.SETTINGS, worth_saying=size))
    gm.run(plan, thin=4, engine=engine)
    assert "keeping 25 draws × 50 chains × 2 parameters (float32): 0 MiB" in capsys.readouterr().err
    gm.run(plan, thin=4, engine=engine, progress=False)
    assert capsys.readouterr().err == ""
    with pytest.raises(gm.InvalidInput, match=r"does not fit.*thin="):
        gm.run(plan.replace(num_steps=10**9, num_chains=10**5), thin=1, engine=engine)


def test_draws_of_a_pytree_keep_its_shape():
    plan = gm.Plan(
        target=gm.targets.LogDensity(lambda p: -0.5 * (p["w"] ** 2).sum() - 0.5 * p["b"] ** 2),
        dynamics=gm.dynamics.hfhr(7, 1.0, 2.0),
        observables={"b": lambda p: p["b"]},
        step_size=0.1,
        num_chains=5,
        start={"w": np.ones((2, 3)), "b": np.float64(0.5)},
    )
    run = gm.run(plan, thin=10)
    assert run.draws["w"].shape == (5, 10, 2, 3)
    assert run.draws["b"].shape == (5, 10)
    assert (run.draws["w"][:, 0] == 1).all()
    assert (run.draws["b"][:, 0] == 0.5).all()


@pytest.mark.parametrize("engine", ["lanes", pytest.param("scan", marks=SLOW)])
def test_a_start_drawn_for_every_chain(plan, engine):
    run = gm.run(plan.replace(start=lambda key: jax.random.normal(key, (2,)), num_chains=5000), thin=100, engine=engine)
    first = run.draws[:, 0]
    assert np.abs(first.mean(axis=0)).max() < 4.5 / np.sqrt(5000)
    assert np.abs(np.cov(first.T) - np.eye(2)).max() < 4.5 * np.sqrt(2 / 5000)


def test_ctrl_c_returns_what_is_done(plan, engine, sigint):
    sigint(signal.default_int_handler)
    long = plan.replace(num_steps=10**9)
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.warns(gm.GyromcWarning, match="Interrupted: averages over"):
        run = in_chunks(50, long, engine=engine, progress=lambda count: timer.ident or timer.start())
    assert run.partial
    assert 0 < run.steps_done < 10**9
    assert "PARTIAL" in repr(run)
    same(gm.run(plan.replace(num_steps=run.steps_done), engine=engine), run)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_while_the_program_is_compiled_returns_a_run_without_steps(plan, engine, sigint, monkeypatch):
    sigint(signal.default_int_handler)
    compiled = loop._Loop.__init__

    def pressed(self, *arguments):
        signal.raise_signal(signal.SIGINT)
        compiled(self, *arguments)

    monkeypatch.setattr(loop._Loop, "__init__", pressed)
    with pytest.warns(gm.GyromcWarning, match="Interrupted: averages over 0 of"):
        run = gm.run(plan, engine=engine)
    assert run.partial
    monkeypatch.setattr(loop._Loop, "__init__", compiled)
    same(run.continue_(), gm.run(plan, engine=engine))


def test_a_signal_during_the_exchange_of_several_processes_is_heard_at_the_next_one(monkeypatch):
    """Of the others none has heard it: a process that stopped at once would leave them waiting for it."""
    signal_here = Interruption()

    def exchanged(own):
        signal_here.pressed = True
        return [own, [[False, None]]]

    monkeypatch.setattr(loop.processes, "everyone", exchanged)
    assert loop._heard(signal_here) == (False,)
    assert loop._heard(signal_here) == (True,)


def test_an_ignored_ctrl_c_stays_ignored(plan, engine, sigint):
    sigint(signal.SIG_IGN)
    handlers = []

    def press(count):
        handlers.append(signal.getsignal(signal.SIGINT))
        os.kill(os.getpid(), signal.SIGINT)

    run = in_chunks(50, plan, engine=engine, progress=press)
    assert not run.partial
    assert set(handlers) == {signal.SIG_IGN}
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_run_in_a_thread_works(plan, engine):
    results = []
    thread = threading.Thread(target=lambda: results.append(gm.run(plan, engine=engine)))
    thread.start()
    thread.join()
    same(results[0], gm.run(plan, engine=engine))


def test_progress_is_on_standard_error_only(plan, capsys, engine):
    gm.run(plan, progress=True, engine=engine)
    out, err = capsys.readouterr()
    assert out == ""
    assert "SGNLMC" in err
    gm.run(plan, engine=engine)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("engine", ["scan", "lanes"])
def test_a_drift_below_the_last_place_of_a_large_state_is_not_lost(engine):
    """At 10⁶ float32 has steps of 1/16, the drift is about 0.001: rounded away, x would wander off and take y along.

    Rounding adds noise of variance (1/16)²/12 to 2η = 0.002: E y² grows by 3 %; without the drift it is twelve times as large.
    """
    plan = gm.Plan(
        target=gm.targets.Quadratic([1.0, 2.0], [1e6, 0.0]),
        dynamics=gm.dynamics.nonreversible([[0.0, -1.0], [1.0, 0.0]]),
        observables={"y²": gm.observables.square([0.0, 1.0])},
        step_size=0.001,
        num_steps=10_000,
        num_chains=64,
        start=[1e6, 0.0],
        dtype="float32",
    )
    assert gm.run(plan, engine).mean["y²"] == pytest.approx(0.5, rel=0.1)


def test_draws_keep_the_precision_of_the_run():
    plan = gm.Plan(
        target=gm.targets.Quadratic([1.0, 4.0]),
        dynamics=gm.dynamics.overdamped(2),
        observables={"first": gm.observables.linear([1.0, 0.0])},
        step_size=0.1,
        num_steps=8,
        num_chains=2,
        dtype="float64",
    )
    run = gm.run(plan, engine="scan", thin=1)
    assert run.draws.dtype == np.float64
    np.testing.assert_allclose(run.draws[..., 0].mean(axis=1), run.averages["first"], rtol=1e-14)


KINDS = (gm.observables.linear, gm.observables.square, gm.observables.tanh, gm.observables.predictive)


@pytest.mark.parametrize(("count", "moved"), [(10**4, False), (400, True)])
def test_ten_thousand_observables_are_those_of_a_few(count, moved):
    """Ridges of one profile are one matrix product of θ, also where chains move in other coordinates."""
    directions = np.random.default_rng(0).normal(size=(count, 2))
    every = {f"{i}": KINDS[i % 4](a) for i, a in enumerate(directions)}
    every["own"] = gm.observables.function(lambda theta: theta[0] * theta[1])
    few = {name: every[name] for name in ("0", "1", "2", "3", f"{count - 3}", "own")}
    coordinates = gm.coordinates.Linear([[2.0, 0.0], [1.0, 3.0]], [1.0, -2.0]) if moved else None
    plan = gm.Plan(
        target=gm.targets.LogDensity(lambda x: -0.5 * jnp.sum(x**2)), dynamics=gm.dynamics.overdamped(2), num_steps=6,
        observables=few, step_size=0.1, num_chains=3, start=[1.0, 2.0], coordinates=coordinates, dtype="float64",
    )  # fmt: skip
    found, expected = (gm.run(plan.replace(observables=h), "scan", progress=False) for h in (every, few))
    for name in few:
        assert np.allclose(found.averages[name], expected.averages[name], rtol=1e-12)


def test_linear_observables_in_other_coordinates_are_those_of_the_parameters():
    coordinates = gm.coordinates.Linear([[2.0, 0.0], [1.0, 3.0]], [1.0, -2.0])
    plan = gm.Plan(
        target=gm.targets.Quadratic([1.0, 2.0]), dynamics=gm.dynamics.overdamped(2), num_steps=1, num_chains=2,
        observables={f"{i}": gm.observables.linear([1.0, i]) for i in range(17)}, step_size=0.1, start=[3.0, 5.0],
        coordinates=coordinates,
    )  # fmt: skip
    run = gm.run(plan, "scan", progress=False)
    assert [run.mean[f"{i}"] for i in range(17)] == pytest.approx([3.0 + 5.0 * i for i in range(17)], rel=1e-6)


def test_too_many_functions_are_refused_with_what_to_do(plan):
    functions = {f"{i}": lambda theta, i=i: theta[0] * i for i in range(2001)}
    with pytest.raises(
        gm.InvalidInput, match=r"at most 2000 functions as observables .* 2001: write those of the form"
    ):
        choose(plan.replace(observables=functions), "scan")


FORKED = """
import os, sys, warnings
import numpy as np
import gyromc as gm
warnings.simplefilter("ignore")
plan = gm.Plan(target=gm.targets.LogDensity(lambda x: -0.5 * x @ x), dynamics=gm.dynamics.overdamped(2), num_steps=4,
               observables={"x": gm.observables.linear([1.0, 0.0])}, step_size=0.1, num_chains=3, start=[0.0, 0.0])
run = gm.run(plan, progress=False)
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
for compute in (
    lambda: gm.run(plan, progress=False),
    lambda: gm.expect(plan.target, start=[0.0, 0.0]),
    lambda: gm.estimate(run, bias="richardson"),  # these compile where no program of ours is asked for
    lambda: plan.replace(step_size=lambda step: 0.1 / (1 + step)),
    lambda: gm.check(np.random.default_rng(0).normal(size=(2, 50, 2)), plan.target, [0.0, 0.0]),
):
    try:
        compute()
    except gm.InvalidInput as error:
        print(error, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_of_a_process_that_computed_says_what_to_do():
    """The threads of JAX do not exist there: it would wait for them for ever."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=240, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 5
    for line in lines:
        assert 'start processes with `multiprocessing.get_context("spawn")`' in line

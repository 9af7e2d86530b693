"""expect: posterior expectations with a stated error. Warm up, sample, regress on zero-mean functions, check, continue.

Input: a target, observables (every parameter when left out), an error in posterior standard deviations and limits of time and
gradients. Output: a `Posterior`. The limits hold from the first call; Ctrl-C returns what there is.
"""

import time
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from gyromc.checks import coverage, flag, one_of, positive, whole
from gyromc.coordinates.maps import Coordinates, check_coordinates
from gyromc.errors import GyromcWarning
from gyromc.plan import Plan
from gyromc.posterior import Account, Posterior, PosteriorMean, by_site
from gyromc.show.interruption import interruptible
from gyromc.show.numbers import duration, listed
from gyromc.show.progress import progress as show_progress
from gyromc.solve.minibatch import MinibatchChains
from gyromc.solve.question import Question
from gyromc.solve.sampling import Sampling, posterior_means, rotation_gain
from gyromc.solve.solver import LEARNED, SETTINGS, End, Limits, Solver
from gyromc.targets import Target

__all__ = ["answer", "expect"]

MOVED = (
    "Chains moved in coordinates learned from their draws, because one parameter changes the scale of others. Errors are those "
    "of plain averages; the model written with standardised effects (non-centred) has smaller ones."
)
NOT_ADJUSTED = (
    "Chains with mini-batches have no Metropolis step: errors do not contain the step-size bias that the regression leaves. It "
    "is small where the posterior is near Gaussian, as it is with many rows."
)

FLAT = 0.05  # a virial so near 1: on average U rises by a twentieth of what it would under a law, or less


def expect(
    target: Target | Plan,
    observables: Mapping[str, Any] | None = None,
    error: float = 0.01,
    *,
    seconds: float | None = None,
    gradients: float | None = None,
    level: float = 0.95,
    start: Any = None,
    coordinates: Coordinates | str | None = None,
    rotations: bool = True,
    seed: int = 0,
    progress: bool | None = None,
) -> Posterior:
    """Posterior expectations to a stated error, in seconds.

    Chains are warmed up together, sample, and their averages are sharpened by regression on functions whose mean is known to be
    zero. It goes on until every observable has the error, or a limit is reached; then a warning says what is missing and what it
    would take. Ctrl-C returns the estimates so far.

    **Arguments:**

    - `target`: the law (`gyromc.targets`, `gyromc.interop.numpyro.target`), or a plan for it.
    - `observables`: functions of the parameters by name, of `gyromc.observables` or your own, returning a number or arrays; left
      out: every parameter, every site of a NumPyro model.
    - `error`: the standard error of every mean, in posterior standard deviations of its observable.
    - `seconds`, `gradients`: the most time from this call on, compilation included, and the most gradients over all the data.
      Without either, 30 seconds.
    - `level`: of the intervals.
    - `start`: parameters, an array or a pytree, for a target that does not know their shape, such as `LogDensity`.
    - `coordinates`: of `gyromc.coordinates`, in which chains move; "learned": fitted to the warm-up's draws. Left out:
      the plan's, and learned where one parameter is seen to change the scale of others, as in a funnel.
    - `rotations`: whether zero-mean functions with a rotation are used; without them the same draws have larger errors, which
      shows what rotations gain.
    - `seed`: a whole number; the same seed gives the same numbers, unless time ends the run.
    - `progress`: show the stage and the error so far; left out: when standard error is a terminal.

    **Returns:** a `Posterior`.

    ```python
    import gyromc as gm
    found = gm.expect(gm.targets.Quadratic([1.0, 4.0]), {"x²": gm.observables.square([1.0, 0.0])}, error=0.01)
    assert abs(found["x²"].mean - 1) < 0.01 and not found.warnings
    ```
    """
    began = time.perf_counter()
    error, level = positive(error, "error"), coverage(level)
    limits = Limits.read(seconds, gradients, began)
    # From here on, since a press while XLA compiles would strike in its code.
    with interruptible("stopping; what is done will be estimated") as stop, show_progress(None, progress) as shown:
        question = Question.read(target, observables, start)
        coordinates = target.coordinates if coordinates is None and isinstance(target, Plan) else coordinates
        if isinstance(coordinates, str):
            one_of(coordinates, [LEARNED], "coordinates", " Or pass a value of `gm.coordinates`.")
        elif coordinates is not None:
            check_coordinates(coordinates, question.start)
        chosen: Any = {"coordinates": coordinates, "rotations": flag(rotations, "rotations")}
        solver = Solver(question, error, limits, lambda: bool(stop), shown, whole(seed, "seed", least=0), **chosen)
        solver.solve()
    found = answer(solver, level)
    if found.warnings:
        warnings.warn(" ".join(found.warnings), GyromcWarning, stacklevel=2)
    return found


def answer(solver: Solver, level: float) -> Posterior:
    """The posterior, with the warnings it needs."""
    sampling, chains = solver.sampling, solver.chains
    if sampling is None:
        sampling = solver.begin_sampling()
        for kept in chains.warm[len(chains.warm) // 2 :]:
            sampling.add(kept)
    sharp, r_hat = sampling.sharpened(), sampling.r_hat()
    states, weights, values = sampling.draws()
    draws = chains.thetas(states)
    rows = posterior_means(solver.question.names, sharp, sharp.std_error, chains.settings.chains - 1, r_hat, level)
    account = Account(
        "warm up, sample, regress", chains.settings.chains, sampling.states * chains.settings.chains, chains.gradients,
        solver.warm_gradients, solver.limits.spent, float(np.mean(sampling.acceptance)), chains.step_size,
        rotation_gain(sharp),
    )  # fmt: skip
    said = _warnings(solver, rows, sampling)
    hints = [NOT_ADJUSTED] if isinstance(chains, MinibatchChains) else [MOVED] if solver.learned else []
    return Posterior(rows, level, draws, weights, values, said, hints, account, solver.question.model)


def _warnings(solver: Solver, rows: Mapping[str, PosteriorMean], sampling: Sampling) -> list[str]:
    """What may be wrong, grouped by site."""
    said, names = [], list(rows)
    group = lambda those: listed(by_site(names, those))
    unmixed = [name for name, row in rows.items() if row.r_hat > SETTINGS.unmixed]
    if unmixed:
        largest = max(rows[name].r_hat for name in unmixed)
        said.append(
            f"Chains have not mixed (R-hat up to {largest:.3g}): {group(unmixed)}. There may be several modes, or the chains "
            "are too short: allow more `seconds`, or write the model in other coordinates."
        )
    tests = sampling.tests()
    flat = [test for test in tests if not abs(test.virial - 1) > FLAT]
    if tests:
        labels = solver.question.coordinates
        off = listed(by_site(labels, [labels[test.coordinate] for test in flat or tests]))
        said.append(
            f"The density hardly falls along {off}: the posterior seems improper, and such means do not exist. Give these "
            "parameters a proper prior."
            if flat
            else f"The draws do not follow the target: a variance seems wrong by {100 * abs(tests[0].virial):.0f} % "
            f"({abs(tests[0].z):.1f} standard errors) along {off}. Chains do not reach a part of the posterior, "
            "such as the neck of a funnel: write the model in other coordinates (non-centred)."
        )
    # an error that is not a number was not reached
    missed = {n: row.relative_error for n, row in rows.items() if not row.relative_error <= solver.error * (1 + 1e-9)}
    if missed:
        worst = max(missed, key=lambda name: missed[name])
        took = duration(solver.limits.spent * (missed[worst] / solver.error) ** 2)
        said.append(
            f"The error asked for, {solver.error:g} posterior standard deviations, is not reached for {group(list(missed))}, "
            f"at most {missed[worst]:.2g} ({worst}): {solver.end}{'' if flat else f'; about {took} would be needed'}."
        )
    if solver.cut_warm_up is not None:
        interrupted = solver.cut_warm_up is End.INTERRUPTED
        how, remedy = (
            ("interrupted", "") if interrupted else ("cut short by the time allowed", " Allow more `seconds`.")
        )
        said.append(f"Warm-up was {how}: errors may be larger than stated.{remedy}")
    return said

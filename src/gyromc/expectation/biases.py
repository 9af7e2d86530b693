"""The discretisation bias of every observable of a run, as far as an error asks for it.

Input: chains after their first stage, and by observable the error asked for. Output: a `Bias` each; `StepTooLarge` where one of
them is too large for the error and a smaller step size can be afforded.
"""

import math
from collections.abc import Mapping

from gyromc.errors import InvalidInput
from gyromc.estimation.bias import Bias, predicted_or_not
from gyromc.estimation.levels import COST, MeasuredBias, measured_twice
from gyromc.expectation.chains import GrowingRun
from gyromc.expectation.limits import StepTooLarge
from gyromc.observables import Ridge
from gyromc.oracle_moments import why_no_moments
from gyromc.targets.separable import why_not_in_jax

__all__ = ["SHARE", "check_biases", "known_biases"]

SHARE = 0.7  # of the error that the bias may be; the Monte Carlo error gets the rest, at least 0.71 of it
KNOWN = 0.3  # of the error that a bound of the bias may be: a larger one makes intervals cover more than they say
PAIRED_SHARE = 4  # pairs of chains make a quarter of the steps of the first stage,
FEWEST, LONGER = 128, 16.0  # at least so many, and at most so many times more where noise hides the bias
MOST_TIMES = 8  # smaller that a step size becomes at once


def known_biases(chains: GrowingRun, errors: Mapping[str, float], given: Mapping[str, Bias]) -> dict[str, Bias]:
    """As `given` where that is small enough; else exact for ridge functions on Gaussian targets, else from pairs of chains, and
    predicted where those do not tell."""
    ridges = all(isinstance(h, Ridge) for h in chains.plan.observables.values())
    exact = ridges and chains.plan.flat_target.gaussian() is not None
    sources = (
        [_predicted, _paired] if exact else [_paired, *([_predicted] if ridges else [])]
    )  # other functions take minutes
    found = {
        name: given[name] for name, error in errors.items() if name in given and given[name].error <= KNOWN * error
    }
    for source in sources:
        lacking = {
            name: error for name, error in errors.items() if name not in found or not _settled(found[name], error)
        }
        if not lacking or chains.stop:
            break
        _improve(found, source(chains, lacking))
    _improve(found, {name: one for name, one in given.items() if name in errors})
    return {name: found.get(name, unknown("the run was interrupted before it was measured")) for name in errors}


def _improve(found: dict[str, Bias], others: Mapping[str, Bias]) -> None:
    """Take those of the others that are known better."""
    for name, one in others.items():
        old = found.get(name)
        if old is None or (one.value is not None and (old.value is None or one.error < old.error)):
            found[name] = one


def unknown(why: str) -> Bias:
    """A bias of which nothing is known, and why."""
    return Bias(None, f"unknown: {why}")


def check_biases(chains: GrowingRun, biases: Mapping[str, Bias], errors: Mapping[str, float], first: int) -> None:
    """Raise `StepTooLarge` where a bias is too large; `first` is the length of the first stage, which a new start costs twice."""
    again = 2 * chains.plan.num_chains * chains.plan.oracle.gradients(first + chains.plan.burn_in)
    if not chains.limits.affords(chains.gradients + again):
        return
    times, why = 1, ""
    for name, one in biases.items():
        if one.value is None or abs(one.value) <= 2 * _noise(one):
            continue
        size = math.sqrt(one.value**2 + one.error**2 - _noise(one) ** 2) / (SHARE * errors[name])
        order = one.order if isinstance(one, MeasuredBias) else 1
        if size > times**order:
            times = min(MOST_TIMES, 2 ** math.ceil(math.log2(size) / order))
            why = (
                f"the discretisation bias of {name} was {one.value:.2g} ± {one.error:.1g}, too much for an error of "
                f"{errors[name]:.2g}"
            )
    if why:
        raise StepTooLarge(why, times)


def _settled(one: Bias, error: float) -> bool:
    """Whether a bias is known well enough to say if it is too large."""
    if one.value is None:
        return False
    return math.hypot(one.value, one.error) <= SHARE * error or abs(one.value) > 2 * _noise(one)


def _noise(one: Bias) -> float:
    """The part of a bias' error that is not its own next order; all of it where that is not known."""
    return one.noise if isinstance(one, MeasuredBias) else one.error


def _predicted(chains: GrowingRun, errors: Mapping[str, float]) -> Mapping[str, Bias]:
    found = predicted_or_not(chains.run)
    return {name: found[name] for name in errors}


def _paired(chains: GrowingRun, errors: Mapping[str, float]) -> Mapping[str, Bias]:
    """From pairs of chains that share their noise; longer ones where the noise hides a bias that matters."""
    plan, limits, names = chains.plan, chains.limits, list(errors)
    reason = why_not_in_jax(plan.flat_target) or why_no_moments(plan.oracle)
    if reason:
        return {name: unknown(f"chains cannot be paired here: {reason}") for name in names}
    steps, found = max(FEWEST, chains.done // PAIRED_SHARE), {}
    for _ in range(2):
        cost = COST * plan.num_chains * plan.oracle.gradients(steps + plan.burn_in)
        if not limits.affords(chains.gradients + cost):
            return found or {name: unknown("`gradients` leave too few to measure it") for name in names}
        limits.gradients_spent += cost
        try:
            found = measured_twice(plan.replace(num_steps=steps), names)
        except KeyboardInterrupt:
            return found
        except InvalidInput as error:
            raise StepTooLarge(f"pairs of chains that measure the bias failed: {error}") from error
        vague = [found[name].noise / errors[name] for name in names if not _settled(found[name], errors[name])]
        longer = min(LONGER, (2 * max(vague) / SHARE) ** 2) if vague else 1.0
        if longer < 2 or chains.stop:
            break
        steps = int(longer * steps)
    return found

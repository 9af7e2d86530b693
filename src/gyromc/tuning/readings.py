"""How many rows a gradient should read: all of them, or mini-batches with control variates of order 1 or 2 at the mode.

A survey and what an average leaves with exact gradients in; the cheapest oracle for a given error out, by rows read.
"""

import dataclasses
import math

import numpy as np

from gyromc.checks import require
from gyromc.oracle_moments import mean_covariance, why_no_moments
from gyromc.oracles import ControlVariate, Exact, Oracle
from gyromc.plan import Plan
from gyromc.targets import SumOverData
from gyromc.targets.regressions import KnownLikelihood
from gyromc.tuning.survey import Survey

__all__ = ["Reading", "given_reading", "readings"]

LARGE_DATA = 4000  # rows from which on mini-batches are weighed: below, a step costs more than its rows
POINTS = 24  # of the posterior, where the noise of a batch is measured
TRIAL_SIZE = 64
SMALLEST, LARGEST_SHARE = 2, 0.1  # batch sizes: in rows, and as a share of the data
OVERHEAD = 8.0  # rows that a step costs beside those of its batch
CALM = 0.5  # largest variance of gradient noise in whitened coordinates


@dataclasses.dataclass(frozen=True, eq=False)
class Reading:
    """An oracle, the covariance of its noise, and what one gradient costs in gradients over all the data."""

    oracle: Oracle
    noise: np.ndarray
    cost: float
    merit: float  # rows for one effective draw

    @property
    def name(self) -> str:
        """For tables."""
        return "all rows" if isinstance(self.oracle, Exact) else self.oracle.name


def readings(base: Plan, survey: Survey, left: float) -> list[Reading]:
    """The oracles that were weighed, the best first; `left` is N·Var of an average with exact gradients, in posterior sds."""
    target, d = base.target, survey.model.dim
    rows = target.num_data if isinstance(target, SumOverData) else 1
    found = [Reading(Exact(), np.zeros((d, d)), 1.0, rows * left)]
    if rows < LARGE_DATA or base.flat_target.gaussian() is not None:
        return found
    for order in (1, 2):
        found.append(_control_variate(base, survey, left, order, rows))
    return sorted(found, key=lambda one: one.merit)


def given_reading(base: Plan, survey: Survey, oracle: Oracle) -> Reading:
    """The reading of an oracle that was asked for: its noise over the survey's points, and what it costs."""
    prepared = base.replace(oracle=oracle).prepared_oracle
    why = why_no_moments(oracle)
    require(why is None, f"`tune` needs the covariance of gradient noise, and {why}. Use a fixed anchor.")
    noise = mean_covariance(base.flat_target, prepared, survey.starts(POINTS, 0))
    rows = base.target.num_data if isinstance(base.target, SumOverData) else 1
    return Reading(oracle, noise, oracle.evaluations(base.target) / rows, math.nan)


def _control_variate(base: Plan, survey: Survey, left: float, order: int, rows: int) -> Reading:
    """The batch size with the fewest rows for one effective draw: (left + σ²/b)(cost of b rows), σ² the noise of one row."""
    R, center = np.linalg.cholesky(survey.covariance), survey.model.unravel(survey.model.mode)
    known = _curvature(survey, base) if order == 2 else None
    oracle = ControlVariate(TRIAL_SIZE, center=center, order=order, curvature=known)
    prepared = oracle.prepared(survey.model)
    one = TRIAL_SIZE * mean_covariance(base.flat_target, prepared, survey.starts(POINTS, 0))
    whitened = R.T @ one @ R
    typical, worst = float(np.trace(whitened)) / len(R), float(np.linalg.eigvalsh(whitened)[-1])
    reads = oracle.evaluations(base.target) / TRIAL_SIZE  # rows read for each row of the batch
    overhead = OVERHEAD + (survey.model.dim if order == 2 else 0)
    least = max(SMALLEST, worst / CALM)
    size = math.ceil(min(max(least, math.sqrt(typical * overhead / (left * reads))), max(least, LARGEST_SHARE * rows)))
    cost = reads * size
    merit = math.inf if size > LARGEST_SHARE * rows else (left + typical / size) * (cost + overhead)
    chosen = ControlVariate(size, center=center, order=order, curvature=prepared.operator)  # K is computed once
    return Reading(chosen, one / size, cost / rows, merit)


def _curvature(survey: Survey, base: Plan) -> np.ndarray | None:
    """Σ_i ∇²ℓ_i at the mode, where the Laplace approximation has it."""
    target = base.flat_target
    if not isinstance(target, KnownLikelihood):
        return None
    return survey.model.laplace.precision - float(target.prior_precision) * np.eye(target.dim)

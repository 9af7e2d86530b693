"""Rotations compared at equal bias: what each Q gains on a plan's target, from the precision at its mode.

Input: a plan, or a precision matrix with dynamics by name. Output: a `RotationTable`: for each dynamics the decay rate, the mean
V/Var of linear observables and of squares, the step at which Euler's covariance is off by `excess` in its worst direction, and
effective draws per gradient at that step. On a Gaussian target all of it is exact but the squares, whose V is the diffusion's.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy

from gyromc import dynamics as choices
from gyromc import rotations
from gyromc.checks import one_of, positive, require, shown
from gyromc.dynamics import Dynamics, augment
from gyromc.operators import as_operator, symmetrised
from gyromc.plan import Plan
from gyromc.show.tables import Shown, Table

__all__ = ["RotationRow", "RotationTable", "compare_rotations"]

MOST = 200  # parameters: a Lyapunov equation for each row and parameter


@dataclasses.dataclass(frozen=True)
class RotationRow:
    """One dynamics on one target.

    - `decay`: the smallest real part of the spectrum of (D+Q)P.
    - `linear`, `worst`, `squares`: V/Var, the mean over linear observables, the largest of them, the mean over squares.
    - `bias_slope`: Euler's covariance is off by this times η in the worst direction of θ, to first order.
    - `step_size`: where it is off by the table's `excess` exactly.
    """

    name: str
    dynamics: Dynamics
    decay: float
    linear: float
    worst: float
    squares: float
    bias_slope: float
    step_size: float

    def draws_per_gradient(self, of: str = "linear") -> float:
        """Effective draws per gradient at `step_size`, for `"linear"`, `"worst"` or `"squares"`."""
        return self.step_size / getattr(self, one_of(of, ("linear", "worst", "squares"), "of"))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RotationTable(Shown):
    """Dynamics compared at equal bias; `table["pairing"]` is a row, `table.gain("pairing")` what it gains over the first."""

    rows: Mapping[str, RotationRow]
    excess: float
    source: str

    def __getitem__(self, name: str) -> RotationRow:
        return self.rows[one_of(name, self.rows, "name")]

    def gain(self, name: str, of: str = "linear") -> float:
        """How many times fewer gradients than the first row, at equal error and bias."""
        first = next(iter(self.rows.values()))
        return self[name].draws_per_gradient(of) / first.draws_per_gradient(of)

    def shown(self) -> list[Table | str]:
        """One row for each dynamics."""
        columns = ["dynamics", "decay", "V, means", "V, squares", "bias slope", "η", "draws per gradient"]
        columns += ["gain: means", "worst", "squares"]
        cells = [
            [
                *(name, f"{row.decay:.3g}", f"{row.linear:.3g}", f"{row.squares:.3g}", f"{row.bias_slope:.3g}"),
                *(f"{row.step_size:.3g}", f"{row.draws_per_gradient():.3g}"),
                *(f"{self.gain(name, of):.3g} ×" for of in ("linear", "worst", "squares")),
            ]
            for name, row in self.rows.items()
        ]
        note = (
            f"Euler steps at which a variance is off by {100 * self.excess:g} % at worst; precision from {self.source}; V in "
            "units of the observable's variance; gains over the first row at equal bias and gradients"
        )
        return [Table(columns, cells, "Rotations at equal bias", [note])]


def compare_rotations(
    plan: Plan | Any, excess: float = 0.1, dynamics: Mapping[str, Dynamics] | None = None
) -> RotationTable:
    """Compare rotations at equal step-size bias on a target's precision.

    **Arguments:**

    - `plan`: a plan, whose D is kept, or a precision matrix K.
    - `excess`: the relative error of a variance that each step size is chosen for.
    - `dynamics`: what to compare, by name, the baseline first. Left out: without rotation, the plan's own, `pairing`,
      `equal_bias` and `fastest` for the same D, and D = K⁻¹ without rotation.

    **Returns:** a `RotationTable`, which prints as a table.

    ```python
    import gyromc as gm
    from gyromc.prediction.rotations import compare_rotations
    table = compare_rotations([1.0, 1.0, 4.0, 4.0, 16.0, 16.0])
    assert table.gain("pairing") > 6.9 and table.gain("fastest decay") < 1
    ```
    """
    excess = positive(excess, "excess")
    own, source = None, "the matrix given"
    if isinstance(plan, Plan):
        known = plan.flat_target.gaussian()
        K, source = (known[0], "the target") if known is not None else (plan.model.precision, "the mode")
        own = plan.dynamics
    else:
        K = symmetrised(as_operator(plan, "K"), +1, "K").dense()
    require(len(K) <= MOST, f"Rotations are compared with full matrices, for at most {MOST} parameters: got {len(K)}.")
    smallest = float(np.linalg.eigvalsh(K)[0])
    require(smallest > 0, f"`K` must be positive definite: its smallest eigenvalue is {smallest:.6g}.")
    require(
        dynamics is None or (isinstance(dynamics, Mapping) and all(isinstance(x, Dynamics) for x in dynamics.values())),
        f"`dynamics` must be values of `gyromc.dynamics` by name: got {shown(dynamics)}.",
    )
    found = dict(dynamics or _candidates(K, own))
    rows = {name: _row(name, K, one, excess) for name, one in found.items()}
    return RotationTable(rows, excess, source)


def _candidates(K: np.ndarray, own: Dynamics | None) -> dict[str, Dynamics]:
    """The plan's D with each rotation, and the preconditioned dynamics without one."""
    base = choices.overdamped(len(K)) if own is None else own.reversible()
    found = {"no rotation": base}
    if own is not None and not own.is_reversible:
        found[own.name] = own
    makers = {"pairing": choices.pairing, "equal bias": choices.equal_bias, "fastest decay": choices.fastest}
    found |= {name: make(K, D=base) for name, make in makers.items()}
    found["D = K⁻¹, no rotation"] = choices.general(np.linalg.inv(K), 0)
    return found


def _row(name: str, K: np.ndarray, dynamics: Dynamics, excess: float) -> RotationRow:
    d = len(K)
    augmented = dynamics.has_momentum(d, "the target")
    A = rotations.whitened(augment(K, augmented), dynamics.D, dynamics.Q)
    inverse = np.linalg.inv(A)[:d, :d]
    linear = np.linalg.eigvalsh(inverse + inverse.T)
    squares = (
        np.mean(rotations.square_variance(A, np.eye(len(A))[:, :d])) if augmented else rotations.all_squares_variance(A)
    )
    spectrum = np.linalg.eigvals(A)
    slope = float(np.linalg.eigvalsh(rotations.bias_matrix(A)[:d, :d])[-1])
    eta = _step_size(A, d, excess, spectrum)
    return RotationRow(
        name, dynamics, float(spectrum.real.min()), float(linear.mean()), float(linear[-1]), float(squares), slope, eta
    )


def _step_size(A: np.ndarray, d: int, excess: float, spectrum: np.ndarray) -> float:
    """η with λ_max(Σ̃_θθ) = 1 + excess, Σ̃ = MΣ̃Mᵀ + η(Ã + Ãᵀ), M = I - ηÃ, below the stability limit."""
    limit = float(np.min(2 * np.real(spectrum) / np.abs(spectrum) ** 2))

    def over(eta: float) -> float:
        covariance = scipy.linalg.solve_discrete_lyapunov(np.eye(len(A)) - eta * A, eta * (A + A.T), method="bilinear")
        # 1 - 1/λ grows to 1 at the stability limit, where λ itself is infinite
        return excess / (1 + excess) - 1 + 1 / np.linalg.eigvalsh((covariance + covariance.T)[:d, :d] / 2)[-1]

    return float(scipy.optimize.brentq(over, 1e-9 * limit, (1 - 1e-9) * limit))  # type: ignore[arg-type]  # a number: no `full_output`

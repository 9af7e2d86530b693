"""Rotations compared at equal bias, from the precision at the mode; on a Gaussian exact, but for squares V is the diffusion's."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy

from gyromc import dynamics as choices
from gyromc import rotations
from gyromc.checks import one_of, positive, require
from gyromc.operators import as_operator, symmetrised
from gyromc.plan import Plan
from gyromc.show.tables import Shown, Table

MOST = 200  # parameters: a Lyapunov equation for each row and parameter


class RotationRow(NamedTuple):
    """One dynamics on one target."""

    dynamics: choices.Dynamics
    decay: float  # the smallest real part of the spectrum of (D+Q)P
    linear: float  # V/Var, the mean over linear observables
    worst: float  # the largest of them
    squares: float  # the mean over squares
    bias_slope: float  # Euler's covariance is off by this times η in the worst direction of θ, to first order
    step_size: float  # where it is off by the table's `excess` exactly

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
        columns = ["dynamics", "decay", "V, means", "worst", "squares", "bias slope", "η", "draws per gradient"]
        columns += ["gain: means", "worst", "squares"]
        gains = lambda name: [f"{self.gain(name, of):.3g} ×" for of in ("linear", "worst", "squares")]
        numbers = lambda row: [f"{x:.3g}" for x in (*row[1:], row.draws_per_gradient())]
        cells = [[name, *numbers(row), *gains(name)] for name, row in self.rows.items()]
        note = f"precision from {self.source}; Euler steps at which a variance is off by {100 * self.excess:g} % "
        note += (
            "at worst; V in units of the observable's variance; gains over the first row at equal bias and gradients"
        )
        return [Table(columns, cells, "Rotations at equal bias", [note])]


def compare_rotations(plan: Plan | Any, excess: float = 0.1) -> RotationTable:
    """Compare no rotation, the plan's own, `pairing`, `equal_bias` and `fastest` for the same D, and D = K⁻¹ without rotation.

    **Arguments:**

    - `plan`: a plan, whose D is kept, or a precision matrix K.
    - `excess`: the relative error of a variance, in the worst direction, that each step size of Euler is chosen for.

    **Returns:** a `RotationTable`, which prints as a table.

    ```python
    import gyromc as gm
    from gyromc.prediction.rotations import compare_rotations
    table = compare_rotations([1.0, 1.0, 4.0, 4.0, 16.0, 16.0])
    print(round(table.gain("pairing"), 1), round(table.gain("fastest decay"), 1))  # 7.0 0.8
    ```
    """
    excess, own, source = positive(excess, "excess"), None, "the matrix given"
    if isinstance(plan, Plan):
        known = plan.flat_target.gaussian()
        K, source = (known[0], "the target") if known is not None else (plan.model.precision, "the mode")
        own = plan.dynamics
    else:
        K = symmetrised(as_operator(plan, "K"), +1, "K").dense()
    require(len(K) <= MOST, f"Rotations are compared with full matrices, for at most {MOST} parameters: got {len(K)}.")
    smallest = float(np.linalg.eigvalsh(K)[0])
    require(smallest > 0, f"`K` must be positive definite: its smallest eigenvalue is {smallest:.6g}.")
    base = choices.overdamped(len(K)) if own is None else own.reversible()
    found = {"no rotation": base} | ({} if own is None or own.is_reversible else {own.name: own})
    makers = {"pairing": choices.pairing, "equal bias": choices.equal_bias, "fastest decay": choices.fastest}
    found |= {name: make(K, D=base) for name, make in makers.items()}
    found["D = K⁻¹, no rotation"] = choices.general(np.linalg.inv(K), 0)
    return RotationTable({name: _row(K, one, excess) for name, one in found.items()}, excess, source)


def _row(K: np.ndarray, dynamics: choices.Dynamics, excess: float) -> RotationRow:
    d, augmented = len(K), dynamics.has_momentum(len(K), "the target")
    A = rotations.whitened(choices.augment(K, augmented), dynamics.D, dynamics.Q)
    inverse, spectrum = np.linalg.inv(A)[:d, :d], np.linalg.eigvals(A)
    linear, slope = (np.linalg.eigvalsh(x) for x in (inverse + inverse.T, rotations.bias_matrix(A)[:d, :d]))
    # V/Var of the squares of single parameters, or over all quadratic observables.
    square = lambda u: 2 * u @ scipy.linalg.solve_continuous_lyapunov(A.T, np.outer(u, u)) @ u
    each = [square(u) for u in np.eye(len(A))[:d]] if augmented else rotations.all_squares_variance(A)
    limit = float(np.min(2 * np.real(spectrum) / np.abs(spectrum) ** 2))

    def over(eta: float) -> float:
        """0 where λ_max(Σ̃_θθ) = 1 + excess, Σ̃ = MΣ̃Mᵀ + η(Ã + Ãᵀ), M = I - ηÃ."""
        covariance = scipy.linalg.solve_discrete_lyapunov(np.eye(len(A)) - eta * A, eta * (A + A.T), method="bilinear")
        # 1 - 1/λ grows to 1 at the stability limit, where λ itself is infinite
        return excess / (1 + excess) - 1 + 1 / np.linalg.eigvalsh((covariance + covariance.T)[:d, :d] / 2)[-1]

    step_size: Any = scipy.optimize.brentq(over, 1e-9 * limit, (1 - 1e-9) * limit)
    found = np.min(spectrum.real), np.mean(linear), linear[-1], np.mean(each), slope[-1], step_size
    return RotationRow(dynamics, *map(float, found))

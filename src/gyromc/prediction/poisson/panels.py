"""Integrals on the line by composite Gauss-Lobatto quadrature, refined where they are not resolved.

Input: functions of one number, and the panels to begin with. Output: `Panels`, on which the integrals have settled, with the
changes of the last division as their errors. Kinks, jumps and oscillation cost more panels and no accuracy.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
from numpy.polynomial import legendre

ORDER = 16  # nodes in a panel
MOST_PANELS = 8192
MOST_ROUNDS = 80
SETTLED = 1e-14  # change of an integral by dividing one panel, as a share of the integral of its size
RESOLVED = 1e-11  # no integral is claimed to be more exact


def _lobatto() -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of a rule that includes both ends, so that no jump hides between the last node and the end."""
    highest = np.eye(ORDER)[-1]
    slope, curvature = legendre.legder(highest), legendre.legder(highest, 2)
    inner = np.real(legendre.legroots(slope))  # real, whatever type NumPy gives them
    inner -= legendre.legval(inner, slope) / legendre.legval(inner, curvature)
    nodes = np.concatenate([[-1.0], inner, [1.0]])
    return nodes, 2 / (ORDER * (ORDER - 1) * legendre.legval(nodes, highest) ** 2)


NODES, WEIGHTS = _lobatto()
SPLIT = (
    1 + NODES[ORDER // 2]
) / 2  # at a node: both rules would place a jump beside the middle wrongly by the same amount


@functools.cache
def _legendre_inverse() -> np.ndarray:
    return np.linalg.inv(legendre.legvander(NODES, ORDER - 1))


@functools.cache
def running_matrix() -> np.ndarray:
    """∫₋₁^{x_j} of the polynomial through values at the nodes, one row for each node x_j."""
    antiderivatives = legendre.legint(np.eye(ORDER), lbnd=-1)
    return legendre.legval(NODES, antiderivatives).T @ _legendre_inverse()


@functools.cache
def slope_matrix() -> np.ndarray:
    """The derivative at the nodes of the polynomial through values at the nodes."""
    return legendre.legval(NODES, legendre.legder(np.eye(ORDER))).T @ _legendre_inverse()


@dataclasses.dataclass(frozen=True, eq=False)
class Panels:
    """Adjacent intervals in order, with functions given at `ORDER` nodes of each."""

    low: np.ndarray
    high: np.ndarray
    values: tuple[np.ndarray, ...] = ()  # each panels × ORDER

    @property
    def half(self) -> np.ndarray:
        """Half the widths, as a column."""
        return (self.high - self.low)[:, None] / 2

    @property
    def nodes(self) -> np.ndarray:
        """Panels × ORDER."""
        return (self.low + self.high)[:, None] / 2 + self.half * NODES

    @property
    def weights(self) -> np.ndarray:
        """Panels × ORDER; they sum to the length."""
        return self.half * WEIGHTS

    def divided(self) -> "Panels":
        """Every panel in two, without values."""
        middle = self.low + SPLIT * (self.high - self.low)
        return Panels(_mixed(self.low, middle), _mixed(middle, self.high))

    def filled(self, functions: Callable) -> "Panels":
        """The panels with the functions' values."""
        found = functions(self.nodes.ravel())
        return dataclasses.replace(self, values=tuple(v.reshape(-1, ORDER) for v in found))

    def running(self, values: np.ndarray, from_right: bool = False) -> np.ndarray:
        """The integral from the left end to every node; from every node to the right end with `from_right`."""
        totals = np.sum(self.weights * values, axis=1)
        inside = self.half * (values @ running_matrix().T)
        if not from_right:
            return inside + (np.cumsum(totals) - totals)[:, None]
        after = np.cumsum(totals[::-1])[::-1]
        return (totals[:, None] - inside) + (after - totals)[:, None]


def _mixed(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """first₀, second₀, first₁, second₁, …"""
    return np.stack([first, second], axis=1).reshape(2 * len(first), *first.shape[1:])


def refined(
    functions: Callable, integrals: Callable, edges: np.ndarray, local: int = 1
) -> tuple[Panels, np.ndarray, np.ndarray]:
    """Panels on which integrals have settled, those integrals, and their errors: the changes under the last division.

    `functions` maps points to a tuple of arrays of values; `integrals` maps `Panels` with these values to an array with one row
    for each panel, whose columns are the integrals over it. The first `local` columns depend on the panel alone; the others
    use the integrals over other panels too, and are looked at once the local ones have settled.
    """
    panels = Panels(edges[:-1], edges[1:]).filled(functions)
    finer = panels.divided().filled(functions)
    for _ in range(MOST_ROUNDS):
        fine = integrals(finer)
        both = fine[0::2] + fine[1::2]
        gap = np.abs(integrals(panels) - both)
        size = np.sum(np.abs(fine), axis=0)
        bad = np.any(~(gap[:, :local] <= SETTLED * size[:local]), axis=1)
        bad = bad if np.any(bad) else np.any(~(gap <= RESOLVED / 10 * size), axis=1)
        if not np.any(bad) or len(panels.low) + np.sum(bad) > MOST_PANELS:
            break
        panels, finer = _split(panels, finer, bad, functions)
    return finer, both.sum(axis=0), gap.sum(axis=0) + RESOLVED * size


def _split(panels: Panels, finer: Panels, bad: np.ndarray, functions: Callable) -> tuple[Panels, Panels]:
    """The bad panels replaced by their parts, which are divided again."""
    fresh = _chosen(finer, np.repeat(bad, 2))
    kept, kept_finer = _chosen(panels, ~bad), _chosen(finer, np.repeat(~bad, 2))
    return _joined(kept, fresh), _joined(kept_finer, fresh.divided().filled(functions))


def _chosen(panels: Panels, which: np.ndarray) -> Panels:
    return Panels(panels.low[which], panels.high[which], tuple(v[which] for v in panels.values))


def _joined(one: Panels, other: Panels) -> Panels:
    low, high = np.append(one.low, other.low), np.append(one.high, other.high)
    order = np.lexsort((high, low))
    values = tuple(np.concatenate(pair)[order] for pair in zip(one.values, other.values, strict=True))
    return Panels(low[order], high[order], values)


def uneven(low: float, high: float, count: int) -> np.ndarray:
    """Edges of `count` panels of different widths, so that no regular pattern of a function is hidden by the nodes."""
    jitter = np.random.default_rng(0).uniform(-0.25, 0.25, count - 1)
    return low + (high - low) * np.concatenate([[0.0], np.arange(1, count) + jitter, [count]]) / count

"""Symmetric matrices as the vectors of their entries on and above the diagonal: half the size, an eighth of the work.

A matrix, or a linear map between matrices written as a size² × size² matrix that keeps them symmetric, in; its short form out.
"""

import dataclasses
import functools

import numpy as np


@dataclasses.dataclass(frozen=True)
class Symmetric:
    """The short form of symmetric matrices of one size."""

    size: int

    @functools.cached_property
    def _pairs(self) -> tuple[np.ndarray, np.ndarray]:
        return np.triu_indices(self.size)

    @functools.cached_property
    def _places(self) -> np.ndarray:
        i, j = self._pairs
        places = np.empty((self.size, self.size), int)
        places[i, j] = places[j, i] = np.arange(len(i))
        return places

    def vector(self, matrix: np.ndarray) -> np.ndarray:
        """The short form of a symmetric matrix."""
        return matrix[self._pairs]

    def matrix(self, vector: np.ndarray) -> np.ndarray:
        """The symmetric matrix of a short form."""
        return vector[self._places]

    def inputs(self, linear: np.ndarray) -> np.ndarray:
        """A map … × size² of all matrices, as a map of short forms."""
        i, j = self._pairs
        short = linear[..., i * self.size + j].copy()
        off = i != j
        short[..., off] += linear[..., j[off] * self.size + i[off]]
        return short

    def map(self, linear: np.ndarray) -> np.ndarray:
        """A map size² × size² as a map from short forms to short forms."""
        i, j = self._pairs
        return self.inputs(linear[i * self.size + j])

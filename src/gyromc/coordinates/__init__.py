"""Coordinates θ = T(z) in which chains move: linear, of your own, composed, or learned from draws."""

from gyromc.coordinates.learned import Learned, learn
from gyromc.coordinates.maps import Bijection, Compose, Coordinates, Linear

__all__ = ["Bijection", "Compose", "Coordinates", "Learned", "Linear", "learn"]

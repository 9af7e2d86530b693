"""Data of the paper's experiments as arrays: the Statlog heart data with checksum and licence, and a synthetic regression."""

from gyromc.datasets.heart import HEART, HeartTable, Split, heart, heart_split
from gyromc.datasets.synthetic import linear_regression

__all__ = ["HEART", "HeartTable", "Split", "heart", "heart_split", "linear_regression"]

"""Data the experiments of the paper's §6 use: the Statlog heart data with its checksum and licence, and a synthetic regression.

Receives seeds; hands on arrays. Files are read here and nowhere else.
"""

from gyromc.datasets.heart import HEART, HeartTable, Split, heart, heart_split
from gyromc.datasets.synthetic import linear_regression

__all__ = ["HEART", "HeartTable", "Split", "heart", "heart_split", "linear_regression"]

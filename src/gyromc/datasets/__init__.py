"""Data with checksum and licence: the tables of `example:NAME`, and the arrays of the paper's experiments."""

from gyromc.datasets.examples import EXAMPLES, HEART, Example, located
from gyromc.datasets.paper import HeartTable, Split, heart, heart_split, linear_regression

__all__ = [
    "EXAMPLES",
    "HEART",
    "Example",
    "HeartTable",
    "Split",
    "heart",
    "heart_split",
    "linear_regression",
    "located",
]

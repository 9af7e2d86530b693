"""A plan that can be sent to another process or machine, and arrives with the same content.

Input: a plan. Output: a value that `pickle` takes: it holds the plan itself, and becomes plain values and arrays when it is sent.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from gyromc.archive import pack, unpack
from gyromc.packing import PIECES, packed_plan, unpacked_plan
from gyromc.plan import Plan
from gyromc.references import References

__all__ = ["SentPlan"]


@dataclasses.dataclass(frozen=True, eq=False)
class SentPlan:
    """A plan, packed when it is pickled and unpacked where it arrives; no function of a plan that can be stored is lost."""

    plan: Plan

    def __reduce__(self):
        arrays: dict[str, np.ndarray] = {}
        content = pack(packed_plan(self.plan), arrays, PIECES, References())
        return _arrived, (content, arrays)


def _arrived(content: Any, arrays: Mapping[str, np.ndarray]) -> SentPlan:
    return SentPlan(unpacked_plan(unpack(content, arrays, PIECES, References(allow_import=True))))

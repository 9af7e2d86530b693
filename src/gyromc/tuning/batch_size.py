"""How many rows a gradient should read: the batch with the fewest rows for one relaxation time.

Input: the `Shape` of a law, measured with mini-batches of some size. Output: an oracle, the same or with larger batches, up to
all rows. Noise falls with 1/b while a gradient's cost grows with b; noise beyond what the splitting bears asks for friction, and
friction makes relaxation slow, so that small batches can cost more rows than all the data would.
"""

import math
from typing import Any

from gyromc.oracles import Exact, Minibatch, Oracle
from gyromc.tuning.preconditioning import Shape, relaxation_steps

__all__ = ["rows_by_batch", "suited"]

BETTER = 0.8  # of the rows that smaller batches need: below, a larger batch is taken


def rows_by_batch(shape: Shape, oracle: Minibatch, num_data: int) -> dict[int, float]:
    """Predicted rows for one relaxation time, by the size of the batch; the number of rows itself stands for exact gradients.

    ```python
    import numpy as np
    import gyromc as gm
    from gyromc.operators import Diagonal
    from gyromc.tuning.batch_size import rows_by_batch
    from gyromc.tuning.preconditioning import Shape
    noisy = Shape(Diagonal(np.ones(2)), np.array([1.0, 0.01]), np.ones(2), 1.0, 0.01, excess=20.0, cost=0)
    rows = rows_by_batch(noisy, gm.oracles.Minibatch(32), 200)
    assert rows[200] < rows[32]
    ```
    """
    base, sizes = oracle.noise_factor(num_data) / oracle.size, [oracle.size]
    while 2 * sizes[-1] < num_data:
        sizes.append(2 * sizes[-1])
    found = {}
    for b in sizes:
        factor = Minibatch(b, oracle.replace).noise_factor(num_data) / b / base if base else 0.0
        found[b] = b * relaxation_steps(shape.with_batches(factor))
    found[num_data] = num_data * relaxation_steps(shape.with_batches(0.0))
    return found


def suited(shape: Shape, oracle: Oracle, target: Any, most: float = math.inf) -> Oracle:
    """The oracle, or one that reads more rows, but at most so many, where that needs fewer rows for one relaxation time."""
    if type(oracle) is not Minibatch or oracle.size >= target.num_data:
        return oracle
    rows = rows_by_batch(shape, oracle, target.num_data)
    best = oracle.size
    for b, count in rows.items():
        best = b if b <= most and count < BETTER * rows[best] else best
    return Exact() if best == target.num_data else oracle if best == oracle.size else Minibatch(best, oracle.replace)

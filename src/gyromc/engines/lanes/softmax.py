"""The nonlinear part of the gradient of a softmax regression, for a block of chains.

The input is the chains' Θ, one chain per lane, and rows (x, r_1 … r_q) with r_k = 1/√(k(k+1)); the output is
Σ_i (Bᵀp(x_i)) ⊗ x_i, with p the probabilities of the C = q+1 classes and B Helmert's contrasts. B is not stored: with
u_k = r_k t_k the weights of the classes are w_c = c u_c - Σ_{k>c} u_k, and conversely (Bᵀp)_k = r_k (k p_k - Σ_{c<k} p_c), both
by running sums.
"""

from gyromc.engines.lanes.functions import exp
from gyromc.engines.lanes.gradients import SOFTMAX, WIDTH, kernel
from gyromc.engines.lanes.vectors import LANES, fma, load, maximum, number, store, zeros_like


@kernel
def probabilities(p, row, q, m, scratch):
    """Compute p_0 … p_q from t_1 … t_q, which begin the scratch, and store them after these."""
    later = zeros_like(scratch)
    highest = zeros_like(scratch) - 1e30
    for c in range(q, 0, -1):
        u = load(scratch, (c - 1) * LANES) * number(p.table, row * p.row_width + m + c - 1)
        weight = u * c - later
        store(scratch, (q + c) * LANES, weight)
        highest, later = maximum(highest, weight), later + u
    store(scratch, q * LANES, zeros_like(scratch) - later)
    highest = maximum(highest, zeros_like(scratch) - later)
    total = zeros_like(scratch)
    for c in range(q + 1):
        e = exp(load(scratch, (q + c) * LANES) - highest)
        store(scratch, (q + c) * LANES, e)
        total = total + e
    for c in range(q + 1):
        store(scratch, (q + c) * LANES, load(scratch, (q + c) * LANES) / total)


@kernel
def full_softmax(p, generator, source, at, w, scratch, offsets, width, slope):
    """s = Σ_i (Bᵀp(x_i)) ⊗ x_i over all rows; the slope code holds the number of linear predictors of a row."""
    q = p.slope_code - SOFTMAX
    m = p.d // q
    for i in range(p.d):
        store(source, at + i * WIDTH + w, zeros_like(source))
    for row in range(p.num_rows):
        for k in range(q):
            t = zeros_like(source)
            for i in range(m):
                t = fma(load(source, (k * m + i) * WIDTH + w), number(p.table, row * p.row_width + i), t)
            store(scratch, k * LANES, t)
        probabilities(p, row, q, m, scratch)
        earlier = load(scratch, q * LANES)
        for k in range(1, q + 1):
            own = load(scratch, (q + k) * LANES)
            g = (own * k - earlier) * number(p.table, row * p.row_width + m + k - 1)
            earlier = earlier + own
            for i in range(m):
                place = at + ((k - 1) * m + i) * WIDTH + w
                store(source, place, fma(g, number(p.table, row * p.row_width + i), load(source, place)))

// Exact values on a Gaussian target U(θ) = ½(θ-m)ᵀK(θ-m): V, bias and variance of an average at any step size.
// An observable is h(θ) = (uᵀθ)² when `square`, else uᵀθ. All states are centred at the mean.

import {
  add, apply, dot, inner, inverse, outer, sandwich, scaled, solve, solveVector, spectralRadius, sylvester,
  discreteLyapunov, times, transpose, zeros,
} from "./linear.mjs";
import { augment, balancedLimit, stepMatrices } from "./schemes.mjs";

const lift = (u, size) => [...u, ...new Array(size - u.length).fill(0)];

/** The chain y⁺ = M y + w, Cov(w) = W, or { error }. */
export function linearChain(scheme, dynamics, eta, K, tau) {
  const step = stepMatrices(scheme, dynamics, eta, K, tau);
  if (step.error) return step;
  const { A, B, C } = step;
  const n = dynamics.n;
  const BP = times(B, augment(K, dynamics.augmented));
  const M = A.map((row, i) => row.map((a, j) => a + (j < n ? BP[i][j] : 0))); // T1
  const spread = B.map((row) => row.slice(0, 2));
  const W = add(times(C, transpose(C)), times(spread, transpose(spread)), tau ** 2); // T1
  return { M, W, size: M.length, step };
}

/** V of the diffusion (E6): by E8 where h is linear, by a Lyapunov equation where it is a square. */
export function fluctuation(dynamics, K, mean, h) {
  const P = augment(K, dynamics.augmented);
  const { D, Q, G, n } = dynamics;
  const u = lift(h.u, n);
  const linear = (s) => {
    const w = solveVector(add(D, Q, -1), solveVector(P, s));
    return 2 * dot(w, apply(D, w)); // E8
  };
  if (!h.square) return linear(u);
  const A = times(G, P);
  const Psi = sylvester(transpose(A), A, scaled(outer(u, u), -1));
  const shift = 2 * dot(h.u, mean);
  return 8 * inner(times(Psi, D), solve(P, Psi)) + (shift ? linear(u.map((v) => shift * v)) : 0); // E6
}

/** μ(h) and Var_μ(h). */
export function targetMoments(K, mean, h) {
  const s = dot(h.u, solveVector(K, h.u));
  const m = dot(h.u, mean);
  return h.square ? { mean: m * m + s, variance: 2 * s * s + 4 * m * m * s } : { mean: m, variance: s };
}

/** The bias of the stationary law and the variance of an average of N of its states; null where the chain is not stable. */
export function longRun(chain, mean, K, h, N) {
  if (!(spectralRadius(chain.M) < 1)) return null;
  const X = discreteLyapunov(chain.M, chain.W);
  if (!X) return null;
  const u = lift(h.u, chain.size);
  const Xu = apply(X, u);
  const s = dot(u, Xu);
  const m = dot(h.u, mean);
  const bias = h.square ? s - dot(h.u, solveVector(K, h.u)) : 0;
  const c0 = h.square ? 2 * s * s + 4 * m * m * s : s;
  const sums = lagSums(chain.M, Xu, N);
  const first = dot(u, sums.b);
  const total = h.square ? 2 * dot(u, apply(sums.B, u)) + 4 * m * m * first : first; // Σ_{k<N} (N-k) c_k
  return { bias, variance: (2 * total - N * c0) / (N * N), spread: c0 }; // T1
}

/** Σ_{k<N} (N-k) M^k x and Σ_{k<N} (N-k) M^k xxᵀ (M^k)ᵀ, by repeated squaring. */
function lagSums(M, x, N) {
  let part = { N: 1, M, a: x, b: x, A: outer(x, x), B: outer(x, x) };
  let whole = null;
  for (let count = N; ; ) {
    if (count % 2 === 1) whole = whole ? joined(whole, part) : part;
    count = Math.floor(count / 2);
    if (!count) return whole;
    part = joined(part, part);
  }
}

/** The sums over N_p + N_q lags: a = Σ_{k<N} M^k x, b = Σ_{j≤N} a_j, and the same with both sides. */
function joined(p, q) {
  const v = (x, y, s) => x.map((value, i) => value + s * y[i]);
  return {
    N: p.N + q.N,
    M: times(q.M, p.M),
    a: v(p.a, apply(p.M, q.a), 1),
    b: v(v(p.b, p.a, q.N), apply(p.M, q.b), 1),
    A: add(p.A, sandwich(p.M, q.A)),
    B: add(add(p.B, p.A, q.N), sandwich(p.M, q.B)),
  };
}

/**
 * The exact mean and variance of the average of h over states 0 … t-1, for t = 1, 2, 3 …, from a Gaussian start.
 * Given the first state y, the sum S of h over t states has E[S | y] and Var[S | y] quadratic in (y, 1); one more state in front
 * changes both by products of small matrices.
 */
export class Averages {
  constructor(chain, mean, h, start) {
    const n = chain.size + 1;
    const u = lift(h.u, n);
    u[n - 1] = dot(h.u, mean);
    this.H = h.square ? outer(u, u) : linearForm(u, n);
    this.M = zeros(n, n).map((row, i) => row.map((_, j) => (i < n - 1 && j < n - 1 ? chain.M[i][j] : i === j ? 1 : 0)));
    this.Mt = transpose(this.M);
    this.W = zeros(n, n).map((row, i) => row.map((_, j) => (i < n - 1 && j < n - 1 ? chain.W[i][j] : 0)));
    this.first = [...start.mean, 1];
    this.C = zeros(n, n).map((row, i) => row.map((_, j) => (i < n - 1 && j < n - 1 ? start.covariance[i][j] : 0)));
    this.a = zeros(n, n);
    this.v = zeros(n, n);
    this.t = 0;
  }

  /** Add one state. */
  advance() {
    const { a, v, M, Mt, W, H } = this;
    const last = a.length - 1;
    const aM = times(a, M);
    const aW = times(a, W);
    const ahead = times(Mt, add(v, times(aW, a), 4), M); // E Var + Var E, the parts that depend on y
    ahead[last][last] += inner(v, W) + 2 * inner(aW, transpose(aW));
    const mean = add(H, times(Mt, aM));
    mean[last][last] += inner(a, W);
    this.a = mean;
    this.v = ahead;
    this.t += 1;
  }

  /** { mean, variance } of the average over the t states so far. */
  moments() {
    const { a, v, first, C, t } = this;
    const at = (form) => dot(first, apply(form, first)) + inner(form, C);
    const slope = apply(a, first).map((x) => 2 * x);
    const aC = times(a, C);
    const outside = dot(slope, apply(C, slope)) + 2 * inner(aC, transpose(aC));
    return { mean: at(a) / t, variance: Math.max(at(v) + outside, 0) / (t * t) };
  }
}

function linearForm(u, n) {
  const H = zeros(n, n);
  u.forEach((value, i) => {
    H[i][n - 1] += value / 2;
    H[n - 1][i] += value / 2;
  });
  return H;
}

/** The start of all chains as a Gaussian over y: at one point θ, or drawn from the target; momenta and memory follow. */
export function startLaw(chain, dynamics, K, mean, point) {
  const covariance = zeros(chain.size, chain.size);
  const at = new Array(chain.size).fill(0);
  if (point) {
    point.forEach((value, i) => { at[i] = value - mean[i]; });
    return { mean: at, covariance };
  }
  inverse(K).forEach((row, i) => row.forEach((value, j) => { covariance[i][j] = value; }));
  if (dynamics.augmented) covariance[2][2] = covariance[3][3] = 1;
  return { mean: at, covariance };
}

/** The largest step size at which second moments converge, or at which the noise can be drawn, if that is smaller. */
export function largestStep(scheme, dynamics, K, tau) {
  if (scheme === "balanced") return balancedLimit(dynamics, K, tau);
  const fits = (eta) => {
    const chain = linearChain(scheme, dynamics, eta, K, tau);
    return !chain.error && spectralRadius(chain.M) < 1;
  };
  let low = [1e-6, 1e-9].find(fits);
  if (!low) return NaN;
  let high = low;
  while (fits(high) && high < 1e3) high *= 1.3;
  low = high / 1.3;
  for (let k = 0; k < 40; k++) {
    const middle = (low + high) / 2;
    if (fits(middle)) low = middle;
    else high = middle;
  }
  return low;
}


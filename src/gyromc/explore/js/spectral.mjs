// V, bias and variance on targets that are not Gaussian: the Poisson equation and the chain's own law in polynomials (T2).
// Each number comes with an error: twice what the solution changes when the degree is lowered, or what it changes when the degree
// is lowered twice, if that is more.

import { add, scaled, times, transpose } from "./linear.mjs";
import { evaluateAt, orthonormal, product, projections, size, solveFlat } from "./polynomials.mjs";
import { stepMatrices } from "./schemes.mjs";
import { curvature, evaluate } from "./targets.mjs";

const DEGREE = 15; // of polynomials of two variables
const LOWER = 3; // by how much the check lowers it
const DEGREE_4 = 10; // of polynomials in (θ, r)
const LOWER_4 = 2;
const STORED = 64; // steps whose matrices are kept

const known = (value, lower, lowest = value) => ({
  value,
  error: Math.max(2 * Math.abs(value - lower), Math.abs(value - lowest)), // two degrees alone may agree by chance
});
export const UNKNOWN = { value: NaN, error: Infinity };

/** The basis of a law on the plane, computed once. */
function* basisOf(law) {
  law.basis ??= yield* orthonormal(law.grid, DEGREE);
  return law.basis;
}

/** The polynomials of a basis up to a lower degree. */
function leading(basis, degree) {
  if (degree === basis.degree) return basis;
  const n = size(degree);
  const corner = (A) => Float64Array.from({ length: n * n }, (_, k) => A[Math.floor(k / n) * basis.n + (k % n)]);
  const { steps, values, derivatives } = basis;
  return { ...basis, degree, n, steps: steps.slice(0, n), values: values.slice(0, n), derivatives: derivatives.map(corner) };
}

/** The coefficients ⟨ψ_a, h⟩. */
function* coefficientsOf(basis, h) {
  const { grid, w } = basis;
  const values = Float64Array.from(w, (_, k) => evaluate(h, grid.tx[k], grid.ty[k]));
  return { values, b: yield* projections(basis, [values]) };
}

/** V of the diffusion on a law of the plane, G a 2 × 2 matrix D + Q (E6). */
export function* planeVariance(law, G, h) {
  const basis = yield* basisOf(law);
  const { b } = yield* coefficientsOf(basis, h);
  const { n, derivatives: [X, Y] } = basis;
  const form = new Float64Array(n * n);
  for (const [i, A] of [X, Y].entries()) {
    for (const [j, B] of [X, Y].entries()) {
      if (G[i][j] === 0) continue;
      const part = product(A, B, n, true); // ⟨∂_iψ_a, ∂_jψ_b⟩
      for (let k = 0; k < form.length; k++) form[k] += G[i][j] * part[k];
      yield;
    }
  }
  const at = (m) => quadratic(form, n, b, m);
  return known(yield* at(n), yield* at(size(DEGREE - LOWER)), yield* at(size(DEGREE - 2 * LOWER)));
}

/** 2 bᵀ A⁻¹ b with the first m functions, the constant left out. */
function* quadratic(form, n, b, m) {
  const A = new Float64Array((m - 1) ** 2);
  for (let i = 1; i < m; i++) for (let j = 1; j < m; j++) A[(i - 1) * (m - 1) + j - 1] = form[i * n + j];
  const x = yield* solveFlat(A, m - 1, b.slice(1, m));
  let sum = 0;
  for (let i = 1; i < m; i++) sum += b[i] * x[i - 1];
  return 2 * sum; // E6
}

/**
 * The chain z⁺ = z - ηG∇H + w, Cov(w) = W, on a law of the plane: bias of its stationary law, lim N·Var of its averages.
 */
export function* planeChain(law, G, eta, W, h, degree = DEGREE) {
  const basis = leading(yield* basisOf(law), degree);
  const K = yield* kept(law, JSON.stringify([G, eta, W, degree]), () => transition(basis, G, eta, W));
  const { values, b } = yield* coefficientsOf(basis, h);
  const at = (m) => ofChain(basis, K, values, b, m);
  const [full, lower, lowest] = [yield* at(basis.n), yield* at(size(degree - LOWER)), yield* at(size(degree - 2 * LOWER))];
  const of = (name) => known(full[name], lower[name], lowest[name]);
  return { bias: of("bias"), variance: of("variance") };
}

/** What `compute` gives, stored under a key: several observables share a step. */
function* kept(law, key, compute) {
  law.stored ??= new Map();
  if (!law.stored.has(key)) {
    const found = yield* compute();
    if (law.stored.size >= STORED) law.stored.delete(law.stored.keys().next().value);
    law.stored.set(key, found);
  }
  return law.stored.get(key);
}

/** ⟨ψ_a, Pψ_b⟩ of the step P: the noise first, exactly, then the drift on the nodes. */
function* transition(basis, G, eta, W) {
  const { n, grid, w } = basis;
  const moved = [0, 1].map((i) => Float64Array.from(w, (_, k) =>
    (i ? grid.y[k] : grid.x[k]) - eta * (G[i][0] * grid.gx[k] + G[i][1] * grid.gy[k])));
  const drifted = yield* projections(basis, yield* evaluateAt(basis, moved));
  return product(drifted, heat(basis, W), n);
}

/** f ↦ E f(z + w) for w ~ N(0, W) on polynomials: the exponential of ½ Σ W_ij ∂_i∂_j, a finite sum. */
function heat(basis, W) {
  const { n, degree, derivatives: [X, Y] } = basis;
  const generator = new Float64Array(n * n);
  for (const [i, A] of [X, Y].entries()) {
    for (const [j, B] of [X, Y].entries()) product(A, B, n).forEach((v, k) => { generator[k] += 0.5 * W[i][j] * v; });
  }
  let term = Float64Array.from({ length: n * n }, (_, k) => (k % (n + 1) === 0 ? 1 : 0));
  const out = term.slice();
  for (let k = 1; 2 * k <= degree; k++) {
    term = product(term, generator, n).map((v) => v / k);
    term.forEach((v, place) => { out[place] += v; });
  }
  return out;
}

function* ofChain(basis, K, values, b, m) {
  const { n, w } = basis;
  const rest = (transposed) => {
    const A = new Float64Array((m - 1) ** 2);
    for (let i = 1; i < m; i++) {
      for (let j = 1; j < m; j++) {
        A[(i - 1) * (m - 1) + j - 1] = (i === j ? 1 : 0) - (transposed ? K[j * n + i] : K[i * n + j]);
      }
    }
    return A;
  };
  const density = yield* solveFlat(rest(true), m - 1, K.slice(1, m)); // Σ_a c_a(δ_ab - K_ab) = K_0b
  let bias = 0;
  for (let a = 1; a < m; a++) bias += density[a - 1] * b[a];
  const potential = yield* solveFlat(rest(false), m - 1, b.slice(1, m)); // (I-P)f = h - π(h)
  const mean = b[0] + bias;
  let twice = 0;
  let variance = 0;
  for (let k = 0; k < w.length; k++) {
    let [ratio, f] = [1, 0];
    for (let a = 1; a < m; a++) {
      ratio += density[a - 1] * basis.values[a][k];
      f += potential[a - 1] * basis.values[a][k];
    }
    const away = values[k] - mean;
    twice += w[k] * ratio * away * f;
    variance += w[k] * ratio * away * away;
  }
  return { bias, variance: 2 * twice - variance };
}

/** V on (θ, r) ∈ R⁴: polynomials in θ times Hermite polynomials in r, of a total degree. */
export function* momentumVariance(target, G, h) {
  const basis = yield* basisOf(target);
  const { b } = yield* coefficientsOf(basis, h);
  const at = (degree) => inFour(basis, G, b, degree);
  return known(yield* at(DEGREE_4), yield* at(DEGREE_4 - LOWER_4));
}

function* inFour(basis, G, b, degree) {
  const { n, steps, derivatives } = basis;
  const functions = [];
  const places = new Map();
  for (let a = 0; a < size(degree); a++) {
    for (let i = 0; i + steps[a].total <= degree; i++) {
      for (let j = 0; i + j + steps[a].total <= degree; j++) {
        if (a + i + j === 0) continue; // the constant
        places.set(`${a},${i},${j}`, functions.length);
        functions.push([a, i, j]);
      }
    }
  }
  const m = functions.length;
  const A = new Float64Array(m * m);
  const plane = [0, 1].map((k) => [0, 1].map((l) => product(derivatives[k], derivatives[l], n, true)));
  const top = size(degree);
  const put = (row, a, i, j, value) => {
    const column = value && i >= 0 && j >= 0 ? places.get(`${a},${i},${j}`) : undefined;
    if (column !== undefined) A[row * m + column] += value;
  };
  for (let row = 0; row < m; row++) {
    const [a, i, j] = functions[row];
    put(row, a, i, j, G[2][2] * i + G[3][3] * j); // ⟨∂_r, ∂_r⟩
    for (let c = 0; c < top; c++) {
      let same = 0;
      for (let k = 0; k < 2; k++) for (let l = 0; l < 2; l++) same += G[k][l] * plane[k][l][a * n + c];
      put(row, c, i, j, same);
      for (let k = 0; k < 2; k++) {
        const [here, there] = [derivatives[k][c * n + a], derivatives[k][a * n + c]];
        put(row, c, i + 1, j, G[k][2] * here * Math.sqrt(i + 1)); // ⟨∂_θ f, ∂_r g⟩: r lowers the degree of g
        put(row, c, i, j + 1, G[k][3] * here * Math.sqrt(j + 1));
        put(row, c, i - 1, j, G[2][k] * there * Math.sqrt(i)); // ⟨∂_r f, ∂_θ g⟩
        put(row, c, i, j - 1, G[3][k] * there * Math.sqrt(j));
      }
    }
    if (row % 16 === 15) yield;
  }
  const right = Float64Array.from(functions, ([a, i, j]) => (i + j ? 0 : b[a]));
  const x = yield* solveFlat(A, m, right);
  return 2 * right.reduce((sum, v, k) => sum + v * x[k], 0); // E6
}

/** The law of (θ_i, r_i) alone, for a separable target: U_i(θ_i) + ½r_i². */
function alone(target, axis) {
  target.alone ??= [];
  target.alone[axis] ??= { grid: gridAlone(target.grid, axis) };
  return target.alone[axis];
}

/** The grid of θ_i from that of θ, times a grid for r_i. */
function gridAlone(grid, axis) {
  const marginal = new Map();
  const [x, g] = axis ? [grid.y, grid.gy] : [grid.x, grid.gx];
  for (let k = 0; k < grid.count; k++) {
    const entry = marginal.get(x[k]) ?? [0, g[k]];
    entry[0] += grid.w[k];
    marginal.set(x[k], entry);
  }
  const nodes = 60;
  const momenta = Array.from({ length: nodes }, (_, j) => -8.4 + (16.8 * j) / (nodes - 1));
  const rows = [];
  for (const [theta, [weight, slope]] of marginal) {
    for (const r of momenta) {
      const w = weight * Math.exp(-0.5 * r * r);
      if (w > 1e-17) rows.push([theta, r, w, slope]);
    }
  }
  const total = rows.reduce((sum, row) => sum + row[2], 0);
  const column = (f) => Float64Array.from(rows, f);
  const out = { count: rows.length, x: column((row) => row[0]), y: column((row) => row[1]), w: column((row) => row[2] / total) };
  out.gx = column((row) => row[3]);
  [out.gy, out.tx, out.ty] = [out.y, out.x, out.y];
  out.mean = [grid.mean[axis], 0];
  out.covariance = [[grid.covariance[axis][axis], 0], [0, 1]];
  return out;
}

const block = (A, axis) => [axis, axis + 2].map((i) => [axis, axis + 2].map((j) => A[i][j]));
const usesOne = (h) => h.u.filter((v) => v !== 0).length === 1;

/** Parts of h that live on one coordinate each: h itself, or the terms of a linear sum. */
function split(h) {
  if (!usesOne(h) && h.square) return null;
  return h.u.flatMap((v, axis) => (v ? [{ axis, factor: h.square ? v * v : v, h: { u: [1, 0], square: h.square } }] : []));
}

function* summed(parts, compute) {
  const total = {};
  for (const part of parts) {
    const found = yield* compute(part);
    for (const [name, { value, error }] of Object.entries(found)) {
      const factor = name === "bias" ? part.factor : part.factor ** 2;
      total[name] ??= { value: 0, error: 0 };
      total[name].value += factor * value;
      total[name].error += Math.abs(factor) * error;
    }
  }
  return total;
}

/** V(h) of the diffusion, as { value, error }. */
export function* variance(target, dynamics, h) {
  if (!dynamics.augmented) return yield* planeVariance(target, dynamics.G, h);
  const parts = target.separable ? split(h) : null;
  if (!parts) return yield* momentumVariance(target, dynamics.G, h);
  const found = yield* summed(parts, function* ({ axis, h: own }) {
    return { variance: yield* planeVariance(alone(target, axis), block(dynamics.G, axis), own) };
  });
  return found.variance;
}

/** Why bias and variance at a finite step are not computed, or null. */
export function whyNoChain(target, dynamics, scheme, h) {
  if (scheme !== "euler" && scheme !== "balanced") return "this scheme has a memory";
  if (target.superlinear) return "the gradient grows faster than linearly";
  if (dynamics.augmented && !(target.separable && split(h))) return "the state has four coupled coordinates";
  return null;
}

/** Bias and lim N·Var at a step size, as { bias, variance } with errors; both unknown where `whyNoChain` has a reason. */
export function* chain(target, dynamics, scheme, eta, tau, h, degree = DEGREE) {
  if (whyNoChain(target, dynamics, scheme, h)) return { bias: UNKNOWN, variance: UNKNOWN };
  const step = stepMatrices(scheme, dynamics, eta, curvature(target), tau);
  if (step.error) return { bias: UNKNOWN, variance: UNKNOWN };
  const kicks = dynamics.G.map((row) => row.slice(0, 2));
  const W = add(times(step.C, transpose(step.C)), times(scaled(kicks, (eta * tau) ** 2), transpose(kicks)));
  if (!dynamics.augmented) return yield* planeChain(target, dynamics.G, eta, W, h, degree);
  return yield* summed(split(h), ({ axis, h: own }) =>
    planeChain(alone(target, axis), block(dynamics.G, axis), eta, block(W, axis), own, degree));
}

/** Run a computation to its end at once. */
export function finish(generator) {
  for (;;) {
    const { value, done } = generator.next();
    if (done) return value;
  }
}


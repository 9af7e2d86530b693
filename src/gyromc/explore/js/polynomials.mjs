// Polynomials in two variables, orthonormal under a law given by nodes and weights.
// Built one after another by multiplying an earlier one with a coordinate, then taking off its projections.
// Functions with a star yield now and then, so that the page can draw between two parts of a long computation.

/** (i, j) by total degree, each with the polynomial and the coordinate that it is built from. */
function ladder(degree) {
  const places = new Map();
  const steps = [];
  for (let total = 0; total <= degree; total++) {
    for (let j = 0; j <= total; j++) {
      const i = total - j;
      places.set(`${i},${j}`, steps.length);
      if (!total) steps.push({ total, axis: -1, parent: -1 });
      else if (i > 0) steps.push({ total, axis: 0, parent: places.get(`${i - 1},${j}`) });
      else steps.push({ total, axis: 1, parent: places.get(`0,${j - 1}`) });
    }
  }
  return steps;
}

/** How many polynomials of two variables have at most this degree. */
export const size = (degree) => ((degree + 1) * (degree + 2)) / 2;

function dotWeighted(w, a, b) {
  let sum = 0;
  for (let k = 0; k < w.length; k++) sum += w[k] * a[k] * b[k];
  return sum;
}

/** The basis of a degree: its values on the nodes, its recursion, and the matrices ⟨ψ_a, ∂ψ_b⟩ of both derivatives. */
export function* orthonormal(grid, degree) {
  const count = grid.count;
  const w = grid.w.subarray(0, count);
  const [center, spread] = [grid.mean, grid.covariance.map((row, i) => Math.sqrt(row[i]))];
  const coordinates = [grid.x, grid.y].map((x, axis) =>
    Float64Array.from(x.subarray(0, count), (v) => (v - center[axis]) / spread[axis]));
  const steps = ladder(degree);
  const values = [];
  const slopes = [[], []];
  for (const step of steps) {
    const { axis, parent } = step;
    if (parent < 0) {
      values.push(new Float64Array(count).fill(1));
      slopes.forEach((list) => list.push(new Float64Array(count)));
      continue;
    }
    const X = coordinates[axis];
    const v = Float64Array.from(values[parent], (value, k) => value * X[k]);
    const derived = slopes.map((list, which) =>
      Float64Array.from(list[parent], (value, k) => value * X[k] + (which === axis ? values[parent][k] / spread[axis] : 0)));
    step.coefficients = new Float64Array(values.length);
    for (let pass = 0; pass < 2; pass++) {
      for (let j = 0; j < values.length; j++) {
        const c = dotWeighted(w, v, values[j]);
        step.coefficients[j] += c;
        const other = values[j];
        for (let k = 0; k < count; k++) v[k] -= c * other[k];
      }
    }
    for (let j = 0; j < values.length; j++) {
      const c = step.coefficients[j];
      if (Math.abs(c) < 1e-14) continue;
      for (let which = 0; which < 2; which++) {
        const [to, from] = [derived[which], slopes[which][j]];
        for (let k = 0; k < count; k++) to[k] -= c * from[k];
      }
    }
    step.norm = Math.sqrt(dotWeighted(w, v, v));
    values.push(v.map((value) => value / step.norm));
    derived.forEach((list, which) => slopes[which].push(list.map((value) => value / step.norm)));
    yield;
  }
  const basis = { degree, steps, n: steps.length, values, center, spread, grid, w };
  basis.derivatives = [];
  for (const list of slopes) basis.derivatives.push(yield* projections(basis, list));
  return basis;
}

/** ⟨ψ_a, f_b⟩ for functions f_b on the nodes, as a flat n × m matrix. */
export function* projections(basis, functions) {
  const { n, values, w } = basis;
  const out = new Float64Array(n * functions.length);
  for (let b = 0; b < functions.length; b++) {
    const weighted = functions[b].map((value, k) => value * w[k]);
    for (let a = 0; a < n; a++) {
      let sum = 0;
      const psi = values[a];
      for (let k = 0; k < w.length; k++) sum += psi[k] * weighted[k];
      out[a * functions.length + b] = sum;
    }
    if (b % 4 === 3) yield;
  }
  return out;
}

/** The values of all polynomials at other points. */
export function* evaluateAt(basis, points) {
  const count = points[0].length;
  const X = points.map((x, axis) => x.map((v) => (v - basis.center[axis]) / basis.spread[axis]));
  const values = [];
  for (const { axis, parent, coefficients, norm } of basis.steps) {
    if (parent < 0) {
      values.push(new Float64Array(count).fill(1));
      continue;
    }
    const v = Float64Array.from(values[parent], (value, k) => value * X[axis][k]);
    for (let j = 0; j < values.length; j++) {
      const c = coefficients[j];
      if (Math.abs(c) < 1e-14) continue;
      const other = values[j];
      for (let k = 0; k < count; k++) v[k] -= c * other[k];
    }
    values.push(v.map((value) => value / norm));
    yield;
  }
  return values;
}

/** A flat n × n product. */
export function product(A, B, n, transposed = false) {
  const out = new Float64Array(n * n);
  for (let i = 0; i < n; i++) {
    for (let k = 0; k < n; k++) {
      const a = transposed ? A[k * n + i] : A[i * n + k];
      if (a === 0) continue;
      for (let j = 0; j < n; j++) out[i * n + j] += a * B[k * n + j];
    }
  }
  return out;
}

/** x with A x = b for a flat n × n matrix, which is overwritten; `stride` is the length of its rows. */
export function* solveFlat(A, n, b) {
  const x = Float64Array.from(b);
  for (let k = 0; k < n; k++) {
    let pivot = k;
    for (let i = k + 1; i < n; i++) if (Math.abs(A[i * n + k]) > Math.abs(A[pivot * n + k])) pivot = i;
    if (!(Math.abs(A[pivot * n + k]) > 0)) return x.fill(NaN);
    if (pivot !== k) {
      for (let j = k; j < n; j++) [A[k * n + j], A[pivot * n + j]] = [A[pivot * n + j], A[k * n + j]];
      [x[k], x[pivot]] = [x[pivot], x[k]];
    }
    const own = A.subarray(k * n, k * n + n);
    for (let i = k + 1; i < n; i++) {
      const row = A.subarray(i * n, i * n + n);
      const factor = row[k] / own[k];
      if (factor === 0) continue;
      for (let j = k + 1; j < n; j++) row[j] -= factor * own[j];
      x[i] -= factor * x[k];
    }
    if (k % 8 === 7) yield;
  }
  for (let k = n - 1; k >= 0; k--) {
    for (let j = k + 1; j < n; j++) x[k] -= A[k * n + j] * x[j];
    x[k] /= A[k * n + k];
  }
  return x;
}

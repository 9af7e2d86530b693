// Small dense matrices as arrays of rows: products, solves, roots, Lyapunov equations.

export const zeros = (m, n) => Array.from({ length: m }, () => new Array(n).fill(0));
export const diagonal = (values) => values.map((v, i) => values.map((_, j) => (i === j ? v : 0)));
export const identity = (n) => diagonal(new Array(n).fill(1));
export const transpose = (A) => A[0].map((_, j) => A.map((row) => row[j]));
export const add = (A, B, s = 1) => A.map((row, i) => row.map((a, j) => a + s * B[i][j]));
export const scaled = (A, s) => A.map((row) => row.map((a) => s * a));
export const dot = (x, y) => x.reduce((sum, v, i) => sum + v * y[i], 0);
export const apply = (A, x) => A.map((row) => dot(row, x));
export const outer = (x, y) => x.map((a) => y.map((b) => a * b));
export const trace = (A) => A.reduce((sum, row, i) => sum + row[i], 0);
export const largest = (A) => A.reduce((m, row) => row.reduce((k, a) => Math.max(k, Math.abs(a)), m), 0);
export const symmetric = (A) => A.map((row, i) => row.map((a, j) => (a + A[j][i]) / 2));

/** The product of two or more matrices. */
export function times(A, B, ...more) {
  const inner = B.length;
  const out = A.map((row) => {
    const line = new Array(B[0].length).fill(0);
    for (let k = 0; k < inner; k++) {
      const a = row[k];
      if (a === 0) continue;
      const from = B[k];
      for (let j = 0; j < line.length; j++) line[j] += a * from[j];
    }
    return line;
  });
  return more.length ? times(out, ...more) : out;
}

/** A B Aᵀ. */
export const sandwich = (A, B) => times(A, B, transpose(A));

/** The sum of all entries of A∘B: tr(AᵀB). */
export const inner = (A, B) => A.reduce((sum, row, i) => sum + dot(row, B[i]), 0);

/** X with A X = B, by elimination with row pivots; null where A is singular. */
export function solve(A, B) {
  const n = A.length;
  const rows = A.map((row, i) => [...row, ...B[i]]);
  for (let k = 0; k < n; k++) {
    let pivot = k;
    for (let i = k + 1; i < n; i++) if (Math.abs(rows[i][k]) > Math.abs(rows[pivot][k])) pivot = i;
    if (!(Math.abs(rows[pivot][k]) > 0)) return null;
    [rows[k], rows[pivot]] = [rows[pivot], rows[k]];
    for (let i = k + 1; i < n; i++) {
      const factor = rows[i][k] / rows[k][k];
      if (factor === 0) continue;
      for (let j = k; j < rows[i].length; j++) rows[i][j] -= factor * rows[k][j];
    }
  }
  for (let k = n - 1; k >= 0; k--) {
    for (let j = n; j < rows[k].length; j++) {
      let value = rows[k][j];
      for (let i = k + 1; i < n; i++) value -= rows[k][i] * rows[i][j];
      rows[k][j] = value / rows[k][k];
    }
  }
  return rows.map((row) => row.slice(n));
}

export const inverse = (A) => solve(A, identity(A.length));
export const solveVector = (A, b) => solve(A, b.map((v) => [v]))?.map((row) => row[0]) ?? null;

/** Eigenvalues (ascending) and eigenvectors (columns) of a symmetric matrix, by Jacobi rotations. */
export function eigen(S) {
  const n = S.length;
  const A = symmetric(S);
  const V = identity(n);
  for (let sweep = 0; sweep < 60; sweep++) {
    let off = 0;
    for (let p = 0; p < n; p++) for (let q = p + 1; q < n; q++) off += A[p][q] ** 2;
    if (off < 1e-30 * (largest(A) ** 2 || 1)) break;
    for (let p = 0; p < n; p++) for (let q = p + 1; q < n; q++) rotate(A, V, p, q);
  }
  const order = A.map((_, i) => i).sort((i, j) => A[i][i] - A[j][j]);
  return { values: order.map((i) => A[i][i]), vectors: V.map((row) => order.map((i) => row[i])) };
}

function rotate(A, V, p, q) {
  if (A[p][q] === 0) return;
  const n = A.length;
  const ratio = (A[q][q] - A[p][p]) / (2 * A[p][q]);
  const t = Math.sign(ratio || 1) / (Math.abs(ratio) + Math.hypot(ratio, 1));
  const c = 1 / Math.hypot(t, 1);
  const s = t * c;
  for (let k = 0; k < n; k++) [A[k][p], A[k][q]] = [c * A[k][p] - s * A[k][q], s * A[k][p] + c * A[k][q]];
  for (let k = 0; k < n; k++) [A[p][k], A[q][k]] = [c * A[p][k] - s * A[q][k], s * A[p][k] + c * A[q][k]];
  for (let k = 0; k < n; k++) [V[k][p], V[k][q]] = [c * V[k][p] - s * V[k][q], s * V[k][p] + c * V[k][q]];
}

/** A symmetric root of a covariance; null where it has a negative eigenvalue beyond rounding. */
export function root(W, scale = largest(W)) {
  const { values, vectors } = eigen(W);
  if (values[0] < -1e-12 * scale) return null;
  return sandwich(vectors, diagonal(values.map((v) => Math.sqrt(Math.max(v, 0)))));
}

/** The spectral radius of M, from the norm of a high power. */
export function spectralRadius(M) {
  let power = M;
  let logarithm = 0;
  const squarings = 40; // the norm of the power, not its root, is off by a factor: 2⁻⁴⁰ of its logarithm is left
  for (let k = 0; k < squarings; k++) {
    const size = largest(power);
    if (size === 0) return 0;
    if (!Number.isFinite(size)) return Infinity;
    logarithm = 2 * (logarithm + Math.log(size));
    const unit = scaled(power, 1 / size);
    power = times(unit, unit);
  }
  const size = largest(power);
  return size === 0 ? 0 : Math.exp((logarithm + Math.log(size)) / 2 ** squarings);
}

/** X = M X Mᵀ + W by doubling; null where the spectral radius of M is 1 or more. */
export function discreteLyapunov(M, W) {
  let X = W;
  let power = M;
  for (let k = 0; k < 64; k++) {
    const more = sandwich(power, X);
    X = add(X, more);
    power = times(power, power);
    const size = largest(power);
    if (!(size < 1e150) || !Number.isFinite(largest(X))) return null;
    if (size < 1e-20) return symmetric(X);
  }
  return null;
}

/** X with A X + X B = S, both square, by one linear system. */
export function sylvester(A, B, S) {
  const n = A.length;
  const m = B.length;
  const system = zeros(n * m, n * m);
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < m; j++) {
      for (let k = 0; k < n; k++) system[i * m + j][k * m + j] += A[i][k];
      for (let k = 0; k < m; k++) system[i * m + j][i * m + k] += B[k][j];
    }
  }
  const flat = solveVector(system, S.flat());
  return flat && zeros(n, m).map((row, i) => row.map((_, j) => flat[i * m + j]));
}

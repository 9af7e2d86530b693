// Chains that move: y⁺ = A y + B ĝ + C ξ for every chain, with seeded noise, and the averages of an observable.

import { Random } from "./random.mjs";
import { evaluate } from "./targets.mjs";

const LOST = 1e6; // |θ| beyond which a chain has gone to infinity
const TRAILS = 48; // chains whose last positions are kept
const LENGTH = 14; // positions

/** The nonzero entries of a matrix as flat lists. */
function sparse(A) {
  const [rows, columns, values] = [[], [], []];
  A.forEach((row, i) => row.forEach((v, j) => {
    if (v === 0) return;
    rows.push(i);
    columns.push(j);
    values.push(v);
  }));
  return { rows: Int32Array.from(rows), columns: Int32Array.from(columns), values: Float64Array.from(values) };
}

function accumulate({ rows, columns, values }, x, offset, out) {
  for (let k = 0; k < values.length; k++) out[rows[k]] += values[k] * x[offset + columns[k]];
}

/** The chains of one dynamics and scheme. `point` is null where they start at draws of the target. */
export class Chains {
  constructor({ target, dynamics, step, tau, count, seed, h, point }) {
    Object.assign(this, { target, dynamics, tau, count, h });
    this.A = sparse(step.A);
    this.B = sparse(step.B);
    this.C = sparse(step.C);
    this.size = step.A.length;
    this.y = new Float64Array(count * this.size);
    this.sums = new Float64Array(count);
    this.lost = new Uint8Array(count);
    this.t = 0;
    this.trail = new Float64Array(Math.min(count, TRAILS) * LENGTH * 2).fill(NaN);
    this.random = new Random(seed);
    this.buffers = { g: new Float64Array(4), xi: new Float64Array(4), next: new Float64Array(this.size), out: [0, 0] };
    this.place(point);
  }

  place(point) {
    const random = new Random(this.random.word());
    for (let c = 0; c < this.count; c++) {
      const [x, y] = point ?? this.target.draw(random);
      const base = c * this.size;
      this.y[base] = x;
      this.y[base + 1] = y;
      if (this.dynamics.augmented && !point) {
        this.y[base + 2] = random.normal();
        this.y[base + 3] = random.normal();
      }
    }
  }

  /** Average the present states, then make one step. */
  advance() {
    const { size, y, tau, dynamics, target, random, buffers: { g, xi, next, out } } = this;
    for (let c = 0; c < this.count; c++) {
      const base = c * size;
      for (let i = 0; i < dynamics.n; i++) xi[i] = random.normal();
      const shake = tau > 0 ? [random.normal(), random.normal()] : null;
      if (this.lost[c]) continue;
      this.sums[c] += evaluate(this.h, ...this.position(c, 0, 1));
      target.gradient(y[base], y[base + 1], out);
      [g[0], g[1]] = out;
      if (shake) {
        g[0] += tau * shake[0];
        g[1] += tau * shake[1];
      }
      if (dynamics.augmented) [g[2], g[3]] = [y[base + 2], y[base + 3]];
      next.fill(0);
      accumulate(this.A, y, base, next);
      accumulate(this.B, g, 0, next);
      accumulate(this.C, xi, 0, next);
      for (let i = 0; i < size; i++) y[base + i] = next[i];
      if (!(Math.abs(next[0]) < LOST && Math.abs(next[1]) < LOST)) this.lost[c] = 1;
    }
    this.t += 1;
  }

  /** Where a chain is, in the coordinates i and j of the state; as θ where it moves in others. */
  position(c, i, j) {
    const [x, y] = [this.y[c * this.size + i], this.y[c * this.size + j]];
    return this.target.map ? this.target.map(x, y) : [x, y];
  }

  /** Keep the present positions (coordinates i and j of the state) for the trails. */
  remember(i, j) {
    const kept = Math.min(this.count, TRAILS);
    this.trail.copyWithin(2 * kept, 0, 2 * kept * (LENGTH - 1));
    for (let c = 0; c < kept; c++) {
      [this.trail[2 * c], this.trail[2 * c + 1]] = this.position(c, i, j);
    }
  }

  get trails() {
    return { kept: Math.min(this.count, TRAILS), length: LENGTH };
  }

  /** The mean over chains of their averages, its standard error, the mean square about `truth`, and the chains lost. */
  summary(truth) {
    let [sum, square, error, left] = [0, 0, 0, 0];
    for (let c = 0; c < this.count; c++) {
      if (this.lost[c]) continue;
      const average = this.sums[c] / this.t;
      sum += average;
      square += average * average;
      error += (average - truth) ** 2;
      left += 1;
    }
    const mean = sum / left;
    const spread = left > 1 ? Math.max(square / left - mean * mean, 0) * (left / (left - 1)) : NaN;
    return { mean, stdError: Math.sqrt(spread / left), meanSquare: error / left, lost: this.count - left };
  }
}

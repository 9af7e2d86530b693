// The gallery: laws exp(-U) on the plane, with gradients, exact draws, and a grid for integrals.

import { apply, eigen, inverse, root } from "./linear.mjs";

/** R diag(1, κ) Rᵀ: the long axis has standard deviation 1 and the given angle. */
export function precision(kappa, degrees) {
  const [c, s] = [Math.cos((degrees * Math.PI) / 180), Math.sin((degrees * Math.PI) / 180)];
  return [
    [c * c + kappa * s * s, (1 - kappa) * c * s],
    [(1 - kappa) * c * s, s * s + kappa * c * c],
  ];
}

function gaussian({ kappa, angle }) {
  const K = precision(kappa, angle);
  const half = root(inverse(K));
  return {
    gaussian: { K, mean: [0, 0] },
    potential: (x, y) => 0.5 * (K[0][0] * x * x + 2 * K[0][1] * x * y + K[1][1] * y * y),
    gradient: (x, y, out) => { out[0] = K[0][0] * x + K[0][1] * y; out[1] = K[1][0] * x + K[1][1] * y; },
    draw: (random) => apply(half, [random.normal(), random.normal()]),
  };
}

function cosine({ beta }) {
  const one = (random) => {
    for (;;) {
      const x = random.normal();
      if (random.uniform() < Math.exp(-beta * (1 + Math.cos(x)))) return x;
    }
  };
  return {
    separable: true,
    potential: (x, y) => 0.5 * (x * x + y * y) + beta * (Math.cos(x) + Math.cos(y)),
    gradient: (x, y, out) => { out[0] = x - beta * Math.sin(x); out[1] = y - beta * Math.sin(y); },
    draw: (random) => [one(random), one(random)],
  };
}

const WIDTH = 0.5; // of the banana, across

function banana({ bend }) {
  const middle = (x) => bend * (x * x - 1);
  return {
    superlinear: bend !== 0,
    potential: (x, y) => 0.5 * (x * x + ((y - middle(x)) / WIDTH) ** 2),
    gradient: (x, y, out) => {
      out[1] = (y - middle(x)) / WIDTH ** 2;
      out[0] = x - 2 * bend * x * out[1];
    },
    draw: (random) => {
      const x = random.normal();
      return [x, middle(x) + WIDTH * random.normal()];
    },
    straight: (x, v) => [x, v + middle(x)], // keeps areas; the law is a Gaussian in (x, v)
  };
}

function mixture({ distance }) {
  const half = distance / 2;
  return {
    separable: true,
    potential: (x, y) => {
      const far = Math.abs(x) + half;
      const near = Math.abs(x) - half;
      return 0.5 * (near * near + y * y) - Math.log1p(Math.exp((near * near - far * far) / 2)) + Math.LN2;
    },
    gradient: (x, y, out) => { out[0] = x - half * Math.tanh(half * x); out[1] = y; },
    draw: (random) => [(random.uniform() < 0.5 ? -half : half) + random.normal(), random.normal()],
  };
}

/** θ is the coefficient minus the mode, over its standard deviation at the mode. */
function logistic(_, data) {
  const { rows, mode, scale } = data;
  const softplus = (t) => Math.max(t, 0) + Math.log1p(Math.exp(-Math.abs(t)));
  const potential = (x, y) => {
    const [b0, b1] = [mode[0] + scale[0] * x, mode[1] + scale[1] * y];
    let total = 0.5 * (b0 * b0 + b1 * b1);
    for (const [x0, x1, n, k] of rows) {
      const t = x0 * b0 + x1 * b1;
      total += n * softplus(t) - k * t;
    }
    return total;
  };
  const gradient = (x, y, out) => {
    const [b0, b1] = [mode[0] + scale[0] * x, mode[1] + scale[1] * y];
    let [g0, g1] = [b0, b1];
    for (const [x0, x1, n, k] of rows) {
      const miss = n / (1 + Math.exp(-(x0 * b0 + x1 * b1))) - k;
      g0 += miss * x0;
      g1 += miss * x1;
    }
    out[0] = scale[0] * g0;
    out[1] = scale[1] * g1;
  };
  return { potential, gradient };
}

const MAKE = { gaussian, cosine, banana, mixture, logistic };
export const TARGETS = {
  gaussian: "Gaussian",
  cosine: "Cosine",
  banana: "Banana",
  mixture: "Mixture of two",
  logistic: "Heart data, logistic",
};

/** The target of the page's settings, with its box and the moments that a grid gives. */
export function makeTarget(settings, data) {
  const target = { name: settings.target, ...MAKE[settings.target](settings, data) };
  target.grid = integrate(target);
  target.box = boxOf(target, 9);
  target.draw ??= rejection(target);
  return target;
}

/** Bent coordinates: θ = T(z) = (z₁, z₂ + c(z₁² - 1)), which keeps areas, so that log |det T′| = 0. */
export function bentCoordinates(c) {
  return { c, map: (x, y) => [x, y + c * (x * x - 1)], inverse: (x, y) => [x, y - c * (x * x - 1)] };
}

/** A target `base` over θ as a function of z, θ = T(z) in bent coordinates (T14). */
export function bentTarget(base, settings) {
  const { c, map, inverse: back } = bentCoordinates(settings.straighten);
  const curved = base.name === "banana" ? settings.bend - c : c; // what is left of the bend in z
  const target = {
    ...{ name: base.name, c, map, inverse: back, box: base.box },
    superlinear: curved !== 0,
    potential: (x, y) => base.potential(...map(x, y)),
    gradient: (x, y, out) => {
      base.gradient(...map(x, y), out);
      out[0] += 2 * c * x * out[1]; // T′ᵀ∇U
    },
    draw: (random) => back(...base.draw(random)),
    straight: (u, v) => back(...(base.straight?.(u, v) ?? [u, v])),
  };
  target.grid = integrate(target);
  return target;
}

/** The box around all points of a scan where U is less than `depth` above its least value. */
function boxOf(target, depth, at = (x, y) => [x, y], reach = 12, cells = 96) {
  let least = Infinity;
  const values = [];
  const place = (i) => -reach + (2 * reach * i) / cells;
  for (let i = 0; i <= cells; i++) {
    for (let j = 0; j <= cells; j++) {
      const value = target.potential(...at(place(i), place(j)));
      values.push(value);
      least = Math.min(least, value);
    }
  }
  const box = { left: Infinity, right: -Infinity, bottom: Infinity, top: -Infinity, least };
  values.forEach((value, index) => {
    if (value - least > depth) return;
    const [x, y] = [place(Math.floor(index / (cells + 1))), place(index % (cells + 1))];
    box.left = Math.min(box.left, x);
    box.right = Math.max(box.right, x);
    box.bottom = Math.min(box.bottom, y);
    box.top = Math.max(box.top, y);
  });
  const margin = (2 * reach) / cells;
  return { ...box, left: box.left - margin, right: box.right + margin, bottom: box.bottom - margin, top: box.top + margin };
}

const DEPTH = 34; // exp(-34) is 2e-15
const NODES = 64; // per axis

/** Nodes and weights of the trapezoidal rule for μ, with mean, covariance and E[∇U∇Uᵀ] = E[∇²U]. */
function integrate(target) {
  const at = target.straight ?? ((x, y) => [x, y]);
  const box = boxOf(target, DEPTH, at);
  const count = NODES * NODES;
  const grid = { x: new Float64Array(count), y: new Float64Array(count), w: new Float64Array(count), count: 0 };
  for (const name of ["gx", "gy", "tx", "ty"]) grid[name] = new Float64Array(count);
  const g = [0, 0];
  for (let i = 0; i < NODES; i++) {
    for (let j = 0; j < NODES; j++) {
      const u = box.left + ((box.right - box.left) * i) / (NODES - 1);
      const v = box.bottom + ((box.top - box.bottom) * j) / (NODES - 1);
      const [x, y] = at(u, v);
      const depth = target.potential(x, y) - box.least;
      if (depth > DEPTH + 4) continue;
      target.gradient(x, y, g);
      const k = grid.count++;
      [grid.x[k], grid.y[k], grid.w[k], grid.gx[k], grid.gy[k]] = [x, y, Math.exp(-depth), g[0], g[1]];
      [grid.tx[k], grid.ty[k]] = target.map?.(x, y) ?? [x, y]; // θ, which observables read
    }
  }
  return { ...grid, ...momentsOf(grid) };
}

function momentsOf(grid) {
  let total = 0;
  for (let k = 0; k < grid.count; k++) total += grid.w[k];
  for (let k = 0; k < grid.count; k++) grid.w[k] /= total;
  const mean = (f) => {
    let sum = 0;
    for (let k = 0; k < grid.count; k++) sum += grid.w[k] * f(k);
    return sum;
  };
  const [m, n] = [mean((k) => grid.x[k]), mean((k) => grid.y[k])];
  const cross = mean((k) => (grid.x[k] - m) * (grid.y[k] - n));
  const bend = mean((k) => grid.gx[k] * grid.gy[k]);
  return {
    mean: [m, n],
    covariance: [[mean((k) => (grid.x[k] - m) ** 2), cross], [cross, mean((k) => (grid.y[k] - n) ** 2)]],
    curvature: [[mean((k) => grid.gx[k] ** 2), bend], [bend, mean((k) => grid.gy[k] ** 2)]],
  };
}

const WIDER = 1.3; // the standard deviation of proposals, against the law's own

/** Exact draws by rejection from a wider Gaussian; the bound is the largest ratio on the grid. */
function rejection(target) {
  const { grid } = target;
  const half = root(grid.covariance).map((row) => row.map((v) => WIDER * v));
  const P = inverse(grid.covariance);
  const excess = (x, y) => {
    const [a, b] = [x - grid.mean[0], y - grid.mean[1]];
    return (P[0][0] * a * a + 2 * P[0][1] * a * b + P[1][1] * b * b) / (2 * WIDER ** 2) - target.potential(x, y);
  };
  let bound = -Infinity;
  for (let k = 0; k < grid.count; k++) bound = Math.max(bound, excess(grid.x[k], grid.y[k]));
  bound += 0.01;
  return (random) => {
    for (;;) {
      const [a, b] = apply(half, [random.normal(), random.normal()]);
      const [x, y] = [grid.mean[0] + a, grid.mean[1] + b];
      if (Math.log(random.uniform()) < excess(x, y) - bound) return [x, y];
    }
  };
}

/** The Hessian that schemes and stability use: the Gaussian's own, or E[∇²U]. */
export const curvature = (target) => target.gaussian?.K ?? target.grid.curvature;

/** The smallest and largest eigenvalue of it. */
export const curvatures = (target) => eigen(curvature(target)).values;

/** Observables by name: h(θ) = uᵀθ or (uᵀθ)². */
export const OBSERVABLES = {
  t1: { label: "θ₁", u: [1, 0], square: false },
  t2: { label: "θ₂", u: [0, 1], square: false },
  sum: { label: "θ₁ + θ₂", u: [1, 1], square: false },
  t1sq: { label: "θ₁²", u: [1, 0], square: true },
  t2sq: { label: "θ₂²", u: [0, 1], square: true },
  sumsq: { label: "(θ₁ + θ₂)²", u: [1, 1], square: true },
};

/** h at a point. */
export function evaluate(h, x, y) {
  const t = h.u[0] * x + h.u[1] * y;
  return h.square ? t * t : t;
}

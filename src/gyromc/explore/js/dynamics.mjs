// The dynamics (D, Q) of the page, on θ ∈ R² or on (θ, r) ∈ R⁴, as gyromc.dynamics makes them.

import { shown } from "./charts.mjs";
import { add, diagonal, eigen, identity, inverse, zeros } from "./linear.mjs";

/** A pair (D, Q); `augmented` says whether the state has momenta. */
function pair(D, Q, name, augmented) {
  return { D, Q, G: add(D, Q), n: D.length, name, augmented };
}

const blocks = (a, b, c, d) => [
  [a[0], 0, b[0], 0],
  [0, a[1], 0, b[1]],
  [c[0], 0, d[0], 0],
  [0, c[1], 0, d[1]],
];

export const overdamped = () => pair(identity(2), zeros(2, 2), "reversible", false);

export const rotation = (omega) => pair(identity(2), [[0, -omega], [omega, 0]], "rotation", false);

/** The same in the coordinates z with θ = Rz, RRᵀ = K⁻¹: D = K⁻¹ and Q = RJRᵀ, which is det(R)·J in the plane. */
function whitened(omega, K) {
  const rate = omega / Math.sqrt(K[0][0] * K[1][1] - K[0][1] * K[1][0]);
  return pair(inverse(K), [[0, -rate], [rate, 0]], omega ? "rotation" : "reversible", false);
}

const SMALLER = 10; // V, by the rotation with the least variance

/** The rates ω that are best for a curvature K, D = I, as gyromc.dynamics has them (T4). */
export function bestRates(K) {
  const [low, high] = eigen(K).values;
  return {
    pairing: Math.sqrt(Math.max(0, (2 * high) / (low + high) - 1)),
    fastest: (1.5 * (high - low)) / Math.sqrt(low * high),
    least: Math.sqrt(SMALLER - 1), // V of every linear h falls by 1 + ω², the most that a Q of this size reaches
  };
}

export function hfhr(alpha, gamma) {
  const one = [1, 1];
  const zero = [0, 0];
  return pair(diagonal([alpha, alpha, gamma, gamma]), blocks(zero, [-1, -1], one, zero), "HFHR", true);
}

/** D = [[aC, (I-C)/2], [(I-C)/2, γI]], Q = [[0, -(I+C)/2], [(I+C)/2, 0]] with C = diag(c). */
export function gaul(a, gamma, c) {
  const half = c.map((v) => (1 - v) / 2);
  const turn = c.map((v) => (1 + v) / 2);
  const D = blocks(c.map((v) => a * v), half, half, [gamma, gamma]);
  return pair(D, blocks([0, 0], turn.map((v) => -v), turn, [0, 0]), "GAUL", true);
}

/** The same D without Q. */
export const reversible = (dynamics) =>
  pair(dynamics.D, zeros(dynamics.n, dynamics.n), `${dynamics.name}, Q = 0`, dynamics.augmented); // E5

/** Why D is not positive definite, in a sentence; null where it is. */
export function whyNot(dynamics, settings) {
  if (eigen(dynamics.D).values[0] > 1e-12) return null;
  const { a, gaulGamma: gamma, c1, c2 } = settings;
  const least = Math.max(...[c1, c2].map((c) => (1 - c) ** 2 / (4 * gamma * c)));
  return `D is not positive definite for these a, γ and C. Take a above ${shown(least)} or a larger γ; here a = ${shown(a)}.`;
}

/** Whether chains move in bent coordinates: those of dynamics without momenta can. */
export const bent = ({ coordinates, dynamics }) =>
  coordinates === "bent" && (dynamics === "rotation" || dynamics === "reversible");

/** The dynamics of the page's settings; K: the mean curvature, for coordinates that it whitens. */
export function chosen(settings, K = identity(2)) {
  const { dynamics, omega, alpha, gamma, a, gaulGamma, c1, c2, coordinates } = settings;
  if (coordinates === "white" && (dynamics === "rotation" || dynamics === "reversible")) {
    return whitened(dynamics === "rotation" ? omega : 0, K);
  }
  if (dynamics === "rotation") return rotation(omega);
  if (dynamics === "hfhr") return hfhr(alpha, gamma);
  if (dynamics === "gaul") return gaul(a, gaulGamma, [c1, c2]);
  return overdamped();
}

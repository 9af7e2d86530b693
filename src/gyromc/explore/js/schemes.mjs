// One step of a chain as matrices: y⁺ = A y + B ĝ(z) + C ξ, z the first n entries of y, ξ n standard normals.
// The same matrices move the chains on the screen and give the exact moments on a Gaussian.

import {
  add, apply, diagonal, eigen, identity, inverse, outer, root, sandwich, scaled, solveVector, sylvester, times, trace,
  transpose, zeros,
} from "./linear.mjs";
import { shown } from "./charts.mjs";

export const SCHEMES = {
  euler: "Euler",
  balanced: "Balanced noise",
  leimkuhler_matthews: "Leimkuhler–Matthews",
  lm_ab2: "Leimkuhler–Matthews, Adams–Bashforth",
  hfhr_splitting: "HFHR splitting",
};

const turns = (dynamics) => dynamics.Q.some((row) => row.some((q) => q !== 0));

/** Why a scheme does not fit the dynamics, in a sentence; null where it fits. */
export function misfit(scheme, dynamics) {
  if (scheme === "leimkuhler_matthews" && turns(dynamics)) {
    return "Leimkuhler–Matthews is for Q = 0. Use its Adams–Bashforth form.";
  }
  if (scheme === "hfhr_splitting" && dynamics.name !== "HFHR") return "The splitting is for HFHR.";
  return null;
}

/** The scheme for the reversible chain beside a scheme: the splitting needs Q, and Leimkuhler–Matthews is its like for Q = 0. */
export const besideScheme = (scheme) =>
  scheme === "hfhr_splitting" || scheme === "lm_ab2" ? "leimkuhler_matthews" : scheme;

/** A matrix over θ as one over the state. */
export function augment(K, augmented, ofMomenta = 1) {
  if (!augmented) return K;
  return [
    [...K[0], 0, 0],
    [...K[1], 0, 0],
    [0, 0, ofMomenta, 0],
    [0, 0, 0, ofMomenta],
  ];
}

function placed(rows, columns, parts) {
  const out = zeros(rows, columns);
  for (const [i0, j0, block] of parts) block.forEach((row, i) => row.forEach((v, j) => { out[i0 + i][j0 + j] = v; }));
  return out;
}

/**
 * The matrices of a scheme, or { error } with a sentence.
 * K: E[∇²U] (the Hessian of a Gaussian); tau: the standard deviation of the gradient noise.
 */
export function stepMatrices(scheme, dynamics, eta, K, tau) {
  const wrong = misfit(scheme, dynamics);
  if (wrong) return { error: wrong };
  const make = { euler, balanced, leimkuhler_matthews: leimkuhlerMatthews, lm_ab2: lmAb2, hfhr_splitting: splitting }[scheme];
  return make(dynamics, eta, K, tau);
}

function euler({ D, G, n }, eta) {
  return { A: identity(n), B: scaled(G, -eta), C: scaled(root(D), Math.sqrt(2 * eta)) }; // E3
}

/** S = E[ĝĝᵀ] of the state. */
function secondMoment(dynamics, K, tau) {
  return augment(add(K, identity(2), tau ** 2), dynamics.augmented);
}

/** The largest step of balanced noise: 2 over the largest eigenvalue of D⁻¹GSGᵀ. */
export function balancedLimit(dynamics, K, tau) {
  const brought = sandwich(dynamics.G, secondMoment(dynamics, K, tau));
  const half = inverse(root(dynamics.D));
  return 2 / eigen(sandwich(half, brought)).values.at(-1);
}

function balanced(dynamics, eta, K, tau) {
  const { D, G, n } = dynamics;
  const W = add(scaled(D, 2 * eta), sandwich(G, secondMoment(dynamics, K, tau)), -(eta ** 2)); // T7
  const C = root(W, 2 * eta * Math.max(...D.flat().map(Math.abs)));
  if (!C) {
    const limit = balancedLimit(dynamics, K, tau);
    return { error: `Balanced noise needs a step size of at most ${shown(limit, 3)} here.` };
  }
  return { A: identity(n), B: scaled(G, -eta), C };
}

function leimkuhlerMatthews({ D, n, augmented }, eta, K, tau) {
  let N = scaled(D, 2 * eta);
  if (tau > 0) {
    const P = augment(K, augmented);
    const Sigma = augment(scaled(identity(2), tau ** 2), augmented, 0);
    const half = add(scaled(identity(n), 0.5), times(D, P), -eta / 4);
    const brought = sylvester(half, transpose(half), scaled(sandwich(D, Sigma), eta ** 2));
    N = brought && add(N, brought, -1); // T7: less what the oracle brings
  }
  const w = N && root(N);
  if (!w) return { error: "The gradients bring more noise than Leimkuhler–Matthews draws. Take a smaller step." };
  const half = scaled(w, 0.5);
  const I = identity(n);
  return {
    A: placed(2 * n, 2 * n, [[0, 0, I], [0, n, I]]),
    B: placed(2 * n, n, [[0, 0, scaled(D, -eta)]]), // T5
    C: placed(2 * n, n, [[0, 0, half], [n, 0, half]]),
  };
}

function lmAb2({ D, Q, n }, eta) {
  const half = scaled(root(D), 0.5 * Math.sqrt(2 * eta));
  const I = identity(n);
  return {
    A: placed(3 * n, 3 * n, [[0, 0, I], [0, n, I], [0, 2 * n, scaled(Q, 0.5 * eta)]]),
    B: placed(3 * n, n, [[0, 0, scaled(add(D, Q, 1.5), -eta)], [2 * n, 0, I]]), // T5
    C: placed(3 * n, n, [[0, 0, half], [n, 0, half]]),
  };
}

/** θ, r, and the memory of N½: O A½ N½ G N½ A½ in the order of gyromc.schemes. */
function splitting({ D }, eta, K, tau) {
  const [alpha, gamma] = [D[0][0], D[2][2]];
  const decay = Math.exp(-gamma * eta);
  const kick = drawnByO(K, tau, alpha, gamma, eta);
  if (!kick) return { error: "The gradients bring more noise than the splitting draws. Take a smaller step." };
  const I = identity(2);
  const reach = (eta / 2) * (1 + decay); // r moves θ before and after O
  const half = 0.5 * Math.sqrt(2 * eta * alpha);
  return {
    A: placed(6, 6, [[0, 0, I], [0, 2, scaled(I, reach)], [0, 4, I], [2, 2, scaled(I, decay)]]),
    B: placed(6, 4, [[0, 0, scaled(I, -eta * alpha - eta * reach)], [2, 0, scaled(I, -eta * decay)]]), // T5
    C: placed(6, 4, [[0, 0, scaled(I, half)], [0, 2, scaled(kick, eta / 2)], [2, 2, kick], [4, 0, scaled(I, half)]]),
  };
}

/** A root of the covariance that O draws so that θ keeps K⁻¹ under gradient noise; null where there is none. */
function drawnByO(K, tau, alpha, gamma, eta) {
  const decay = Math.exp(-gamma * eta);
  const full = scaled(identity(2), 1 - decay ** 2);
  if (tau === 0) return scaled(identity(2), Math.sqrt(1 - decay ** 2));
  const { values, vectors } = eigen(K);
  const drift = [[1, eta / 2], [0, 1]];
  const after = times(drift, diagonal([1, decay]), drift);
  const [brought, drawn] = [apply(after, [eta * alpha, eta]), apply(drift, [0, 1])];
  // Σ = τ²I is diagonal in every basis, so that only the pairs (i, i) count.
  const shares = values.map((lambda) => {
    const M = times(after, add(identity(2), outer([alpha, 1], [1, 0]), -eta * lambda));
    const reached = (v) => lyapunov2(M, outer(v, v));
    return (reached(brought) / reached(drawn)) * tau ** 2;
  });
  return root(add(full, sandwich(vectors, diagonal(shares)), -1), trace(full)); // T10
}

/** The first entry of X = M X Mᵀ + W for 2 × 2 matrices, stable or not. */
function lyapunov2(M, W) {
  const system = zeros(4, 4);
  for (let i = 0; i < 2; i++) {
    for (let j = 0; j < 2; j++) {
      for (let k = 0; k < 2; k++) for (let l = 0; l < 2; l++) system[2 * i + j][2 * k + l] -= M[i][k] * M[j][l];
      system[2 * i + j][2 * i + j] += 1;
    }
  }
  const X = solveVector(system, W.flat());
  return X ? X[0] : NaN;
}

// What the page says about one chain: V, bias, error of an average, effective draws per gradient, each with how it is known.

import * as gaussian from "./gaussian.mjs";
import * as spectral from "./spectral.mjs";
import { curvature, evaluate } from "./targets.mjs";

const CURVE_DEGREE = 12;
const SHARE = 0.05; // an error of more than this share of a number: the number is not known
const SMALL = 0.002; // but a bias of less than this many standard deviations of h is known to be small

/** μ(h) and Var_μ(h). */
export function truth(target, h) {
  if (target.gaussian) return gaussian.targetMoments(target.gaussian.K, target.gaussian.mean, h);
  const { grid } = target;
  let mean = 0;
  for (let k = 0; k < grid.count; k++) mean += grid.w[k] * evaluate(h, grid.tx[k], grid.ty[k]);
  let variance = 0;
  for (let k = 0; k < grid.count; k++) variance += grid.w[k] * (evaluate(h, grid.tx[k], grid.ty[k]) - mean) ** 2;
  return { mean, variance };
}

/** A number that is known well enough, else NaN. */
const settled = ({ value, error }, floor = 0) => (error <= Math.max(SHARE * Math.abs(value), floor) ? value : NaN);

/** V(h) of the diffusion, as { value, error }; the error is 0 where it is exact. */
export function* constant(target, dynamics, h) {
  if (target.gaussian) {
    return { value: gaussian.fluctuation(dynamics, target.gaussian.K, target.gaussian.mean, h), error: 0 };
  }
  const found = yield* spectral.variance(target, dynamics, h);
  return { value: settled(found), error: found.error };
}

/**
 * Bias of the long run and variance of an average of N states at one step size; `draws` is Var_μ(h) over N times the mean
 * squared error.
 * `state` is "known", "unstable" or "unknown"; `why` is a sentence.
 */
export function* atStep({ target, dynamics, scheme, eta, tau, h, N, about, curve = false }) {
  const nothing = (state, why) => ({ state, why, bias: NaN, biasError: NaN, variance: NaN, draws: NaN });
  const K = curvature(target);
  const linear = gaussian.linearChain(scheme, dynamics, eta, K, tau);
  if (linear.error) return nothing("unstable", linear.error);
  let found;
  if (target.gaussian) {
    found = gaussian.longRun(linear, target.gaussian.mean, K, h, N);
    if (!found) return nothing("unstable", "The step is too large: the chain goes to infinity.");
    found = { bias: found.bias, biasError: 0, variance: found.variance };
  } else {
    const reason = spectral.whyNoChain(target, dynamics, scheme, h);
    if (reason) return nothing("unknown", `Not known: ${reason}.`);
    const degree = curve ? CURVE_DEGREE : undefined;
    const { bias, variance } = yield* spectral.chain(target, dynamics, scheme, eta, tau, h, degree);
    const value = settled(bias, SMALL * Math.sqrt(about.variance));
    const rate = settled(variance);
    if (Number.isNaN(value) || !(rate > 0)) return nothing("unknown", "Not known: the polynomials do not resolve this step.");
    found = { bias: value, biasError: bias.error, variance: rate / N };
  }
  const draws = about.variance / (N * (found.bias ** 2 + found.variance));
  return { state: "known", why: target.gaussian ? "exact" : "polynomials", ...found, draws };
}

/** The largest step; on a target that is not Gaussian, that of the Gaussian with the same mean curvature. */
export const largestStep = (target, dynamics, scheme, tau) => gaussian.largestStep(scheme, dynamics, curvature(target), tau);

/** Step sizes for a curve, with equal ratios, from limit / ratio up to the limit. */
export function ladder(limit, count, ratio) {
  return Array.from({ length: count }, (_, k) => 0.999 * limit * ratio ** (k / (count - 1) - 1));
}

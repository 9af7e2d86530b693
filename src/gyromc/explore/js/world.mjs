// The world behind the page: target, dynamics, chains and predictions for the present settings.

import * as dynamicsOf from "./dynamics.mjs";
import { Averages, linearChain, startLaw } from "./gaussian.mjs";
import { atStep, constant, ladder, largestStep, truth } from "./numbers.mjs";
import { besideScheme, misfit, stepMatrices } from "./schemes.mjs";
import { Chains } from "./simulation.mjs";
import { OBSERVABLES, bentTarget, curvature, makeTarget } from "./targets.mjs";

const SHAPE = { gaussian: ["kappa", "angle"], cosine: ["beta"], banana: ["bend"], mixture: ["distance"], logistic: [] };
const REACH = 1.96; // standard deviations of a 95 % band
const MOST_EXACT = 20000; // steps for which exact bands are followed
const POINTS = { exact: 48, polynomials: 12 }; // of a curve
const NOTHING = { bias: NaN, variance: NaN, draws: NaN, squareDraws: NaN };

export class World {
  constructor(data) {
    this.data = data;
  }

  /** Take new settings; everything that depends on them begins anew. */
  configure(settings) {
    this.settings = { ...settings };
    const bent = dynamicsOf.bent(settings);
    const shape = JSON.stringify([settings.target, ...SHAPE[settings.target].map((name) => settings[name])]);
    if (shape !== this.shape) this.base = makeTarget(settings, this.data);
    const moved = bent ? `${shape} ${settings.straighten}` : shape;
    if (shape !== this.shape || moved !== this.moved) this.target = bent ? bentTarget(this.base, settings) : this.base;
    Object.assign(this, { shape, moved });
    this.h = OBSERVABLES[settings.observable];
    this.about = truth(this.target, this.h);
    Object.assign(this, { t: 0, history: [], thinking: null, ready: false });
    const dynamics = dynamicsOf.chosen(settings, curvature(this.target));
    this.problem = dynamicsOf.whyNot(dynamics, settings) ?? misfit(settings.scheme, dynamics);
    this.sides = {};
    if (this.problem) return;
    const beside = besideScheme(settings.scheme);
    this.sides.yours = { dynamics, scheme: settings.scheme };
    this.sides.beside = { dynamics: dynamicsOf.reversible(dynamics), scheme: beside };
    if (dynamics.augmented) this.sides.plain = { dynamics: dynamicsOf.overdamped(), scheme: beside };
    this.restart();
    this.predict();
  }

  get point() {
    if (this.settings.start === "target") return null;
    const { left, right, bottom, top } = this.target.box;
    const [x, y] = [left + 0.85 * (right - left), bottom + 0.8 * (top - bottom)];
    return this.target.inverse?.(x, y) ?? [x, y];
  }

  /** Put all chains at their start. */
  restart() {
    const { settings, target, h } = this;
    this.t = 0;
    this.history = [];
    for (const name of ["yours", "beside"]) {
      const side = this.sides[name];
      if (!side) continue;
      const { dynamics, scheme } = side;
      const step = stepMatrices(scheme, dynamics, settings.eta, curvature(target), settings.tau);
      side.error = step.error ?? null;
      side.chains = side.averages = null;
      if (step.error) continue;
      const { chains: count, seed, tau } = settings;
      side.chains = new Chains({ target, dynamics, step, tau, count, seed, h, point: this.point });
      if (!target.gaussian) continue;
      const { K, mean } = target.gaussian;
      const chain = linearChain(scheme, dynamics, settings.eta, K, tau);
      side.averages = new Averages(chain, mean, h, startLaw(chain, dynamics, K, mean, this.point));
    }
  }

  /** One step of all chains. */
  advance() {
    this.t += 1;
    for (const name of ["yours", "beside"]) {
      const { chains, averages } = this.sides[name] ?? {};
      chains?.advance();
      if (averages && this.t <= MOST_EXACT) averages.advance();
    }
    if (this.t >= (this.history.at(-1)?.t ?? 0) * 1.02 + 1) this.record();
  }

  record() {
    const entry = { t: this.t };
    for (const name of ["yours", "beside"]) {
      const side = this.sides[name];
      if (!side?.chains) continue;
      const { mean, lost } = side.chains.summary(this.about.mean);
      entry[name] = { mean: lost ? NaN : mean, ...this.exactBand(side) };
    }
    this.history.push(entry);
  }

  /** The exact 95 % band of the mean over chains at the present step, on a Gaussian; empty elsewhere. */
  exactBand({ averages }) {
    if (averages?.t !== this.t) return {};
    const { mean, variance } = averages.moments();
    const reach = REACH * Math.sqrt(variance / this.settings.chains);
    return { low: mean - reach, high: mean + reach };
  }

  /** The band of a stored step: the exact one, or that of long runs where it is known, else null. */
  band(name, entry) {
    const { low, high } = entry[name] ?? {};
    if (Number.isFinite(low)) return [low, high];
    const { now } = this.sides[name]?.found ?? {};
    if (now?.state !== "known") return null;
    const variance = Math.min((now.variance * this.settings.budget) / entry.t, this.about.variance);
    const reach = REACH * Math.sqrt(variance / this.settings.chains);
    return [this.about.mean + now.bias - reach, this.about.mean + now.bias + reach];
  }

  /** Begin to compute the predictions; `think` goes on with them. */
  predict() {
    for (const side of Object.values(this.sides)) side.found = { curve: [] };
    this.ready = false;
    this.thinking = this.thoughts();
  }

  /** Compute for about so many milliseconds; true where something new is known. */
  think(milliseconds) {
    if (!this.thinking) return false;
    const end = performance.now() + milliseconds;
    const before = this.news;
    while (this.thinking && performance.now() < end) if (this.thinking.next().done) this.thinking = null;
    return this.news !== before || !this.thinking;
  }

  *thoughts() {
    const { target, settings: { eta } } = this;
    const sides = Object.values(this.sides);
    this.news = 0;
    for (const side of sides) {
      side.found.limit = largestStep(target, side.dynamics, side.scheme, this.settings.tau);
      side.found.now = yield* this.ask(side, eta, false);
      this.news += 1;
      yield;
    }
    for (const side of sides) {
      side.found.constant = yield* constant(target, side.dynamics, this.h);
      this.news += 1;
    }
    const limit = Math.max(...sides.map((side) => side.found.limit).filter(Number.isFinite));
    const steps = target.gaussian ? ladder(limit, POINTS.exact, 300) : ladder(limit, POINTS.polynomials, 120);
    for (const side of sides) {
      for (const size of steps) {
        const found = size < side.found.limit ? yield* this.ask(side, size, true) : { state: "unstable", ...NOTHING };
        side.found.curve.push({ eta: size, ...found });
        this.news += 1;
        yield;
      }
      side.found.best = bestOf(side.found.curve, (p) => p.draws);
      side.found.bestSquare = bestOf(side.found.curve, (p) => p.squareDraws);
    }
    this.ready = true;
  }

  /**
   * The numbers of one side at a step size. Where h is linear, `squareDraws` and `squareBias` are those of h²: the bias of a
   * linear h vanishes on a symmetric target, and would hide the price.
   */
  *ask(side, size, curve) {
    const { target, h, about, settings: { tau, budget: N } } = this;
    const question = { target, ...side, eta: size, tau, N, curve };
    const found = yield* atStep({ ...question, h, about });
    if (h.square) return found;
    const square = { u: h.u, square: true };
    const its = truth(target, square);
    const { bias, draws } = yield* atStep({ ...question, h: square, about: its });
    return { ...found, squareBias: bias / Math.sqrt(its.variance), squareDraws: draws };
  }
}

/**
 * The point of a curve with the most effective draws; null where none is known. `open` says that the curve is not known beyond
 * it, so that a larger step may be better.
 */
function bestOf(curve, of) {
  let best = null;
  curve.forEach((point, k) => {
    if (!Number.isFinite(of(point)) || (best && of(point) <= best.draws)) return;
    best = { eta: point.eta, draws: of(point), open: curve[k + 1]?.state === "unknown" };
  });
  return best;
}

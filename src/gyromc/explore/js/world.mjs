// The world behind the page: target, dynamics, chains and predictions for the present settings.

import * as dynamicsOf from "./dynamics.mjs";
import { Averages, linearChain, startLaw } from "./gaussian.mjs";
import { atStep, constant, ladder, largestStep, truth } from "./numbers.mjs";
import { besideScheme, misfit, stepMatrices } from "./schemes.mjs";
import { Chains } from "./simulation.mjs";
import { OBSERVABLES, curvature, makeTarget } from "./targets.mjs";

const SHAPE = { gaussian: ["kappa", "angle"], cosine: ["beta"], banana: ["bend"], mixture: ["distance"], logistic: [] };
const MOST_EXACT = 20000; // steps for which exact bands are followed
const POINTS = { exact: 48, polynomials: 9 }; // of a curve

export class World {
  constructor(data) {
    this.data = data;
  }

  /** Take new settings; everything that depends on them begins anew. */
  configure(settings) {
    this.settings = { ...settings };
    const shape = JSON.stringify([settings.target, ...SHAPE[settings.target].map((name) => settings[name])]);
    if (shape !== this.shape) {
      this.target = makeTarget(settings, this.data);
      this.shape = shape;
    }
    this.h = OBSERVABLES[settings.observable];
    this.about = truth(this.target, this.h);
    this.problem = null;
    const dynamics = dynamicsOf.chosen(settings);
    this.problem = dynamicsOf.whyNot(dynamics, settings) ?? misfit(settings.scheme, dynamics);
    this.sides = {};
    if (this.problem) return;
    const beside = settings.scheme === "leimkuhler_matthews" ? settings.scheme : besideScheme(settings.scheme);
    this.sides.yours = { dynamics, scheme: settings.scheme };
    this.sides.beside = { dynamics: dynamicsOf.reversible(dynamics), scheme: beside };
    if (dynamics.augmented) this.sides.plain = { dynamics: dynamicsOf.overdamped(), scheme: beside };
    this.restart();
    this.predict();
  }

  get point() {
    if (this.settings.start === "target") return null;
    const { left, right, bottom, top } = this.target.box;
    return [left + 0.85 * (right - left), bottom + 0.8 * (top - bottom)];
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
      entry[name] = { mean: lost ? NaN : mean, ...this.band(side) };
    }
    this.history.push(entry);
  }

  /** The predicted 95 % band of the mean over chains at the present step; empty where it is not known. */
  band(side) {
    const count = this.settings.chains;
    let [center, variance] = [NaN, NaN];
    if (side.averages && side.averages.t === this.t) {
      ({ mean: center, variance } = side.averages.moments());
    } else if (side.found?.now?.state === "known") {
      center = this.about.mean + side.found.now.bias;
      const rate = (side.found.now.variance * this.settings.budget) / this.t;
      variance = Math.min(rate, this.about.variance);
    }
    const reach = 1.96 * Math.sqrt(variance / count);
    return { low: center - reach, high: center + reach };
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

  /** The bias of h² in its standard deviations: a linear h on a Gaussian has none, and would hide the price. */
  *ofSquare(side) {
    const { target, settings: { eta, tau, budget: N } } = this;
    const h = { u: this.h.u, square: true };
    const about = truth(target, h);
    const found = yield* atStep({ target, ...side, eta, tau, h, N, about });
    return found.bias / Math.sqrt(about.variance);
  }

  *thoughts() {
    const { target, h, about, settings: { eta, tau, budget: N } } = this;
    const sides = Object.values(this.sides);
    const ask = (side, size, curve) => atStep({ target, ...side, eta: size, tau, h, N, about, curve });
    this.news = 0;
    for (const side of sides) {
      side.found.limit = largestStep(target, side.dynamics, side.scheme, tau);
      side.found.now = yield* ask(side, eta, false);
      if (target.gaussian && !h.square) side.found.ofSquare = yield* this.ofSquare(side);
      this.news += 1;
      yield;
    }
    for (const side of sides) {
      side.found.constant = yield* constant(target, side.dynamics, h);
      this.news += 1;
    }
    const steps = ladder(Math.max(...sides.map((side) => side.found.limit)), target.gaussian ? POINTS.exact : POINTS.polynomials);
    for (const side of sides) {
      for (const size of steps) {
        const found = size < side.found.limit ? yield* ask(side, size, true) : { bias: NaN, variance: NaN, draws: NaN };
        side.found.curve.push({ eta: size, ...found });
        this.news += 1;
        yield;
      }
      side.found.best = bestOf(side.found.curve);
    }
    this.ready = true;
  }
}

/** The point of a curve with the most effective draws; null where none is known. */
function bestOf(curve) {
  const known = curve.filter(({ draws }) => Number.isFinite(draws));
  return known.length ? known.reduce((a, b) => (b.draws > a.draws ? b : a)) : null;
}

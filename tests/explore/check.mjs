// The page's own mathematics on the table of test vectors: prints one JSON object with what each case gives.
// Usage: node check.mjs FOLDER_OF_THE_PAGE vectors.json gaussian|cosine|bent|chains [INDEX,INDEX,…]; all cases without the last

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [, , folder, file, what, chosen] = process.argv;
const load = (name) => import(pathToFileURL(`${folder}/js/${name}.mjs`).href);
const names = ["dynamics", "gaussian", "targets", "spectral", "schemes", "simulation"];
const [dynamics, gaussian, targets, spectral, schemes, simulation] = await Promise.all(names.map(load));
const table = JSON.parse(readFileSync(file, "utf8"));
const mean = [0, 0];

function prepared({ kappa, degrees, settings, scheme, eta, tau, h }) {
  const K = targets.precision(kappa, degrees);
  const dyn = dynamics.chosen(settings, K);
  const chain = gaussian.linearChain(scheme, dyn, eta, K, tau);
  if (chain.error) throw new Error(chain.error);
  const short = new gaussian.Averages(chain, mean, h, gaussian.startLaw(chain, dyn, K, mean, table.point));
  for (let t = 0; t < table.few; t++) short.advance();
  return { K, dyn, chain, short: short.moments() };
}

function onGaussian(asked) {
  const { scheme, tau, h } = asked;
  const { K, dyn, chain, short } = prepared(asked);
  const long = gaussian.longRun(chain, mean, K, h, table.steps);
  return {
    variance: gaussian.fluctuation(dyn, K, mean, h),
    reversible_variance: gaussian.fluctuation(dynamics.reversible(dyn), K, mean, h),
    expectation: gaussian.targetMoments(K, mean, h).mean,
    bias: long.bias,
    std: Math.sqrt(long.variance),
    short_mean: short.mean,
    short_std: Math.sqrt(short.variance),
    largest_step_size: gaussian.largestStep(scheme, dyn, K, tau),
  };
}

const ripples = new Map(); // a target keeps what was computed for it

function onCosine({ beta, settings, scheme, eta, tau, h }) {
  if (!ripples.has(beta)) ripples.set(beta, targets.makeTarget({ target: "cosine", beta }));
  return byPolynomials(ripples.get(beta), { settings, scheme, eta, tau, h });
}

function onBanana({ bend, straighten, ...asked }) {
  return byPolynomials(targets.bentTarget(targets.makeTarget({ target: "banana", bend }), { bend, straighten }), asked);
}

function byPolynomials(target, { settings, scheme, eta, tau, h }) {
  const dyn = dynamics.chosen(settings);
  const { bias, variance } = spectral.finish(spectral.chain(target, dyn, scheme, eta, tau, h));
  const constant = (d) => spectral.finish(spectral.variance(target, d, h)).value;
  return {
    variance: constant(dyn),
    reversible_variance: constant(dynamics.reversible(dyn)),
    bias: bias.value,
    std: Math.sqrt(variance.value / table.steps),
  };
}

/** How far the chains that the page draws are from their exact moments, in standard errors. */
function ofChains(asked) {
  const { kappa, degrees, scheme, eta, tau, h } = asked;
  const { K, dyn, short } = prepared(asked);
  const target = targets.makeTarget({ target: "gaussian", kappa, angle: degrees });
  const step = schemes.stepMatrices(scheme, dyn, eta, K, tau);
  const count = 4000;
  const seed = Math.round(1000 * eta) + scheme.length;
  const chains = new simulation.Chains({ target, dynamics: dyn, step, tau, count, seed, h, point: table.point });
  for (let t = 0; t < table.few; t++) chains.advance();
  const averages = Array.from(chains.sums, (sum) => sum / table.few);
  const ownMean = averages.reduce((a, b) => a + b) / count;
  const squares = averages.map((v) => (v - short.mean) ** 2);
  const ownVariance = squares.reduce((a, b) => a + b) / count;
  const spread = Math.sqrt(squares.reduce((a, b) => a + (b - ownVariance) ** 2, 0) / count);
  const scores = [(ownMean - short.mean) / Math.sqrt(short.variance), (ownVariance - short.variance) / spread];
  return scores.map((score) => score * Math.sqrt(count));
}

const compute = { gaussian: onGaussian, cosine: onCosine, bent: onBanana, chains: ofChains }[what];
const cases = table[what === "chains" ? "gaussian" : what];
const asked = chosen ? chosen.split(",").map((index) => cases[index]) : cases;
console.log(JSON.stringify(asked.map(compute)));

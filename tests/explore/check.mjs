// The page's own mathematics on the table of test vectors: prints one JSON object with what each case gives.
// Usage: node check.mjs FOLDER_OF_THE_PAGE vectors.json

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [, , folder, file] = process.argv;
const load = (name) => import(pathToFileURL(`${folder}/js/${name}.mjs`).href);
const [dynamics, gaussian, targets] = await Promise.all(["dynamics", "gaussian", "targets"].map(load));
const table = JSON.parse(readFileSync(file, "utf8"));

function onGaussian({ kappa, degrees, settings, scheme, eta, tau, h }) {
  const K = targets.precision(kappa, degrees);
  const mean = [0, 0];
  const dyn = dynamics.chosen(settings);
  const chain = gaussian.linearChain(scheme, dyn, eta, K, tau);
  if (chain.error) throw new Error(chain.error);
  const long = gaussian.longRun(chain, mean, K, h, table.steps);
  const short = new gaussian.Averages(chain, mean, h, gaussian.startLaw(chain, dyn, K, mean, table.point));
  for (let t = 0; t < table.few; t++) short.advance();
  const moments = short.moments();
  return {
    variance: gaussian.fluctuation(dyn, K, mean, h),
    reversible_variance: gaussian.fluctuation(dynamics.reversible(dyn), K, mean, h),
    expectation: gaussian.targetMoments(K, mean, h).mean,
    bias: long.bias,
    std: Math.sqrt(long.variance),
    short_mean: moments.mean,
    short_std: Math.sqrt(moments.variance),
    largest_step_size: gaussian.largestStep(scheme, dyn, K, tau),
  };
}

console.log(JSON.stringify({ gaussian: table.gaussian.map(onGaussian) }));

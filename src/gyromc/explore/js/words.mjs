// The sentences and the table of the page, from settings and predictions.

import { shown } from "./charts.mjs";
import { SCHEMES } from "./schemes.mjs";
import { SETTINGS } from "./settings.mjs";

const times = (ratio) => `${shown(ratio, 2)} ×`;

export const FORMULAS = {
  gaussian: "U(θ) = ½ θᵀKθ, its eigenvalues 1 and κ. Angle of the long axis in degrees.",
  cosine: "U(θ) = ½|θ|² + β(cos θ₁ + cos θ₂). At β = 1.2 it has four modes.",
  banana: "A Gaussian bent along a parabola. Large steps leave it, but not in bent coordinates with c = bend.",
  mixture: "Two Gaussians of equal weight.",
  logistic: "Heart disease against ST depression and ST slope, 270 patients. θ is in standard deviations from the mode.",
};

/** The name of the dynamics with its parameters. */
export function title({ dynamics, ...numbers }) {
  const { omega, alpha, gamma, a, gaulGamma, c1, c2 } = Object.fromEntries(
    Object.entries(numbers).map(([name, value]) => [name, typeof value === "number" ? shown(value, 4) : value]));
  const where = { white: ", whitened", bent: ", bent coordinates" }[numbers.coordinates] ?? "";
  if (dynamics === "rotation") return `Rotation, ω = ${omega}${where}`;
  if (dynamics === "hfhr") return `HFHR, α = ${alpha}, γ = ${gamma}`;
  if (dynamics === "gaul") return `GAUL, a = ${a}, γ = ${gaulGamma}, C = diag(${c1}, ${c2})`;
  return `Reversible${where}`;
}

/** The main sentence, in parts: [text, whether it is stressed]. */
export function headline(world) {
  const { yours, beside } = world.sides;
  if (world.problem) return [[world.problem, false]];
  if (yours.error) return [[yours.error + beyondReach(yours), false]];
  const { settings } = world;
  if (settings.dynamics === "reversible" || (settings.dynamics === "rotation" && settings.omega === 0)) {
    return [["This is the reversible chain. Choose a rotation to see what it changes.", false]];
  }
  const lost = [yours, beside].reduce((sum, { chains }) => sum + (chains?.summary(world.about.mean).lost ?? 0), 0);
  if (lost) return [[`${lost} chains have diverged at this step: there is no gain. Take a smaller step.`, false]];
  const gain = compared(yours.found.best, beside.found.best);
  if (gain) {
    const square = world.h.square ? null : compared(yours.found.bestSquare, beside.found.bestSquare);
    const whose = ` the effective draws of the reversible chain for ${world.h.label}`;
    return square ? [gain, [`${whose}, `, false], square, [" for its square.", false]] : [gain, [`${whose}.`, false]];
  }
  const [here, there] = [yours.found.now?.draws, beside.found.now?.draws];
  if (here > 0 && there > 0) {
    const end = " the effective draws of the reversible chain at the same step.";
    return [["At this step it makes ", false], [times(here / there), true], [end, false]];
  }
  if (!world.ready) return [["Computing the predictions …", false]];
  const [V, V0] = [yours.found.constant?.value, beside.found.constant?.value];
  if (V > 0 && V0 > 0) {
    const end = " the time of the reversible one. What finite steps cost is not known here.";
    return [["The diffusion needs ", false], [times(V / V0), true], [end, false]];
  }
  return [["What Q gains is not known here. The measured averages below still show it.", false]];
}

/** A sentence for a limit below the smallest step of the page: no position of the slider fits; "" elsewhere. */
function beyondReach({ found }) {
  if (!(found?.limit < SETTINGS.eta.least)) return "";
  return ` Steps on this page begin at ${SETTINGS.eta.least}: take less noise, less rotation or a smaller D.`;
}

/** The ratio of two best points, as a part of a sentence; null where it is not known. */
function compared(best, other) {
  if (!best || !other || (best.open && other.open)) return null;
  const bound = best.open ? "at least " : other.open ? "at most " : "";
  return [`${bound}${times(best.draws / other.draws)}`, true];
}

/** What the gain costs at the present step. */
export function price(world) {
  if (world.problem || !world.ready) return "";
  const [a, b] = [world.sides.yours.found, world.sides.beside.found];
  const sd = Math.sqrt(world.about.variance);
  const parts = [`V(h) is ${number(a.constant)} against ${number(b.constant)} with Q = 0.`];
  if (compared(a.best, b.best)) parts.unshift("Draws are per gradient, each chain at its best step.");
  if (a.now.state === "known" && b.now.state === "known") {
    const [p, q] = world.h.square ? [a.now.bias / sd, b.now.bias / sd] : [a.now.squareBias, b.now.squareBias];
    const whose = world.h.square ? "sd" : `sd in the square of ${world.h.label}`;
    parts.push(`The price at this step: a bias of ${size(p)} against ${size(q)} ${whose}.`);
  }
  parts.push(`The largest stable step is ${shown(a.limit, 2)} against ${shown(b.limit, 2)}.`);
  return parts.join(" ");
}

const size = (bias) => (Math.abs(bias) < 1e-9 ? "0" : shown(Math.abs(bias), 2));

/** A number with its error where the digits shown would hide it. */
export function number(found, digits = 4) {
  if (!found || !Number.isFinite(found.value)) return "not known";
  const { value, error } = found;
  if (Math.abs(value) < 1e-12 && error < 1e-9) return "0";
  if (!(error > 0.5 * 10 ** (1 - digits) * Math.abs(value))) return shown(value, digits);
  return `${shown(value, digits)} ± ${shown(error, 1)}`;
}

const plain = (value, digits = 4) => (Number.isFinite(value) ? shown(value, digits) : "not known");

/** The rows of the table: a name, then one text for each side. */
export function rows(world) {
  const { settings, about, sides } = world;
  const each = (f) => Object.values(sides).map(f);
  const now = ({ found }, f) => {
    if (!found.now) return "…";
    if (found.now.state === "unstable") return "unstable";
    return found.now.state === "known" ? f(found.now) : "not known";
  };
  const distance = ({ chains }) => {
    if (!chains || world.t < 50) return "–";
    const { mean, stdError, lost } = chains.summary(about.mean);
    if (lost) return `${lost} chains lost`;
    return shown(mean - about.mean, 2) + (Number.isFinite(stdError) ? ` ± ${shown(1.96 * stdError, 1)}` : "");
  };
  const measured = ({ chains }) => {
    if (!chains || world.t < 50) return "–";
    const { meanSquare, lost } = chains.summary(about.mean);
    return lost ? `${lost} chains lost` : shown(about.variance / (world.t * meanSquare), 3);
  };
  return [
    ["V(h), variance of the diffusion", each(({ found }) => (found.constant ? number(found.constant) : "…"))],
    ["Bias of the long run", each((side) => now(side, ({ bias, biasError }) => number({ value: bias, error: biasError })))],
    ["… measured so far, start included", each(distance)],
    [`Sd of an average over N = ${settings.budget}`, each((side) => now(side, ({ variance }) => plain(Math.sqrt(variance))))],
    ["Effective draws per gradient", each((side) => now(side, ({ draws }) => plain(draws)))],
    ["… measured so far", each(measured)],
    ["… at the best step", each(({ found }) => bestText(found, world.ready))],
    ["Largest stable step", each(({ found }) => (found.limit ? plain(found.limit) : "…"))],
  ];
}

function bestText(found, ready) {
  if (!ready) return "…";
  if (!found.best) return "not known";
  return `${found.best.open ? "≥ " : ""}${shown(found.best.draws, 3)} at η = ${shown(found.best.eta, 2)}`;
}

/** One sentence for each view. */
export function captions(world) {
  const { settings, target, sides } = world;
  const augmented = Boolean(sides.yours?.dynamics.augmented);
  const arrows = { all: "the whole drift", descent: "the descent −D∇U", rotation: "the rotation −Q∇U" }[settings.flow];
  const phase = augmented && settings.plane === "phase";
  const where = phase ? ", at the mean of θ₂ and r₂ = 0" : augmented ? ", at r = 0" : "";
  const points = `Each point is a chain${phase ? " in the plane of θ₁ and r₁" : ""}`;
  const way = target.gaussian ? "exact" : "from polynomials";
  const gaps = target.gaussian ? "" : " Gaps: not known.";
  const turn = augmented && !phase ? " The plane of θ₁ and r₁ shows the rotation." : "";
  const lines = world.h.square ? "smaller steps make it smaller" : "solid for h, dashed for its square";
  return {
    "yours-caption": `${points}; shades show the density${arrows ? `, arrows ${arrows}${where}` : ""}.${turn}`,
    "beside-caption": `The same start and the same noise with Q = 0${besideScheme(sides)}.`,
    "average-caption": target.gaussian
      ? "The mean over all chains of their averages so far, inside the band where it lies 95 times in 100; the band is exact."
      : "The mean over all chains of their averages so far; the band holds for long runs and is left out where it is not known.",
    "variance-caption": `The variance of an average, times N and η (${way}); V(h) for small η and long chains.${gaps}`,
    "bias-caption": `The distance of the long-run average from the truth, over its sd (${way}); ${lines}.${gaps}`,
    "draws-caption": `How many independent draws a gradient is worth, N = ${settings.budget}; the bias counts as error.${gaps}`,
    "numbers-caption": tableCaption(world),
  };
}

/** What else differs between the two sides. */
function besideScheme({ yours, beside }) {
  if (!yours || yours.scheme === beside.scheme) return ": what Q changes is all that differs";
  return `, and with ${SCHEMES[beside.scheme]}, the scheme of the same order for Q = 0`;
}

function tableCaption({ target, sides }) {
  const plainColumn = sides.plain ? " Plain Langevin has D = I and no momentum: the chain to beat." : "";
  if (target.gaussian) return `All numbers are exact; only “measured” comes from the chains above.${plainColumn}`;
  const limit = " The largest step is that of the Gaussian with the same mean curvature.";
  return `V, bias and variance solve the Poisson equation and the chain’s own law, for long chains.${limit}${plainColumn}`;
}

// The settings of the page: their ranges, their defaults, and their text in the address.

import { OBSERVABLES, TARGETS } from "./targets.mjs";
import { SCHEMES } from "./schemes.mjs";

const labels = (table) => Object.fromEntries(Object.entries(table).map(([name, entry]) => [name, entry.label ?? entry]));

/** A choice among names, or a number within limits; `log` sliders are logarithmic, `whole` numbers have no decimals. */
export const SETTINGS = {
  target: { choices: labels(TARGETS), initial: "gaussian" },
  kappa: { least: 1, most: 100, initial: 12, log: true },
  angle: { least: -90, most: 90, initial: 35 },
  beta: { least: 0, most: 2, initial: 1.2 },
  bend: { least: 0, most: 1, initial: 0.6 },
  distance: { least: 0, most: 4, initial: 2.5 },
  dynamics: {
    choices: { reversible: "Reversible", rotation: "Rotation J", hfhr: "HFHR (α, γ)", gaul: "GAUL (a, γ, C)" },
    initial: "rotation",
  },
  coordinates: { choices: { theta: "θ", white: "θ, whitened", bent: "z, bent" }, initial: "theta" },
  straighten: { least: -1, most: 1, initial: 0.6 },
  omega: { least: -20, most: 20, initial: 2 },
  alpha: { least: 0.01, most: 10, initial: 1, log: true },
  gamma: { least: 0.05, most: 50, initial: 2, log: true },
  a: { least: 0.01, most: 10, initial: 1, log: true },
  gaulGamma: { least: 0.05, most: 50, initial: 2, log: true },
  c1: { least: 0.05, most: 10, initial: 1.5, log: true },
  c2: { least: 0.05, most: 10, initial: 0.5, log: true },
  scheme: { choices: SCHEMES, initial: "euler" },
  eta: { least: 0.0005, most: 2, initial: 0.02, log: true },
  tau: { least: 0, most: 10, initial: 0 },
  chains: { least: 1, most: 500, initial: 300, whole: true },
  observable: { choices: labels(OBSERVABLES), initial: "t1" },
  budget: { least: 100, most: 1000000, initial: 2000, log: true, whole: true },
  start: { choices: { target: "Draws of the target", point: "One point" }, initial: "target" },
  speed: { least: 1, most: 20, initial: 2, whole: true },
  seed: { least: 0, most: 999999, initial: 1, whole: true },
  flow: {
    choices: { all: "Whole drift −(D+Q)∇U", descent: "Descent −D∇U", rotation: "Rotation −Q∇U", none: "None" },
    initial: "all",
  },
  plane: { choices: { theta: "θ₁ and θ₂", phase: "θ₁ and momentum r₁" }, initial: "theta" },
  theme: { choices: { auto: "System", light: "Light", dark: "Dark" }, initial: "auto" },
};

export const LATEST = 20000; // steps that a shared address may ask for

export const initial = () => Object.fromEntries(Object.entries(SETTINGS).map(([name, { initial: value }]) => [name, value]));

/** The value as the setting allows it, and a sentence where it is not the one that came. */
export function admitted(name, text) {
  const setting = SETTINGS[name];
  if (setting.choices) {
    if (Object.hasOwn(setting.choices, text)) return { value: text };
    const names = Object.keys(setting.choices).join(", ");
    const notice = `${name} must be one of ${names}: “${clip(text)}” came, ${setting.initial} is used.`;
    return { value: setting.initial, notice };
  }
  const number = typeof text === "number" ? text : Number(String(text).trim() || NaN);
  if (!Number.isFinite(number)) {
    return { value: setting.initial, notice: `${name} must be a number: “${clip(text)}” came, ${setting.initial} is used.` };
  }
  const rounded = setting.whole ? Math.round(number) : number;
  const value = Math.min(Math.max(rounded, setting.least), setting.most);
  if (value === rounded) return { value };
  return { value, notice: `${name} must lie between ${setting.least} and ${setting.most}: ${number} came, ${value} is used.` };
}

const clip = (text) => String(text).slice(0, 20);

/** Settings, the step to go to, and notices, from the part of an address after #. */
export function read(hash) {
  const settings = initial();
  const notices = [];
  let at = 0;
  for (const [name, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (name === "at") {
      at = Math.min(Math.max(Math.round(Number(text)) || 0, 0), LATEST);
      if (String(at) !== text) notices.push(`at must be a whole number up to ${LATEST}: “${clip(text)}” came, ${at} is used.`);
    } else if (!Object.hasOwn(SETTINGS, name)) {
      notices.push(`The address names “${clip(name)}”, which is no setting; it is left out.`);
    } else {
      const { value, notice } = admitted(name, text);
      settings[name] = value;
      if (notice) notices.push(notice);
    }
  }
  return { settings, at, notices };
}

/** The settings that differ from the defaults, as the part of an address after #. */
export function write(settings, at = 0) {
  const pairs = Object.entries(settings).filter(([name, value]) => value !== SETTINGS[name].initial);
  const out = new URLSearchParams(pairs.map(([name, value]) => [name, String(value)]));
  if (at) out.set("at", String(Math.min(at, LATEST)));
  return out.toString();
}

const RESOLUTION = 1000; // positions of a slider

/** Where the slider of a setting stands for a value, from 0 to RESOLUTION. */
export function position(name, value) {
  const { least, most, log } = SETTINGS[name];
  const share = log ? Math.log(value / least) / Math.log(most / least) : (value - least) / (most - least);
  return Math.round(RESOLUTION * share);
}

/** The value for a position of the slider, in few digits. */
export function valueAt(name, place) {
  const { least, most, log, whole } = SETTINGS[name];
  const share = place / RESOLUTION;
  const value = log ? least * (most / least) ** share : least + share * (most - least);
  if (whole) return Math.round(log ? Number(value.toPrecision(2)) : value);
  return log ? Number(value.toPrecision(3)) : Number(value.toFixed(most - least > 30 ? 1 : 2));
}

// The page: reads settings from the address, runs the chains, draws, and writes the settings back.

import { biasRange, draw, logRange, rangeOf, shown } from "./charts.mjs";
import * as controls from "./controls.mjs";
import { bestRates, chosen } from "./dynamics.mjs";
import { identity } from "./linear.mjs";
import { misfit } from "./schemes.mjs";
import { Scene, palette } from "./scene.mjs";
import { admitted, initial, read, write } from "./settings.mjs";
import { OBSERVABLES, curvature } from "./targets.mjs";
import * as words from "./words.mjs";
import { World } from "./world.mjs";

const VIEW_ONLY = new Set(["speed", "flow", "plane", "theme"]);
const THINKING = 7; // milliseconds of a frame for predictions
const CATCHING_UP = 14; // for steps, while going to the step of a shared address
const CHART_EVERY = 250; // milliseconds between two drawings of charts
const DRAWN = 160; // points of a running average
const $ = (id) => document.getElementById(id);
const still = matchMedia("(prefers-reduced-motion: reduce)");
const dark = matchMedia("(prefers-color-scheme: dark)");

const page = {
  settings: initial(),
  paused: still.matches,
  goal: 0, // the step of a shared address, while the chains go there
  frames: [], // times of the last frames
  work: 0, // milliseconds of a frame that this page needs
  notices: [],
  drawnAt: 0,
  stale: true, // whether charts and table must be drawn
  staleCurves: true, // and the charts against the step size
};
let world;
let scenes;
let colours;

async function data() {
  const own = $("logistic-data");
  return own ? JSON.parse(own.textContent) : (await fetch("data/logistic.json")).json();
}

function theme() {
  const { theme: asked } = page.settings;
  document.documentElement.dataset.theme = asked === "auto" ? (dark.matches ? "dark" : "light") : asked;
  colours = palette();
}

function notify(notices) {
  page.notices = notices;
  $("notice").hidden = !notices.length;
  $("notice").textContent = notices.join(" ");
}

/** The scheme stays where it fits the dynamics; else the one that takes its place is chosen, and said. */
function fitted(settings) {
  const wrong = misfit(settings.scheme, chosen(settings));
  if (!wrong) return [];
  settings.scheme = settings.scheme === "leimkuhler_matthews" ? "lm_ab2" : "euler";
  return [`${wrong} The scheme is now ${$("scheme").querySelector(`[value=${settings.scheme}]`).textContent}.`];
}

function changed(name, value, notice) {
  page.settings[name] = admitted(name, value).value;
  const notices = notice ? [notice] : [];
  if (name === "dynamics" || name === "scheme") notices.push(...fitted(page.settings));
  notify(notices);
  page.goal = 0;
  if (VIEW_ONLY.has(name)) world.settings = { ...page.settings };
  else if (name === "budget") rebudget();
  else world.configure(page.settings);
  refresh();
}

function rebudget() {
  world.settings = { ...page.settings };
  if (!world.problem) world.predict();
}

/** Everything that follows from new settings, except chains and predictions. */
function refresh() {
  const { settings } = page;
  theme();
  controls.show(settings);
  controls.limitSchemes((scheme) => misfit(scheme, chosen(settings)));
  history.replaceState(null, "", `#${write(settings)}`);
  for (const place of document.querySelectorAll(".h-label")) place.textContent = OBSERVABLES[settings.observable].label;
  $("formula").textContent = words.FORMULAS[settings.target] + (world.target.gaussian ? " All numbers are exact." : "");
  $("yours-title").textContent = words.title(settings);
  const augmented = chosen(settings).augmented;
  $("beside-title").textContent = augmented ? "Reversible: the same D, Q = 0" : "Reversible: Q = 0";
  $("eta-label").textContent = shown(settings.eta, 4);
  for (const [id, text] of Object.entries(words.captions(world))) $(id).textContent = text;
  drawBacks();
  page.stale = page.staleCurves = true;
}

/** The coordinates of the state that are shown, the potential and the drift in that plane, and the box. */
function view(side) {
  const { base: target, settings } = world;
  const { dynamics } = side;
  const part = { all: dynamics.G, descent: dynamics.D, rotation: dynamics.Q }[settings.flow];
  const phase = dynamics.augmented && settings.plane === "phase";
  const [i, j] = phase ? [0, 2] : [0, 1];
  const g = [0, 0];
  const other = target.grid.mean[1];
  const { c, inverse } = world.target;
  const moving = (x, y) => {
    const [u, v] = inverse(x, y);
    world.target.gradient(u, v, g);
    const [a, b] = part.map((row) => -(row[0] * g[0] + row[1] * g[1]));
    // T′ times the drift of z, and what the noise adds in θ: Γ(θ) of the complete recipe (T14).
    return [a, b + 2 * c * (u * a + (part === dynamics.Q ? 0 : dynamics.D[0][0]))];
  };
  const field = (x, y) => {
    target.gradient(x, phase ? other : y, g);
    const slope = [g[0], g[1], phase ? y : 0, 0];
    return [i, j].map((k) => -part[k].reduce((sum, v, l) => sum + v * slope[l], 0)); // E1: the drift
  };
  const potential = phase ? (x, r) => target.potential(x, other) + 0.5 * r * r : target.potential;
  const box = phase ? { left: target.box.left, right: target.box.right, bottom: -4, top: 4 } : target.box;
  return { i, j, potential, field: part ? (inverse ? moving : field) : null, box };
}

function drawBacks() {
  for (const [name, scene] of Object.entries(scenes)) {
    const side = world.sides[name];
    scene.resize();
    if (!scene.width) continue;
    if (!side) {
      scene.clear(colours);
      scene.isNew("");
      continue;
    }
    const { flow, plane } = world.settings;
    if (!scene.isNew(JSON.stringify([world.moved, side.dynamics, flow, plane, colours]))) continue;
    const { potential, field, box } = view(side);
    scene.frame(box);
    scene.drawBack(potential, field, colours);
  }
  drawFronts();
}

function drawFronts() {
  for (const [name, scene] of Object.entries(scenes)) {
    const side = world.sides[name];
    if (!side) {
      scene.drawFront(null);
      continue;
    }
    const { i, j } = view(side);
    scene.drawFront(side.chains, i, j, colours, !still.matches);
  }
}

function advance() {
  if (world.problem) return;
  world.advance();
  for (const side of [world.sides.yours, world.sides.beside]) {
    const { i, j } = view(side);
    side.chains?.remember(i, j);
  }
}

function frame(time) {
  const begun = performance.now();
  page.frames.push(time);
  if (page.frames.length > 61) page.frames.shift();
  if (page.goal > world.t) {
    const end = performance.now() + CATCHING_UP;
    while (world.t < page.goal && performance.now() < end) advance();
    if (world.t >= page.goal) [page.goal, page.paused] = [0, true];
    drawFronts();
    page.stale = true;
  } else if (!page.paused) {
    for (let k = 0; k < page.settings.speed; k++) advance();
    drawFronts();
    page.stale = true;
  }
  if (!world.problem && world.think(THINKING)) page.stale = page.staleCurves = true;
  if (page.stale && time - page.drawnAt > CHART_EVERY) {
    page.drawnAt = time;
    page.stale = false;
    drawCharts();
  }
  if (!world.thinking) page.work += 0.05 * (performance.now() - begun - page.work);
  requestAnimationFrame(frame);
}

function rate() {
  const { frames } = page;
  return frames.length > 10 ? (1000 * (frames.length - 1)) / (frames.at(-1) - frames[0]) : NaN;
}

function drawCharts() {
  $("play").textContent = page.paused ? "Play" : "Pause";
  $("step").disabled = Boolean(world.problem);
  const pace = page.paused ? "paused" : `${shown(rate(), 2)} frames a second`;
  $("status").textContent = `Step ${world.t.toLocaleString("en")} · ${page.settings.chains} chains · ${pace}`;
  drawTable();
  drawAverage();
  $("headline").replaceChildren(...words.headline(world).map(([text, stressed]) => {
    const node = document.createElement(stressed ? "b" : "span");
    node.textContent = text;
    return node;
  }));
  if (!page.staleCurves) return;
  page.staleCurves = false;
  $("price").textContent = words.price(world);
  drawCurves();
}

/** The table; its cells are made anew only where their number changes. */
function drawTable() {
  const names = { yours: "Yours", beside: "Reversible, same D", plain: "Plain Langevin" };
  const table = $("numbers");
  const rows = world.problem ? [] : words.rows(world);
  const shape = `${Object.keys(world.sides)} ${rows.length}`;
  const cell = (tag, textContent, className, more = {}) =>
    Object.assign(document.createElement(tag), { textContent, className, ...more });
  const [column, row] = [{ scope: "col" }, { scope: "row" }];
  if (table.dataset.shape !== shape) {
    table.dataset.shape = shape;
    const head = document.createElement("thead");
    const body = document.createElement("tbody");
    const titles = Object.keys(world.sides).map((side) => cell("th", names[side], side, column));
    head.insertRow().append(cell("th", "Quantity", "", column), ...titles);
    for (const [, texts] of rows) body.insertRow().append(cell("th", "", "", row), ...texts.map(() => cell("td", "", "")));
    table.replaceChildren(...(rows.length ? [head, body] : []));
  }
  rows.forEach(([name, texts], i) => [name, ...texts].forEach((text, j) => {
    const place = table.tBodies[0].rows[i].cells[j];
    if (place.textContent === text) return;
    place.textContent = text;
    if (j) place.className = /known|–|…/.test(text) ? "none" : "";
  }));
}

function drawAverage() {
  const { about } = world;
  const stride = Math.ceil(world.history.length / DRAWN);
  const past = world.history.filter((_, k) => (world.history.length - 1 - k) % stride === 0);
  const sides = ["beside", "yours"];
  const lines = sides.map((s) => ({ className: s, points: past.map((e) => [e.t, e[s]?.mean ?? NaN]) }));
  const bands = sides.map((s) => ({
    className: s,
    points: past.flatMap((e) => { const band = world.band(s, e); return band ? [[e.t, ...band]] : []; }),
  }));
  const late = [...lines, ...bands].flatMap(({ points }) => points.filter(([t]) => t >= 0.08 * world.t).flatMap(([, ...v]) => v));
  const range = rangeOf([...late, about.mean], Math.sqrt(about.variance));
  const now = past.at(-1);
  const means = ["yours", "beside"].map((side) => shown(now?.[side]?.mean ?? NaN));
  const label = `Running average after ${world.t} steps: yours ${means[0]}, reversible ${means[1]}, truth ${shown(about.mean)}.`;
  const x = { range: [0, Math.max(world.t, 20)] };
  draw($("chart-average"), { x, y: { range }, lines, bands, level: about.mean, label, xName: "steps" });
}

/** The three charts: a value of a point on the curve, and the range of the axis. */
function kinds() {
  const { settings, about, h } = world;
  const sd = Math.sqrt(about.variance);
  return {
    variance: { of: (p, eta) => p.variance * settings.budget * eta, range: (v) => logRange(v, { above: 60 }), log: true },
    bias: { of: (p) => Math.abs(p.bias) / sd, also: h.square ? null : (p) => Math.abs(p.squareBias), range: biasRange },
    draws: { of: (p) => p.draws, range: (v) => logRange(v, { below: 1000 }), log: true },
  };
}

function drawCurves() {
  const { settings } = world;
  const sides = ["beside", "yours"].filter((name) => world.sides[name]);
  const known = sides.flatMap((name) => world.sides[name].found.curve.map(({ eta }) => eta));
  const x = { range: known.length > 1 ? [Math.min(...known), Math.max(...known)] : [0.001, 1], log: true };
  const within = settings.eta >= x.range[0] && settings.eta <= x.range[1];
  for (const [kind, { of, also, log, range }] of Object.entries(kinds())) {
    const line = (name, f, className) => ({ className, points: world.sides[name].found.curve.map((p) => [p.eta, f(p, p.eta)]) });
    const lines = sides.flatMap((name) => [line(name, of, name), ...(also ? [line(name, also, `${name} square`)] : [])]);
    const marks = (within ? sides : []).flatMap((name) => {
      const { now } = world.sides[name].found;
      return now ? [of, ...(also ? [also] : [])].map((f) => ({ x: settings.eta, y: f(now, settings.eta), className: name })) : [];
    });
    const values = [...lines.flatMap(({ points }) => points.map(([, v]) => v)), ...marks.map((m) => m.y)];
    const empty = values.some(Number.isFinite) ? "" : world.ready || world.problem ? "not known here" : "computing …";
    const here = marks.map((m) => `${m.className} ${shown(m.y)}`).join(", ");
    const label = `${kind} against the step size: ${here} at η = ${shown(settings.eta, 4)}.`;
    const content = { x, y: { range: range(values), log }, lines, marks, here: settings.eta, label, xName: "step size η", empty };
    draw($(`chart-${kind}`), content);
  }
}

/** The address after # holds the settings, so that the link to the views must not change it. */
function skipLink() {
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    $("views").focus();
    $("views").scrollIntoView();
  });
}

function buttons() {
  const press = (id, act) => $(id).addEventListener("click", () => {
    page.goal = 0;
    page.stale = true;
    act();
    drawFronts();
  });
  press("play", () => { page.paused = !page.paused; });
  press("step", () => { page.paused = true; advance(); });
  for (const button of document.querySelectorAll("[data-best]")) {
    button.addEventListener("click", () => {
      const K = page.settings.coordinates === "white" ? identity(2) : curvature(world.target);
      changed("omega", Number(bestRates(K)[button.dataset.best].toFixed(3)));
    });
  }
  press("reset", () => { if (!world.problem) world.restart(); });
  $("defaults").addEventListener("click", () => open(initial(), 0, []));
  $("share").addEventListener("click", async () => {
    const address = `${location.href.split("#")[0]}#${write(page.settings, world.t)}`;
    history.replaceState(null, "", address);
    try {
      await navigator.clipboard.writeText(address);
      notify([`The link is copied. It opens this page at step ${world.t}.`]);
    } catch {
      notify(["The link is in the address line: copy it from there."]);
    }
  });
}

function open(settings, at, notices) {
  Object.assign(page, { settings, goal: at });
  notify([...notices, ...fitted(settings)]);
  world.configure(settings);
  if (world.problem) page.goal = 0; // there are no chains that could go there
  refresh();
}

/** A copy of the present state, for tests and for the curious; changing it changes nothing. */
function snapshot() {
  const sides = Object.fromEntries(Object.entries(world.sides).map(([name, { found }]) => [name, found]));
  const { t, about, problem, ready } = world;
  const means = world.history.at(-1) ?? null;
  return structuredClone({ ...page, frames: undefined, rate: rate(), t, about, problem, ready, sides, means });
}

async function begin() {
  controls.build(changed);
  if (matchMedia("(max-width: 860px)").matches) for (const part of document.querySelectorAll("details")) part.open = false;
  world = new World(await data());
  scenes = { yours: new Scene($("stage-yours"), "yours"), beside: new Scene($("stage-beside"), "beside") };
  const { settings, at, notices } = read(location.hash);
  open(settings, at, notices);
  buttons();
  skipLink();
  new ResizeObserver(() => { drawBacks(); page.stale = page.staleCurves = true; }).observe($("stage-yours"));
  dark.addEventListener("change", refresh);
  addEventListener("hashchange", () => { const found = read(location.hash); open(found.settings, found.at, found.notices); });
  Object.defineProperty(window, "explorer", { get: snapshot });
  requestAnimationFrame(frame);
}

begin();

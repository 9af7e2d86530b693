// Small line charts in SVG: axes, lines, bands, marks and a vertical line at the present setting.

const NAMESPACE = "http://www.w3.org/2000/svg";
const MARGIN = { left: 50, right: 14, top: 10, bottom: 34 };

/** A number in few digits; a short form for very small and very large ones. */
export function shown(value, digits = 3) {
  if (value === 0) return "0";
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) {
    const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
    const front = Number(mantissa) === 1 ? "" : `${Number(mantissa).toString().replace("-", "−")}·`;
    return `${front}10${superscript(Number(exponent))}`;
  }
  const text = size >= 10 ** digits ? Math.round(value).toString() : Number(value.toPrecision(digits)).toString();
  return text.replace("-", "−");
}

const superscript = (n) => String(n).replace(/[-\d]/g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(c)]));

function element(name, attributes, text) {
  const node = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function linearTicks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) ticks.push(k * step);
  return ticks;
}

function logTicks(low, high, most) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high * 1.0001; power++) {
    for (const m of [1, 2, 5]) {
      const value = m * 10 ** power;
      if (value >= low * 0.9999 && value <= high * 1.0001) ticks.push(value);
    }
  }
  const decades = ticks.filter((t) => Math.abs(Math.log10(t) % 1) < 1e-9);
  return ticks.length > most && decades.length > 1 ? decades : ticks;
}

/** An axis: where a value lies, and its ticks. */
function axis(range, from, to, log, count) {
  const [low, high] = range;
  const share = log ? (v) => Math.log(v / low) / Math.log(high / low) : (v) => (v - low) / (high - low);
  const ticks = log ? logTicks(low, high, count) : linearTicks(low, high, count);
  const decimals = log ? 0 : Math.max(0, -Math.floor(Math.log10((ticks[1] ?? high) - (ticks[0] ?? low)) + 1e-9));
  const fixed = (v) => v.toFixed(decimals).replace(/^-(?=.*[1-9])/, "−").replace(/^-/, "");
  const text = (v) => (log || Math.abs(v) >= 1e6 ? shown(v, 2) : fixed(v));
  return { place: (v) => from + (to - from) * share(v), ticks, text };
}

/**
 * Draw a chart into `place`.
 * lines: { points: [[x, y]…], className }; bands: { points: [[x, low, high]…], className }; marks: { x, y, className };
 * level: a dashed horizontal line; here: a dashed vertical one; label: what a screen reader says; empty: a text in the middle.
 */
export function draw(place, { x, y, lines = [], bands = [], marks = [], level, here, label, xName, empty }) {
  const width = Math.max(place.clientWidth, 240);
  const height = place.dataset.height ? Number(place.dataset.height) : Math.round(Math.min(0.62 * width, 250));
  const [right, bottom] = [width - MARGIN.right, height - MARGIN.bottom];
  const X = axis(x.range, MARGIN.left, right, x.log, Math.max(3, width / (x.log ? 60 : 110)));
  const Y = axis(y.range, bottom, MARGIN.top, y.log, y.log ? 6 : 4);
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (const tick of Y.ticks) {
    svg.append(element("line", { class: "axis", x1: MARGIN.left, x2: right, y1: Y.place(tick), y2: Y.place(tick) }));
    svg.append(element("text", { x: MARGIN.left - 7, y: Y.place(tick) + 4, "text-anchor": "end" }, Y.text(tick)));
  }
  for (const tick of X.ticks) {
    svg.append(element("text", { x: X.place(tick), y: bottom + 16, "text-anchor": "middle" }, X.text(tick)));
  }
  svg.append(element("text", { x: right, y: height - 3, "text-anchor": "end" }, xName));
  const clip = `clip-${place.id}`;
  const clipped = element("g", { "clip-path": `url(#${clip})` });
  const region = element("clipPath", { id: clip });
  const inside = { width: right - MARGIN.left, height: bottom - MARGIN.top + 4 };
  region.append(element("rect", { x: MARGIN.left, y: MARGIN.top - 2, ...inside }));
  svg.append(region, clipped);
  const beyond = [-10 * height, 10 * height]; // SVG reads no coordinates like 10³⁸, which bands of unstable chains reach
  const at = (a, b) =>
    `${X.place(a).toFixed(1)},${clamp(Y.place(y.log ? Math.max(b, y.range[0] / 1e3) : b), beyond).toFixed(1)}`;
  for (const { points, className } of bands) {
    const edge = [...points.map(([a, , high]) => at(a, high)), ...points.toReversed().map(([a, low]) => at(a, low))];
    if (edge.length) clipped.append(element("polygon", { class: `band ${className}`, points: edge.join(" ") }));
  }
  if (level !== undefined) {
    clipped.append(element("line", { class: "truth", x1: MARGIN.left, x2: right, y1: Y.place(level), y2: Y.place(level) }));
  }
  if (here !== undefined && here >= x.range[0] && here <= x.range[1]) {
    clipped.append(element("line", { class: "here", x1: X.place(here), x2: X.place(here), y1: MARGIN.top, y2: bottom }));
  }
  for (const { points, className } of lines) {
    for (const piece of pieces(points)) {
      clipped.append(element("polyline", { class: `line ${className}`, points: piece.map(([a, b]) => at(a, b)).join(" ") }));
    }
  }
  for (const { x: a, y: b, className } of marks) {
    if (!Number.isFinite(b)) continue;
    svg.append(element("circle", { class: `mark ${className}`, cx: X.place(a), cy: Y.place(clamp(b, y.range)), r: 5 }));
  }
  const middle = { x: (MARGIN.left + right) / 2, y: bottom / 2, "text-anchor": "middle" };
  if (empty) svg.append(element("text", { class: "empty", ...middle }, empty));
  place.replaceChildren(svg);
}

const clamp = (v, [low, high]) => Math.min(Math.max(v, low), high);

/** The stretches of a line without gaps. */
function pieces(points) {
  const found = [[]];
  for (const point of points) {
    if (Number.isFinite(point[1])) found.at(-1).push(point);
    else if (found.at(-1).length) found.push([]);
  }
  return found.filter((piece) => piece.length);
}

const FAR = 1e15; // bands of unstable chains grow beyond every number

/** A range around all values, with a margin: `alone` where there is but one value. */
export function rangeOf(values, alone) {
  const finite = values.filter((v) => Math.abs(v) < FAR);
  if (!finite.length) return [-1, 1];
  const [low, high] = [Math.min(...finite), Math.max(...finite)];
  const margin = 0.08 * (high - low) || alone;
  return [low - margin, high + margin];
}

/** A logarithmic range: up to `above` times the least value, or down to the most over `below`. */
export function logRange(values, { above = Infinity, below = Infinity }) {
  const finite = values.filter((v) => Number.isFinite(v) && v > 0);
  if (!finite.length) return [0.1, 1];
  const [low, high] = [Math.min(...finite), Math.max(...finite)];
  const [from, to] = [Math.max(low, high / below), Math.min(high, low * above)];
  return [from / 1.3, Math.max(to, 2 * from) * 1.3];
}

/** From just below 0 up to the largest size, at most one standard deviation. */
export function biasRange(values) {
  const most = Math.max(0.02, ...values.filter(Number.isFinite).map((v) => Math.min(v, 1)));
  return [-0.03 * most, 1.06 * most];
}

// The pictures of the chains: density, contours and drift below, points and trails above.

const LEVELS = [0.25, 1, 2, 3.2, 4.6, 6.2, 8]; // of H above its least value

const CORNERS = [[0, 0], [1, 0], [1, 1], [0, 1]];

/** The colours of the present theme. */
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  const names = ["card", "yours", "beside", "land", "arrow", "contour", "soft"];
  return Object.fromEntries(names.map((name) => [name, read(`--${name}`)]));
}

/** The line of a level through one cell, whose corners go around it from (i, j). */
function cross(context, corners, level, i, j, dx, dy) {
  const cut = [];
  for (let k = 0; k < 4; k++) {
    const [p, q] = [CORNERS[k], CORNERS[(k + 1) % 4]];
    const [a, b] = [corners[k] - level, corners[(k + 1) % 4] - level];
    if (a < 0 === b < 0) continue;
    const t = a / (a - b);
    cut.push([(i + p[0] + t * (q[0] - p[0])) * dx, (j + p[1] + t * (q[1] - p[1])) * dy]);
  }
  for (let k = 0; k + 1 < cut.length; k += 2) {
    context.moveTo(...cut[k]);
    context.lineTo(...cut[k + 1]);
  }
}

/** One picture: two canvases on top of each other. */
export class Scene {
  constructor(stage, kind) {
    [this.back, this.front] = stage.querySelectorAll("canvas");
    this.kind = kind;
    this.stage = stage;
  }

  /** Fit the canvases to their place; true where the size changed. */
  resize() {
    const { clientWidth: width, clientHeight: height } = this.stage;
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    if (this.width === width && this.height === height && this.ratio === ratio) return false;
    Object.assign(this, { width, height, ratio });
    for (const canvas of [this.back, this.front]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    return true;
  }

  /** Show a box of the plane, made wider or higher until it has the shape of the picture. */
  frame(box) {
    const shape = this.width / this.height;
    let [width, height] = [box.right - box.left, box.top - box.bottom];
    if (width / height < shape) width = height * shape;
    else height = width / shape;
    const [x, y] = [(box.left + box.right) / 2, (box.bottom + box.top) / 2];
    this.left = x - width / 2;
    this.top = y + height / 2;
    this.scale = this.width / width;
  }

  toScreen(x, y) {
    return [(x - this.left) * this.scale, (this.top - y) * this.scale];
  }

  toPlane(px, py) {
    return [this.left + px / this.scale, this.top - py / this.scale];
  }

  /** Nothing: there is no such dynamics. */
  clear(colours) {
    const context = this.back.getContext("2d");
    context.fillStyle = colours.card;
    context.fillRect(0, 0, this.back.width, this.back.height);
  }

  /** Whether the picture below must be drawn again: what it shows has another name, or its size changed. */
  isNew(name) {
    const key = `${name} ${this.width} ${this.height} ${this.ratio}`;
    const changed = key !== this.key;
    this.key = key;
    return changed;
  }

  /** Density, contours and arrows. `field(x, y)` is the drift in this plane, or null. */
  drawBack(potential, field, colours) {
    const context = this.back.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.fillStyle = colours.card;
    context.fillRect(0, 0, this.width, this.height);
    const values = this.sample(potential);
    this.shade(context, values, colours);
    this.contours(context, values, colours);
    if (field) this.arrows(context, field, colours);
    this.scaleBar(context, colours);
  }

  /** H above its least value in the picture, on a grid. */
  sample(potential) {
    const columns = 110;
    const rows = Math.max(2, Math.round((columns * this.height) / this.width));
    const values = new Float64Array((columns + 1) * (rows + 1));
    for (let j = 0; j <= rows; j++) {
      for (let i = 0; i <= columns; i++) {
        const [x, y] = this.toPlane((i * this.width) / columns, (j * this.height) / rows);
        values[j * (columns + 1) + i] = potential(x, y);
      }
    }
    const least = values.reduce((a, b) => Math.min(a, b), Infinity);
    for (let k = 0; k < values.length; k++) values[k] -= least;
    return { columns, rows, values };
  }

  shade(context, { columns, rows, values }, colours) {
    const [r, g, b] = colours.land.split(",").map(Number);
    const image = new ImageData(columns + 1, rows + 1);
    for (let k = 0; k < values.length; k++) {
      image.data.set([r, g, b, 120 * Math.exp(-0.55 * Math.max(values[k], 0))], 4 * k);
    }
    const small = new OffscreenCanvas(columns + 1, rows + 1);
    small.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingQuality = "high";
    context.drawImage(small, 0, 0, this.width, this.height);
  }

  /** Lines of equal density, by marching squares. */
  contours(context, { columns, rows, values }, colours) {
    const [dx, dy] = [this.width / columns, this.height / rows];
    const at = (i, j) => values[j * (columns + 1) + i];
    context.strokeStyle = colours.contour;
    context.lineWidth = 1;
    context.beginPath();
    for (let j = 0; j < rows; j++) {
      for (let i = 0; i < columns; i++) {
        const corners = [at(i, j), at(i + 1, j), at(i + 1, j + 1), at(i, j + 1)];
        const [low, high] = [Math.min(...corners), Math.max(...corners)];
        for (const level of LEVELS) if (low < level && level <= high) cross(context, corners, level, i, j, dx, dy);
      }
    }
    context.stroke();
  }

  arrows(context, field, colours) {
    const gap = this.width < 300 ? 22 : 30;
    const found = [];
    let most = 0;
    for (let py = gap / 2; py < this.height; py += gap) {
      for (let px = gap / 2; px < this.width; px += gap) {
        const [u, v] = field(...this.toPlane(px, py));
        const size = Math.hypot(u, v);
        if (!(size > 1e-9)) continue;
        found.push([px, py, u / size, -v / size, size]);
        most = Math.max(most, size);
      }
    }
    context.strokeStyle = colours.arrow;
    context.lineWidth = 1.3;
    context.beginPath();
    for (const [px, py, u, v, size] of found) {
      const length = gap * (0.25 + 0.62 * Math.cbrt(size / most));
      const [x, y] = [px + (u * length) / 2, py + (v * length) / 2];
      context.moveTo(px - (u * length) / 2, py - (v * length) / 2);
      context.lineTo(x, y);
      for (const side of [1, -1]) {
        context.moveTo(x, y);
        context.lineTo(x - 4.5 * u + side * 2.6 * v, y - 4.5 * v - side * 2.6 * u);
      }
    }
    context.stroke();
  }

  /** A bar of length 1 in the lower left corner. */
  scaleBar(context, colours) {
    const y = this.height - 12;
    context.strokeStyle = colours.soft;
    context.fillStyle = colours.soft;
    context.lineWidth = 2;
    context.beginPath();
    context.moveTo(12, y);
    context.lineTo(12 + this.scale, y);
    context.stroke();
    context.font = "11px system-ui, sans-serif";
    context.fillText("1", 12 + this.scale + 5, y + 4);
  }

  /** Points of all chains and trails of some; i and j are the coordinates shown. */
  drawFront(chains, i, j, colours, withTrails) {
    const context = this.front.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    if (!chains) return;
    const colour = colours[this.kind];
    if (withTrails) this.drawTrails(context, chains, colour);
    const dot = this.dot(colour, chains.count > 150 ? 1.9 : 2.8);
    const side = dot.width / this.ratio;
    context.globalAlpha = chains.count > 150 ? 0.8 : 0.95;
    for (let c = 0; c < chains.count; c++) {
      if (chains.lost[c]) continue;
      const [px, py] = this.toScreen(...chains.position(c, i, j));
      if (px < -9 || py < -9 || px > this.width + 9 || py > this.height + 9) continue;
      context.drawImage(dot, px - side / 2, py - side / 2, side, side);
    }
    context.globalAlpha = 1;
  }

  /** A picture of one point: copying it is faster than drawing each point anew. */
  dot(colour, radius) {
    const key = `${colour} ${radius} ${this.ratio}`;
    if (this.dotKey === key) return this.dotImage;
    const side = Math.ceil(2 * (radius + 1) * this.ratio);
    this.dotImage = new OffscreenCanvas(side, side);
    this.dotKey = key;
    const context = this.dotImage.getContext("2d");
    context.fillStyle = colour;
    context.arc(side / 2, side / 2, radius * this.ratio, 0, 2 * Math.PI);
    context.fill();
    return this.dotImage;
  }

  drawTrails(context, chains, colour) {
    const { kept, length } = chains.trails;
    context.strokeStyle = colour;
    context.lineWidth = 1;
    for (let age = 0; age + 1 < length; age++) {
      context.globalAlpha = 0.42 * (1 - age / length);
      context.beginPath();
      for (let c = 0; c < kept; c++) {
        const [p, q] = [2 * (age * kept + c), 2 * ((age + 1) * kept + c)];
        if (Number.isNaN(chains.trail[q])) continue;
        context.moveTo(...this.toScreen(chains.trail[p], chains.trail[p + 1]));
        context.lineTo(...this.toScreen(chains.trail[q], chains.trail[q + 1]));
      }
      context.stroke();
    }
    context.globalAlpha = 1;
  }
}

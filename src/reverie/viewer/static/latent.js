// The tab Latent: the latent variables of a row and what probes read from them; latents can be set.

import { $, color, el, clearCanvas, short } from "./dom.js";

export class Latent {
  constructor(page) {
    this.page = page;
  }

  open() {
    this.grid = null;
  }

  async show() {
    const { page } = this;
    if (this.asking || page.playing) return;
    this.asking = true;
    const head = page.rows[page.at].dream ? await page.ask("latent", { at: page.at }, true) : null;
    this.asking = false;
    if (page.panels.chosen !== "Latent" || !head) return;
    if (head.at !== page.at) return this.show();
    if (!this.grid) this.makePanel();
    this.state = head;
    this.draw();
    $("#changed").textContent = page.edits ? `${page.edits} edit${page.edits > 1 ? "s" : ""}` : "";
    $("#probes").replaceChildren(...Object.entries(head.probes).map(([key, probe]) => this.drawProbe(key, probe)));
  }

  // What a probe reads, and what is true if the row happened: maps of classes, arrows of goals, or numbers.
  drawProbe(key, { read, truth, chance }) {
    const box = el("figure", {}, el("figcaption", {}, el("b", {}, `Probe: ${key}`))), sides = el("div", { className: "sides" });
    const said = (text) => (box.append(el("p", {}, text)), box);
    if (!read) return said("It is given something that only rows that happened have.");
    const flat = read.flat(9), grid = chance && Array.isArray(read[0]) && !Array.isArray(read[0][0]);
    if (grid) sides.append(this.drawMap("read", read, chance), truth ? this.drawMap("happened", truth) : "");
    else if (!chance && flat.length % 2 === 0 && flat.length <= 32) sides.append(this.drawArrows(flat, truth?.flat(9)));
    else return said(`${flat.slice(0, 12).map(short).join(", ")}${truth ? ` (happened: ${truth.flat(9).slice(0, 12).map(short).join(", ")})` : ""}`);
    box.append(sides);
    return box;
  }

  // A map [x][y] of classes, a color for each, fainter where the probe is less sure.
  drawMap(name, cells, chance) {
    const across = cells.length, down = cells[0].length, size = Math.max(4, Math.floor(160 / Math.max(across, down)));
    const canvas = el("canvas", { width: across * size, height: down * size, title: name }), c = canvas.getContext("2d");
    cells.forEach((column, x) => column.forEach((kind, y) => {
      c.globalAlpha = chance?.[x][y] ?? 1;
      c.fillStyle = `hsl(${(210 + kind * 137.5) % 360} 45% 52%)`;
      c.fillRect(x * size, y * size, size - 1, size - 1);
    }));
    return el("div", {}, canvas, el("span", {}, name));
  }

  // Pairs of numbers as arrows from the middle: the first number to the right, the second upwards.
  drawArrows(read, truth) {
    const canvas = el("canvas", { width: 160, height: 160 }), c = canvas.getContext("2d");
    const most = Math.max(1e-6, ...[...read, ...(truth ?? [])].map(Math.abs));
    c.translate(80, 80);
    c.lineWidth = 2;
    for (const [pairs, name] of [[truth ?? [], "real"], [read, "dream"]])
      for (let i = 0; i < pairs.length; i += 2) {
        const x = (70 * pairs[i]) / most, y = (-70 * pairs[i + 1]) / most;
        c.strokeStyle = c.fillStyle = color(name);
        c.beginPath();
        c.moveTo(0, 0);
        c.lineTo(x, y);
        c.stroke();
        c.beginPath();
        c.arc(x, y, 4, 0, 7);
        c.fill();
      }
    return el("div", {}, canvas, el("span", {}, truth ? "read (orange), happened (blue)" : "read"));
  }

  makePanel() {
    const classes = this.page.about.classes > 1;
    this.cell = [0, classes ? 0 : null];
    this.grid = el("canvas", { id: "grid", tabIndex: 0, ariaLabel: "Latents: arrow keys choose, Enter sets",
      onclick: (event) => this.set(...this.locate(event)), onmousemove: (event) => this.describe(...this.locate(event)),
      onkeydown: (event) => this.move(event), onfocus: () => this.draw(), onblur: () => this.draw() });
    const keep = classes ? el("label", {}, el("input", { type: "checkbox", id: "keep" }), "keep it while dreaming") : null;
    $("#panel").replaceChildren(
      el("p", {}, classes
        ? "Each row is a latent variable, each column a class: shaded by the prior, outlined where it is. Click a class to set it; the dream follows."
        : "Each bar is a latent variable: its value, and the prior’s mean ± deviation. Click to set a value; the dream follows."),
      this.grid, el("div", { className: "bar" }, keep, el("span", { className: "grow" }), el("span", { id: "changed", className: "hint" })),
      el("p", { id: "hovered" }, "\u00a0"), el("div", { id: "probes" }));
  }

  draw() {
    if (!this.state || !this.grid) return;
    const { latents, classes } = this.page.about, cell = Math.max(8, Math.min(20, Math.floor(420 / latents)));
    const height = classes > 1 ? latents * cell : Math.max(140, latents * 9);
    this.grid.style.height = `${height}px`;
    const [c, width] = clearCanvas(this.grid, height), { state } = this, tall = height / latents, wide = width / classes;
    const [dream, edited, ink] = ["dream", "edited", "ink"].map(color);
    const at = (x) => width / 2 + (Math.max(-3.5, Math.min(3.5, x)) * width) / 7.4;
    for (let i = 0; i < latents; i++) {
      if (classes === 1) {
        c.fillStyle = color("line");
        c.fillRect(at(state.mean[i] - state.std[i]), i * tall + 1, at(state.mean[i] + state.std[i]) - at(state.mean[i] - state.std[i]), tall - 2);
        c.fillStyle = dream;
        c.fillRect(at(state.values[i]) - 1.5, i * tall, 3, tall);
        continue;
      }
      for (let j = 0; j < classes; j++) {
        c.globalAlpha = Math.sqrt(state.prior[i][j]) * 0.85;
        c.fillStyle = dream;
        c.fillRect(j * wide, i * tall, wide - 1, tall - 1);
      }
      c.globalAlpha = 1;
      c.strokeStyle = ink;
      c.lineWidth = 1.6;
      c.strokeRect(state.classes[i] * wide + 1.2, i * tall + 1.2, wide - 3.4, tall - 3.4);
      if (String(i) in state.held) {
        c.fillStyle = edited;
        c.fillRect(state.held[i] * wide + wide / 2 - 2.5, i * tall + tall / 2 - 2.5, 5, 5);
      }
    }
    if (document.activeElement !== this.grid) return;
    const [row, value] = this.cell, left = classes > 1 ? value * wide : at(value ?? state.values[row]) - 3;
    c.strokeStyle = edited;
    c.lineWidth = 2;
    c.strokeRect(left + 1, row * tall + 1, classes > 1 ? wide - 3 : 6, tall - 2);
  }

  locate(event) {
    const { latents, classes } = this.page.about, box = this.grid.getBoundingClientRect();
    const row = Math.min(latents - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * latents)));
    const across = (event.clientX - box.left) / box.width;
    return [row, classes > 1 ? Math.min(classes - 1, Math.max(0, Math.floor(across * classes))) : (across - 0.5) * 7.4];
  }

  describe(row, value) {
    const { state } = this;
    if (!state) return;
    $("#hovered").textContent = state.prior
      ? `latent ${row}, class ${value}: prior ${short(state.prior[row][value])}`
      : `latent ${row}: ${short(value)}`;
  }

  // The same by keys: arrows choose a class (or change a number), Enter sets it.
  move(event) {
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Enter: [0, 0] }[event.key];
    if (!by || !this.state) return;
    event.preventDefault();
    event.stopPropagation();
    const { latents, classes } = this.page.about, within = (x, most) => Math.max(0, Math.min(most, x));
    const row = within(this.cell[0] + by[0], latents - 1), other = row !== this.cell[0];
    const value = classes > 1 ? within(this.cell[1] + by[1], classes - 1)
      : (other ? this.state.values[row] : this.cell[1] ?? this.state.values[row]) + by[1] / 4;
    this.cell = [row, value];
    this.describe(row, value);
    if (event.key === "Enter") this.set(row, value);
    else this.draw();
  }

  async set(latent, value) {
    const { page } = this;
    this.cell = [latent, value];
    page.stop();
    await page.change("edit", { at: page.at, latent, value, pin: Boolean($("#keep")?.checked) });
  }
}

// The tab Goal: recorded states as a map of their distance to the goal. Choosing one makes it the goal.

import { $, clearCanvas, color, el, short } from "./dom.js";
import { drawStrip } from "./strip_canvas.js";

const MARGIN = 18, NEAR = 24, HIGH = 380; // pixels: around the points, from a click to a point, height of the map

export class Goals {
  axes = {};
  focused = null; // number of the point that the keys have chosen

  constructor(page) {
    this.page = page;
  }

  meet() {
    Object.assign(this, { map: null, plan: null, places: new WeakMap() });
  }

  open() {
    this.canvas = el("canvas", { id: "map", tabIndex: 0, ariaLabel: "Map of recorded states: arrow keys choose one, Enter makes it the goal",
      onclick: (event) => this.pursue(this.locate(event)), onmousemove: (event) => this.describe(this.locate(event)),
      onkeydown: (event) => this.move(event), onfocus: () => this.draw(), onblur: () => this.draw() });
    this.canvas.style.height = `${HIGH}px`;
    this.select = ["x", "y"].map((axis) => el("select", { ariaLabel: axis === "x" ? "To the right" : "Upwards",
      onchange: (event) => ((this.axes[axis] = event.target.value), this.load()) }));
    const text = this.page.about.playable ? "Click one to play an episode to it." : "Click one to measure this recorded episode by it: there is no environment to play in.";
    $("#panel").replaceChildren(el("p", {}, `Each point is a recorded state. ${text}`),
      el("div", { className: "bar" }, el("label", {}, "right", this.select[0]), el("label", {}, "up", this.select[1])),
      this.canvas, el("p", { id: "scale" }), el("p", { id: "hovered" }, "Reading the data …"), el("p", { id: "aim" }), el("div", { id: "plan" }));
    if (this.refocus) this.canvas.focus();
    this.refocus = false;
    if (this.map) this.showMap();
    else this.load();
  }

  async load() {
    const { page } = this, { opening } = page, head = await page.ask("goal_map", this.axes, true);
    if (!head || opening !== page.opening) return;
    Object.assign(this, { map: head, places: new WeakMap(), axes: { x: head.x, y: head.y } });
    if (page.panels.chosen === "Goal") this.showMap();
  }

  showMap() {
    const { map, page } = this, known = (map.colors ?? []).filter((value) => value !== null).sort((a, b) => a - b), end = known.length - 1;
    this.ends = ["near", "far"].map((name) => color(name).match(/[\d.]+/g).map(Number)); // in the theme of the moment
    this.span = [known[Math.round(0.02 * end)], known[Math.round(0.98 * end)]];
    this.sides = [0, 1].map((axis) => map.points.map((point) => point[axis]).concat(map.goal[axis] ?? []).reduce(([a, b], x) => [Math.min(a, x), Math.max(b, x)], [Infinity, -Infinity]));
    this.select.forEach((select, i) => select.replaceChildren(...map.axes.map((name) => el("option", { value: name, selected: name === [map.x, map.y][i] }, name))));
    const bar = el("i", { className: "gradient" }), { distance_unit: unit } = page.about, [low, high] = this.span.map(short);
    bar.style.background = `linear-gradient(to right, ${[0, 0.5, 1].map((part) => this.tint(this.span[0] + part * (this.span[1] - this.span[0]))).join()})`;
    const scale = !known.length ? ["This agent estimates no distances."] : unit === "value" ? ["value ", low, bar, high] : ["distance to the goal ", low, bar, `${high} ${unit}`];
    $("#scale").replaceChildren(...scale);
    const goal = Object.entries(map.numbers).map(([key, values]) => `${key} ${values.map(short).join(", ")}`).join("; ");
    $("#hovered").textContent = goal ? `Goal: ${goal}` : "Point at a state to read its distance.";
    this.draw();
    this.follow();
  }

  show() {
    if (this.map) this.draw(), this.follow();
  }

  // Asks for the places of rows that lack one, then, unless rows pass, for what the agent aims at in this row.
  async follow() {
    const { page, map } = this, { rows, real, playing } = page, row = rows[Math.min(page.at, real)];
    const first = rows.findIndex((one, i) => i <= real && !this.places.has(one)), aims = !playing && this.plan?.row !== row;
    if (this.asking || !map || page.panels.chosen !== "Goal" || (first < 0 && !aims)) return;
    this.asking = true;
    const head = await (first < 0 ? page.ask("goal_plan", { at: row.t }, true) : page.ask("goal_path", { x: map.x, y: map.y, first }, true));
    const bitmaps = await Promise.all((head?.pictures ?? []).map(({ blob }) => createImageBitmap(blob)));
    this.asking = false;
    if (!head) return;
    if (map === this.map && head.path) head.path.forEach((place, i) => rows[first + i] && this.places.set(rows[first + i], place));
    else if (map === this.map) Object.assign(this, { plan: { row, ...head, bitmaps } }), this.showPlan();
    if (page.panels.chosen === "Goal") this.show();
  }

  showPlan() {
    const { strip, bitmaps } = this.plan, canvas = el("canvas", { role: "img", ariaLabel: strip?.sentence ?? "" });
    if (!strip || !$("#plan")) return;
    $("#plan").replaceChildren(el("h2", {}, "The plan from this row"), el("p", {}, `${strip.sentence} Each picture is the recorded one nearest to a planned latent.`), canvas);
    drawStrip(canvas, strip, 1, (number) => bitmaps[number], color);
  }

  // The color of a distance (near is orange, far is blue) or of a value.
  tint(value) {
    const [low, high] = this.span, part = Math.max(0, Math.min(1, (value - low) / (high - low || 1)));
    const [near, far] = this.ends;
    const share = this.page.about.distance_unit === "value" ? 1 - part : part;
    return value === null || Number.isNaN(part) ? color("edge") : `rgb(${near.map((x, i) => Math.round(x + share * (far[i] - x)))})`;
  }

  // Where a pair of numbers is on the canvas.
  at(pair) {
    const { clientWidth: width, clientHeight: height } = this.canvas, [x, y] = pair.map((value, i) => (value - this.sides[i][0]) / (this.sides[i][1] - this.sides[i][0] || 1));
    return [MARGIN + x * (width - 2 * MARGIN), height - MARGIN - y * (height - 2 * MARGIN)];
  }

  draw() {
    if (!this.map || !this.canvas.isConnected) return;
    const { map, page } = this, [c] = clearCanvas(this.canvas, HIGH), circle = (pair, radius, draws) => {
      c.beginPath();
      c.arc(...this.at(pair), radius, 0, 7);
      for (const draw of draws) c[draw]();
    };
    map.points.forEach((point, i) => {
      c.fillStyle = this.tint(map.colors?.[i] ?? null);
      circle(point, 3, ["fill"]);
    });
    [c.strokeStyle, c.lineWidth] = [color("ink"), 1.5];
    c.beginPath();
    for (const row of page.rows.slice(0, page.at + 1)) if (this.places.has(row)) c.lineTo(...this.at(this.places.get(row)));
    c.stroke();
    [c.fillStyle, c.strokeStyle, c.lineWidth] = [color("ink"), color("card"), 2];
    const here = this.places.get(page.rows[Math.min(page.at, page.real)]);
    if (here) circle(here, 7, ["fill", "stroke"]);
    if (!map.goal.includes(null)) this.drawStar(c, ...this.at(map.goal));
    const rings = [[this.plan?.subgoal, "edited"], [document.activeElement === this.canvas ? this.focused : null, "ink"]];
    for (const [number, name] of rings) {
      [c.strokeStyle, c.lineWidth] = [color(name), 3];
      if (map.points[number]) circle(map.points[number], 9, ["stroke"]);
    }
    $("#aim").textContent = `★ goal, ● agent${Number.isInteger(this.plan?.subgoal) ? ", ○ the recorded state nearest to the subgoal" : ""}`;
  }

  drawStar(c, x, y) {
    c.beginPath();
    for (let i = 0; i < 10; i++) c.lineTo(x + (i % 2 ? 5 : 12) * Math.sin((i * Math.PI) / 5), y - (i % 2 ? 5 : 12) * Math.cos((i * Math.PI) / 5));
    c.closePath();
    [c.fillStyle, c.strokeStyle, c.lineWidth] = [color("goal"), color("card"), 2];
    c.stroke();
    c.fill();
  }

  // The point nearest to the pointer, or null.
  locate(event) {
    const { left, top } = this.canvas.getBoundingClientRect(), to = (pair) => Math.hypot(...this.at(pair).map((x, i) => x - [event.clientX - left, event.clientY - top][i]));
    const far = this.map?.points.map(to) ?? [], least = Math.min(...far);
    return least < NEAR ? far.indexOf(least) : null;
  }

  describe(number) {
    const { map, page } = this, distance = map?.colors?.[number], place = map?.points[number];
    if (!place) return;
    const far = distance === undefined ? "" : `: ${page.about.distance_unit === "value" ? `value ${short(distance)}` : `${distance === null ? "beyond all" : short(distance)} ${page.about.distance_unit} from the goal`}`;
    $("#hovered").textContent = `${map.x} ${short(place[0])}, ${map.y} ${short(place[1])}${far}`;
  }

  // Arrow keys choose the next point in a direction; Enter makes it the goal.
  move(event) {
    const by = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0], Enter: [0, 0] }[event.key];
    if (!by || !this.map) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === "Enter") return this.pursue(this.focused);
    const { points } = this.map, start = this.at(points[this.focused] ?? this.map.points[0]);
    const costs = points.map((pair) => {
      const [x, y] = this.at(pair).map((value, i) => value - start[i]), along = x * by[0] + y * by[1];
      return along > 0.5 ? along + 3 * Math.abs(x * by[1] + y * by[0]) : Infinity;
    }), least = Math.min(...costs);
    this.focused = this.focused === null ? 0 : least < Infinity ? costs.indexOf(least) : this.focused;
    this.describe(this.focused);
    this.draw();
  }

  async pursue(number) {
    if (number === null) return;
    this.refocus = document.activeElement === this.canvas && this.focused === number;
    await this.page.playNew("pursue", { number });
  }
}

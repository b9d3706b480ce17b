// A chart of uPlot: a title with the values at the cursor, shaded and hatched rows, and clicks that say where.

import { color, el, short } from "./dom.js";

const HATCH = 7; // pixels between two lines of a hatched area
const STEPS = [...Array(10).keys()].flatMap((power) => [1, 2, 5].map((x) => x * 10 ** power)); // of the ticks of an axis

export class Chart {
  // given: title, more (elements beside the title), range, sync, points, stacked, bare (no legend), height,
  // go(x), zoom(min, max).
  constructor(box, given) {
    this.box = box;
    this.given = given;
    this.title = el("div", { className: "name" });
    this.plotted = el("div", { className: "plot", role: "img", ariaLabel: `Chart: ${given.title}` });
    box.append(this.title, this.plotted);
    this.names = null;
    this.observer = new ResizeObserver(() => {
      this.plot?.setSize({ width: this.width(), height: this.plotted.clientHeight });
      if (this.plot && this.at !== undefined) requestAnimationFrame(() => this.mark(this.at)); // as wide as it is now
    });
    this.observer.observe(this.plotted);
  }

  width() {
    return Math.max(120, this.plotted.clientWidth);
  }

  // series: [{ name, values, color, dash, wide, silent (not in the legend), plain (there without
  // its value), width, dots (their size), band (the color of the area between the series before and
  // this one) }]; shade, hatch: x from which on the background is tinted or hatched.
  show(x, series, view, shade = Infinity, hatch = Infinity) {
    const names = JSON.stringify([this.given.title, series.map((one) => [one.name, one.color, one.dash, one.wide])]);
    Object.assign(this, { x, series, shade, hatch });
    const data = [x, ...(this.given.stacked ? stackValues(series) : series.map((one) => one.values))];
    if (names !== this.names) this.#make(data, series);
    this.names = names;
    this.plot.batch(() => {
      this.plot.setData(data, false);
      this.quiet = true;
      this.plot.setScale("x", { min: view[0], max: view[1] });
      this.quiet = false;
    });
    this.#writeValues();
  }

  // Draws the line of the present, and writes the values there.
  mark(x) {
    this.at = x;
    const left = this.plot.valToPos(x, "x");
    this.now.hidden = x === null || left < 0 || left > this.plot.over.clientWidth;
    this.now.style.left = `${left}px`;
    this.#writeValues();
  }

  #writeValues() {
    const index = this.hovered ?? (this.at === undefined ? null : this.x.findLastIndex((x) => x <= this.at));
    this.values.forEach((place, i) => {
      const { values } = this.series[i], text = short(index === null ? values.findLast((value) => value !== null) : values[index]);
      if (place.textContent !== text) place.textContent = text;
    });
  }

  #make(data, series) {
    this.plot?.destroy();
    const ink = color("soft"), line = color("line"), bands = this.given.stacked;
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    this.values = series.map(() => el("b"));
    const legend = series.map((one, i) => {
      const key = el("i", { className: one.dash ? "dashed" : "" });
      key.style.setProperty("--key", one.color);
      return el("span", {}, key, one.name ? `${one.name} ` : "", one.plain ? "" : this.values[i]);
    });
    this.title.replaceChildren(this.given.title ? el("h3", {}, this.given.title) : "", ...(this.given.more ?? []), ...(this.given.bare ? [] : legend.filter((_, i) => !series[i].silent)));
    const options = {
      width: this.width(),
      height: this.plotted.clientHeight,
      legend: { show: false },
      padding: [6, 20, 0, 0],
      scales: { x: { time: false }, y: { range: this.given.range ?? findRange } },
      cursor: { y: false, points: { show: !bands, size: 6 }, sync: this.given.sync ? { key: this.given.sync } : undefined, drag: { x: true, y: false } },
      axes: [
        { ...axis, size: 22, gap: 2, incrs: STEPS, values: (u, ticks) => ticks.map(short) },
        { ...axis, size: 46, gap: 4, space: 26, values: (u, ticks) => ticks.map(short) },
      ],
      series: [{}, ...series.map((one) => ({
        label: one.name, stroke: one.color, width: bands ? 0 : one.width ?? (one.wide ? 2.5 : 1.6), dash: one.dash ? [5, 4] : undefined, spanGaps: false,
        fill: bands ? one.color : undefined, paths: bands ? uPlot.paths.stepped({ align: 1 }) : undefined,
        points: { show: one.dots ? true : this.given.points, size: one.dots ?? 6, fill: one.dots ? one.color : undefined },
      }))],
      bands: series.flatMap((one, i) => (one.band ? [{ series: [i, i + 1], fill: one.band }] : [])),
      hooks: {
        drawClear: [(u) => this.#shadeRows(u)],
        setCursor: [(u) => ((this.hovered = u.cursor.left >= 0 ? u.cursor.idx : null), this.#writeValues())],
        setScale: [(u, key) => {
          if (key === "x" && !this.quiet && u.status === 1) this.given.zoom?.(u.scales.x.min, u.scales.x.max);
        }],
      },
    };
    if (bands) options.series.splice(1, Infinity, ...options.series.slice(1).reverse()); // the highest sum is drawn first
    this.plot = new uPlot(options, data, this.plotted);
    this.now = el("div", { className: "now", hidden: true });
    this.plot.over.append(this.now);
    let down = 0;
    this.plot.over.addEventListener("mousedown", (event) => (down = event.clientX));
    this.plot.over.addEventListener("click", (event) => {
      const box = this.plot.over.getBoundingClientRect();
      if (Math.abs(event.clientX - down) < 4) this.given.go?.(this.plot.posToVal(event.clientX - box.left, "x"));
    });
    this.plot.over.addEventListener("dblclick", () => this.given.zoom?.(null, null));
  }

  #shadeRows(u) {
    const { left, top, width, height } = u.bbox, place = (x) => Math.max(left, u.valToPos(x, "x", true));
    const [shade, hatch] = [this.shade, this.hatch].map(place);
    if (shade < left + width) {
      u.ctx.fillStyle = color("wash");
      u.ctx.fillRect(shade, top, left + width - shade, height);
    }
    if (!(hatch < left + width)) return;
    u.ctx.save();
    u.ctx.beginPath();
    u.ctx.rect(hatch, top, left + width - hatch, height);
    u.ctx.clip();
    u.ctx.strokeStyle = color("line");
    u.ctx.lineWidth = devicePixelRatio;
    u.ctx.setLineDash([]);
    u.ctx.beginPath();
    for (let x = hatch - height; x < left + width; x += HATCH * devicePixelRatio) {
      u.ctx.moveTo(x, top + height);
      u.ctx.lineTo(x + height, top);
    }
    u.ctx.stroke();
    u.ctx.restore();
  }
}

// As uPlot, but that only zeros are between 0 and 1, not 100.
const findRange = (_, low, high) => (low === null ? [null, null] : low === 0 && high === 0 ? [0, 1] : uPlot.rangeNum(low, high, 0.1, true));

// The sums of the first 1, 2, ... series, the last sum first.
function stackValues(series) {
  const total = series[0].values.map(() => 0);
  return series.map((one) => one.values.map((value, i) => (value === null ? null : (total[i] += value)))).reverse();
}

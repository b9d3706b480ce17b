// The runs of a folder as a table: sorted, searched, and compared.

import { remember, remembered } from "./address.js";
import { Chart } from "./chart.js";
import { $, el, hue, short } from "./dom.js";

const score = (run) => run.curves?.["eval/score"] ?? run.curves?.["episode/score"] ?? run.curves?.["estimate/return"];
const last = (curve) => curve?.[1].at(-1) ?? null;

const COLUMNS = [
  ["run", (run) => run.name, (run) => el("a", { href: `?run=${encodeURIComponent(run.name)}` }, run.name)],
  ["algorithm", (run) => run.algorithm ?? ""],
  ["environment", (run) => run.env ?? ""],
  ["seed", (run) => run.seed ?? null],
  ["step", (run) => run.step ?? null, (run) => (run.step ?? 0).toLocaleString("en")],
  ["episode score", (run) => last(run.curves?.["episode/score"]), null],
  ["evaluation", (run) => last(run.curves?.["eval/score"]), null],
  ["curve", (run) => last(score(run)), (run) => spark(score(run))],
  ["changed", (run) => run.changed ?? null, (run) => (run.live ? "training now" : new Date(run.changed * 1000).toLocaleString())],
];

function spark(curve) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("width", 110);
  svg.setAttribute("height", 24);
  if (!curve || curve[0].length < 2) return svg;
  const [x, y] = curve, low = Math.min(...y), high = Math.max(...y), end = x.at(-1) - x[0] || 1;
  const points = x.map((at, i) => `${(((at - x[0]) / end) * 106 + 2).toFixed(1)},${(21 - ((y[i] - low) / (high - low || 1)) * 18).toFixed(1)}`);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  for (const [name, value] of Object.entries({ points: points.join(" "), fill: "none", stroke: hue(0), "stroke-width": 1.5 })) line.setAttribute(name, value);
  svg.append(line);
  return svg;
}

export class RunTable {
  constructor(page, hello) {
    this.page = page;
    this.runs = hello.runs;
    this.ticked = new Set(remembered("runs")?.split(","));
    this.by = [8, -1];
    $("#table").hidden = false;
    $("#title").textContent = hello.folder;
    const head = COLUMNS.map(([name], i) => el("th", { scope: "col" }, el("button", { onclick: () => this.sort(i) }, name)));
    $("#table thead").append(el("tr", {}, el("th", { scope: "col", className: "hint" }, "compare"), ...head));
    $("#find").addEventListener("input", () => this.draw());
    $("#metric").addEventListener("change", () => this.compare());
    new ResizeObserver(() => this.chart && this.compare()).observe($("#comparison"));
    setInterval(() => this.again(), 5000);
    this.draw();
    this.compare();
  }

  // What runs that are training now have come to.
  async again() {
    if (document.hidden || !this.runs.some((run) => run.live)) return;
    const hello = await this.page.ask("hello", {}, true);
    if (!hello) return;
    this.runs = hello.runs;
    if (!$("#table tbody").contains(document.activeElement)) this.draw();
    if (this.chart) this.compare();
  }

  sort(column) {
    this.by = [column, this.by[0] === column ? -this.by[1] : column > 3 ? -1 : 1];
    this.draw();
  }

  draw() {
    $("#facts").textContent = `${this.runs.length} runs`;
    const [column, sign] = this.by, value = COLUMNS[column][1], wanted = $("#find").value.toLowerCase();
    const shown = this.runs.filter((run) => `${run.name} ${run.algorithm} ${run.env}`.toLowerCase().includes(wanted));
    shown.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (typeof x === "string" ? x.localeCompare(y) : x - y);
    });
    [...$("#table thead tr").children].slice(1).forEach((th, i) => {
      if (i === column) th.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      else th.removeAttribute("aria-sort");
    });
    $("#table tbody").replaceChildren(...shown.map((run) => this.line(run)));
  }

  line(run) {
    if (run.error) return el("tr", {}, el("td"), el("td", {}, run.name), el("td", { className: "bad", colSpan: COLUMNS.length - 1 }, run.error));
    const box = el("input", { type: "checkbox", checked: this.ticked.has(run.name), ariaLabel: `compare ${run.name}`,
      onchange: () => (this.ticked[box.checked ? "add" : "delete"](run.name), remember({ runs: [...this.ticked].join(",") || null }), this.compare()) });
    const cells = COLUMNS.map(([, value, shown]) => {
      const found = shown ? shown(run) : value(run);
      return typeof found === "number" || found === null ? el("td", {}, short(found)) : el("td", {}, found);
    });
    return el("tr", {}, el("td", {}, box), ...cells);
  }

  compare() {
    const chosen = this.runs.filter((run) => this.ticked.has(run.name));
    $("#compared").hidden = chosen.length < 2;
    if (chosen.length < 2) return;
    const metrics = [...new Set(chosen.flatMap((run) => Object.keys(run.curves)))], select = $("#metric");
    const wanted = metrics.includes(select.value) ? select.value : metrics.find((name) => name === "eval/score") ?? metrics[0];
    select.replaceChildren(...metrics.map((name) => el("option", { value: name, selected: name === wanted }, name)));
    const curves = chosen.map((run) => run.curves[wanted] ?? [[], []]);
    const x = [...new Set(curves.flatMap(([steps]) => steps))].sort((a, b) => a - b);
    const series = curves.map(([steps, values], i) => ({ name: chosen[i].name, color: hue(i), values: between(x, steps, values) }));
    this.chart ??= new Chart($("#comparison"), { title: "", always: true });
    this.chart.show(x, series, [0, Math.max(1, ...x)]);
  }
}

// A curve at other steps: on the lines between its points, null outside of them.
function between(x, steps, values) {
  let i = 0;
  return x.map((at) => {
    while (i < steps.length - 1 && steps[i + 1] < at) i++;
    if (!steps.length || at < steps[0] || at > steps.at(-1)) return null;
    if (steps.length === 1 || at === steps[i]) return values[i];
    return values[i] + ((at - steps[i]) / (steps[i + 1] - steps[i])) * (values[i + 1] - values[i]);
  });
}

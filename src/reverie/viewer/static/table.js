// The runs of a folder as a table: sorted, searched, and compared.

import { remember, remembered } from "./address.js";
import { Comparison, METRICS } from "./comparison.js";
import { $, el, short } from "./dom.js";

const charted = (run) => Object.keys(METRICS).find((name) => run.curves?.[name]);
const last = (curve) => curve?.[1].at(-1) ?? null;
// Step and score of the newest evaluation, and whether it is at the end of training.
const evaluation = (run) => {
  const [steps, scores] = run.curves?.["eval/score"] ?? [[], []], end = run.finals?.at(-1);
  return end && !(steps.at(-1) > end[0]) ? [...end, true] : [steps.at(-1), scores.at(-1) ?? null, false];
};

const NUMBERS = [3, 7]; // the first column of numbers, and the column after the last one
const COLUMNS = [
  ["run", (run) => run.name, (run) => el("a", { href: `?run=${encodeURIComponent(run.name)}` }, run.name)],
  ["algorithm", (run) => run.algorithm ?? ""],
  ["environment", (run) => run.env ?? ""],
  ["seed", (run) => run.seed ?? null],
  ["step", (run) => run.step ?? null, (run) => (run.step ?? 0).toLocaleString("en")],
  ["episode score", (run) => last(run.curves?.["episode/score"])],
  ["evaluation", (run) => evaluation(run)[1], (run) => el("span", { title: evaluation(run)[2] ? "at the end of training" : "during training" },
    short(evaluation(run)[1]), evaluation(run)[2] ? " ◆" : "")],
  ["curve", (run) => last(run.curves?.[charted(run)]), (run) => spark(run.curves[charted(run)], evaluation(run), charted(run))],
  ["changed", (run) => run.changed ?? null, (run) => (run.live ? "training now" : new Date(run.changed * 1000).toLocaleString())],
];

const kind = (column) => (column >= NUMBERS[0] && column < NUMBERS[1] ? "num" : "");

// A curve with a diamond for the evaluation at the end of training.
function spark([steps, scores] = [[], []], [end, final, marked], metric) {
  const x = marked ? [...steps, end] : steps, y = marked ? [...scores, final] : scores;
  const low = Math.min(...y), high = Math.max(...y), first = Math.min(...x), wide = Math.max(...x) - first || 1;
  const at = (step, score) => [((step - first) / wide) * 98 + 4, 19 - ((score - low) / (high - low || 1)) * 14].map((number) => number.toFixed(1));
  const draw = (tag, given, ...children) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(given)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };
  const color = metric === "eval/score" ? "var(--dream)" : "var(--real)", words = METRICS[metric] ?? "no scores";
  const line = draw("polyline", { points: steps.map((step, i) => at(step, scores[i])).join(" "), fill: "none", stroke: color, "stroke-width": 1.5 });
  const mark = marked ? [draw("path", { d: `M${at(end, final)}m-4 0l4 -4l4 4l-4 4z`, fill: "var(--ink)" })] : [];
  return draw("svg", { width: 110, height: 24, role: "img", "aria-label": words }, draw("title", {}, marked ? `${words} ◆ evaluation at the end` : words), line, ...mark);
}

export class RunTable {
  constructor(page, hello) {
    this.page = page;
    this.runs = hello.runs;
    this.ticked = new Set(remembered("runs")?.split(","));
    this.by = [8, -1];
    if (remembered("beside")) return void this.beside(remembered("beside").split(","));
    $("#table").hidden = false;
    $("#title").textContent = hello.folder;
    const head = COLUMNS.map(([name], i) => el("th", { scope: "col", className: kind(i) }, el("button", { onclick: () => this.sort(i) }, name)));
    $("#table thead").append(el("tr", {}, el("th", { scope: "col", className: "hint" }, "compare"), ...head));
    $("#find").addEventListener("input", () => this.draw());
    $("#ticked button").addEventListener("click", () => $("#compared").scrollIntoView());
    this.comparison = new Comparison();
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
    if (this.runs.some((run) => run.live && this.ticked.has(run.name))) this.compare();
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
      onchange: () => (this.ticked[box.checked ? "add" : "delete"](run.name), this.compare()) });
    const cells = COLUMNS.map(([, value, shown], i) => {
      const found = shown ? shown(run) : value(run);
      return el("td", { className: kind(i) }, typeof found === "number" || found === null ? short(found) : found);
    });
    return el("tr", {}, el("td", {}, box), ...cells);
  }

  // Agents side by side, on the same seed.
  beside(runs) {
    const frames = runs.map((run) => el("iframe", { title: run }));
    const seed = $("#beside input"), load = () => frames.forEach((frame, i) => (frame.src = `?run=${encodeURIComponent(runs[i])}&seed=${seed.value}`));
    $("#title").textContent = runs.join(" and ");
    $("#beside").append(...frames);
    $("#beside").hidden = false;
    seed.addEventListener("change", load);
    load();
  }

  // Compares the ticked runs, and keeps their names in the address.
  async compare() {
    const ticked = () => this.runs.filter((run) => !run.error && this.ticked.has(run.name)).map((run) => run.name);
    const runs = ticked();
    remember({ runs: runs.join(",") || null });
    $("#compared").hidden = $("#ticked").hidden = runs.length < 2;
    $("#ticked b").textContent = `${runs.length} runs are ticked`;
    $("#pair").hidden = runs.length !== 2;
    $("#pair").href = `?beside=${encodeURIComponent(runs.join(","))}`;
    const known = runs.length < 2 ? null : await this.page.ask("compare_runs", { runs }, true);
    if (known && String(ticked()) === String(runs)) this.comparison.show(known);
  }
}

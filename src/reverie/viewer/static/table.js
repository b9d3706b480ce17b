// The runs of a folder as a table: sorted, searched, and compared.

import { remember, remembered } from "./address.js";
import { Comparison, METRICS, countRuns } from "./comparison.js";
import { $, el, formatScore, short, svg } from "./dom.js";

const charted = (run) => Object.keys(METRICS).find((name) => run.curves?.[name]);
const last = (curve) => curve?.[1].at(-1) ?? null;
// Step and score of the newest evaluation, and whether it is at the end of training.
const evaluation = (run) => {
  const [steps, scores] = run.curves?.["eval/score"] ?? [[], []], end = run.finals?.at(-1);
  return end && !(steps.at(-1) > end[0]) ? [...end, true] : [steps.at(-1), scores.at(-1) ?? null, false];
};
const withScores = (run) => ({ ...run, score: last(run.curves?.["episode/score"]), evaluation: evaluation(run), height: last(run.curves?.[charted(run)]) });

// Runs with the same settings as one line, with means over their seeds; of copies of a seed the first counts.
function merge(runs) {
  const seeds = [...new Map(runs.toReversed().map((run) => [run.seed, run])).values()];
  const mean = (value) => {
    const known = seeds.map(value).filter((number) => number !== null);
    return known.length ? known.reduce((sum, number) => sum + number) / known.length : null;
  };
  const names = runs.map((run) => run.name), shared = [...names[0]].findIndex((letter, i) => names.some((name) => name[i] !== letter));
  return { ...runs[0], runs, name: names[0].slice(0, shared).replace(/[\W_]*(seed)?[\W_]*$/, "") || runs[0].algorithm, count: countRuns(runs.length, seeds.length),
    step: Math.max(...runs.map((run) => run.step)), changed: Math.max(...runs.map((run) => run.changed)), live: runs.some((run) => run.live), score: mean((run) => run.score),
    evaluation: [null, mean((run) => run.evaluation[1]), runs.every((run) => run.evaluation[2])], height: mean((run) => run.height) };
}

const NUMBERS = new Set(["seed", "step", "episode score", "evaluation"]);
const COLUMNS = [
  ["run", (run) => run.name, (run) => el("a", { href: `?run=${encodeURIComponent(run.name)}` }, run.name)],
  ["algorithm", (run) => run.algorithm ?? ""],
  ["environment", (run) => run.env ?? ""],
  ["seed", (run) => run.seed ?? null, (run) => run.count ?? short(run.seed)],
  ["step", (run) => run.step ?? null, (run) => (run.step ?? 0).toLocaleString("en")],
  ["episode score", (run) => run.score, (run) => formatScore(run.score)],
  ["evaluation", (run) => run.evaluation[1], (run) => el("span", { title: run.evaluation[2] ? "at the end of training" : "during training" },
    formatScore(run.evaluation[1]), run.evaluation[2] ? " ◆" : "")],
  ["curve", (run) => run.height, (run) => spark(run.runs ?? [run])],
  ["changed", (run) => run.changed ?? null, (run) => (run.live ? el("span", { className: "live" }, "training now") : formatDate(new Date(run.changed * 1000)))],
];

// How long ago something was, with the exact date as title; a month ago, the date.
function formatDate(date) {
  const seconds = (Date.now() - date) / 1000, units = [["d", 86400], ["h", 3600], ["min", 60]], [unit, size] = units.find(([, size]) => seconds >= size) ?? [];
  const text = seconds > 30 * 86400 ? date.toLocaleDateString() : unit ? `${Math.floor(seconds / size)} ${unit} ago` : "just now";
  return el("time", { dateTime: date.toISOString(), title: date.toLocaleString() }, text);
}

const kind = (column) => (NUMBERS.has(COLUMNS[column][0]) ? "num" : "");

// The curves of runs, with diamonds for the evaluations at the end of training.
function spark(runs) {
  const metric = charted(runs.find(charted) ?? {}), curves = runs.map((run) => run.curves[metric] ?? [[], []]);
  const marks = runs.filter((run) => run.evaluation[2]).map((run) => run.evaluation);
  const x = [...curves.flatMap(([steps]) => steps), ...marks.map(([end]) => end)], y = [...curves.flatMap(([, scores]) => scores), ...marks.map(([, score]) => score)];
  const low = Math.min(...y), high = Math.max(...y), first = Math.min(...x), wide = Math.max(...x) - first || 1;
  const at = (step, score) => [((step - first) / wide) * 98 + 4, 19 - ((score - low) / (high - low || 1)) * 14].map((number) => number.toFixed(1));
  const color = metric === "eval/score" ? "var(--dream)" : "var(--real)", words = METRICS[metric] ?? "no scores";
  const lines = curves.map(([steps, scores]) => svg("polyline", { points: steps.map((step, i) => at(step, scores[i])).join(" "), fill: "none", stroke: color,
    "stroke-width": runs.length > 1 ? 1 : 1.5, opacity: runs.length > 1 ? 0.6 : 1 }));
  const diamonds = marks.map(([end, score]) => svg("path", { d: `M${at(end, score)}m-4 0l4 -4l4 4l-4 4z`, fill: "var(--ink)" }));
  return svg("svg", { width: 110, height: 24, role: "img", "aria-label": words }, svg("title", {}, marks.length ? `${words} ◆ evaluation at the end` : words), ...lines, ...diamonds);
}

export class RunTable {
  constructor(page, hello) {
    this.page = page;
    this.runs = hello.runs.map(withScores);
    this.opened = new Set(); // groups whose runs are listed
    this.ticked = new Set(remembered("runs")?.split(","));
    this.by = [COLUMNS.length - 1, -1];
    if (remembered("beside")) return void this.beside(remembered("beside").split(","));
    $("#table").hidden = false;
    $("#title").textContent = hello.folder;
    const head = COLUMNS.map(([name], i) => el("th", { scope: "col", className: kind(i) }, el("button", { onclick: () => this.sort(i) }, name)));
    $("#table thead").append(el("tr", {}, el("th", { scope: "col", className: "hint" }, "compare"), ...head));
    $("#find").addEventListener("input", () => this.draw());
    $("#ticked button").addEventListener("click", () => $("#compared").scrollIntoView());
    this.comparison = new Comparison(() => this.compare());
    setInterval(() => this.again(), 5000);
    this.draw();
    this.compare();
  }

  // New runs, and what runs that are training now have come to.
  async again() {
    if (document.hidden) return;
    const hello = await this.page.ask("hello", {}, true);
    if (!hello) return;
    this.runs = hello.runs.map(withScores);
    this.draw();
    if (this.runs.some((run) => run.live && this.ticked.has(run.name))) this.compare();
  }

  sort(column) {
    this.by = [column, this.by[0] === column ? -this.by[1] : column > 3 ? -1 : 1];
    this.draw();
  }

  draw() {
    $("#facts").textContent = `${this.runs.length} runs`;
    const [column, sign] = this.by, value = COLUMNS[column][1], wanted = $("#find").value.toLowerCase();
    const groups = Map.groupBy(this.runs.filter((run) => `${run.name} ${run.algorithm} ${run.env}`.toLowerCase().includes(wanted)), (run) => run.group ?? run.name);
    const order = (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (typeof x === "string" ? x.localeCompare(y) : x - y);
    };
    const shown = [...groups.values()].map((runs) => (runs.length > 1 ? merge(runs) : runs[0])).sort(order);
    [...$("#table thead tr").children].slice(1).forEach((th, i) => {
      if (i === column) th.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      else th.removeAttribute("aria-sort");
    });
    const rows = shown.flatMap((run) => [this.line(run), ...(this.opened.has(run.runs && run.group) ? run.runs.toSorted(order).map((one) => this.line(one, "member")) : [])]);
    const body = $("#table tbody"), focusable = (row) => [...row.querySelectorAll("input, button, a")], focused = document.activeElement;
    const place = body.contains(focused) ? [focused.closest("tr").dataset.name, focusable(focused.closest("tr")).indexOf(focused)] : null;
    body.replaceChildren(...rows);
    if (place) focusable(rows.find((row) => row.dataset.name === place[0]) ?? body)[place[1]]?.focus({ preventScroll: true });
  }

  // The row of a run, or of runs with the same settings.
  line(run, className = "") {
    if (run.error) return el("tr", { className }, el("td"), el("td", {}, run.name), el("td", { className: "bad", colSpan: COLUMNS.length - 1 }, run.error));
    const names = (run.runs ?? [run]).map((one) => one.name), ticked = names.filter((name) => this.ticked.has(name)).length;
    const box = el("input", { type: "checkbox", checked: ticked === names.length, indeterminate: ticked > 0 && ticked < names.length,
      ariaLabel: `compare ${run.name}`, onchange: () => {
        for (const name of names) this.ticked[box.checked ? "add" : "delete"](name);
        this.draw();
        this.compare();
      } });
    const isOpen = this.opened.has(run.group), open = () => (this.opened[isOpen ? "delete" : "add"](run.group), this.draw());
    const cells = COLUMNS.map(([label, value, shown], i) => {
      const content = run.runs && i === 0 ? el("button", { ariaExpanded: isOpen, onclick: open }, `${isOpen ? "▾" : "▸"} ${run.name}`) : (shown ?? value)(run);
      return el("td", { className: kind(i), ...(kind(i) && !(run.count && label === "seed") ? { "data-label": label } : {}) }, typeof content === "number" || content === null ? short(content) : content);
    });
    return el("tr", { className, "data-name": `${run.runs ? "group " : ""}${run.name}` }, el("td", {}, box), ...cells);
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
    const { options } = this.comparison, asked = JSON.stringify([runs, options]);
    const known = runs.length < 2 ? null : await this.page.ask("compare_runs", { runs, ...options }, true);
    if (known && JSON.stringify([ticked(), this.comparison.options]) === asked) this.comparison.show(known);
  }
}

// The ticked runs: one chart for each environment, and the settings in which they differ.

import { Chart } from "./chart.js";
import { $, el, hue } from "./dom.js";

export const METRICS = { "eval/score": "evaluations during training", "episode/score": "training episodes", "estimate/return": "returns estimated by FQE" };

const finals = (group, metric) => (metric === "eval/score" ? group.finals : []);

export class Comparison {
  constructor() {
    for (const at of ["#metric", "#smoothing"]) $(at).addEventListener("input", () => this.draw());
    const recolor = () => {
      for (const { chart } of this.panels?.values() ?? []) if (chart) chart.names = null; // made again
      if (this.panels) this.draw();
    };
    new MutationObserver(recolor).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolor);
  }

  show(known) {
    this.known = known;
    const count = (group, name) => Math.max(finals(group, name).length, (group.curves[name]?.seeds ?? []).filter(([steps]) => steps.length).length);
    const runsWith = (name) => known.groups.reduce((sum, group) => sum + count(group, name), 0);
    const metrics = Object.keys(METRICS).filter(runsWith), select = $("#metric"), most = Math.max(...metrics.map(runsWith));
    const wanted = metrics.includes(select.value) ? select.value : metrics.find((name) => runsWith(name) === most);
    select.replaceChildren(...metrics.map((name) => el("option", { value: name, selected: name === wanted }, METRICS[name])));
    known.groups.forEach((group, i) => Object.assign(group, { color: hue(i % 8), label: label(group, i, known) }));
    const cells = (tag, texts) => el("tr", {}, ...texts.map((text) => el(tag, {}, /^\d{4,}$/.test(text) ? (+text).toLocaleString("en") : text)));
    $("#differences thead").replaceChildren(cells("th", ["setting", ...known.groups.map((group) => group.label)]));
    $("#differences tbody").replaceChildren(...known.differences.map(([name, values]) => cells("td", [name, ...values])));
    $("#differences").hidden = !known.differences.length;
    const before = this.panels ?? new Map();
    this.panels = new Map();
    for (const group of known.groups) {
      const key = `${group.env}, by ${group.unit}`;
      const panel = this.panels.get(key) ?? before.get(key) ?? { box: el("div", { className: "chart tall" }), missing: el("p", { className: "hint" }) };
      if (!this.panels.has(key)) this.panels.set(key, Object.assign(panel, { groups: [] }));
      panel.groups.push(group);
    }
    if (String([...before.keys()]) !== String([...this.panels.keys()]))
      $("#comparison").replaceChildren(...[...this.panels.values()].map(({ box, missing }) => el("div", {}, box, missing)));
    this.draw();
  }

  draw() {
    const metric = $("#metric").value;
    $("#dots").hidden = metric !== "eval/score";
    for (const [title, panel] of this.panels) {
      const { groups, box, missing } = panel;
      const drawn = groups.filter((group) => group.curves[metric] || finals(group, metric).length);
      box.hidden = !drawn.length;
      missing.textContent = groups.filter((group) => !group.curves[metric]).map((group) => `${group.label}: no ${METRICS[metric] ?? "scores"}.`).join(" ");
      if (!drawn.length) {
        missing.textContent = `${title}: ${missing.textContent}`;
        continue;
      }
      const curves = drawn.flatMap((group) => group.curves[metric]?.seeds ?? []);
      const x = [...new Set([...curves.flatMap(([steps]) => steps), ...drawn.flatMap((group) => [...finals(group, metric).map(([step]) => step), ...(group.curves[metric]?.interval?.[0] ?? [])])])].sort((a, b) => a - b);
      const series = [];
      const add = (values, given) => series.push({ values, ...given });
      for (const group of drawn) {
        const { color } = group, curve = group.curves[metric], seeds = `${group.seeds} ${group.seeds === 1 ? "seed" : "seeds"}`;
        const count = group.seeds === group.runs.length ? seeds : `${group.runs.length} runs, ${seeds}`;
        const line = (steps, values, given) => add(between(x, steps, smooth(values, +$("#smoothing").value)), { color, ...given });
        if (curve?.interval) {
          const [steps, middle, low, high] = curve.interval;
          line(steps, middle, { name: `${group.label}: IQM of ${count}, 95 % interval`, wide: true });
          line(steps, high, { silent: true, width: 0 });
          line(steps, low, { silent: true, width: 0, band: `${color}30` });
        } else
          (curve?.seeds ?? []).forEach(([steps, values], i) => line(steps, values, { name: `${group.label}: ${count}`, silent: i > 0, plain: group.runs.length > 1 }));
        finals(group, metric).forEach(([step, score], i) => add(x.map((at) => (at === step ? score : null)),
          { color, dots: 9, name: `${group.label}: evaluation at the end`, silent: Boolean(curve) || i > 0, plain: group.finals.length > 1 }));
      }
      panel.chart ??= new Chart(box, { title });
      panel.chart.show(x, series, [0, 1.04 * Math.max(1, ...x)]);
    }
  }
}

// The algorithm, or what else tells a group from others of its algorithm and environment.
function label(group, number, { groups, differences }) {
  const alike = [...groups.keys()].filter((i) => groups[i].algorithm === group.algorithm && groups[i].env === group.env);
  const rows = differences.filter(([, values]) => alike.some((i) => values[i] !== values[number]));
  if (!rows.length) return group.algorithm;
  if (rows.length > 2) return group.runs.length > 1 ? `${group.runs[0]} and like it` : group.runs[0];
  return [group.algorithm, ...rows.map(([name, values]) => `${name.split(".").at(-1)} ${values[number]}`)].join(", ");
}

// Means over a share of all points around each; fewer at the ends.
function smooth(values, percent) {
  const half = Math.round((values.length * percent) / 200);
  return values.map((_, i) => {
    const part = values.slice(Math.max(0, i - half), i + half + 1).filter((value) => value !== null);
    return part.length ? part.reduce((sum, value) => sum + value, 0) / part.length : null;
  });
}

// A curve at other steps: on the lines between its points, null outside of them.
function between(x, steps, values) {
  let i = 0;
  return x.map((at) => {
    while (i < steps.length - 1 && steps[i + 1] <= at) i++;
    if (!steps.length || at < steps[0] || at > steps.at(-1)) return null;
    if (at === steps[i]) return values[i];
    return values[i] + ((at - steps[i]) / (steps[i + 1] - steps[i])) * (values[i + 1] - values[i]);
  });
}

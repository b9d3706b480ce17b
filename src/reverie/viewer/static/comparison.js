// The ticked runs: what can be said of them, the scores and curves of their groups, and the settings that differ.

import { Chart } from "./chart.js";
import { $, el, hue, short, svg } from "./dom.js";

export const METRICS = { "eval/score": "evaluations during training", "episode/score": "training episodes", "estimate/return": "returns estimated by FQE" };

const finals = (group, metric) => (metric === "eval/score" ? group.finals : []);
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
export const countRuns = (runs, seeds) => (runs === seeds ? plural(seeds, "seed") : `${plural(runs, "run")}, ${plural(seeds, "seed")}`);

export class Comparison {
  // ask(): compares again, along another axis or at another budget.
  constructor(ask) {
    for (const at of ["#metric", "#smoothing"]) $(at).addEventListener("input", () => this.draw());
    for (const at of ["#axis", "#budget input"]) $(at).addEventListener("input", ask);
    const recolor = () => {
      for (const { chart } of this.panels?.values() ?? []) if (chart) chart.names = null; // made again
      if (this.panels) this.draw();
    };
    new MutationObserver(recolor).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolor);
  }

  // What the request for a comparison says besides the runs.
  get options() {
    return { axis: $("#axis").value, same_budget: $("#budget input").checked };
  }

  show(known) {
    this.known = known;
    this.showAnswers(known);
    const curves = (name) => known.groups.flatMap((group) => group.curves[name]?.seeds ?? []).filter(([steps]) => steps.length), select = $("#metric");
    const points = (name) => curves(name).reduce((sum, [steps]) => sum + steps.length, 0); // evaluations at the end are no curve
    const metrics = Object.keys(METRICS).filter((name) => curves(name).length || known.groups.some((group) => finals(group, name).length));
    const wanted = metrics.includes(select.value) ? select.value : metrics.toSorted((a, b) => curves(b).length - curves(a).length || points(b) - points(a))[0];
    select.replaceChildren(...metrics.map((name) => el("option", { value: name, selected: name === wanted }, METRICS[name])));
    const several = known.groups.some(({ env }) => env !== known.groups[0].env), names = known.groups.map(({ label, env }) => (several ? `${label}, ${env}` : label));
    const format = (text) => (/^\d{4,}$/.test(text) ? (+text).toLocaleString("en") : text);
    $("#differences thead").replaceChildren(el("tr", {}, ...["setting", ...names].map((name) => el("th", {}, name))));
    $("#differences tbody").replaceChildren(...known.differences.map(([name, values]) => el("tr", {}, el("td", {}, name),
      ...values.map((value, i) => el("td", { "data-label": names[i] }, format(value))))));
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

  // A sentence for each environment, and the scores of its groups with their intervals.
  showAnswers({ answers, groups, remarks }) {
    const budgets = answers.filter(({ budget }) => budget !== null).map(({ budget }) => budget.toLocaleString("en"));
    $("#budget").hidden = !budgets.length;
    $("#budget span").textContent = `all after ${budgets.join(" or ")} steps`;
    $("#answers").replaceChildren(
      ...answers.map(({ task, text }) => el("div", { className: "answer" }, el("p", {}, text), drawIntervals(groups.filter(({ score }) => score?.task === task)))),
      ...(remarks.length ? [el("div", { className: "remarks" }, ...remarks.map((remark) => el("span", { className: "hint" }, remark)))] : []));
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
        const color = hue(group.hue), curve = group.curves[metric], count = countRuns(group.runs.length, group.seeds);
        const line = (steps, values, given) => add(between(x, steps, smooth(values, +$("#smoothing").value)), { color, ...given });
        if (curve?.interval) {
          const [steps, middle, low, high] = curve.interval;
          line(steps, middle, { name: `${group.label}: IQM of ${count}, 95 % interval`, wide: true });
          line(steps, high, { silent: true, width: 0 });
          line(steps, low, { silent: true, width: 0, band: color.replace(")", ", .19)") });
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

// Rows of a label, the score in numbers, and a mark at the IQM with its interval among the scores of the seeds.
function drawIntervals(groups) {
  const ends = groups.flatMap(({ score }) => [...score.scores, score.interval.value, score.interval.low, score.interval.high]).filter((end) => end !== null);
  const spread = Math.max(...ends) - Math.min(...ends), wide = spread || Math.max(1, Math.abs(ends[0])), low = Math.min(...ends) - (wide - spread) / 2;
  const at = (value) => `${(2 + (96 * (value - low)) / wide).toFixed(2)}%`;
  const rows = groups.toSorted((a, b) => b.score.interval.value - a.score.interval.value).flatMap(({ label, hue, runs, score }) => {
    const { texts } = score, { low, high } = score.interval, value = low === null ? score.mean : score.interval.value, paint = `var(--hue${hue})`, key = el("i", { className: "key" }), known = low !== null;
    key.style.setProperty("--key", paint);
    const line = (x1, x2, y1, y2, width) => svg("line", { x1: at(x1), x2: at(x2), y1, y2, stroke: paint, "stroke-width": width });
    const dots = score.scores.map((x, i) => svg("circle", { cx: at(x), cy: 8 + ((i * 7) % 19), r: 3.5, fill: paint, opacity: 0.45 }));
    const bar = known ? [line(low, high, 17, 17, 3), line(low, low, 11, 23, 2), line(high, high, 11, 23, 2)] : [];
    const words = known ? `IQM ${texts.value} (${texts.low} to ${texts.high})` : "too few seeds for an interval";
    return [el("span", {}, key, label, el("span", { className: "hint" }, ` ${countRuns(runs.length, score.scores.length)}`)),
      el("span", {}, el("b", {}, `mean ${texts.mean}`), el("span", { className: "hint" }, ` ${words}`)),
      svg("svg", { role: "img", "aria-label": `${label}: ${words}` }, ...dots, ...bar, svg("rect", { x: at(value), y: 12, width: 10, height: 10, transform: "translate(-5 0)", fill: paint, stroke: "var(--paper)" }))];
  });
  const known = groups.map(({ score }) => score.interval.low !== null), marks = ["■ mean", "■ IQM with its 95 % interval, or the mean without one", "■ IQM and its 95 % interval"][known.some(Boolean) + known.every(Boolean)];
  const rough = wide / 4, power = 10 ** Math.floor(Math.log10(rough)), step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const ticks = [...Array(6).keys()].map((i) => (Math.ceil(low / step) + i) * step).filter((tick) => tick <= low + wide);
  return el("div", { className: "intervals" }, ...rows, el("span", { className: "hint about" }, `${marks}, ● seeds`),
    svg("svg", { class: "ticks", "aria-hidden": true }, ...ticks.map((tick) => svg("text", { x: at(tick), y: 13 }, short(tick)))));
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

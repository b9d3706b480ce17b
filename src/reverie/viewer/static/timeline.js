// The numbers of all rows: charts on one axis that zoom together, and tell where they were clicked.

import { remember, remembered } from "./address.js";
import { Chart } from "./chart.js";
import { $, color, listDimensions, el, hue, short } from "./dom.js";

const BANDS = 8; // actions with a band or a line; the others are summed up or left out

export class Timeline {
  constructor(go) {
    this.go = go;
    this.charts = new Map();
    this.key = null;
    const zoom = remembered("zoom")?.split(",").map(Number);
    this.zoomed = zoom?.length === 2 && zoom[0] < zoom[1] ? zoom : null;
  }

  // Rows have changed.
  show(rows, about, context, end) {
    Object.assign(this, { rows, about, context, end });
    if (!this.due) this.due = requestAnimationFrame(() => ((this.due = 0), this.draw()));
  }

  // The row has changed.
  mark(at) {
    this.at = at;
    if (!this.due) for (const chart of this.charts.values()) chart.mark(at);
  }

  draw() {
    const { rows, about } = this, x = rows.map((row) => row.t), view = this.zoomed ?? [0, Math.max(1, rows.length - 1)];
    const shade = about.dreams ? this.context - 0.5 : Infinity, hatch = about.dreams ? this.end ?? Infinity : Infinity;
    const drawn = Object.entries(this.makeSeries()).map(([name, series]) => [this.findChart(name), series]);
    for (const [chart, series] of drawn) chart.show(x, series, view, shade, hatch); // once all have their place
    for (const chart of this.charts.values()) chart.mark(this.at);
    this.showSurprises();
  }

  makeSeries() {
    const { rows, about } = this, real = color("real"), dream = color("dream");
    const line = (name, side, key, stroke, dash) => ({ name, values: rows.map((row) => row[side]?.[key] ?? null), color: stroke, dash });
    const found = { Reward: [line(about.dreams ? "real" : "", "real", "reward", real)] };
    const values = (row) => row.real ?? row.dream;
    if (rows.some((row) => row.real?.distance !== undefined)) found[`Distance to the goal (${about.distance_unit})`] = [line("", "real", "distance", real)];
    if (about.dreams) {
      const errors = Object.keys(rows[0]?.error ?? {});
      this.key = errors.includes(this.key) ? this.key : errors[0];
      found.Reward.push(line("dream", "dream", "reward", dream, true));
      found["Error of the dream"] = [{ name: "", values: rows.map((row) => row.error?.[this.key] ?? null), color: dream }];
      if (about.latents) found["Surprise (KL, nats)"] = [line("", "real", "kl", real)];
      found.Value = [line("real", "real", "value", real), line("dream", "dream", "value", dream, true)];
    } else if (rows.some((row) => row.real?.value !== undefined)) {
      found.Value = [line("", "real", "value", real)];
    }
    const actions = about.names.length === about.width ? about.names : [...Array(about.width).keys()].map((i) => `action ${i}`);
    if (rows.some((row) => row.real?.q)) found["Q of each action"] = makeClassSeries(rows, actions, (row) => row.real?.q);
    if (about.choices.length && rows.some((row) => values(row)?.policy))
      found["Policy (probability)"] = makeClassSeries(rows, actions, (row) => values(row)?.policy, about.choices.length === 1);
    if (about.continuous.length) found["Action (-1 to 1)"] = makeActionSeries(rows, about);
    if (about.dreams && about.latents) found["Entropy (nats)"] = [line("prior", "real", "prior_entropy", hue(5)),
      line("posterior", "real", "posterior_entropy", hue(2)), line("dream’s prior", "dream", "prior_entropy", dream, true)];
    if (about.dreams) found.Continuation = [{ name: "real", color: real, values: rows.map((row) => (row.real ? +!row.real.terminal : null)) },
      line("dream", "dream", "cont", dream, true)];
    return found;
  }

  findChart(name) {
    if (!this.charts.has(name)) {
      const box = el("div", { className: "chart" }), probability = /^Policy/.test(name);
      $("#timeline .charts").append(box);
      this.charts.set(name, new Chart(box, {
        title: name, sync: "rows", more: /^Error/.test(name) ? [this.makeErrorSelect()] : [],
        range: probability || name === "Continuation" ? [0, 1] : /^Action/.test(name) ? [-1, 1] : undefined,
        stacked: probability && this.about.choices.length === 1,
        go: (x) => this.go(Math.round(x)),
        zoom: (min, max) => this.zoom(min, max),
      }));
    }
    return this.charts.get(name);
  }

  // Shows the rows from min to max; null: all.
  zoom(min, max) {
    this.zoomed = min === null || (min <= 0 && max >= this.rows.length - 1) ? null : [min, max];
    remember({ zoom: this.zoomed?.map((x) => +x.toFixed(1)).join(",") });
    this.show(this.rows, this.about, this.context, this.end);
  }

  zoomBy(factor) {
    const [min, max] = this.zoomed ?? [0, this.rows.length - 1];
    this.zoom(...[min, max].map((x) => Math.max(0, Math.min(this.rows.length - 1, this.at + (x - this.at) * factor))));
  }

  makeErrorSelect() {
    const select = el("select", { ariaLabel: "Error of", onchange: () => ((this.key = select.value), this.draw()) });
    for (const key of Object.keys(this.rows[0].error)) select.append(el("option", { value: key, selected: key === this.key }, key));
    return select;
  }

  findSurprises(count = 5) {
    const known = this.rows.filter((row) => row.real?.kl !== undefined && row.t > 0);
    return known.sort((a, b) => b.real.kl - a.real.kl).slice(0, count).map((row) => row.t);
  }

  showSurprises() {
    const found = this.findSurprises();
    if (String(found) === this.listed) return;
    this.listed = String(found);
    const buttons = found.map((t) => el("button", { onclick: () => this.go(t), title: `KL ${short(this.rows[t].real.kl)} nats`, ariaLabel: `Surprising row ${t}` }, String(t)));
    $("#surprises").replaceChildren(...(found.length ? [el("span", { className: "hint" }, "most surprising"), ...buttons] : []));
  }

  // Begin anew, as for another theme, agent or episode.
  reset() {
    for (const chart of this.charts.values()) chart.observer.disconnect();
    this.charts.clear();
    this.listed = null;
    $("#timeline .charts").replaceChildren();
  }
}

// A series for each of the likeliest (or best) actions of all rows, and one for the sum of the others.
function makeClassSeries(rows, names, read, sum = false) {
  const known = rows.map(read), total = names.map((_, i) => known.reduce((all, values) => all + (values?.[i] ?? 0), 0));
  const order = names.map((_, i) => i).sort((a, b) => total[b] - total[a]), many = names.length > BANDS;
  const chosen = new Set(many ? order.slice(0, BANDS - 1) : order), shown = names.map((_, i) => i).filter((i) => chosen.has(i));
  const series = shown.map((action, i) => ({ name: names[action], color: hue(i + 2), values: known.map((values) => values?.[action] ?? null) }));
  if (many && sum) series.push({ name: "other", color: color("edge"),
    values: known.map((values) => (values ? Math.max(0, 1 - shown.reduce((all, i) => all + values[i], 0)) : null)) });
  return series;
}

// A series for each number of the actions taken.
function makeActionSeries(rows, about) {
  return listDimensions(about).slice(0, BANDS).map(({ name, index }, i) => ({ name, color: hue(i + 2), values: rows.map((row) => row.action?.flat()[index] ?? null) }));
}

// The numbers of all rows on one axis: charts that zoom together, and tell where they were clicked.

import { $, color, el, hue, short } from "./dom.js";

export class Chart {
  // given: title, height, and on: { go(x), zoom(min, max) }.
  constructor(box, given) {
    this.box = box;
    this.given = given;
    this.title = el("div", { className: "name" });
    this.plotted = el("div");
    box.append(this.title, this.plotted);
    this.names = null;
  }

  // series: [{ name, values, color, dash }]; shade: x from which on the background is tinted.
  show(x, series, view, shade = Infinity) {
    const names = JSON.stringify([this.given.title, series.map((one) => [one.name, one.color, one.dash])]);
    const width = Math.max(120, this.box.clientWidth);
    this.shade = shade;
    if (names !== this.names) this.#make(x, series, width);
    this.names = names;
    if (this.plot.width !== width) this.plot.setSize({ width, height: this.height });
    this.plot.batch(() => {
      this.plot.setData([x, ...series.map((one) => one.values)], false);
      this.quiet = true;
      this.plot.setScale("x", { min: view[0], max: view[1] });
      this.quiet = false;
    });
  }

  mark(x) {
    this.at = x;
    const left = this.plot.valToPos(x, "x");
    this.now.hidden = x === null || left < 0 || left > this.plot.over.clientWidth;
    this.now.style.left = `${left}px`;
  }

  #make(x, series, width) {
    this.plot?.destroy();
    this.height = this.box.clientHeight - 22;
    const ink = color("soft"), line = color("line");
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    this.title.replaceChildren(el("b", {}, this.given.title ?? ""), ...(this.given.more ?? []));
    if (series.length > 1 || this.given.always)
      for (const one of series) {
        const key = el("i");
        key.style.background = one.color;
        this.title.append(el("span", { title: one.name }, key, one.name));
      }
    const options = {
      width,
      height: this.height,
      legend: { show: false },
      padding: [6, 16, 0, 0],
      scales: { x: { time: false }, y: this.given.range ? { range: this.given.range } : {} },
      cursor: { y: false, points: { size: 6 }, sync: this.given.sync ? { key: this.given.sync } : undefined,
                drag: { x: true, y: false } },
      axes: [
        { ...axis, size: 20, gap: 2, values: (u, ticks) => ticks.map(short) },
        { ...axis, size: 44, gap: 4, space: 22, values: (u, ticks) => ticks.map(short) },
      ],
      series: [{}, ...series.map((one) => ({
        label: one.name, stroke: one.color, width: 1.5, dash: one.dash ? [4, 3] : undefined, spanGaps: false,
        points: { show: Boolean(this.given.points), size: 6 },
      }))],
      hooks: {
        drawClear: [(u) => this.#tint(u)],
        setScale: [(u, key) => {
          if (key === "x" && !this.quiet && u.status === 1) this.given.zoom?.(u.scales.x.min, u.scales.x.max);
        }],
      },
    };
    this.plot = new uPlot(options, [x, ...series.map((one) => one.values)], this.plotted);
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

  #tint(u) {
    const { left, top, width, height } = u.bbox;
    const from = Math.max(left, u.valToPos(this.shade, "x", true));
    if (!(from < left + width)) return;
    u.ctx.fillStyle = color("wash");
    u.ctx.fillRect(from, top, left + width - from, height);
  }
}

export class Timeline {
  constructor(go) {
    this.go = go;
    this.zoomed = null;
    this.charts = new Map();
    this.key = null;
    new ResizeObserver(() => this.rows && this.draw()).observe($("#timeline"));
  }

  show(rows, about, context, at) {
    Object.assign(this, { rows, about, context, at });
    if (!this.due) this.due = requestAnimationFrame(() => ((this.due = 0), this.draw()));
  }

  draw() {
    const { rows, about } = this;
    const x = rows.map((row) => row.t), last = Math.max(20, rows.length - 1);
    const view = this.zoomed ?? [0, last];
    const shade = about.dreams ? this.context - 0.5 : Infinity;
    const drawn = Object.entries(this.series()).map(([name, series]) => [this.chart(name), series]);
    for (const [chart, series] of drawn) chart.show(x, series, view, shade); // once all have their place
    for (const chart of this.charts.values()) chart.mark(this.at);
    this.surprises();
  }

  series() {
    const { rows, about } = this, real = color("real"), dream = color("dream");
    const of = (side, name) => rows.map((row) => row[side]?.[name] ?? null);
    const line = (name, side, key, stroke, dash) => ({ name, values: of(side, key), color: stroke, dash });
    const found = { Reward: [line("happened", "real", "reward", real)] };
    const actions = about.names.length === about.width ? about.names : [...Array(about.width).keys()].map(String);
    const each = (key) => actions.slice(0, 12).map((name, i) => ({
      name, color: hue(i), values: rows.map((row) => (row.real ?? row.dream)?.[key]?.[i] ?? null) }));
    if (about.dreams) {
      const errors = Object.keys(rows[0]?.error ?? {});
      this.key = errors.includes(this.key) ? this.key : errors[0];
      found.Reward.push(line("dreamt", "dream", "reward", dream, true));
      found.Error = [{ name: "dream", values: rows.map((row) => row.error?.[this.key] ?? null), color: dream }];
      if (about.latents) found["Surprise (KL, nats)"] = [line("KL", "real", "kl", real)];
      found.Value = [line("seen", "real", "value", real), line("dreamt", "dream", "value", dream, true)];
      if (about.latents) found["Entropy (nats)"] = [line("prior", "real", "prior_entropy", hue(3)),
        line("posterior", "real", "posterior_entropy", hue(2)), line("dream’s prior", "dream", "prior_entropy", dream, true)];
      found["Continuation"] = [{ name: "happened", color: real, values: rows.map((row) => (row.real ? +!row.real.terminal : null)) },
        line("dreamt", "dream", "cont", dream, true)];
    } else if (rows.some((row) => row.real?.value !== undefined)) {
      found.Value = [line("value", "real", "value", real)];
    }
    if (rows.some((row) => row.real?.q)) found["Q of each action"] = each("q");
    const policy = about.choices.length ? "Policy (probability)" : "Policy (action)";
    if (rows.some((row) => (row.real ?? row.dream)?.policy)) found[policy] = each("policy");
    return found;
  }

  chart(name) {
    if (!this.charts.has(name)) {
      const box = el("div", { className: "chart" });
      $("#timeline .charts").append(box);
      this.charts.set(name, new Chart(box, {
        title: name, sync: "rows", range: /^(Continuation|Policy .prob)/.test(name) ? [0, 1] : undefined, more: name === "Error" ? [this.choice()] : [],
        go: (x) => this.go(Math.round(x)),
        zoom: (min, max) => {
          this.zoomed = min === null || (min <= 0 && max >= this.rows.length - 1) ? null : [min, max];
          this.show(this.rows, this.about, this.context, this.at);
        },
      }));
    }
    return this.charts.get(name);
  }

  choice() {
    const select = el("select", { ariaLabel: "Error of", onchange: () => ((this.key = select.value), this.draw()) });
    for (const key of Object.keys(this.rows[0].error)) select.append(el("option", { value: key }, key));
    return select;
  }

  surprising(count = 5) {
    const known = this.rows.filter((row) => row.real?.kl !== undefined && row.t > 0);
    return known.sort((a, b) => b.real.kl - a.real.kl).slice(0, count).map((row) => row.t);
  }

  surprises() {
    const found = this.surprising();
    if (String(found) === this.listed) return;
    this.listed = String(found);
    const buttons = found.map((t) => el("button", { onclick: () => this.go(t), title: `KL ${short(this.rows[t].real.kl)} nats` }, String(t)));
    $("#surprises").replaceChildren(...(found.length ? [el("span", { className: "hint" }, "most surprising:"), ...buttons] : []));
  }

  // Begin anew, as for another theme or agent.
  reset() {
    this.zoomed = null;
    this.charts.clear();
    this.listed = "";
    $("#timeline .charts").replaceChildren();
  }
}

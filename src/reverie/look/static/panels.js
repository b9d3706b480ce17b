// What stands beside the stage: numbers, futures, the latent, training, and files to share.

import { $, colour, el, fresh, hue, paint, save, short } from "./dom.js";
import { Chart } from "./timeline.js";

export class Panels {
  constructor(page) {
    this.page = page;
    this.chosen = null;
    setInterval(() => this.chosen === "Training" && !document.hidden && this.training(true), 5000);
  }

  meet() {
    const { dreams } = this.page.about;
    const names = dreams ? ["Numbers", "Futures", "Latent", "Training", "Share"] : ["Numbers", "Training", "Share"];
    const tab = (name) => el("button", { role: "tab", id: `tab-${name}`, onclick: () => this.choose(name),
      onkeydown: (event) => this.besides(event, names, name) }, name);
    $("#tabs").replaceChildren(...names.map(tab));
    this.futures = null;
    this.choose(names.includes(this.chosen) ? this.chosen : "Numbers");
  }

  besides(event, names, name) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const next = names[(names.indexOf(name) + by + names.length) % names.length];
    this.choose(next);
    $(`#tab-${next}`).focus();
  }

  choose(name) {
    this.chosen = name;
    for (const one of $("#tabs").children) {
      one.setAttribute("aria-selected", one.id === `tab-${name}`);
      one.tabIndex = one.id === `tab-${name}` ? 0 : -1;
    }
    $("#panel").replaceChildren();
    this.curve = this.grid = null;
    const { page } = this;
    ({ Futures: () => this.drawFutures(), Training: () => this.training(), Share: () => this.share() })[name]?.();
    if (page.rows[page.at]) this.show(page.rows[page.at]);
  }

  recolour() {
    this.choose(this.chosen ?? "Numbers");
  }

  show(row) {
    if (this.chosen === "Numbers") this.numbers(row);
    if (this.chosen === "Latent") this.latent();
  }

  // ------------------------------------------------------------------ numbers

  numbers(row) {
    const { page } = this, box = el("div", { className: "numbers" });
    const keys = Object.keys(row.real?.numbers ?? row.dream?.numbers ?? {});
    const dreams = page.about.dreams;
    if (keys.length) box.append(el("b", {}, ""), el("b", {}, ""), el("b", {}, "real"), el("b", {}, dreams ? "dreamt" : ""));
    for (const key of keys) {
      const real = row.real?.numbers?.[key], dream = row.dream?.numbers?.[key];
      for (let i = 0; i < (real ?? dream).length; i++) {
        const canvas = el("canvas", { title: "the last 60 rows" });
        box.append(el("b", {}, keys.length > 1 ? `${key} ${i}` : String(i)), canvas, el("span", {}, short(real?.[i])),
          el("span", {}, dreams ? short(dream?.[i]) : ""));
        requestAnimationFrame(() => this.trace(canvas, key, i));
      }
    }
    const names = page.about.names, taken = row.action?.flat();
    const what = taken && page.about.choices.length === 1 && !page.about.continuous.length
      ? names[taken.indexOf(1)] ?? String(taken.indexOf(1)) : taken?.map(short).join(", ");
    const parts = [box];
    if (!keys.length) parts[0] = el("p", {}, "This agent sees no vectors of numbers.");
    if (what !== undefined) parts.push(el("p", {}, `action taken here: ${what}`));
    if (row.real?.value !== undefined) parts.push(el("p", {}, `value ${short(row.real.value)}${row.real.kl === undefined ? "" : ` · surprise ${short(row.real.kl)} nats`}`));
    if (row.real?.q) parts.push(this.bars("Q of each action", row.real.q));
    $("#panel").replaceChildren(...parts);
  }

  bars(title, values) {
    const { names, width } = this.page.about, canvas = el("canvas");
    const height = values.length * 22 + 4;
    canvas.style.cssText = `width: 100%; height: ${height}px`;
    requestAnimationFrame(() => {
      const [c, w] = fresh(canvas, height), low = Math.min(...values), high = Math.max(...values);
      c.font = "12px system-ui";
      values.forEach((value, i) => {
        c.fillStyle = value === high ? colour("real") : colour("line");
        c.fillRect(90, i * 22 + 4, 4 + ((value - low) / (high - low || 1)) * (w - 160), 14);
        c.fillStyle = colour("ink");
        c.fillText(names.length === width ? names[i] : `action ${i}`, 0, i * 22 + 15);
        c.fillText(short(value), w - 56, i * 22 + 15);
      });
    });
    return el("div", {}, el("h2", {}, title), canvas);
  }

  trace(canvas, key, number) {
    if (!canvas.isConnected) return;
    const [c, width, height] = fresh(canvas), rows = this.page.rows, end = this.page.at + 1, begin = Math.max(0, end - 60);
    const lines = ["real", "dream"].map((side) => rows.slice(begin, end).map((row) => row[side]?.numbers?.[key]?.[number] ?? null));
    const all = lines.flat().filter((x) => x !== null), low = Math.min(...all), high = Math.max(...all);
    lines.forEach((line, side) => {
      c.strokeStyle = colour(side ? "dream" : "real");
      c.lineWidth = 1.3;
      c.beginPath();
      let pen = false;
      line.forEach((value, i) => {
        const x = (i / 59) * (width - 2) + 1, y = height - 2 - ((value - low) / (high - low || 1)) * (height - 4);
        if (value !== null) c[pen ? "lineTo" : "moveTo"](x, y);
        pen = value !== null;
      });
      c.stroke();
    });
  }

  // ------------------------------------------------------------------ futures

  async branch(by = this.by ?? "sample") {
    const { page } = this;
    page.stop();
    this.by = by;
    if (this.chosen !== "Futures") this.choose("Futures");
    const steps = Math.max(1, Math.min(200, +($("#ahead")?.value ?? 15) || 15));
    const head = await page.ask("branch", { at: page.at, by, steps });
    if (!head) return;
    this.futures = head;
    this.ahead = steps;
    this.drawFutures();
  }

  drawFutures() {
    const { about } = this.page, found = this.futures;
    const bar = el("div", { className: "bar" },
      el("button", { id: "samples", onclick: () => this.branch("sample") }, "8 samples"),
      about.choices.length === 1 && !about.continuous.length ? el("button", { id: "each", onclick: () => this.branch("action") }, "One per action") : null,
      el("label", {}, el("input", { id: "ahead", type: "number", min: 1, max: 200, value: this.ahead ?? 15 }), " steps"));
    const about_ = found
      ? `From row ${found.at}, actions drawn from the policy. The return counts predicted rewards, and the value at the end. Choose one to go on with it.`
      : "Futures from this row: what could come, by the model. Choose one to go on with it.";
    const list = (found?.futures ?? []).map((one, number) => ({ one, number })).sort((a, b) => b.one.return - a.one.return);
    $("#panel").replaceChildren(bar, el("p", {}, about_), ...list.map(({ one, number }) => this.future(one, number)));
  }

  future(one, number) {
    const { page } = this, strip = el("div", { className: "strip" });
    let alive = 1;
    const lives = one.conts.map((cont) => (alive *= cont ?? 1));
    for (const t of this.futures.shown) {
      const picture = this.futures.pictures.find((p) => p.row === number && p.side === t);
      const canvas = el("canvas", { title: `step ${t + 1}`, className: lives[t] < 0.5 ? "over" : "" });
      if (picture) paint(canvas, picture.blob), strip.append(canvas);
    }
    const names = page.about.names, many = page.about.choices.length === 1;
    const taken = many ? one.actions.map((a) => names[a] ?? a).join(" ") : "";
    return el("button", { className: "future", title: "Go on with this future", onclick: async () => {
      const from = this.futures.at;
      this.futures = null;
      await page.change("pick", { number }, from);
      this.drawFutures();
      page.play();
    } }, strip, el("span", { title: taken }, taken), el("span", {}, "return ", el("b", {}, short(one.return))));
  }

  // ------------------------------------------------------------------ latent

  async latent() {
    const { page } = this;
    if (this.asking || page.playing) return;
    this.asking = true;
    const head = page.rows[page.at].dream ? await page.ask("latent", { at: page.at }, true) : null;
    this.asking = false;
    if (this.chosen !== "Latent" || !head) return;
    if (head.at !== page.at) return this.latent();
    if (!this.grid) this.latentPanel();
    this.state = head;
    this.drawLatent();
    $("#undo").disabled = !page.edits;
    $("#changed").textContent = page.edits ? `${page.edits} edit${page.edits > 1 ? "s" : ""}` : "";
    const probes = Object.entries(head.probes ?? {}).map(([key, values]) => `${key}: ${values.flat(9).slice(0, 12).map(short).join(", ")}`);
    $("#probes").textContent = probes.length ? `Probes: ${probes.join(" · ")}` : "";
  }

  latentPanel() {
    const classes = this.page.about.classes > 1;
    this.cell = [0, classes ? 0 : null];
    this.grid = el("canvas", { id: "grid", tabIndex: 0, ariaLabel: "Latents: arrow keys choose, Enter sets",
      onclick: (event) => this.set(...this.place(event)), onmousemove: (event) => this.hover(...this.place(event)),
      onkeydown: (event) => this.move(event), onfocus: () => this.drawLatent(), onblur: () => this.drawLatent() });
    const keep = classes ? el("label", {}, el("input", { type: "checkbox", id: "keep" }), "keep it while dreaming") : null;
    $("#panel").replaceChildren(
      el("p", {}, classes
        ? "Each row is a latent variable, each column a class: shaded by the prior, outlined where it is. Click a class to set it; the dream follows."
        : "Each bar is a latent variable: its value, and the prior’s mean ± deviation. Click to set a value; the dream follows."),
      this.grid, el("div", { className: "bar" }, keep, el("span", { className: "grow" }), el("span", { id: "changed", className: "hint" }),
        el("button", { id: "undo", onclick: () => this.undo() }, "Undo", el("kbd", {}, "u"))),
      el("p", { id: "hovered" }, "\u00a0"), el("p", { id: "probes" }));
  }

  drawLatent() {
    if (!this.state || !this.grid) return;
    const { latents, classes } = this.page.about, cell = Math.max(8, Math.min(20, Math.floor(420 / latents)));
    const height = classes > 1 ? latents * cell : Math.max(140, latents * 9);
    this.grid.style.height = `${height}px`;
    const [c, width] = fresh(this.grid, height), { state } = this, tall = height / latents, wide = width / classes;
    const [dream, edited, ink] = ["dream", "edited", "ink"].map(colour);
    const at = (x) => width / 2 + (Math.max(-3.5, Math.min(3.5, x)) * width) / 7.4;
    for (let i = 0; i < latents; i++) {
      if (classes === 1) {
        c.fillStyle = colour("line");
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

  place(event) {
    const { latents, classes } = this.page.about, box = this.grid.getBoundingClientRect();
    const row = Math.min(latents - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * latents)));
    const across = (event.clientX - box.left) / box.width;
    return [row, classes > 1 ? Math.min(classes - 1, Math.max(0, Math.floor(across * classes))) : (across - 0.5) * 7.4];
  }

  hover(row, value) {
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
    this.hover(row, value);
    if (event.key === "Enter") this.set(row, value);
    else this.drawLatent();
  }

  async set(latent, value) {
    const { page } = this;
    this.cell = [latent, value];
    page.stop();
    await page.change("edit", { at: page.at, latent, value, keep: Boolean($("#keep")?.checked) });
  }

  async undo() {
    if (this.page.edits) await this.page.change("undo", {});
  }

  // ------------------------------------------------------------------ training

  async training(again = false) {
    const { page } = this;
    if (again && (!this.curve || this.loading)) return;
    const head = await page.ask("run", {}, again);
    if (!head || this.chosen !== "Training") return;
    this.known = head;
    if (!this.curve) this.trainingPanel();
    const names = head.checkpoints.map((one) => one.name), now = names.indexOf(page.about.checkpoint);
    const slider = $("#checkpoint");
    slider.max = Math.max(0, names.length - 1);
    if (!this.loading && document.activeElement !== slider) slider.value = now < 0 ? slider.max : now;
    this.sayCheckpoint();
    $("#live").textContent = head.live ? "This run is still training: new checkpoints and curves appear by themselves." : "";
    const metrics = Object.keys(head.curves), select = $("#curve");
    if (select.children.length !== metrics.length) {
      const wanted = this.metric ?? ["eval/score", "episode/score"].find((name) => metrics.includes(name)) ?? metrics[0];
      select.replaceChildren(...metrics.map((name) => el("option", { value: name, selected: name === wanted }, name)));
    }
    this.drawCurve();
  }

  trainingPanel() {
    const box = el("div", { className: "chart tall" });
    $("#panel").replaceChildren(
      el("p", {}, this.page.about.dreams ? "The same episode, dreamed by earlier and later models of this run." : "The same episode, judged by earlier and later agents of this run."),
      el("label", {}, "Checkpoint ", el("input", { id: "checkpoint", type: "range", min: 0, max: 0, step: 1,
        oninput: () => this.sayCheckpoint(), onchange: () => this.use() })),
      el("p", { id: "which" }), el("p", { id: "live" }),
      el("label", {}, "Curve ", el("select", { id: "curve", onchange: () => ((this.metric = $("#curve").value), this.drawCurve()) })), box);
    this.curve = new Chart(box, { title: "" });
  }

  sayCheckpoint() {
    const one = this.known.checkpoints[+$("#checkpoint").value];
    if (!one) return;
    const best = one.name === this.known.best ? " (best)" : "";
    $("#which").textContent = `step ${one.step.toLocaleString("en")}${best}${this.loading ? ", loading …" : ""}`;
  }

  async use() {
    const { page } = this, wanted = this.known.checkpoints[+$("#checkpoint").value];
    if (this.loading || !wanted) return;
    page.stop();
    this.loading = true;
    this.sayCheckpoint();
    const head = await page.ask("use", { checkpoint: wanted.name });
    this.loading = false;
    if (head) {
      const at = page.at;
      page.about = head.about;
      page.take(head);
      page.go(at);
    }
    this.sayCheckpoint();
    this.drawCurve();
    const now = this.known.checkpoints[+$("#checkpoint").value];
    if (head && now && now.name !== wanted.name) await this.use(); // it was moved on meanwhile
  }

  drawCurve() {
    const [x, y] = this.known.curves[$("#curve").value] ?? [[0], [null]];
    this.curve.given.title = $("#curve").value ?? "";
    const step = this.known.checkpoints.find((one) => one.name === this.page.about.checkpoint)?.step ?? null;
    this.curve.show(x, [{ name: "", values: y, colour: hue(0) }], [0, Math.max(...x, step ?? 0, 1)]);
    this.curve.mark(step);
  }

  // ------------------------------------------------------------------ share

  share() {
    const kinds = { html: ["A page", "plays the episode and its dream; needs nothing but a browser"], mp4: ["A video (mp4)", "both sides, frame by frame"],
      gif: ["A GIF", "the same, for where videos do not play"], npz: ["The numbers (npz)", "rows, dream, states and predictions as arrays"] };
    const button = ([kind, [name, about]]) => el("button", { id: `save-${kind}`, onclick: async () => {
      const head = await this.page.ask("export", { kind });
      if (head) save(head.file, head.pictures[0].blob);
    } }, name, el("span", {}, about));
    $("#panel").replaceChildren(el("p", {}, "The episode as it is now, with its dream, as a file."),
      el("div", { className: "downloads" }, ...Object.entries(kinds).map(button)));
  }
}

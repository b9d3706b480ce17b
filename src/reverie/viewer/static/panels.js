// What stands beside the stage: the row, futures, the latent, episodes, training, and files to share.

import { remember, remembered } from "./address.js";
import { Chart } from "./chart.js";
import { $, actionText, color, el, fresh, hue, paint, save, short } from "./dom.js";
import { Gallery } from "./gallery.js";

export class Panels {
  constructor(page) {
    this.page = page;
    this.chosen = remembered("tab");
    this.gallery = new Gallery(page);
    setInterval(() => this.chosen === "Training" && !document.hidden && this.training(true), 5000);
  }

  meet() {
    const { dreams, latents } = this.page.about; // latents that are not drawn cannot be set
    const names = ["Row", ...(dreams ? ["Futures"] : []), ...(latents ? ["Latent"] : []), "Episodes", "Training", "Share"];
    const tab = (name) => el("button", { role: "tab", id: `tab-${name}`, onclick: () => this.choose(name),
      onkeydown: (event) => this.besides(event, names, name) }, name);
    $("#tabs").replaceChildren(...names.map(tab));
    for (const one of $("#tabs").children) one.setAttribute("aria-controls", "panel");
    this.futures = null;
    this.choose(names.includes(this.chosen) ? this.chosen : "Row");
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
    remember({ tab: name === "Row" ? null : name });
    for (const one of $("#tabs").children) {
      one.setAttribute("aria-selected", one.id === `tab-${name}`);
      one.tabIndex = one.id === `tab-${name}` ? 0 : -1;
    }
    $("#panel").setAttribute("aria-labelledby", `tab-${name}`);
    $("#panel").replaceChildren();
    this.curve = this.wrong = this.grid = null;
    const { page } = this;
    ({ Futures: () => this.drawFutures(), Episodes: () => $("#panel").replaceChildren(...this.gallery.draw()),
      Training: () => this.training(), Share: () => this.share() })[name]?.();
    if (page.rows[page.at]) this.show(page.rows[page.at]);
  }

  recolor() {
    this.choose(this.chosen ?? "Row");
  }

  show(row) {
    if (this.chosen === "Row") this.row(row);
    if (this.chosen === "Latent") this.latent();
  }

  // ------------------------------------------------------------------ the row

  // What is known of a row: its reward, values and action, the errors of the dream, and small vectors number by number.
  row(row) {
    const { about } = this.page, { dreams, units } = about, { real, dream, error } = row;
    const table = el("div", { className: dreams ? "numbers" : "numbers alone" });
    const line = (name, cells, title = "") => table.append(el("b", { title }, name), el("i"),
      ...cells.slice(0, dreams ? 3 : 1).map((x) => el("span", {}, typeof x === "string" ? x : short(x))));
    const off = (a, b) => (Number.isFinite(a) && Number.isFinite(b) ? Math.abs(a - b) : null);
    if (dreams) table.append(el("i"), el("i"), ...["real", "dream", "off by"].map((name) => el("i", {}, name)));
    line("reward", [real?.reward, dream?.reward, error?.reward]);
    if (dreams) line("continues", [real ? +!real.terminal : null, dream?.cont, error?.cont], "1 unless the row is terminal");
    if (real?.value !== undefined || dream) line("value", [real?.value, dream?.value, off(real?.value, dream?.value)], "by the critic");
    if (real?.kl !== undefined) line("surprise", [real.kl, "", ""], "KL of posterior and prior, in nats");
    for (const [key, value] of Object.entries(error ?? {}))
      if (!["reward", "cont"].includes(key)) line(key, ["", "", value], units[key] ?? "absolute difference");
    const parts = [table];
    if (row.action) parts.push(el("p", { id: "taken" }, "Action taken here: ", el("b", {}, actionText(row.action, about))));
    if (real?.q) parts.push(this.advantages(real.q));
    parts.push(...this.vectors(row));
    $("#panel").replaceChildren(...parts);
  }

  vectors({ real, dream }) {
    const keys = Object.keys(real?.numbers ?? dream?.numbers ?? {}), { dreams } = this.page.about;
    return keys.map((key) => {
      const table = el("div", { className: dreams ? "numbers" : "numbers alone" }), pair = [real?.numbers?.[key], dream?.numbers?.[key]];
      for (let i = 0; i < (pair[0] ?? pair[1]).length; i++) {
        const canvas = el("canvas", { title: "the last 60 rows", role: "img", ariaLabel: `${key} ${i} in the last 60 rows` }), [a, b] = pair.map((x) => x?.[i]);
        const cells = dreams ? [a, b, a === undefined || b === undefined ? null : Math.abs(a - b)] : [a];
        table.append(el("b", {}, String(i)), canvas, ...cells.map((x) => el("span", {}, short(x))));
        requestAnimationFrame(() => this.trace(canvas, key, i));
      }
      return el("div", {}, el("h2", {}, key), table);
    });
  }

  // Each action's advantage: its Q value over their mean, on one scale for the whole episode.
  advantages(values) {
    const { about, rows } = this.page, { names, width } = about, canvas = el("canvas", { id: "advantages", role: "img" });
    const over = (q) => q.map((value) => value - q.reduce((sum, x) => sum + x, 0) / q.length);
    const most = Math.max(1e-9, ...rows.flatMap((row) => over(row.real?.q ?? []).map(Math.abs))), best = values.indexOf(Math.max(...values));
    canvas.ariaLabel = `Advantage of each action, on a scale from ${short(-most)} to ${short(most)}`;
    const height = values.length * 24 + 4;
    canvas.style.cssText = `width: 100%; height: ${height}px`;
    requestAnimationFrame(() => {
      if (!canvas.isConnected) return;
      const [c, w] = fresh(canvas, height), zero = 96 + (w - 166) / 2;
      c.font = "13px system-ui";
      over(values).forEach((advantage, i) => {
        const wide = (advantage / most) * ((w - 166) / 2), y = i * 24 + 4;
        c.fillStyle = color(i === best ? "real" : "edge");
        c.fillRect(Math.min(zero, zero + wide), y, Math.max(1, Math.abs(wide)), 15);
        c.fillStyle = color("ink");
        c.fillText(names.length === width ? names[i] : `action ${i}`, 0, y + 12);
        c.textAlign = "right";
        c.fillText(values[i].toPrecision(4), w, y + 12);
        c.textAlign = "left";
      });
      c.fillStyle = color("soft");
      c.fillRect(zero - 0.5, 0, 1, height);
    });
    return el("div", {}, el("h2", {}, "Q of each action"), canvas, el("p", {}, "Bars: advantage over the mean, on one scale for the episode."));
  }

  trace(canvas, key, number) {
    if (!canvas.isConnected) return;
    const [c, width, height] = fresh(canvas), rows = this.page.rows, end = this.page.at + 1, begin = Math.max(0, end - 60);
    const lines = ["real", "dream"].map((side) => rows.slice(begin, end).map((row) => row[side]?.numbers?.[key]?.[number] ?? null));
    const all = lines.flat().filter((x) => x !== null), low = Math.min(...all), high = Math.max(...all);
    lines.forEach((line, side) => {
      c.strokeStyle = color(side ? "dream" : "real");
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
    const text = found
      ? `Futures from row ${found.at}, with actions drawn from the policy. The return adds the value of the last row. Choose a future to continue with it.`
      : "Imagine what could follow this row. Choose a future to continue with it.";
    const list = (found?.futures ?? []).map((one, number) => ({ one, number })).sort((a, b) => b.one.return - a.one.return);
    const boxes = found ? ["Value", "Reward"].map((title) => [title, el("div", { className: "chart" })]) : [];
    $("#panel").replaceChildren(bar, el("p", {}, text), ...boxes.map(([, box]) => box), ...list.map(({ one, number }) => this.future(one, number)));
    this.overlays = boxes.map(([title, box]) => new Chart(box, { title, bare: true, sync: "futures", go: null }));
    this.overlay();
  }

  // The values and the rewards of all futures in one chart each; the one that is pointed at is wide.
  overlay(pointed = null) {
    const found = this.futures;
    if (!found) return;
    const x = found.futures[0].rewards.map((_, t) => found.at + 1 + t);
    for (const [i, key] of ["values", "rewards"].entries()) {
      const series = found.futures.map((one, number) => ({ name: String(number), values: one[key].slice(0, life(one)), color: hue(number + 2), wide: number === pointed }));
      this.overlays[i].show(x, series, [x[0], Math.max(x[0] + 1, x.at(-1))]);
    }
  }

  future(one, number) {
    const { page } = this, strip = el("div", { className: "strip" }), key = el("i", { className: "key" });
    key.style.setProperty("--key", hue(number + 2));
    const length = life(one), ends = one.conts[length - 1] < 0.5, { names, choices, continuous } = page.about;
    for (const t of this.futures.shown) {
      const picture = this.futures.pictures.find((p) => p.row === number && p.side === t);
      const canvas = el("canvas", { title: `step ${t + 1}`, role: "img", ariaLabel: `step ${t + 1}`, className: t < length ? "" : "over" });
      if (picture) paint(canvas, picture.blob), strip.append(canvas);
    }
    const taken = choices.length === 1 && !continuous.length ? (names.length ? "" : "actions ") + runLengths(one.actions.slice(0, length).map((a) => names[a] ?? a)) : "";
    return el("button", { className: "future", title: "Continue with this future", onpointerenter: () => this.overlay(number), onpointerleave: () => this.overlay(),
      onfocus: () => this.overlay(number), onblur: () => this.overlay(), onclick: async () => {
        const from = this.futures.at;
        this.futures = null;
        await page.change("pick", { number }, from);
        this.drawFutures();
        page.play();
      } }, strip, el("span", {}, key, taken, ends ? ` · ends at step ${length}` : ""), el("span", {}, "return ", el("b", {}, short(one.return))));
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
    $("#probes").replaceChildren(...Object.entries(head.probes).map(([key, probe]) => this.probe(key, probe)));
  }

  // What a probe reads, and what is true if the row happened: maps of classes, arrows of goals, or numbers.
  probe(key, { read, truth, chance }) {
    const box = el("figure", {}, el("figcaption", {}, el("b", {}, `Probe: ${key}`))), sides = el("div", { className: "sides" });
    const said = (text) => (box.append(el("p", {}, text)), box);
    if (!read) return said("It is given something that only rows that happened have.");
    const flat = read.flat(9), grid = chance && Array.isArray(read[0]) && !Array.isArray(read[0][0]);
    if (grid) sides.append(this.map("read", read, chance), truth ? this.map("happened", truth) : "");
    else if (!chance && flat.length % 2 === 0 && flat.length <= 32) sides.append(this.arrows(flat, truth?.flat(9)));
    else return said(`${flat.slice(0, 12).map(short).join(", ")}${truth ? ` (happened: ${truth.flat(9).slice(0, 12).map(short).join(", ")})` : ""}`);
    box.append(sides);
    return box;
  }

  // A map [x][y] of classes, a color for each, fainter where the probe is less sure.
  map(name, cells, chance) {
    const across = cells.length, down = cells[0].length, size = Math.max(4, Math.floor(160 / Math.max(across, down)));
    const canvas = el("canvas", { width: across * size, height: down * size, title: name }), c = canvas.getContext("2d");
    cells.forEach((column, x) => column.forEach((kind, y) => {
      c.globalAlpha = chance?.[x][y] ?? 1;
      c.fillStyle = `hsl(${(210 + kind * 137.5) % 360} 45% 52%)`;
      c.fillRect(x * size, y * size, size - 1, size - 1);
    }));
    return el("div", {}, canvas, el("span", {}, name));
  }

  // Pairs of numbers as arrows from the middle: the first number to the right, the second upwards.
  arrows(read, truth) {
    const canvas = el("canvas", { width: 160, height: 160 }), c = canvas.getContext("2d");
    const most = Math.max(1e-6, ...[...read, ...(truth ?? [])].map(Math.abs));
    c.translate(80, 80);
    c.lineWidth = 2;
    for (const [pairs, name] of [[truth ?? [], "real"], [read, "dream"]])
      for (let i = 0; i < pairs.length; i += 2) {
        const x = (70 * pairs[i]) / most, y = (-70 * pairs[i + 1]) / most;
        c.strokeStyle = c.fillStyle = color(name);
        c.beginPath();
        c.moveTo(0, 0);
        c.lineTo(x, y);
        c.stroke();
        c.beginPath();
        c.arc(x, y, 4, 0, 7);
        c.fill();
      }
    return el("div", {}, canvas, el("span", {}, truth ? "read (orange), happened (blue)" : "read"));
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
      el("p", { id: "hovered" }, "\u00a0"), el("div", { id: "probes" }));
  }

  drawLatent() {
    if (!this.state || !this.grid) return;
    const { latents, classes } = this.page.about, cell = Math.max(8, Math.min(20, Math.floor(420 / latents)));
    const height = classes > 1 ? latents * cell : Math.max(140, latents * 9);
    this.grid.style.height = `${height}px`;
    const [c, width] = fresh(this.grid, height), { state } = this, tall = height / latents, wide = width / classes;
    const [dream, edited, ink] = ["dream", "edited", "ink"].map(color);
    const at = (x) => width / 2 + (Math.max(-3.5, Math.min(3.5, x)) * width) / 7.4;
    for (let i = 0; i < latents; i++) {
      if (classes === 1) {
        c.fillStyle = color("line");
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
    await page.change("edit", { at: page.at, latent, value, pin: Boolean($("#keep")?.checked) });
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
    this.drawCurves();
    this.judge();
  }

  trainingPanel() {
    const { dreams } = this.page.about, chart = (tall) => el("div", { className: `chart${tall}` }), boxes = [chart(" high"), chart(" tall")];
    $("#panel").replaceChildren(
      el("p", {}, dreams ? "The same episode, dreamt by earlier and later models of this run." : "The same episode, judged by earlier and later agents of this run."),
      el("label", {}, "Checkpoint ", el("input", { id: "checkpoint", type: "range", min: 0, max: 0, step: 1,
        oninput: () => this.sayCheckpoint(), onchange: () => this.use() })),
      el("p", { id: "which" }), el("p", { id: "live" }),
      ...(dreams ? [boxes[0]] : []),
      el("label", {}, "Curve ", el("select", { id: "curve", onchange: () => ((this.metric = $("#curve").value), this.drawCurves()) })), boxes[1]);
    this.curve = new Chart(boxes[1], { title: "" });
    const of = el("select", { id: "errorof", ariaLabel: "Error over training of", onchange: () => this.drawCurves() });
    this.wrong = dreams ? new Chart(boxes[0], { title: "Error of this dream", points: true, more: [of], go: (step) => this.near(step) }) : null;
  }

  // The checkpoint nearest to a step.
  near(step) {
    const far = this.known.checkpoints.map((one) => Math.abs(one.step - step));
    $("#checkpoint").value = far.indexOf(Math.min(...far));
    this.use();
  }

  // Asks how wrong each checkpoint's dream of this episode is, one after the other, while nothing else is asked for.
  async judge() {
    const { page } = this, episode = page.episode();
    if (this.judging || !this.wrong) return;
    if (this.judged?.episode !== episode) this.judged = { episode, errors: new Map() };
    this.judging = true;
    for (const { name } of [...this.known.checkpoints].reverse()) {
      if (page.playing || this.loading || !this.wrong || page.episode() !== episode) break;
      if (this.judged.errors.has(name)) continue;
      const head = await page.link.ask("compare_checkpoint", { checkpoint: name }).catch(() => null); // it may be gone by now
      this.judged.errors.set(name, head?.errors ?? {});
      this.drawCurves();
    }
    this.judging = false;
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
    const head = await page.ask("switch_checkpoint", { checkpoint: wanted.name });
    this.loading = false;
    if (head) {
      const at = page.at;
      page.about = head.about;
      page.checkpoint = wanted === this.known.checkpoints.at(-1) ? undefined : wanted.name;
      page.take(head);
      page.go(at);
    }
    this.sayCheckpoint();
    this.drawCurves();
    const now = this.known.checkpoints[+$("#checkpoint").value];
    if (head && now && now.name !== wanted.name) await this.use(); // it was moved on meanwhile
  }

  drawCurves() {
    if (!this.curve) return; // another panel has come meanwhile, or this one anew
    const { checkpoints, curves } = this.known, name = $("#curve").value, [x, y] = curves[name] ?? [[0], [null]];
    const step = checkpoints.find((one) => one.name === this.page.about.checkpoint)?.step ?? null;
    const view = [0, Math.max(1, ...x, ...checkpoints.map((one) => one.step))];
    const draw = (chart, x, values, name) => (chart.show(x, [{ name: "", values, color: color(name) }], view), chart.mark(step));
    this.curve.given.title = name ?? "";
    draw(this.curve, x, y, "real");
    if (!this.wrong) return;
    const errors = checkpoints.map((one) => this.judged?.errors.get(one.name) ?? {});
    const keys = Object.keys(errors.findLast((one) => Object.keys(one).length) ?? {}), of = this.wrong.given.more[0];
    if (of.children.length !== keys.length) of.replaceChildren(...keys.map((key) => el("option", {}, key)));
    of.title = this.page.about.units[of.value] ?? "";
    draw(this.wrong, checkpoints.map((one) => one.step), errors.map((one) => one[of.value] ?? null), "dream");
  }

  // ------------------------------------------------------------------ share

  share() {
    const kinds = { html: ["A page", "plays the episode and its dream; needs nothing but a browser"], mp4: ["A video (mp4)", "both sides, frame by frame"],
      gif: ["A GIF", "the same, for where videos do not play"], npz: ["The numbers (npz)", "rows, dream, states and predictions as arrays"] };
    const button = ([kind, [name, about]]) => el("button", { id: `save-${kind}`, onclick: async () => {
      const head = await this.page.ask("export_file", { kind });
      if (head) save(head.file, head.pictures[0].blob);
    } }, name, el("span", {}, about));
    $("#panel").replaceChildren(el("p", {}, "The episode as it is now, with its dream, as a file."),
      el("div", { className: "downloads" }, ...Object.entries(kinds).map(button)));
  }
}

// The number of steps of a future up to its end.
function life({ conts }) {
  const end = conts.findIndex((cont) => cont < 0.5);
  return end < 0 ? conts.length : end + 1;
}

// "left, forward × 3" for left, forward, forward, forward.
function runLengths(names) {
  const runs = [];
  for (const name of names) {
    if (runs.at(-1)?.[0] === name) runs.at(-1)[1]++;
    else runs.push([name, 1]);
  }
  return runs.map(([name, count]) => (count > 1 ? `${name} × ${count}` : name)).join(", ");
}

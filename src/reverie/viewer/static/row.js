// The tab Row: all numbers of the current row.

import { $, formatAction, color, el, clearCanvas, short } from "./dom.js";

export class Row {
  constructor(page) {
    this.page = page;
  }

  // What is known of a row: its reward, values and action, the errors of the dream, and small vectors number by number.
  show(row) {
    const { about } = this.page, { dreams, units } = about, { real, dream, error } = row;
    const table = el("div", { className: dreams ? "numbers" : "numbers alone" });
    const line = (name, cells, title = "") => table.append(el("b", { title }, name), el("i"),
      ...cells.slice(0, dreams ? 3 : 1).map((x) => el("span", {}, typeof x === "string" ? x : short(x))));
    const off = (a, b) => (Number.isFinite(a) && Number.isFinite(b) ? Math.abs(a - b) : null);
    if (dreams) table.append(el("i"), el("i"), ...["real", "dream", "off by"].map((name) => el("i", {}, name)));
    line("reward", [real?.reward, dream?.reward, error?.reward]);
    if (dreams) line("continues", [real ? +!real.terminal : null, dream?.cont, error?.cont], "1 unless the row is terminal");
    if (real?.value !== undefined || dream) line("value", [real?.value, dream?.value, off(real?.value, dream?.value)], "by the critic");
    if (real?.distance !== undefined) line("distance", [real.distance, "", ""], `to the goal (${about.distance_unit})`);
    if (real?.kl !== undefined) line("surprise", [real.kl, "", ""], "KL of posterior and prior, in nats");
    for (const [key, value] of Object.entries(error ?? {}))
      if (!["reward", "cont"].includes(key)) line(key, ["", "", value], units[key] ?? "absolute difference");
    const parts = [...this.explain(row), table];
    if (row.action) parts.push(el("p", { id: "taken" }, "Action taken here: ", el("b", {}, formatAction(row.action, about))));
    if (real?.q) parts.push(this.drawAdvantages(real.q));
    parts.push(...this.makeVectorTables(row));
    $("#panel").replaceChildren(...parts);
  }

  // Where truth and dream part: what the model was sure of there.
  explain(row) {
    const { page } = this, { rows } = page;
    if (!page.about.dreams || page.strip.shown?.parting !== row.t || !row.real) return [];
    const compare = (name, side) => {
      const values = rows.map((one) => one[side]?.[name]).filter((value) => value !== undefined && value !== null), value = row[side]?.[name];
      const below = values.filter((other) => other < value).length;
      return value === undefined || values.length < 2 ? null : `${short(value)} nats, above ${Math.round((100 * below) / (values.length - 1))} % of the other rows`;
    };
    const surprise = compare("kl", "real"), entropy = compare("prior_entropy", "dream");
    const texts = [surprise && `Surprise: ${surprise}.`, entropy && `Entropy of the dream’s prior: ${entropy}.`].filter(Boolean);
    return texts.length ? [el("section", { id: "why" }, el("h2", {}, "Where truth and dream part"), ...texts.map((text) => el("p", {}, text)))] : [];
  }

  makeVectorTables({ real, dream }) {
    const keys = Object.keys(real?.numbers ?? dream?.numbers ?? {}), { dreams } = this.page.about;
    return keys.map((key) => {
      const table = el("div", { className: dreams ? "numbers" : "numbers alone" }), pair = [real?.numbers?.[key], dream?.numbers?.[key]];
      for (let i = 0; i < (pair[0] ?? pair[1]).length; i++) {
        const canvas = el("canvas", { title: "the last 60 rows", role: "img", ariaLabel: `${key} ${i} in the last 60 rows` }), [a, b] = pair.map((x) => x?.[i]);
        const cells = dreams ? [a, b, a === undefined || b === undefined ? null : Math.abs(a - b)] : [a];
        table.append(el("b", {}, String(i)), canvas, ...cells.map((x) => el("span", {}, short(x))));
        requestAnimationFrame(() => this.drawTrace(canvas, key, i));
      }
      return el("div", {}, el("h2", {}, key), table);
    });
  }

  // Each action's advantage: its Q value over their mean, on one scale for the whole episode.
  drawAdvantages(values) {
    const { about, rows } = this.page, { names, width } = about, canvas = el("canvas", { id: "advantages", role: "img" });
    const over = (q) => q.map((value) => value - q.reduce((sum, x) => sum + x, 0) / q.length);
    const most = Math.max(1e-9, ...rows.flatMap((row) => over(row.real?.q ?? []).map(Math.abs))), best = values.indexOf(Math.max(...values));
    canvas.ariaLabel = `Advantage of each action, on a scale from ${short(-most)} to ${short(most)}`;
    const height = values.length * 24 + 4;
    canvas.style.cssText = `width: 100%; height: ${height}px`;
    requestAnimationFrame(() => {
      if (!canvas.isConnected) return;
      const [c, w] = clearCanvas(canvas, height), zero = 96 + (w - 166) / 2;
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

  drawTrace(canvas, key, number) {
    if (!canvas.isConnected) return;
    const [c, width, height] = clearCanvas(canvas), rows = this.page.rows, end = this.page.at + 1, begin = Math.max(0, end - 60);
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
}

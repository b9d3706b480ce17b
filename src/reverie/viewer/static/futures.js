// The tab Futures: what could follow a row, by the model.

import { Chart } from "./chart.js";
import { $, el, hue, paint, short } from "./dom.js";

export class Futures {
  constructor(page) {
    this.page = page;
  }

  meet() {
    this.found = null;
  }

  async branch(by = this.by ?? "sample") {
    const { page } = this;
    page.stop();
    this.by = by;
    if (page.panels.chosen !== "Futures") page.panels.choose("Futures");
    const steps = Math.max(1, Math.min(200, +($("#ahead")?.value ?? 15) || 15));
    const head = await page.ask("branch", { at: page.at, by, steps });
    if (!head) return;
    this.found = head;
    this.ahead = steps;
    this.open();
  }

  open() {
    const { found } = this, { about } = this.page;
    const bar = el("div", { className: "bar" },
      el("button", { id: "samples", onclick: () => this.branch("sample") }, "8 samples"),
      about.choices.length === 1 && !about.continuous.length ? el("button", { id: "each", onclick: () => this.branch("action") }, "One per action") : null,
      el("label", {}, el("input", { id: "ahead", type: "number", min: 1, max: 200, value: this.ahead ?? 15 }), " steps"));
    const text = found
      ? `Futures from row ${found.at}, with actions drawn from the policy. The return adds the value of the last row. Choose a future to continue with it.`
      : "Imagine what could follow this row. Choose a future to continue with it.";
    const list = (found?.futures ?? []).map((one, number) => ({ one, number })).sort((a, b) => b.one.return - a.one.return);
    const boxes = found ? ["Value", "Reward"].map((title) => [title, el("div", { className: "chart" })]) : [];
    $("#panel").replaceChildren(bar, el("p", {}, text), ...boxes.map(([, box]) => box), ...list.map(({ one, number }) => this.makeCard(one, number)));
    this.overlays = boxes.map(([title, box]) => new Chart(box, { title, bare: true, sync: "futures", go: null }));
    this.drawOverlays();
  }

  // The values and the rewards of all futures in one chart each; the one that is pointed at is wide.
  drawOverlays(pointed = null) {
    const { found } = this;
    if (!found) return;
    const x = found.futures[0].rewards.map((_, t) => found.at + 1 + t);
    for (const [i, key] of ["values", "rewards"].entries()) {
      const series = found.futures.map((one, number) => ({ name: String(number), values: one[key].slice(0, countSteps(one)), color: hue(number + 2), wide: number === pointed }));
      this.overlays[i].show(x, series, [x[0], Math.max(x[0] + 1, x.at(-1))]);
    }
  }

  makeCard(one, number) {
    const { page } = this, strip = el("div", { className: "strip" }), key = el("i", { className: "key" });
    key.style.setProperty("--key", hue(number + 2));
    const length = countSteps(one), ends = one.conts[length - 1] < 0.5, { names, choices, continuous } = page.about;
    for (const t of this.found.shown) {
      const picture = this.found.pictures.find((p) => p.row === number && p.side === t);
      const canvas = el("canvas", { title: `step ${t + 1}`, role: "img", ariaLabel: `step ${t + 1}`, className: t < length ? "" : "over" });
      if (picture) paint(canvas, picture.blob), strip.append(canvas);
    }
    const taken = choices.length === 1 && !continuous.length ? (names.length ? "" : "actions ") + formatRunLengths(one.actions.slice(0, length).map((a) => names[a] ?? a)) : "";
    return el("button", { className: "future", title: "Continue with this future", onpointerenter: () => this.drawOverlays(number), onpointerleave: () => this.drawOverlays(),
      onfocus: () => this.drawOverlays(number), onblur: () => this.drawOverlays(), onclick: async () => {
        const from = this.found.at;
        this.found = null;
        await page.change("pick", { number }, from);
        this.open();
        page.playTo(page.rows.length - 1);
      } }, strip, el("span", {}, key, taken, ends ? ` · ends at step ${length}` : ""), el("span", {}, "return ", el("b", {}, short(one.return))));
  }
}

// The number of steps of a future up to its end.
function countSteps({ conts }) {
  const end = conts.findIndex((cont) => cont < 0.5);
  return end < 0 ? conts.length : end + 1;
}

// "left, forward × 3" for left, forward, forward, forward.
function formatRunLengths(names) {
  const runs = [];
  for (const name of names) {
    if (runs.at(-1)?.[0] === name) runs.at(-1)[1]++;
    else runs.push([name, 1]);
  }
  return runs.map(([name, count]) => (count > 1 ? `${name} × ${count}` : name)).join(", ");
}

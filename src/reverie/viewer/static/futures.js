// The tab Futures: what could follow a row, by the model.

import { Chart } from "./chart.js";
import { $, color, el, paint, short } from "./dom.js";

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
    const { found } = this;
    const bar = el("div", { className: "bar" },
      el("button", { id: "samples", onclick: () => this.branch("sample") }, "8 samples"),
      this.isSingle() ? el("button", { id: "each", onclick: () => this.branch("action") }, "One per action") : null,
      el("label", {}, el("input", { id: "ahead", type: "number", min: 1, max: 200, value: this.ahead ?? 15 }), " steps"));
    const text = found
      ? `Futures from row ${found.at}${this.by === "action" ? ", one for each first action" : ""}; actions are drawn from the policy. The return adds the value of the last row. Choose one: it becomes a lane.`
      : "Imagine what could follow this row. The future that you choose becomes a lane.";
    const groups = found ? groupFutures(found.futures, this.by === "action" || !this.isSingle()) : [], box = el("div", { className: "chart" });
    const most = Math.max(1e-9, ...groups.map(({ one }) => Math.abs(one.return)));
    $("#panel").replaceChildren(bar, el("p", {}, text), found ? box : "", ...groups.map((group) => this.makeCard(group, most)));
    if (found) this.drawFan(new Chart(box, { title: "Value: median and range", go: null }));
  }

  // Whether an action is a single choice.
  isSingle() {
    const { choices, continuous } = this.page.about;
    return choices.length === 1 && !continuous.length;
  }

  // The median and the range of the values of all futures that have not ended.
  drawFan(chart) {
    const { at, futures } = this.found, x = futures[0].values.map((_, t) => at + 1 + t), stroke = color("dream");
    const alive = x.map((_, t) => futures.filter((one) => t < countSteps(one)).map((one) => one.values[t]).sort((a, b) => a - b));
    const line = (name, read, more) => ({ name, values: alive.map((values) => (values.length ? read(values) : null)), color: stroke, ...more });
    chart.show(x, [line("highest", (values) => values.at(-1), { width: 1 }), line("lowest", (values) => values[0], { width: 1, band: "#e0883a40" }),
      line("median", median, { wide: true })], [x[0], Math.max(x[0] + 1, x.at(-1))]);
  }

  makeCard({ one, number, members }, most) {
    const { page } = this, strip = el("div", { className: "strip" }), length = countSteps(one), { names } = page.about;
    for (const t of this.found.shown) {
      const picture = this.found.pictures.find((p) => p.row === number && p.side === t);
      const canvas = el("canvas", { title: `step ${t + 1}`, role: "img", ariaLabel: `step ${t + 1}` });
      if (picture && t < length) paint(canvas, picture.blob), strip.append(canvas);
    }
    const each = this.by === "action", name = (action) => names[action] ?? `action ${action}`, row = page.rows[this.found.at];
    const policy = each ? row?.dream?.policy ?? row?.real?.policy : null, is_chosen = policy && one.actions[0] === policy.indexOf(Math.max(...policy));
    const count = each ? name(one.actions[0]) : members.length > 1 || this.isSingle() ? `${members.length} of ${this.found.futures.length}` : "";
    const taken = this.isSingle() ? (names.length || each ? "" : "actions ") + formatRunLengths(one.actions.slice(each, length).map((a) => names[a] ?? a)) : "";
    const returns = [...new Set([members[0], members.at(-1)].map((member) => short(member.return)))].join(" to ");
    const level = el("i", { className: "level" });
    level.style.width = `${(100 * Math.abs(one.return)) / most}%`;
    return el("button", { className: `future${is_chosen ? " chosen" : ""}`, title: "Make this future a lane", onclick: () => page.change("pick", { number }, this.found.at) }, each ? level : "", strip, el("span", {}, el("b", {}, count), is_chosen ? " (the policy’s choice)" : "", `${count && taken ? (each ? ", then " : ": ") : ""}${taken}`,
      one.conts[length - 1] < 0.5 ? ` · ends at step ${length}` : ""), el("span", {}, "return ", el("b", {}, returns)));
  }
}

// Futures with the same actions until their end as one, which stands for its group by its median return.
function groupFutures(futures, apart) {
  const groups = new Map();
  for (const [number, one] of futures.entries()) {
    const key = apart ? number : one.actions.slice(0, countSteps(one)).join();
    groups.set(key, [...(groups.get(key) ?? []), { ...one, number }]);
  }
  const sorted = [...groups.values()].map((members) => members.sort((a, b) => a.return - b.return));
  return sorted.map((members) => ({ members, one: members[members.length >> 1], number: members[members.length >> 1].number })).sort((a, b) => b.one.return - a.one.return);
}

const median = (sorted) => (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;

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

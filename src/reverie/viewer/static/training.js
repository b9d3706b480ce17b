// The tab Training: the curves of the run, and its checkpoints, each of which can dream the episode.

import { Chart } from "./chart.js";
import { $, color, el } from "./dom.js";

export class Training {
  constructor(page) {
    this.page = page;
    setInterval(() => page.panels.chosen === "Training" && !document.hidden && this.load(true), 5000);
  }

  open() {
    this.load();
  }

  close() {
    this.curve = this.wrong = null;
  }

  async load(again = false) {
    const { page } = this;
    if (again && (!this.curve || this.loading)) return;
    const head = await page.ask("run", {}, again);
    if (!head || page.panels.chosen !== "Training") return;
    this.known = head;
    if (!this.curve) this.makePanel();
    const names = head.checkpoints.map((one) => one.name), now = names.indexOf(page.about.checkpoint);
    const slider = $("#checkpoint");
    slider.max = Math.max(0, names.length - 1);
    if (!this.loading && document.activeElement !== slider) slider.value = now < 0 ? slider.max : now;
    this.sayCheckpoint();
    $("#live").textContent = head.live ? "This run is still training: new checkpoints and curves appear by themselves." : "";
    const metrics = [...new Set([...Object.keys(head.curves), ...(head.finals.length ? ["eval/score"] : [])])], select = $("#curve");
    if (select.children.length !== metrics.length) {
      const wanted = this.metric ?? ["eval/score", "episode/score"].find((name) => metrics.includes(name)) ?? metrics[0];
      select.replaceChildren(...metrics.map((name) => el("option", { value: name, selected: name === wanted }, name)));
    }
    this.drawCurves();
    this.judge();
  }

  makePanel() {
    const { dreams } = this.page.about, chart = (tall) => el("div", { className: `chart${tall}` }), boxes = [chart(" high"), chart(" tall")];
    $("#panel").replaceChildren(
      el("p", {}, dreams ? "The same episode, imagined by earlier and later models of this run." : "The same episode, judged by earlier and later agents of this run."),
      el("label", {}, "Checkpoint ", el("input", { id: "checkpoint", type: "range", min: 0, max: 0, step: 1,
        oninput: () => this.use() })),
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
    const { page } = this, episode = page.episodeKey();
    if (this.judging || !this.wrong) return;
    if (this.judged?.episode !== episode) this.judged = { episode, errors: new Map() };
    this.judging = true;
    for (const { name } of [...this.known.checkpoints].reverse()) {
      if (page.playing || this.loading || !this.wrong || page.episodeKey() !== episode) break;
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
    $("#which").textContent = `trained for ${one.step.toLocaleString("en")} ${this.page.about.unit}${best}${this.loading ? ", loading …" : ""}`;
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
      page.takeRows(head);
      page.go(at);
    }
    this.sayCheckpoint();
    this.drawCurves();
    const now = this.known.checkpoints[+$("#checkpoint").value];
    if (head && now && now.name !== wanted.name) await this.use(); // it was moved on meanwhile
  }

  drawCurves() {
    if (!this.curve) return; // another panel has come meanwhile, or this one anew
    const { checkpoints, curves, finals } = this.known, name = $("#curve").value, [steps, scores] = curves[name] ?? [[], []];
    const ends = name === "eval/score" ? finals : [], x = [...new Set([0, ...steps, ...ends.map(([at]) => at)])].sort((a, b) => a - b);
    const known = new Map(steps.map((at, i) => [at, scores[i]])), last = new Map(ends);
    const step = checkpoints.find((one) => one.name === this.page.about.checkpoint)?.step ?? null;
    const view = [0, Math.max(1, ...x, ...checkpoints.map((one) => one.step))];
    const draw = (chart, x, lines) => (chart.show(x, lines, view), chart.mark(step));
    this.curve.given.title = name ?? "";
    draw(this.curve, x, [{ name: "", values: x.map((at) => known.get(at) ?? null), color: color("real") },
      ...(ends.length ? [{ name: "at the end", values: x.map((at) => last.get(at) ?? null), color: color("ink"), dots: 9 }] : [])]);
    if (!this.wrong) return;
    const errors = checkpoints.map((one) => this.judged?.errors.get(one.name) ?? {});
    const keys = Object.keys(errors.findLast((one) => Object.keys(one).length) ?? {}), of = this.wrong.given.more[0];
    if (of.children.length !== keys.length) of.replaceChildren(...keys.map((key) => el("option", {}, key)));
    this.wrong.box.hidden = !keys.length;
    of.title = this.page.about.units[of.value] ?? "";
    const values = errors.map((one) => one[of.value] ?? null);
    draw(this.wrong, checkpoints.map((one) => one.step), [{ name: "", values, color: color("dream") }]);
  }
}

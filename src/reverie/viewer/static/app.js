// The page: asks the server, keeps the rows, plays them, and hands them to the timeline and the panels.

import { $, el, paint, short } from "./dom.js";
import { Hands } from "./hands.js";
import { Link } from "./link.js";
import { Panels } from "./panels.js";
import { RunTable } from "./table.js";
import { Timeline } from "./timeline.js";

const AHEAD = 12; // pictures that are fetched before they are needed; rows dreamt at once while playing
const KEPT = 3000; // pictures kept in memory

class Page {
  rows = [];
  pictures = new Map();
  drawn = [false, false]; // whether there are pictures at all: of what happens, of the dream
  at = 0;
  playing = false;

  constructor() {
    this.link = new Link((why) => this.note(`The connection to reverie view is lost${why ? `: ${why}` : ""}. Is it still running?`,
      ["Connect again", () => location.reload()]));
    this.timeline = new Timeline((row) => this.go(row, true));
    this.hands = new Hands(this);
    this.panels = new Panels(this);
    this.buttons();
    this.keys();
    this.begin();
  }

  async begin() {
    const hello = await this.ask("hello");
    if (!hello) return;
    this.hello = hello;
    const run = hello.single ? "." : new URLSearchParams(location.search).get("run");
    if (run !== null) await this.open(run);
    else new RunTable(this, hello);
  }

  async open(run, more = {}) {
    this.run = run;
    $("#run").hidden = false;
    const head = await this.ask("begin", { run, ...more });
    if (head) this.meet(head);
    else if (more.episode === undefined)
      this.note($("#note").textContent, ["Open a recorded episode instead", () => this.open(run, { episode: 0 })]);
    return head;
  }

  // Another session, or another agent in it.
  meet(head) {
    this.about = head.about;
    this.name = head.name;
    const { about } = this;
    $("#title").textContent = head.name;
    document.title = `${head.name} – reverie`;
    $("#dream").hidden = $(".dreaming #see").hidden = $("#dreamon").hidden = !about.dreams;
    $("#steps").parentElement.hidden = !about.dreams;
    $(".stage").classList.toggle("alone", !about.dreams);
    $("#errors").hidden = !about.dreams;
    $("#episodes").hidden = !about.recorded;
    $("#again").hidden = about.recorded;
    $("#source").hidden = this.hello.data;
    $("#source").textContent = about.recorded ? "Play anew" : "Recorded";
    $("#mine").disabled = about.recorded && !about.dreams;
    this.blank = false;
    this.timeline.reset();
    this.hands.meet(about);
    this.panels.meet();
    this.take(head);
    this.go(Math.min(this.at, this.rows.length - 1));
  }

  // Asks the server; what goes wrong is shown, and gives null. An answer takes an older note away, unless it is quiet.
  async ask(what, given, quiet = false) {
    try {
      const head = await this.link.ask(what, given);
      if (!quiet) this.note("");
      return head;
    } catch (error) {
      this.stop();
      this.note(error.message);
      return null;
    }
  }

  note(text, action) {
    $("#note").hidden = !text;
    $("#note").replaceChildren(text, ...(action ? [el("button", { onclick: action[1] }, action[0])] : []));
  }

  // Takes changed rows from an answer.
  take(head) {
    this.rows.length = Math.min(this.rows.length, Math.max(0, head.first - 1)); // the row before has another action
    for (const key of [...this.pictures.keys()]) if (+key.split("/")[0] >= head.first) this.pictures.delete(key);
    this.rows.push(...head.rows);
    this.context = head.context;
    this.seed = head.seed;
    this.edits = head.edits;
    const { about } = this;
    $("#facts").textContent = [about.algorithm, about.env, about.checkpoint, ...(about.recorded ? [] : [`seed ${head.seed}`])].join(" · ");
    this.real = this.rows.findLastIndex((row) => row.real);
    this.keep(head.pictures);
  }

  // What has happened, and how much of it the model sees: the same for all checkpoints.
  episode() {
    return [this.run, this.about.env, this.seed, this.context, this.real, ...this.rows.slice(0, this.real).map((row) => row.action)].join();
  }

  keep(pictures) {
    for (const { row, side, blob } of pictures) {
      this.pictures.set(`${row}/${side}`, blob);
      this.drawn[side] = true;
    }
    for (const key of this.pictures.keys()) {
      if (this.pictures.size <= KEPT) break;
      this.pictures.delete(key);
    }
  }

  // Asks for something that changes rows, and goes to the first of them, or to the row given.
  async change(what, given, to) {
    const head = await this.ask(what, given);
    if (!head) return null;
    this.take(head);
    this.go(to ?? head.first);
    return head;
  }

  go(row, byHand = false) {
    if (byHand) this.stop();
    this.at = Math.max(0, Math.min(this.rows.length - 1, row));
    this.show();
  }

  async show() {
    const row = this.rows[this.at];
    if (!row) return;
    const { about } = this;
    this.fetch();
    const real = row.real, dream = row.dream, none = "There is no way to draw this: see Numbers.";
    for (const [side, known] of [real, dream].entries()) {
      const picture = this.pictures.get(`${this.at}/${side}`), frame = $(side ? "#dream .frame" : "#real .frame");
      if (picture || !known) paint($("canvas", frame), picture); // else the last one stays until this one comes
      $("p", frame).textContent = known ? (this.drawn[side] || this.fetching ? "" : none) : side ? "" : "The real one has stopped here.";
    }
    const end = real?.last ? (real.terminal ? " · the end" : " · time is up") : "";
    $("#real .chip").textContent = real ? `reward ${short(real.reward)}${end}` : "";
    const how = dream?.how ?? "", since = this.at - this.context + 1;
    const chip = $("#dream .chip"), frame = $("#dream .frame");
    chip.className = `chip ${how}`;
    frame.className = `frame ${how}`;
    chip.textContent = { seen: "sees this row", imagined: `imagines, step ${since}`, edited: "edited" }[how] ?? "";
    $("#row").value = `row ${this.at} of ${this.rows.length - 1}`;
    $("#catchup").hidden = !(this.real < this.rows.length - 1) || !about.dreams || this.rows[this.real].real.last;
    this.errors(row);
    this.timeline.show(this.rows, about, this.context, this.at);
    this.hands.show(row);
    this.panels.show(row);
  }

  errors(row) {
    const units = this.about.units;
    const said = Object.entries(row.error ?? {}).map(([key, value]) =>
      el("span", { title: units[key] ?? "absolute difference" }, `${key} `, el("b", {}, short(value))));
    $("#errors").replaceChildren(...(said.length ? ["Error of the dream: ", ...said.flatMap((one, i) => (i ? [" · ", one] : [one]))] : ["\u00a0"]));
  }

  // Fetches the pictures of this row and of those after it. One request at a time: the newest need wins.
  async fetch() {
    if (this.fetching || this.blank) return;
    const missing = [];
    for (let row = this.at; row < Math.min(this.rows.length, this.at + AHEAD); row++)
      if (!this.pictures.has(`${row}/0`) && !this.pictures.has(`${row}/1`)) missing.push(row);
    if (!missing.length || (missing[0] !== this.at && missing.length < AHEAD / 2)) return;
    this.fetching = true;
    const head = await this.ask("pictures", { rows: missing }, true);
    this.fetching = false;
    if (!head) return;
    this.keep(head.pictures);
    this.blank = !head.pictures.length;
    this.show();
  }

  // ------------------------------------------------------------------ playing

  toggle() {
    if (this.playing) this.stop();
    else this.play();
  }

  stop() {
    const moved = this.playing && this.rows[this.at];
    this.playing = false;
    $("#play").textContent = "Play";
    if (moved) this.panels.show(moved); // latents are not asked for while rows pass
  }

  async play() {
    this.playing = true;
    $("#play").textContent = "Stop";
    let due = performance.now();
    while (this.playing) {
      if (!(await this.forth())) break;
      due = Math.max(performance.now() - 100, due + 1000 / +$("#speed").value);
      await new Promise((done) => setTimeout(done, Math.max(0, due - performance.now())));
    }
    this.stop();
  }

  // One row on: to the next one known, or the environment steps, or the dream goes on. False at the end.
  async forth() {
    const newest = this.rows.length - 1;
    if (this.at < newest) {
      this.go(this.at + 1);
      return true;
    }
    if (this.real === newest && !this.rows[newest].real.last) {
      if (this.hands.mine) return Boolean(await this.hands.act());
      return Boolean(await this.change("step", {}));
    }
    if (!this.about.dreams || this.real === newest) return false;
    return Boolean(await this.change("dream", { at: newest, steps: AHEAD }));
  }

  async dreamOn() {
    this.stop();
    const steps = Math.max(1, Math.min(1000, +$("#steps").value || 15)), from = this.at;
    for (let done = 0; done < steps; done += 50)
      if (!(await this.change("dream", { at: from + done, steps: Math.min(50, steps - done) }, from + done))) return;
    this.go(from);
    const end = this.rows.length - 1;
    this.playing = true;
    $("#play").textContent = "Stop";
    while (this.playing && this.at < end) {
      this.go(this.at + 1);
      await new Promise((done) => setTimeout(done, 1000 / +$("#speed").value));
    }
    this.stop();
  }

  // The environment takes the actions that the dream took.
  async catchUp() {
    this.stop();
    this.playing = true;
    $("#play").textContent = "Stop";
    while (this.playing && this.real < this.rows.length - 1 && !this.rows[this.real].real.last)
      if (!(await this.change("step", {}))) break;
    this.stop();
  }

  see() {
    if (!this.rows[this.at].real) return this.note("Only rows that happened can be seen.");
    return this.change("see", { rows: this.at + 1 }, this.at);
  }

  async again() {
    this.stop();
    await this.change("start", {});
  }

  nextSurprise() {
    const found = this.timeline.surprising().sort((a, b) => a - b);
    if (found.length) this.go(found.find((row) => row > this.at) ?? found[0], true);
  }

  // ------------------------------------------------------------------ buttons and keys

  buttons() {
    const on = (id, act) => $(id).addEventListener("click", act);
    on("#play", () => this.toggle());
    on("#first", () => this.go(0, true));
    on("#back", () => this.go(this.at - 1, true));
    on("#forth", () => (this.stop(), this.forth()));
    on("#last", () => this.go(this.rows.length - 1, true));
    on("#see", () => this.see());
    on("#dreamon", () => this.dreamOn());
    on("#catchup", () => this.catchUp());
    on("#again", () => this.again());
    on("#source", () => this.open(this.run, this.about.recorded ? {} : { episode: 0 }));
    on("#mine", () => this.hands.toggle());
    on("#keys", () => this.help());
    on("#theme", () => {
      const dark = matchMedia("(prefers-color-scheme: dark)").matches;
      const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
      document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
      this.recolor();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolor());
    $("#actions").addEventListener("change", () => this.ask("choose_actions", { deterministic: $("#actions").value === "deterministic" }));
    $("#episode").addEventListener("change", () => this.open(this.run, { episode: +$("#episode").value }));
    for (const select of document.querySelectorAll("select")) select.addEventListener("change", () => select.blur());
  }

  recolor() {
    this.timeline.reset();
    this.panels.recolor();
    this.show();
  }

  shortcuts = {
    " ": ["play or stop", () => this.toggle()],
    ArrowLeft: ["one row back", () => this.go(this.at - 1, true)],
    ArrowRight: ["one row on", () => (this.stop(), this.forth())],
    Home: ["first row", () => this.go(0, true)],
    End: ["newest row", () => this.go(this.rows.length - 1, true)],
    s: ["next surprise", () => this.nextSurprise()],
    m: ["take over, or give back", () => this.hands.toggle()],
    o: ["the model sees up to here", () => this.about.dreams && this.see()],
    d: ["continue the dream", () => this.about.dreams && this.dreamOn()],
    c: ["let the dream happen", () => $("#catchup").hidden || this.catchUp()],
    b: ["branch: futures from here", () => this.about.dreams && this.panels.branch()],
    u: ["undo an edit", () => this.about.dreams && this.panels.undo()],
    r: ["new episode", () => this.about.recorded || this.again()],
    ",": ["one row back, while you act", () => this.go(this.at - 1, true)],
    ".": ["one row on, while you act", () => this.go(this.at + 1, true)],
    "?": ["these keys", () => this.help()],
  };

  keys() {
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || $("#help").open || !this.about) return;
      const tag = event.target.tagName;
      if (tag === "SELECT" || (tag === "INPUT" && !["range", "checkbox"].includes(event.target.type))) return;
      if (tag === "INPUT" && event.key.length > 1 && event.key !== "Enter") return; // sliders take arrows, Home and End
      if (tag === "BUTTON" && [" ", "Enter"].includes(event.key)) return;
      if (event.target.closest("[role=tablist]") && event.key.startsWith("Arrow")) return;
      if (this.hands.key(event.key) || this.shortcuts[event.key]?.[1]() !== undefined || this.shortcuts[event.key]) event.preventDefault();
    });
  }

  help() {
    const named = { " ": "space", ArrowLeft: "←", ArrowRight: "→" };
    const list = Object.entries(this.shortcuts).flatMap(([key, [what]]) => [el("dt", {}, el("kbd", {}, named[key] ?? key)), el("dd", {}, what)]);
    $("#help").replaceChildren(el("h2", {}, "Keys"), el("dl", {}, ...list),
      el("p", { className: "hint" }, "While you act, the keys of actions stand on their buttons."),
      el("button", { onclick: () => $("#help").close() }, "Close"));
    $("#help").showModal();
  }
}

new Page();

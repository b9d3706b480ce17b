// The page: asks the server, keeps the rows, plays them, and hands them to the timeline and the panels.

import { remember, remembered, writeAddress } from "./address.js";
import { Controls } from "./controls.js";
import { $, drawDifference, drawOutline, el, paint, short } from "./dom.js";
import { Hands } from "./hands.js";
import { Lanes } from "./lanes.js";
import { Link } from "./link.js";
import { Panels } from "./panels.js";
import { Strip } from "./strip.js";
import { RunTable } from "./table.js";
import { Timeline } from "./timeline.js";

const AHEAD = 24; // pictures that are fetched before they are needed; rows played or imagined at once
const FILLED = 1000; // rows of an episode that are played when it is opened
const SHOWING = [6, 12]; // seconds that the first showing of an episode takes, at least and at most
const GOAL = 2; // in the address of a picture: of the goal
const KEPT = 3000; // pictures kept in memory
const PLACE = ["checkpoint", "episode", "seed", "row", "seen", "zoom"]; // in the address: where in a run one is

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

class Page {
  rows = [];
  pictures = new Map();
  drawn = [false, false]; // whether there are pictures at all: of the environment, of the dream
  at = 0;
  playing = false;
  remark = ""; // about the run, shown while nothing else is said
  stride = 1; // rows from one that is shown to the next
  outline = true; // of the truth, inside the dream
  opening = 0; // number of the newest opening of an episode

  constructor() {
    this.link = new Link((why) => this.showNote(`The connection to reverie view is lost${why ? `: ${why}` : ""}. Is it still running?`,
      ["Connect again", () => location.reload()]));
    this.timeline = new Timeline((row) => this.go(row, true));
    this.strip = new Strip(this);
    this.lanes = new Lanes(this);
    this.hands = new Hands(this);
    this.panels = new Panels(this);
    new Controls(this);
    this.begin();
  }

  async begin() {
    const hello = await this.ask("hello");
    if (!hello) return;
    this.hello = hello;
    const run = hello.single ? "." : remembered("run"), number = (name) => (remembered(name) === null ? undefined : +remembered(name));
    if (run === null) return void new RunTable(this, hello);
    await this.open(run, { checkpoint: remembered("checkpoint") ?? undefined, episode: number("episode"), seed: number("seed") },
      { row: number("row"), seen: number("seen") });
  }

  // Opens a run with its environment, or with a recorded episode. place: the row, and the rows that the model observes.
  async open(run, more = {}, place = {}) {
    this.stop();
    this.run = run;
    this.checkpoint = more.checkpoint; // undefined: the newest one
    const opening = ++this.opening;
    let head;
    this.showNote(this.hello.compiling ? "Compiling kernels for this processor, once: about 15 seconds …" : `Loading ${run === "." ? this.hello.folder : run} …`);
    $("#note").className = "progress";
    this.hello.compiling = false;
    try {
      head = await this.link.ask("begin", { run, ...more });
      if ($("#actions").value === "sampled") {
        await this.link.ask("choose_actions", { deterministic: false });
        if (!head.about.recorded) Object.assign(head, await this.link.ask("start", { seed: head.seed }));
      }
    } catch (error) {
      return this.showFailure(error, more);
    }
    this.remark = head.remark ?? "";
    this.showNote(this.remark);
    $("#run").hidden = false;
    this.wanted = place.row;
    this.meet(head);
    // Keys go through the rows. In a frame, as in a notebook, the focus stays where it is.
    if (window === window.top && document.activeElement === document.body) $("#scrub").focus({ preventScroll: true });
    const filled = this.fill(opening);
    if (place.row === undefined) this.autoplay();
    await filled;
    if (opening !== this.opening) return;
    await this.observe(place.seen);
    this.wanted = undefined;
  }

  // Says why a run does not open, and what to do next.
  showFailure(error, more) {
    const given = Object.values(more).some((value) => value !== undefined), steps = [];
    const leave = () => (remember(Object.fromEntries(PLACE.map((name) => [name, null]))), writeAddress());
    if (error.kind === "EnvError" && more.episode === undefined) steps.push(["Open a recorded episode", () => this.open(this.run, { episode: 0 })]);
    else if (given) steps.push(["Open the run from its beginning", () => (leave(), this.open(this.run))]);
    if (!this.hello.single) steps.push(["All runs", () => (location.search = "")]);
    this.showNote(error.message, ...steps);
  }

  // Shows the episode again and again until something is touched, unless less motion is preferred.
  async autoplay() {
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    const { opening } = this;
    this.showing = true;
    while (this.showing && opening === this.opening && (await this.playShowing())) await pause(1000);
    this.showing = false;
  }

  // Plays all rows in SHOWING seconds, so that rows are left out of long episodes; false if something stopped it.
  async playShowing() {
    const token = (this.playing = {});
    let place = 0, time = performance.now();
    $("#play").textContent = "Stop";
    for (this.go(0); this.playing === token; ) {
      const speed = Math.max(this.rows.length / SHOWING[1], Math.min(this.rows.length / SHOWING[0], +$("#speed").value)), last = this.rows.length - 1;
      this.stride = Math.max(1, Math.round(speed / 30));
      if (this.at === last && !this.filling) break;
      const now = await new Promise(requestAnimationFrame), row = Math.min(last, Math.floor((place += (speed * Math.max(0, now - time)) / 1000)));
      time = now;
      if (this.playing === token && row > this.at) this.go(row - (row === last ? 0 : row % this.stride));
    }
    this.stride = 1;
    if (this.playing === token) this.stop();
    return this.playing === false && this.at === this.rows.length - 1;
  }

  // Another session, or another episode of it.
  meet(head) {
    this.about = head.about ?? this.about;
    this.name = head.name ?? this.name;
    if (head.about) Object.assign(this, { tried: head.tried, longest: head.seed });
    const { about } = this;
    $("#title").textContent = this.name;
    document.title = `${this.name} – reverie`;
    $("#dream").hidden = $("#see").hidden = $(".dreaming .pair").hidden = !about.dreams;
    $("#goal").hidden = true;
    $("#again").hidden = this.hello.data;
    $("#again").textContent = about.recorded ? "Play anew" : "New episode";
    $("#mine").disabled = Boolean(about.recorded) && !about.dreams;
    this.blank = false;
    this.agreed = null;
    this.rows = [];
    this.pictures.clear();
    this.timeline.reset();
    this.strip.reset();
    this.takeRows(head);
    $(".stage").classList.toggle("alone", !about.dreams && $("#goal").hidden);
    this.at = 0;
    this.hands.meet(about);
    this.panels.meet();
    this.show();
  }

  // Plays the whole episode on the server, some rows a request, while the page shows what it has.
  async fill(opening) {
    $("#run").ariaBusy = true;
    while (opening === this.opening && this.real === this.rows.length - 1 && !this.rows[this.real].real.last && this.rows.length <= FILLED) {
      this.filling = true;
      const head = await this.ask("step", { steps: FILLED }, true);
      this.filling = false;
      if (!head || opening !== this.opening) return;
      this.takeRows(head);
      this.show();
    }
    if (opening === this.opening) $("#run").ariaBusy = false;
  }

  // Asks the server; what goes wrong is shown, and gives null. An answer takes an older note away, unless it is quiet.
  async ask(what, given, quiet = false) {
    try {
      const head = await this.link.ask(what, given);
      if (!quiet) this.showNote(this.remark);
      return head;
    } catch (error) {
      this.stop();
      this.showNote(error.message);
      return null;
    }
  }

  showNote(text, ...steps) {
    $("#note").hidden = !text;
    $("#note").className = "";
    $("#note").replaceChildren(text, ...steps.map(([name, act]) => el("button", { onclick: act }, name)));
  }

  // Takes changed rows from an answer.
  takeRows(head) {
    this.rows.length = Math.min(this.rows.length, Math.max(0, head.first - 1)); // the row before has another action
    for (const key of [...this.pictures.keys()]) if (+key.split("/")[0] >= head.first) this.pictures.delete(key);
    this.rows.push(...head.rows);
    for (const name of ["context", "seed", "edits", "end"]) this[name] = head[name];
    const { about, seed } = this, last = this.rows.length - 1;
    $("#facts").textContent = [about.algorithm, about.env, about.checkpoint, about.recorded || `seed ${seed}`].join(" · ");
    this.real = this.rows.findLastIndex((row) => row.real);
    this.keepPictures(head.pictures);
    if (this.wanted <= last) {
      this.at = this.wanted;
      this.wanted = undefined;
    }
    this.lanes.take(head);
    this.writeLead();
    this.timeline.show(this.rows, about, this.context, this.end);
    $("#scrub").max = last;
    this.strip.ask();
    const whole = about.recorded ? { episode: about.episode, seed: null } : { episode: null, seed };
    remember({ ...whole, checkpoint: this.checkpoint, run: this.run === "." ? null : this.run, seen: about.dreams && head.lanes[0].context !== 5 ? head.lanes[0].context : null });
  }

  // One sentence that says what is what.
  writeLead() {
    const { about, context } = this, rows = context === 1 ? "row" : `${context} rows`;
    const left = about.recorded ? `a recorded episode (${about.recorded})` : `${about.env}, played by the agent`;
    let text = about.dreams
      ? `Left: ${left}. Right: what the model imagines under the same actions, after it has observed the first ${rows}.`
      : about.goals ? `This is ${left}${about.recorded ? ", and the agent’s distances to the goal" : " toward the goal"}.`
      : `This is ${left}${about.recorded ? ", and the agent’s values of it" : ""}. This agent has no world model, so it does not dream.`;
    text += this.tried > 1 && this.seed === this.longest ? ` It is the longest of ${this.tried} episodes.` : "";
    if ($("#lead").textContent !== text) $("#lead").textContent = text;
  }

  // What has happened, and how much of it the model sees: the same for all checkpoints.
  episodeKey() {
    return [this.run, this.about.recorded, this.seed, this.context, this.real, ...this.rows.slice(0, this.real).map((row) => row.action)].join();
  }

  keepPictures(pictures) {
    for (const { row, side, blob } of pictures) {
      if (side === GOAL) {
        $("#goal").hidden = false;
        paint($("#goal canvas"), blob);
        continue;
      }
      this.pictures.set(`${row}/${side}`, blob);
      this.drawn[side] = true;
    }
    this.strip.draw();
    for (const key of this.pictures.keys()) {
      if (this.pictures.size <= KEPT) break;
      this.pictures.delete(key);
    }
  }

  // Asks for something that changes rows, and goes to the first of them, or to the row given.
  async change(what, given, to) {
    if (!["set_context", "edit", "undo"].includes(what)) this.opening++; // the rest of the episode is another one
    const head = await this.ask(what, given);
    if (!head) return null;
    this.takeRows(head);
    this.go(to ?? head.first);
    return head;
  }

  go(row, byHand = false) {
    if (byHand) this.stop();
    if (byHand) this.wanted = undefined;
    this.at = Math.max(0, Math.min(this.rows.length - 1, row));
    this.show();
  }

  async show() {
    const row = this.rows[this.at];
    if (!row) return;
    this.fetch();
    const { real, dream } = row, compares = (this.differs || this.outline) && real && dream;
    for (const [side, known] of [real, dream].entries()) {
      const picture = this.pictures.get(`${this.at}/${side}`), frame = $(side ? "#dream .frame" : "#real .frame");
      const truth = compares && side ? this.pictures.get(`${this.at}/0`) ?? null : null;
      if (picture || !known) paint($("canvas", frame), picture, truth, this.differs ? drawDifference : drawOutline); // else the last one stays until this one comes
      const none = !side && this.lanes.leaves ? "Another action than in the episode." : side || !this.about.dreams || this.rows[this.real].real.last ? "The episode has ended." : "The environment has stopped here.";
      $("p", frame).textContent = known ? (this.drawn[side] || this.fetching ? "" : "There are no pictures: see the tab Row.") : none;
    }
    const end = real?.last ? (real.terminal ? "the end" : "time is up") : "", reward = real && row.t ? `reward ${short(real.reward)}` : "";
    $("#real .chip").textContent = real?.player === undefined || end ? [reward, end].filter(Boolean).join(" · ") : `player ${real.player} to move`;
    const ended = this.end !== null && this.at > this.end, how = ended ? "ended" : dream?.how ?? "", since = this.at - this.context + 1;
    $("#dream .chip").className = `chip ${how}`;
    $("#dream .frame").className = `frame ${how}`;
    const ends = this.end === this.at ? ": the dream ends here" : "";
    $("#dream .chip").textContent = { seen: "observes this row", imagined: `imagines, step ${since}${ends}`, edited: `edited${ends}`,
      ended: `the dream ended at row ${this.end}` }[how] ?? "";
    const judged = this.strip.shown, text = judged?.texts[this.at] || (dream && !real && !ended ? `${this.lanes.leaves ? "another action" : "beyond the episode"}: nothing to compare` : "");
    $("#verdict").className = how === "seen" ? "" : judged?.levels[this.at] ?? "";
    $("#verdict").textContent = how === "seen" ? "reconstruction of this row" : text;
    $("#row").value = `row ${this.at} of ${this.rows.length - 1}`;
    $("#scrub").value = this.at;
    $("#scrub").setAttribute("aria-valuetext", $("#row").value);
    $("#catchup").hidden = !(this.real < this.rows.length - 1) || !this.about.dreams || this.rows[this.real].real.last;
    this.timeline.mark(this.at);
    this.strip.mark(this.at);
    this.lanes.draw();
    this.hands.show(row);
    this.panels.show(row);
    remember({ row: this.at });
  }

  // Fetches the pictures of this row and of those after it. One request at a time: the newest need wins.
  async fetch() {
    if (this.fetching || this.blank) return;
    const missing = [];
    for (let row = this.at; row < Math.min(this.rows.length, this.at + AHEAD * this.stride); row += this.stride)
      if (!this.pictures.has(`${row}/0`) && !this.pictures.has(`${row}/1`)) missing.push(row);
    if (!missing.length || (missing[0] !== this.at && missing.length < AHEAD / 2)) missing.splice(0, missing.length, ...this.strip.missing());
    if (!missing.length) return this.lanes.fetch();
    this.fetching = true;
    const head = await this.ask("pictures", { rows: missing }, true);
    this.fetching = false;
    if (!head) return;
    this.keepPictures(head.pictures);
    this.blank = !head.pictures.length;
    this.show();
  }

  // ------------------------------------------------------------------ playing

  playOrStop() {
    if (this.playing) this.stop();
    else this.play();
  }

  stop() {
    this.stride = 1;
    const moved = this.playing && this.rows[this.at];
    this.playing = false;
    $("#play").textContent = "Play";
    if (moved) this.panels.show(moved); // latents are not asked for while rows pass
  }

  async play() {
    if (this.playing) return;
    const token = (this.playing = {}); // of this call: another one can start before it ends
    $("#play").textContent = "Stop";
    if (this.at === this.rows.length - 1 && this.at && !(await this.hasNext())) this.go(0);
    let due = performance.now();
    while (this.playing === token) {
      if (!(await this.moveOn())) break;
      for (let i = 0; i < 50 && this.fetching && !this.pictures.has(`${this.at}/0`) && !this.pictures.has(`${this.at}/1`); i++) await pause(20);
      due = Math.max(performance.now() - 50, due + 1000 / +$("#speed").value);
      if (due > performance.now() + 8) await pause(due - performance.now());
      else await new Promise(requestAnimationFrame);
    }
    if (this.playing === token) this.stop();
  }

  // Whether something follows the last row.
  hasNext() {
    const newest = this.rows.length - 1;
    if (this.hands.mine) return true;
    if (this.real === newest) return !this.rows[newest].real.last;
    return this.about.dreams && this.end === null;
  }

  // One row on: to the next one known, or the environment steps, or the dream continues. False at the end.
  async moveOn() {
    const newest = this.rows.length - 1, opening = this.opening;
    if (this.hands.mine && this.playing) return Boolean(await this.hands.act());
    if (this.at < newest) {
      this.go(this.at + 1);
      return true;
    }
    if (!this.hasNext()) return false;
    if (this.filling) return pause(30).then(() => true);
    if (this.real !== newest) return Boolean(await this.change("dream", { at: newest, steps: AHEAD, past_end: false }));
    const head = await this.ask("step", { steps: AHEAD }, true);
    if (!head || opening !== this.opening) return Boolean(head);
    this.takeRows(head);
    this.go(newest + 1);
    return true;
  }

  async dreamOn() {
    this.stop();
    if (!this.mayDream(() => this.dreamOn())) return;
    const steps = Math.max(1, Math.min(1000, +$("#steps").value || 15)), from = this.at, past_end = this.end !== null && from >= this.end;
    for (let done = 0; done < steps && (past_end || !done || this.end === null); done += 50)
      if (!(await this.change("dream", { at: from + done, steps: Math.min(50, steps - done), past_end }, from + done))) return;
    this.go(from);
    await this.playTo(this.rows.length - 1);
  }

  // Whether the dream may continue from this row: past its end, the page asks first.
  mayDream(again) {
    if (this.end === null || this.at < this.end || this.agreed === this.end) return true;
    this.showNote(`The dream ends at row ${this.end}.`, ["Continue past its end", () => ((this.agreed = this.end), again())]);
    return false;
  }

  // Removes the newest lane or edit.
  undo() {
    this.stop();
    return this.lanes.list.length > 1 ? this.change("undo", {}, this.at) : null;
  }

  async playTo(end) {
    const token = (this.playing = {});
    $("#play").textContent = "Stop";
    while (this.playing === token && this.at < end) {
      this.go(this.at + 1);
      await pause(1000 / +$("#speed").value);
    }
    if (this.playing === token) this.stop();
  }

  // The environment takes the actions that the dream took.
  async catchUp() {
    this.stop();
    const from = this.real;
    while (this.real < this.rows.length - 1 && !this.rows[this.real].real.last)
      if (!(await this.change("step", { steps: this.rows.length - 1 - this.real }))) return;
    this.go(from);
    await this.playTo(this.real);
  }

  observeHere() {
    if (!this.rows[this.at].real) return this.showNote("The model can only observe rows of the environment.");
    return this.change("set_context", { rows: this.at + 1 }, this.at);
  }

  // A new episode with a seed, by default the next one.
  async startEpisode(seed = null) {
    if (this.about.recorded) return this.open(this.run);
    return this.playNew("start", { seed });
  }

  // Begins another episode, and plays it: toward a chosen goal once.
  async playNew(what, given) {
    this.stop();
    $("#run").ariaBusy = true; // from now on, not only once the answer is here
    const opening = ++this.opening, head = await this.ask(what, given);
    if (!head) return void ($("#run").ariaBusy = false);
    this.meet(head);
    const filled = this.fill(opening);
    if (what === "pursue") this.play();
    else this.autoplay();
    await filled;
    if (opening === this.opening) await this.observe();
  }

  // Lets the model observe some rows; of a short episode, fewer than it does otherwise.
  async observe(rows = this.rows.length < 2 * this.context ? Math.max(1, this.rows.length >> 2) : this.context) {
    const head = this.about.dreams && rows !== this.context && (await this.ask("set_context", { rows }));
    if (head) this.takeRows(head), this.show(); // one may have moved on since
  }

  // Turns a way to compare the dream with the truth on or off: "differs" or "outline".
  toggle(name) {
    this[name] = !this[name];
    $(name === "differs" ? "#differ" : "#outline").setAttribute("aria-pressed", this[name]);
    this.strip.draw();
    this.show();
  }

  goToNextSurprise() {
    const found = this.timeline.findSurprises().sort((a, b) => a - b);
    if (found.length) this.go(found.find((row) => row > this.at) ?? found[0], true);
  }

  recolor() {
    if (!this.about) return;
    this.timeline.reset();
    this.timeline.show(this.rows, this.about, this.context, this.end);
    this.panels.recolor();
    this.strip.draw();
    this.show();
  }
}

new Page();

// A run that learns, and a person who takes over: shows the newest row, and sends what is pressed. See live.py.

import { $, clearCanvas, color, el, paint, short } from "./dom.js";
import { Hands } from "./hands.js";
import { connect, unpack } from "./link.js";

const SHOWN = 300; // rows of the ribbon
const PING = 100; // milliseconds between signs of life while one acts
const SLOW = matchMedia("(prefers-reduced-motion: reduce)").matches ? 250 : 0; // milliseconds between pictures, at least
const ANSWERS = { mark: "The episode ends here.", pace: "The pace has changed." };

class LiveHands extends Hands {
  // Which keys there are, and what they do, says the run.
  bindKeys() {
    this.keys = new Set(this.about.keys.flatMap(({ keys }) => keys));
    const alone = this.about.keys.filter(({ keys }) => this.single && keys.length === 1);
    return new Map(alone.map(({ keys, action }) => [keys[0], action.indexOf(1)]));
  }

  keysOf(number) {
    return this.about.keys.filter(({ keys, action }) => keys.length === 1 && Math.abs(action[number.index]) === 1).map(({ keys }) => keys[0]);
  }

  choose(choice, number) {
    for (let i = choice.start; i < choice.stop; i++) this.flat[i] = +(i - choice.start === number);
    this.moved();
    if (this.single) this.page.send("act"); // a click is one row
  }

  act() {
    this.moved();
  }

  moved() {
    this.page.send("act", { action: this.flat });
  }

  // Keys are sent in the order in which they were pressed. Those that are held before one takes over count from then on.
  press(key) {
    if (this.held.has(key)) return;
    this.held.add(key);
    this.sendKeys();
  }

  release(key) {
    if (key === undefined ? !this.held.size : !this.held.delete(key)) return;
    if (key === undefined) this.held.clear();
    this.sendKeys();
  }

  sendKeys() {
    if (this.page.mine) this.page.send("act", { keys: [...this.held] });
  }

  // Shows the action that is held; what the mask forbids is disabled.
  follow({ action, legal }) {
    for (const button of document.querySelectorAll("#hands [data-action]")) {
      button.disabled = legal !== null && !legal[button.dataset.action];
      button.classList.toggle("on", action?.[button.dataset.action] === 1);
    }
    for (const number of this.numbers) if (action && document.activeElement?.ariaLabel !== number.name) number.set(action[number.index]);
  }

  // Sticks are the first numbers, buttons are classes; only what changes is sent.
  readGamepad() {
    const pad = navigator.getGamepads?.().find(Boolean), flat = [...this.flat];
    if (!pad) return;
    this.numbers.forEach(({ index }, i) => (flat[index] = Math.abs(pad.axes[i] ?? 0) < 0.1 ? 0 : pad.axes[i]));
    const pressed = this.single ? pad.buttons.findIndex((button) => button.pressed) : -1;
    if (this.single) flat.forEach((_, i) => (flat[i] = +(i === pressed)));
    const read = flat.join();
    if (read !== (this.pad ??= read) && (this.pad = read)) this.page.send("act", !this.single || flat.includes(1) ? { action: flat } : {});
  }
}

class Live {
  row = null;
  text = "";
  commands = {
    Space: ["take over, or give back", () => this.send(this.mine ? "give" : "take")],
    Escape: ["give back", () => this.mine && this.send("give")],
    s: ["success: the episode ends with a reward", () => this.send("mark", { success: true })],
    f: ["failure: the episode ends", () => this.send("mark", { success: false })],
    p: ["pause, or go on", () => this.send("pause", { on: !this.row?.paused })],
    "?": ["these keys", () => this.help()],
  };

  constructor() {
    this.hands = new LiveHands(this);
    this.socket = connect();
    this.socket.onmessage = ({ data }) => (typeof data === "string" ? this.receive(JSON.parse(data)) : this.take(unpack(data)));
    this.socket.onclose = () => {
      if (this.row) this.take({ ...this.row, owner: "", pictures: [], closed: true });
      else this.say(describe({ closed: true }));
      for (const button of document.querySelectorAll("main button, main select")) button.disabled = true;
    };
    setInterval(() => this.mine && (this.send("ping"), this.hands.readGamepad()), PING);
    const named = { take: "Space", success: "s", failure: "f", pause: "p", keys: "?" };
    for (const [id, key] of Object.entries(named)) $(`#${id}`).onclick = () => this.commands[key][1]();
    $("#pace").onchange = () => this.send("pace", { hz: +$("#pace").value });
    // What a pointer has pressed keeps no focus, since its keys would be those of the button or slider.
    const focus = () => $("#stage").focus({ preventScroll: true });
    document.addEventListener("click", ({ detail, target }) => detail && target.closest("main button, main input") && !$("#help").open && focus());
    $("#help").onclose = focus;
    document.addEventListener("keydown", (event) => this.press(event));
    document.addEventListener("keyup", (event) => this.hands.about && this.hands.release(nameKey(event)));
    window.addEventListener("blur", () => this.hands.about && this.hands.release());
    window.addEventListener("resize", () => this.row && this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.row && this.draw());
  }

  get mine() {
    return this.row?.owner === "you";
  }

  send(what, given = {}) {
    this.sendText(JSON.stringify({ do: what, ...given }));
  }

  sendText(text) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(text);
  }

  receive({ about, done, refused }) {
    if (about) {
      document.title = `${about.title} – reverie`;
      $("#title").textContent = about.title;
      Object.assign($("#questions"), { href: about.questions, hidden: !about.questions });
      this.hands.meet(about);
      for (const [id, key] of Object.entries({ take: "Space", success: "s", failure: "f", pause: "p" }))
        if (this.hands.keys.has(key)) $(`#${id} kbd`).textContent = `⇧ ${$(`#${id} kbd`).textContent}`;
    }
    if (!refused && !ANSWERS[done]) return;
    this.say(refused ? `Not possible: ${refused}` : ANSWERS[done]);
    clearTimeout(this.answered);
    this.answered = setTimeout(() => this.row && this.say(describe(this.row)), 2500);
  }

  // The line of the status changes at most once a second.
  say(text) {
    this.text = text;
    if (this.saying) return;
    if ($("#status").textContent !== text) $("#status").textContent = text;
    this.saying = setTimeout(() => ((this.saying = 0), this.text !== text && this.say(this.text)), 1000);
  }

  // Takes a new row, or another state of the run; the next one comes after this is drawn.
  take(row) {
    const key = [row.owner, row.paused, row.closed, row.hz].join();
    if (key !== this.key) this.say(describe(row));
    const begins = row.owner === "you" && !this.mine;
    this.key = key;
    this.picture = row.pictures[0]?.blob ?? (row.number === this.row?.number || row.closed ? this.picture : null);
    this.row = row;
    if (begins) $("#stage").focus({ preventScroll: true });
    if (begins && row.hz && this.hands.held.size) this.hands.sendKeys();
    requestAnimationFrame(() => {
      this.draw();
      setTimeout(() => this.sendText("drawn"), SLOW);
    });
  }

  draw() {
    const { row, mine } = this;
    document.body.classList.toggle("you", mine);
    paint($("#real canvas"), this.picture);
    $("#real .chip").textContent = `episode ${row.episode}, row ${row.row} · reward ${short(row.reward)} · score ${short(row.score)}`;
    const numbers = Object.entries(row.numbers).map(([name, values]) => `${name}: ${values.map(short).join(", ")}`);
    $("#real .frame p").textContent = this.picture || !row.number ? "" : `The environment draws no pictures. ${numbers.join(" · ")}`;
    $("#take span").textContent = mine ? "Give back" : "Take over";
    $("#take").setAttribute("aria-pressed", mine);
    $("#take").disabled = row.closed || row.owner === "other";
    $("#success").disabled = $("#failure").disabled = !mine;
    $("#pause").setAttribute("aria-pressed", row.paused);
    if (![...$("#pace").options].some(({ value }) => +value === row.hz)) $("#pace").add(new Option(`${short(row.hz)} rows/s`, row.hz));
    if (document.activeElement !== $("#pace")) $("#pace").value = row.hz;
    $("#hands").hidden = !mine;
    if (mine) this.hands.follow(row), this.hands.readGamepad();
    this.drawRibbon(row.actors);
  }

  // The newest rows: a line where the policy acted, hatched where a person did.
  drawRibbon(actors) {
    const canvas = $("#ribbon"), [c, width, height] = clearCanvas(canvas), wide = width / SHOWN;
    const text = `A person took ${actors.replaceAll("0", "").length} of the newest ${actors.length} rows`;
    for (const part of actors.matchAll(/0+|1+/g)) {
      const x = width + (part.index - actors.length) * wide, span = part[0].length * wide;
      c.fillStyle = c.strokeStyle = color(part[0][0] === "1" ? "dream" : "soft");
      if (part[0][0] === "0") c.fillRect(x, height / 2 - 1, span, 2);
      else {
        c.save();
        c.beginPath();
        c.rect(x, 1, span, height - 2);
        c.stroke();
        c.clip();
        for (let at = x - height - (x % 6); at < x + span; at += 6) c.moveTo(at, height), c.lineTo(at + height, 0);
        c.stroke();
        c.restore();
      }
    }
    canvas.ariaLabel = text;
    $("#rows figcaption").textContent = `${text} (hatched).`;
  }

  press(event) {
    const { target } = event, key = nameKey(event);
    if (event.ctrlKey || event.metaKey || event.altKey || $("#help").open || !this.hands.about) return;
    if (target.tagName === "SELECT" || (target.tagName === "BUTTON" && ["Space", "Enter"].includes(key))) return;
    if (target.tagName === "INPUT" && /^(Arrow|Home|End|Page)/.test(key)) return; // which move the slider
    const acts = !event.shiftKey && this.hands.keys.has(key);
    if (acts && !this.mine && !this.commands[key]) return this.hands.press(key);
    if (acts && this.mine) this.hands.press(key);
    else if (this.commands[key] && !event.repeat) this.commands[key][1]();
    else if (this.mine && key === "Enter" && !this.hands.single) this.hands.act();
    else return;
    event.preventDefault();
  }

  help() {
    const list = Object.entries(this.commands).flatMap(([key, [what]]) => [el("dt", {}, el("kbd", {}, key.length === 1 ? key.toUpperCase() : key)), el("dd", {}, what)]);
    $("#help").replaceChildren(el("h2", {}, "Keys"), el("dl", {}, ...list),
      el("p", { className: "hint" }, "While you act, the environment’s keys stand on its buttons and sliders. Where it has one of these keys too, Shift gives the page’s."),
      el("button", { onclick: () => $("#help").close() }, "Close"));
    $("#help").showModal();
  }
}

const nameKey = ({ key }) => (key === " " ? "Space" : key.length === 1 ? key.toLowerCase() : key);

function describe({ owner, paused, hz, closed }) {
  if (closed) return "The connection is closed: the run has ended, or its process is gone.";
  const who = { you: hz ? "You act." : "You act: each row waits for a key.", other: "Somebody else acts.", "": "The policy acts." }[owner];
  return paused ? `Paused. ${who}` : who;
}

window.live = new Live();

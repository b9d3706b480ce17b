// Taking over: actions by keys, buttons and sliders, in the environment or in the dream. Numbers follow held keys.

import { $, listDimensions, el, short } from "./dom.js";

const ARROWS = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"];
export const WIDE = 4; // columns of a board whose cells have room for text
const SIGNS = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓" };
const PAIRS = [["ArrowLeft", "ArrowRight"], ["ArrowDown", "ArrowUp"], ["a", "d"], ["s", "w"]]; // of keys, for each number
const MEANT = { ArrowLeft: /^left$/, ArrowRight: /^right$/, ArrowUp: /^(up|forward)$/, ArrowDown: /^(down|back|backward)$/ };

export class Hands {
  mine = false;
  held = new Set();

  constructor(page) {
    this.page = page;
  }

  meet(about) {
    this.about = about;
    this.flat = new Array(about.width).fill(0);
    for (const choice of about.choices) this.flat[choice.start] = 1;
    this.single = about.choices.length === 1 && !about.continuous.length;
    this.bound = this.bindKeys();
    this.numbers = listDimensions(about);
    this.held = new Set();
    this.draw();
  }

  // Which key takes which class of the only choice: arrows by the actions' names, or else the first ones; and digits.
  bindKeys() {
    const bound = new Map(), { names, choices } = this.about;
    if (!this.single) return bound;
    const count = choices[0].stop - choices[0].start;
    for (let i = 0; i < Math.min(10, count); i++) bound.set(String(i), i);
    if (this.about.players) return bound; // arrows go through the rows of a game
    const named = ARROWS.map((key) => names.findIndex((name) => MEANT[key].test(name)));
    const any = named.some((i) => i >= 0);
    ARROWS.forEach((key, i) => {
      const action = any ? named[i] : i;
      if (action >= 0 && action < count) bound.set(key, action);
    });
    return bound;
  }

  toggle(on = !this.mine) {
    this.mine = on && !$("#mine").disabled;
    $("#mine").setAttribute("aria-pressed", this.mine);
    $("#mine").textContent = this.mine ? "Give back" : "Take over";
    $("#hands").hidden = !this.mine;
    this.release();
    this.page.stop();
  }

  draw() {
    const box = $("#hands"), { about } = this;
    box.replaceChildren();
    box.className = about.board?.[1] <= WIDE && about.board[0] * about.board[1] === about.width ? "bar board" : "bar";
    box.style.gridTemplateColumns = `repeat(${about.board?.[1]}, minmax(0, 1fr))`;
    about.choices.forEach((choice) => {
      if (!this.single) box.append(el("span", { className: "hint" }, choice.name));
      for (let i = choice.start; i < choice.stop; i++) {
        const number = i - choice.start;
        const keys = [...this.bound].filter(([, action]) => this.single && action === number).map(([key]) => SIGNS[key] ?? key);
        const name = about.names.length === about.width ? about.names[i] : String(number);
        const shown = keys.filter((key) => key !== name);
        box.append(el("button", { onclick: () => this.choose(choice, number), "data-action": i }, name,
          ...shown.map((key) => el("kbd", {}, key))));
      }
    });
    this.numbers.forEach((number, i) => this.makeSlider(box, number, this.keysOf(number, i)));
    if (about.players) box.append(el("button", { id: "reply", title: "The agent makes the next move", onclick: () => this.reply() }, "It moves"));
    if (!this.single) box.append(el("button", { onclick: () => this.act() }, "Take this action", el("kbd", {}, "Enter")));
    if (this.numbers.some((number, i) => this.keysOf(number, i).length)) box.append(el("span", { className: "hint" }, "Hold a key to act in real time."));
  }

  keysOf(number, i) {
    return PAIRS[i] ?? [];
  }

  moved() {} // a slider was moved by hand

  makeSlider(box, number, keys) {
    const { name, index, units } = number, said = el("output");
    const input = el("input", { type: "range", min: -1, max: 1, step: 0.01, ariaLabel: name, oninput: () => (number.set(+input.value), this.moved()) });
    number.set = (x) => ((this.flat[index] = input.value = x), (said.value = short(units(x))));
    number.set(0);
    box.append(el("label", {}, name, input, said, ...keys.map((key) => el("kbd", {}, SIGNS[key] ?? key))));
  }

  // A held key drives its number to one end while rows pass; released, the number returns to the middle.
  hold(key) {
    const i = PAIRS.findIndex((pair) => pair.includes(key));
    if (!this.numbers[i]) return false;
    this.held.add(key);
    this.numbers[i].set(PAIRS[i].indexOf(key) * 2 - 1);
    if (!this.page.playing) {
      this.driving = true; // else what is playing goes on after the key is released
      this.page.play();
    }
    return true;
  }

  release(key) {
    if (key !== undefined && !this.held.delete(key)) return;
    if (key === undefined) this.held.clear();
    PAIRS.forEach((pair, i) => pair.some((one) => this.held.has(one)) || (key && !pair.includes(key)) || this.numbers?.[i]?.set(0));
    if (!this.held.size && this.driving) this.page.stop();
    if (!this.held.size) this.driving = false;
  }

  choose(choice, number) {
    for (let i = choice.start; i < choice.stop; i++) this.flat[i] = +(i - choice.start === number);
    if (this.single) return this.act();
    this.show();
    return null;
  }

  // Takes the action: in the environment at a row that happened, in the dream behind them. In a game, the agent replies.
  async act() {
    const { page } = this, row = page.rows[page.at];
    const dreams = !row.real || (row.real.last && page.about.dreams) || page.about.recorded;
    if (this.acting || (dreams && !page.mayDream(() => this.act()))) return null;
    this.acting = true; // a key can repeat before the answer comes
    const head = dreams
      ? await page.change("dream", { at: page.at, steps: 1, action: this.flat })
      : await page.change("step", { at: page.at, action: this.flat });
    this.acting = false;
    return head && !dreams && this.about.players ? this.reply() : head;
  }

  // Takes an action of the only choice, from wherever it is chosen.
  take(action) {
    this.page.stop();
    return this.choose(this.about.choices[0], action);
  }

  // The agent makes the next move.
  async reply() {
    const { page } = this, { real } = page.rows[page.at];
    page.stop();
    if (this.acting || !real || real.last) return null;
    this.acting = true;
    const head = await page.change("step", { at: page.at });
    this.acting = false;
    return head;
  }

  key(key, repeated) {
    if (!this.mine) return false;
    if (this.held.has(key) || (!repeated && this.hold(key))) return true;
    if (key === "Enter" && !this.single) return this.act(), true;
    if (!this.bound.has(key)) return false;
    this.take(this.bound.get(key));
    return true;
  }

  show(row) {
    const taken = row?.action?.flat() ?? this.flat, legal = row?.real?.last ? null : row?.real?.legal;
    for (const button of document.querySelectorAll("#hands [data-action]")) {
      button.classList.toggle("on", taken[button.dataset.action] === 1);
      button.disabled = Boolean(legal && !legal.includes(+button.dataset.action));
    }
  }
}

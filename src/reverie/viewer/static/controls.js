// Buttons, keys and the theme: what the user can do anywhere on the page.

import { remember, remembered, writeAddress } from "./address.js";
import { $, el } from "./dom.js";

const THEME = "reverie-theme";

// Keep a theme, or return the kept one. A page in a notebook may not store anything.
function rememberTheme(theme) {
  try {
    return theme === undefined ? localStorage.getItem(THEME) : localStorage.setItem(THEME, theme);
  } catch {
    return null;
  }
}

export class Controls {
  constructor(page) {
    this.page = page;
    document.documentElement.dataset.theme = rememberTheme() ?? "";
    if (!document.documentElement.dataset.theme) delete document.documentElement.dataset.theme;
    this.buttons();
    this.keys();
  }

  buttons() {
    const on = (id, act) => $(id).addEventListener("click", act);
    on("#play", () => this.page.playOrStop());
    on("#first", () => this.page.go(0, true));
    on("#back", () => this.page.go(this.page.at - 1, true));
    on("#forth", () => (this.page.stop(), this.page.moveOn()));
    on("#last", () => this.page.go(this.page.rows.length - 1, true));
    on("#see", () => this.page.observeHere());
    on("#dreamon", () => this.page.dreamOn());
    on("#catchup", () => this.page.catchUp());
    on("#differ", () => this.page.toggle("differs"));
    on("#outline", () => this.page.toggle("outline"));
    on("#again", () => this.page.startEpisode());
    on("#mine", () => this.page.hands.toggle());
    on("#keys", () => this.help());
    on("#copy", () => this.copy());
    on("#theme", () => {
      const dark = matchMedia("(prefers-color-scheme: dark)").matches;
      const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
      document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
      rememberTheme(document.documentElement.dataset.theme);
      this.page.recolor();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.page.recolor());
    $("#scrub").addEventListener("input", () => this.page.go(+$("#scrub").value, true));
    if (remembered("policy") === "sampled") $("#actions").value = "sampled";
    $("#actions").addEventListener("change", async () => {
      const deterministic = $("#actions").value === "deterministic";
      remember({ policy: deterministic ? null : "sampled" });
      if ((await this.page.ask("choose_actions", { deterministic })) && !this.page.about.recorded) this.page.startEpisode(this.page.seed);
    });
    for (const select of document.querySelectorAll("select")) select.addEventListener("change", () => select.blur());
  }

  async copy() {
    writeAddress();
    try {
      await navigator.clipboard.writeText(location.href);
      $("#copy").textContent = "Copied";
      setTimeout(() => ($("#copy").textContent = "Copy link"), 2000);
    } catch {
      this.page.showNote("The browser does not allow copying. Copy the address bar instead.");
    }
  }

  shortcuts = {
    " ": ["play or stop", () => this.page.playOrStop()],
    ArrowLeft: ["one row back", () => this.page.go(this.page.at - 1, true)],
    ArrowRight: ["one row on", () => (this.page.stop(), this.page.moveOn())],
    Home: ["first row", () => this.page.go(0, true)],
    End: ["last row", () => this.page.go(this.page.rows.length - 1, true)],
    "+": ["zoom in on this row", () => this.page.timeline.zoomBy(0.5)],
    "-": ["zoom out", () => this.page.timeline.zoomBy(2)],
    s: ["next surprise", () => this.page.goToNextSurprise()],
    m: ["take over, or give back", () => this.page.hands.toggle()],
    o: ["observe up to here", () => this.page.about.dreams && this.page.observeHere()],
    d: ["continue the dream", () => this.page.about.dreams && this.page.dreamOn()],
    c: ["let the dream happen", () => $("#catchup").hidden || this.page.catchUp()],
    x: ["difference of dream and environment", () => this.page.about.dreams && this.page.toggle("differs")],
    t: ["outline of the truth inside the dream", () => this.page.about.dreams && this.page.toggle("outline")],
    b: ["branch: futures from here", () => this.page.about.dreams && this.page.panels.tabs.Futures.branch()],
    ArrowUp: ["lane above", () => this.page.lanes.choose(this.page.lanes.current - 1)],
    ArrowDown: ["lane below", () => this.page.lanes.choose(this.page.lanes.current + 1)],
    u: ["undo: remove the newest lane or edit", () => this.page.undo()],
    r: ["new episode", () => this.page.startEpisode()],
    ",": ["one row back, while you act", () => this.page.go(this.page.at - 1, true)],
    ".": ["one row on, while you act", () => this.page.go(this.page.at + 1, true)],
    "?": ["these keys", () => this.help()],
  };

  keys() {
    for (const name of ["pointerdown", "keydown"]) document.addEventListener(name, () => (this.page.showing = false), true);
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || $("#help").open || !this.page.about) return;
      const { target, key } = event, tag = target.tagName;
      if (tag === "SELECT" || (tag === "INPUT" && !["range", "checkbox"].includes(target.type))) return;
      if (tag === "INPUT" && target.id !== "scrub" && key.length > 1 && key !== "Enter") return; // sliders take arrows, Home and End
      if (tag === "BUTTON" && [" ", "Enter"].includes(key)) return;
      if (target.closest("[role=tablist]") && key.startsWith("Arrow")) return;
      if (!this.page.hands.mine && /^Arrow(Up|Down)$/.test(key) && this.page.lanes.list.length < 2) return; // the page scrolls
      if (this.page.hands.key(key, event.repeat) || this.shortcuts[key]?.[1]() !== undefined || this.shortcuts[key]) event.preventDefault();
    });
    document.addEventListener("keyup", (event) => this.page.hands.release(event.key));
    window.addEventListener("blur", () => this.page.hands.release());
  }

  help() {
    const named = { " ": "space", ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓" };
    const list = Object.entries(this.shortcuts).flatMap(([key, [what]]) => [el("dt", {}, el("kbd", {}, named[key] ?? key)), el("dd", {}, what)]);
    $("#help").replaceChildren(el("h2", {}, "Keys"), el("dl", {}, ...list),
      el("p", { className: "hint" }, "While you act, the keys of actions stand on their buttons."),
      el("button", { onclick: () => $("#help").close() }, "Close"));
    $("#help").showModal();
  }
}

// The tabs beside the stage. Each may have open() and close(), when it is chosen and left, show(row), and meet(), of an
// episode.

import { remember, remembered } from "./address.js";
import { $, el } from "./dom.js";
import { Futures } from "./futures.js";
import { Goals } from "./goals.js";
import { Gallery } from "./gallery.js";
import { Latent } from "./latent.js";
import { Row } from "./row.js";
import { Search } from "./search.js";
import { Share } from "./share.js";
import { Training } from "./training.js";

export class Panels {
  constructor(page) {
    this.page = page;
    this.chosen = remembered("tab");
    this.tabs = { Goal: new Goals(page), Row: new Row(page), Search: new Search(page), Futures: new Futures(page), Latent: new Latent(page), Episodes: new Gallery(page),
      Training: new Training(page), Share: new Share(page) };
  }

  meet() {
    const { dreams, goals, latents, searches } = this.page.about; // latents that are not drawn cannot be set
    const names = Object.keys(this.tabs).filter((name) => (name !== "Futures" || dreams) && (name !== "Latent" || latents) && (name !== "Goal" || goals) && (name !== "Search" || searches));
    const tab = (name) => el("button", { role: "tab", id: `tab-${name}`, onclick: () => this.choose(name),
      onkeydown: (event) => this.besides(event, names, name) }, name);
    $("#tabs").replaceChildren(...names.map(tab));
    for (const one of $("#tabs").children) one.setAttribute("aria-controls", "panel");
    for (const one of Object.values(this.tabs)) one.meet?.();
    this.first = names[0];
    this.choose(names.includes(this.chosen) ? this.chosen : this.first);
  }

  besides(event, names, name) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const next = names[(names.indexOf(name) + by + names.length) % names.length];
    this.choose(next);
    $(`#tab-${next}`).focus();
  }

  choose(name) {
    this.tabs[this.chosen]?.close?.();
    this.chosen = name;
    remember({ tab: name === this.first ? null : name });
    for (const one of $("#tabs").children) {
      one.setAttribute("aria-selected", one.id === `tab-${name}`);
      one.tabIndex = one.id === `tab-${name}` ? 0 : -1;
    }
    $("#panel").setAttribute("aria-labelledby", `tab-${name}`);
    $("#panel").replaceChildren();
    const { page } = this;
    this.tabs[name].open?.();
    if (page.rows[page.at]) this.show(page.rows[page.at]);
  }

  recolor() {
    this.choose(this.chosen ?? this.first);
  }

  show(row) {
    this.tabs[this.chosen]?.show?.(row);
  }
}

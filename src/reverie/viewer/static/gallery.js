// The tab Episodes: new and recorded episodes with a picture, the return and the largest surprise; a click opens one.

import { $, el, formatScore, paint, short } from "./dom.js";

const SHOWN = 6; // episodes of each kind, and as many more with a click

export class Gallery {
  constructor(page) {
    this.page = page;
    this.cards = new Map();
    this.work = Promise.resolve();
  }

  // The cards come one after the other.
  open() {
    const { page } = this, { about } = page, key = `${page.run} ${about.checkpoint}`;
    if (this.key !== key) {
      Object.assign(this, { key, counts: { fresh: SHOWN, recorded: SHOWN }, seed: about.recorded ? 0 : page.seed });
      this.cards.clear();
    }
    const lists = {}, later = () => (this.work = this.work.then(() => this.fill(lists)));
    const section = ([kind, title]) => {
      lists[kind] = el("div", { className: "cards" });
      return el("section", {}, el("h2", {}, title), lists[kind], el("p"), el("button", { onclick: () => ((this.counts[kind] += SHOWN), later()) }, "More"));
    };
    const kinds = Object.entries({ fresh: "New episodes, worst first", recorded: "Recorded episodes, worst first" });
    later();
    $("#panel").replaceChildren(...kinds.filter(([kind]) => kind === "recorded" || !page.hello.data).map(section));
  }

  async fill(lists) {
    for (const [kind, list] of Object.entries(lists)) {
      for (let i = list.children.length; i < this.counts[kind]; i++) {
        const given = kind === "fresh" ? { seed: this.seed + i } : { episode: -1 - i }, key = JSON.stringify(given);
        list.nextSibling.textContent = this.cards.has(key) ? "" : "Playing …";
        if (!this.cards.has(key)) this.cards.set(key, await this.playEpisode(given, list));
        const card = this.cards.get(key);
        list.nextSibling.textContent = "";
        if (!card || card.error) {
          this.cards.delete(key);
          if (card && !i) list.nextSibling.textContent = card.error;
          if (card) list.parentElement.lastChild.hidden = true;
          break;
        }
        list.append(this.makeCard(card, kind));
      }
      this.sort(list);
    }
  }

  // The worst first; equally bad ones stay in the order in which they came.
  sort(list) {
    const focused = document.activeElement;
    list.replaceChildren(...[...list.children].sort((a, b) => a.dataset.score - b.dataset.score));
    if (list.contains(focused)) focused.focus({ preventScroll: true });
  }

  // Plays an episode, some rows a request, so that the page can ask for other things between; null once the tab is left.
  async playEpisode(given, list) {
    for (let again = false; list.isConnected; again = true) {
      const head = await this.page.link.ask("preview", { ...given, again }).catch((error) => ({ error: error.message }));
      if (head.error || head.done) return head;
    }
    return null;
  }

  makeCard({ pictures, seed, episode, score, rows, last, surprise, ending, fall }, kind) {
    const { page } = this, { about } = page, canvas = el("canvas", { role: "img", ariaLabel: "Picture of the episode" });
    paint(canvas, pictures[0]?.blob);
    const [given, name] = kind === "fresh" ? [{ seed }, `seed ${seed}`] : [{ episode }, `episode ${episode}`];
    const here = kind === "fresh" ? !about.recorded && page.seed === seed : about.recorded && about.episode === episode;
    const open = (row) => page.open(page.run, { ...given, checkpoint: page.checkpoint }, { row });
    const button = el("button", { className: "card", ariaCurrent: here ? "true" : "false", onclick: () => open() },
      canvas, el("b", {}, `return ${formatScore(score)}`), el("span", {}, `${(rows - 1).toLocaleString("en")}${last ? "" : "+"} steps${ending && `, ${ending}`}`),
      surprise === null ? null : el("span", {}, `surprise ${short(surprise)}`), el("span", {}, name));
    const look = fall === null ? null : el("button", { className: "fall", title: "Open this row", onclick: () => open(fall) }, `value fell at row ${fall}`);
    return el("div", { "data-score": score }, button, look);
  }
}

// The lanes below the strip: a thin row each, with pictures at the strip's columns and at the current row.

import { $, color, el, formatScore } from "./dom.js";
import { layOut, placeOfRow } from "./strip_canvas.js";

const HIGH = 38, AHEAD = 8, ASKED = 24, KEPT = 1500; // pixels; rows fetched ahead; pictures in a request, and in memory

export class Lanes {
  list = [];
  pictures = new Map(); // by lane and row; null: there is none
  version = 0; // of the lanes: answers about older ones do not count

  constructor(page) {
    this.page = page;
    $("#undo").addEventListener("click", () => page.undo());
  }

  // Takes the lanes of an answer; in the current one, rows have changed.
  take({ lanes, lane, first }) {
    for (const key of [...this.pictures.keys()]) {
      const [number, row] = key.split("/").map(Number);
      if (!first || number >= lanes.length || (number === lane && row >= first)) this.pictures.delete(key);
    }
    Object.assign(this, { list: lanes, current: lane, version: this.version + 1 });
    const rows = $("#lanes .rows"), buttons = rows.querySelectorAll("button"), page = this.page;
    $("#lanes").hidden = lanes.length < 2;
    for (const [number, button] of buttons.entries()) if (number >= lanes.length) button.remove();
    for (let number = buttons.length; number < lanes.length; number++)
      rows.append(el("button", { className: "lane", onclick: () => this.choose(number) }, el("span"), el("canvas", { ariaHidden: "true" })));
    for (const [number, button] of rows.querySelectorAll("button").entries()) {
      const { name, parent, at, length, score } = lanes[number], leaves = parent === null ? "" : ` leaves ${lanes[parent].name} at row ${Math.max(0, at)},`;
      $("span", button).replaceChildren(el("b", {}, name), `${leaves} ${length} rows, score ${formatScore(score)}`);
      button.setAttribute("aria-pressed", number === lane);
    }
    page.strip.draw();
    this.showEpisode();
  }

  // The episode as a third column, on wide screens, while its actions are others.
  showEpisode() {
    const row = this.beside, picture = this.pictures.get(`-1/${row}`), canvas = $("#episode canvas");
    $("#episode").hidden = row < 0;
    $(".stage").classList.toggle("three", row >= 0);
    $("#real b").textContent = row < 0 ? "Environment" : this.list[this.current].name;
    if (!picture) return;
    Object.assign(canvas, { width: picture.width, height: picture.height }).getContext("2d").drawImage(picture, 0, 0);
    canvas.className = picture.width < 64 ? "coarse" : "";
  }

  // Whether the environment has gone on in the parent, under another action.
  get leaves() {
    const { parent, real } = this.list[this.current];
    return parent !== null && real < this.list[parent].real;
  }

  // Shows another lane, at the same row.
  async choose(number) {
    const { page } = this;
    if (number !== this.current && this.list[number]) await page.change("switch_lane", { number }, page.at);
  }

  // The current row if the episode has it too, under other actions than this lane; else -1.
  get beside() {
    const { at, kind } = this.list[this.current], row = this.page.at;
    return this.current && (kind === "hands" || this.leaves) && row > at && row < this.list[0].real ? row : -1;
  }

  // Pictures that are missing: of the current row, of the columns, and of the next rows.
  missing() {
    const { at, strip, stride, rows } = this.page, next = [...Array(AHEAD).keys()].map((i) => Math.min(rows.length - 1, at + (i + 1) * stride));
    const places = [at, ...strip.shown?.columns ?? [], ...next].flatMap((row) => this.list.map((_, number) => [number, row]));
    const known = places.filter(([number, row]) => this.has(number, row)).concat(this.beside < 0 ? [] : [[-1, this.beside]]);
    return known.filter((place) => !this.pictures.has(place.join("/"))).slice(-ASKED);
  }

  // Whether a row is the lane's, not its parent's.
  has(number, row) {
    const { at, length } = this.list[number];
    return row > at && row < length;
  }

  async fetch() {
    const { page, version } = this, places = this.list.length > 1 ? this.missing() : [];
    if (!places.length || this.asking) return;
    this.asking = true;
    const head = await page.ask("lane_pictures", { places }, true);
    const bitmaps = await Promise.all((head?.pictures ?? []).map(({ blob }) => createImageBitmap(blob)));
    this.asking = false;
    if (head && version === this.version) {
      for (const place of places) this.pictures.set(place.join("/"), null);
      head.pictures.forEach(({ row, side }, i) => this.pictures.set(`${row}/${side}`, bitmaps[i]));
      for (const key of this.pictures.keys()) if (this.pictures.size > KEPT) this.pictures.delete(key);
      this.draw();
    }
    if (head) page.fetch();
  }

  draw() {
    if (!this.due) this.due = requestAnimationFrame(() => ((this.due = 0), this.list.length > 1 && this.page.strip.shown && this.paint()));
  }

  paint() {
    this.showEpisode();
    const { at, strip: { shown, canvas: { clientWidth: width } } } = this.page, { left, wide } = layOut(shown, width), scale = devicePixelRatio || 1;
    const colors = Object.fromEntries(["real", "dream", "edited"].map((name) => [name, color(name)]));
    const now = $("#lanes .now"), place = placeOfRow(shown, width, at);
    now.style.left = `${place}px`;
    now.hidden = at >= shown.origins.length;
    $("#lanes .rows").style.width = `${width}px`;
    for (const [number, canvas] of document.querySelectorAll("#lanes canvas").entries()) {
      const lane = this.list[number], c = Object.assign(canvas, { width: width * scale, height: HIGH * scale }).getContext("2d");
      c.scale(scale, scale);
      const put = (row, middle, bold) => {
        const picture = this.has(number, row) && this.pictures.get(`${number}/${row}`);
        if (!picture) return;
        const w = Math.min(wide, (HIGH - 4) * picture.width / picture.height), h = w * picture.height / picture.width, real = lane.kind === "hands" || row < lane.context;
        c.clearRect(middle - w / 2 - bold, 0, w + 2 * bold, HIGH);
        c.drawImage(picture, middle - w / 2, (HIGH - h) / 2, w, h);
        c.strokeStyle = colors[real && row < lane.real ? "real" : lane.kind === "edited" ? "edited" : "dream"];
        c.lineWidth = bold + 1;
        c.strokeRect(middle - w / 2, (HIGH - h) / 2, w, h);
      };
      shown.columns.forEach((row, i) => put(row, left(i) + wide / 2, 0.5));
      put(at, place, 2);
    }
  }
}

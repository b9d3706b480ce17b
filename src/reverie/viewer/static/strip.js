// The strip on top of an episode: asks for it after rows have changed, draws it, and goes to the row that is pressed.

import { $, color, drawOutline } from "./dom.js";
import { drawStrip, placeOfRow, rowAtPlace } from "./strip_canvas.js";

export class Strip {
  constructor(page) {
    Object.assign(this, { page, decoded: new Map(), canvas: $("#strip canvas") });
    let down = null;
    const row = (event, exact) => rowAtPlace(this.shown, this.canvas.clientWidth, event.offsetX, exact);
    const on = (name, act) => this.canvas.addEventListener(name, (event) => this.shown && act(event));
    on("pointerdown", (event) => ((down = event.offsetX), this.canvas.setPointerCapture(event.pointerId), $("#scrub").focus(), page.go(row(event, true), true)));
    on("pointermove", (event) => down !== null && Math.abs(event.offsetX - down) > 4 && page.go(row(event), true));
    for (const name of ["pointerup", "pointercancel"]) on(name, () => (down = null));
    new ResizeObserver(() => (this.shown && this.count() !== this.asked ? this.ask() : this.draw())).observe($("#strip"));
  }

  count() {
    return Math.max(5, Math.min(16, Math.floor(this.canvas.clientWidth / 62)));
  }

  reset() {
    this.shown = null;
    this.decoded.clear();
    $("#sentence").textContent = "";
  }

  // Asks for the strip of the rows as they are; one request at a time.
  async ask() {
    if (this.asking) return void (this.stale = true);
    this.asking = true;
    this.asked = this.count();
    const { opening } = this.page, head = await this.page.ask("strip", { columns: this.asked }, true);
    this.asking = false;
    if (this.stale) this.stale = void this.ask();
    if (!head || opening !== this.page.opening || head.origins.length !== this.page.rows.length) return;
    this.shown = head;
    $("#sentence").textContent = head.sentence;
    this.draw();
    this.page.show();
  }

  // Rows whose pictures are missing.
  missing() {
    return this.shown?.columns.filter((row) => row < this.page.rows.length && !this.page.pictures.has(`${row}/0`) && !this.page.pictures.has(`${row}/1`)) ?? [];
  }

  // Draws once in a frame, with the pictures that are there; others are drawn when they come.
  draw() {
    if (!this.due) this.due = requestAnimationFrame(() => ((this.due = 0), this.shown && this.paint()));
  }

  paint() {
    const { page } = this, colors = {}, sides = page.about.dreams ? 2 : 1;
    drawStrip(this.canvas, this.shown, sides, (row, side) => this.decode(row, side), (name) => (colors[name] ??= color(name)));
    this.mark(page.at);
    page.lanes.draw();
  }

  // The decoded picture of a row, the dream's with the outline of the truth; nothing until it is decoded.
  decode(row, side) {
    const { pictures, outline } = this.page, blobs = [pictures.get(`${row}/${side}`), side && outline ? pictures.get(`${row}/0`) : undefined];
    const key = `${row}/${side}`, old = this.decoded.get(key);
    if (!blobs[0]) return undefined;
    if (old?.blobs.every((blob, i) => blob === blobs[i])) return old.drawn;
    const made = { blobs, drawn: old?.drawn };
    this.decoded.set(key, made);
    Promise.all(blobs.map((blob) => blob && createImageBitmap(blob))).then(async ([picture, truth]) => {
      made.drawn = truth ? await createImageBitmap(drawOutline(picture, truth)) : picture;
      this.draw();
    });
    return old?.drawn;
  }

  // Where one is.
  mark(at) {
    const now = $("#strip .now");
    now.hidden = !this.shown || at >= this.shown.origins.length;
    if (!now.hidden) now.style.left = `${placeOfRow(this.shown, this.canvas.clientWidth, at)}px`;
  }
}

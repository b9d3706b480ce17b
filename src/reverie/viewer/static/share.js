// The tab Share: the episode and its dream as files.

import { $, el, save } from "./dom.js";

export class Share {
  constructor(page) {
    this.page = page;
  }

  open() {
    const kinds = { html: ["A page", "plays the episode and its dream; needs nothing but a browser"], mp4: ["A video (mp4)", "both sides, or all lanes, frame by frame"],
      gif: ["A GIF", "the same, for where videos do not play"], npz: ["The numbers (npz)", "rows, dream, states and predictions as arrays"] };
    const button = ([kind, [name, about]]) => el("button", { id: `save-${kind}`, onclick: async () => {
      const head = await this.page.ask("export_file", { kind });
      if (head) save(head.file, head.pictures[0].blob);
    } }, name, el("span", {}, about));
    $("#panel").replaceChildren(el("p", {}, "The episode as it is now, with its dream, as a file."),
      el("div", { className: "downloads" }, ...Object.entries(kinds).map(button)));
  }
}

// Questions about recorded rows: which of two clips is better, or whether a row shows success. See labels.py.

import { $, clearCanvas, color, el, paint, short } from "./dom.js";
import { connect, unpack } from "./link.js";

const PAUSE = 100; // milliseconds between pictures
const IS_STILL = matchMedia("(prefers-reduced-motion: reduce)").matches;
const KINDS = {
  preferences: {
    question: "Which clip is better?", names: ["Left", "Right"],
    answers: { ArrowLeft: ["first", "Left", "←"], ArrowRight: ["second", "Right", "→"], ArrowUp: ["tie", "Equal", "↑"], w: ["wrong", "One looks wrong", "W"] },
  },
  success: {
    question: "Does this row show success?", names: ["Row"],
    answers: { s: ["success", "Success", "S"], f: ["failure", "Failure", "F"] },
  },
};
const SHARED = { ArrowDown: ["skip", "Cannot tell", "↓"], Backspace: ["undo", "Undo the newest answer", "⌫"] };

class Labels {
  constructor() {
    this.socket = connect();
    this.socket.onmessage = ({ data }) => this.show(unpack(data));
    this.socket.onclose = () => this.end();
    document.addEventListener("keydown", (event) => this.press(event));
    for (const name of ["resize", "change"]) (name === "resize" ? window : matchMedia("(prefers-color-scheme: dark)")).addEventListener(name, () => this.asked && this.draw());
  }

  show(asked) {
    if (!asked.kind) return void ($("#status").textContent = asked.problem); // no question yet
    const { question, names, answers } = KINDS[asked.kind];
    this.asked = asked;
    this.keys = { ...answers, ...SHARED };
    $("#status").textContent = asked.problem || question;
    $("#counts").textContent = [...Object.entries(asked.counts).map(([name, count]) => `${name}: ${count}`), ...(asked.advice ? [asked.advice] : [])].join(" · ");
    if (!$("#choices").childElementCount)
      $("#choices").append(...Object.entries(this.keys).map(([, [answer, text, key]]) => el("button", { onclick: () => this.send(answer) }, text, el("kbd", {}, key))));
    this.figures = asked.series.map((series, i) => this.figure(names[i], asked.names[i], series, asked.pictures.filter(({ row }) => row === i)));
    $("#clips").replaceChildren(...this.figures);
    this.draw();
    this.play();
  }

  figure(name, place, series, pictures) {
    const canvas = el("canvas", { role: "img", ariaLabel: `Pictures of ${name.toLowerCase()}`, hidden: true });
    const lines = series.map(({ name, values }) => el("tr", {}, el("th", { scope: "row" }, name),
      ...(values.length > 1 ? [el("td", { className: "line" }, el("canvas", { role: "img", ariaLabel: `${name}, ${values.map(short).join(", ")}` }))] : []),
      el("td", {}, values.length > 1 ? `${short(values[0])} → ${short(values.at(-1))}` : short(values[0]))));
    return el("figure", {}, el("figcaption", {}, el("b", {}, name), el("span", { className: "chip" }, place)),
      ...(pictures.length ? [el("div", { className: "frame" }, canvas)] : []), el("table", {}, el("tbody", {}, ...lines)));
  }

  // Both clips have the same scale, so that they can be compared.
  draw() {
    const stroke = color("real");
    this.figures.forEach((figure, i) => figure.querySelectorAll("td canvas").forEach((canvas, number) => {
      const all = this.asked.series.flatMap((series) => series[number].values), values = this.asked.series[i][number].values;
      const [c, width, height] = clearCanvas(canvas), least = Math.min(...all), span = Math.max(...all) - least || 1;
      c.strokeStyle = stroke;
      c.lineWidth = 1.5;
      values.forEach((value, t) => c.lineTo((t / (values.length - 1)) * width, height - 2 - ((value - least) / span) * (height - 4)));
      c.stroke();
    }));
  }

  // Repeats the pictures; without motion, the last ones are shown.
  play() {
    clearInterval(this.playing);
    const clips = this.figures.map((_, i) => this.asked.pictures.filter(({ row }) => row === i));
    const count = clips[0].length;
    let t = IS_STILL ? count - 1 : 0;
    const paintAll = () => this.figures.forEach((figure, i) => paint($(".frame canvas", figure), clips[i][t].blob));
    if (count) paintAll();
    if (count > 1 && !IS_STILL) this.playing = setInterval(() => ((t = (t + 1) % count), paintAll()), PAUSE);
  }

  press(event) {
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || !this.keys?.[key]) return;
    this.send(this.keys[key][0]);
    event.preventDefault();
  }

  // One answer to each question.
  send(answer) {
    if (this.socket.readyState !== WebSocket.OPEN || !this.asked || this.sent === this.asked) return;
    this.sent = this.asked;
    this.socket.send(answer);
    setTimeout(() => this.sent === this.asked && ($("#status").textContent = "Wait: networks learn from the answers …"), 700);
  }

  end() {
    clearInterval(this.playing);
    $("#status").textContent = "The connection is closed. All answers are written.";
    for (const button of document.querySelectorAll("button")) button.disabled = true;
  }
}

window.labels = new Labels();

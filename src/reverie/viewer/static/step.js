// An environment's page program, in which a policy's program acts, or a visitor, beside the dream of a world model's.
import { open, sample, stream } from "./program.js";
import { environment } from "./environment.js";

const $ = (selector) => document.querySelector(selector), facts = JSON.parse($("#given").textContent);
const AHEAD = 15, THUMB = 48;
const argmax = (values) => values.indexOf(Math.max(...values)), zeros = (n) => new Float32Array(n);
const sum = (values) => values.reduce((a, b) => a + b, 0), short = (x) => String(+x.toPrecision(3));

let random = stream(0), noise = stream(0);
const { parts, tensors } = JSON.parse($("#program").textContent), dreams = "observe" in parts, entry = parts[dreams ? "observe" : "act"];
const model = open({ parts, tensors }, (distribution) => sample(distribution, noise));

// ---------------------------------------------------------------- the model

const inputs = Object.fromEntries(entry.in.filter(([, label]) => !(label in entry.noise)).map(([, label, shape]) => [label, shape.reduce((a, b) => a * b, 1)]));
const width = environment.actions[0].flat.length;
function observe(before, state) {
  const seen = environment.observe(state), given = { is_first: [+!before], action: before?.action ?? zeros(width) };
  for (const label in inputs) {
    const key = label.replace(/^obs\//, "");
    if (label in given) continue;
    given[label] = label.startsWith("obs/") ? seen[key] : before?.latent[label] ?? zeros(inputs[label]);
    if (!given[label]) throw new Error(`the environment's page program does not observe ${key}`);
  }
  if (dreams) return model.observe(given);
  const output = model.act(given); // its memory is the input of the next row
  return { ...output, ...Object.fromEntries(Object.entries(facts.states).map(([name, label]) => [label, output[name]])) };
}
const imagine = (latent, action) => model.imagine({ ...latent, action });
// Predicted probabilities as classes.
function decode(predicted) {
  return Object.fromEntries(Object.entries(facts.spec).filter(([key]) => key in predicted).map(([key, part]) => {
    if (part.kind !== "categorical") return [key, Array.from(predicted[key])];
    const most = Math.max(...part.classes);
    return [key, part.classes.map((_, i) => argmax(Array.from(predicted[key].slice(i * most, (i + 1) * most))))];
  }));
}
// The most likely action of a row, as learners see it.
function acted({ latent, predicted }) {
  if (dreams) return choose(predicted.policy);
  const action = Array.from(latent.action);
  return facts.discrete ? environment.actions[action[0] - facts.start].flat : action.map((x, i) => ((x - facts.scale[0][i]) / (facts.scale[1][i] - facts.scale[0][i])) * 2 - 1);
}
const choose = (policy) => (facts.discrete ? environment.actions[argmax(Array.from(policy))].flat : Array.from(policy, (x) => Math.min(1, Math.max(-1, x))));

const distance = (a, b) => Math.sqrt(sum(a.map((value, i) => (value - b[i]) ** 2)) / a.length);
// How far a dreamt row is off in words, nothing if it is right; `imagined` are the rows since the last one that was seen.
function judge(row, last, imagined) {
  const truth = environment.observe(row.state), guess = decode(row.predicted), keys = Object.keys(guess).filter((key) => key in truth);
  if (row.predicted.cont[0] < 0.5 !== row.end) return row.end ? "the episode ends, and the dream goes on" : "the dream has ended";
  const classes = keys.filter((key) => facts.spec[key].kind === "categorical");
  if (classes.length) {
    const place = classes.find((key) => facts.cells.includes(key)), off = place ? sum([0, 1].map((i) => Math.abs(truth[place][i] - guess[place][i]))) : 0;
    const wrong = sum(classes.map((key) => truth[key].filter((value, i) => value !== guess[key][i] && !(key === place && i < 2)).length));
    return off ? `${off} ${off > 1 ? "cells" : "cell"} off` : wrong ? `${wrong} ${wrong > 1 ? "classes" : "class"} off` : "";
  }
  if (!keys.length) return "";
  const key = keys[0], seen = environment.observe(last.state)[key], still = imagined.map(({ state }) => distance(environment.observe(state)[key], seen));
  const ratio = distance(truth[key], guess[key]) / Math.max(1e-9, sum(still) / still.length);
  return ratio < 1 ? "" : `off by ${short(ratio)} times “nothing changes”`;
}

// ---------------------------------------------------------------- the episode

let rows = [], seed = 1, isPlaying = false;
// Each row has random numbers of its own, so that a walk can be repeated whatever else was computed.
const drawFor = (row, purpose) => (noise = stream(seed * 100_000 + row * 100 + purpose));
function add(state, reward, end, ending, isSeen) {
  drawFor(rows.length, 0);
  const before = rows.at(-1), latent = isSeen || !dreams ? observe(before, state) : imagine(before.latent, before.action);
  rows.push({ state, reward, end, ending, isSeen: isSeen || !dreams, latent, predicted: dreams ? model.predict(latent) : {} });
}
function begin() {
  random = stream(seed);
  rows = [];
  add(environment.reset(random), 0, false, "", true);
}
const isOver = () => rows.at(-1).end || rows.length > environment.steps;
function act(flat) {
  if (isOver()) return;
  const last = rows.at(-1);
  last.action = Float32Array.from(flat);
  const next = environment.step(last.state, flat, random);
  add(next.state, next.reward, next.end, next.ending ?? "", false);
}
function look() {
  const last = rows.pop();
  add(last.state, last.reward, last.end, last.ending, true);
}
// The address has the seed and the actions, so that a dream can be linked.
function remember() {
  const taken = rows.slice(0, -1).map(({ action }) => (facts.discrete ? argmax(Array.from(action)) : environment.actions.findIndex(({ flat }) => flat.every((x, i) => Math.fround(x) === action[i]))));
  if (location.protocol !== "about:") history.replaceState(null, "", taken.every((i) => i >= 0) ? `#seed=${seed}&actions=${taken.join(",")}` : `#seed=${seed}`);
}
function recall() {
  const given = new URLSearchParams(location.hash.slice(1)), asked = given.get("seed") ?? "", actions = given.get("actions") ?? "";
  seed = /^\d{1,9}$/.test(asked) ? +asked : 1;
  begin();
  if (/^\d{1,3}(,\d{1,3}){0,999}$/.test(actions)) for (const i of actions.split(",")) if (+i < environment.actions.length) act(environment.actions[+i].flat);
}

// ---------------------------------------------------------------- pictures and words

const probe = document.createElement("i");
$("main").append(probe);
function color(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}
function paint(context, observation, side) {
  context.clearRect(0, 0, side, side);
  environment.draw(context, observation, side, color);
}
function strip() {
  const canvas = $("#strip canvas"), scale = Math.min(2, devicePixelRatio || 1), count = Math.max(1, Math.floor(canvas.clientWidth / (THUMB + 4)));
  canvas.width = canvas.clientWidth * scale;
  canvas.height = (dreams ? 112 : 56) * scale;
  const context = canvas.getContext("2d");
  rows.slice(-count).forEach((row, i) => [environment.observe(row.state), { ...environment.observe(row.state), ...decode(row.predicted) }].slice(0, dreams ? 2 : 1).forEach((observation, side) => {
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.translate(i * (THUMB + 4), side * (THUMB + 8));
    context.save();
    context.beginPath();
    context.rect(0, 0, THUMB, THUMB);
    context.clip();
    environment.draw(context, observation, THUMB, color);
    context.restore();
    context.fillStyle = row.off && side ? color("bad") : color(row.isSeen || !side ? "real" : "dream");
    context.fillRect(0, THUMB + 1, THUMB, 3);
  }));
}
// The return that the agent expects after an action, and when the dream ends.
function future(flat, number) {
  if (!dreams) return `${Math.round(100 * rows.at(-1).latent.probabilities[number])} %`;
  drawFor(rows.length, 1 + number);
  const { latent } = rows.at(-1);
  let state = latent, action = flat, total = 0, weight = 1;
  for (let step = 1; step <= AHEAD; step++) {
    state = imagine(state, action);
    const { reward, cont, policy, "inside/value": value } = model.predict(state);
    total += weight * reward[0];
    if (cont[0] < 0.5) return `${short(total)}, ends after ${step}`;
    weight *= facts.discount * cont[0];
    if (step === AHEAD) total += weight * value[0];
    action = choose(policy);
  }
  return short(total);
}
function show() {
  const row = rows.at(-1), last = rows.findLastIndex(({ isSeen }) => isSeen), since = rows.length - 1 - last;
  row.off = row.isSeen ? "" : judge(row, rows[last], rows.slice(last + 1));
  const wrong = rows.findIndex(({ off }, i) => off && i > last);
  paint($("#real canvas").getContext("2d"), environment.observe(row.state), 480);
  if (dreams) paint($("#dream canvas").getContext("2d"), { ...environment.observe(row.state), ...decode(row.predicted) }, 480);
  $("#real span").textContent = `row ${rows.length - 1}, return ${short(sum(rows.map(({ reward }) => reward)))}`;
  if (dreams) $("#dream span").textContent = row.isSeen ? "it sees this row" : `goes on: ${Math.round(100 * Math.min(1, row.predicted.cont[0]))} %`;
  const over = row.end ? ` The episode ends${row.ending ? `: ${row.ending}` : ""}. Start again.` : isOver() ? " Time is up. Start again." : "";
  $("#verdict").textContent = (!dreams ? "" : row.isSeen ? "The model sees this row." : `${since} ${since > 1 ? "steps" : "step"} with closed eyes: ${row.off || (wrong >= 0 ? `right again, but wrong in row ${wrong}` : "the dream is right")}.`) + over;
  $("#verdict").className = row.off ? "bad" : "";
  if (ahead) environment.actions.forEach(({ name, flat }, i) => {
    const [label, value] = $("#futures").children[i].children;
    label.textContent = name;
    value.textContent = isOver() ? "" : future(flat, i);
  });
  document.querySelectorAll("#hands button").forEach((button) => (button.disabled = isOver()));
  if (dreams) $("#look").disabled = row.isSeen || isOver();
  strip();
  remember();
}
function press(flat) {
  setPlaying(false);
  act(flat);
  show();
}
function setPlaying(on) {
  isPlaying = on;
  $("#auto").setAttribute("aria-pressed", on);
}
function again() {
  seed += 1;
  begin();
  show();
}

$("#name").textContent = dreams ? `Step into the dream: ${facts.title}` : "The agent acts";
$("#say").textContent = [environment.legend, facts.say].filter(Boolean).join(" ");
$("#model").textContent = facts.facts;
const ahead = dreams || "probabilities" in entry.out;
if (!ahead) $("#ahead").remove();
else [$("#ahead h2").textContent, $("#ahead p").textContent] = dreams ? ["What if", "The agent dreams on after each first action. This is the return that it expects:"] : ["What it would do", "The probability of each action here:"];
if (!dreams) [$("#dream"), $("#look")].forEach((part) => part.remove()), $("#stage").classList.add("alone");
for (const { name, key, flat } of environment.actions) {
  const button = document.createElement("button"), item = document.createElement("li");
  button.textContent = `${name} ${{ ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓" }[key] ?? key}`;
  button.onclick = () => press(flat);
  item.append(document.createElement("span"), document.createElement("b"));
  $("#hands").append(button);
  if (ahead) $("#futures").append(item);
}
const within = $("#walk"); // a part of a longer page, which has other keys
addEventListener("keydown", (event) => {
  const action = environment.actions.find(({ key }) => key === event.key);
  if (!action || event.ctrlKey || event.metaKey || event.altKey || (within && !within.contains(document.activeElement))) return;
  event.preventDefault();
  press(action.flat);
});
$("#again").onclick = again;
if (dreams) $("#look").onclick = () => { look(); show(); };
$("#auto").onclick = () => setPlaying(!isPlaying);
let rest = 0; // turns to wait at an end
setInterval(() => {
  if (!isPlaying || document.hidden) return;
  if (!isOver()) { act(acted(rows.at(-1))); rest = Math.ceil(2000 / Math.max(150, environment.pace)); return show(); }
  if (rest-- <= 0) again();
}, Math.max(150, environment.pace));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
addEventListener("resize", strip);
recall();
show();
setPlaying(!within && !matchMedia("(prefers-reduced-motion: reduce)").matches && rows.length === 1);
document.documentElement.dataset.ready = "yes";

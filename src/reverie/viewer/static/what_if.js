// What the agent would do in a recorded row if the numbers of its observation were others.
import { open, sample, stream } from "./program.js";

const given = JSON.parse(document.getElementById("what-if-rows").textContent), { sliders, episodes, names, states, start } = given;
const box = document.getElementById("what-if"), short = (x) => String(+x.toPrecision(3));
const program = JSON.parse(document.getElementById("program").textContent), inputs = program.parts.act.in, count = (shape) => shape.reduce((a, b) => a * b, 1);
let noise = stream(1);
const model = open(program, (distribution) => sample(distribution, noise));
function el(tag, text = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}
function range(label, low, high, step, act) {
  const row = el("label"), name = el("span", label), slider = el("input"), value = el("output");
  Object.assign(slider, { type: "range", min: low, max: high, step });
  row.append(name, slider, value);
  slider.addEventListener("input", act);
  return { row, slider, value };
}

// The policy's outputs in a row with these numbers; its memory is that of the rows before.
function act(number, obs, before) {
  noise = stream(number);
  const values = { ...obs, is_first: [+!number], reward: [episode.reward[number]] };
  for (const [, label, shape] of inputs) if (!(label in values) && !(label in program.parts.act.noise)) values[label] = before?.[label] ?? new Float32Array(count(shape));
  const out = model.act(values);
  return { ...out, ...Object.fromEntries(Object.entries(states).map(([name, label]) => [label, out[name]])) };
}
const observed = (number) => Object.fromEntries(Object.entries(episode.obs).map(([key, rows]) => [key, rows[number]]));
let episode = episodes[0], at = 0, memory = null;
// Each output of the policy in words: a line for each class, or one for an action of several numbers.
function describe(out) {
  const scores = out.probabilities ?? out.values;
  if (names.length && scores) return names.map((name, i) => [name, out.probabilities ? `${Math.round(100 * scores[i])} %` : Number.isFinite(scores[i]) ? short(scores[i]) : "illegal"]);
  return Object.entries(out).filter(([name]) => name === "action" || name.startsWith("action/")).map(([name, x]) => [name, names.length ? names[x[0] - start] : [...x].map(short).join(", ")]);
}
const list = el("dl"), did = el("p"), row = range("row", 0, 0, 1, () => go(+row.slider.value)), choice = el("select"), fields = el("div"), reset = el("button", "As it was");
const changed = sliders.map(({ name, low, high, step }) => range(name, low, high, step, () => show()));
function go(number) {
  [at, memory] = [number, null];
  if (Object.keys(states).length) for (let i = 0; i < at; i++) memory = act(i, observed(i), memory);
  row.value.textContent = `${at} of ${episode.actions.length - 1}`;
  const obs = observed(at);
  sliders.forEach(({ key, index }, i) => {
    const { slider } = changed[i], x = obs[key][index];
    slider.min = Math.min(sliders[i].low, x);
    slider.max = Math.max(sliders[i].high, x);
    slider.value = x;
  });
  show(true);
}
function show(same = false) {
  const obs = observed(at);
  sliders.forEach(({ key, index }, i) => {
    if (!same) (obs[key] = [...obs[key]]), (obs[key][index] = Math.abs(changed[i].slider.value - episode.obs[key][at][index]) <= sliders[i].step / 2 ? episode.obs[key][at][index] : +changed[i].slider.value);
    changed[i].value.textContent = short(obs[key][index]);
  });
  did.textContent = `In the episode it did: ${episode.actions[at]}. Here it would:`;
  list.replaceChildren(...describe(act(at, obs, memory)).flatMap(([name, value]) => [el("dt", name), el("dd", value)]));
}
function choose(number) {
  episode = episodes[number];
  row.slider.max = episode.actions.length - 1;
  row.slider.value = 0;
  go(0);
}
episodes.forEach(({ name }, i) => choice.append(Object.assign(el("option", name), { value: i })));
choice.setAttribute("aria-label", "Episode");
choice.addEventListener("change", () => choose(+choice.value));
reset.addEventListener("click", () => go(at));
fields.className = "sliders";
fields.append(row.row, ...changed.map((part) => part.row));
list.setAttribute("aria-live", "polite");
const bar = el("p");
bar.append(choice, reset);
box.append(el("p", `Move a number of the observation${given.count > sliders.length ? ` (the first ${sliders.length} of ${given.count})` : ""}: the agent's program in this page answers.`), bar, fields, did, list);
choose(0);

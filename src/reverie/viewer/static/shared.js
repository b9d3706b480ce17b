// An episode beside its dream, row by row, in a page of its own.
import { drawStrip, placeOfRow, rowAtPlace } from "./strip_canvas.js";

const $ = (selector, within = document) => within.querySelector(selector), { name, about, rows, strip } = JSON.parse($("#data").textContent);
const last = rows.length - 1, seen = rows.filter((row) => row.dream?.how === "seen").length, short = (x) => (x == null ? "–" : String(+x.toPrecision(4)));
$("#title").textContent = name;
$("#facts").textContent = [about.algorithm, about.env, about.checkpoint, about.recorded || `seed ${about.seed}`].join(" · ");
$("#lead").textContent = about.dreams
  ? `Left: ${about.env}, played by the agent. Right: what the model imagines under the same actions, after it has observed the first ${seen === 1 ? "row" : `${seen} rows`}.`
  : `This is ${about.env}, played by the agent.`;
if (!about.dreams) $("#dream").remove(), $(".stage").classList.add("alone");
$("#scrub").max = last;
$("#sentence").textContent = strip.sentence;
const track = $("#strip canvas"), small = new Map(), probe = $("#strip .now");
const color = (name) => ((probe.style.color = `var(--${name})`), getComputedStyle(probe).color);
const picture = (row, side) => small.get(`${row}/${side}`);
const paint = () => (drawStrip(track, strip, about.dreams ? 2 : 1, picture, color), show());
for (const row of strip.columns) rows[row].png.forEach((png, side) => {
  const image = new Image();
  image.onload = () => (small.set(`${row}/${side}`, image), paint());
  if (png) image.src = `data:image/png;base64,${png}`;
});
track.onpointerdown = (event) => (($("#scrub").value = rowAtPlace(strip, track.clientWidth, event.offsetX, true)), show());
const svg = (tag, given) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(given)) made.setAttribute(key, value);
  return made;
};
const error = Object.keys(rows[0].error ?? {})[0], read = (side, key) => rows.map((row) => row[side]?.[key] ?? null);
const charts = [["Reward", read("real", "reward"), read("dream", "reward")], ["Value", read("real", "value"), read("dream", "value")],
  [`Error of ${error}`, [], read("error", error)], ["Surprise (KL, nats)", read("real", "kl"), []]].filter(([, ...lines]) => lines.flat().some((x) => x !== null));
const draw = ([title, ...lines]) => {
  const known = lines.flat().filter((x) => x !== null), low = Math.min(...known), high = Math.max(...known), box = document.createElement("div");
  box.className = "chart";
  box.innerHTML = '<div class="name"><h2></h2></div><div class="plot"></div>';
  $("h2", box).textContent = title;
  const drawn = svg("svg", { viewBox: `0 0 ${Math.max(1, last)} 1`, preserveAspectRatio: "none", role: "img", "aria-label": title }), now = svg("line", { y1: 0, y2: 1 }), values = [];
  for (const [side, line] of lines.entries()) {
    if (!line.some((x) => x !== null)) continue;
    const points = line.flatMap((y, x) => (y === null ? [] : [`${x},${0.95 - 0.9 * ((y - low) / (high - low || 1))}`])).join(" ");
    const key = document.createElement("i"), said = document.createElement("span"), value = document.createElement("b");
    drawn.append(svg("polyline", { points, class: side ? "dream" : "real" }));
    key.style.setProperty("--key", `var(--${side ? "dream" : "real"})`);
    said.append(key, side ? "dream " : "real ", value);
    $(".name", box).append(said);
    values.push((at) => (value.textContent = short(line[at])));
  }
  drawn.append(now);
  drawn.onclick = (event) => (($("#scrub").value = Math.round(((event.clientX - drawn.getBoundingClientRect().left) / drawn.clientWidth) * last)), show());
  $(".plot", box).append(drawn);
  $(".charts").append(box);
  return (at) => (values.forEach((say) => say(at)), now.setAttribute("x1", at), now.setAttribute("x2", at));
};
const marks = charts.map(draw);
function show() {
  const at = +$("#scrub").value, row = rows[at], how = row.dream?.how ?? "";
  ["real", "dream"].forEach((id, side) => {
    const image = $(`#${id} img`);
    if (!image) return;
    image.style.visibility = row.png[side] ? "visible" : "hidden";
    if (row.png[side]) image.src = `data:image/png;base64,${row.png[side]}`;
    image.onload = () => image.classList.toggle("coarse", image.naturalWidth < 200);
  });
  $("#real .chip").textContent = row.real?.reward == null ? "" : `reward ${short(row.real.reward)}`;
  if (about.dreams) $("#dream .chip").textContent = { seen: "observes this row", imagined: `imagines, step ${at - seen + 1}`, edited: "edited" }[how] ?? "";
  if (about.dreams) $("#dream .chip").className = `chip ${how}`, $("#dream .frame").className = `frame ${how}`;
  if (about.dreams) $("#verdict").className = strip.levels[at], $("#verdict").textContent = how === "seen" ? "reconstruction of this row" : strip.texts[at];
  $("#strip .now").style.left = `${placeOfRow(strip, track.clientWidth, at)}px`;
  $("#row").textContent = `row ${at} of ${last}`;
  for (const mark of marks) mark(at);
}
let timer = 0;
$("#scrub").oninput = show;
$("#play").onclick = () => {
  $("#play").textContent = timer ? "Play" : "Stop";
  timer = timer ? void clearInterval(timer) : setInterval(() => (($("#scrub").value = (+$("#scrub").value + 1) % rows.length), show()), 1000 / Math.min(20, about.fps));
};
$("#play").disabled = false;
onresize = paint;
matchMedia("(prefers-color-scheme: dark)").onchange = paint;
paint();

// The page of `reverie report`: what the facts say, as text and charts. Strings are shown as text alone.
const read = (id) => JSON.parse(document.getElementById(id).textContent), facts = read("facts"), shown = read("shown"), numbers = read("top");
const $ = (selector) => document.querySelector(selector), short = (x) => (Math.abs(x) >= 100 ? Math.round(x).toLocaleString("en") : String(+x.toPrecision(3)));
function make(tag, text = "", name = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (name) made.className = name;
  return made;
}
function svg(tag, given, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(given)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

// ---------------------------------------------------------------- charts

const HEIGHT = 220, LEFT = 54, BOTTOM = 26, TOP = 12, RIGHT = 10;
// Round numbers that cover a range.
function ticks(low, high, count = 4) {
  const rough = (high - low || 1) / count, unit = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].find((k) => k * unit >= rough) * unit;
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.max(1, Math.floor(high / step + 1e-9) - first + 1) }, (_, i) => +((first + i) * step).toPrecision(12));
}
// `lines` are {name, kind, points: [[x, y, low, high]]}; the numbers stand in a table below.
function chart(box, label, lines, range) {
  const WIDTH = Math.min(720, Math.max(280, box.clientWidth)), points = lines.flatMap((line) => line.points), right = Math.max(1, ...points.map(([x]) => x));
  const values = points.flatMap(([, y, low = y, high = y]) => [y, low, high]);
  const [least, most] = range ?? [Math.min(...values), Math.max(...values)], space = (most - least || 1) * (range ? 0 : 0.05);
  const X = (x) => LEFT + (x / right) * (WIDTH - LEFT - RIGHT), Y = (y) => HEIGHT - BOTTOM - ((y - least + space) / (most - least + 2 * space || 1)) * (HEIGHT - BOTTOM - TOP);
  const drawn = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const y of ticks(least, most)) drawn.append(svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: Y(y), y2: Y(y), class: "grid" }), svg("text", { x: LEFT - 6, y: Y(y) + 4, "text-anchor": "end" }, short(y)));
  for (const x of ticks(0, right)) drawn.append(svg("text", { x: X(x), y: HEIGHT - 6, "text-anchor": X(x) > WIDTH - 40 ? "end" : "middle" }, x.toLocaleString("en")));
  const key = make("p", "", "key soft");
  for (const { name, kind, points: own } of lines) {
    const path = own.map(([x, y]) => `${X(x).toFixed(1)},${Y(y).toFixed(1)}`);
    if (own.some(([, , low]) => low !== undefined)) {
      const edge = [...own.map(([x, , low]) => [x, low]), ...own.map(([x, , , high]) => [x, high]).reverse()];
      drawn.append(svg("polygon", { points: edge.map(([x, y]) => `${X(x).toFixed(1)},${Y(y).toFixed(1)}`).join(" "), class: "band" }));
    }
    drawn.append(svg("polyline", { points: path.join(" "), class: kind }));
    if (own.length < 40 && kind !== "thin") own.forEach(([x, y]) => drawn.append(svg("circle", { cx: X(x), cy: Y(y), r: 3, class: kind })));
    const item = make("span");
    item.append(make("i", "", kind), document.createTextNode(name));
    key.append(item);
  }
  const details = make("details"), table = make("table"), head = make("tr");
  details.append(make("summary", "Numbers"), table);
  [facts.unit, ...lines.map(({ name }) => name)].forEach((name) => { const cell = make("th", name); cell.scope = "col"; head.append(cell); });
  table.append(head);
  const steps = [...new Set(lines.filter(({ kind }) => kind !== "thin").flatMap((line) => line.points.map(([x]) => x)))].sort((a, b) => a - b);
  for (const x of steps) {
    const row = make("tr");
    row.append(make("td", x.toLocaleString("en")), ...lines.map((line) => { const found = line.points.find(([at]) => at === x); return make("td", found ? short(found[1]) : ""); }));
    table.append(row);
  }
  box.append(drawn, key, details);
}

// ---------------------------------------------------------------- sections

const [title, ...more] = facts.findings;
$("#about").textContent = [`reverie ${facts.version}`, facts.algorithm, facts.env, `seed ${facts.seed}`, facts.step ? `${facts.step.toLocaleString("en")} ${facts.unit}` : "", facts.checkpoint].filter(Boolean).join(" · ");
$("h1").textContent = title.title;
$("#support").textContent = title.support;
for (const finding of more) $("#more").append(make("li", [finding.title, finding.support].filter(Boolean).join(" ")));
if (!more.length) $("#more").remove();
for (const [value, unit] of numbers) {
  const box = make("div");
  box.append(make("b", value), make("span", unit, "soft"));
  $("#numbers").append(box);
}
if (!numbers.length) $("#numbers").remove();

const evaluations = facts.evaluations.map(([x, y, mean]) => [x, y, mean.low, mean.high]), lines = [];
if (facts.training.length > 1) lines.push({ name: "training episodes", kind: "thin", points: facts.training });
if (evaluations.length) lines.push({ name: "evaluations, with the interval of their mean", kind: "real", points: evaluations });
if (lines.length) chart($("#curves"), `Return over ${facts.unit}; the last evaluation is ${evaluations.length ? short(evaluations.at(-1)[1]) : "missing"}`, lines);
else $("#curves").remove();

const snapshots = (facts.snapshots ?? []).map(([x, { right, total, interval }]) => [x, right / total, ...interval]);
if (snapshots.length) chart($("#dreams"), `Share of right dreams over ${facts.unit}, at the end ${short(snapshots.at(-1)[1])}`, [{ name: `share of right dreams of up to ${facts.horizon} steps, with its interval`, kind: "dream", points: snapshots }], [0, 1]);
else $("#dreams").remove();

for (const episode of shown) {
  const box = make("div", "", "episode"), heading = make("h3", episode.name), frames = make("div", "", "frames");
  heading.append(make("span", `return ${short(episode.return)}`), make("span", `${episode.steps} steps`), make("span", episode.ending), make("span", `seed ${episode.seed}`));
  for (const [row, url] of episode.pictures) {
    const figure = make("figure"), image = make("img");
    image.src = url;
    image.alt = `${episode.name}, row ${row}`;
    figure.append(image, make("figcaption", `row ${row}`));
    frames.append(figure);
  }
  box.append(heading, frames);
  $("#episodes").append(box);
}
if (!shown.length) $("#episodes").remove();
if (!facts.load) $("#again").remove();
else $("pre code").textContent = `${facts.load}\n\n# train it again\n${facts.train}`;
if (facts.packages) $("#packages").textContent = Object.entries(facts.packages).map(([name, number]) => `${name} ${number}`).join(", ");
document.documentElement.dataset.ready = "yes";

// The page of `reverie report`: what Python found, as text, charts and tables. Strings are shown as text alone.
const given = JSON.parse(document.getElementById("report").textContent);
const $ = (selector) => document.querySelector(selector), short = (x) => (Math.abs(x) >= 100 ? Math.round(x).toLocaleString("en") : String(+x.toPrecision(3)));
function make(tag, text = "", name = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (name) made.className = name;
  return made;
}
function svg(tag, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

// ---------------------------------------------------------------- charts and tables

const HEIGHT = 230, LEFT = 54, BOTTOM = 42, TOP = 12, RIGHT = 10;
// Round numbers that cover a range.
function ticks(low, high, least = 0, count = 4) {
  const rough = Math.max(least, (high - low || 1) / count), unit = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].find((k) => k * unit >= rough) * unit;
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.max(1, Math.floor(high / step + 1e-9) - first + 1) }, (_, i) => +((first + i) * step).toPrecision(12));
}
function fill(head, rows, about = "") {
  const table = make("table"), titles = make("tr"), scroll = make("div", "", "scroll");
  for (const name of head) {
    const cell = make("th", name);
    cell.scope = "col";
    titles.append(cell);
  }
  table.append(titles, ...rows.map((row) => {
    const line = make("tr");
    line.append(...row.map((cell) => make("td", cell)));
    return line;
  }));
  scroll.append(table);
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", about || head.join(", "));
  return scroll;
}
// `lines` are {name, kind, points: [[x, y, low, high]]}. Numbers are in a table.
function chart(box, { label, unit, lines, range, starts, table, low: isLow }) {
  const WIDTH = Math.min(720, Math.max(280, box.clientWidth)), points = lines.flatMap((line) => line.points);
  const right = Math.max(...points.map(([x]) => x)), left = starts ? Math.min(...points.map(([x]) => x)) : 0, wide = right - left || 1, height = isLow ? HEIGHT * 0.6 : HEIGHT;
  const values = points.flatMap(([, y, low = y, high = y]) => [y, low ?? y, high ?? y]);
  const [least, most] = range ?? [Math.min(...values), Math.max(...values)], space = (most - least || 1) * (range ? 0 : 0.05);
  const X = (x) => LEFT + ((x - left) / wide) * (WIDTH - LEFT - RIGHT), Y = (y) => height - BOTTOM - ((y - least + space) / (most - least + 2 * space || 1)) * (height - BOTTOM - TOP);
  const drawn = svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": label }), key = make("p", "", "key soft");
  for (const y of ticks(least, most)) drawn.append(svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: Y(y), y2: Y(y), class: "grid" }), svg("text", { x: LEFT - 6, y: Y(y) + 4, "text-anchor": "end" }, short(y)));
  for (const x of ticks(left, right, starts ? 0 : 1)) drawn.append(svg("text", { x: X(x), y: height - 24, "text-anchor": X(x) > WIDTH - 40 ? "end" : "middle" }, x.toLocaleString("en")));
  drawn.append(svg("text", { x: LEFT + (WIDTH - LEFT - RIGHT) / 2, y: height - 6, "text-anchor": "middle" }, unit));
  for (const { name, kind, points: own } of lines) {
    if (kind === "place" || kind.startsWith("marks")) {
      for (const [x, y] of own) drawn.append(svg("circle", { cx: X(x), cy: Y(y), r: kind === "place" ? 8 : 4, class: kind }));
    } else {
      const path = own.map(([x, y]) => `${X(x).toFixed(1)},${Y(y).toFixed(1)}`);
      if (own.some(([, , low]) => low != null)) {
        const edge = [...own.map(([x, , low]) => [x, low]), ...own.map(([x, , , high]) => [x, high]).reverse()];
        drawn.append(svg("polygon", { points: edge.map(([x, y]) => `${X(x).toFixed(1)},${Y(y).toFixed(1)}`).join(" "), class: `band ${kind}` }));
      }
      drawn.append(svg("polyline", { points: path.join(" "), class: kind }));
      if (own.length < 40 && !kind.startsWith("thin") && !starts) own.forEach(([x, y]) => drawn.append(svg("circle", { cx: X(x), cy: Y(y), r: 3, class: kind })));
    }
    if (!name) continue;
    const item = make("span");
    item.append(make("i", "", kind), document.createTextNode(name));
    key.append(item);
  }
  const named = lines.filter(({ name, kind }) => name && !/^(thin|place|marks)/.test(kind));
  box.append(drawn, key);
  if (!table && !named.length) return;
  const steps = [...new Set(named.flatMap((line) => line.points.map(([x]) => x)))].sort((a, b) => a - b), details = make("details");
  const rows = table?.rows ?? steps.map((x) => [short(x), ...named.map((line) => { const found = line.points.findLast(([at]) => at === x); return found ? short(found[1]) : ""; })]);
  details.append(make("summary", "Numbers"), fill(table?.head ?? [unit, ...named.map(({ name }) => name)], rows, label));
  box.append(details);
}
// Pictures of rows: [row, URL]; some rows are wrong.
function draw(name, pictures, wrong = []) {
  const frames = make("div", "", "frames");
  for (const [row, url] of pictures) {
    const figure = make("figure"), image = make("img");
    image.src = url;
    image.alt = `${name}, row ${row}`;
    figure.append(image, wrong.includes(row) ? make("figcaption", `row ${row}, wrong`, "bad") : make("figcaption", `row ${row}`));
    frames.append(figure);
  }
  return frames;
}
function episodes(box, shown) {
  for (const episode of shown) {
    const part = make("div", "", "episode"), heading = make("h3", episode.name);
    heading.append(...episode.facts.map((fact) => make("span", fact)));
    part.append(heading, draw(episode.name, episode.pictures));
    box.append(part);
    if (episode.chart) chart(part, episode.chart);
  }
}
// An episode above its dream, which a slider chooses.
function film(box, { label: name, episodes: played, dreams }) {
  const slider = make("input"), line = make("label", "", "film"), said = make("output"), truth = make("div"), dream = make("div");
  const show = () => {
    const { name, text, episode, wrong, pictures: dreamt } = dreams[slider.value], { rows, pictures } = played[episode], numbered = (urls) => urls.map((url, i) => [rows[i], url]);
    said.textContent = `${name}: ${text} (${+slider.value + 1} of ${dreams.length})`;
    slider.setAttribute("aria-valuetext", said.textContent);
    truth.replaceChildren(draw("the episode", numbered(pictures)));
    dream.replaceChildren(draw(`the dream, ${name}`, numbered(dreamt), wrong));
  };
  Object.assign(slider, { type: "range", min: 0, max: dreams.length - 1 });
  slider.value = played.length > 1 ? 0 : dreams.length - 1;
  slider.addEventListener("input", show);
  line.append(make("span", name), slider);
  box.append(make("h3", "The episode"), truth, make("h3", "Its dream"), dream, line, said);
  show();
}

// ---------------------------------------------------------------- sections

const [first, ...more] = given.findings;
$("#about").textContent = given.about.join(" · ");
$("h1").textContent = first.title;
$("#support").textContent = first.support;
for (const finding of more) $("#more").append(make("li", [finding.title, finding.support].filter(Boolean).join(" ")));
if (!more.length) $("#more").remove();
for (const [value, unit] of given.numbers) {
  const box = make("div");
  box.append(make("b", value), make("span", unit, "soft"));
  $("#numbers").append(box);
}
if (!given.numbers.length) $("#numbers").remove();
if (!document.getElementById("given")) $("#walk").remove();
for (const { title, id = "", text = [], warnings = [], chart: lines, table, code, shown, film: dreams } of given.sections) {
  const box = make("section");
  box.id = id;
  box.append(make("h2", title));
  $("main").append(box);
  if (lines) chart(box, lines);
  box.append(...text.map((line) => make("p", line)), ...warnings.map((line) => make("p", line, "bad")));
  if (table) box.append(fill(table.head, table.rows, title));
  if (shown) episodes(box, shown);
  if (dreams) film(box, dreams);
  if (!code) continue;
  const block = make("pre");
  block.tabIndex = 0;
  block.append(make("code", code));
  box.append(block);
}
document.documentElement.dataset.ready = "yes";

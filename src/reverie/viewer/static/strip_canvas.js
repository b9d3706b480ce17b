// Draws a strip (log/strip.py) on a canvas: pictures of some rows, truth above dream, and bars and lines of all rows.

const GAP = 4, BARS = 30, LABEL = 15, WIDEST = 88; // pixels

// Left edges and width of the columns on a canvas of this width.
export const layOut = (strip, width) => {
  const cell = Math.min(width / strip.columns.length, WIDEST);
  return { cell, left: (i) => i * cell + GAP / 2, wide: cell - GAP };
};

// Where a row is on the canvas: rows between two columns lie between them.
export function placeOfRow(strip, width, row) {
  const { columns } = strip, { cell } = layOut(strip, width);
  const next = Math.max(1, columns.findIndex((column) => column >= row)), [a, b] = [columns[next - 1], columns[next] ?? columns[next - 1] + 1];
  return columns.length === 1 ? cell / 2 : (next - 0.5 + (row - a) / (b - a)) * cell;
}

// The row at a place. exact: of the column there, else of rows between columns too.
export function rowAtPlace(strip, width, x, exact) {
  const { columns } = strip, { cell } = layOut(strip, width), at = Math.max(0, Math.min(columns.length - 1, x / cell - 0.5));
  if (exact) return columns[Math.round(at)];
  const from = Math.floor(at), to = columns[from + 1] ?? columns[from];
  return Math.round(columns[from] + (at - from) * (to - columns[from]));
}

// picture(row, side): what can be drawn, or nothing; sides: 1, or 2 with a dream; color(name): of the theme.
export function drawStrip(canvas, strip, sides, picture, color) {
  const width = canvas.clientWidth, scale = devicePixelRatio || 1, { columns, origins } = strip, { left, wide } = layOut(strip, width);
  const shown = columns.map((row) => picture(row, 0) ?? picture(row, 1)).find(Boolean), high = shown ? Math.min(WIDEST, wide * shown.height / shown.width) : 0;
  const lanes = high ? sides * (high + GAP) : 0, lines = Object.entries(strip.lines);
  const height = Math.round(lanes + (lines.length ? BARS + LABEL + 4 : 0) + BARS + LABEL + 4);
  if (canvas.style.height !== `${height}px`) canvas.style.height = `${height}px`;
  Object.assign(canvas, { width: width * scale, height: height * scale });
  const c = canvas.getContext("2d");
  c.scale(scale, scale);
  c.font = "12px system-ui";
  columns.forEach((row, i) => {
    for (let side = 0; side < sides && high; side++) {
      const top = side * (high + GAP) + 2, drawn = picture(row, side), seen = origins[row] === "seen";
      c.imageSmoothingEnabled = !drawn || drawn.width > wide;
      if (drawn) c.drawImage(drawn, left(i), top, wide, high);
      c.strokeStyle = color({ seen: "real", imagined: "dream", edited: "edited" }[side || seen ? origins[row] : ""] ?? "line");
      c.lineWidth = 2;
      c.strokeRect(left(i) + 1, top + 1, wide - 2, high - 2);
    }
    if (row === strip.parting) {
      c.strokeStyle = color("bad");
      c.lineWidth = 2.5;
      c.beginPath();
      c.roundRect(left(i) - 1, 1, wide + 2, lanes, 6);
      c.stroke();
    }
    c.fillStyle = color("soft");
    c.textAlign = "center";
    c.fillText(strip.labels[i] ?? row, left(i) + wide / 2, height - 3);
  });
  const places = origins.map((_, row) => placeOfRow(strip, width, row));
  if (lines.length) drawLines(c, lines, places, lanes + BARS + LABEL, color);
  drawBars(c, strip, places, width, height - LABEL, color);
}

function drawBars(c, { bars, levels, bar_label: name }, places, width, floor, color) {
  const judged = levels.some(Boolean), most = Math.max(...bars), top = judged ? Math.max(1.5, Math.min(3, most)) : Math.max(1e-9, most);
  const right = Math.min(width, places.at(-1) + 20), line = floor - BARS / top;
  bars.forEach((bar, row) => {
    if (bar === null) return;
    c.fillStyle = color({ differs: "bad", near: "dream" }[levels[row]] ?? "edge");
    const thin = Math.max(1, Math.min(24, 0.8 * (row + 1 < places.length ? places[row + 1] - places[row] : places[row] - (places[row - 1] ?? 0))));
    c.fillRect(places[row] - thin / 2, floor, thin, -BARS * Math.min(1, bar / top));
  });
  c.fillStyle = c.strokeStyle = color("soft");
  c.fillRect(0, floor, right, 1);
  c.lineWidth = 1;
  c.textAlign = "left";
  if (!judged && bars.some((bar) => bar !== null)) {
    [c.strokeStyle, c.lineWidth] = [color("paper"), 4]; // readable on bars too
    c.strokeText(name, 2, floor - BARS + 9);
    c.fillText(name, 2, floor - BARS + 9);
  }
  if (!judged) return;
  c.setLineDash([4, 3]);
  c.beginPath();
  c.moveTo(0, line);
  c.lineTo(right, line);
  c.stroke();
  c.setLineDash([]);
  c.fillText("error of “nothing changes”", 2, line - 3);
}

function drawLines(c, lines, places, floor, color) {
  const all = lines.flatMap(([, values]) => values).filter((value) => value !== null), low = Math.min(...all), high = Math.max(...all);
  lines.forEach(([name, values], i) => {
    c.strokeStyle = c.fillStyle = color(i ? "dream" : "real");
    c.lineWidth = 2;
    c.beginPath();
    values.forEach((value, row) => c.lineTo(places[row], floor - BARS * (value - low) / (high - low || 1)));
    c.stroke();
    c.textAlign = "left";
    c.fillText(name, 2 + 120 * i, floor - BARS - 4);
  });
}

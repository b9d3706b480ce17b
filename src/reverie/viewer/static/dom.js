// Small helpers for elements, colors, numbers and pictures.

export const $ = (selector, within = document) => within.querySelector(selector);

export function el(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made && name !== "list") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// A custom property as a color that a canvas understands, in the theme of the moment.
export function color(name) {
  const probe = document.body.appendChild(el("i", { hidden: true }));
  probe.style.color = `var(--${name})`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

// The colors of lines without a meaning: log/colors.py. The first two are the environment's and the dream's.
export const hue = (number) => (number < 8 ? color(`hue${number}`) : `hsl(${(number * 137.5) % 360} 45% 50%)`);

export function svg(tag, given, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(given)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size < 1e-6) return "0";
  return size >= 1e6 || size < 1e-4 ? value.toExponential(1) : (+value.toPrecision(size < 1 ? 3 : 4)).toLocaleString("en", { maximumFractionDigits: 6 });
}

// A score, as findings.py: format_number, which rounds exact decimals, and halves to even digits.
export function formatScore(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value), digits = size >= 100 ? 0 : 1;
  const rule = size < 10 ? { maximumSignificantDigits: 3 } : { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return new Intl.NumberFormat("en", { roundingMode: "halfEven", ...rule }).format(value.toPrecision(60));
}

// The numbers of a continuous action: name, position in the action, and its value in the environment's units.
export const listDimensions = (about) => about.continuous.flatMap(({ name, start, size, low, high }) => [...Array(size).keys()].map((i) => {
  const [least, greatest] = [low[i] ?? -1, high[i] ?? 1];
  return { name: size > 1 ? `${name} ${i}` : name, index: start + i, units: (x) => least + ((x + 1) / 2) * (greatest - least) };
}));

// An action as text: the name of the only choice, or its numbers.
export function formatAction(action, about) {
  const flat = action.flat(), { names, choices, continuous, width } = about;
  const classes = choices.map(({ start, stop }) => [start, flat.slice(start, stop).indexOf(1)]);
  return [...classes.map(([start, i]) => (names.length === width ? names[start + i] : `action ${i}`)),
    ...(continuous.length ? listDimensions(about).map(({ index, units }) => short(units(flat[index]))) : [])].join(", ");
}

// Draws a picture (a Blob of PNG) on a canvas, at its own size; with another one, what combine makes of both.
// The last one asked for wins.
export async function paint(canvas, blob, other = null, combine = drawDifference) {
  if (canvas.wanted?.[0] === blob && canvas.wanted?.[1] === other && canvas.combine === combine) return;
  const wanted = (canvas.wanted = [blob, other]);
  canvas.combine = combine;
  if (!blob) {
    canvas.hidden = true;
    return;
  }
  const [picture, truth] = await Promise.all(wanted.map((one) => one && createImageBitmap(one)));
  if (canvas.wanted !== wanted) return;
  const image = truth ? combine(picture, truth) : picture, { width, height } = image;
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  canvas.classList.toggle("coarse", picture.width < 200);
  canvas.getContext("2d")[truth ? "putImageData" : "drawImage"](image, 0, 0);
  canvas.hidden = false;
}

// The pixels of two pictures in the size of the first, enlarged.
const readPixels = (picture, truth, scale = 1) => [picture, truth].map((one) => {
  const size = [picture.width * scale, picture.height * scale], context = new OffscreenCanvas(...size).getContext("2d", { willReadFrequently: true });
  context.imageSmoothingEnabled = scale === 1;
  context.drawImage(one, 0, 0, ...size);
  return context.getImageData(0, 0, ...size);
});

// The first picture with the edges of the second that it lacks, as a faint line: log/video.py, outline_truth.
export function drawOutline(picture, truth) {
  const [image, real] = readPixels(picture, truth, Math.ceil(192 / picture.width)), a = image.data.slice(), b = real.data, wide = 4 * image.width;
  const off = (x, i, y, j) => Math.max(Math.abs(x[i] - y[j]), Math.abs(x[i + 1] - y[j + 1]), Math.abs(x[i + 2] - y[j + 2])) > 40;
  for (let i = wide; i < a.length; i += 4)
    if ([i - 4, i - wide].some((near) => off(b, i, b, near) && (off(a, i, b, i) || off(a, near, b, near))))
      [111, 171, 242].forEach((value, channel) => (image.data[i + channel] = 0.25 * a[i + channel] + 0.75 * value));
  return image;
}

// The first picture in gray, and what differs from the second in red.
export function drawDifference(picture, truth) {
  const [image, real] = readPixels(picture, truth), a = image.data, b = real.data;
  for (let i = 0; i < a.length; i += 4) {
    const gray = 90 + (a[i] + a[i + 1] + a[i + 2]) / 9;
    const off = Math.min(1, (2 * Math.max(Math.abs(a[i] - b[i]), Math.abs(a[i + 1] - b[i + 1]), Math.abs(a[i + 2] - b[i + 2]))) / 255);
    a[i] = gray + off * (225 - gray);
    a[i + 1] = gray + off * (30 - gray);
    a[i + 2] = gray + off * (70 - gray);
  }
  return image;
}

// A canvas that fills its box, cleared and scaled for this screen; returns its context and size.
export function clearCanvas(canvas, height = canvas.clientHeight) {
  const scale = devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return [context, width, height];
}

export function save(name, blob) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

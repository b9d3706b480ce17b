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

const PALETTE = ["#3b82c4", "#e08a1e", "#3a9d6a", "#b04fb5", "#c94a4a", "#7a7f2a", "#3aa6a6", "#8a6a4f"];
export const hue = (number) => PALETTE[number % PALETTE.length];

export function short(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential(1) : String(+value.toPrecision(size >= 100 ? 4 : 3));
}

// Draws a picture (a Blob of PNG) on a canvas, at its own size. The last one asked for wins.
export async function paint(canvas, blob) {
  canvas.wanted = blob;
  if (!blob) {
    canvas.hidden = true;
    return;
  }
  const picture = await createImageBitmap(blob);
  if (canvas.wanted !== blob) return;
  if (canvas.width !== picture.width || canvas.height !== picture.height) {
    canvas.width = picture.width;
    canvas.height = picture.height;
  }
  canvas.classList.toggle("coarse", picture.width < 200);
  canvas.getContext("2d").drawImage(picture, 0, 0);
  canvas.hidden = false;
}

// A canvas that fills its box, cleared and scaled for this screen; returns its context and size.
export function fresh(canvas, height = canvas.clientHeight) {
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

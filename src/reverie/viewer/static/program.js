// Runs the programs of `reverie export`: functions of tensors with fixed shapes, as lists of PyTorch's core operations.
// A tensor is {s: shape, d: numbers}; booleans are 0 and 1. Nothing of a file is evaluated as code.
const MOST_OPERATIONS = 2000, MOST_NUMBERS = 32e6;
const size = (shape) => shape.reduce((a, b) => a * b, 1);
const isShape = (shape) => Array.isArray(shape) && shape.every((n) => Number.isInteger(n) && n >= 0);
// How many numbers a result has, or the parts of one; those of no shape are too many.
const numbersIn = (shape) => (isShape(shape) ? size(shape) : Array.isArray(shape) ? shape.reduce((a, part) => a + numbersIn(part), 0) : Infinity);
const strides = (shape) => shape.map((_, i) => size(shape.slice(i + 1)));
const tensor = (s, d = new Float32Array(size(s))) => ({ s, d });

// ---------------------------------------------------------------- constants

function bytes(text) {
  const letters = atob(text), out = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) out[i] = letters.charCodeAt(i);
  return out.buffer;
}
// Half precision: the exponent is shifted to that of float32, where 2 ** 112 is the difference of their biases.
export function halves(words) {
  const out = new Float32Array(words.length), bits = new Uint32Array(out.buffer);
  for (let i = 0; i < words.length; i++) {
    if ((words[i] & 0x7c00) === 0x7c00) { out[i] = words[i] & 0x3ff ? NaN : words[i] & 0x8000 ? -Infinity : Infinity; continue; }
    bits[i] = (words[i] & 0x7fff) << 13;
    out[i] *= 2 ** 112;
    bits[i] |= (words[i] & 0x8000) << 16;
  }
  return out;
}
const READERS = {
  float32: (raw) => new Float32Array(raw), float16: (raw) => halves(new Uint16Array(raw)),
  uint8: (raw) => new Uint8Array(raw), int32: (raw) => new Int32Array(raw), int8: (raw) => new Int8Array(raw),
};
function load({ s, f, d, c, x }) {
  const stored = READERS[f](bytes(d)), out = Float32Array.from(stored), width = s[s.length - 1];
  if (stored.length !== size(s)) throw new Error(`a tensor of ${size(s)} numbers has ${stored.length}`);
  if (f === "int8") {
    const scales = new Float32Array(bytes(c));
    for (let i = 0; i < out.length; i++) out[i] *= scales[x ? i % width : Math.floor(i / width)];
  }
  return tensor(s, out);
}

// ---------------------------------------------------------------- where numbers lie

// For each element of a tensor of shape `out`, its place in another, by steps along each axis; the same places again
// are looked up.
const known = new Map();
function places(out, steps, first = 0) {
  const key = `${out}|${steps}|${first}`;
  if (known.has(key)) return known.get(key);
  const index = new Int32Array(size(out)), count = out.map(() => 0);
  for (let i = 0, at = first; i < index.length; i++) {
    index[i] = at;
    for (let axis = out.length - 1; axis >= 0; axis--) {
      at += steps[axis];
      if (++count[axis] < out[axis]) break;
      at -= steps[axis] * out[axis];
      count[axis] = 0;
    }
  }
  known.set(key, index);
  return index;
}
function broadcast(shape, out) {
  const step = strides(shape), lead = out.length - shape.length;
  return places(out, out.map((_, i) => (i < lead || shape[i - lead] === 1 ? 0 : step[i - lead])));
}
function take(x, index, shape) {
  const out = tensor(shape);
  for (let i = 0; i < index.length; i++) out.d[i] = x.d[index[i]];
  return out;
}
function put(out, index, x) {
  for (let i = 0; i < index.length; i++) out.d[index[i]] = x.d[i];
  return out;
}
const expanded = (x, shape) => take(x, broadcast(x.s, shape), shape);
const axisOf = (axis, shape) => (axis < 0 ? axis + Math.max(1, shape.length) : axis);
const around = (shape, axis) => [size(shape.slice(0, axis)), shape[axis] ?? 1, size(shape.slice(axis + 1))];
const pair = (x) => (x.length === 1 ? [x[0], x[0]] : x);

// Call fn(read, write, n) for each line along an axis.
function alongAxis(x, axis, fn) {
  const out = tensor(x.s), [outer, n, inner] = around(x.s, axisOf(axis, x.s));
  for (let o = 0; o < outer; o++) for (let i = 0; i < inner; i++) {
    const at = o * n * inner + i;
    fn((k) => x.d[at + k * inner], (k, value) => (out.d[at + k * inner] = value), n);
  }
  return out;
}
function softmax(read, write, n, isLog) {
  let most = -Infinity, sum = 0;
  for (let k = 0; k < n; k++) most = Math.max(most, read(k));
  for (let k = 0; k < n; k++) sum += Math.exp(read(k) - most);
  for (let k = 0; k < n; k++) write(k, isLog ? read(k) - most - Math.log(sum) : Math.exp(read(k) - most) / sum);
}
function cumulate(read, write, n) {
  for (let k = 0, sum = 0; k < n; k++) write(k, (sum = Math.fround(sum + read(k))));
}
function reduce(x, axes, shape, start, fn, end = (sum) => sum) {
  const all = axes == null || axes.length === 0 ? x.s.map((_, i) => i) : [axes].flat().map((a) => axisOf(a, x.s));
  const kept = x.s.map((n, i) => (all.includes(i) ? 1 : n)), sums = new Float64Array(size(kept)).fill(start);
  const index = places(x.s, strides(kept).map((step, i) => (all.includes(i) ? 0 : step))), n = x.d.length / sums.length;
  for (let i = 0; i < index.length; i++) sums[index[i]] = fn(sums[index[i]], x.d[i]);
  return tensor(shape, Float32Array.from(sums, (sum) => end(sum, n)));
}
function largest(x, axis, shape) {
  const [outer, n, inner] = axis == null ? [1, x.d.length, 1] : around(x.s, axisOf(axis, x.s)), out = tensor(shape);
  for (let o = 0; o < outer; o++) for (let i = 0; i < inner; i++) {
    let best = 0;
    for (let k = 1; k < n; k++) if (x.d[(o * n + k) * inner + i] > x.d[(o * n + best) * inner + i]) best = k;
    out.d[o * inner + i] = best;
  }
  return out;
}

// ---------------------------------------------------------------- networks

// out [m, n] += a [m, k] b [k, n]; rows of b for zeros of a, as in one-hot vectors, are skipped.
function product(out, a, b, [m, k, n], matrix = 0) {
  const sums = new Float64Array(n), [outAt, aAt, bAt] = [matrix * m * n, matrix * m * k, matrix * k * n];
  for (let i = 0; i < m; i++) {
    const row = outAt + i * n;
    for (let j = 0; j < n; j++) sums[j] = out[row + j];
    for (let l = 0; l < k; l++) {
      const value = a[aAt + i * k + l];
      if (value) for (let j = 0, at = bAt + l * n; j < n; j++) sums[j] += value * b[at + j];
    }
    for (let j = 0; j < n; j++) out[row + j] = sums[j];
  }
}
function products(out, x, w) {
  const [m, n] = out.s.slice(-2), k = x.s[x.s.length - 1];
  for (let i = 0; i < out.d.length / (m * n); i++) product(out.d, x.d, w.d, [m, k, n], i);
  return out;
}
function layerNorm(x, width, gain, shift, eps, shape) {
  const out = tensor(shape);
  for (let at = 0; at < x.d.length; at += width) {
    let mean = 0, square = 0;
    for (let i = 0; i < width; i++) mean += x.d[at + i] / width;
    for (let i = 0; i < width; i++) square += (x.d[at + i] - mean) ** 2 / width;
    const scale = 1 / Math.sqrt(square + eps);
    for (let i = 0; i < width; i++) out.d[at + i] = (x.d[at + i] - mean) * scale * (gain ? gain.d[i] : 1) + (shift ? shift.d[i] : 0);
  }
  return out;
}
// Each weight of a kernel moves an image: out[target] += weight * x[source], where `transposed` swaps the two.
function convolve(x, w, bias, [dy, dx], [padY, padX], [gapY, gapX], transposed, groups, shape) {
  const [count, inputs, height, width] = x.s, [, outputs, outHeight, outWidth] = shape, [rows, columns] = w.s.slice(2);
  const out = tensor(shape), sums = new Float64Array(outHeight * outWidth), [ins, outs] = [inputs / groups, outputs / groups];
  const [smallHeight, smallWidth, largeHeight, largeWidth] = transposed ? [height, width, outHeight, outWidth] : [outHeight, outWidth, height, width];
  for (let n = 0; n < count; n++) for (let o = 0; o < outputs; o++) {
    sums.fill(bias ? bias.d[o] : 0);
    const group = Math.floor(o / outs);
    for (let c = 0; c < ins; c++) for (let u = 0; u < rows; u++) for (let v = 0; v < columns; v++) {
      const filter = transposed ? (group * ins + c) * outs + (o % outs) : o * ins + c;
      const weight = w.d[(filter * rows + u) * columns + v], image = (n * inputs + group * ins + c) * height * width;
      if (weight) for (let i = 0; i < smallHeight; i++) {
        const y = i * dy - padY + u * gapY;
        if (y < 0 || y >= largeHeight) continue;
        for (let j = 0, z = v * gapX - padX; j < smallWidth; j++, z += dx) {
          if (z < 0 || z >= largeWidth) continue;
          if (transposed) sums[y * outWidth + z] += weight * x.d[image + i * width + j];
          else sums[i * outWidth + j] += weight * x.d[image + y * width + z];
        }
      }
    }
    out.d.set(sums, (n * outputs + o) * outHeight * outWidth);
  }
  return out;
}
function maxPool(x, [rows, columns], [dy, dx], [padY, padX], shape) {
  const [count, channels, height, width] = x.s, [, , outHeight, outWidth] = shape, out = tensor(shape);
  for (let image = 0; image < count * channels; image++) for (let i = 0; i < outHeight; i++) for (let j = 0; j < outWidth; j++) {
    let most = -Infinity;
    for (let y = Math.max(0, i * dy - padY); y < Math.min(height, i * dy - padY + rows); y++)
      for (let z = Math.max(0, j * dx - padX); z < Math.min(width, j * dx - padX + columns); z++) most = Math.max(most, x.d[(image * height + y) * width + z]);
    out.d[(image * outHeight + i) * outWidth + j] = most;
  }
  return out;
}
// Padding by negative numbers cuts; `pad` begins with the last axis.
function padded(x, pad, value, shape) {
  const before = shape.map((_, axis) => pad[2 * (shape.length - 1 - axis)] ?? 0), step = strides(x.s), out = strides(shape);
  return tensor(shape, Float32Array.from({ length: size(shape) }, (_, i) => {
    let at = 0;
    for (let axis = 0; axis < shape.length; axis++) {
      const k = (Math.floor(i / out[axis]) % shape[axis]) - before[axis];
      if (k < 0 || k >= x.s[axis]) return value;
      at += k * step[axis];
    }
    return x.d[at];
  }));
}

// ---------------------------------------------------------------- operations

// erf x = 2 / sqrt(pi) exp(-x^2) sum_n 2^n x^(2n+1) / (2n+1)!! (Abramowitz and Stegun, 7.1.6); 1 to the last digit from 6.
function erf(x) {
  if (Math.abs(x) > 6) return Math.sign(x);
  let term = x, sum = x;
  for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n++) sum += term *= (2 * x * x) / (2 * n + 1);
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
}
function roundToEven(x) {
  const nearest = Math.round(x);
  return Math.abs(x % 1) === 0.5 && nearest % 2 ? nearest - 1 : nearest;
}
const same = ([x], shape) => tensor(shape, x.d);
const UNARY = {
  abs: Math.abs, neg: (x) => -x, exp: Math.exp, exp2: (x) => 2 ** x, expm1: Math.expm1, log: Math.log, log1p: Math.log1p,
  sqrt: Math.sqrt, rsqrt: (x) => 1 / Math.sqrt(x), reciprocal: (x) => 1 / x, tanh: Math.tanh, atanh: Math.atanh,
  sigmoid: (x) => 1 / (1 + Math.exp(-x)), relu: (x) => (x > 0 || x !== x ? x : 0), sin: Math.sin, cos: Math.cos,
  sign: Math.sign, floor: Math.floor, ceil: Math.ceil, round: roundToEven, erf, bitwise_not: (x) => +!x, logical_not: (x) => +!x,
};
const BINARY = {
  add: (a, b, k) => a + k * b, sub: (a, b, k) => a - k * b, mul: (a, b) => a * b, div: (a, b) => a / b,
  maximum: (a, b) => Math.max(a, b), minimum: (a, b) => Math.min(a, b), pow: (a, b) => a ** b,
  remainder: (a, b) => ((a % b) + b) % b, fmod: (a, b) => a % b, eq: (a, b) => +(a === b), ne: (a, b) => +(a !== b),
  lt: (a, b) => +(a < b), le: (a, b) => +(a <= b), gt: (a, b) => +(a > b), ge: (a, b) => +(a >= b),
  logical_and: (a, b) => +(a && b), logical_or: (a, b) => +(a || b), bitwise_and: (a, b) => +(a && b), bitwise_or: (a, b) => +(a || b),
};
const GELU = {
  tanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  none: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
};
const filled = (value, shape) => tensor(shape, new Float32Array(size(shape)).fill(+value));
const map = (x, shape, fn) => tensor(shape, Float32Array.from(x.d, fn));
const clamp = (x, low, high, shape) => map(x, shape, (v) => (v !== v ? v : Math.min(high ?? Infinity, Math.max(low ?? -Infinity, v))));
function kept(x, axis, shape, first, step = 1) {
  const at = strides(x.s), from = Math.min(first < 0 ? first + x.s[axis] : first, x.s[axis]);
  const steps = shape.length < x.s.length ? at.filter((_, i) => i !== axis) : at.map((v, i) => (i === axis ? v * step : v));
  return take(x, places(shape, steps, at[axis] * from), shape);
}
function extreme(x, axis, shapes, isLeast) {
  const index = largest(isLeast ? map(x, x.s, (v) => -v) : x, axis, shapes[1]);
  return [reduce(x, [axis], shapes[0], isLeast ? Infinity : -Infinity, isLeast ? Math.min : Math.max), index];
}
// Places of a tensor of shape `shape` without the step along an axis, which an index gives.
const besides = (shape, axis, index) => places(index.s, strides(shape).map((step, i) => (i === axis ? 0 : step)));

// Each maps its arguments, and the shape and dtype of its result, to a tensor or a list of them.
export const OPERATIONS = {
  view: same, unsqueeze: same, squeeze: same, alias: same, clone: same, getitem: ([list, i]) => list[i],
  _to_copy: ([x], shape, type) => (type === "bool" ? map(x, shape, (v) => +(v !== 0)) : /int/.test(type) ? map(x, shape, Math.trunc) : tensor(shape, x.d)),
  copy: ([, x], shape) => expanded(x, shape), expand: ([x], shape) => expanded(x, shape),
  permute: ([x, order], shape) => take(x, places(shape, order.map((axis) => strides(x.s)[axisOf(axis, x.s)])), shape),
  select: ([x, axis, i], shape) => kept(x, axisOf(axis, x.s), shape, i),
  slice: ([x, axis, first, , step], shape) => kept(x, axisOf(axis ?? 0, x.s), shape, first ?? 0, step ?? 1),
  flip([x, axes], shape) {
    const step = strides(x.s), all = axes.map((axis) => axisOf(axis, x.s));
    return take(x, places(shape, step.map((v, i) => (all.includes(i) ? -v : v)), all.reduce((a, i) => a + step[i] * (shape[i] - 1), 0)), shape);
  },
  split_with_sizes([x, , axis], shapes) {
    let at = 0;
    return shapes.map((shape) => { const part = kept(x, axisOf(axis ?? 0, x.s), shape, at); at += shape[axisOf(axis ?? 0, x.s)]; return part; });
  },
  cat([list, axis], shape) {
    const out = tensor(shape), k = axisOf(axis ?? 0, shape), step = strides(shape);
    let at = 0;
    for (const x of list.filter((x) => x.d.length)) { put(out, places(x.s, step, at * step[k]), x); at += x.s[k]; }
    return out;
  },
  repeat([x], shape) {
    const lead = shape.length - x.s.length, step = strides(x.s), out = strides(shape);
    return tensor(shape, Float32Array.from({ length: size(shape) }, (_, i) => x.d[x.s.reduce((a, n, k) => a + (Math.floor(i / out[k + lead]) % n) * step[k], 0)]));
  },
  constant_pad_nd: ([x, pad, value], shape) => padded(x, pad, value ?? 0, shape),
  full: ([, value], shape) => filled(value, shape), full_like: ([, value], shape) => filled(value, shape),
  zeros_like: (_, shape) => tensor(shape), scalar_tensor: ([value], shape) => filled(value, shape),
  addmm: ([b, x, w], shape) => products(expanded(b, shape), x, w), baddbmm: ([b, x, w], shape) => products(expanded(b, shape), x, w),
  mm: ([x, w], shape) => products(tensor(shape), x, w), bmm: ([x, w], shape) => products(tensor(shape), x, w),
  sum: ([x, axes], shape) => reduce(x, axes, shape, 0, (a, b) => a + b), prod: ([x, axes], shape) => reduce(x, axes, shape, 1, (a, b) => a * b),
  mean: ([x, axes], shape) => reduce(x, axes, shape, 0, (a, b) => a + b, (sum, n) => sum / n),
  amax: ([x, axes], shape) => reduce(x, axes, shape, -Infinity, Math.max), amin: ([x, axes], shape) => reduce(x, axes, shape, Infinity, Math.min),
  any: ([x, axes], shape) => reduce(x, axes, shape, 0, (a, b) => +(a || b)), all: ([x, axes], shape) => reduce(x, axes, shape, 1, (a, b) => +(a && b)),
  linalg_vector_norm([x, order, axes], shape) {
    if ((order ?? 2) !== 2) throw new Error(`this page cannot compute a norm of order ${order}`);
    return reduce(x, axes, shape, 0, (a, b) => a + b * b, Math.sqrt);
  },
  argmax: ([x, axis], shape) => largest(x, axis, shape),
  max: ([x, axis], shapes) => extreme(x, axis, shapes, false), min: ([x, axis], shapes) => extreme(x, axis, shapes, true),
  cumsum: ([x, axis]) => alongAxis(x, axis, cumulate), _softmax: ([x, axis]) => alongAxis(x, axis, softmax),
  _log_softmax: ([x, axis]) => alongAxis(x, axis, (read, write, n) => softmax(read, write, n, true)),
  clamp: ([x, low, high], shape) => clamp(x, low, high, shape), clamp_min: ([x, low], shape) => clamp(x, low, null, shape),
  clamp_max: ([x, high], shape) => clamp(x, null, high, shape),
  where([condition, a, b], shape) {
    const [is, yes, no] = [condition, many(a), many(b)].map((x) => expanded(x, shape));
    return tensor(shape, is.d.map((v, i) => (v ? yes.d[i] : no.d[i])));
  },
  embedding([w, index], shape) {
    const out = tensor(shape), n = w.s[1];
    index.d.forEach((row, i) => out.d.set(w.d.subarray(row * n, (row + 1) * n), i * n));
    return out;
  },
  gather([x, axis, index], shape) {
    const k = axisOf(axis, x.s), at = besides(x.s, k, index), step = strides(x.s)[k];
    return tensor(shape, index.d.map((v, i) => x.d[at[i] + v * step]));
  },
  scatter([x, axis, index, value], shape) {
    const out = tensor(shape, x.d.slice()), k = axisOf(axis, shape), at = besides(shape, k, index), step = strides(shape)[k];
    index.d.forEach((v, i) => (out.d[at[i] + v * step] = value.d ? value.d[i] : value));
    return out;
  },
  slice_scatter([x, part, axis, first, , step], shape) {
    const k = axisOf(axis ?? 0, shape), at = strides(shape), from = Math.max(0, (first ?? 0) < 0 ? first + shape[k] : (first ?? 0));
    return put(tensor(shape, x.d.slice()), places(part.s, at.map((v, i) => (i === k ? v * (step ?? 1) : v)), at[k] * from), part);
  },
  leaky_relu: ([x, slope], shape) => map(x, shape, (v) => (v > 0 ? v : v * (slope ?? 0.01))),
  elu: ([x, alpha, scale, input], shape) => map(x, shape, (v) => (scale ?? 1) * (v > 0 ? v : (alpha ?? 1) * Math.expm1(v * (input ?? 1)))),
  gelu: ([x, kind], shape) => map(x, shape, GELU[kind ?? "none"]),
  native_layer_norm: ([x, axes, gain, shift, eps], shapes) => [layerNorm(x, size(axes), gain, shift, eps, shapes[0])],
  convolution: ([x, w, bias, stride, pad, gap, transposed, , groups], shape) => convolve(x, w, bias, pair(stride), pair(pad), pair(gap), transposed, groups, shape),
  max_pool2d_with_indices: ([x, kernel, stride, pad], shapes) => [maxPool(x, pair(kernel), stride?.length ? pair(stride) : pair(kernel), pair(pad?.length ? pad : [0, 0]), shapes[0])],
};
const many = (x) => (typeof x === "object" ? x : tensor([], Float64Array.of(+x)));
function combine(x, y, k, fn, shape) {
  const out = tensor(shape), n = out.d.length, [a, b] = [x, y].map((v) => (v.d.length === n ? v : { d: v.d, at: broadcast(v.s, shape) }));
  for (let i = 0; i < n; i++) out.d[i] = fn(a.d[a.at ? a.at[i] : i], b.d[b.at ? b.at[i] : i], k);
  return out;
}
for (const [name, fn] of Object.entries(UNARY)) OPERATIONS[name] = ([x], shape) => map(x, shape, fn);
for (const [name, fn] of Object.entries(BINARY)) OPERATIONS[name] = ([a, b, k], shape) => combine(many(a), many(b), k ?? 1, fn, shape);
// The third argument of a division is how it is rounded.
OPERATIONS.div = ([a, b, rounding], shape) => combine(many(a), many(b), 1, rounding ? (x, y) => Math[rounding](x / y) : BINARY.div, shape);

// ---------------------------------------------------------------- programs

// Return the functions of a program by name: from numbers by input to numbers by output. `draw(distribution)` returns a
// random number, for inputs that are not given.
export function open({ parts, tensors }, draw) {
  const lists = Object.values(parts).map((part) => part.ops), total = lists.reduce((a, ops) => a + ops.length, 0);
  const unknown = lists.flat().find(([, operation]) => !Object.hasOwn(OPERATIONS, operation));
  if (unknown) throw new Error(`this page cannot compute ${unknown[1]}`);
  const made = Object.values(parts).flatMap((part) => [...part.in.map((input) => input[2]), ...part.ops.map((line) => line[3])]);
  const numbers = numbersIn(Object.values(tensors).map(({ s }) => s)) + numbersIn(made);
  if (total > MOST_OPERATIONS || !(numbers <= MOST_NUMBERS)) throw new Error(`this program is too large for a page: ${total} operations, ${numbers} numbers`);
  const weights = Object.fromEntries(Object.entries(tensors).map(([name, entry]) => [name, load(entry)]));
  return Object.fromEntries(Object.entries(parts).map(([name, part]) => [name, (given) => run(part, weights, given, draw)]));
}
function run(part, weights, given, draw) {
  const values = new Map(Object.entries(weights));
  for (const [variable, label, shape] of part.in)
    values.set(variable, tensor(shape, given[label] ? Float32Array.from(given[label]) : Float32Array.from({ length: size(shape) }, () => draw(part.noise[label]))));
  const read = (x) => (typeof x === "string" && x[0] === "%" ? values.get(x.slice(1)) : Array.isArray(x) ? x.map(read) : x === "inf" ? Infinity : x === "-inf" ? -Infinity : x);
  for (const [target, operation, args, shape, type] of part.ops) values.set(target, OPERATIONS[operation](args.map(read), shape, type));
  return Object.fromEntries(Object.entries(part.out).map(([label, at]) => [label, read(at).d]));
}

// ---------------------------------------------------------------- random inputs

// A stream of random numbers in [0, 1): mulberry32.
export function stream(seed) {
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}
// A number of a distribution that a program names, from a stream.
export function sample(distribution, random) {
  if (distribution === "exponential") return -Math.log(1 - random());
  return distribution === "standard normal" ? Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random()) : random();
}

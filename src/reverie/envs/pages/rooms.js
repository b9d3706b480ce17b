// reverie/Rooms in a page: `rooms.py`, and MiniGrid's full view of it.
const PLAN = ["#######", "#bb~pp#", "#bb.pp#", "#.###.#", "#yy~rr#", "#yy.rg#", "#######"];
const KINDS = { ".": 0, "#": 1, g: 2, "~": 3, r: 4, b: 6, p: 7, y: 8 }; // classes of cells: floors follow the four others
const COLORS = ["#000", "#646464", "#00e000", "#ff8000", "#800000", "#008000", "#000080", "#381460", "#7f7f00", "#323232"];
const MOVES = [[1, 0], [0, 1], [-1, 0], [0, -1]];
const cell = (x, y) => PLAN[y][x], width = PLAN[0].length;

export const environment = {
  actions: [{ name: "left", key: "ArrowLeft", flat: [1, 0, 0] }, { name: "right", key: "ArrowRight", flat: [0, 1, 0] }, { name: "forward", key: "ArrowUp", flat: [0, 0, 1] }],
  steps: 50, pace: 500, legend: "The triangle is the agent, green the goal, orange lava, gray a wall.",
  reset(random) {
    const free = PLAN.flatMap((row, y) => [...row].map((letter, x) => [letter, x, y])).filter(([letter]) => !"#~g".includes(letter));
    const [, x, y] = free[Math.floor(random() * free.length)];
    return [x, y, Math.floor(random() * 4)];
  },
  step([x, y, direction], action) {
    const turn = action[0] ? 3 : action[1] ? 1 : 0;
    if (turn) return { state: [x, y, (direction + turn) % 4], reward: 0, end: false };
    const [dx, dy] = MOVES[direction];
    if (cell(x + dx, y + dy) === "#") return { state: [x, y, direction], reward: 0, end: false };
    const found = cell(x + dx, y + dy);
    return { state: [x + dx, y + dy, direction], reward: +(found === "g"), end: found === "g" || found === "~", ending: { g: "the goal", "~": "lava" }[found] };
  },
  observe: ([x, y, direction]) => ({ agent: [x, y, direction, 0], grid: Array.from({ length: width * PLAN.length }, (_, i) => KINDS[cell(Math.floor(i / PLAN.length), i % PLAN.length)]) }),
  draw(context, { agent: [x, y, direction], grid }, side) {
    const size = side / width;
    grid.forEach((kind, i) => {
      context.fillStyle = COLORS[kind] ?? "#999";
      const [left, top] = [Math.floor(i / PLAN.length) * size, (i % PLAN.length) * size].map(Math.floor);
      context.fillRect(left, top, Math.ceil(size), Math.ceil(size));
    });
    context.save();
    context.translate((x + 0.5) * size, (y + 0.5) * size);
    context.rotate((direction * Math.PI) / 2);
    context.fillStyle = "#ff2020";
    context.beginPath();
    context.moveTo(0.38 * size, 0);
    context.lineTo(-0.32 * size, -0.3 * size);
    context.lineTo(-0.32 * size, 0.3 * size);
    context.fill();
    context.restore();
  },
};

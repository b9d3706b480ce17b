// Gymnasium's CartPole in a page: the equations of Barto, Sutton and Anderson (1983), by Euler's method.
export const environment = {
  actions: [{ name: "left", key: "ArrowLeft", flat: [1, 0] }, { name: "right", key: "ArrowRight", flat: [0, 1] }],
  steps: 500, pace: 60,
  reset: (random) => Array.from({ length: 4 }, () => random() * 0.1 - 0.05),
  step([x, speed, angle, turn], action) {
    const force = action[1] > action[0] ? 10 : -10, cos = Math.cos(angle), sin = Math.sin(angle);
    const push = (force + 0.05 * turn ** 2 * sin) / 1.1, spin = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - (0.1 * cos ** 2) / 1.1));
    const state = [x + 0.02 * speed, speed + 0.02 * (push - (0.05 * spin * cos) / 1.1), angle + 0.02 * turn, turn + 0.02 * spin];
    const fell = Math.abs(state[2]) > (12 * Math.PI) / 180, left = Math.abs(state[0]) > 2.4;
    return { state, reward: 1, end: fell || left, ending: fell ? "the pole falls" : "the cart leaves" };
  },
  observe: (state) => ({ observation: state }),
  draw(context, { observation: [x, , angle] }, side, color) {
    const meter = side / 5.4, floor = side * 0.68, middle = side / 2 + x * meter;
    context.strokeStyle = color("soft");
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(0, floor);
    context.lineTo(side, floor);
    for (const edge of [-2.4, 2.4]) { context.moveTo(side / 2 + edge * meter, floor - 6); context.lineTo(side / 2 + edge * meter, floor + 6); }
    context.stroke();
    context.fillStyle = color("ink");
    context.fillRect(middle - 0.3 * meter, floor - 0.18 * meter, 0.6 * meter, 0.36 * meter);
    context.strokeStyle = color("dream");
    context.lineWidth = Math.max(2, 0.12 * meter);
    context.beginPath();
    context.moveTo(middle, floor - 0.1 * meter);
    context.lineTo(middle + Math.sin(angle) * 2 * meter, floor - 0.1 * meter - Math.cos(angle) * 2 * meter);
    context.stroke();
  },
};

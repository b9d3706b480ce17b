// Gymnasium's Pendulum in a page. The state is the angle, 0 upright, and its speed.
export const environment = {
  actions: [{ name: "left", key: "ArrowLeft", flat: [1] }, { name: "none", key: "ArrowDown", flat: [0] }, { name: "right", key: "ArrowRight", flat: [-1] }],
  steps: 200, pace: 60,
  reset: (random) => [(random() * 2 - 1) * Math.PI, random() * 2 - 1],
  step([angle, speed], action) {
    const torque = 2 * Math.min(1, Math.max(-1, action[0])), off = (((angle + Math.PI) % (2 * Math.PI)) + 2 * Math.PI) % (2 * Math.PI) - Math.PI;
    const next = Math.min(8, Math.max(-8, speed + (15 * Math.sin(angle) + 3 * torque) * 0.05));
    return { state: [angle + next * 0.05, next], reward: -(off ** 2 + 0.1 * speed ** 2 + 0.001 * torque ** 2), end: false };
  },
  observe: ([angle, speed]) => ({ observation: [Math.cos(angle), Math.sin(angle), speed] }),
  draw(context, { observation: [cos, sin] }, side, color) {
    const middle = side / 2, long = 0.4 * side, scale = 1 / Math.max(1e-6, Math.hypot(cos, sin));
    context.strokeStyle = color("dream");
    context.lineWidth = 0.07 * side;
    context.lineCap = "round";
    context.beginPath();
    context.moveTo(middle, middle);
    context.lineTo(middle - long * sin * scale, middle - long * cos * scale);
    context.stroke();
    context.fillStyle = color("ink");
    context.beginPath();
    context.arc(middle, middle, 0.02 * side, 0, 2 * Math.PI);
    context.fill();
  },
};

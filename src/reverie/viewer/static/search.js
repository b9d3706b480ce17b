// The tab Search: what a tree search from a row says of each action, and the tree, whose nodes become lanes.

import { $, el, short, svg } from "./dom.js";
import { WIDE } from "./hands.js";

const BARS = ["prior", "visits", "policy", "q"];
const percent = (x) => `${Math.round(100 * x)} %`;

export class Search {
  constructor(page) {
    this.page = page;
  }

  meet() {
    this.found = null;
    this.simulations ??= this.page.about.simulations;
  }

  open() {
    const count = el("output", {}, String(this.simulations)), input = el("input", { id: "simulations", type: "range", min: 0, max: 400, step: 2, value: this.simulations,
      oninput: () => (count.value = input.value), onchange: () => ((this.simulations = +input.value), this.show()) });
    $("#panel").replaceChildren(el("label", { title: "0: the policy alone" }, "Simulations", input, count), el("p", { id: "said", ariaLive: "polite" }), el("div", { id: "choices" }), el("div", { id: "tree" }));
  }

  // Searches from the current row, unless rows pass; the newest row and slider win.
  async show() {
    const { page, simulations } = this, { real } = page.rows[page.at];
    if (this.asking || page.playing) return;
    if (!real || real.last) return this.clear(real ? "The episode is over at this row." : "Only rows of the environment are searched from.");
    const key = JSON.stringify([page.at, simulations, real]);
    if (this.found?.key !== key) {
      this.asking = true;
      const head = await page.ask("search", { at: page.at, simulations }, true);
      this.asking = false;
      if (page.panels.chosen !== "Search" || !head) return;
      this.found = { ...head, key };
      this.refocus ||= $("#choices").contains(document.activeElement); // an action was taken by keys
      $("#choices").replaceChildren();
      return this.show();
    }
    if (!$("#choices").firstChild) this.draw();
  }

  clear(text) {
    $("#said").textContent = text;
    for (const id of ["#choices", "#tree"]) $(id).replaceChildren();
  }

  name(action) {
    return this.page.about.names[action] ?? `action ${action}`;
  }

  draw() {
    const { found, page } = this, { legal, cells, chosen, policy, player, simulations } = found, whose = page.about.players ? `player ${player}, who moves` : "the agent";
    $("#said").textContent = `Value ${short(found.value)} for ${whose}. ${simulations ? "The search" : "The policy, without a search,"} chooses ${this.name(chosen)}.`;
    const rows = cells?.length, columns = cells?.[0].length, on_board = [rows * columns, columns].includes(policy.length);
    if (on_board && columns > WIDE) $("#said").append(" Bars: prior, visits, π′ and, from the middle, q.");
    const order = on_board ? policy.map((_, action) => action) : [...legal].sort((a, b) => policy[b] - policy[a]);
    $("#choices").className = on_board && columns > WIDE ? "small" : "";
    $("#choices").style.gridTemplateColumns = on_board ? `repeat(${columns}, minmax(0, 1fr))` : "";
    $("#choices").replaceChildren(...order.map((action) => (legal.includes(action) ? this.makeChoice(action) : this.makePiece(action, cells.flat()[action]))));
    if (this.refocus) $(".choice.chosen").focus({ preventScroll: true });
    this.refocus = false;
    this.drawTree();
  }

  // What the search says of a legal action; a click takes it.
  makeChoice(action) {
    const { found, page } = this, { prior, visits, policy, q } = found, highest = Math.max(...q.map((x) => Math.abs(x ?? 0)), page.about.players ? 1 : 1e-9);
    const texts = [percent(prior[action]), String(visits[action]), percent(policy[action]), short(q[action])];
    const shares = [prior[action], visits[action] / Math.max(1, ...visits), policy[action], (q[action] ?? 0) / highest];
    const bars = BARS.flatMap((name, i) => {
      const bar = el("i", { className: name });
      bar.style.width = `${(i === 3 ? 50 : 100) * Math.abs(shares[i])}%`; // q: from the middle
      bar.style.marginLeft = `${i === 3 ? 50 + 50 * Math.min(0, shares[i]) : 0}%`;
      return [el("span", {}, name === "policy" ? "π′" : name), el("span", { className: "track" }, bar), el("span", {}, texts[i])];
    });
    const label = [this.name(action), ...BARS.map((name, i) => `${name} ${texts[i]}`)].join(", ");
    return el("button", { className: `choice${action === found.chosen ? " chosen" : ""}`, title: label, ariaLabel: label, onclick: () => page.hands.take(action) }, el("b", {}, this.name(action)), ...bars);
  }

  makePiece(action, piece) {
    return el("div", { className: `piece of${piece}`, role: "img", ariaLabel: `${this.name(action)}: ${piece ? `player ${piece - 1}` : "not legal"}` }, piece ? "●" : "");
  }

  // The tree: a row for each depth, a cell for each node, as wide as its visits.
  drawTree() {
    const { found: { nodes, simulations } } = this, { parent, depth, visits, first } = nodes, deep = Math.max(...depth) + 1;
    if (!simulations) return $("#tree").replaceChildren();
    const low = Math.min(...first), high = Math.max(...first), { players } = this.page.about, middle = players ? 0 : (low + high) / 2, most = Math.max(high - middle, middle - low, players ? 1 : 1e-9);
    const left = [], used = visits.map(() => 0), main = new Set(this.findVariation(0)), about = el("p", { id: "hovered" }, "Point at a node to read its numbers; click it to make a lane.");
    const cells = parent.map((above, node) => {
      left[node] = node ? left[above] + used[above] : 0;
      if (node) used[above] += visits[node] / visits[0];
      const share = (first[node] - middle) / most, fill = `color-mix(in srgb, var(--${share < 0 ? "dream" : "real"}) ${10 + Math.round(85 * Math.abs(share))}%, var(--card))`;
      return svg("rect", { x: `${100 * left[node]}%`, y: 22 * depth[node], width: `${(100 * visits[node]) / visits[0]}%`, height: 20, fill, class: main.has(node) ? "main" : "", "data-node": node });
    });
    const pick = (event, act) => event.target.dataset.node && act(+event.target.dataset.node);
    const picture = svg("svg", { height: 22 * deep, role: "img", "aria-label": `The tree: ${visits.length} nodes, ${deep - 1} moves deep. The table below has all numbers.` }, ...cells);
    picture.addEventListener("mousemove", (event) => pick(event, (node) => (about.textContent = this.describe(node))));
    picture.addEventListener("click", (event) => pick(event, (node) => this.follow(node)));
    const table = el("details", { ontoggle: () => table.open && table.children.length < 2 && table.append(this.makeTable()) }, el("summary", {}, "All nodes as a table"));
    const colors = players ? "blue: player 0 is ahead, orange: player 1" : "blue: high values, orange: low";
    $("#tree").replaceChildren(el("h2", {}, "The tree"), el("p", {}, `Each row is a move deeper; wide: many visits; ${colors}. Framed: the principal variation.`), picture, about, table);
  }

  // The nodes from the root to a node, and on along the most visited ones.
  findVariation(node) {
    const { parent, visits, depth } = this.found.nodes, path = [];
    for (let above = node; depth[above]; above = parent[above]) path.unshift(above);
    for (let next = node; next >= 0; ) {
      const children = parent.map((above, i) => i).filter((i) => i && parent[i] === next).sort((a, b) => visits[b] - visits[a] || this.found.nodes.q[b] - this.found.nodes.q[a]);
      if ((next = children[0] ?? -1) >= 0) path.push(next);
    }
    return path;
  }

  // The moves to a node, and its numbers, in the view of the player who makes the last one.
  describe(node) {
    const { nodes, player } = this.found, { depth, action, visits, q, prior, raw, parent } = nodes, moves = [];
    for (let above = node; depth[above]; above = parent[above]) moves.unshift(this.name(action[above]));
    const whose = this.page.about.players ? ` for player ${(player + Math.max(0, depth[node] - 1)) % 2}` : "";
    return `${moves.join(" → ") || "this row"}: ${visits[node]} visits, q ${short(q[node])}${whose}, prior ${percent(prior[node])}, value by the model ${short(raw[node])}`;
  }

  makeTable() {
    const { nodes } = this.found, head = ["move", "depth", "visits", "q", "prior", "raw"];
    const cells = (node) => [nodes.depth[node], nodes.visits[node], short(nodes.q[node]), percent(nodes.prior[node]), short(nodes.raw[node])];
    const row = (node) => el("tr", {}, el("td", {}, node ? el("button", { title: this.describe(node), onclick: () => this.follow(node) }, this.name(nodes.action[node])) : "this row"),
      ...cells(node).map((x) => el("td", { className: "num" }, String(x))));
    return el("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: "Nodes" }, el("table", {}, el("thead", {}, el("tr", {}, ...head.map((x, i) => el("th", { className: i ? "num" : "" }, x)))),
      el("tbody", {}, ...nodes.depth.map((_, node) => row(node)))));
  }

  // The principal variation through a node becomes a lane of the dream.
  async follow(node) {
    const { page, found } = this, actions = this.findVariation(node).map((i) => found.nodes.action[i]);
    if (actions.length) await page.change("follow", { at: found.at, actions }, found.at);
  }
}

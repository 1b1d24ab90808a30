// The flow as a graph: channels from the output to the input, and what each hands to the next; panned and zoomed.

import { element, percent, short } from "./bundle.js";
import { svgShape } from "./curves.js";

const ACROSS = 170, DOWN = 62, MARGIN = 40; // between levels, between channels, around
const LEGIBLE = 0.6; // pixels of the screen for one of the graph
const CLOSEST = 0.2; // of the whole graph, the least that is shown

export class FlowGraph {
  /** Draws a flow into an SVG; `follow` is called with layer and channel of a node that is chosen. */
  constructor(svg, flow, follow) {
    Object.assign(this, { svg, flow, follow });
    const tallest = Math.max(...flow.levels.map((level) => level.nodes.length + level.pruned.length));
    this.size = [2 * MARGIN + ACROSS * (flow.levels.length - 1) + 60, 2 * MARGIN + DOWN * (tallest - 1) + 50];
    this.box = this.#opening();
    svg.style.aspectRatio = `${this.box[2]} / ${this.box[3]}`;
    this.places = new Map();
    flow.levels.forEach((level, number) => this.#place(level, number, tallest));
    svg.replaceChildren();
    this.#edges();
    flow.levels.forEach((level, number) => this.#nodes(level, number));
    this.#listen();
    this.#show();
  }

  /** The whole graph; on a narrow screen its beginning, large enough to read. */
  #opening() {
    const [wide, high] = this.size, across = this.svg.clientWidth / LEGIBLE;
    return across === 0 || across >= wide ? [0, 0, wide, high] : [0, 0, across, Math.min(high, 1.1 * across)];
  }

  #place(level, number, tallest) {
    const all = [...level.nodes, ...level.pruned];
    const top = MARGIN + 30 + ((tallest - all.length) * DOWN) / 2;
    all.forEach(({ channel }, row) => this.places.set(`${number}/${channel}`, [MARGIN + 20 + number * ACROSS, top + row * DOWN]));
  }

  #edges() {
    const most = this.flow.levels.map((_, number) => Math.max(1e-30, ...this.flow.edges.filter(({ level }) => level === number).map(({ relevance }) => Math.abs(relevance))));
    for (const edge of [...this.flow.edges].sort((a, b) => Math.abs(a.relevance) - Math.abs(b.relevance))) {
      const from = this.places.get(`${edge.level}/${edge.from}`), to = this.places.get(`${edge.level + 1}/${edge.to}`);
      const share = Math.abs(edge.relevance) / most[edge.level]; // of the widest between these two levels
      if (!from || !to || share < 0.004) continue;
      const middle = (from[0] + to[0]) / 2;
      const path = svgShape("path", { d: `M${from} C${middle},${from[1]} ${middle},${to[1]} ${to}`, class: edge.lost ? "lost" : edge.relevance > 0 ? "for" : "against" });
      path.style.strokeWidth = 0.5 + 11 * share;
      path.style.strokeOpacity = edge.lost ? 0.35 : 0.25 + 0.6 * Math.sqrt(share);
      path.append(svgShape("title", {}, `channel ${edge.from} → ${edge.to}: ${short(edge.relevance)}${edge.lost ? " under LRP, pruned here" : ""}`));
      this.svg.append(path);
    }
  }

  #nodes(level, number) {
    const label = level.layer === "input" ? "input" : level.layer;
    this.svg.append(svgShape("text", { class: "level", x: MARGIN + 20 + number * ACROSS, y: 18, "text-anchor": "middle" }, label));
    this.svg.append(svgShape("text", { class: "tick", x: MARGIN + 20 + number * ACROSS, y: 34, "text-anchor": "middle" }, `${level.surviving} of ${level.channels} channels`));
    for (const node of [...level.nodes, ...level.pruned]) {
      const [x, y] = this.places.get(`${number}/${node.channel}`);
      const lost = node.share === 0;
      const words = `${label}, channel ${node.channel}: ${lost ? "pruned" : `relevance ${short(node.relevance)}, ${percent(node.share)} of relevance`}`;
      const chosen = lost ? { role: "img" } : { tabindex: 0, role: "button" }; // nothing reaches the input through a pruned one
      const group = svgShape("g", { ...chosen, "aria-label": words, class: lost ? "lost" : node.relevance > 0 ? "for" : "against" });
      const radius = lost ? 6 : 7 + 16 * Math.sqrt(node.share);
      group.append(svgShape("title", {}, words), svgShape("circle", { cx: x, cy: y, r: radius }));
      group.append(svgShape("text", { x, y: y + radius + 11, "text-anchor": "middle", class: "number" }, String(node.channel)));
      this.svg.append(group);
      if (lost) continue;
      const choose = () => this.follow(level.layer, node.channel);
      group.addEventListener("click", () => { if (!this.dragged) choose(); });
      group.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); } });
    }
  }

  #listen() {
    const { svg } = this;
    svg.addEventListener("pointerdown", (event) => { this.grip = [event.clientX, event.clientY, ...this.box]; this.dragged = false; });
    svg.addEventListener("pointermove", (event) => {
      if (!this.grip || !event.buttons) return;
      const [x, y, left, top] = this.grip, scale = this.box[2] / svg.clientWidth;
      if (Math.hypot(event.clientX - x, event.clientY - y) > 4) this.dragged = true;
      this.pan(left - (event.clientX - x) * scale - this.box[0], top - (event.clientY - y) * scale - this.box[1]);
    });
    svg.addEventListener("pointerup", () => (this.grip = null));
    svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
      event.preventDefault();
      this.zoom(1.0015 ** event.deltaY);
    }, { passive: false });
    svg.addEventListener("keydown", (event) => {
      const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      const factor = { "+": 0.8, "-": 1.25 }[event.key];
      if (!way && !factor) return;
      event.preventDefault();
      if (factor) this.zoom(factor);
      else this.pan((way[0] * this.box[2]) / 10, (way[1] * this.box[3]) / 10);
    });
  }

  pan(right, down) {
    const [left, top, wide, high] = this.box;
    const within = (value, room, whole) => Math.max(Math.min(0, whole - room), Math.min(Math.max(0, whole - room), value));
    this.box = [within(left + right, wide, this.size[0]), within(top + down, high, this.size[1]), wide, high];
    this.#show();
  }

  zoom(factor) {
    const [left, top, wide, high] = this.box;
    const share = Math.max(CLOSEST, Math.min(1, (wide * factor) / this.size[0]));
    this.box = [left, top, this.size[0] * share, this.size[1] * share];
    this.pan((wide - this.box[2]) / 2, (high - this.box[3]) / 2);
  }

  #show() {
    this.svg.setAttribute("viewBox", this.box.map((value) => value.toFixed(1)).join(" "));
  }
}

/** The graph in its section; hidden where the bundle has none. */
export function buildFlow(section, svg, buttons, bundle, follow) {
  const { flow } = bundle.facts;
  section.hidden = !flow;
  if (!flow) return;
  const graph = new FlowGraph(svg, flow, follow);
  const tools = { "Zoom in": () => graph.zoom(0.7), "Zoom out": () => graph.zoom(1 / 0.7), "Whole graph": () => graph.zoom(100) };
  buttons.replaceChildren(...Object.entries(tools).map(([name, act]) => {
    const button = element("button", { type: "button" }, name);
    button.addEventListener("click", act);
    return button;
  }));
}

// The curves over p: sparsity (of a text, counted in tokens inside), what reaches the input, relevance inside the mask.

import { mapNumber } from "./bundle.js";

const SVG = "http://www.w3.org/2000/svg";
const THUMB = 20; // pixels, as in style.css: the slider below the curves moves within its track by half of it
const HEIGHT = 138, TOP = 20, FOOT = 20; // a dot at the top stays clear of the words above it
const LABELS = 32; // pixels right of the curves, as in style.css: the slider leaves them free too

export const CURVES = [
  { key: "sparsity", label: "sparsity", of: (curves, n) => (curves.tokens ? null : 1 - curves.holding[n]) },
  { key: "sparsity", label: "tokens cut inside", note: "Tokens without relevance at a layer's input, mean over the layers. Tokens of the text itself are never cut.", of: (curves, n) => (curves.tokens ? curves.tokens[n] : null) },
  { key: "kept", label: "Σ R ÷ score", note: "The sum of the map, divided by the explained score. Biases take the rest; it exceeds 100% where they speak against the score. It does not say how much of the prediction the map accounts for.", of: (curves, n) => curves.kept[n] },
  { key: "inside", label: "inside the mask", of: (curves, n) => (curves.inside ? curves.inside[n] : null) },
];

export function svgShape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** Draws all curves of a setting's method and class; the present p is a line, the p asked for a flag. */
export function drawCurves(svg, bundle, setting, asked) {
  const { facts } = bundle;
  const width = Math.max(200, svg.clientWidth || 320);
  const places = facts.p.length + 1;
  const x = (place) => THUMB / 2 + (place / (places - 1)) * (width - LABELS - THUMB);
  const series = CURVES.map((curve) => ({
    ...curve,
    values: Array.from({ length: places }, (_, p) => curve.of(facts.curves, mapNumber(facts, { ...setting, p }))),
  })).filter(({ values }) => values.some((value) => value !== null && isFinite(value)));
  const all = series.flatMap(({ values }) => values.filter((value) => value !== null));
  const low = Math.max(Math.min(0, ...all), -0.4), high = Math.min(Math.max(1, ...all), 1.6); // what goes beyond is cut
  const y = (value) => TOP + (1 - (Math.max(low, Math.min(value, high)) - low) / (high - low)) * (HEIGHT - TOP - FOOT);
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  svg.setAttribute("height", HEIGHT);
  svg.replaceChildren();
  for (const tick of [0, 0.5, 1]) {
    svg.append(svgShape("line", { class: "rule", x1: x(0), x2: x(places - 1), y1: y(tick), y2: y(tick) }));
    svg.append(svgShape("text", { class: "tick", x: width, y: y(tick) + 4, "text-anchor": "end" }, `${tick * 100}%`));
  }
  if (asked !== null) {
    svg.append(svgShape("line", { class: "asked", x1: x(asked), x2: x(asked), y1: TOP, y2: HEIGHT - FOOT }));
    svg.append(svgShape("text", { class: "tick", x: x(asked), y: 10, "text-anchor": asked ? "middle" : "start" }, "your p"));
  }
  svg.append(svgShape("line", { class: "present", x1: x(setting.p), x2: x(setting.p), y1: TOP, y2: HEIGHT - FOOT }));
  for (const { key, values } of series) {
    const points = values.map((value, p) => (value === null ? null : `${x(p)},${y(value)}`)).filter(Boolean);
    svg.append(svgShape("polyline", { class: `curve ${key}`, points: points.join(" ") }));
    const now = values[setting.p];
    if (now !== null) svg.append(svgShape("circle", { class: `dot ${key}`, cx: x(setting.p), cy: y(now), r: 4 }));
  }
  const step = Math.ceil((places * 34) / (width - LABELS - THUMB));
  for (let place = 0; place < places; place += step) {
    const text = place === 0 ? "0" : String(facts.p[place - 1]);
    svg.append(svgShape("text", { class: "tick", x: x(place), y: HEIGHT - 5, "text-anchor": "middle" }, text));
  }
}

/** The p whose place on the slider lies under a point of the curves. */
export function placeUnder(svg, clientX, places) {
  const box = svg.getBoundingClientRect();
  const share = (clientX - box.left - THUMB / 2) / (box.width - LABELS - THUMB);
  return Math.max(0, Math.min(places - 1, Math.round(share * (places - 1))));
}

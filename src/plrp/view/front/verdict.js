// What the network says of a map (`Explanation.test`): in words, and the map's parts beside the drops of the score.

import { element, short } from "./bundle.js";
import { svgShape } from "./curves.js";

const WIDE = 300, HIGH = 300, LOW = 110; // of a chart; low: parts along a line

/** Fills the words and charts; `name` is the setting that was tested. */
export function drawVerdict(words, charts, verdict, name) {
  words.textContent = `${name}: ${verdict.words}`;
  const named = verdict.names.map((replacement, n) => [`drop of the score: ${replacement}`, verdict.drops[n]]);
  charts.replaceChildren(...[["the map", verdict.relevance], ...named].map(([title, values]) => {
    const largest = Math.max(...values.map(Math.abs)) || 1;
    const caption = `${title} (±${short(largest)})`;
    return element("figure", {}, chart(values, verdict.grid, largest, caption), element("figcaption", { class: "soft" }, caption));
  }));
}

/** Tiles as squares, other parts as bars. */
function chart(values, grid, largest, title) {
  const tiles = grid.length === 2;
  const svg = svgShape("svg", { viewBox: `0 0 ${WIDE} ${tiles ? HIGH : LOW}`, role: "img", "aria-label": title });
  values.forEach((value, n) => {
    const share = Math.abs(value) / largest, side = value > 0 ? "for" : "against";
    if (tiles) {
      const [rows, columns] = grid, [w, h] = [WIDE / columns, HIGH / rows];
      const place = { x: (n % columns) * w, y: Math.floor(n / columns) * h, width: w, height: h };
      svg.append(svgShape("rect", { ...place, class: side, "fill-opacity": share.toFixed(3) }));
    } else {
      const w = WIDE / values.length, h = (share * LOW) / 2;
      svg.append(svgShape("rect", { x: n * w, y: value > 0 ? LOW / 2 - h : LOW / 2, width: 0.9 * w, height: h, class: side }));
    }
  });
  return svg;
}

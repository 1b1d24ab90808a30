// From quantised relevance to colours: the same table, limits and growth as plrp.vision.heatmap.

import { LEVELS } from "./bundle.js";

/** 511 colours from most negative to most positive, as one flat array of RGB. */
export function colourTable(stops) {
  const rgb = stops.map((code) => [1, 3, 5].map((at) => parseInt(code.slice(at, at + 2), 16)));
  const table = new Float64Array(511 * 3);
  for (let i = 0; i < 511; i++) {
    const at = (i / 510) * (rgb.length - 1);
    const low = Math.min(Math.floor(at), rgb.length - 2);
    for (let c = 0; c < 3; c++) table[3 * i + c] = rgb[low][c] + (at - low) * (rgb[low + 1][c] - rgb[low][c]);
  }
  return table;
}

/** The strength, −1 to 1, of every level from −127 to 127. */
export function strengths(largest, limit) {
  return Float64Array.from({ length: 2 * LEVELS + 1 }, (_, i) => {
    const share = (i - LEVELS) / LEVELS;
    const value = Math.sign(share) * share * share * largest;
    return limit > 0 ? Math.max(-1, Math.min(1, value / limit)) : 0;
  });
}

/** Levels as pixels (RGBA). `cover` null: opaque; else the opacity of the strongest, for drawing over a picture. */
export function heatPixels(levels, largest, limit, table, cover = null) {
  const lookup = new Uint32Array(2 * LEVELS + 1);
  const bytes = new Uint8Array(lookup.buffer);
  strengths(largest, limit).forEach((strength, i) => {
    const shown = cover === null ? strength : Math.sign(strength) * (0.45 + 0.55 * Math.abs(strength));
    const colour = 3 * Math.round(((shown + 1) / 2) * 510);
    for (let c = 0; c < 3; c++) bytes[4 * i + c] = Math.round(table[colour + c]);
    bytes[4 * i + 3] = cover === null ? 255 : Math.round(255 * cover * Math.sqrt(Math.abs(strength)));
  });
  const pixels = new Uint32Array(levels.length);
  for (let i = 0; i < levels.length; i++) pixels[i] = lookup[levels[i] + LEVELS];
  return new Uint8ClampedArray(pixels.buffer);
}

/** Every empty pixel takes the strongest level near it, so that a single survivor stays visible. */
export function grown(levels, height, width) {
  let holding = 0;
  for (let i = 0; i < levels.length; i++) if (levels[i] !== 0) holding++;
  const share = holding / levels.length;
  if (share === 0 || share >= 0.03 || Math.min(height, width) < 64) return levels;
  const radius = share >= 0.005 ? 1 : 2;
  const result = Int8Array.from(levels);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const level = levels[y * width + x];
      if (level === 0) continue;
      for (let v = Math.max(0, y - radius); v <= Math.min(height - 1, y + radius); v++) {
        for (let u = Math.max(0, x - radius); u <= Math.min(width - 1, x + radius); u++) {
          const at = v * width + u;
          if (levels[at] !== 0) continue;
          const size = Math.abs(level), there = Math.abs(result[at]);
          if (size > there || (size === there && level > 0)) result[at] = level;
        }
      }
    }
  }
  return result;
}

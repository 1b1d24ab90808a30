// Pictures on a canvas: photograph, heatmap, overlay, outline.

import { heatPixels, grown } from "./colours.js";
import { relevanceOf } from "./bundle.js";

/** Pixels as a canvas of their own size, to be drawn at any other. */
export function asCanvas(pixels, width, height) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  canvas.getContext("2d").putImageData(new ImageData(pixels, width, height), 0, 0);
  return canvas;
}

/** A light grey version of a picture, from which colours stand out. */
export function faded(picture, width, height) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  context.drawImage(picture, 0, 0, width, height);
  const image = context.getImageData(0, 0, width, height);
  for (let i = 0; i < image.data.length; i += 4) {
    const [r, g, b] = image.data.subarray(i, i + 3);
    const grey = Math.round(0.55 * (0.299 * r + 0.587 * g + 0.114 * b) + 0.45 * 255);
    image.data.set([grey, grey, grey], i);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** Draws one view of one map: `scene` has levels, largest, limit, table, picture, grey, height, width, view, blend. */
export function paint(context, scene) {
  const { height, width, view } = scene;
  const [across, down] = [context.canvas.width, context.canvas.height];
  const levels = scene.grow ? grown(scene.levels, height, width) : scene.levels;
  if (view === "heatmap") {
    put(context, heatPixels(levels, scene.largest, scene.limit, scene.table), width, height, false);
    return;
  }
  context.imageSmoothingEnabled = true;
  context.imageSmoothingQuality = "high";
  context.drawImage(view === "overlay" ? scene.grey : scene.picture, 0, 0, across, down);
  if (view === "overlay") {
    put(context, heatPixels(levels, scene.largest, scene.limit, scene.table, scene.blend), width, height, false);
  }
  if (view === "outline") {
    const { field, level } = concentration(scene.levels, scene.largest, height, width);
    trace(context, contour(field, level, height, width), across / width, ["#ffffff", "#c2185b"], []);
  }
}

function put(context, pixels, width, height, smooth) {
  context.imageSmoothingEnabled = smooth;
  context.drawImage(asCanvas(pixels, width, height), 0, 0, context.canvas.width, context.canvas.height);
}

/** The blurred positive relevance, and the level above which lies 80% of it (plrp.vision.heatmaps.outline_level). */
export function concentration(levels, largest, height, width, share = 0.8) {
  const positive = Float64Array.from(levels, (level) => Math.max(0, relevanceOf(level, largest)));
  const field = blurred(positive, height, width, 0.025 * Math.max(height, width));
  const sorted = Float64Array.from(field).sort().reverse();
  let total = 0;
  for (const value of sorted) total += value;
  if (total <= 0) return { field, level: Infinity };
  let sum = 0;
  for (const value of sorted) {
    sum += value;
    if (sum >= share * total) return { field, level: value };
  }
  return { field, level: 0 };
}

function blurred(values, height, width, deviation) {
  const radius = Math.max(1, Math.ceil(3 * deviation));
  const kernel = Array.from({ length: 2 * radius + 1 }, (_, i) => Math.exp(-0.5 * ((i - radius) / deviation) ** 2));
  const norm = kernel.reduce((a, b) => a + b, 0);
  const pass = (from, lines, length, along, across) => {
    const to = new Float64Array(from.length);
    for (let line = 0; line < lines; line++) {
      for (let i = 0; i < length; i++) {
        const value = from[line * across + i * along];
        if (value === 0) continue;
        for (let j = Math.max(0, i - radius); j <= Math.min(length - 1, i + radius); j++) {
          to[line * across + j * along] += (value * kernel[j - i + radius]) / norm;
        }
      }
    }
    return to;
  };
  return pass(pass(values, height, width, 1, width), width, height, width, 1);
}

/** The lines at which a field crosses a level, by marching squares: pairs of points, in pixels of the map. */
export function contour(field, level, height, width) {
  const at = (x, y) => (x < 0 || y < 0 || x >= width || y >= height ? -Infinity : field[y * width + x]);
  const lines = [];
  const between = (a, b) => (isFinite(a) && isFinite(b) && a !== b ? (level - a) / (b - a) : 0.5);
  for (let y = -1; y < height; y++) {
    for (let x = -1; x < width; x++) {
      const [a, b, c, d] = [at(x, y), at(x + 1, y), at(x + 1, y + 1), at(x, y + 1)];
      const kind = (a >= level) | ((b >= level) << 1) | ((c >= level) << 2) | ((d >= level) << 3);
      if (kind === 0 || kind === 15) continue;
      const top = () => [x + between(a, b), y], right = () => [x + 1, y + between(b, c)];
      const bottom = () => [x + between(d, c), y + 1], left = () => [x, y + between(a, d)];
      const sides = {
        1: [left, top], 2: [top, right], 3: [left, right], 4: [right, bottom], 5: [left, top, right, bottom],
        6: [top, bottom], 7: [left, bottom], 8: [bottom, left], 9: [top, bottom], 10: [top, right, bottom, left],
        11: [right, bottom], 12: [right, left], 13: [top, right], 14: [left, top],
      }[kind];
      for (let i = 0; i < sides.length; i += 2) lines.push([sides[i](), sides[i + 1]()]);
    }
  }
  return lines;
}

/** Draws contour lines: a wide pale stroke under a coloured one, visible on any picture. */
export function trace(context, lines, scale, [casing, colour], dash) {
  context.save();
  context.lineCap = "round";
  for (const [stroke, width] of [[casing, 5], [colour, 2.4]]) {
    context.beginPath();
    context.strokeStyle = stroke;
    context.lineWidth = (width * context.canvas.width) / 640;
    context.setLineDash(stroke === colour ? dash : []);
    for (const [[x, y], [u, v]] of lines) {
      context.moveTo((x + 0.5) * scale, (y + 0.5) * scale);
      context.lineTo((u + 0.5) * scale, (v + 0.5) * scale);
    }
    context.stroke();
  }
  context.restore();
}

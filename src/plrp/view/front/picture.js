// The stage of a photograph: one canvas, or two side by side; two settings divided by a swipe.

import { largestOf, mapNumber, mapOf, percent, relevanceOf, settingName, short } from "./bundle.js";
import { contour, faded, paint, trace } from "./drawing.js";

const WIDEST = 1400; // pixels of a canvas

export class PictureStage {
  /** Waits until the photograph is decoded. */
  static async open(bundle, stage) {
    const { picture } = bundle.facts;
    let image = null;
    if (picture) {
      image = new Image();
      image.src = picture;
      await image.decode();
    }
    return new PictureStage(bundle, stage, image);
  }

  constructor(bundle, stage, image) {
    this.bundle = bundle;
    [this.height, this.width] = bundle.facts.space;
    this.stage = stage;
    this.image = image;
    this.grey = image && faded(image, this.width, this.height);
    [this.first, this.second] = stage.querySelectorAll("canvas");
    this.views = image
      ? [["overlay", "Overlay"], ["heatmap", "Heatmap"], ["outline", "Outline"], ["side", "Side by side"], ["photograph", "Photograph"]]
      : [["heatmap", "Heatmap"]];
    this.unit = "pixels";
    const mask = bundle.arrays.mask;
    this.mask = mask ? contour(mask.data, 0.5, this.height, this.width) : null;
  }

  /** Draws the state's view. */
  draw(state) {
    const side = state.view === "side";
    this.stage.classList.toggle("two", side);
    this.first.hidden = !side;
    const view = side ? "heatmap" : state.view;
    if (side) {
      this.#fit(this.first);
      paint(this.first.getContext("2d"), this.#scene(state, state.setting, "photograph"));
      this.first.setAttribute("aria-label", `The photograph ${this.bundle.facts.title}`);
      this.#drawMask(this.first, state);
    }
    this.#fit(this.second);
    const context = this.second.getContext("2d", { willReadFrequently: true });
    paint(context, this.#scene(state, state.setting, view));
    if (state.other) this.#drawOther(context, state, view);
    this.#drawMask(this.second, state);
    this.second.setAttribute("aria-label", this.#words(state, view));
  }

  /** The pixel under the pointer: row, column and number; null outside of the picture. */
  place(event) {
    const box = this.second.getBoundingClientRect();
    const x = Math.floor(((event.clientX - box.left) / box.width) * this.width);
    const y = Math.floor(((event.clientY - box.top) / box.height) * this.height);
    return x < 0 || y < 0 || x >= this.width || y >= this.height ? null : { x, y, at: y * this.width + x };
  }

  /** The relevance of the pixel under the pointer. */
  probe(state, event) {
    const place = this.place(event);
    if (!place) return "";
    const { x, y } = place;
    const setting = state.other && x / this.width > state.swipe ? state.other : state.setting;
    const level = mapOf(this.bundle, setting)[y * this.width + x];
    const relevance = short(relevanceOf(level, largestOf(this.bundle.facts, setting)));
    return `Row ${y}, column ${x}: relevance ${relevance} (${settingName(this.bundle.facts, setting)})`;
  }

  #scene(state, setting, view) {
    return {
      levels: mapOf(this.bundle, setting),
      largest: largestOf(this.bundle.facts, setting),
      limit: this.limit(state, setting),
      table: state.table,
      picture: this.image,
      grey: this.grey,
      height: this.height,
      width: this.width,
      blend: state.blend,
      grow: state.grow,
      view,
    };
  }

  /** The relevance at the ends of the colour scale. */
  limit(state, setting) {
    if (setting.path && state.scale !== "shared") return setting.path.limit;
    const shown = state.scale === "shared" ? { ...setting, p: 0 } : setting;
    return this.bundle.facts.limits[mapNumber(this.bundle.facts, shown)];
  }

  #drawOther(context, state, view) {
    const { width, height } = context.canvas;
    const x = Math.round(state.swipe * width);
    context.save();
    context.beginPath();
    context.rect(x, 0, width - x, height);
    context.clip();
    paint(context, this.#scene(state, state.other, view));
    context.restore();
    const unit = width / 640;
    context.fillStyle = "#ffffff";
    context.fillRect(x - 3 * unit, 0, 6 * unit, height);
    context.fillStyle = "#1f2933";
    context.fillRect(x - unit, 0, 2 * unit, height);
    context.beginPath();
    context.arc(x, height / 2, 15 * unit, 0, 7);
    context.fill();
    context.fillStyle = "#ffffff";
    for (const way of [-1, 1]) {
      context.beginPath();
      context.moveTo(x + way * 10 * unit, height / 2);
      context.lineTo(x + way * 4 * unit, height / 2 - 6 * unit);
      context.lineTo(x + way * 4 * unit, height / 2 + 6 * unit);
      context.fill();
    }
    this.#tag(context, state.setting, 10 * unit, "left", unit, x);
    this.#tag(context, state.other, width - 10 * unit, "right", unit, width - x);
  }

  #tag(context, setting, x, side, unit, room) {
    const { facts } = this.bundle;
    const text = `${settingName(facts, setting)} · ${facts.targets[setting.target].name}`;
    context.font = `600 ${15 * unit}px system-ui, sans-serif`;
    const wide = context.measureText(text).width + 16 * unit;
    if (wide > room - 14 * unit) return;
    context.fillStyle = "rgba(20, 27, 36, .82)";
    context.fillRect(side === "left" ? x : x - wide, 10 * unit, wide, 26 * unit);
    context.fillStyle = "#ffffff";
    context.textAlign = side;
    context.textBaseline = "middle";
    context.fillText(text, side === "left" ? x + 8 * unit : x - 8 * unit, 23.5 * unit);
  }

  #drawMask(canvas, state) {
    if (!this.mask || !state.showMask) return;
    const unit = canvas.width / 640;
    trace(canvas.getContext("2d"), this.mask, canvas.width / this.width, ["rgba(255,255,255,.85)", "#1f2933"], [6 * unit, 5 * unit]);
  }

  #fit(canvas) {
    const wanted = (canvas.clientWidth || this.width) * (window.devicePixelRatio || 1);
    const scale = Math.max(1, Math.min(Math.round(wanted / this.width), Math.floor(WIDEST / this.width)));
    const [across, down] = [this.width * scale, this.height * scale];
    if (canvas.width !== across || canvas.height !== down) [canvas.width, canvas.height] = [across, down];
  }

  #words(state, view) {
    const { facts } = this.bundle;
    const one = (setting) => {
      const share = setting.path ? setting.path.holding : facts.curves.holding[mapNumber(facts, setting)];
      return `${facts.targets[setting.target].name}, ${settingName(facts, setting)}: ${percent(share)} of pixels hold relevance`;
    };
    const name = { overlay: "Overlay", heatmap: "Heatmap", outline: "Outline", photograph: "Photograph" }[view];
    return `${name}. ${one(state.setting)}${state.other ? `. On the right: ${one(state.other)}` : ""}.`;
  }
}

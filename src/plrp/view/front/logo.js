// The stage of a sequence: letters as tall as their relevance, from the whole sequence down to single bases.

import { largestOf, mapNumber, mapOf, percent, relevanceOf, settingName, short } from "./bundle.js";

const READABLE = 5; // pixels a base needs for its letter; below, bars stand for letters
const NARROWEST = 12; // bases in view
const ROW = 190, AXIS = 26, TRACK = 18; // pixels
const INK = {
  light: { A: "#0a8a3a", C: "#1f4fc4", G: "#b86e00", T: "#c8232c", N: "#667", ink: "#1c2430", soft: "#5b6675", tint: "rgba(30,60,110,.09)" },
  dark: { A: "#4fd07f", C: "#7fa8ff", G: "#ffb340", T: "#ff7b7b", N: "#99a", ink: "#e6ebf1", soft: "#9fabb9", tint: "rgba(160,190,255,.14)" },
};

export class LogoStage {
  static async open(bundle, stage) {
    return new LogoStage(bundle, stage);
  }

  constructor(bundle, stage) {
    this.bundle = bundle;
    this.stage = stage;
    [this.length] = bundle.facts.space;
    this.letters = bundle.facts.letters;
    this.views = [["logo", "Logo"]];
    this.unit = "bases";
    [this.first, this.canvas] = stage.querySelectorAll("canvas");
    this.first.hidden = true;
    this.from = 0;
    this.bases = this.length;
    stage.classList.add("wide");
  }

  /** Shows `bases` bases around a place that stays where it is. */
  zoom(factor, around = this.from + this.bases / 2) {
    const bases = Math.max(Math.min(NARROWEST, this.length), Math.min(this.length, this.bases * factor));
    const share = (around - this.from) / this.bases;
    this.bases = bases;
    this.pan(around - share * bases);
  }

  pan(from) {
    this.from = Math.max(0, Math.min(this.length - this.bases, from));
  }

  draw(state) {
    const dark = state.dark ? INK.dark : INK.light;
    const settings = state.other ? [state.setting, state.other] : [state.setting];
    const tracks = this.bundle.facts.tracks ?? [];
    const ratio = window.devicePixelRatio || 1;
    const width = this.canvas.clientWidth || 800;
    const height = settings.length * ROW + tracks.length * TRACK + AXIS;
    [this.canvas.width, this.canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    this.canvas.style.height = `${height}px`;
    const context = this.canvas.getContext("2d", { willReadFrequently: true });
    context.scale(ratio, ratio);
    context.font = "12px system-ui, sans-serif";
    tracks.forEach((track, row) => this.#drawTrack(context, track, row * TRACK, height - AXIS, width, dark));
    settings.forEach((setting, row) => this.#drawRow(context, state, setting, tracks.length * TRACK + row * ROW, width, dark));
    this.#drawAxis(context, height - AXIS, width, dark);
    const { facts } = this.bundle;
    const said = settings.map((setting) => `${facts.targets[setting.target].name}, ${settingName(facts, setting)}: ${percent(facts.curves.holding[mapNumber(facts, setting)])} of bases hold relevance`);
    const [begin, end] = [Math.floor(this.from), Math.ceil(this.from + this.bases)];
    this.canvas.setAttribute("aria-label", `Logo of bases ${begin} to ${end}. ${said.join(". ")}.${this.#markedWords(begin, end)}`);
  }

  #sites() {
    return (this.bundle.facts.tracks ?? []).flatMap(({ sites }) => sites);
  }

  /** What is marked between two bases, in words. */
  #markedWords(begin, end) {
    const seen = this.#sites().filter((site) => site.end > begin && site.start < end);
    if (!seen.length) return "";
    const named = seen.filter(({ name }) => name).map(({ start, end, name }) => `${name} at ${start} to ${end - 1}`);
    return ` ${seen.length} marked ${seen.length === 1 ? "stretch" : "stretches"}${named.length ? `: ${named.slice(0, 12).join(", ")}${named.length > 12 ? ", …" : ""}` : ""}.`;
  }

  /** The relevance at the top of a row. */
  limit(state, setting) {
    if (setting.path && state.scale !== "shared") return setting.path.largest;
    const shown = state.scale === "shared" ? { ...setting, p: 0 } : setting;
    return this.bundle.facts.largest.maps[mapNumber(this.bundle.facts, shown)];
  }

  probe(state, event) {
    const box = this.canvas.getBoundingClientRect();
    const at = Math.floor(this.from + ((event.clientX - box.left) / box.width) * this.bases);
    if (at < 0 || at >= this.length) return "";
    const value = relevanceOf(mapOf(this.bundle, state.setting)[at], largestOf(this.bundle.facts, state.setting));
    const names = this.#sites().filter(({ start, end, name }) => name && start <= at && at < end).map(({ name }) => name);
    return `Base ${at}, ${this.letters[at]}: relevance ${short(value)}${names.length ? `, in ${[...new Set(names)].join(", ")}` : ""}`;
  }

  #drawRow(context, state, setting, top, width, ink) {
    const { facts } = this.bundle;
    const levels = mapOf(this.bundle, setting);
    const largest = largestOf(facts, setting);
    const limit = this.limit(state, setting) || 1;
    let [high, low] = [0, 0];
    for (const level of levels) [high, low] = [Math.max(high, level), Math.min(low, level)];
    const span = high - low > 0 ? [high, low].map((level) => Math.abs(relevanceOf(level, largest)) / limit) : [1, 0];
    const room = ROW - 26;
    const scale = room / Math.max(state.scale === "shared" ? 1 : 0, span[0] + span[1]) ;
    const zero = top + 22 + scale * span[0];
    const each = width / this.bases;
    context.fillStyle = ink.soft;
    context.textAlign = "left";
    context.textBaseline = "top";
    const caption = `${settingName(facts, setting)} · ${facts.targets[setting.target].name}`;
    context.clearRect(0, top, context.measureText(caption).width + 8, 19); // no shading behind it
    context.fillText(caption, 4, top + 3);
    context.fillRect(0, Math.round(zero), width, 0.5);
    for (let at = Math.floor(this.from); at < Math.min(this.length, this.from + this.bases); at++) {
      if (levels[at] === 0) continue;
      const height = (scale * relevanceOf(levels[at], largest)) / limit;
      const x = (at - this.from) * each;
      const letter = this.letters[at];
      context.fillStyle = ink[letter] ?? ink.N;
      if (each < READABLE) context.fillRect(x, Math.min(zero, zero - height), Math.max(each, 1), Math.abs(height));
      else this.#drawLetter(context, letter, x, zero, each, height);
    }
  }

  #drawLetter(context, letter, x, zero, each, height) {
    context.save();
    context.font = "bold 100px system-ui, Arial, sans-serif";
    context.textAlign = "left";
    context.textBaseline = "alphabetic";
    const box = context.measureText(letter);
    const wide = box.actualBoundingBoxRight + box.actualBoundingBoxLeft;
    const tall = box.actualBoundingBoxAscent + box.actualBoundingBoxDescent;
    context.translate(x + 0.04 * each, zero);
    context.scale((0.92 * each) / wide, height / tall); // negative: upside down
    context.fillText(letter, box.actualBoundingBoxLeft, -box.actualBoundingBoxDescent);
    context.restore();
  }

  #drawTrack(context, track, top, bottom, width, ink) {
    const each = width / this.bases;
    let written = -Infinity; // where the last name ends
    for (const { start, end, name } of [...track.sites].sort((a, b) => a.start - b.start)) {
      const [x, wide] = [(start - this.from) * each, Math.max(1, (end - start) * each)];
      if (x + wide < 0 || x > width) continue;
      context.fillStyle = ink.tint;
      context.fillRect(x, top, wide, bottom - top);
      context.fillStyle = ink.ink;
      context.fillRect(x, top + TRACK - 4, wide, 2);
      context.textAlign = "center";
      context.textBaseline = "top";
      const half = context.measureText(name).width / 2 + 3;
      const middle = Math.max(half, Math.min(width - half, x + wide / 2)); // a name at the edge stays whole
      if (half * 2 > wide + 60 || middle - half < written) continue;
      context.fillText(name, middle, top);
      written = middle + half;
    }
  }

  #drawAxis(context, top, width, ink) {
    const each = width / this.bases;
    const rough = (70 / width) * this.bases;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max(1, power * [1, 2, 5, 10].find((m) => m * power >= rough));
    context.fillStyle = ink.soft;
    context.textAlign = "center";
    context.textBaseline = "top";
    for (let at = Math.ceil(this.from / step) * step; at < this.from + this.bases; at += step) {
      const x = (at - this.from + 0.5) * each;
      context.fillRect(x, top + 3, 1, 4);
      if (x > 14 && x < width - 14) context.fillText(String(at), x, top + 9);
    }
  }
}

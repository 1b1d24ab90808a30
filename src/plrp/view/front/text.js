// The stage of a text: tokens coloured by their relevance, summed by word, or answers × tokens as a matrix.

import { element, largestOf, mapNumber, mapOf, percent, relevanceOf, settingName, short } from "./bundle.js";

const CELL = 22, NAMES = 130, HEAD = 92; // pixels of the matrix: a cell, the answers on its left, the tokens above it

export class TextStage {
  static async open(bundle, stage) {
    return new TextStage(bundle, stage);
  }

  constructor(bundle, stage) {
    this.bundle = bundle;
    this.stage = stage;
    this.tokens = bundle.facts.tokens;
    this.prompt = bundle.facts.prompt;
    this.unit = "tokens";
    this.views = [["tokens", "Tokens"], ["words", "Words"]];
    if (bundle.facts.targets.length > 1) this.views.push(["matrix", this.prompt === null ? "Answers × tokens" : "Generated × prompt tokens"]);
    [this.first, this.canvas] = stage.querySelectorAll("canvas");
    this.first.hidden = true;
    stage.classList.add("wide", "text");
    this.lines = [0, 1].map((row) => element("div", { class: "tokens", tabindex: 0, role: "group", id: `tokens-${row}` }));
    for (const line of this.lines) {
      line.addEventListener("keydown", (event) => this.#step(event));
      stage.append(line);
    }
  }

  draw(state) {
    const matrix = state.view === "matrix";
    const settings = state.other ? [state.setting, state.other] : [state.setting];
    this.canvas.hidden = !matrix;
    this.lines.forEach((line, row) => (line.hidden = matrix || row >= settings.length));
    if (matrix) return this.#drawMatrix(state);
    settings.forEach((setting, row) => this.#drawLine(this.lines[row], state, setting, row));
  }

  /** The relevance at the ends of the colour scale. */
  limit(state, setting) {
    if (state.view === "words" && state.scale !== "shared") return widest(this.#pieces(state, setting));
    if (setting.path) return setting.path.largest;
    const shown = state.scale === "shared" ? { ...setting, p: 0 } : setting;
    return this.bundle.facts.largest.maps[mapNumber(this.bundle.facts, shown)];
  }

  /** The number of the token or cell under the pointer, in words. */
  probe(state, event) {
    if (state.view !== "matrix" || event.target !== this.canvas) return this.said ?? "";
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - NAMES) / this.cell), row = Math.floor((event.clientY - box.top - HEAD) / CELL);
    const { targets } = this.bundle.facts;
    if (column < 0 || row < 0 || column >= this.tokens.length || row >= targets.length) return "";
    const setting = { ...state.setting, target: row, path: null };
    const value = relevanceOf(mapOf(this.bundle, setting)[column], largestOf(this.bundle.facts, setting));
    return `“${this.tokens[column].text}” for “${targets[row].name}”: relevance ${short(value)}`;
  }

  /** Pieces to draw: text, relevance, whether special, whether the model wrote it. */
  #pieces(state, setting) {
    const levels = mapOf(this.bundle, setting), largest = largestOf(this.bundle.facts, setting);
    const pieces = [];
    this.tokens.forEach((token, at) => {
      const value = relevanceOf(levels[at], largest), written = this.prompt !== null && at >= this.prompt;
      const last = pieces.at(-1);
      const same = state.view === "words" && token.word !== null && last && last.word === token.word;
      if (same) Object.assign(last, { text: last.text + token.text, value: last.value + value, break: token.break });
      else pieces.push({ ...token, value, written });
    });
    return pieces;
  }

  #drawLine(line, state, setting, row) {
    const { facts } = this.bundle;
    const pieces = this.#pieces(state, setting);
    const strongest = widest(pieces), limit = this.limit(state, setting) || 1;
    if (line.childElementCount !== pieces.length || line.dataset.view !== state.view) this.#build(line, pieces, state.view);
    const title = `${settingName(facts, setting)} · ${facts.targets[setting.target].name}`;
    line.setAttribute("aria-label", `${title}: ${percent(facts.curves.holding[mapNumber(facts, setting)])} of tokens hold relevance`);
    line.dataset.title = state.other ? title : "";
    [...line.children].forEach((span, at) => {
      const { value, text } = pieces[at];
      const colour = tokenColour(state.table, value / limit);
      span.style.background = `rgb(${colour})`;
      span.style.color = bright(colour) ? "#000" : "#fff";
      const words = `“${text}”: relevance ${short(value)}, ${percent(strongest ? value / strongest : 0)} of the strongest`;
      span.title = words;
      span.setAttribute("aria-label", words);
    });
  }

  #build(line, pieces, view) {
    line.dataset.view = view;
    line.replaceChildren(...pieces.map((piece) => {
      const kind = `${piece.special ? "special" : ""} ${piece.written ? "written" : ""} ${piece.break ? "ends" : ""}`;
      const span = element("span", { class: kind.trim() || null, tabindex: -1, role: "img" }, piece.text);
      for (const happening of ["pointerenter", "focus"]) span.addEventListener(happening, () => this.#say(span.title));
      return span;
    }));
  }

  #say(words) {
    this.said = words;
    document.getElementById("probe").textContent = words;
  }

  /** Arrow keys go from token to token. */
  #step(event) {
    const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!way) return;
    event.preventDefault();
    const spans = [...event.currentTarget.children];
    const at = spans.indexOf(document.activeElement);
    spans[Math.max(0, Math.min(spans.length - 1, at < 0 ? 0 : at + way))].focus();
  }

  #drawMatrix(state) {
    const { facts } = this.bundle;
    const ratio = window.devicePixelRatio || 1;
    const rows = facts.targets.length, columns = this.tokens.length;
    const room = (this.stage.clientWidth || 700) - NAMES - 4;
    this.cell = Math.max(3, Math.min(44, room / columns));
    const width = NAMES + this.cell * columns + 2, height = HEAD + CELL * rows + 2;
    [this.canvas.width, this.canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    const context = this.canvas.getContext("2d", { willReadFrequently: true });
    context.scale(ratio, ratio);
    context.font = "12px system-ui, sans-serif";
    const ink = getComputedStyle(this.stage).color;
    for (let row = 0; row < rows; row++) {
      const setting = { ...state.setting, target: row, path: null };
      const levels = mapOf(this.bundle, setting), largest = largestOf(facts, setting), limit = this.limit(state, setting) || 1;
      for (let at = 0; at < columns; at++) {
        context.fillStyle = `rgb(${tokenColour(state.table, relevanceOf(levels[at], largest) / limit)})`;
        context.fillRect(NAMES + at * this.cell, HEAD + row * CELL, this.cell - (this.cell > 8 ? 1 : 0), CELL - 1);
      }
      context.fillStyle = ink;
      context.textAlign = "right";
      context.textBaseline = "middle";
      context.fillText(clipped(context, facts.targets[row].name, NAMES - 10), NAMES - 6, HEAD + (row + 0.5) * CELL);
    }
    context.fillStyle = ink;
    context.textAlign = "left";
    const step = Math.ceil(13 / this.cell); // names that fit
    for (let at = 0; at < columns; at += step) {
      context.save();
      context.translate(NAMES + (at + 0.5) * this.cell, HEAD - 6);
      context.rotate(-Math.PI / 3);
      context.fillText(clipped(context, this.tokens[at].text, HEAD), 0, 0);
      context.restore();
    }
    if (this.prompt !== null && this.prompt < columns) context.fillRect(NAMES + this.prompt * this.cell - 1.5, HEAD - 8, 2, CELL * rows + 8);
    this.canvas.setAttribute("aria-label", `${rows} answers × ${columns} tokens, ${settingName(facts, state.setting)}; the tokens view has each number.`);
  }
}

function widest(pieces) {
  return pieces.reduce((most, { value }) => Math.max(most, Math.abs(value)), 0);
}

/** Red, green and blue of a strength from −1 to 1. */
function tokenColour(table, strength) {
  const at = 3 * Math.round(((Math.max(-1, Math.min(1, strength)) + 1) / 2) * 510);
  return [0, 1, 2].map((c) => Math.round(table[at + c]));
}

function bright([red, green, blue]) {
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140;
}

function clipped(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let short = text;
  while (short.length > 1 && context.measureText(`${short}…`).width > room) short = short.slice(0, -1);
  return `${short}…`;
}

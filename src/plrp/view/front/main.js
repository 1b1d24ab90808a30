// The page: what is chosen, and what is drawn for it.

import { element, mapNumber, percent, readBundle, relevanceOf, settingName, short, unitName } from "./bundle.js";
import { colourTable } from "./colours.js";
import { CURVES, drawCurves, placeUnder } from "./curves.js";
import { buildFlow } from "./flow.js";
import { COUNTED, answeredPath, buildStrip, drawLayer, drawLedger, drawStrip, storedPath } from "./inside.js";
import { LogoStage } from "./logo.js";
import { PictureStage } from "./picture.js";
import { Sender } from "./served.js";
import { TextStage } from "./text.js";
import { drawVerdict } from "./verdict.js";

const STAGES = { picture: PictureStage, sequence: LogoStage, text: TextStage };
const SIGNS = {
  picture: "Red speaks for the class, blue against it",
  sequence: "Letters above the line speak for the class, below it against it",
  text: "Red tokens speak for the answer, blue ones against it",
};
const STEP = 260; // milliseconds from one p to the next while playing
const byId = (id) => document.getElementById(id);

/** One radio button of a group, as a native control: arrow keys work by themselves. */
function choice(group, value, content, chosen, choose) {
  const input = element("input", { type: "radio", name: group.id, value, class: "unseen", checked: chosen });
  input.addEventListener("change", () => choose(value));
  group.append(element("label", {}, input, content));
  return input;
}

function option(select, value, text, chosen = false) {
  select.append(element("option", { value, selected: chosen }, text));
}

class View {
  constructor(bundle, stage, last = null, compute = null) {
    this.bundle = bundle;
    this.stage = stage;
    this.compute = compute; // asks a server for what the bundle does not hold
    const { start, p } = bundle.facts;
    this.asked = { target: start.target, method: start.method, p: start.p === null ? 0 : start.p + 1 };
    this.lastP = this.asked.p || Math.ceil(p.length / 3);
    this.darkness = window.matchMedia("(prefers-color-scheme: dark)");
    this.state = {
      setting: { ...this.asked }, other: null, view: stage.views[0][0], blend: 0.9, swipe: 0.5,
      colours: null, scale: "own", grow: true, showMask: true, layer: null, counted: 0,
    };
    if (last) this.#adopt(last);
    this.pending = false;
    this.timer = null;
    this.closing = new AbortController();
    this.resizing = new ResizeObserver(() => this.request());
  }

  /** Takes over the setting of another view, as far as this bundle has it. */
  #adopt(last) {
    const [old, now] = [last.bundle.facts, this.bundle.facts];
    const { target, method, p } = last.state.setting;
    const same = old.title === now.title; // another bundle of one input, or another input of a gallery
    const found = same ? now.targets.findIndex(({ number, name }) => number === old.targets[target].number && name === old.targets[target].name) : this.asked.target;
    const place = p === 0 ? 0 : 1 + now.p.indexOf(old.p[p - 1]);
    if (found < 0 || (p > 0 && place === 0) || method >= now.methods.length) return;
    this.state.setting = { target: found, method, p: place };
    const view = this.stage.views.some(([key]) => key === last.state.view) ? last.state.view : this.state.view;
    Object.assign(this.state, { view, blend: last.state.blend, counted: last.state.counted });
    if (last.state.layer < now.layers.length) this.state.layer = last.state.layer;
  }

  /** Lets go of what outlives its elements. */
  close() {
    this.stop();
    this.closing.abort();
    this.resizing.disconnect();
  }

  build() {
    const { facts } = this.bundle;
    const { state } = this;
    byId("page").hidden = false; // before anything that measures its room
    document.title = `${facts.title} · ${facts.targets[this.asked.target].name} · plrp`;
    byId("title").textContent = facts.title;
    byId("footer").textContent = `plrp ${facts.plrp}. ${SIGNS[facts.kind]}; relevance is stored in 255 levels, zero exactly.`;
    byId("p-help").textContent = "At every layer, the weakest relevance is cut, up to this share of it; 0 is LRP.";
    for (const [key, label] of this.stage.views) {
      choice(byId("views"), key, label, key === state.view, (view) => this.set({ view }));
    }
    byId("views").hidden = this.stage.views.length < 2;
    this.lrp = choice(byId("methods"), "LRP", "LRP", state.setting.p === 0, () => this.choose({ p: 0 }));
    this.methods = facts.methods.map(({ label }, method) =>
      choice(byId("methods"), label, label, state.setting.p > 0 && method === state.setting.method, () =>
        this.choose({ method, p: state.setting.p || this.lastP })));
    this.targets = facts.targets.map((target, number) =>
      choice(byId("targets"), number, this.#targetRow(target), number === state.setting.target, () => this.choose({ target: number })));
    byId("targets").hidden = facts.targets.length < 2;
    this.#buildSlider();
    this.#buildOther();
    this.#buildOptions();
    if (facts.prompt !== undefined && facts.prompt !== null) byId("targets").querySelector("legend").textContent = "Explained token";
    else if (facts.kind === "text") byId("targets").querySelector("legend").textContent = "Explained answer";
    buildStrip(byId("strip"), byId("strip-axis"), this.bundle, (layer) => this.set({ layer }));
    COUNTED.forEach(({ word }, kind) => option(byId("counted"), kind, word(facts), kind === state.counted));
    byId("counted").addEventListener("change", () => this.set({ counted: Number(byId("counted").value) }));
    buildFlow(byId("flow"), byId("flow-graph"), byId("flow-tools"), this.bundle, (layer, channel) => this.follow(layer, channel));
    byId("flow-setting").textContent = `Always for the setting you asked for: ${settingName(facts, this.asked)}, ${facts.targets[this.asked.target].name}.`;
    byId("path-off").addEventListener("click", () => this.choose({}));
    byId("path-back").addEventListener("click", () => this.#back());
    if (facts.verdict) drawVerdict(byId("verdict-words"), byId("verdict-parts"), facts.verdict, facts.verdict.of);
    byId("verdict-ask").addEventListener("click", () => this.ask());
    byId("inside").hidden = facts.layers.length === 0;
    byId("where").hidden = facts.ledger.length === 0;
    if (facts.ledger.length) drawLedger(byId("totals"), byId("totals-key"), byId("ledger"), byId("where-setting"), this.bundle, this.asked);
    this.#listen();
    this.draw();
    this.resizing.observe(byId("stage"));
  }

  #targetRow(target) {
    const bar = element("span", { class: "share" });
    bar.style.width = `${100 * (target.probability ?? 0)}%`;
    const value = target.probability === null || target.probability === undefined ? short(target.score) : percent(target.probability);
    return element("span", { class: "target" }, bar, element("span", { class: "name" }, target.name), element("span", { class: "value" }, value));
  }

  #buildSlider() {
    const slider = byId("p");
    slider.max = this.bundle.facts.p.length;
    slider.addEventListener("input", () => this.choose({ p: Number(slider.value) }));
    const curves = byId("curves");
    const move = (event) => this.choose({ p: placeUnder(curves, event.clientX, this.bundle.facts.p.length + 1) });
    curves.addEventListener("pointerdown", (event) => { curves.setPointerCapture(event.pointerId); move(event); });
    curves.addEventListener("pointermove", (event) => { if (event.buttons) move(event); });
    byId("play").addEventListener("click", () => (this.timer === null ? this.play() : this.stop()));
  }

  #buildOther() {
    const { facts } = this.bundle;
    option(byId("other-method"), "LRP", "LRP", true);
    facts.methods.forEach(({ label }, method) => option(byId("other-method"), method, label));
    facts.p.forEach((p, place) => option(byId("other-p"), place + 1, p, place + 1 === this.lastP));
    facts.targets.forEach(({ name }, number) => option(byId("other-target"), number, name, number === this.asked.target));
    const read = () => {
      const method = byId("other-method").value;
      byId("other-p").disabled = method === "LRP";
      const p = method === "LRP" ? 0 : Number(byId("other-p").value);
      const other = { target: Number(byId("other-target").value), method: method === "LRP" ? 0 : Number(method), p };
      this.set({ other: byId("compare").checked ? other : null });
    };
    for (const id of ["compare", "other-method", "other-p", "other-target"]) byId(id).addEventListener("change", read);
    byId("exchange").addEventListener("click", () => {
      const { setting, other } = this.state;
      byId("other-method").value = setting.p === 0 ? "LRP" : setting.method;
      if (setting.p > 0) byId("other-p").value = setting.p;
      byId("other-target").value = setting.target;
      this.choose(other);
      read();
    });
  }

  #buildOptions() {
    const names = { "red-blue": "Red and blue", "orange-purple": "Orange and purple", "red-blue-dark": "Red and blue on black" };
    option(byId("colours"), "auto", "Red and blue, as the page", true);
    for (const key of Object.keys(this.bundle.facts.colours)) option(byId("colours"), key, names[key] ?? key);
    byId("colours").addEventListener("change", () => this.set({ colours: byId("colours").value }));
    byId("scale").addEventListener("change", () => this.set({ scale: byId("scale").value }));
    byId("grow").addEventListener("change", () => this.set({ grow: byId("grow").checked }));
    byId("show-mask").addEventListener("change", () => this.set({ showMask: byId("show-mask").checked }));
    byId("mask-tool").hidden = !this.bundle.arrays.mask;
    const { kind } = this.bundle.facts;
    byId("colours").closest("label").hidden = kind === "sequence";
    byId("grow").closest("label").hidden = kind !== "picture";
    byId("legend").hidden = kind === "sequence";
    byId("zoom-tool").hidden = kind !== "sequence";
  }

  #listen() {
    byId("blend").value = 100 * this.state.blend;
    byId("blend").addEventListener("input", () => this.set({ blend: byId("blend").value / 100 }));
    byId("swipe").addEventListener("input", () => this.set({ swipe: byId("swipe").value / 100 }));
    const canvas = byId("picture");
    const swipe = (event) => {
      const box = canvas.getBoundingClientRect();
      const share = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
      byId("swipe").value = 100 * share;
      this.set({ swipe: share });
    };
    const swiping = () => this.state.other && this.bundle.facts.kind === "picture";
    canvas.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "mouse") canvas.setPointerCapture(event.pointerId);
      this.grip = { x: event.clientX, from: this.stage.from };
      if (swiping()) swipe(event);
      else if (this.stage.place) this.#channelsAt(this.stage.place(event));
    });
    canvas.addEventListener("pointermove", (event) => {
      byId("probe").textContent = this.stage.probe(this.state, event);
      if (event.buttons && swiping()) swipe(event);
      else if (event.buttons && this.stage.pan) this.#drag(event, canvas);
    });
    byId("stage").addEventListener("pointerleave", () => (byId("probe").textContent = ""));
    if (this.stage.zoom) this.#listenZoom(canvas);
    const { signal } = this.closing;
    this.darkness.addEventListener("change", () => this.request(), { signal });
    window.addEventListener("beforeprint", () => this.draw(), { signal });
  }

  #listenZoom(canvas) {
    const after = () => { this.#zoomed(); this.request(); };
    byId("zoom-in").addEventListener("click", () => { this.stage.zoom(0.5); after(); });
    byId("zoom-out").addEventListener("click", () => { this.stage.zoom(2); after(); });
    byId("zoom-all").addEventListener("click", () => { this.stage.zoom(Infinity); after(); });
    byId("pan").addEventListener("input", () => { this.stage.pan(Number(byId("pan").value)); this.request(); });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      this.stage.zoom(1.0015 ** event.deltaY, this.stage.from + ((event.clientX - box.left) / box.width) * this.stage.bases);
      after();
    }, { passive: false });
    this.#zoomed();
  }

  #zoomed() {
    byId("pan").max = Math.max(0, Math.ceil(this.stage.length - this.stage.bases));
    byId("pan").value = Math.round(this.stage.from);
    byId("pan").disabled = this.stage.bases >= this.stage.length;
  }

  #drag(event, canvas) {
    const box = canvas.getBoundingClientRect();
    this.stage.pan(this.grip.from - ((event.clientX - this.grip.x) / box.width) * this.stage.bases);
    this.#zoomed();
    this.request();
  }

  /** The channels, of those that are followed, through which most relevance reaches a pixel. */
  #channelsAt(place) {
    const { facts } = this.bundle, panel = byId("pixel");
    const rows = place === null ? [] : facts.layers.flatMap((layer, number) => facts.channels[number]
      .filter((one) => one.through !== undefined)
      .map((one) => ({ ...one, layer: layer.name, path: storedPath(this.bundle, layer.name, one.channel) })))
      .map((one) => ({ ...one, value: relevanceOf(one.path.levels[place.at], one.path.largest) }))
      .filter(({ value }) => value !== 0).sort((a, b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, 8);
    panel.hidden = place === null || !facts.channels.some((ones) => ones.some((one) => one.through !== undefined));
    if (panel.hidden) return;
    const said = rows.length ? `Channels through which most relevance reaches row ${place.y}, column ${place.x}, for ${settingName(facts, this.asked)}:` : `No relevance reaches row ${place.y}, column ${place.x} through the channels of this page.`;
    panel.replaceChildren(element("p", { class: "soft" }, said), element("ul", { class: "channels" }, ...rows.map((one) => {
      const button = element("button", { type: "button" }, `${unitName(one.channel)} of ${one.layer}`, element("span", { class: "soft" }, short(one.value)));
      button.addEventListener("click", () => this.follow(one.layer, one.channel));
      const patches = (one.exemplars ?? []).map(({ picture, caption }) => element("img", { src: picture, alt: caption, title: caption }));
      return element("li", {}, button, patches.length ? element("div", { class: "exemplars" }, ...patches) : "");
    })));
  }

  /** Changes the present setting. */
  choose(change) {
    Object.assign(this.state.setting, { path: null }, change);
    if (this.state.setting.p > 0) this.lastP = this.state.setting.p;
    this.request();
  }

  /** Asks the server what the network says of the map that is shown. */
  async ask() {
    const { facts } = this.bundle;
    const { target, method, p } = this.state.setting;
    const name = `${settingName(facts, { target, method, p })}, ${facts.targets[target].name}`;
    byId("verdict-words").textContent = `Asking about ${name}: 128 forward passes at most …`;
    byId("verdict-ask").disabled = true;
    const wanted = { number: facts.targets[target].number, method: facts.methods[method].key, p: p === 0 ? null : facts.p[p - 1] };
    const verdict = await this.compute("test", wanted);
    byId("verdict-ask").disabled = false;
    byId("verdict-words").textContent = "";
    if (verdict && !this.closing.signal.aborted) drawVerdict(byId("verdict-words"), byId("verdict-parts"), verdict, name);
  }

  /** Shows what reaches the input through one channel alone; another click on it shows all again. */
  async follow(layer, channel) {
    const { path } = this.state.setting;
    if (path && path.layer === layer && path.channel === channel) return this.choose({});
    const number = this.bundle.facts.layers.findIndex(({ name }) => name === layer);
    if (number >= 0) this.state.layer = number;
    const stored = this.#atAsked() || !this.compute ? storedPath(this.bundle, layer, channel) : null;
    const origin = byId("flow-graph").contains(document.activeElement) ? document.activeElement : null; // else the layer's list
    if (stored) return this.#showPath({ ...this.asked, path: stored }, origin);
    if (!this.compute || number < 0) return this.request();
    const { facts } = this.bundle, { setting } = this.state;
    const wanted = { layer, channel, number: facts.targets[setting.target].number, method: facts.methods[setting.method].key, p: setting.p === 0 ? null : facts.p[setting.p - 1] };
    const answer = await this.compute("channel", wanted);
    if (answer && !this.closing.signal.aborted) this.#showPath({ path: answeredPath(answer) }, origin);
  }

  /** Draws a path, and scrolls to where it is drawn; a button there leads back. */
  #showPath(change, origin) {
    this.origin = origin;
    this.choose(change);
    requestAnimationFrame(() => {
      const { top, bottom } = byId("stage").getBoundingClientRect();
      if (bottom < 200 || top > window.innerHeight - 200) byId("look").scrollIntoView();
    });
  }

  #back() {
    const { channel } = this.state.setting.path;
    const row = byId("layer").querySelector(`[data-channel="${channel}"]`) ?? byId("layer").querySelector(".any input");
    (this.origin ?? row)?.focus();
  }

  /** Patches of what a layer's channels stand for, which come after the bundle. */
  addExemplars(layer, exemplars) {
    for (const row of this.bundle.facts.channels[layer]) if (exemplars[row.channel]) row.exemplars = exemplars[row.channel];
    this.request();
  }

  #atAsked() {
    const { setting } = this.state;
    return ["target", "method", "p"].every((key) => setting[key] === this.asked[key]);
  }

  set(change) {
    Object.assign(this.state, change);
    this.request();
  }

  /** Draws before the next frame, once, however often it is asked to. */
  request() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      if (!this.closing.signal.aborted) this.draw();
    });
  }

  play() {
    if (this.state.setting.p === this.bundle.facts.p.length) this.choose({ p: 0 });
    byId("play").setAttribute("aria-pressed", "true");
    byId("play").textContent = "Stop";
    this.timer = setInterval(() => {
      if (this.state.setting.p >= this.bundle.facts.p.length) this.stop();
      else this.choose({ p: this.state.setting.p + 1 });
    }, STEP);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    byId("play").setAttribute("aria-pressed", "false");
    byId("play").textContent = "Play";
  }

  draw() {
    const { state, bundle } = this;
    const { facts } = bundle;
    const { setting } = state;
    state.dark = this.darkness.matches && !window.matchMedia("print").matches;
    const table = (dark) => {
      const usual = dark ? "red-blue-dark" : "red-blue";
      return colourTable(facts.colours[state.colours && state.colours !== "auto" ? state.colours : usual]);
    };
    state.table = table(state.dark && state.view !== "overlay"); // the faded photograph is light, whatever the page is
    this.stage.draw(state);
    this.#drawTools();
    const head = facts.head ? `before the final ${facts.head}` : "";
    byId("subtitle").textContent = [facts.model, facts.composite, head, facts.against?.[setting.target]].filter(Boolean).join(" · ");
    drawCurves(byId("curves"), bundle, setting, facts.start.p === null ? null : this.asked.p);
    drawStrip(byId("strip"), bundle, setting, state.counted);
    if (state.layer !== null) {
      const chosen = byId("strip").querySelectorAll("input")[state.layer];
      if (chosen && !chosen.checked) chosen.checked = true;
      drawLayer(byId("layer"), bundle, state, this.asked, table(state.dark), (layer, channel) => this.follow(layer, channel), Boolean(this.compute));
    }
    byId("verdict").hidden = !facts.verdict && !this.compute;
    byId("verdict-ask").hidden = !this.compute;
    byId("path").hidden = !setting.path;
    if (setting.path) byId("path-text").textContent = `Only what flows through ${unitName(setting.path.channel)} of ${setting.path.layer} (${settingName(facts, { ...setting, path: null })}).`;
    this.#drawNumbers();
  }

  #drawTools() {
    const { state, bundle } = this;
    const { setting } = state;
    byId("p").value = setting.p;
    byId("p").setAttribute("aria-valuetext", settingName(bundle.facts, setting));
    byId("p-value").textContent = setting.p === 0 ? "0" : bundle.facts.p[setting.p - 1];
    this.lrp.checked = setting.p === 0;
    this.methods.forEach((input, method) => (input.checked = setting.p > 0 && method === setting.method));
    this.targets.forEach((input, number) => (input.checked = number === setting.target));
    byId("other").hidden = !state.other;
    byId("swipe-tool").hidden = !state.other || bundle.facts.kind !== "picture" || state.view === "photograph";
    byId("blend-tool").hidden = state.view !== "overlay";
    if (bundle.facts.kind === "sequence") return;
    const limit = this.stage.limit(state, setting);
    byId("legend").classList.toggle("idle", state.view === "photograph" || state.view === "outline");
    const rows = state.view === "matrix"; // each with a scale of its own
    const right = state.other ? this.stage.limit(state, state.other) : limit;
    const sides = bundle.facts.kind === "picture" && right !== limit; // of the swipe, each with a scale of its own
    byId("legend-low").textContent = rows || sides ? "against" : `against ${short(-limit)}`;
    byId("legend-high").textContent = rows ? "for, in each row" : sides ? `for: left ±${short(limit)}, right ±${short(right)}` : `${short(limit)} for`;
    const bar = byId("legend-bar");
    [bar.width, bar.height] = [511, 1];
    const pixels = new Uint8ClampedArray(511 * 4);
    for (let i = 0; i < 511; i++) pixels.set([...state.table.subarray(3 * i, 3 * i + 3), 255], 4 * i);
    bar.getContext("2d").putImageData(new ImageData(pixels, 511, 1), 0, 0);
  }

  #drawNumbers() {
    const { facts } = this.bundle;
    const { setting } = this.state;
    const number = mapNumber(facts, setting);
    const rows = CURVES.map((curve) => ({ ...curve, value: curve.of(facts.curves, number) })).filter(({ value }) => value !== null);
    byId("numbers").replaceChildren(...rows.map(({ key, label, note, value }) =>
      element("li", { class: key, title: note ?? null }, element("span", { class: `swatch ${key}` }), element("span", { class: "label" }, label), element("b", {}, percent(value)))));
    const remark = facts.remarks[number]; // what broke in the arithmetic, or that the score is 0
    byId("remark").hidden = remark === null;
    byId("remark").textContent = remark ?? "";
    byId("lattice").hidden = facts.kind !== "picture" || !facts.skipping || setting.p === 0;
    if (facts.skipping) byId("lattice").textContent = `If you see a regular grid of dots: it comes from the network, not from the photograph. ${facts.skipping} of its layers read only every second pixel or fewer, and no relevance reaches those between. Pruning makes the grid stronger than it is; compare with LRP.`;
    const kept = facts.curves.kept[number] === null ? "" : `, ${percent(facts.curves.kept[number])} of the score reaches them`;
    const words = `${settingName(facts, setting)}, ${facts.targets[setting.target].name}: ${percent(facts.curves.holding[number])} of ${this.stage.unit} hold relevance${kept}.`;
    byId("curves").setAttribute("aria-label", `Over p: ${rows.map(({ label }) => label).join(", ")}. ${words}`);
    clearTimeout(this.saying);
    this.saying = setTimeout(() => (byId("status").textContent = words), 400);
  }
}

/** Shows a bundle; what a visitor had chosen stays chosen where the new bundle has it. */
async function show(facts, arrays, { blank = null, last = null, compute = null } = {}) {
  const bundle = await readBundle(facts, arrays);
  last?.close();
  if (blank !== null) byId("page").innerHTML = blank;
  const stage = await STAGES[facts.kind].open(bundle, byId("stage"));
  const view = new View(bundle, stage, last && last.bundle.facts.kind === facts.kind ? last : null, compute);
  view.build();
  listenToHost(view);
  return view;
}

/** The notebook around this page: once it says that it is there, the view may ask it; answers come by number. */
function listenToHost(view) {
  const { host, session } = view.bundle.facts;
  if (!host || window.parent === window) return;
  const say = (content) => window.parent.postMessage({ ...content, session: host }, "*");
  const waiting = new Map();
  const compute = (what, wanted) => new Promise((resolve) => {
    const id = Math.random().toString(36).slice(2);
    waiting.set(id, resolve);
    say({ plrp: "ask", id, what, wanted: { session, ...wanted } });
  });
  window.addEventListener("message", ({ source, data }) => {
    if (source !== window.parent || data?.session !== host) return;
    if (data.plrp === "here" && !view.compute) {
      view.compute = compute;
      view.request();
    }
    if (data.plrp !== "answer") return;
    byId("problem").hidden = !data.problem;
    byId("problem").textContent = data.problem ?? "";
    waiting.get(data.id)?.(data.answer ?? null);
    waiting.delete(data.id);
  }, { signal: view.closing.signal });
  say({ plrp: "hello" });
}

/** Several samples in one page: a row of them, of which one is shown. */
async function openGallery(samples, packed) {
  const blank = byId("page").innerHTML;
  const gallery = byId("gallery");
  let view = null, latest = 0;
  const open = async (number) => {
    const turn = ++latest;
    const shown = await show(samples[number], packed[number], { blank, last: view });
    if (turn === latest) view = shown;
  };
  samples.forEach((facts, number) => {
    const content = element("span", { class: "sample" });
    if (facts.picture) content.append(element("img", { src: facts.picture, alt: "" }));
    content.append(element("span", { class: "name" }, facts.title), element("span", { class: "soft" }, facts.targets[facts.start.target].name));
    choice(gallery, number, content, number === 0, open);
  });
  gallery.hidden = false;
  await open(0);
}

/** In a frame of a report or notebook: a button says that the page goes on below, until someone has scrolled. */
function tellOfMore() {
  const more = byId("more"), root = document.documentElement;
  const follow = () => (more.hidden = window === window.parent || root.scrollTop > 40 || root.scrollHeight < window.innerHeight + 80);
  more.addEventListener("click", () => window.scrollBy({ top: 0.8 * window.innerHeight, behavior: "smooth" }));
  for (const change of ["scroll", "resize"]) window.addEventListener(change, follow);
  new ResizeObserver(follow).observe(document.body);
}

async function open() {
  const facts = JSON.parse(byId("facts").textContent);
  const arrays = byId("arrays").textContent;
  if (facts.gallery) return openGallery(facts.gallery, arrays.trim().split("\n"));
  if (!facts.served) return show(facts, arrays);
  byId("title").textContent = document.title = "plrp view";
  byId("subtitle").textContent = facts.model;
  byId("upload").hidden = false;
  const blank = byId("page").innerHTML; // our own markup, before anything was written into it
  let view = null;
  const names = { file: "file", drop: "drop", dropText: "drop-text", paste: "paste", pasted: "pasted", pasteText: "paste-text", wanted: "wanted", wantedText: "wanted-text", bar: "bar", text: "progress-text", problem: "problem" };
  const elements = Object.fromEntries(Object.entries(names).map(([name, id]) => [name, byId(id)]));
  const compute = (what, wanted) => sender.ask(what, wanted);
  const sender = new Sender(elements, facts.takes, async (found, packed) => (view = await show(found, packed, { blank, last: view, compute })),
    (layer, exemplars) => view.addExemplars(layer, exemplars));
}

tellOfMore();
open().catch((error) => {
  byId("problem").textContent = `This page cannot be shown here (${error.message}). It needs a browser of 2023 or later.`;
  byId("problem").hidden = false;
  throw error;
});

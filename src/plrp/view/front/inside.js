// The layers: how they thin as p moves, their strongest channels, and the ledger.

import { bytesOf, element, mapNumber, percent, settingName, short, unitName } from "./bundle.js";
import { heatPixels } from "./colours.js";
import { asCanvas } from "./drawing.js";

const DECADES = 4; // the strip shows shares from 100% down to 0.01%

/** The height of a bar: 1 for 100%, 0 for 0.01% and less. */
function barHeight(share) {
  return share <= 0 ? 0 : Math.max(0.02, Math.min(1, 1 + Math.log10(share) / DECADES));
}

function left(bundle, setting, layer, kind) {
  const { data, shape } = bundle.arrays.left;
  return data[(mapNumber(bundle.facts, setting) * shape[1] + layer) * shape[2] + kind];
}

/** What the strip counts: how many a layer has, and the word for them. */
export const COUNTED = [
  { key: "neurons", word: () => "neurons" },
  { key: "channels", word: () => "channels" },
  { key: "places", word: (facts) => ({ text: "tokens", sequence: "positions", picture: "positions" })[facts.kind] },
];

/** One radio button per layer; `choose` is called with the layer's number. */
export function buildStrip(strip, axis, bundle, choose) {
  for (let decade = 0; decade <= DECADES; decade++) {
    const mark = element("span", {}, `${100 / 10 ** decade}%`);
    mark.style.top = `${(100 * decade) / DECADES}%`;
    axis.append(mark);
  }
  bundle.facts.layers.forEach((layer, number) => {
    const input = element("input", { type: "radio", name: "layer", value: number, class: "unseen" });
    input.addEventListener("change", () => choose(number));
    const bars = element("span", { class: "bars" }, element("span", { class: "before" }), element("span", { class: "now" }));
    strip.append(element("label", { title: layer.name }, input, bars));
  });
}

/** Sets every bar to a setting. */
export function drawStrip(strip, bundle, setting, kind) {
  const labels = strip.querySelectorAll("label");
  const { key, word } = COUNTED[kind];
  bundle.facts.layers.forEach((layer, number) => {
    const [input, bars] = labels[number].children;
    const share = left(bundle, setting, number, kind) / layer[key];
    const plain = left(bundle, { ...setting, p: 0 }, number, kind) / layer[key];
    bars.children[0].style.height = `${100 * barHeight(plain)}%`;
    bars.children[1].style.height = `${100 * barHeight(share)}%`;
    input.setAttribute("aria-label", `${layer.name}: ${percent(share)} of ${word(bundle.facts)} hold relevance`);
  });
}

/** What a layer holds under a setting, and its strongest channels at the setting the file was made for. */
export function drawLayer(panel, bundle, state, asked, table, follow, served) {
  const { setting, layer: number } = state;
  const { facts, arrays } = bundle;
  const layer = facts.layers[number];
  const neurons = left(bundle, setting, number, 0), channels = left(bundle, setting, number, 1);
  const many = (count) => count.toLocaleString("en");
  const heading = element("h3", {}, layer.name, element("span", { class: "soft" }, ` ${layer.op}, reads ${layer.shape.join("×")}`));
  const counts = element(
    "p", {},
    `${settingName(facts, { ...setting, path: null })}: ${many(neurons)} of ${many(layer.neurons)} neurons (${percent(neurons / layer.neurons)}) `,
    `in ${many(channels)} of ${many(layer.channels)} channels hold relevance.`,
    layer.first ? " The input of a first layer is not pruned." : "",
  );
  const shown = facts.channels[number];
  const list = element("ul", { class: "channels" });
  const followed = setting.path?.layer === layer.name ? setting.path.channel : null;
  for (const one of shown) {
    const button = element("button", { type: "button", "aria-pressed": String(one.channel === followed), "data-channel": one.channel });
    if (one.shape) button.append(channelMap(one, arrays.channels.data, table));
    button.append(element("span", {}, unitName(one.channel)), element("span", { class: "soft" }, `${percent(one.share)} of relevance`));
    if (one.through === undefined && !served) button.disabled = true;
    button.addEventListener("click", () => follow(layer.name, one.channel));
    const item = element("li", {}, button);
    if (one.exemplars) item.append(element("div", { class: "exemplars" }, ...one.exemplars.map(({ picture, caption }) => element("img", { src: picture, alt: caption, title: caption }))));
    list.append(item);
  }
  const follows = served || shown.some((one) => one.through !== undefined);
  const at = element("p", { class: "soft" }, `The strongest channels under ${settingName(facts, asked)}, ${facts.targets[asked.target].name}; shares count relevance for and against alike.${follows ? " Choose one to see what reaches the input through it alone." : ""}${shown.some((one) => typeof one.channel !== "number") ? " Beside them subspaces of the channels, with their share of the relevance that reaches the input." : ""}${shown.some((one) => one.exemplars) ? " Below each: patches of the photographs, of those searched, that gave it most relevance." : ""}`);
  const any = served ? [anyChannel(layer, follow)] : [];
  const chosen = panel.contains(document.activeElement) ? document.activeElement.dataset.channel : undefined;
  panel.replaceChildren(heading, counts, ...(shown.length ? [at, list] : []), ...any);
  if (chosen !== undefined) panel.querySelector(`[data-channel="${chosen}"]`)?.focus();
}

/** A field for any channel, which a server computes. */
function anyChannel(layer, follow) {
  const input = element("input", { type: "number", min: 0, max: layer.channels - 1, step: 1, "aria-label": `Channel, 0 to ${layer.channels - 1}` });
  const button = element("button", { type: "button" }, "Follow");
  const send = () => { if (input.value !== "") follow(layer.name, Number(input.value)); };
  button.addEventListener("click", send);
  input.addEventListener("keydown", (event) => { if (event.key === "Enter") send(); }); // a form would not do in a sandbox
  return element("div", { class: "any" }, element("label", {}, "Another channel ", input), button);
}

/** The path through one channel: from the file, or as a server answered. */
export function storedPath(bundle, layer, channel) {
  const { facts, arrays } = bundle;
  const number = facts.layers.findIndex(({ name }) => name === layer);
  const row = facts.channels[number]?.find((one) => one.channel === channel);
  if (row?.through === undefined) return null;
  const { data, shape } = arrays.through;
  const size = shape.slice(1).reduce((a, b) => a * b, 1);
  const levels = data.subarray(row.through * size, (row.through + 1) * size);
  return { layer, channel, levels, largest: facts.largest.through[row.through], limit: row.limit, holding: holding(levels) };
}

export function answeredPath(answer) {
  const levels = new Int8Array(bytesOf(answer.levels).buffer);
  return { ...answer, levels, holding: holding(levels) };
}

function holding(levels) {
  let count = 0;
  for (const level of levels) if (level !== 0) count++;
  return count / levels.length;
}

function channelMap(one, data, table) {
  const [height, width] = one.shape.length === 2 ? one.shape : [1, one.shape[0]];
  const levels = data.subarray(one.offset, one.offset + height * width);
  const canvas = asCanvas(heatPixels(levels, one.largest, 0.6 * one.largest, table), width, height);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Relevance of channel ${one.channel}, sum ${short(one.relevance)}`);
  return canvas;
}

const BOOKS = [
  { key: "input", label: "reached the input" },
  { key: "absorbed_bias", label: "to biases" },
  { key: "absorbed_constant", label: "to constants" },
  { key: "absorbed_epsilon", label: "to ε" },
  { key: "softmax", label: "taken by softmax" },
  { key: "dropped", label: "dropped" },
  { key: "withheld", label: "withheld by a condition" },
  { key: "created", label: "created (negative share)" },
];

const parameters = (row) => (row.absorbed_bias ?? 0) + (row.absorbed_constant ?? 0);
const lost = (row) => (row.absorbed_epsilon ?? 0) + (row.softmax ?? 0) + (row.dropped ?? 0) + (row.withheld ?? 0) - (row.created ?? 0);

/** The totals as one bar and its key, and a table layer by layer. */
export function drawLedger(bar, key, table, caption, bundle, asked) {
  const { facts } = bundle;
  const score = facts.scores[asked.target];
  const sum = (name) => facts.ledger.reduce((total, row) => total + (row[name] ?? 0), 0);
  const totals = { input: (facts.curves.kept[mapNumber(facts, asked)] ?? 0) * score };
  for (const { key: name } of BOOKS.slice(1)) totals[name] = sum(name) * (name === "created" ? -1 : 1);
  const present = BOOKS.filter(({ key: name }) => Math.abs(totals[name]) > 1e-4 * Math.abs(score) || name === "input");
  const whole = present.reduce((total, { key: name }) => total + Math.abs(totals[name]), 0) || 1;
  caption.textContent = `Always for the setting you asked for: ${settingName(facts, asked)}, ${facts.targets[asked.target].name}: score ${short(score)}`;
  bar.setAttribute("aria-label", present.map(({ key: name, label }) => `${label} ${percent(totals[name] / score)}`).join(", "));
  for (const { key: name, label } of present) {
    const part = element("span", { class: `book ${name}${totals[name] / score < 0 ? " negative" : ""}` });
    part.style.flexGrow = Math.abs(totals[name]) / whole;
    bar.append(part);
    key.append(element("li", {}, element("span", { class: `swatch ${name}` }), `${label}: ${percent(totals[name] / score)}`));
  }
  const rows = facts.ledger.filter((row) => row.pruned !== undefined || BOOKS.slice(1).some((b) => Math.abs(row[b.key] ?? 0) > 1e-9 * Math.abs(score)));
  const head = ["Layer", "Operation", "Rule", "Pruned", "To biases, constants", "To ε, softmax, dropped, withheld", "Both as bars; pale: negative"];
  const largest = Math.max(1e-12, ...rows.map((row) => Math.abs(parameters(row)) + Math.abs(lost(row))));
  table.append(element("thead", {}, element("tr", {}, ...head.map((text) => element("th", { scope: "col", colspan: text === "Pruned" ? 2 : null }, text)))));
  const body = element("tbody", {});
  const cut = Math.max(1e-12, ...rows.map((row) => row.pruned ?? 0));
  for (const row of rows) {
    const bars = element("td", { class: "bars" });
    for (const [name, value] of [["absorbed_bias", parameters(row)], ["absorbed_epsilon", lost(row)]]) {
      const part = element("span", { class: `book ${name}${value < 0 ? " negative" : ""}` });
      part.style.width = `${(100 * Math.abs(value)) / largest}%`;
      bars.append(part);
    }
    const pruned = element("td", { class: "bars narrow" }, element("span", { class: "book pruned" }));
    pruned.firstChild.style.width = `${(100 * (row.pruned ?? 0)) / cut}%`;
    const cell = (text) => element("td", {}, text);
    const booked = row.pruned === undefined ? [parameters(row), lost(row)].map(short) : ["", ""];
    body.append(element("tr", {}, element("th", { scope: "row" }, row.layer), cell(row.op), cell(row.rule.replace("()", "")),
      cell(row.pruned === undefined ? "" : percent(row.pruned)), pruned, ...booked.map(cell), bars));
  }
  table.append(body);
}

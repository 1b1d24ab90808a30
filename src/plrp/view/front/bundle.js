// The bundle: facts from JSON, arrays from compressed bytes. plrp/view/bundle.py writes it.

const KINDS = { int8: Int8Array, uint8: Uint8Array, uint32: Uint32Array };
export const LEVELS = 127;

/** Facts with their arrays: {name: {data, shape}}. */
export async function readBundle(facts, arraysText) {
  const packed = bytesOf(arraysText.trim());
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const content = await new Response(stream).arrayBuffer();
  const arrays = {};
  for (const [name, place] of Object.entries(facts.arrays)) {
    const size = place.shape.reduce((a, b) => a * b, 1);
    arrays[name] = { data: new KINDS[place.type](content, place.offset, size), shape: place.shape };
  }
  return { facts, arrays };
}

/** Base64 as bytes. */
export function bytesOf(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

/** The number of a setting's map. Its p counts from 1; 0 is LRP. */
export function mapNumber(facts, setting) {
  const each = 1 + facts.methods.length * facts.p.length;
  return setting.target * each + (setting.p === 0 ? 0 : 1 + setting.method * facts.p.length + setting.p - 1);
}

/** The quantised map of a setting; `setting.path` is one that flows through a single channel. */
export function mapOf(bundle, setting) {
  if (setting.path) return setting.path.levels;
  const { data, shape } = bundle.arrays.maps;
  const size = shape.slice(1).reduce((a, b) => a * b, 1);
  const number = mapNumber(bundle.facts, setting);
  return data.subarray(number * size, (number + 1) * size);
}

/** The largest relevance of a setting's map, which its highest level stands for. */
export function largestOf(facts, setting) {
  return setting.path ? setting.path.largest : facts.largest.maps[mapNumber(facts, setting)];
}

/** The relevance that a level stands for. */
export function relevanceOf(level, largest) {
  return Math.sign(level) * (level / LEVELS) ** 2 * largest;
}

/** A channel has a number, a subspace a name. */
export const unitName = (channel) => (typeof channel === "number" ? `channel ${channel}` : channel);

/** "PLRP-λ, p = 0.15", or "LRP". */
export function settingName(facts, setting) {
  const name = setting.p === 0 ? "LRP" : `${facts.methods[setting.method].label}, p = ${facts.p[setting.p - 1]}`;
  return setting.path ? `${name}, through ${unitName(setting.path.channel)} of ${setting.path.layer}` : name;
}

/** A share as a person would write it: 41%, 4.1%, 0.041%. */
export function percent(share) {
  if (share === null || share === undefined || !isFinite(share)) return "–";
  const value = Math.abs(share) * 100;
  const digits = value >= 9.95 || value === 0 ? 0 : value >= 0.995 ? 1 : value >= 0.0995 ? 2 : 3;
  return `${share < 0 ? "−" : ""}${value.toFixed(digits)}%`;
}

/** A number with three digits that count. */
export function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  const text = size !== 0 && (size < 1e-3 || size >= 1e5) ? size.toExponential(1) : String(Number(size.toPrecision(3)));
  return (value < 0 ? "−" : "") + text;
}

/** A new element with attributes and children; strings become text, never markup. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

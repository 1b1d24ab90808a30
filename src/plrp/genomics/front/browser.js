"use strict";
// The data of the page: gzip of a length, JSON of that length, then letters and values; see plrp.genomics.browser.

async function unpack() {
  const text = document.getElementById("data").textContent.trim();
  const packed = Uint8Array.from(atob(text), c => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const size = new DataView(bytes.buffer).getUint32(0, true);
  const facts = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + size)));
  let place = 4 + size;
  const take = count => bytes.subarray(place, place += count);
  const bases = facts.segments.reduce((sum, s) => sum + s[2], 0);
  facts.letters = take(bases);
  for (const track of facts.tracks) {
    const scales = take(4 * facts.segments.length);
    track.scales = new Float32Array(scales.slice().buffer);
    track.values = new Int8Array(take(bases).slice().buffer);
  }
  let begin = 0;
  facts.segments = facts.segments.map(([contig, start, length, name, strand], row) => {
    const segment = { row, contig: facts.contigs[contig][0], start, length, name, strand, begin, features: 0 };
    begin += length;
    return segment;
  });
  facts.byContig = new Map();
  for (const segment of facts.segments) {
    if (!facts.byContig.has(segment.contig)) facts.byContig.set(segment.contig, []);
    facts.byContig.get(segment.contig).push(segment);
  }
  // The list shows every interval, also several in one segment; sequences of FASTA are segments themselves.
  facts.rows = facts.entries.length ? facts.entries.map(([contig, start, length, name], row) => {
    const chr = facts.contigs[contig][0];
    const segments = facts.byContig.get(chr);  // disjoint, in order
    let low = 0, high = segments.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (segments[middle].start <= start) low = middle; else high = middle - 1;
    }
    const segment = segments[low];
    return { row, contig: chr, start, length, name, begin: segment.begin + start - segment.start, segment, features: 0 };
  }) : facts.segments.map(s => Object.assign(s, { segment: s }));
  return facts;
}

const overlapping = (facts, chr, start, end) =>
  (facts.byContig.get(chr) || []).filter(s => s.start < end && s.start + s.length > start);

/** The letters as FASTA; igv.js reads `@len=` as a stretch of a longer chromosome. */
function fasta(facts) {
  const decoder = new TextDecoder();
  const lengths = new Map(facts.contigs);
  return facts.segments.map(s => {
    const title = facts.genome ? `${s.contig}:${s.start + 1}-${s.start + s.length} @len=${lengths.get(s.contig)}` : s.contig;
    return `>${title}\n${decoder.decode(facts.letters.subarray(s.begin, s.begin + s.length))}\n`;
  }).join("");
}

/** One feature per base with relevance: igv.js draws its letter as tall as its value. */
function relevanceReader(facts, track) {
  return {
    readFeatures: async (chr, start, end) => {
      const features = [];
      for (const s of overlapping(facts, chr, start, end)) {
        const scale = track.scales[s.row] / 127;
        const first = Math.max(0, Math.floor(start) - s.start), last = Math.min(s.length, Math.ceil(end) - s.start);
        for (let k = first; k < last; k++) {
          const value = track.values[s.begin + k] * scale;
          if (value !== 0) features.push({ chr, start: s.start + k, end: s.start + k + 1, value });
        }
      }
      return features;
    },
  };
}

function featureReader(facts, track) {
  const byContig = new Map();
  for (const [contig, start, end, name, score, strand, sign] of track.items) {
    const chr = facts.contigs[contig][0];
    if (!byContig.has(chr)) byContig.set(chr, []);
    byContig.get(chr).push({ chr, start, end, name, score, strand: strand === "." ? undefined : strand, color: track.colors[sign] || track.colors["."] });
  }
  for (const list of byContig.values()) list.sort((a, b) => a.start - b.start);
  track.byContig = byContig;
  return {
    readFeatures: async (chr, start, end) =>
      (byContig.get(chr) || []).filter(f => f.start < end && f.end > start).map(f => ({ ...f })),
  };
}

// igv.js reads names of tracks, and rows of the popups of places, as HTML.
const escaped = text => String(text).replace(/[&<>"']/g, letter => `&#${letter.charCodeAt(0)};`);

function tracksOf(facts) {
  const relevance = facts.tracks.map((track, k) => ({
    type: "wig", format: "wig", name: escaped(track.name), graphType: "dynseq", autoscale: true, height: 90, order: k + 1,
    color: "rgb(60,90,140)", altColor: "rgb(180,60,50)", reader: relevanceReader(facts, track), searchable: false,
    visibilityWindow: 100000,
  }));
  const features = facts.features.map((track, k) => ({
    type: "annotation", format: "bed", name: escaped(track.name), displayMode: "EXPANDED", height: 74, margin: 30, order: 100 + k,
    reader: featureReader(facts, track), searchable: false, visibilityWindow: -1,
  }));
  return [...relevance, ...features];
}

const SHOWN = 400;  // rows of the list at a time

function strongest(facts, entry) {
  const track = facts.tracks[0];
  if (entry.strength === undefined) {
    let most = 0;
    for (let k = 0; track && k < entry.length; k++) most = Math.max(most, Math.abs(track.values[entry.begin + k]));
    entry.strength = track ? most * track.scales[entry.segment.row] : 0;
  }
  return entry.strength;
}

async function start() {
  const facts = await unpack();
  const element = id => document.getElementById(id);
  element("notes").textContent = facts.notes.join(" ");
  const tracks = tracksOf(facts);
  for (const track of facts.features.slice(0, 1))
    for (const segment of facts.rows)
      segment.features = (track.byContig.get(segment.contig) || [])
        .filter(f => f.start < segment.start + segment.length && f.end > segment.start).length;
  const locus = s => `${s.contig}:${s.start + 1}-${s.start + s.length}`;
  const first = facts.rows[0];
  const browser = await igv.createBrowser(element("igv"), {
    loadDefaultGenomes: false, queryParametersSupported: false, showChromosomeWidget: facts.genome,
    showSampleNames: false, showTrackLabels: true, minimumBases: 10,
    reference: {
      id: facts.genome ? "intervals" : "sequences", wholeGenomeView: false,
      fastaURL: new File([fasta(facts)], "sequences.fa"),
    },
    locus: locus(first), tracks,
  });
  browser.on("trackclick", (track, rows) => {
    for (const row of rows || []) if (row.name) row.value = escaped(row.value);
  });
  const style = document.createElement("style");  // labels lie on the tracks and must not hide them
  style.textContent = ".igv-track-label { opacity: 0.7; border: 0; font-size: 11px; padding: 0 4px; margin-top: -4px; }";
  (element("igv").shadowRoot || document.head).append(style);
  window.browser = browser;  // for users of igv.js: its own interface

  let current = first, rows = facts.rows;
  const list = () => {
    const wanted = element("find").value.toLowerCase();
    const by = { file: (a, b) => a.row - b.row, strength: (a, b) => strongest(facts, b) - strongest(facts, a),
      features: (a, b) => b.features - a.features }[element("order").value];
    rows = facts.rows.filter(s => s.name.toLowerCase().includes(wanted)).sort(by);
    show();
  };
  const show = () => {
    const at = Math.max(0, rows.indexOf(current));
    const from = Math.max(0, Math.min(at - SHOWN / 2, rows.length - SHOWN));
    element("count").textContent = rows.length > SHOWN
      ? `${(from + 1).toLocaleString()} to ${(from + SHOWN).toLocaleString()} of ${rows.length.toLocaleString()}`
      : `${rows.length.toLocaleString()} of ${facts.rows.length.toLocaleString()}`;
    element("list").replaceChildren(...rows.slice(from, from + SHOWN).map(segment => {
      const item = document.createElement("li"), button = document.createElement("button");
      const name = document.createElement("span"), count = document.createElement("span");
      button.type = "button";
      name.textContent = button.title = segment.name;
      count.textContent = facts.features.length ? segment.features || "" : "";
      if (segment === current) button.setAttribute("aria-current", "true");
      button.append(name, count);
      button.addEventListener("click", () => go(segment));
      item.append(button);
      return item;
    }));
    element("list").querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
    element("here").textContent = current.name;
  };
  const go = async segment => {
    current = segment;
    show();
    await browser.search(locus(segment));
  };
  const step = by => {
    const next = rows[rows.indexOf(current) + by];
    if (next) return go(next);
  };
  const letters = () => {  // fifty bases around the strongest one
    const values = facts.tracks.length ? facts.tracks[facts.tracks.length - 1].values : [];
    let best = 0;
    for (let k = 0; k < current.length; k++)
      if (Math.abs(values[current.begin + k]) > Math.abs(values[current.begin + best])) best = k;
    const from = Math.max(0, Math.min(best - 25, current.length - 50));
    return browser.search(`${current.contig}:${current.start + from + 1}-${current.start + Math.min(from + 50, current.length)}`);
  };
  element("find").addEventListener("input", list);
  element("order").addEventListener("change", list);
  element("previous").addEventListener("click", () => step(-1));
  element("next").addEventListener("click", () => step(1));
  element("whole").addEventListener("click", () => go(current));
  element("letters").addEventListener("click", letters);
  list();
  document.body.dataset.ready = "true";
}

start().catch(error => {
  const problem = document.getElementById("problem");
  problem.textContent = typeof DecompressionStream === "undefined"
    ? "This page needs a newer browser (Chrome 80, Firefox 113, Safari 16.4)." : `The page could not be drawn: ${error.message}`;
  problem.hidden = false;
  throw error;
});

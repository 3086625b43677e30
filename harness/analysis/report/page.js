"use strict";
// Shows the cells and the documents that travel in this page. Texts of models only ever become text nodes.

const $ = (id) => document.getElementById(id);

// ---------------------------------------------------------------- building and writing

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") made.addEventListener("click", value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

// Control characters are shown as their pictures (U+2400 …), halves of characters as U+FFFD, and what has no picture by
// its number: what would turn the reading direction, or could not be seen where two texts differ in nothing else.
const visible = (text) => text
  .replace(/[\0-\x08\x0b-\x1f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
  .replace(/\x7f/g, "\u2421")
  .replace(/[\x80-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (c) => `⟨${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`)
  .replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd");

const fixed = (value, digits) => value.toFixed(digits).replace(/^-(?=0\.?0*$)/, "").replace("-", "−");
const signed = (value, digits) => (Number(value.toFixed(digits)) > 0 ? "+" : "") + fixed(value, digits);
const grouped = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, ",");
const known = (value) => value !== null && value !== undefined;
const points = (delta) => `${signed(100 * delta[0], 1)} [${signed(100 * delta[1], 1)}, ${signed(100 * delta[2], 1)}]`;

// ---------------------------------------------------------------- data

async function unpack(id) {
  const bytes = Uint8Array.from(atob($(id).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

let index; // {cells: {columns, rows}, values, records, blocks, kept}
let rows = []; // of the list, as objects
const unpacked = new Map(); // benchmark → promise of its block

function block(benchmark) {
  if (!unpacked.has(benchmark)) {
    const found = index.blocks.find((one) => one.benchmark === benchmark);
    unpacked.set(benchmark, found ? unpack(found.element) : Promise.resolve(null));
  }
  return unpacked.get(benchmark);
}

const nameOf = (word) => (Object.hasOwn(index.names, word) ? index.names[word] : word);

function label(row) {
  const parts = [nameOf(row.method)];
  if (known(row.tau)) parts.push(`τ=${row.tau}`);
  if (known(row.block_size)) parts.push(`B=${row.block_size}`);
  if (row.others) parts.push(row.others);
  return `${parts.join(" ")} · ${nameOf(row.model)} · ${row.key.slice(0, 6)}`;
}

// ---------------------------------------------------------------- the list of cells

const COLUMNS = [
  { name: "cell", value: (row) => row.key },
  { name: "method", value: (row) => nameOf(row.method) },
  { name: "τ", value: (row) => row.tau, number: true, text: String },
  { name: "B", value: (row) => row.block_size, number: true, text: String },
  { name: "model", value: (row) => nameOf(row.model) },
  { name: "benchmark", value: (row) => nameOf(row.benchmark) },
  { name: "documents", value: (row) => row.n, number: true, text: grouped },
  { name: "score % [95 %]", value: (row) => row.score, number: true,
    text: (x, row) => `${fixed(100 * x, 1)} [${fixed(100 * row.score_low, 1)}, ${fixed(100 * row.score_high, 1)}]` },
  { name: "Δ AR SFT", value: (row) => row.delta && row.delta[0], number: true, text: (x, row) => points(row.delta) },
  { name: "tokens/ forward", value: (row) => row.tokens_per_forward, number: true, text: (x) => fixed(x, 2) },
  { name: "positions/ token", value: (row) => row.positions_per_token, number: true, text: (x) => fixed(x, 2) },
  { name: "tokens/ s", value: (row) => row.tokens_per_second, number: true, text: (x) => fixed(x, 0) },
  { name: "other settings", value: (row) => row.others },
];
const sorting = { column: -1, descending: false };

function listRow(row) {
  const button = (side) => element("button", {
    type: "button", "data-side": side, "aria-pressed": "false",
    "aria-label": `Choose ${row.key.slice(0, 8)} on ${row.benchmark} as ${side.toUpperCase()}`,
    onclick: () => choose(side, row),
  }, side.toUpperCase());
  const buttons = row.is_average ? [] : [button("a"), " ", button("b")];
  const cells = COLUMNS.map((column, i) => {
    const value = column.value(row);
    if (i === 0) {
      const link = element("a", { href: `#cell-${row.key}`, class: "key", title: row.key }, row.key.slice(0, 8));
      return element("th", { scope: "row" }, link, " ", ...buttons);
    }
    const text = !known(value) ? "" : column.text ? column.text(value, row) : value;
    return element("td", { class: column.number ? "number" : i === COLUMNS.length - 1 ? "others" : null }, text);
  });
  row.line = element("tr", { class: row.is_average ? "average" : null }, ...cells);
  row.words = [row.key, row.method, nameOf(row.method), row.model, row.benchmark, nameOf(row.benchmark), row.others,
    known(row.tau) ? `tau=${row.tau} τ=${row.tau}` : null, known(row.block_size) ? `B=${row.block_size}` : null]
    .filter(known).join(" ").toLowerCase();
  return row.line;
}

function makeList() {
  const heads = COLUMNS.map((column, i) => element("th", { scope: "col", class: column.number ? "number" : null },
    element("button", { type: "button", class: "sort", onclick: () => sortBy(i) }, column.name)));
  $("cells-table").tHead.append(element("tr", {}, ...heads));
  $("cells-table").tBodies[0].append(...rows.map(listRow));
  for (const name of ["method", "model", "benchmark"]) {
    const values = [...new Set(rows.map((row) => row[name]))];
    fill($(`cells-${name}`), [["", "all"], ...values.map((value) => [value, nameOf(value)])]);
    $(`cells-${name}`).addEventListener("change", filterList);
  }
  $("cells-text").addEventListener("input", filterList);
  $("cells-form").addEventListener("submit", (event) => event.preventDefault());
  filterList();
}

function filterList() {
  const words = $("cells-text").value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const row of rows) {
    const fits = words.every((word) => row.words.includes(word)) &&
      ["method", "model", "benchmark"].every((name) => ["", row[name]].includes($(`cells-${name}`).value));
    row.line.hidden = !fits;
    count += fits;
  }
  $("cells-count").textContent = `${grouped(count)} of ${grouped(rows.length)} rows`;
}

function sortBy(i) {
  sorting.descending = sorting.column === i && !sorting.descending;
  sorting.column = i;
  const sign = sorting.descending ? -1 : 1;
  const value = COLUMNS[i].value;
  const order = [...rows].sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (!known(x) || !known(y)) return known(y) - known(x); // what was not measured comes last either way
    return sign * (x < y ? -1 : x > y ? 1 : 0);
  });
  $("cells-table").tBodies[0].append(...order.map((row) => row.line));
  [...$("cells-table").tHead.rows[0].cells].forEach((head, j) => {
    if (j === i) head.setAttribute("aria-sort", sorting.descending ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  });
}

function fill(select, options, chosen = null) {
  select.replaceChildren(...options.map(([value, text]) => element("option", { value }, visible(text))));
  if (chosen !== null) select.value = chosen;
}

// ---------------------------------------------------------------- one cell

function showCell(key) {
  const record = Object.hasOwn(index.records, key) ? index.records[key] : null;
  const dialog = $("cell");
  if (!record) {
    if (dialog.open) dialog.close();
    return;
  }
  const own = rows.filter((row) => row.key === key);
  const title = own.length ? label(own[0]) : key;
  const found = own.map((row) => {
    const of = row.tokens_per_forward;
    const speed = known(of) ? `, ${fixed(of, 2)} tokens per forward` : "";
    return element("li", {}, `${nameOf(row.benchmark)}: ${COLUMNS[7].text(row.score, row)} % of ${grouped(row.n)} documents` +
      `${row.delta ? `, ${points(row.delta)} points from AR SFT (${row.delta[4].slice(0, 8)})` : ""}${speed}`);
  });
  const sections = Object.entries(record.sections || {}).map(([name, entries]) => {
    const values = Object.fromEntries(Object.entries(entries).map(([entry, place]) => [entry, index.values[place]]));
    return element("details", { open: name === "identity" },
      element("summary", {}, name), element("pre", {}, visible(JSON.stringify(values, null, 1))));
  });
  dialog.replaceChildren(...[
    element("div", { class: "top" }, element("h2", { id: "cell-title" }, title),
      element("button", { type: "button", onclick: () => dialog.close() }, "Close")),
    element("p", {}, "Key ", element("code", {}, key), record.created ? `, finished ${visible(record.created)}` : ""),
    element("p", {}, "Folder ", element("code", {}, visible(record.path))),
    element("ul", {}, ...found),
    record.error ? element("p", { class: "failed" }, visible(record.error)) : null,
    record.command ? element("p", {}, "The command that runs it again:") : null,
    record.command ? element("pre", { id: "cell-command" }, visible(record.command)) : null,
    ...sections,
  ].filter(known));
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}

// ---------------------------------------------------------------- statistics of two cells

// A generator of its own (mulberry32), so that the same pair always shows the same interval.
function random(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

function quantile(sorted, q) {
  const place = q * (sorted.length - 1), low = Math.floor(place);
  return sorted[low] + (place - low) * (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]);
}

// McNemar's exact test, two-sided.
function mcnemar(wins, losses) {
  const n = wins + losses;
  let term = -n * Math.LN2, tail = 0;
  for (let k = 0; k <= Math.min(wins, losses); k++) {
    tail += Math.exp(term);
    term += Math.log((n - k) / (k + 1));
  }
  return Math.min(1, 2 * tail);
}

const Z = 1.959963984540054; // 95 %

// Bonett and Price's interval of a paired difference of proportions.
function bonettPrice(wins, losses, n) {
  const up = (wins + 1) / (n + 2), down = (losses + 1) / (n + 2);
  const half = Z * Math.sqrt((up + down - (up - down) ** 2) / (n + 2));
  return [Math.max(-1, up - down - half), Math.min(1, up - down + half)];
}

// Share of percentiles that is cut at each end where few clusters are resampled (Hesterberg's expanded percentiles).
function tailOf(clusters) {
  const f = clusters - 1, z = Z;
  const student = z + (z ** 3 + z) / (4 * f) + (5 * z ** 5 + 16 * z ** 3 + 3 * z) / (96 * f ** 2) +
    (3 * z ** 7 + 19 * z ** 5 + 17 * z ** 3 - 15 * z) / (384 * f ** 3);
  const x = (Math.sqrt(clusters / f) * student) / Math.SQRT2, t = 1 / (1 + 0.3275911 * x);
  const series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  return 0.5 * series * Math.exp(-x * x); // the normal tail, after Abramowitz and Stegun 7.1.26
}

// Means of resampled units, [sum of differences, documents] each, in ascending order.
function resampled(units) {
  const count = Math.max(1000, Math.min(10000, Math.round(2e7 / units.length)));
  const next = random(0), means = new Float64Array(count);
  for (let i = 0; i < count; i++) {
    let sum = 0, size = 0;
    for (let j = 0; j < units.length; j++) {
      const unit = units[(next() * units.length) | 0];
      sum += unit[0];
      size += unit[1];
    }
    means[i] = sum / size;
  }
  return means.sort();
}

// The intervals of harness.results.stats.compare; of what is resampled, other draws.
function pairedDifference(pairs) { // [{a, b, task}] → {value, low, high, n, wins, losses, p, how}
  const n = pairs.length;
  const differences = pairs.map((pair) => pair.a - pair.b);
  const wins = differences.filter((d) => d > 0).length, losses = differences.filter((d) => d < 0).length;
  const isBinary = pairs.every((pair) => [0, 1].includes(pair.a) && [0, 1].includes(pair.b));
  const value = differences.reduce((sum, d) => sum + d, 0) / n;
  const found = { value, n, wins, losses, p: isBinary ? mcnemar(wins, losses) : null };
  const alone = isBinary ? bonettPrice(wins, losses, n) : null;
  const clusters = new Map();
  pairs.forEach((pair, i) => {
    const cluster = clusters.get(pair.task) || [0, 0];
    clusters.set(pair.task, [cluster[0] + differences[i], cluster[1] + 1]);
  });
  if (clusters.size >= 8) {
    const means = resampled([...clusters.values()]), tail = tailOf(clusters.size);
    let [low, high] = [quantile(means, tail), quantile(means, 1 - tail)];
    if (alone) [low, high] = [Math.min(low, alone[0]), Math.max(high, alone[1])];
    return { ...found, low, high, how: "paired bootstrap over subtasks" };
  }
  if (alone) return { ...found, low: alone[0], high: alone[1], how: "Bonett-Price" };
  const means = resampled(differences.map((d) => [d, 1]));
  return { ...found, low: quantile(means, 0.025), high: quantile(means, 0.975), how: "paired bootstrap" };
}

// ---------------------------------------------------------------- two cells

const chosen = { benchmark: "", a: "", b: "" };
const shown = { block: null, pairs: [], found: [], place: 0 };
let turn = 0; // of two comparisons asked for at once the later one is shown

function choose(side, row) {
  if (chosen.benchmark !== row.benchmark) {
    chosen.benchmark = row.benchmark;
    const others = comparable();
    for (const name of ["a", "b"]) if (!others.some((one) => one.key === chosen[name])) chosen[name] = "";
  }
  chosen[side] = row.key;
  compare();
}

const comparable = () => rows.filter((row) => row.benchmark === chosen.benchmark && !row.is_average);

async function compare() {
  const mine = ++turn;
  const here = comparable();
  fill($("compare-benchmark"), index.blocks.map((one) => [one.benchmark, nameOf(one.benchmark)]), chosen.benchmark);
  for (const side of ["a", "b"]) {
    fill($(`compare-${side}`), [["", "choose a cell"], ...here.map((row) => [row.key, label(row)])], chosen[side]);
  }
  for (const row of rows) {
    for (const button of row.line.querySelectorAll("button[data-side]")) {
      const isPressed = row.benchmark === chosen.benchmark && chosen[button.dataset.side] === row.key;
      button.setAttribute("aria-pressed", String(isPressed));
    }
  }
  $("compare-documents").hidden = true;
  const sides = ["a", "b"].map((side) => here.find((row) => row.key === chosen[side]));
  if (!sides[0] || !sides[1]) {
    $("compare-summary").replaceChildren(element("p", {}, index.blocks.length
      ? "Choose two cells of a benchmark, here or by the buttons A and B in the list." : "There are no documents to compare."));
    return;
  }
  const found = await block(chosen.benchmark);
  if (mine !== turn) return;
  shown.block = found;
  shown.pairs = join(found, found.cells[chosen.a], found.cells[chosen.b]);
  summarise(sides);
  const isEmpty = !shown.pairs.length;
  $("compare-documents").hidden = isEmpty;
  if (isEmpty) return;
  fill($("compare-filter"), FILTERS.map(([name, text, fits]) =>
    [name, `${text} (${grouped(shown.pairs.filter(fits).length)})`]), $("compare-filter").value || "all");
  filterDocuments();
}

// Documents that both have, in the order of their places.
function join(block, a, b) {
  if (!a || !b) return [];
  const places = (cell) => cell.places || block.places.map((_, i) => i);
  const inB = new Map(places(b).map((place, i) => [place, i]));
  return places(a).flatMap((place, i) => {
    if (!inB.has(place)) return [];
    const j = inB.get(place), [task, doc] = block.places[place];
    const textOf = (cell, k) => (known(cell.text) && cell.text[k] >= 0 ? cell.text[k] : null);
    return [{
      task: block.tasks[task], doc, i, j, a: Number(a.score[i]), b: Number(b.score[j]),
      texts: known(textOf(a, i)) && known(textOf(b, j)), same: textOf(a, i) === textOf(b, j),
    }];
  });
}

const FILTERS = [
  ["all", "all documents", () => true],
  ["a", "A right, B wrong (or A higher)", (pair) => pair.a > pair.b],
  ["b", "B right, A wrong (or B higher)", (pair) => pair.b > pair.a],
  ["differ", "texts differ", (pair) => pair.texts && !pair.same],
  ["same", "same text", (pair) => pair.texts && pair.same],
  ["neither", "both wrong", (pair) => pair.a === 0 && pair.b === 0],
];

const CUT = ["length", "context"];

// What two cells were asked or allowed differently, so that their paired difference is not of the decoding alone.
const ASKED = { data: "documents", version: "version of the task", num_fewshot: "number of examples in the prompt",
  headline: "metric", max_gen_toks: "limit of tokens" };

function unlike(sides) {
  const [a, b] = sides.map((row) => {
    const place = index.records[row.key]?.sections?.identity?.suite;
    const suite = known(place) ? index.values[place] : null;
    return { ...suite?.tasks?.[row.benchmark], max_gen_toks: suite?.max_gen_toks };
  });
  const found = Object.entries(ASKED).filter(([name]) => known(a[name]) && known(b[name]) &&
    JSON.stringify(a[name]) !== JSON.stringify(b[name])).map(([name, words]) => typeof a[name] === "object" ? words :
    `${words} (A ${a[name]}, B ${b[name]})`);
  const notes = found.length ? [`Not only the decoding differs, but what was asked: ${visible(found.join("; "))}.`] : [];
  if (sides[0].n !== sides[1].n) {
    notes.push(`A has ${grouped(sides[0].n)} documents and B ${grouped(sides[1].n)}; compared are those of both.`);
  }
  if (sides[0].model !== sides[1].model) notes.push("Two models: each counts tokens of its own tokenizer.");
  return notes;
}

function summarise(sides) {
  const { block, pairs } = shown;
  if (!pairs.length) {
    $("compare-summary").replaceChildren(element("p", { class: "notice" }, "These two cells share no document."));
    return;
  }
  const cells = [block.cells[chosen.a], block.cells[chosen.b]];
  const sum = (list, places) => places.reduce((total, place) => total + list[place], 0);
  const places = [pairs.map((pair) => pair.i), pairs.map((pair) => pair.j)];
  const difference = pairedDifference(pairs);
  const isSure = difference.low > 0 || difference.high < 0;
  const verdict = isSure ? `${difference.low > 0 ? "A" : "B"} scores higher` : "the interval holds 0: not told apart";
  const p = difference.p;
  const test = p === null ? "" : `; McNemar's exact p\u00a0${p < 0.001 ? "<\u00a00.001" : `=\u00a0${p.toFixed(3)}`}`;
  const withTexts = pairs.filter((pair) => pair.texts), same = withTexts.filter((pair) => pair.same).length;
  const equal = withTexts.length ? ` The texts are the same on ${grouped(same)} of ${grouped(withTexts.length)}.` : "";
  const cut = cells.map((cell, k) => places[k].filter((place) => CUT.includes(block.finish[cell.finish[place]])).length);
  const line = (name, values) => element("tr", {}, element("th", { scope: "row" }, name),
    ...values.map((value) => element("td", { class: "number" }, value)));
  const rates = cells.map((cell, k) => [sum(cell.tokens, places[k]), sum(cell.forwards, places[k])]);
  $("compare-summary").replaceChildren(
    element("p", { class: "finding", id: "compare-finding" }, element("strong", {}, "A − B: ",
      `${points([difference.value, difference.low, difference.high])} points`), `, ${verdict}.`),
    ...unlike(sides).map((text) => element("p", { class: "notice" }, text)),
    element("p", {}, `On ${grouped(pairs.length)} documents that both answered: A alone right (or higher) on ` +
      `${grouped(difference.wins)}, B alone on ${grouped(difference.losses)}${test}.${equal}`),
    element("div", { class: "scroll" }, element("table", {},
      element("thead", {}, element("tr", {}, element("td", {}), element("th", { scope: "col", class: "number" }, "A"),
        element("th", { scope: "col", class: "number" }, "B"))),
      element("tbody", {},
        line("cell", sides.map((row) => element("a", { href: `#cell-${row.key}` }, label(row)))),
        line("score, % [95 %] of all its documents", sides.map((row) => COLUMNS[7].text(row.score, row))),
        line("tokens per forward on these documents",
          rates.map(([tokens, forwards]) => (forwards && tokens ? fixed(tokens / forwards, 2) : ""))),
        line("mean tokens of an answer",
          rates.map(([tokens]) => (tokens ? fixed(tokens / pairs.length, 1) : ""))),
        line("answers cut at a limit", cut.map((count, k) => (rates[k][0] ? grouped(count) : "")))))),
    element("p", { class: "small" }, `95 % interval: ${difference.how}. ` +
      (difference.how.includes("bootstrap") ? "Drawn here, so its ends may differ from the tables' in the last digit. " : "") +
      "One of many possible pairs: no correction for looking at several is made."),
  );
}

function filterDocuments() {
  const fits = FILTERS.find(([name]) => name === $("compare-filter").value)[2];
  shown.found = shown.pairs.filter(fits);
  fill($("compare-document"), shown.found.map((pair, i) => {
    const told = [pair.a, pair.b].map(mark);
    const how = pair.texts ? (pair.same ? ", same text" : "") : ", no text";
    return [String(i), `${pair.task} ${pair.doc}: A ${told[0]} B ${told[1]}${how}`];
  }));
  showDocument(0);
}

const mark = (score) => (score === 1 ? "✓" : score === 0 ? "✗" : fixed(score, 2));

function showDocument(place) {
  shown.place = Math.max(0, Math.min(place, shown.found.length - 1));
  const pair = shown.found[shown.place];
  $("compare-previous").disabled = shown.place <= 0;
  $("compare-next").disabled = shown.place >= shown.found.length - 1;
  $("compare-place").textContent = pair ? `${grouped(shown.place + 1)} of ${grouped(shown.found.length)}` : "none";
  $("compare-target").replaceChildren();
  $("compare-sides").replaceChildren();
  $("compare-legend").replaceChildren();
  if (!pair) return;
  $("compare-document").value = String(shown.place);
  const a = answer(chosen.a, pair.i), b = answer(chosen.b, pair.j);
  const target = a.target ?? b.target;
  if (known(target)) $("compare-target").append("Right answer: ", element("code", {}, quote(target)));
  const differsAt = firstDifference(a.characters, b.characters);
  const steps = [a, b].map((one) => (one.steps && differsAt >= 0 ? forwardAt(one.steps, differsAt) : null));
  $("compare-sides").append(...[a, b].map((one, k) => side("AB"[k], one, differsAt, steps[k])));
  if (a.steps || b.steps) {
    $("compare-legend").append("Shaded alike: tokens that one forward committed together. ",
      ...["1", "2", "3", "4", "5 to 8", "9 or more"].map((text, i) =>
        element("span", { class: `legend step s${i + 1}b` }, text)), " tokens. ");
  }
  if (differsAt >= 0) $("compare-legend").append("◆ is where the texts first differ.");
}

const quote = (text) => (typeof text === "number" ? "hidden (gated benchmark)" : text.length <= 2000 ? visible(text) :
  visible(`${text.slice(0, 2000)} … (${grouped(text.length)} characters)`));

// Everything that is known of one answer; a number in place of a text is one of a gated benchmark.
function answer(key, i) {
  const { block } = shown, cell = block.cells[key];
  const string = (name) => (cell[name] && cell[name][i] >= 0 ? block.strings[cell[name][i]] : null);
  const whole = (name) => { const found = string(name); return found === null ? null : found.split(",").map(Number); };
  const text = string("text");
  const characters = typeof text === "string" ? [...text] : null; // ends are in characters, not in UTF-16 units
  return {
    key, text, characters, target: string("target"), extracted: string("extracted"), score: Number(cell.score[i]),
    tokens: cell.tokens[i], forwards: cell.forwards[i], finish: block.finish[cell.finish[i]],
    isLeftOut: known(cell.text) && i >= cell.text.length,
    steps: characters && readSteps(characters.length, whole("lengths"), whole("ends")),
  };
}

// [{tokens, start, stop}] of each forward, or null where it is not known or the lists do not belong together.
function readSteps(size, lengths, differences) {
  if (!lengths || !differences) return null;
  const steps = [];
  let token = 0, stop = 0;
  for (const tokens of lengths) {
    const start = stop;
    for (let i = 0; i < tokens; i++) {
      if (token >= differences.length || differences[token] < 0) return null;
      stop += differences[token++];
    }
    steps.push({ tokens, start, stop });
  }
  return token === differences.length && stop === size ? steps : null;
}

// Where two texts first differ; −1: nowhere, or one is not known.
function firstDifference(a, b) {
  if (!a || !b) return -1;
  const size = Math.min(a.length, b.length);
  for (let i = 0; i < size; i++) if (a[i] !== b[i]) return i;
  return a.length === b.length ? -1 : size;
}

// Number of the forward that committed a character, from 1; of the end, the last one.
function forwardAt(steps, place) {
  const found = steps.findIndex((step) => step.start <= place && place < step.stop);
  return found >= 0 ? found + 1 : steps.length;
}

function side(name, one, differsAt, forward) {
  const row = rows.find((row) => row.key === one.key && row.benchmark === chosen.benchmark);
  const speed = one.forwards && one.tokens ? `${one.tokens} tokens in ${one.forwards} forwards, ${fixed(one.tokens / one.forwards, 2)} per forward` : "not generated";
  const score = one.score === 1 ? "✓ right" : one.score === 0 ? "✗ wrong" : `score ${fixed(one.score, 2)}`;
  const where = forward === null ? null : element("p", {}, `First differs at character ${grouped(differsAt + 1)}, in its forward ${forward}.`);
  return element("div", { class: "side", "data-side": name },
    element("h3", {}, `${name}: ${row ? label(row) : one.key}`),
    element("p", {}, element("strong", {}, score), `, ended by ${visible(one.finish)}; ${speed}`),
    known(one.extracted) ? element("p", {}, "Extracted: ", element("code", {}, quote(one.extracted))) : null,
    where, answerText(one, differsAt));
}

const LONGEST = 20000; // characters of an answer that are shown

function answerText(one, differsAt) {
  const box = element("div", { class: "answer", tabindex: "0" });
  const note = (text) => box.append(element("span", { class: "hidden-text" }, text));
  if (one.isLeftOut) note("left out to keep the page small");
  else if (typeof one.text === "number") note("hidden (gated benchmark)");
  else if (!known(one.text)) note("no text in this record");
  if (!one.characters) return box;
  if (!one.characters.length && !one.tokens) note("nothing was generated");
  // A browser stands still over hundreds of thousands of steps: of such an answer a part is shown, around the difference.
  const size = one.characters.length, from = differsAt > LONGEST / 2 ? differsAt - LONGEST / 4 : 0, to = from + LONGEST;
  if (from) note(`${grouped(from)} characters before are not shown … `);
  const steps = one.steps || [{ tokens: null, start: 0, stop: size }];
  let idle = 0, isMarked = false;
  const diverge = () => {
    isMarked = true;
    box.append(element("span", { class: "divergence", role: "img", "aria-label": "the texts first differ here" }, "◆"));
  };
  steps.forEach((step, i) => {
    if (step.stop < from || step.start > to) return;
    if (step.tokens === 0) { idle++; return; }
    const before = idle ? `, after ${idle} that committed none` : "";
    idle = 0;
    const title = step.tokens === null ? null : `forward ${i + 1}: ${step.tokens} token${step.tokens === 1 ? "" : "s"}${before}`;
    const style = step.tokens === null ? "" : `step ${shade(step.tokens, i)}`;
    const span = (start, stop, more) => box.append(element("span", { class: style + more, title },
      visible(one.characters.slice(Math.max(start, from), Math.min(stop, to)).join(""))));
    const isHere = differsAt >= step.start && differsAt < step.stop && !isMarked;
    if (isHere && differsAt > step.start) span(step.start, differsAt, "");
    if (isHere) diverge();
    const start = isHere ? differsAt : step.start;
    if (start < step.stop) span(start, step.stop, isHere && differsAt > step.start && style ? " rest" : "");
    else if (step.tokens && step.start === step.stop) box.append(element("span", { class: `${style} end`, title }, "end"));
  });
  if (differsAt >= 0 && !isMarked) diverge();
  if (size > to) note(` … ${grouped(size - to)} characters after are not shown`);
  return box;
}

const shade = (tokens, i) => `s${tokens <= 4 ? tokens : tokens <= 8 ? 5 : 6}${"ab"[i % 2]}`;

// ---------------------------------------------------------------- wiring

function route() {
  const name = location.hash.slice(1); // a run key is plain letters and digits
  if (name.startsWith("cell-")) showCell(name.slice(5));
  else if ($("cell").open) $("cell").close();
}

function listen() {
  $("compare-benchmark").addEventListener("change", (event) => {
    Object.assign(chosen, { benchmark: event.target.value });
    suggest();
    compare();
  });
  for (const name of ["a", "b"]) {
    $(`compare-${name}`).addEventListener("change", (event) => { chosen[name] = event.target.value; compare(); });
  }
  $("compare-swap").addEventListener("click", () => { [chosen.a, chosen.b] = [chosen.b, chosen.a]; compare(); });
  $("compare-filter").addEventListener("change", filterDocuments);
  $("compare-document").addEventListener("change", (event) => showDocument(Number(event.target.value)));
  $("compare-previous").addEventListener("click", () => showDocument(shown.place - 1));
  $("compare-next").addEventListener("click", () => showDocument(shown.place + 1));
  $("compare").addEventListener("keydown", (event) => {
    if (["INPUT", "SELECT"].includes(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowLeft") showDocument(shown.place - 1);
    if (event.key === "ArrowRight") showDocument(shown.place + 1);
  });
  $("cell").addEventListener("close", () => {
    if (location.hash.startsWith("#cell-")) history.replaceState(null, "", "#cells");
  });
  $("cell").addEventListener("click", (event) => {
    if (event.target === $("cell")) $("cell").close(); // beside it
    else if (event.target.tagName === "BUTTON") event.stopPropagation();
  });
  window.addEventListener("hashchange", route);
}

// A pair to begin with: the first cell that has an AR SFT reference, and that reference.
function suggest() {
  const here = comparable();
  const first = here.find((row) => row.delta) || here.find((row) => row.method !== "ar_sft") || here[0];
  const second = first && (here.find((row) => first.delta && row.key === first.delta[4]) || here.find((row) => row !== first));
  Object.assign(chosen, { a: first ? first.key : "", b: second ? second.key : "" });
}

async function start() {
  if (typeof DecompressionStream === "undefined") throw new Error("this browser cannot unpack the data; those since 2023 can");
  index = await unpack("index");
  const { columns, rows: found } = index.cells;
  rows = found.map((values) => Object.fromEntries(columns.map((name, i) => [name, values[i]])));
  makeList();
  listen();
  chosen.benchmark = index.blocks.length ? index.blocks[0].benchmark : "";
  suggest();
  await compare();
  route();
  document.documentElement.dataset.ready = "true";
}

start().catch((error) => {
  $("trouble").hidden = false;
  $("trouble").textContent = `The list of cells and the comparison cannot be shown: ${error.message}`;
  throw error;
});

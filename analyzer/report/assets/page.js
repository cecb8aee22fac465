// Builds the page from its data. Every text goes in as a text node: no name can become markup.

const data = JSON.parse(document.getElementById("data").textContent);
const GAP = "–";
const ELLIPSIS = "…";

/** Makes an element: properties and aria-* or data-* attributes, then children (strings are text). */
function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role" || name === "scope") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

function buttonOf(words, onclick, properties = {}) {
  return element("button", { type: "button", ...properties, onclick }, words);
}

/** Formats a number as the terminal does: three significant digits, at most `digits` decimals. */
function formatted(value, digits) {
  const size = value ? Number(value.toExponential(2).split("e")[1]) : 2;
  const text = withDecimals(value, Math.max(0, Math.min(digits, 2 - size)));
  return /[1-9]/.test(text) ? text : "0";
}

/** Formats a number with `digits` decimals and thousands separators. */
function withDecimals(value, digits) {
  const [whole, decimals] = rounded(Math.abs(value), digits).split(".");
  const text = whole.replace(/\B(?=(\d{3})+$)/g, ",") + (decimals ? `.${decimals}` : "");
  return value < 0 && /[1-9]/.test(text) ? `−${text}` : text;
}

/** Rounds half to even, as Python does; toFixed rounds exact ties up. */
function rounded(value, digits) {
  if (value >= 1e21) return BigInt(value).toString() + (digits ? `.${"0".repeat(digits)}` : "");
  const exact = value.toFixed(digits + 30);
  const cut = exact.length - 30;
  if (!/^50*$/.test(exact.slice(cut))) return value.toFixed(digits);
  const below = exact.slice(0, cut).replace(/\.$/, "");
  return "02468".includes(below.at(-1)) ? below : value.toFixed(digits);
}

function milliseconds(value) {
  return `${formatted(value, 6)} ms`;
}

/** Shortens a text in the middle. */
function shortened(text, length) {
  const characters = Array.from(text);
  if (characters.length <= length) return text;
  const head = Math.floor((length - 1) / 2);
  const tail = length - 1 - head;
  return characters.slice(0, head).join("") + ELLIPSIS + (tail ? characters.slice(-tail).join("") : "");
}

/** The colours of the style sheet, light or dark, for drawings. */
function inks() {
  const style = getComputedStyle(document.documentElement);
  const names = ["ink", "soft", "line", "paper"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** Marks rows of tables and boxes of timelines with common keys: under the pointer, or from a click to the next. */
const links = {
  marked: new Set(),
  pinned: [],
  at: {}, // the goal of a visit: the step, and the key of the evidence
  followers: [], // called with "touch", "pin" (tables scroll to the row) or "visit" (timelines zoom to the box)
  mark(keys, how = "touch") {
    this.marked = new Set(keys);
    for (const follow of this.followers) follow(how);
  },
  pin(keys, how = "pin", at = {}) {
    this.pinned = keys;
    this.at = at;
    this.mark(keys, how);
  },
  release() { if (this.marked.size || this.pinned.length) this.mark(this.pinned); },
};

/** The picked step; of the charts with a step, the page shows those of the picked one. */
const steps = {
  drawn: [...new Set(data.charts.map((chart) => chart.step).filter(Boolean))],
  picked: null,
  followers: [], // called with the step that is picked, or null
  pick(step) {
    if (step === null || this.drawn.includes(step)) this.picked = step ?? this.drawn[0];
    for (const follow of this.followers) follow(step);
  },
  shows({ step }) { return !step || step === this.picked; },
};
steps.pick(null);
document.addEventListener("keydown", (event) => { if (event.key === "Escape") steps.pick(null); });

const drawers = {}; // kind of chart -> function(chart, place); the scripts after this one fill it

/** A text whose parts between back-ticks are code. */
function prose(text) {
  return text.split(/`([^`]+)`/).map((part, index) => (index % 2 ? element("code", {}, part) : part));
}

function header() {
  const further = data.further ? [element("p", { className: "further" }, ...prose(data.further))] : [];
  const subject = element("p", { className: "option" }, data.subject);
  return element("header", {}, subject, element("h1", {}, data.title), ...further);
}

/** A command in short, and a button that copies it whole. */
function commandOf(text, command) {
  const button = buttonOf("Copy", async () => {
    await navigator.clipboard.writeText(command);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }, { "aria-label": `Copy the command: ${text}` });
  return [element("code", { title: command }, text), " ", button];
}

/** A saving as a bar, on the scale of all cards, and its bounds as a line. */
function barOf([value, low, high], most) {
  const at = (ms) => `${Math.max(0, Math.min(100, (100 * ms) / most))}%`;
  const bar = element("span", { className: "bar", "aria-hidden": "true" }, element("b", {}));
  bar.firstChild.style.width = at(value);
  if (low === null || high === null) return bar;
  const line = element("i", {});
  [line.style.left, line.style.right] = [at(low), `calc(100% - ${at(high)})`];
  bar.append(line);
  return bar;
}

/** The findings, the first one open; hovering over a finding marks its boxes in the timelines. */
function cards() {
  const most = Math.max(...data.cards.map(({ bar }) => (bar ? Math.max(...bar) : 0)));
  const made = data.cards.map((card, index) => {
    const lines = card.lines.filter(([label]) => label).flatMap(([label, text, command]) => (
      [element("dt", {}, label), element("dd", {}, ...(command ? commandOf(text, command) : prose(text)))]));
    const plain = card.lines.filter(([label]) => !label).map(([, text]) => element("p", {}, ...prose(text)));
    const name = element("h2", {}, element("span", { className: "place" }, String(index + 1)), card.title);
    const [, low = null, high] = card.bar ?? [];
    const between = low === null ? "" : `95 %: ${formatted(low, 6)} to ${formatted(high, 6)} ms`;
    const doubt = element("span", { className: "soft" }, between);
    const head = element("summary", {}, name, element("span", { className: "gain" }, card.figure, doubt));
    if (card.bar) head.append(barOf(card.bar, most));
    const more = element("details", { open: index === 0 }, head, ...plain, element("dl", {}, ...lines));
    const made = element("li", {}, more);
    if (card.about.length) {
      more.append(buttonOf("Show in the timeline", () => {
        if (card.step) steps.pick(card.step);
        links.pin(card.about, "visit", card);
      }, { className: "show" }));
      made.addEventListener("pointerenter", () => links.mark(card.about));
      made.addEventListener("pointerleave", () => links.release());
    }
    return made;
  });
  return made.length ? [element("ol", { className: "cards", "aria-label": "What each fix would save" }, ...made)] : [];
}

/** The limits of the answer: notes, and repaired or ignored input. */
function trust() {
  const lines = data.notes.map((note) => element("p", {}, ...prose(note)));
  if (data.repairs.length === 1) lines.push(element("p", {}, `Repaired or left out: ${data.repairs[0]}`));
  if (data.repairs.length > 1) {
    const heading = element("summary", {}, `Repaired or left out (${formatted(data.repairs.length, 0)})`);
    const list = element("ul", {}, ...data.repairs.map((line) => element("li", {}, line)));
    lines.push(element("details", {}, heading, list));
  }
  if (lines.length && data.cards.length) lines.unshift(element("h2", {}, "How far to trust this"));
  return lines.length ? [element("div", { className: "notes" }, ...lines)] : [];
}

function figures() {
  const pairs = data.figures.map(([label, value]) =>
    element("div", {}, element("dt", {}, label), element("dd", {}, value)));
  return pairs.length ? [element("dl", { className: "figures" }, ...pairs)] : [];
}

function chartSection(chart) {
  const place = element("div", { className: "chart" });
  const figure = element("figure", { "aria-label": chart.title }, element("h2", {}, chart.title), place);
  if (chart.note) figure.append(element("p", { className: "soft" }, chart.note));
  const section = element("section", { id: chart.id, hidden: !steps.shows(chart) }, figure);
  let isDrawn = false;
  const draw = () => {
    section.hidden = !steps.shows(chart);
    if (isDrawn || section.hidden) return;
    isDrawn = true;
    drawers[chart.kind](chart, place);
  };
  if (chart.step) steps.followers.push(draw);
  return { section, draw };
}

/** The choice of the step to draw; a chart by step is another way to choose it. */
function stepPicker() {
  const names = [...steps.drawn].sort((a, b) => a - b);
  const options = names.map((name) => element("option", {}, name));
  const choice = element("select", { onchange: () => steps.pick(choice.value) }, ...options);
  const follow = () => { choice.value = steps.picked; };
  steps.followers.push(follow);
  follow();
  return element("p", { className: "picker" }, element("label", {}, "Step ", choice));
}

/** Appends the charts and tables to `main`, small charts to `beside`. */
function appendSections(main, beside) {
  const drawn = new Set(data.charts.map(({ title }) => title)); // no two headings are the same
  const tables = data.tables.map((table) => (drawn.has(table.title) ? { ...table, title: `${table.title}, as a table` } : table));
  const firstOfSteps = data.charts.find((chart) => chart.step);
  for (const [index, chart] of data.charts.entries()) {
    const { section, draw } = chartSection(chart);
    if (chart === firstOfSteps && steps.drawn.length > 1) main.append(stepPicker());
    (chart.narrow ? beside : main).append(section);
    draw(); // in the document already, so that it knows its width
    const isLast = chart.kind === "timeline" && data.charts[index + 1]?.kind !== "timeline"; // they stand together
    const linked = isLast ? tables.findIndex((table) => table.about.length) : -1;
    if (linked >= 0) main.append(...tables.splice(linked, 1).map(tableSection));
  }
  main.append(...tables.map(tableSection));
}

/** Shows the answer and its proof first, then the other sections. */
function build() {
  const main = element("main", {}, header(), ...figures());
  document.body.append(main);
  const beside = element("div", { className: data.cards.length ? "" : "beside" });
  if (data.cards.length) main.append(element("div", { className: "answer" }, ...cards(), beside), ...trust());
  else main.append(beside);
  appendSections(main, beside);
  if (!data.cards.length) main.append(...trust());
  document.documentElement.dataset.ready = "yes";
}

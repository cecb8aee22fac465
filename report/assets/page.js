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

/** Returns a number with `digits` decimals and thousands separators, exactly as the terminal shows it. */
function formatted(value, digits) {
  const [whole, decimals] = rounded(Math.abs(value), digits).split(".");
  const text = whole.replace(/\B(?=(\d{3})+$)/g, ",") + (decimals ? `.${decimals}` : "");
  return value < 0 && /[1-9]/.test(text) ? `-${text}` : text;
}

/** Rounds half to even: toFixed goes by the number's exact value, but rounds its ties up. */
function rounded(value, digits) {
  if (value >= 1e21) return BigInt(value).toString() + (digits ? `.${"0".repeat(digits)}` : "");
  const exact = value.toFixed(digits + 30);
  const cut = exact.length - 30;
  if (!/^50*$/.test(exact.slice(cut))) return value.toFixed(digits);
  const below = exact.slice(0, cut).replace(/\.$/, "");
  return "02468".includes(below.at(-1)) ? below : value.toFixed(digits);
}

/** "1 row", "2,000 rows". */
function counting(count, word) {
  return `${formatted(count, 0)} ${word}${count === 1 ? "" : "s"}`;
}

/** Returns milliseconds in a readable number of digits. */
function milliseconds(value) {
  if (value === null || value === undefined) return GAP;
  const size = Math.abs(value);
  return `${formatted(value, size >= 100 ? 1 : size >= 1 ? 2 : size >= 0.01 || size === 0 ? 3 : 6)} ms`;
}

/** Shortens a text in the middle. */
function shortened(text, length) {
  const characters = Array.from(text);
  if (characters.length <= length) return text;
  const head = Math.floor((length - 1) / 2);
  const tail = length - 1 - head;
  return characters.slice(0, head).join("") + ELLIPSIS + (tail ? characters.slice(-tail).join("") : "");
}

/** The function from a name in a chart to its colour, which means the same everywhere. */
function coloursOf(chart) {
  const colours = new Map(Object.entries(chart.colours));
  return (name) => colours.get(name);
}

/** Black or white, whichever reads better on a colour (#rrggbb). */
function inkOn(colour) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16) / 255);
  return 0.2126 * red ** 2.2 + 0.7152 * green ** 2.2 + 0.0722 * blue ** 2.2 > 0.2 ? "#10141a" : "#ffffff";
}

const dark = matchMedia("(prefers-color-scheme: dark)");

/** The colours that drawings take from the style sheet at this moment (light or dark). */
function inks() {
  const looks = document.documentElement.className + dark.matches;
  if (inks.looks !== looks) {
    const style = getComputedStyle(document.documentElement);
    const names = ["ink", "soft", "line", "paper", "path", "accent"];
    inks.known = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    inks.looks = looks;
  }
  return inks.known;
}

addEventListener("beforeprint", () => { document.documentElement.classList.add("printing"); });
addEventListener("afterprint", () => { document.documentElement.classList.remove("printing"); });

/** Calls `redraw` whenever light turns to dark or back. */
function onTheme(redraw) {
  dark.addEventListener("change", redraw);
}

/**
 * What is about the same thing is marked together: rows of tables and boxes of timelines, by the keys that
 * both have. Under the pointer it is marked for the moment, after a click until the next one.
 */
const links = {
  marked: new Set(),
  pinned: [],
  at: {}, // where to go: the step, and the key of what was seen there
  followers: [], // called with "touch", "pin" (tables turn to it) or "visit" (timelines go there)
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

/** Of pictures that are of one step each, those of the first are shown, and beside them those of the picked one. */
const steps = {
  drawn: [...new Set(data.charts.map((chart) => chart.step).filter(Boolean))],
  beside: null,
  followers: [], // called with the step that is picked, or null
  pick(step) {
    if (step === null || this.drawn.indexOf(step) > 0) this.beside = step ?? this.drawn[1];
    for (const follow of this.followers) follow(step);
  },
  shows({ step }) { return !step || step === this.drawn[0] || step === this.beside; },
};
steps.pick(null);
document.addEventListener("keydown", (event) => { if (event.key === "Escape") steps.pick(null); });

const drawers = {}; // kind of chart -> function(chart, place); the scripts after this one fill it

function list(lines) {
  return element("ul", {}, ...lines.map((line) => element("li", {}, line)));
}

function header() {
  const parts = [element("p", { className: "option" }, `analyze.py --option ${data.option}`)];
  parts.push(element("h1", {}, data.title));
  const lasting = data.charts.filter((chart) => !chart.step || chart.step === steps.drawn[0]);
  const sections = [...lasting, ...data.tables];
  if (sections.length > 2) {
    const links = sections.map((section) => element("a", { href: `#${section.id}` }, section.title));
    parts.push(element("nav", { "aria-label": "Contents" }, list(links)));
  }
  return element("header", {}, ...parts);
}

/** What was found, one below the other; a click marks what it is about. */
function cards() {
  const made = data.cards.map((card, index) => {
    const lines = card.lines.flatMap(([label, text, isCommand]) => (label
      ? [element("dt", {}, label), element("dd", {}, isCommand ? element("code", {}, text) : text)]
      : []));
    const plain = card.lines.filter(([label]) => !label).map(([, text]) => element("p", {}, text));
    const head = element("h3", {}, element("span", { className: "place" }, String(index + 1)), card.title);
    const figure = card.figure ? [element("strong", { className: "gain" }, card.figure)] : [];
    const made = element("li", {}, head, ...figure, ...plain, element("dl", {}, ...lines));
    if (card.about.length) {
      const show = element("button", { type: "button" }, "Show in the timeline");
      show.addEventListener("click", () => {
        if (card.step) steps.pick(card.step);
        links.pin(card.about, "visit", card);
      });
      made.append(show);
      made.addEventListener("pointerenter", () => links.mark(card.about));
      made.addEventListener("pointerleave", () => links.release());
    }
    return made;
  });
  return made.length ? [element("ol", { className: "cards" }, ...made)] : [];
}

function notes() {
  const lines = data.notes.map((note) => element("p", {}, note));
  return lines.length ? [element("div", { className: "notes" }, ...lines)] : [];
}

function summary() {
  const parts = cards();
  if (data.figures.length) {
    const pairs = data.figures.map(([label, value]) =>
      element("div", {}, element("dt", {}, label), element("dd", {}, value)));
    parts.push(element("dl", { className: "figures" }, ...pairs));
  }
  if (!data.cards.length) parts.push(...notes());
  if (data.repairs.length) {
    const heading = element("h2", {}, "Repaired or left out");
    parts.push(element("div", { className: "repairs", role: "note" }, heading, list(data.repairs)));
  }
  return parts;
}

/** What comes last: what was read, and what was said on the way. */
function origin() {
  const parts = [];
  for (const [name, lines] of [["What was read", data.read], ["On the way", data.commentary]]) {
    if (!lines.length) continue;
    const caption = element("summary", {}, `${name} (${formatted(lines.length, 0)})`);
    parts.push(element("details", { open: lines.length <= 8 && name === "What was read" }, caption, list(lines)));
  }
  return parts;
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

/** Which step is drawn beside the first one; it is picked here, or in a chart by step. */
function stepPicker() {
  const names = steps.drawn.slice(1).sort((a, b) => a - b);
  const choice = element("select", {}, ...names.map((name) => element("option", {}, name)));
  const said = element("span", { className: "soft", role: "status" });
  choice.addEventListener("change", () => steps.pick(choice.value));
  const follow = (step) => {
    choice.value = steps.beside;
    const command = /^-?\d+$/.test(step) ? `; --option critical --step ${step} --html FILE draws it` : "";
    said.textContent = step === null || steps.drawn.includes(step) ? "" : ` Step ${step} is not drawn in this page${command}.`;
  };
  steps.followers.push(follow);
  follow(null);
  return element("p", { className: "picker" }, element("label", {}, `Drawn beside step ${steps.drawn[0]}: step `, choice), said);
}

/** Goes on when the browser has shown what there is; at once where it shows nothing (a hidden tab). */
function afterPaint(go) {
  let gone = false;
  const once = () => { if (!gone) go(); gone = true; };
  requestAnimationFrame(() => setTimeout(once));
  setTimeout(once, 250);
}

/** The sections of the page in order, each a function that puts one into `main`. */
function sections(main) {
  const tables = [...data.tables];
  const table = (one) => () => main.append(tableSection(one));
  let row = null;
  const charts = data.charts.flatMap((chart, index) => {
    const put = () => {
      const { section, draw } = chartSection(chart);
      const isFirst = steps.drawn.length > 1 && chart === data.charts.find((one) => one.step);
      if (isFirst) main.append(stepPicker());
      if (isFirst || !chart.narrow) row = null;
      if (chart.narrow && !row) main.append((row = element("div", { className: "beside" })));
      (row ?? main).append(section);
      draw(); // in the document already, so that it knows its width
    };
    const isLast = data.charts[index + 1]?.kind !== "timeline"; // of timelines that are to be compared
    const at = chart.kind === "timeline" && isLast ? tables.findIndex((one) => one.about.length) : -1;
    return at < 0 ? [put] : [put, ...tables.splice(at, 1).map(table)]; // below it what it is linked with
  });
  return [...charts, ...tables.map(table)];
}

/** The answer and what proves it come first; the rest when these are on the screen. */
function build() {
  const main = element("main", {}, header(), ...summary());
  document.body.append(main);
  const others = sections(main);
  if (data.charts[0]?.kind !== "bars3d") others.shift()?.(); // what takes seconds comes after the answer
  afterPaint(() => {
    for (const put of others) put();
    if (data.cards.length) main.append(...notes()); // the findings are what is to be read first
    main.append(...origin());
    if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
    document.documentElement.dataset.ready = "yes";
  });
}

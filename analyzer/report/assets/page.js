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

/** Returns a number exactly as the terminal shows it: in three significant digits, at most so many decimals. */
function formatted(value, digits) {
  const size = value ? Number(value.toExponential(2).split("e")[1]) : 2;
  const text = withDecimals(value, Math.max(0, Math.min(digits, 2 - size)));
  return /[1-9]/.test(text) ? text : "0";
}

/** Returns a number with so many decimals and thousands separators. */
function withDecimals(value, digits) {
  const [whole, decimals] = rounded(Math.abs(value), digits).split(".");
  const text = whole.replace(/\B(?=(\d{3})+$)/g, ",") + (decimals ? `.${decimals}` : "");
  return value < 0 && /[1-9]/.test(text) ? `−${text}` : text;
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
  return value === null || value === undefined ? GAP : `${formatted(value, 6)} ms`;
}

/** Shortens a text in the middle. */
function shortened(text, length) {
  const characters = Array.from(text);
  if (characters.length <= length) return text;
  const head = Math.floor((length - 1) / 2);
  const tail = length - 1 - head;
  return characters.slice(0, head).join("") + ELLIPSIS + (tail ? characters.slice(-tail).join("") : "");
}

/** The colours that drawings take from the style sheet at this moment (light or dark). */
function inks() {
  const style = getComputedStyle(document.documentElement);
  const names = ["ink", "soft", "line", "paper"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
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

/** Of pictures that are of one step each, those of the picked step are shown. */
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

function list(lines) {
  return element("ul", {}, ...lines.map((line) => element("li", {}, line)));
}

function header() {
  const parts = [element("p", { className: "option" }, data.subject)];
  parts.push(element("h1", {}, data.title));
  if (data.further) parts.push(element("p", { className: "further" }, data.further));
  return element("header", {}, ...parts);
}

/** A button that copies a text, and says so. */
function copier(words, text, label = words) {
  const button = element("button", { type: "button", "aria-label": label }, words);
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = words; }, 1500);
  });
  return button;
}

/** A command as one reads it, and a button that copies it whole. */
function commandOf(text, command) {
  return [element("code", { title: command }, text), " ", copier("Copy", command, `Copy the command: ${text}`)];
}

/** What it is worth, as a bar to the scale of all, with the line from the least to the most that it may be. */
function barOf([value, low, high], most) {
  const at = (one) => `${Math.max(0, Math.min(100, (100 * one) / most))}%`;
  const bar = element("span", { className: "bar", "aria-hidden": "true" }, element("b", {}));
  bar.firstChild.style.width = at(value);
  if (low === null || high === null) return bar;
  const line = element("i", {});
  [line.style.left, line.style.right] = [at(low), `calc(100% - ${at(high)})`];
  bar.append(line);
  return bar;
}

/** What was found, one below the other, the first one open; what is pointed at is marked in the pictures. */
function cards() {
  const most = Math.max(...data.cards.map(({ bar }) => (bar ? Math.max(...bar) : 0)));
  const made = data.cards.map((card, index) => {
    const lines = card.lines.flatMap(([label, text, command]) => {
      if (!label) return [];
      if (!command) return [element("dt", {}, label), element("dd", {}, text)];
      return [element("dt", {}, label), element("dd", {}, ...commandOf(text, command))];
    });
    const plain = card.lines.filter(([label]) => !label).map(([, text]) => element("p", {}, text));
    const name = element("h2", {}, element("span", { className: "place" }, String(index + 1)), card.title);
    const [, low, high] = card.bar ?? [];
    const between = (low ?? null) === null ? ""
      : `95 %: ${formatted(low, 6)} to ${formatted(high, 6)} ms`;
    const doubt = element("span", { className: "soft" }, between);
    const head = element("summary", {}, name, element("span", { className: "gain" }, card.figure, doubt));
    if (card.bar) head.append(barOf(card.bar, most));
    const more = element("details", { open: index === 0 }, head, ...plain, element("dl", {}, ...lines));
    const made = element("li", {}, more);
    if (card.about.length) {
      const show = element("button", { type: "button", className: "show" }, "Show in the timeline");
      show.addEventListener("click", () => {
        if (card.step) steps.pick(card.step);
        links.pin(card.about, "visit", card);
      });
      more.append(show);
      made.addEventListener("pointerenter", () => links.mark(card.about));
      made.addEventListener("pointerleave", () => links.release());
    }
    return made;
  });
  return made.length ? [element("ol", { className: "cards", "aria-label": "What each fix would save" }, ...made)] : [];
}

/** How far to trust the answer: what could not be known, and what of the input was repaired or left out. */
function trust() {
  const lines = data.notes.map((note) => element("p", {}, note));
  if (data.repairs.length === 1) lines.push(element("p", {}, `Repaired or left out: ${data.repairs[0]}`));
  if (data.repairs.length > 1) {
    const heading = element("summary", {}, `Repaired or left out (${formatted(data.repairs.length, 0)})`);
    lines.push(element("details", {}, heading, list(data.repairs)));
  }
  if (lines.length && data.cards.length) lines.unshift(element("h2", {}, "How far to trust this"));
  return lines.length ? [element("div", { className: "notes" }, ...lines)] : [];
}

function summary() {
  const parts = [];
  if (data.figures.length) {
    const pairs = data.figures.map(([label, value]) =>
      element("div", {}, element("dt", {}, label), element("dd", {}, value)));
    parts.push(element("dl", { className: "figures" }, ...pairs));
  }
  return data.cards.length ? parts : [...parts, ...trust()];
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

/** Which step is drawn; it is picked here, or in a chart by step. */
function stepPicker() {
  const names = [...steps.drawn].sort((a, b) => a - b);
  const choice = element("select", {}, ...names.map((name) => element("option", {}, name)));
  choice.addEventListener("change", () => steps.pick(choice.value));
  const follow = () => { choice.value = steps.picked; };
  steps.followers.push(follow);
  follow();
  return element("p", { className: "picker" }, element("label", {}, "Step ", choice));
}

/** Goes on when the browser has shown what there is; at once where it shows nothing (a hidden tab). */
function afterPaint(go) {
  let gone = false;
  const once = () => { if (!gone) go(); gone = true; };
  requestAnimationFrame(() => setTimeout(once));
  setTimeout(once, 250);
}

/** The sections of the page in order, each a function that puts one into `main`, or of small charts into `beside`. */
function sections(main, beside) {
  const drawn = new Set(data.charts.map(({ title }) => title)); // no two headings are the same
  const tables = data.tables.map((one) => ({ ...one, title: one.title + (drawn.has(one.title) ? ", as a table" : "") }));
  const table = (one) => () => main.append(tableSection(one));
  const firstOfSteps = data.charts.find((chart) => chart.step);
  const charts = data.charts.flatMap((chart, index) => {
    const put = () => {
      const { section, draw } = chartSection(chart);
      if (chart === firstOfSteps && steps.drawn.length > 1) main.append(stepPicker());
      (chart.narrow ? beside : main).append(section);
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
  const beside = element("div", { className: data.cards.length ? "" : "beside" });
  if (data.cards.length) main.append(element("div", { className: "answer" }, ...cards(), beside), ...trust());
  else main.append(beside);
  const others = sections(main, beside);
  others.shift()?.();
  afterPaint(() => {
    for (const put of others) put();
    if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
    document.documentElement.dataset.ready = "yes";
  });
}

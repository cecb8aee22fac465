// Tables that sort and search. Only one page of rows is in the document, so that many rows cost little.

const ROWS_A_PAGE = 100;

function isNumber(column) {
  return ["id", "int", "float", "percent"].includes(column.kind);
}

function cellText(column, value) {
  if (value === null) return GAP;
  if (column.kind === "int") return formatted(value, 0);
  if (column.kind === "float") return formatted(value, column.digits);
  if (column.kind === "percent") return `${formatted(100 * value, column.digits)} %`;
  if (column.kind === "bool") return value ? "yes" : "no";
  return String(value);
}

/** A long name that may break after a point, a slash, an underscore or a colon. */
function breakable(text) {
  if (text.length < 24) return [text];
  const parts = text.split(/(?<=[._/:])/);
  return parts.flatMap((part, index) => (index ? [element("wbr"), part] : [part]));
}

/** Orders two cells; gaps come last in either direction. */
function compareCells(left, right, direction) {
  if (left === null || right === null) return (left === null) - (right === null);
  if (typeof left === "string") return direction * collator.compare(left, right);
  return direction * (left - right);
}
const collator = new Intl.Collator("en", { numeric: true }); // rank10 after rank9

/** The change with the full colour in a coloured column: the 95th percentile of the sizes. */
function fullColour(rows, index) {
  const sizes = rows.filter((row) => row[index] !== null).map((row) => Math.abs(row[index])).sort((a, b) => a - b);
  return sizes[Math.ceil(0.95 * (sizes.length - 1))] || 1;
}

function tableSection(table) {
  const shown = (value) => table.short[value] ?? value; // short names of C++ functions
  const about = new Map(table.about.map((keys, index) => [table.rows[index], keys]));
  const state = { column: -1, direction: 0, page: 0, rows: table.rows };
  const body = element("tbody");
  const count = element("span", { className: "soft", role: "status" });
  const place = element("span", { className: "soft" });
  const earlier = buttonOf("‹ Previous", () => turn(-1));
  const later = buttonOf("Next ›", () => turn(+1));
  const searched = table.rows.map((row) =>
    row.filter((cell) => typeof cell === "string").join("\n").toLowerCase());
  const full = table.columns.map((column, index) =>
    column.scale === "diverging" ? fullColour(table.rows.filter(isCertain), index) : 0);

  /** Tells rows with significant changes, which have colours. */
  function isCertain(row) {
    return table.certain === null || row[table.certain] === true;
  }

  function select() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    state.rows = table.rows.filter((_, index) => words.every((word) => searched[index].includes(word)));
    if (state.direction) {
      state.rows.sort((a, b) => compareCells(a[state.column], b[state.column], state.direction));
    }
    state.page = 0;
    show();
  }

  function show() {
    const first = state.page * ROWS_A_PAGE;
    body.replaceChildren(...state.rows.slice(first, first + ROWS_A_PAGE).map(tableRow));
    const all = `${formatted(table.rows.length, 0)} row${table.rows.length === 1 ? "" : "s"}`;
    count.textContent = state.rows.length === table.rows.length ? all : `${formatted(state.rows.length, 0)} of ${all}`;
    const pages = Math.max(1, Math.ceil(state.rows.length / ROWS_A_PAGE));
    place.textContent = `page ${formatted(state.page + 1, 0)} of ${formatted(pages, 0)}`;
    earlier.disabled = state.page === 0;
    later.disabled = state.page + 1 >= pages;
    for (const part of [earlier, place, later]) part.hidden = pages === 1 && table.rows.length <= ROWS_A_PAGE;
  }

  function turn(by) {
    state.page += by;
    show();
    scroll.scrollTop = 0;
  }

  function tableRow(row) {
    const certain = isCertain(row);
    const made = element("tr", certain ? {} : { className: "soft" }, ...row.map((value, index) => {
      const column = table.columns[index];
      const className = isNumber(column) ? "number" : column.kind;
      const title = shown(value) === value ? "" : value;
      const command = table.commands[value];
      const words = command ? commandOf(value, command) : breakable(cellText(column, shown(value)));
      const cell = element("td", { className, title }, ...words);
      if (full[index] && value && certain) {
        const share = Math.min(1, Math.abs(value) / full[index]) * 45;
        cell.style.background = `color-mix(in srgb, var(--${value < 0 ? "good" : "bad"}) ${share}%, transparent)`;
      }
      return cell;
    }));
    return about.get(row)?.length ? linkedRow(made, about.get(row)) : made;
  }

  /** Links a row with the timelines: hovering marks its boxes, a click zooms to them. */
  function linkedRow(made, keys) {
    made.tabIndex = 0;
    made.className += " linked";
    made.classList.toggle("marked", isMarked(keys));
    made.addEventListener("pointerenter", () => links.mark(keys));
    made.addEventListener("pointerleave", () => links.release());
    made.addEventListener("click", () => links.pin(keys, "visit"));
    made.addEventListener("keydown", (event) => { if (event.key === "Enter") links.pin(keys, "visit"); });
    return made;
  }

  function isMarked(keys) {
    return Boolean(keys?.some((key) => links.marked.has(key)));
  }

  /** Marks the rows in sight; after a click in a timeline, scrolls to the first marked row. */
  function follow(how) {
    const first = how === "pin" ? state.rows.findIndex((row) => isMarked(about.get(row))) : -1;
    if (first >= 0 && Math.floor(first / ROWS_A_PAGE) !== state.page) {
      state.page = Math.floor(first / ROWS_A_PAGE);
      show();
    }
    const start = state.page * ROWS_A_PAGE;
    for (const [index, made] of [...body.children].entries()) {
      made.classList.toggle("marked", isMarked(about.get(state.rows[start + index])));
    }
    if (first >= 0) scroll.scrollTop = body.children[first - start].offsetTop - scroll.clientHeight / 3;
  }
  if (about.size) links.followers.push(follow);

  function sortBy(index) {
    const first = isNumber(table.columns[index]) ? -1 : 1; // largest numbers first
    const next = state.column !== index || !state.direction ? first : state.direction === first ? -first : 0;
    Object.assign(state, { column: index, direction: next });
    const words = { 1: "ascending", 0: "none", "-1": "descending" };
    heads.forEach((head, at) => head.setAttribute("aria-sort", at === index ? words[next] : "none"));
    select();
  }

  const heads = table.columns.map((column, index) => {
    const className = isNumber(column) ? "number" : "";
    const button = buttonOf(column.title, () => sortBy(index));
    return element("th", { scope: "col", "aria-sort": "none", className }, button);
  });
  const label = `Search ${table.title}`;
  const search = element("input", { type: "search", placeholder: "Search", "aria-label": label, oninput: select });

  const pager = element("span", { className: "tools push" }, earlier, place, later);
  const grid = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body);
  const region = { className: "scroll", tabIndex: 0, role: "region", "aria-label": table.title };
  const scroll = element("div", region, grid);
  const tools = element("div", { className: "tools" }, search, count, pager);
  const hint = "Hover or click a row to find it in the timeline.";
  if (about.size) tools.append(element("span", { className: "soft hint" }, hint));
  const note = table.note ? [element("p", { className: "soft" }, table.note)] : [];
  show();
  const heading = element("h2", {}, table.title);
  return element("section", { id: table.id, "data-table": table.name }, heading, tools, scroll, ...note);
}

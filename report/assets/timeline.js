// Spans on lanes, to scale: spans of a lane that overlap get rows of their own below each other.

const [LOWEST_ROW, HIGHEST_ROW] = [9, 20]; // CSS pixels; lower where there are many
const WANTED_HEIGHT = 560;
const NAMED_ROW = 12; // a row from here on has room for names
const LANE_GAP = 6;
const HEADING = 13; // pixels for the name of a rank above its lanes, where there is no room beside them
const FEWEST = 8; // characters of a name in a box, unless it is whole
const AXIS = 26;
const ROWS_A_LANE = [12, 8, 5, 3]; // at most: the first with which there are no more in all than these
const ALL_ROWS = 64; // further spans share the last row of their lane
const STRIPE = 3; // of the path
const [FLAG_ROW, BEND, PATH_ROW] = [13, 14, 10]; // pixels of a row of names of the path, below them, and of the path
const APART = 6; // between two poles, and between two turns of the path from lane to lane
const timelines = []; // of the page: what is zoomed in one is zoomed in all that are shown

/** Two timelines that are to be compared: of these only the paths are shown at first. */
const pair = {
  charts: data.charts.filter((one) => one.kind === "timeline" && one.path.length && !one.step),
  isOpen: false,
  followers: [],
  open(isOpen) {
    if (isOpen === this.isOpen) return;
    this.isOpen = isOpen;
    for (const follow of this.followers) follow();
  },
};
if (pair.charts.length !== 2) pair.charts = [];
addEventListener("beforeprint", () => pair.open(true));

drawers.timeline = (chart, place) => {
  const { spans, lanes, height, rowHeight, covered, flagRows } = laidOut(chart);
  const strip = AXIS + flagRows * FLAG_ROW + BEND; // where the path is drawn alone
  let [first, last] = timesOfAll();
  const path = chart.path.map(([span, start, duration, name, idle, ...keys]) => (
    { span: spans[span], start, duration, name: chart.names[name], idle, keys }));
  const pathEnds = runningEnds(path);
  const { names, short, groups, lane_names: laneNames } = chart;
  const gap = rowHeight > NAMED_ROW ? 3 : 1; // between rows
  const colourOf = coloursOf(chart);
  const pressed = new Set();
  let found = null; // spans that the search found
  let linked = null; // and those that the marked rows of tables are about
  let chosen = null;
  let stop = -1; // place on the path
  let range = null; // from when to when something is measured
  const about = path.length ? " The line is the critical path, dotted where nothing ran." : "";
  const detail = element("p", { className: "detail", role: "status" },
    "Drag to move, or along the times (or with Shift) to measure; click, then use the wheel to zoom; " +
    `keys ← → + − 0.${about}`);

  const describe = (span) =>
    `${names[span.name]}\n${groups[span.group]} · ${laneNames[span.lane]}\n` +
    `${milliseconds(span.duration)}, from ${milliseconds(span.start)} to ${milliseconds(span.start + span.duration)}`;
  const margin = (state) => Math.min(190, state.width * 0.28);
  const scaleToFit = (state) => Math.max(1, state.width - margin(state) - 12) / Math.max(last - first, 1e-9);

  const board = makeBoard(`${chart.title}: timeline`, height, {
    flat: true,
    limits: (state) => ({ min: scaleToFit(state) / 2, max: scaleToFit(state) * 1e6 }),
    fit: (state) => ({ scale: scaleToFit(state), x: margin(state) - first * scaleToFit(state), y: 0 }),
    hover: (x, y) => { const span = spanAt(x, y); touch(span); return span ? describe(span) : ""; },
    leave: () => touch(null),
    click: (x, y) => { const span = spanAt(x, y); choose(span); links.pin(span?.keys ?? []); },
    selects: ({ x, y }, isShift) => x >= margin(board.state) && (isShift || y < AXIS),
    select: measure,
    within,
    moved: () => { for (const other of timelines) if (other !== board) other.show(board.range()); },
    draw,
  });
  board.range = () => {
    const { view, width } = board.state;
    return [(margin(board.state) - view.x) / view.scale, (width - view.x) / view.scale];
  };
  let drawn = [steps.picked, steps.beside];
  steps.followers.push(() => {
    if (drawn[0] === steps.picked && drawn[1] === steps.beside) return;
    drawn = [steps.picked, steps.beside];
    [first, last] = timesOfAll();
    board.resize();
    if (board.state.width) board.fit();
  });
  board.show = ([from, to]) => {
    const { state } = board;
    if (!state.width) return; // hidden
    const scale = (state.width - margin(state)) / Math.max(to - from, 1e-9);
    state.view = within({ scale, x: margin(state) - from * scale, y: 0 }, state);
    state.fitted = false;
    board.redraw();
  };
  timelines.push(board);

  /** Keeps a part of the drawing in sight. */
  function within(view, state) {
    const [left, right] = [margin(state) + 40, state.width - 40];
    const x = Math.min(right - first * view.scale, Math.max(left - last * view.scale, view.x));
    return { ...view, x };
  }

  /** Measures from one place to another; from a place to itself nothing. */
  function measure(...places) {
    const { state } = board;
    const inside = (x) => Math.max(margin(state), Math.min(state.width, x));
    const [from, to] = places.map((x) => (inside(x) - state.view.x) / state.view.scale).sort((a, b) => a - b);
    range = from < to ? [from, to] : null;
    detail.textContent = range
      ? `Selected: ${milliseconds(to - from)}, from ${milliseconds(from)} to ${milliseconds(to)}.` : "";
    board.redraw();
  }

  let touched = null;
  function touch(span) {
    if (span === touched) return;
    touched = span;
    if (span?.keys.length) links.mark(span.keys);
    else links.release();
  }

  links.followers.push((how) => {
    const { marked } = links;
    const hits = marked.size ? spans.filter((span) => span.keys.some((key) => marked.has(key))) : [];
    const stops = marked.size ? path.filter((part) => part.keys.some((key) => marked.has(key))) : [];
    linked = hits.length || stops.length ? new Set([...hits, ...stops.map((part) => part.span)].map((one) => one.index)) : null;
    const goal = steps.drawn.includes(links.at.step) ? links.at.step : steps.picked;
    if (how === "visit" && linked && (!chart.step || chart.step === goal)) {
      const place = hits.filter((span) => span.keys.includes(links.at.seen)).sort((a, b) => b.duration - a.duration)[0];
      const seen = place ? [place] : stops.length ? stops : hits;
      const from = seen.reduce((least, one) => Math.min(least, one.start), Infinity);
      const to = seen.reduce((most, one) => Math.max(most, one.start + one.duration), -Infinity);
      const beside = Math.max((to - from) * 0.25, (last - first) / 200);
      pair.open(true);
      for (const other of timelines) other.show([from - beside, to + beside]);
      if (place) choose(place);
      bring(place ?? seen[0].span ?? seen[0]);
    }
    board.redraw();
  });

  /** Scrolls the page to a box: with the title of the timeline where both have room. */
  function bring(span) {
    board.canvas.closest("section").scrollIntoView();
    const below = board.canvas.getBoundingClientRect().top + span.top + 2 * rowHeight - innerHeight;
    if (below > 0) scrollBy(0, below + innerHeight / 3);
  }

  function choose(span) {
    chosen = span;
    if (span) detail.textContent = describe(span).replace(/\n/g, " · ");
    board.redraw();
  }

  function visit(span) {
    const { state } = board;
    if (pair.charts.includes(chart)) pair.open(true);
    const room = state.width - margin(state);
    const widest = Math.max(room * 0.4, 20);
    const duration = Math.max(span.duration, 1e-9);
    if (duration * state.view.scale < 30) state.view.scale = Math.min(60 / duration, scaleToFit(state) * 1e6);
    state.view.scale = Math.min(state.view.scale, widest / duration);
    state.view.x = margin(state) + room / 2 - (span.start + span.duration / 2) * state.view.scale;
    state.fitted = false;
    choose(span);
    bring(span);
  }

  /** Goes along the path, past stretches that are too short to see. */
  function follow(by) {
    const long = (last - first) / 500;
    const start = stop < 0 && by < 0 ? path.length : stop;
    let next = start + by;
    while (path[next] && path[next].duration < long) next += by;
    if (!path[next]) return;
    stop = next;
    const part = path[stop];
    const beside = Math.max(part.duration, long) * 1.5;
    board.show([part.start - beside, part.start + part.duration + beside]);
    choose(part.span);
    detail.textContent = `${part.name} · ${laneNames[part.span.lane]} · ${milliseconds(part.duration)} of the ` +
      `critical path, from ${milliseconds(part.start)} (${formatted(stop + 1, 0)} of ${formatted(path.length, 0)})`;
    links.pin(part.keys);
  }

  function spanAt(x, y) {
    const { state } = board;
    const { view } = state;
    if (x < margin(state)) return null;
    const time = (x - view.x) / view.scale;
    const slack = 2 / view.scale; // a span narrower than a pixel can be hit too
    if (path.length && y >= strip && y < strip + PATH_ROW) {
      const part = path[firstAfter(pathEnds, time)];
      return part && part.start <= time + slack ? part.span : null;
    }
    for (const lane of lanes) {
      const row = lane.rows[Math.floor((y - lane.top) / rowHeight)];
      if (y < lane.top || !row) continue;
      let best = null;
      for (let at = firstAfter(row.ends, time - slack); row.spans[at]?.start <= time + slack; at += 1) {
        best = row.spans[at];
      }
      return best;
    }
    return null;
  }

  function draw(context, view, state) {
    const left = margin(state);
    const ink = inks();
    drawAxis(context, view, state, left, ink);
    context.save();
    context.beginPath();
    context.rect(left, AXIS, state.width - left, state.height);
    context.clip();
    for (const lane of lanes) for (const row of lane.rows) drawRow(context, view, state, lane, row, ink);
    if (path.length) {
      drawPath(context, view, state, ink);
      drawStrip(context, view, state);
      drawFlags(context, view, state, left, ink);
    }
    if (range) drawRange(context, view, state, ink);
    context.restore();
    if (range) nameRange(context, view, state, left, ink);
    drawLaneNames(context, state, left, ink);
  }

  function drawRow(context, view, state, lane, row, ink) {
    const from = -view.x / view.scale;
    const to = (state.width - view.x) / view.scale;
    const top = lane.top + row.index * rowHeight;
    let drawnTo = -1;
    context.font = `${Math.min(11, rowHeight - 2)}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    for (let at = firstAfter(row.ends, from); at < row.spans.length && row.spans[at].start <= to; at += 1) {
      const span = row.spans[at];
      const x = span.start * view.scale + view.x;
      const width = Math.max(span.duration * view.scale, 1);
      const hit = span === chosen || found?.has(span.index) || linked?.has(span.index);
      if (x + width < drawnTo + 1 && !hit) continue; // its pixel is taken
      drawnTo = Math.floor(x + width);
      const faded = (found && !found.has(span.index)) || (linked && !linked.has(span.index)) ||
        (pressed.size && !pressed.has(groups[span.group]));
      context.globalAlpha = faded ? 0.15 : 1;
      context.fillStyle = colourOf(groups[span.group]);
      context.fillRect(x, top, width > 3 ? width - 0.6 : width, rowHeight - gap);
      if (span === chosen) {
        context.strokeStyle = ink.ink;
        context.lineWidth = 2;
        context.strokeRect(x, top, width, rowHeight - gap);
      }
      if (width > 34 && rowHeight >= NAMED_ROW) drawName(context, span, x, top, width, state);
    }
    context.globalAlpha = 1;
  }

  /** Draws the path as one line through the boxes, on paper so that it stands out on every colour. */
  function drawPath(context, view, state, ink) {
    const [working, idle, turning] = [new Path2D(), new Path2D(), new Path2D()];
    const across = (time) => Math.max(-9, Math.min(state.width + 9, time * view.scale + view.x)); // a dash is costly
    const lineOf = (part) => part.span.top + rowHeight - gap - STRIPE / 2;
    const to = (state.width - view.x) / view.scale;
    let before = path[Math.max(0, firstAfter(pathEnds, -view.x / view.scale) - 1)];
    let drawn = { to: -Infinity, y: NaN, idle: null };
    const turns = []; // from lane to lane: of those close together, which would hide the boxes, the longest
    for (let at = firstAfter(pathEnds, -view.x / view.scale); at < path.length && path[at].start <= to; at += 1) {
      const part = path[at];
      const [left, right] = [across(part.start), across(part.start + part.duration)];
      const y = lineOf(part);
      const isSame = y === drawn.y && part.idle === drawn.idle;
      if (!isSame || right > drawn.to + 0.5) { // else its pixel is taken
        const line = part.idle ? idle : working;
        line.moveTo(left, y);
        line.lineTo(Math.max(right, left + 0.5), y);
        drawn = { to: Math.max(right, left + 0.5), y, idle: part.idle };
      }
      const turn = { x: left, from: lineOf(before), to: y, length: Math.abs(y - lineOf(before)) };
      if (turn.length && (!turns.length || left >= turns.at(-1).x + APART)) turns.push(turn);
      else if (turn.length > turns.at(-1)?.length) turns[turns.length - 1] = turn;
      before = part;
    }
    for (const { x, from, to: end } of turns) {
      turning.moveTo(x, from);
      turning.lineTo(x, end);
    }
    context.lineCap = "square";
    for (const [width, colour] of [[STRIPE + 2.5, ink.paper], [STRIPE, ink.ink]]) {
      context.lineWidth = width - 1.5;
      context.strokeStyle = colour;
      context.stroke(turning);
      context.lineWidth = width;
      context.stroke(working);
      context.lineWidth = width - 1;
      context.setLineDash([1, 5]);
      context.stroke(idle);
      context.setLineDash([]);
    }
    context.lineCap = "butt";
  }

  function drawRange(context, view, state, ink) {
    const [from, to] = range.map((time) => time * view.scale + view.x);
    context.fillStyle = ink.accent;
    context.globalAlpha = 0.15;
    context.fillRect(from, AXIS, to - from, state.height);
    context.globalAlpha = 1;
    for (const x of [from, to]) context.fillRect(x - 0.5, AXIS, 1, state.height);
  }

  function nameRange(context, view, state, left, ink) {
    const words = milliseconds(range[1] - range[0]);
    const wide = widthOf(context, words) + 8;
    const middle = (range[0] + range[1]) / 2 * view.scale + view.x;
    const x = Math.max(left, Math.min(state.width - wide, middle - wide / 2));
    context.fillStyle = ink.paper;
    context.fillRect(x, 0, wide, AXIS - 2);
    context.fillStyle = ink.accent;
    context.fillText(words, x + 4, AXIS / 2);
  }

  /** Draws the path once more, alone and in one row: what it consists of. */
  function drawStrip(context, view, state) {
    const to = (state.width - view.x) / view.scale;
    let drawnTo = -1;
    for (let at = firstAfter(pathEnds, -view.x / view.scale); at < path.length && path[at].start <= to; at += 1) {
      const { start, duration, idle, span } = path[at];
      const [x, width] = [start * view.scale + view.x, Math.max(duration * view.scale, 1)];
      if (x + width < drawnTo + 1) continue; // its pixel is taken
      drawnTo = Math.floor(x + width);
      context.fillStyle = idle ? chart.idle : colourOf(groups[span.group]);
      context.fillRect(x, strip, width > 3 ? width - 0.6 : width, PATH_ROW);
    }
  }

  /** Names the longest stretches of the path that are in sight. */
  function drawFlags(context, view, state, left, ink) {
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.lineWidth = 1;
    const across = (time) => time * view.scale + view.x;
    const inSight = chart.flags.filter(([start, duration]) =>
      across(start + duration / 2) >= left && across(start + duration / 2) <= state.width);
    for (const flag of flagsOf(inSight, across, left, state.width - 4, (text) => widthOf(context, text) + 10)) {
      if (flag.row >= flagRows) continue;
      const y = strip - BEND - (flag.row + 0.5) * FLAG_ROW;
      context.strokeStyle = ink.soft;
      context.beginPath();
      context.moveTo(flag.left, y - FLAG_ROW / 2 + 2);
      context.lineTo(flag.left, strip - BEND + 2);
      context.lineTo(flag.foot, strip + 2);
      context.stroke();
      context.fillStyle = ink.ink;
      context.fillText(flag.text, flag.left + 4, y);
    }
  }

  function drawName(context, span, x, top, width, state) {
    const from = Math.max(x, margin(state));
    const room = Math.min(x + width, state.width) - from - 8;
    if (room < 26) return;
    context.fillStyle = inkOn(colourOf(groups[span.group]));
    const words = [names[span.name], short[span.name] ?? names[span.name]];
    const text = words.find((text) => widthOf(context, text) <= room) ?? begun(context, words[0], room);
    if (text) context.fillText(text, from + 4, top + (rowHeight - gap) / 2 + 0.5);
  }

  /** As many words of a name as there is room for, from its beginning; "" where that says too little. */
  function begun(context, name, room) {
    const words = name.split(/(?<=[._:/ ])|(?<=[a-z0-9])(?=[A-Z])/);
    while (words.length > 1) {
      words.pop();
      const text = `${words.join("").replace(/[._:/ ]+$/, "")}${ELLIPSIS}`;
      if (widthOf(context, text) <= room) return text.length > FEWEST ? text : "";
    }
    return "";
  }

  function drawAxis(context, view, state, left, ink) {
    const step = niceStep(90 / view.scale);
    const decimals = Math.max(0, Math.min(9, -Math.floor(Math.log10(step) + 1e-9)));
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "left";
    const [from, to] = [left, state.width].map((x) => (x - view.x) / view.scale / step);
    for (let tick = Math.ceil(from); tick <= to; tick += 1) {
      const x = tick * step * view.scale + view.x;
      context.fillStyle = ink.line;
      context.fillRect(x, AXIS - 6, 1, state.height);
      context.fillStyle = ink.soft;
      context.fillText(withDecimals(tick * step, decimals), x + 3, AXIS / 2);
    }
    context.fillStyle = ink.paper;
    context.fillRect(0, 0, left, AXIS);
    context.fillStyle = ink.soft;
    context.fillText(chart.x_label, 8, AXIS / 2);
  }

  function drawLaneNames(context, state, left, ink) {
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = ink.ink;
    if (path.length) context.fillText("critical path", 8, strip + PATH_ROW / 2);
    for (const [index, lane] of lanes.entries()) {
      const bottom = lane.top + Math.max(lane.rows.length * rowHeight, NAMED_ROW);
      const above = lane.top - LANE_GAP / 2 - (lane.heading ? HEADING : 0);
      context.fillStyle = ink.paper;
      context.fillRect(0, above, left - 2, bottom - above + LANE_GAP / 2);
      context.fillStyle = ink.ink;
      if (lane.heading) context.fillText(lane.heading, 8, lane.top - HEADING / 2);
      context.fillText(fittedLane(context, lane.name, left - 14), lane.heading === undefined ? 8 : 14, (lane.top + bottom - 3) / 2);
      context.fillStyle = ink.line;
      if (index) context.fillRect(0, above, state.width, 1);
    }
  }

  const inOrder = lanes.flatMap((lane) => lane.spans).sort((a, b) => a.start - b.start);
  const byIndex = new Map(inOrder.map((span) => [span.index, span]));
  const lower = names.map((name) => name.toLowerCase());
  const finder = makeFinder("Find an operation",
    (text) => inOrder.filter((span) => lower[span.name].includes(text)).map((span) => span.index),
    (hits) => { found = hits; board.redraw(); },
    (index) => visit(byIndex.get(index)));
  const legend = makeLegend(counted(chart.spans.map((span) => groups[span[4]])), colourOf, pressed, board.redraw);
  const step = (text, name, by) => {
    const button = element("button", { type: "button", "aria-label": name, title: name }, text);
    button.addEventListener("click", () => follow(by));
    return button;
  };
  const along = path.length ? [step("‹ Path", "Back on the path", -1), step("Path ›", "On along the path", 1)] : [];
  const words = `${formatted(covered, 0)} boxes overlap, in the last row of a lane; zoom in or search to see them.`;
  const notes = covered ? [element("p", { className: "soft" }, words)] : [];
  const fold = pair.charts.includes(chart) ? [element("button", { type: "button" }, "All lanes")] : [];
  place.append(toolbar(finder, [...fold, ...along, ...board.buttons]), legend, board.board, detail, ...notes);
  if (pair.charts.includes(chart)) {
    const follow = () => {
      Object.assign(board.board.style, pair.isOpen
        ? { maxHeight: "", overflow: "" } : { maxHeight: `${strip + PATH_ROW + LANE_GAP}px`, overflow: "hidden" });
      for (const part of [legend, detail, ...notes]) part.hidden = !pair.isOpen;
      fold[0].setAttribute("aria-expanded", String(pair.isOpen));
      [first, last] = timesOfAll();
      if (board.state.width) board.fit();
    };
    fold[0].addEventListener("click", () => pair.open(!pair.isOpen));
    pair.followers.push(follow);
    follow();
  }
  board.resize();
};

/** When the first box of all timelines that are shown begins and the last ends: they have one scale. */
function timesOfAll() {
  let [first, last] = [Infinity, -Infinity];
  for (const chart of data.charts) {
    if (chart.kind !== "timeline" || !steps.shows(chart)) continue;
    const isFolded = pair.charts.includes(chart) && !pair.isOpen;
    const times = isFolded ? chart.path.map((part) => part.slice(1, 3)) : chart.spans.map((span) => span.slice(2, 4));
    for (const [start, duration] of times) {
      first = Math.min(first, start);
      last = Math.max(last, start + duration);
    }
  }
  return first > last ? [0, 1] : [first, last];
}

/** Places the spans: lanes in order, each with as many rows as overlap needs, the path in the first ones. */
function laidOut(chart) {
  const lanes = chart.lane_names.map((_, id) => ({ id, spans: [], rows: [], top: 0 }));
  const onPath = new Set(chart.path.map(([span]) => span));
  const spans = chart.spans.map(([lane, name, start, duration, group, ...keys], index) => (
    { lane, name, start, duration, group, keys, index, top: 0 }));
  for (const span of spans) lanes[span.lane].spans.push(span);
  const rank = (span) => (onPath.has(span.index) ? 0 : 1);
  for (const lane of lanes) {
    lane.spans.sort((a, b) => rank(a) - rank(b) || a.start - b.start || b.duration - a.duration);
  }
  let [rows, covered] = [0, 0];
  for (const most of ROWS_A_LANE) {
    covered = 0;
    for (const lane of lanes) {
      lane.rows = [];
      for (const span of lane.spans) covered += !putIntoRow(lane, span, most);
      for (const row of lane.rows) row.ends = runningEnds(row.spans);
    }
    rows = lanes.reduce((total, lane) => total + lane.rows.length, 0);
    if (rows <= ALL_ROWS) break;
  }
  const rowHeight = Math.max(LOWEST_ROW, Math.min(HIGHEST_ROW, Math.floor(WANTED_HEIGHT / Math.max(rows, 1))));
  const [first, last] = timesOfAll();
  const wide = Math.min(1150, 0.7 * document.documentElement.clientWidth); // about what a drawing has
  const across = (time) => (time - first) * wide / (last - first);
  const flying = flagsOf(chart.flags, across, 0, wide, (text) => 6 * text.length);
  const flagRows = Math.max(0, ...flying.map((flag) => flag.row + 1));
  let top = AXIS + LANE_GAP + (onPath.size ? flagRows * FLAG_ROW + BEND + PATH_ROW + LANE_GAP : 0);
  nameLanes(lanes, chart.lane_names);
  for (const lane of lanes) {
    lane.top = top += lane.heading ? HEADING : 0;
    for (const row of lane.rows) for (const span of row.spans) span.top = top + row.index * rowHeight;
    top += Math.max(lane.rows.length * rowHeight, NAMED_ROW) + LANE_GAP;
  }
  return { spans, lanes, rowHeight, covered, flagRows, height: Math.max(top, 80) };
}

/** Gives each lane its name; on a narrow screen the rank stands once, above its lanes. */
function nameLanes(lanes, names) {
  const isNarrow = document.documentElement.clientWidth < 640 && names.length > 1 && names.every((name) => name.includes(" "));
  let before = null;
  for (const lane of lanes) {
    const name = names[lane.id];
    lane.name = name;
    if (!isNarrow) continue;
    const rank = name.slice(0, name.indexOf(" "));
    lane.name = name.slice(rank.length + 1);
    lane.heading = rank === before ? "" : rank;
    before = rank;
  }
}

/**
 * Names of stretches ([start, duration, text], by time) so that nothing goes through a text: each stands on the
 * middle of its stretch and flies to the right, or from elsewhere, its pole bent. `timeline_chart.py` has the same rules.
 */
function flagsOf(named, across, left, right, widthOfText) {
  const found = [];
  let before = Infinity; // where the one to the right flies
  for (const [at, [start, duration, text]] of [...named.entries()].reverse()) {
    const [foot, wide] = [across(start + duration / 2), widthOfText(text)];
    const place = Math.max(Math.min(foot, right - wide, before - APART), left + at * APART);
    if (place + wide > right) continue;
    before = place;
    const below = found.filter((flag) => flag.left <= before + wide).map((flag) => flag.row);
    found.push({ row: 1 + Math.max(-1, ...below), left: before, foot, text });
  }
  return found;
}

/** Puts a span into the first row of its lane in which its time is free, else into the last; was it free? */
function putIntoRow(lane, span, mostRows) {
  const tolerance = 1e-9 * Math.max(1, Math.abs(span.start)); // spans that touch share a row
  const [start, end] = [span.start + tolerance, span.start + span.duration - tolerance];
  for (let index = 0; index < mostRows; index += 1) {
    const row = (lane.rows[index] ??= { index, spans: [] });
    const at = placeIn(row.spans, span.start);
    const [before, after] = [row.spans[at - 1], row.spans[at]];
    const free = (!before || before.start + before.duration <= start) && (!after || after.start >= end);
    if (!free && index < mostRows - 1) continue;
    row.spans.splice(at, 0, span);
    return free;
  }
}

/** Where in spans by their start one belongs that starts at `time`: after those that start with it. */
function placeIn(spans, time) {
  let [low, high] = [0, spans.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (spans[middle].start <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The latest end among the first n spans, for each n: grows, so it can be searched by halving. */
function runningEnds(spans) {
  let end = -Infinity;
  return spans.map((span) => (end = Math.max(end, span.start + span.duration)));
}

/** The first of ends in order that is not before `time`. */
function firstAfter(ends, time) {
  let [low, high] = [0, ends.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ends[middle] < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The smallest of 1, 2, 5 × 10^n that is at least `wanted`. */
function niceStep(wanted) {
  const power = 10 ** Math.floor(Math.log10(wanted));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= wanted * 0.999);
}

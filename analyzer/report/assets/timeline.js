// Spans on lanes, to scale: spans of a lane that overlap get rows of their own below each other.

const [LOWEST_ROW, HIGHEST_ROW] = [9, 20]; // CSS pixels; lower where there are many
const WANTED_HEIGHT = 560;
const NAMED_ROW = 12; // a row from here on has room for names
const LANE_GAP = 6;
const AXIS = 26;
const ROWS_A_LANE = 8; // at most: further spans share the last one
const STRIPE = 3; // of the path
const timelines = []; // of the page: all timelines in sight zoom together

drawers.timeline = (chart, place) => {
  const { spans, lanes, height, rowHeight, covered } = laidOut(chart);
  let [first, last] = timesOfAll();
  const path = chart.path.map(([span, start, duration, name, idle, ...keys]) => (
    { span: spans[span], start, duration, name: chart.names[name], idle, keys }));
  const pathEnds = runningEnds(path);
  const { names, groups, lane_names: laneNames } = chart;
  const gap = rowHeight > NAMED_ROW ? 3 : 1; // between rows
  const { colours } = chart;
  let found = null; // indices of the spans that the search found
  let linked = null; // indices of the spans of the marked rows of tables
  let chosen = null;
  const about = path.length ? " The line is the critical path, dotted where nothing ran." : "";
  const detail = element("p", { className: "detail", role: "status" },
    `Drag to move; click, then use the wheel to zoom; keys W A S D, ← → + − 0.${about}`);

  const describe = (span) =>
    `${names[span.name]}\n${groups[span.group]} · ${laneNames[span.lane]}\n` +
    `${milliseconds(span.duration)}, from ${milliseconds(span.start)} to ${milliseconds(span.start + span.duration)}`;
  const margin = (state) => Math.min(190, state.width * 0.28);
  const scaleToFit = (state) => Math.max(1, state.width - margin(state) - 12) / Math.max(last - first, 1e-9);

  const board = makeBoard(`${chart.title}: timeline`, height, {
    limits: (state) => ({ min: scaleToFit(state) / 2, max: scaleToFit(state) * 1e6 }),
    fit: (state) => ({ scale: scaleToFit(state), x: margin(state) - first * scaleToFit(state) }),
    hover: (x, y) => { const span = spanAt(x, y); touch(span); return span ? describe(span) : ""; },
    leave: () => touch(null),
    click: (x, y) => { const span = spanAt(x, y); choose(span); links.pin(span?.keys ?? []); },
    within,
    moved: () => { for (const other of timelines) if (other !== board) other.show(board.range()); },
    draw,
  });
  board.range = () => {
    const { view, width } = board.state;
    return [(margin(board.state) - view.x) / view.scale, (width - view.x) / view.scale];
  };
  let drawn = steps.picked;
  steps.followers.push(() => {
    if (drawn === steps.picked) return;
    drawn = steps.picked;
    [first, last] = timesOfAll();
    board.resize();
    if (board.state.width) board.fit();
  });
  board.show = ([from, to]) => {
    const { state } = board;
    if (!state.width) return; // hidden
    const scale = (state.width - margin(state)) / Math.max(to - from, 1e-9);
    state.view = within({ scale, x: margin(state) - from * scale }, state);
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

  let touched = null;
  function touch(span) {
    if (span === touched) return;
    touched = span;
    if (span?.keys.length) links.mark(span.keys);
    else links.release();
  }

  links.followers.push((how) => {
    const isMarked = (box) => box.keys.some((key) => links.marked.has(key));
    const [hits, stops] = [spans.filter(isMarked), path.filter(isMarked)];
    const marked = [...hits, ...stops.map((part) => part.span)];
    linked = marked.length ? new Set(marked.map((span) => span.index)) : null;
    const goal = steps.drawn.includes(links.at.step) ? links.at.step : steps.picked;
    if (how === "visit" && linked && (!chart.step || chart.step === goal)) {
      const evidence = hits.filter((span) => span.keys.includes(links.at.seen)).sort((a, b) => b.duration - a.duration)[0];
      const goals = evidence ? [evidence] : stops.length ? stops : hits;
      const from = goals.reduce((least, span) => Math.min(least, span.start), Infinity);
      const to = goals.reduce((most, span) => Math.max(most, span.start + span.duration), -Infinity);
      const beside = Math.max((to - from) * 0.25, (last - first) / 200);
      for (const other of timelines) other.show([from - beside, to + beside]);
      if (evidence) choose(evidence);
      bring(evidence ?? goals[0].span ?? goals[0]);
    }
    board.redraw();
  });

  /** Scrolls the page to a box, with the title of the timeline if both have room. */
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

  function spanAt(x, y) {
    const { state } = board;
    const { view } = state;
    if (x < margin(state)) return null;
    const time = (x - view.x) / view.scale;
    const slack = 2 / view.scale; // a span narrower than a pixel can be hit too
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
    if (path.length) drawPath(context, view, state, ink);
    context.restore();
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
      const faded = (found && !found.has(span.index)) || (linked && !linked.has(span.index));
      context.globalAlpha = faded ? 0.15 : 1;
      context.fillStyle = colours[span.group];
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

  /** Draws the path as one line through the boxes, with a paper-coloured edge for contrast. */
  function drawPath(context, view, state, ink) {
    const [working, idle, turning] = [new Path2D(), new Path2D(), new Path2D()];
    const across = (time) => Math.max(-9, Math.min(state.width + 9, time * view.scale + view.x)); // a dash is costly
    const lineOf = (part) => part.span.top + rowHeight - gap - STRIPE / 2;
    const to = (state.width - view.x) / view.scale;
    let before = path[Math.max(0, firstAfter(pathEnds, -view.x / view.scale) - 1)];
    let drawn = { to: -Infinity, y: NaN, idle: null };
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
      turning.moveTo(left, lineOf(before));
      turning.lineTo(left, y);
      before = part;
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

  function drawName(context, span, x, top, width, state) {
    const from = Math.max(x, margin(state));
    const room = Math.min(x + width, state.width) - from - 8;
    if (room < 26) return;
    context.fillStyle = chart.inks[span.group];
    const text = fitted(context, names[span.name], room);
    if (text) context.fillText(text, from + 4, top + (rowHeight - gap) / 2 + 0.5);
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
    context.fillText("time (ms)", 8, AXIS / 2);
  }

  function drawLaneNames(context, state, left, ink) {
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = ink.ink;
    for (const [index, lane] of lanes.entries()) {
      const bottom = lane.top + Math.max(lane.rows.length * rowHeight, NAMED_ROW);
      const above = lane.top - LANE_GAP / 2;
      context.fillStyle = ink.paper;
      context.fillRect(0, above, left - 2, bottom - above + LANE_GAP / 2);
      context.fillStyle = ink.ink;
      context.fillText(fitted(context, laneNames[lane.id], left - 14), 8, (lane.top + bottom - 3) / 2);
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
  const words = `${formatted(covered, 0)} boxes overlap, in the last row of a lane; zoom in or search to see them.`;
  const notes = covered ? [element("p", { className: "soft" }, words)] : [];
  place.append(toolbar(finder, board.buttons), makeLegend(chart), board.board, detail, ...notes);
  board.resize();
};

/** The begin of the first box and the end of the last in all timelines in sight, which share one scale. */
function timesOfAll() {
  let [first, last] = [Infinity, -Infinity];
  for (const chart of data.charts) {
    if (chart.kind !== "timeline" || !steps.shows(chart)) continue;
    for (const [, , start, duration] of chart.spans) {
      first = Math.min(first, start);
      last = Math.max(last, start + duration);
    }
  }
  return first > last ? [0, 1] : [first, last];
}

/** Places the spans: lanes in order, each with as many rows as overlap needs, the path in the first rows. */
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
  let covered = 0;
  for (const lane of lanes) {
    for (const span of lane.spans) covered += !putIntoRow(lane, span);
    for (const row of lane.rows) row.ends = runningEnds(row.spans);
  }
  const rows = lanes.reduce((total, lane) => total + lane.rows.length, 0);
  const rowHeight = Math.max(LOWEST_ROW, Math.min(HIGHEST_ROW, Math.floor(WANTED_HEIGHT / Math.max(rows, 1))));
  let top = AXIS + LANE_GAP;
  for (const lane of lanes) {
    lane.top = top;
    for (const row of lane.rows) for (const span of row.spans) span.top = top + row.index * rowHeight;
    top += Math.max(lane.rows.length * rowHeight, NAMED_ROW) + LANE_GAP;
  }
  return { spans, lanes, rowHeight, covered, height: Math.max(top, 80) };
}

/** Puts a span into the first row of its lane in which its time is free, else into the last; tells if it was free. */
function putIntoRow(lane, span) {
  const tolerance = 1e-9 * Math.max(1, Math.abs(span.start)); // spans that touch share a row
  const [start, end] = [span.start + tolerance, span.start + span.duration - tolerance];
  for (let index = 0; index < ROWS_A_LANE; index += 1) {
    const row = (lane.rows[index] ??= { index, spans: [] });
    const at = countFirst(row.spans, (other) => other.start <= span.start);
    const [before, after] = [row.spans[at - 1], row.spans[at]];
    const free = (!before || before.start + before.duration <= start) && (!after || after.start >= end);
    if (!free && index < ROWS_A_LANE - 1) continue;
    row.spans.splice(at, 0, span);
    return free;
  }
}

/** The latest end among the first n spans, for each n: these ends are in order. */
function runningEnds(spans) {
  let end = -Infinity;
  return spans.map((span) => (end = Math.max(end, span.start + span.duration)));
}

/** Counts the first items for which `isBefore` holds; it holds for no later item. */
function countFirst(items, isBefore) {
  let [low, high] = [0, items.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (isBefore(items[middle])) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The index of the first end at or after `time`. */
function firstAfter(ends, time) {
  return countFirst(ends, (end) => end < time);
}

/** The smallest of 1, 2, 5 × 10^n that is at least `wanted`. */
function niceStep(wanted) {
  const power = 10 ** Math.floor(Math.log10(wanted));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= wanted * 0.999);
}

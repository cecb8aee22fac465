// Spans on lanes, to scale: spans of a lane that overlap get rows of their own below each other.

const [LOWEST_ROW, HIGHEST_ROW] = [9, 20]; // CSS pixels; lower where there are many
const WANTED_HEIGHT = 640;
const NAMED_ROW = 12; // a row from here on has room for names
const LANE_GAP = 8;
const AXIS = 26;
const MOST_ROWS = 12; // of one lane; further overlapping spans share the last

drawers.timeline = (chart, place) => {
  const { lanes, height, rowHeight, first, last } = laidOut(chart);
  const { names, groups, lane_names: laneNames } = chart;
  const gap = rowHeight > NAMED_ROW ? 3 : 1; // between rows
  const colourOf = coloursOf(chart);
  const pressed = new Set();
  let found = null;
  let chosen = null;
  const detail = element("p", { className: "detail", role: "status" },
    "Drag to move; click, then use the wheel to zoom; keys ← → + − 0.");

  const describe = (span) =>
    `${names[span.name]}\n${groups[span.group]} · ${laneNames[span.lane]}\n` +
    `${milliseconds(span.duration)}, from ${milliseconds(span.start)} to ${milliseconds(span.start + span.duration)}`;
  const margin = (state) => Math.min(170, state.width * 0.28);
  const scaleToFit = (state) => Math.max(1, state.width - margin(state) - 12) / Math.max(last - first, 1e-9);

  const board = makeBoard(`${chart.title}: timeline`, height, {
    flat: true,
    limits: (state) => ({ min: scaleToFit(state) / 2, max: scaleToFit(state) * 1e6 }),
    fit: (state) => ({ scale: scaleToFit(state), x: margin(state) - first * scaleToFit(state), y: 0 }),
    hover: (x, y) => { const span = spanAt(x, y); return span ? describe(span) : ""; },
    click: (x, y) => choose(spanAt(x, y)),
    draw,
  });

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
      for (let at = firstEndingAfter(row, time - slack); row.spans[at]?.start <= time + slack; at += 1) {
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
    for (let at = firstEndingAfter(row, from); at < row.spans.length && row.spans[at].start <= to; at += 1) {
      const span = row.spans[at];
      const x = span.start * view.scale + view.x;
      const width = Math.max(span.duration * view.scale, 1);
      if (x + width < drawnTo + 1 && span !== chosen && !found?.has(span.index)) continue; // its pixel is taken
      drawnTo = Math.floor(x + width);
      const faded = (found && !found.has(span.index)) || (pressed.size && !pressed.has(groups[span.group]));
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

  function drawName(context, span, x, top, width, state) {
    const from = Math.max(x, 0);
    const room = Math.min(x + width, state.width) - from - 8;
    if (room < 26) return;
    context.fillStyle = inkOn(colourOf(groups[span.group]));
    context.fillText(fitted(context, names[span.name], room), from + 4, top + (rowHeight - gap) / 2 + 0.5);
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
      context.fillText(formatted(tick * step, decimals), x + 3, AXIS / 2);
    }
    context.fillStyle = ink.paper;
    context.fillRect(0, 0, left, AXIS);
    context.fillStyle = ink.soft;
    context.fillText(chart.x_label, 8, AXIS / 2);
  }

  function drawLaneNames(context, state, left, ink) {
    context.font = "12px system-ui, sans-serif";
    for (const [index, lane] of lanes.entries()) {
      const bottom = lane.top + Math.max(lane.rows.length * rowHeight, NAMED_ROW);
      context.fillStyle = ink.paper;
      context.fillRect(0, lane.top - LANE_GAP / 2, left - 2, bottom - lane.top + LANE_GAP);
      context.fillStyle = ink.ink;
      context.fillText(fitted(context, laneNames[lane.id], left - 14), 8, (lane.top + bottom - 3) / 2);
      context.fillStyle = ink.line;
      if (index) context.fillRect(0, lane.top - LANE_GAP / 2, state.width, 1);
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
  place.append(toolbar(finder, board.buttons), legend, board.board, detail);
  board.resize();
};

/** Places the spans: lanes in order, each with as many rows as overlap needs. */
function laidOut(chart) {
  const lanes = chart.lane_names.map((_, id) => ({ id, spans: [], rows: [], top: 0 }));
  let [first, last] = [Infinity, -Infinity];
  chart.spans.forEach(([lane, name, start, duration, group], index) => {
    lanes[lane].spans.push({ lane, name, start, duration, group, index });
    first = Math.min(first, start);
    last = Math.max(last, start + duration);
  });
  for (const lane of lanes) {
    lane.spans.sort((a, b) => a.start - b.start || b.duration - a.duration);
    for (const span of lane.spans) rowFor(lane, span).spans.push(span);
    for (const row of lane.rows) row.ends = runningEnds(row.spans);
  }
  const rows = lanes.reduce((total, lane) => total + lane.rows.length, 0);
  const rowHeight = Math.max(LOWEST_ROW, Math.min(HIGHEST_ROW, Math.floor(WANTED_HEIGHT / Math.max(rows, 1))));
  let top = AXIS + LANE_GAP;
  for (const lane of lanes) {
    lane.top = top;
    top += Math.max(lane.rows.length * rowHeight, NAMED_ROW) + LANE_GAP;
  }
  const empty = first > last;
  return { lanes, rowHeight, height: Math.max(top, 80), first: empty ? 0 : first, last: empty ? 1 : last };
}

function rowFor(lane, span) {
  const tolerance = 1e-9 * Math.max(1, Math.abs(span.start)); // spans that touch share a row
  let row = lane.rows.find((candidate) => candidate.end <= span.start + tolerance);
  if (!row && lane.rows.length < MOST_ROWS) {
    row = { index: lane.rows.length, spans: [], end: 0 };
    lane.rows.push(row);
  }
  row ??= lane.rows[lane.rows.length - 1];
  row.end = Math.max(row.end, span.start + span.duration);
  return row;
}

/** The latest end among the first n spans, for each n: grows, so it can be searched by halving. */
function runningEnds(spans) {
  let end = -Infinity;
  return spans.map((span) => (end = Math.max(end, span.start + span.duration)));
}

function firstEndingAfter(row, time) {
  let [low, high] = [0, row.ends.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row.ends[middle] < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The smallest of 1, 2, 5 × 10^n that is at least `wanted`. */
function niceStep(wanted) {
  const power = 10 ** Math.floor(Math.log10(wanted));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= wanted * 0.999);
}

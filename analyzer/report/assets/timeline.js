// Spans on lanes, to scale, on a canvas that is moved and zoomed sideways by mouse, touch and keyboard; spans of a
// lane that overlap get rows of their own below each other.

const [LOWEST_ROW, HIGHEST_ROW] = [6, 20]; // CSS pixels; lower where there are many
const WANTED_HEIGHT = 500;
const NAMED_ROW = 12; // a row from here on has room for names
const LANE_GAP = 6;
const AXIS = 26;
const ROWS_A_LANE = 8; // at most: further spans share the last one
const STRIPE = 3; // of the path

/** The times in sight (ms), the same in all timelines of the page, between those of their first and last boxes. */
const sight = {
  redraws: [], // of the timelines
  fit() {
    [this.first, this.last] = timesOfAll();
    this.show(this.first, this.last + (this.last - this.first) / 60);
  },
  show(from, to) {
    const whole = Math.max(this.last - this.first, 1e-9);
    const length = Math.min(2 * whole, Math.max(whole / 1e6, to - from));
    const beside = 0.95 * length; // at most so much of the drawing is empty
    this.from = Math.max(this.first - beside, Math.min(this.last - length + beside, from));
    this.to = this.from + length;
    for (const redraw of this.redraws) redraw();
  },
  zoom(factor, time = (this.from + this.to) / 2) {
    this.show(time - (time - this.from) / factor, time + (this.to - time) / factor);
  },
  move(time) { this.show(this.from + time, this.to + time); },
};
sight.fit();
let stepInSight = steps.picked;
steps.followers.push(() => {
  if (stepInSight === steps.picked) return;
  stepInSight = steps.picked;
  sight.fit();
});

drawers.timeline = (chart, place) => {
  const { spans, lanes, height, rowHeight, covered } = laidOut(chart);
  const path = chart.path.map(([span, start, duration, name, idle, ...keys]) => (
    { span: spans[span], start, duration, name: chart.names[name], idle, keys }));
  const pathEnds = runningEnds(path);
  const { names, lane_names: laneNames } = chart;
  const gap = rowHeight > NAMED_ROW ? 3 : 1; // between rows
  let found = null; // indices of the spans that the search found
  let linked = null; // indices of the spans of the marked rows of tables
  let chosen = null;
  let touched = null;
  const view = { width: 0, left: 0, scale: 1, x: 0 }; // CSS pixels of all, of the lanes' names, of a ms, of time 0
  const canvas = element("canvas", { tabIndex: 0, role: "application", "aria-label": `${chart.title}: timeline` });
  canvas.style.height = `${height}px`;
  const tip = element("div", { className: "tip", hidden: true });
  const about = path.length ? " The line is the critical path, dotted where nothing ran." : "";
  const detail = element("p", { className: "detail", role: "status" },
    `Drag to move; Ctrl and the wheel zoom, after a click the wheel alone and the keys W A S D, ← → + − 0.${about}`);

  const describe = (span) =>
    `${names[span.name]}\n${data.groups[span.group][0]} · ${laneNames[span.lane]}\n` +
    `${milliseconds(span.duration)}, from ${milliseconds(span.start)} to ${milliseconds(span.start + span.duration)}`;

  let isPending = false;
  function redraw() {
    if (isPending) return;
    isPending = true;
    requestAnimationFrame(() => {
      isPending = false;
      draw();
    });
  }

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
      const beside = Math.max((to - from) * 0.25, (sight.last - sight.first) / 200);
      sight.show(from - beside, to + beside);
      if (evidence) choose(evidence);
      bring(evidence ?? goals[0].span ?? goals[0]);
    }
    redraw();
  });

  /** Scrolls the page to a box, with the title of the timeline if both have room. */
  function bring(span) {
    canvas.closest("section").scrollIntoView();
    const below = canvas.getBoundingClientRect().top + span.top + 2 * rowHeight - innerHeight;
    if (below > 0) scrollBy(0, below + innerHeight / 3);
  }

  function choose(span) {
    chosen = span;
    if (span) detail.textContent = describe(span).replace(/\n/g, " · ");
    redraw();
  }

  /** Brings a span to the middle, 30 pixels to two fifths of the drawing wide. */
  function visit(span) {
    const { start, duration } = span;
    const largest = duration * view.scale < 30 ? (duration * (view.width - view.left)) / 60 : Infinity;
    const length = Math.max(duration / 0.4, Math.min(sight.to - sight.from, largest));
    const middle = start + duration / 2;
    sight.show(middle - length / 2, middle + length / 2);
    choose(span);
    bring(span);
  }

  function spanAt(x, y) {
    if (x < view.left) return null;
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

  function draw() {
    view.width = canvas.clientWidth;
    if (!view.width) return; // hidden
    view.left = Math.min(190, view.width * 0.28);
    view.scale = (view.width - view.left) / (sight.to - sight.from);
    view.x = view.left - sight.from * view.scale;
    const [context, ink] = [canvas.getContext("2d"), inks()];
    [canvas.width, canvas.height] = [view.width, height].map((side) => Math.round(side * devicePixelRatio)); // clears it
    context.scale(devicePixelRatio, devicePixelRatio);
    context.textBaseline = "middle";
    drawAxis(context, ink);
    context.save();
    context.beginPath();
    context.rect(view.left, AXIS, view.width - view.left, height);
    context.clip();
    for (const lane of lanes) for (const row of lane.rows) drawRow(context, lane, row, ink);
    if (path.length) drawPath(context, ink);
    context.restore();
    drawLaneNames(context, ink);
  }

  function drawRow(context, lane, row, ink) {
    const top = lane.top + row.index * rowHeight;
    let drawnTo = -1;
    context.font = `${Math.min(11, rowHeight - 2)}px system-ui, sans-serif`;
    for (let at = firstAfter(row.ends, sight.from); row.spans[at]?.start <= sight.to; at += 1) {
      const span = row.spans[at];
      const x = span.start * view.scale + view.x;
      const width = Math.max(span.duration * view.scale, 1);
      const hit = span === chosen || found?.has(span.index) || linked?.has(span.index);
      if (x + width < drawnTo + 1 && !hit) continue; // its pixel is taken
      drawnTo = Math.floor(x + width);
      const faded = (found && !found.has(span.index)) || (linked && !linked.has(span.index));
      context.globalAlpha = faded ? 0.15 : 1;
      [, context.fillStyle] = data.groups[span.group];
      context.fillRect(x, top, width > 3 ? width - 0.6 : width, rowHeight - gap);
      if (span === chosen) {
        context.strokeStyle = ink.ink;
        context.lineWidth = 2;
        context.strokeRect(x, top, width, rowHeight - gap);
      }
      if (width > 34 && rowHeight >= NAMED_ROW) drawName(context, span, x, top, width);
    }
    context.globalAlpha = 1;
  }

  /** Draws the path as one line through the boxes, with a paper-coloured edge for contrast. */
  function drawPath(context, ink) {
    const [working, idle, turning] = [new Path2D(), new Path2D(), new Path2D()];
    const across = (time) => Math.max(-9, Math.min(view.width + 9, time * view.scale + view.x)); // a dash is costly
    const lineOf = (part) => part.span.top + rowHeight - gap - STRIPE / 2;
    const first = firstAfter(pathEnds, sight.from);
    let before = path[Math.max(0, first - 1)];
    let drawn = { to: -Infinity, y: NaN, idle: null };
    for (let at = first; path[at]?.start <= sight.to; at += 1) {
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
  }

  function drawName(context, span, x, top, width) {
    const from = Math.max(x, view.left);
    const room = Math.min(x + width, view.width) - from - 8;
    if (room < 26) return;
    [, , context.fillStyle] = data.groups[span.group];
    const text = fitted(context, names[span.name], room);
    if (text) context.fillText(text, from + 4, top + (rowHeight - gap) / 2 + 0.5);
  }

  function drawAxis(context, ink) {
    const step = niceStep(90 / view.scale);
    const decimals = Math.max(0, Math.min(9, -Math.floor(Math.log10(step) + 1e-9)));
    context.font = "11px system-ui, sans-serif";
    for (let tick = Math.ceil(sight.from / step); tick * step <= sight.to; tick += 1) {
      const x = tick * step * view.scale + view.x;
      context.fillStyle = ink.line;
      context.fillRect(x, AXIS - 6, 1, height);
      context.fillStyle = ink.soft;
      context.fillText(withDecimals(tick * step, decimals), x + 3, AXIS / 2);
    }
    context.fillText("time (ms)", 8, AXIS / 2);
  }

  function drawLaneNames(context, ink) {
    context.font = "12px system-ui, sans-serif";
    for (const [index, lane] of lanes.entries()) {
      const bottom = lane.top + Math.max(lane.rows.length * rowHeight, NAMED_ROW);
      const above = lane.top - LANE_GAP / 2;
      context.fillStyle = ink.paper;
      context.fillRect(0, above, view.left - 2, bottom - above + LANE_GAP / 2);
      context.fillStyle = ink.ink;
      context.fillText(fitted(context, laneNames[lane.id], view.left - 14), 8, (lane.top + bottom - 3) / 2);
      context.fillStyle = ink.line;
      if (index) context.fillRect(0, above, view.width, 1);
    }
  }

  listenToPointers(canvas, {
    hover: (event) => {
      const span = event && spanAt(event.offsetX, event.offsetY);
      touch(span);
      canvas.style.cursor = span ? "pointer" : "grab";
      showTip(tip, span && describe(span), event);
    },
    click: ({ offsetX, offsetY }) => { const span = spanAt(offsetX, offsetY); choose(span); links.pin(span?.keys ?? []); },
    drag: (pixels) => sight.move(-pixels / view.scale),
    zoom: (factor, x) => sight.zoom(factor, (x - view.x) / view.scale),
  });
  new ResizeObserver(redraw).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  sight.redraws.push(redraw);
  const inOrder = lanes.flatMap((lane) => lane.spans).sort((a, b) => a.start - b.start);
  const lower = names.map((name) => name.toLowerCase());
  const finder = makeFinder("Find an operation",
    (text) => inOrder.filter((span) => lower[span.name].includes(text)).map((span) => span.index),
    (hits) => { found = hits; redraw(); },
    (index) => visit(spans[index]));
  const tools = zoomTools(canvas, finder, {
    zoom: (factor) => sight.zoom(factor),
    move: (pixels) => sight.move(-pixels / view.scale),
    fit: () => sight.fit(),
  });
  const words = `${formatted(covered, 0)} boxes overlap, in the last row of a lane; zoom in or search to see them.`;
  const notes = covered ? [element("p", { className: "soft" }, words)] : [];
  place.append(tools, makeLegend(chart), element("div", { className: "board" }, canvas, tip), detail, ...notes);
};

/** Calls hover(event, or null), click(event), drag(pixels) and zoom(factor, x) for the pointer on a canvas. */
function listenToPointers(canvas, { hover, click = () => {}, drag, zoom }) {
  let last = null; // place of the pressed pointer
  let travelled = 0;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    [last, travelled] = [event.offsetX, 0];
    hover(null);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (last === null) {
      hover(event);
      return;
    }
    travelled += Math.abs(event.offsetX - last);
    drag(event.offsetX - last);
    last = event.offsetX;
  });
  canvas.addEventListener("pointerup", (event) => {
    if (last !== null && travelled < 6) click(event);
    last = null;
  });
  canvas.addEventListener("pointercancel", () => { last = null; });
  canvas.addEventListener("pointerleave", () => hover(null));
  // the page scrolls under the wheel until the drawing has been clicked, or with Ctrl (as in a pinch)
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && document.activeElement !== canvas) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), event.offsetX);
  }, { passive: false });
}

/** Shortens a text until a canvas draws it in `room` pixels; "" if not even its ends fit. Parameters go first. */
function fitted(context, full, room) {
  const widthOf = (text) => context.measureText(text).width;
  if (widthOf(full) <= room) return full;
  const bracket = full.endsWith(")") ? full.indexOf("(", 1) : -1;
  const text = bracket > 0 ? full.slice(0, bracket) : full;
  const width = widthOf(text);
  if (width <= room) return text;
  let length = Math.floor((Array.from(text).length * room) / width);
  while (length > 2 && widthOf(shortened(text, length)) > room) length -= 1;
  return length > 2 ? shortened(text, length) : "";
}

/** The meaning of each colour, with the number of its boxes; groups that share one are only counted. */
function makeLegend({ spans }) {
  const counts = new Map();
  for (const [, , , , group] of spans) counts.set(group, (counts.get(group) ?? 0) + 1);
  const groups = [...counts.keys()].sort((a, b) => a - b);
  const chip = (group, words, title = "") => {
    const swatch = element("i");
    [, swatch.style.background] = data.groups[group];
    return element("span", { title }, swatch, words);
  };
  const named = groups.filter((group) => group < data.legend);
  const others = groups.slice(named.length);
  const chips = named.map((group) => chip(group, `${data.groups[group][0] || "(none)"} ${formatted(counts.get(group), 0)}`));
  const title = others.map((group) => data.groups[group][0]).join(", ");
  if (others.length) chips.push(chip(others[0], `${formatted(others.length, 0)} more`, title));
  return element("div", { className: "legend" }, ...chips);
}

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
  const rowHeight = Math.max(LOWEST_ROW, Math.min(HIGHEST_ROW, Math.floor((WANTED_HEIGHT - lanes.length * LANE_GAP) / Math.max(rows, 1))));
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

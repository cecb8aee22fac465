// A graph: boxes for nodes, curves for edges; a click shows a node's figures and neighbours.

const UNIT_X = 190; // CSS pixels, at scale 1, of one layer and of one row
const UNIT_Y = 34;
const BOX_X = 156;
const BOX_Y = 24;
const LARGEST = 1.2; // scale at which a small graph is shown
const LEGIBLE = 0.55; // scale from which on names are written
const CURVED = 0.2; // and edges are curves
const MOST_LISTED = 60;
const DASHES = [[], [7, 3], [2, 3], [11, 3, 2, 3], [1, 5], [14, 5], [4, 2, 1, 2]]; // of kinds of edges, in turn
const MOST_DASHED = 2500; // edges; a dash is costly
const SHOWN_ELSEWHERE = new Set(["label", "cat", "x", "y", "critical"]);

drawers.network = (chart, place) => {
  const { nodes, edges, kinds } = chart;
  const graph = linked(chart);
  const cells = gridOf(nodes);
  const colourOf = coloursOf(chart);
  const marked = chart.marked.charAt(0).toUpperCase() + chart.marked.slice(1);
  const pressed = new Set();
  const pressedKinds = new Set();
  const dashes = edges.length <= MOST_DASHED ? DASHES : DASHES.slice(0, 1);
  let found = null;
  let chosen = -1;
  let beside = new Set(); // the chosen node and its neighbours
  let pathOnly = false;
  const aside = element("aside", { hidden: true, "aria-label": "Chosen node" });
  const frame = element("div", { className: "graph" });
  const tall = (graph.box.bottom - graph.box.top + 3) * UNIT_Y * LARGEST;
  const height = Math.max(200, Math.min(680, innerHeight * 0.75, place.clientWidth, tall));

  const board = makeBoard(`${chart.title}: graph`, height, {
    kept: true,
    limits: (state) => ({ min: Math.min(fitScale(graph.box, state) / 2, 0.5), max: 4 }),
    fit: (state) => viewOf(graph, state),
    hover: (x, y) => { const node = nodes[nodeAt(x, y)]; return node ? described(node) : ""; },
    click: (x, y) => choose(nodeAt(x, y)),
    draw,
  });

  function described(node) {
    const path = node.critical ? ` · ${chart.marked}` : "";
    return `${node.label}\n${node.cat} · ${milliseconds(node.dur_ms)}${path}`;
  }

  function nodeAt(x, y) {
    const { view } = board.state;
    const [gx, gy] = [(x - view.x) / view.scale / UNIT_X, (y - view.y) / view.scale / UNIT_Y];
    const reach = 3 / view.scale; // small boxes can be hit too
    let best = -1;
    for (const index of cells.near(gx, gy)) {
      const node = nodes[index];
      const [dx, dy] = [Math.abs(node.x - gx) * UNIT_X, Math.abs(node.y - gy) * UNIT_Y];
      if (dx <= BOX_X / 2 + reach && dy <= BOX_Y / 2 + reach) best = index;
    }
    return best;
  }

  function visit(index) {
    const { state } = board;
    const scale = Math.max(state.view.scale, 0.8);
    const { x, y } = nodes[index];
    state.view = { scale, x: state.width / 2 - x * UNIT_X * scale, y: state.height / 2 - y * UNIT_Y * scale };
    state.fitted = false;
    choose(index);
  }

  function choose(index) {
    chosen = index;
    const node = nodes[index];
    const touching = node ? [...graph.before[index], ...graph.after[index]] : [];
    beside = new Set(touching.flatMap((edge) => edges[edge].slice(0, 2)).concat(node ? [index] : []));
    aside.hidden = !node;
    frame.classList.toggle("open", Boolean(node));
    aside.replaceChildren(...(node ? nodeFacts(node, index) : []));
    board.redraw();
  }

  function nodeFacts(node, index) {
    const path = node.critical ? "yes" : "no";
    const rows = [["Kind", node.cat], ["Duration", milliseconds(node.dur_ms)], [marked, path]];
    for (const [key, value] of Object.entries(node)) {
      if (!SHOWN_ELSEWHERE.has(key) && key !== "dur_ms") rows.push(figureOf(key, value));
    }
    const pairs = rows.flatMap(([key, value]) => [element("dt", {}, key), element("dd", {}, value)]);
    return [element("h3", {}, node.label), element("dl", {}, ...pairs),
      ...neighbours("Waits for", graph.before[index], 0), ...neighbours("Leads to", graph.after[index], 1)];
  }

  function neighbours(title, list, end) {
    const items = list.slice(0, MOST_LISTED).map((edge) => {
      const other = edges[edge][end];
      const button = element("button", { type: "button" }, `${nodes[other].label} (${kinds[edges[edge][2]]})`);
      button.addEventListener("click", () => { visit(other); aside.querySelector("button")?.focus(); });
      return element("li", {}, button);
    });
    const more = list.length - MOST_LISTED;
    if (more > 0) items.push(element("li", {}, `and ${formatted(more, 0)} more`));
    if (!items.length) items.push(element("li", { className: "soft" }, "nothing"));
    return [element("h3", {}, `${title} (${formatted(list.length, 0)})`), element("ul", {}, ...items)];
  }

  function fadedNode(index) {
    if (beside.has(index)) return false;
    const node = nodes[index];
    if (found && !found.has(index)) return true;
    return (pressed.size && !pressed.has(node.cat)) || (pathOnly && !node.critical);
  }

  function draw(context, view, state) {
    const ink = inks();
    context.save();
    context.translate(view.x, view.y);
    context.scale(view.scale, view.scale);
    const seen = {
      left: (-view.x / view.scale - BOX_X) / UNIT_X,
      right: ((state.width - view.x) / view.scale + BOX_X) / UNIT_X,
      top: (-view.y / view.scale - BOX_Y) / UNIT_Y,
      bottom: ((state.height - view.y) / view.scale + BOX_Y) / UNIT_Y,
    };
    drawEdges(context, view, seen, ink);
    drawNodes(context, view, seen, ink);
    context.restore();
  }

  function drawEdges(context, view, seen, ink) {
    const made = () => dashes.map(() => new Path2D());
    const groups = { plain: made(), faded: made(), path: made(), near: made(), picked: made() };
    edges.forEach(([source, target, kind, , row], index) => {
      const [a, b] = [nodes[source], nodes[target]];
      if (Math.max(a.x, b.x) < seen.left || Math.min(a.x, b.x) > seen.right) return;
      if (Math.max(a.y, b.y, row ?? a.y) < seen.top || Math.min(a.y, b.y, row ?? a.y) > seen.bottom) return;
      const near = source === chosen || target === chosen;
      const picked = pressedKinds.has(kind);
      const faded = fadedNode(source) || fadedNode(target) || (pressedKinds.size && !picked);
      const usual = faded || chosen >= 0 ? "faded" : picked ? "picked" : "plain";
      const group = near ? "near" : graph.critical[index] && !(faded && pressedKinds.size) ? "path" : usual;
      addEdge(groups[group][kind % dashes.length], a, b, row, view.scale);
    });
    const thin = 1 / Math.max(view.scale, 0.25);
    const styles = [
      ["faded", ink.soft, 0.12, thin],
      ["plain", ink.soft, 0.45, thin],
      ["picked", ink.ink, 0.9, 1.4 * thin],
      ["path", ink.ink, 1, 2.4 * thin],
      ["near", ink.accent, 1, 2 * thin],
    ];
    for (const [group, colour, alpha, width] of styles) {
      context.globalAlpha = alpha;
      context.strokeStyle = colour;
      context.lineWidth = width;
      for (const [turn, path] of groups[group].entries()) {
        context.setLineDash(dashes[turn].map((length) => length * thin));
        context.stroke(path);
      }
    }
    context.setLineDash([]);
    context.globalAlpha = 1;
  }

  function drawNodes(context, view, seen, ink) {
    const legible = view.scale >= LEGIBLE;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    const border = 1 / Math.max(view.scale, 0.25);
    nodes.forEach((node, index) => {
      if (node.x < seen.left || node.x > seen.right || node.y < seen.top || node.y > seen.bottom) return;
      const [x, y] = [node.x * UNIT_X - BOX_X / 2, node.y * UNIT_Y - BOX_Y / 2];
      context.globalAlpha = fadedNode(index) ? 0.15 : 1;
      context.fillStyle = colourOf(node.cat);
      context.fillRect(x, y, BOX_X, BOX_Y);
      if (node.critical || index === chosen) {
        context.strokeStyle = index === chosen ? ink.accent : ink.ink;
        context.lineWidth = 3 * border;
        context.strokeRect(x, y, BOX_X, BOX_Y);
      }
      if (legible) {
        context.fillStyle = inkOn(colourOf(node.cat));
        const took = chart.short && node.dur_ms !== null ? formatted(node.dur_ms, 6) : "";
        const room = BOX_X - 12 - (took ? widthOf(context, took) + 6 : 0);
        const name = fitted(context, bare(chart.short?.[index] ?? node.label), room);
        context.fillText(bare(name), x + 6, y + BOX_Y / 2 + 0.5);
        if (took) context.fillText(took, x + BOX_X - 6 - widthOf(context, took), y + BOX_Y / 2 + 0.5);
      }
    });
    context.globalAlpha = 1;
  }

  const lower = nodes.map((node) => `${node.label}\n${node.name ?? ""}`.toLowerCase());
  const finder = makeFinder("Find a node",
    (text) => lower.flatMap((label, index) => (label.includes(text) ? [index] : [])),
    (hits) => { found = hits; board.redraw(); }, visit);
  const legend = makeLegend(counted(nodes.map((node) => node.cat)), colourOf, pressed, board.redraw);
  if (nodes.some((node) => node.critical)) legend.append(pathButton());
  aside.style.maxHeight = `${height}px`;
  frame.append(board.board, aside);
  const isTimed = nodes.some((node) => node.dur_ms !== null);
  const hint = element("p", { className: "soft" },
    `${counting(nodes.length, "node")}, ${counting(edges.length, "edge")}. ` +
    `${!isTimed ? "" : chart.short ? "The number in a box is its duration in ms. Time goes to the right. " : "Time goes to the right. "}Drag to move; click, then use the wheel to zoom; keys ← ↑ → ↓ + − 0.`);
  place.append(toolbar(finder, board.buttons), legend, edgeLegend(), frame, hint);
  board.resize();
  begin();

  /** Shows the beginning of a graph whose names cannot be read where all of it is seen, if they can be in its width. */
  function begin() {
    const { state } = board;
    const scale = Math.min(LARGEST, state.width / ((graph.box.right - graph.box.left + 1.1) * UNIT_X));
    if (state.view.scale >= LEGIBLE || scale < LEGIBLE) return;
    const middleX = ((graph.box.left + graph.box.right) / 2) * UNIT_X * scale;
    state.view = { scale, x: state.width / 2 - middleX, y: (0.8 - graph.box.top) * UNIT_Y * scale };
    state.fitted = false;
    board.redraw();
  }

  /** Why nodes wait: the kinds of edges with their lines; a click picks one out. */
  function edgeLegend() {
    const known = counted(edges.map(([, , kind]) => kind));
    const made = makeLegend(known, () => "none", pressedKinds, board.redraw, (kind) => kinds[kind]);
    made.setAttribute("aria-label", "Edges");
    [...known.keys()].forEach((kind, at) => {
      const dash = dashes[kind % dashes.length].join(" ") || "none";
      made.querySelectorAll("i")[at].innerHTML = `<svg><path d="M0 6h28" stroke-dasharray="${dash}"/></svg>`;
    });
    made.prepend(element("span", { className: "soft" }, "Edges:"));
    return made;
  }

  function pathButton() {
    const swatch = element("i");
    swatch.style.background = "var(--ink)";
    const button = element("button", { type: "button", "aria-pressed": "false" }, swatch, marked);
    button.addEventListener("click", () => {
      pathOnly = !pathOnly;
      button.setAttribute("aria-pressed", String(pathOnly));
      board.redraw();
    });
    return button;
  }
};

/** A name without the points beside what is left out of it. */
function bare(name) {
  return name.replace(/[._]*…[._…]*/g, "…");
}

/** The edges at each node, which edges are the critical path, and the box around all nodes. */
function linked({ nodes, edges }) {
  const before = nodes.map(() => []);
  const after = nodes.map(() => []);
  edges.forEach(([source, target], index) => {
    after[source].push(index);
    before[target].push(index);
  });
  const isMarked = edges.some((edge) => edge[3]);
  const critical = edges.map(([source, target, , marked]) =>
    Boolean(isMarked ? marked : nodes[source].critical && nodes[target].critical));
  const box = { left: 0, right: 0, top: 0, bottom: 0 };
  if (nodes.length) {
    box.left = nodes.reduce((least, node) => Math.min(least, node.x), Infinity);
    box.right = nodes.reduce((most, node) => Math.max(most, node.x), -Infinity);
    box.top = nodes.reduce((least, node) => Math.min(least, node.y), Infinity);
    box.top = edges.reduce((least, [, , , , row]) => Math.min(least, row ?? least), box.top);
    box.bottom = nodes.reduce((most, node) => Math.max(most, node.y), -Infinity);
  }
  return { before, after, critical, box };
}

function fitScale(box, state) {
  const wide = (box.right - box.left + 1.1) * UNIT_X;
  const tall = (box.bottom - box.top + 1.6) * UNIT_Y;
  return Math.min(state.width / wide, state.height / tall);
}

/** All of the graph; of one too long for that, its beginning at a size that can be seen. */
function viewOf({ box }, state) {
  const whole = fitScale(box, state);
  const tall = state.height / ((box.bottom - box.top + 1.6) * UNIT_Y);
  const scale = Math.min(LARGEST, whole >= 0.06 ? whole : Math.min(0.5, Math.max(whole, tall)));
  const middleY = ((box.top + box.bottom) / 2) * UNIT_Y * scale;
  const middleX = ((box.left + box.right) / 2) * UNIT_X * scale;
  const x = scale > whole * 1.3 ? (1 - box.left) * UNIT_X * scale : state.width / 2 - middleX;
  return { scale, x, y: state.height / 2 - middleY };
}

/** An edge as a curve to the next layer; else beside its source's box, along a row without boxes, beside its target's. */
function addEdge(path, a, b, row, scale) {
  const [x1, y1] = [a.x * UNIT_X + BOX_X / 2, a.y * UNIT_Y];
  const [x2, y2] = [b.x * UNIT_X - BOX_X / 2, b.y * UNIT_Y];
  path.moveTo(x1, y1);
  if (scale < CURVED) {
    path.lineTo(x2, y2);
    return;
  }
  if (row === null) {
    const bend = Math.max(10, Math.min(95, (x2 - x1) / 2));
    path.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2, y2);
  } else {
    const y = row * UNIT_Y;
    for (const [x, at] of [[x1 + 12, y1], [x1 + 12, y], [x2 - 12, y], [x2 - 12, y2], [x2, y2]]) path.lineTo(x, at);
  }
  if (scale < LEGIBLE) return;
  path.moveTo(x2 - 7, y2 - 4);
  path.lineTo(x2, y2);
  path.lineTo(x2 - 7, y2 + 4);
}

/** Finds nodes near a place without looking at all of them. */
function gridOf(nodes) {
  const cells = new Map();
  nodes.forEach((node, index) => {
    const key = `${Math.round(node.x)},${Math.round(node.y)}`;
    if (!cells.has(key)) cells.set(key, []);
    cells.get(key).push(index);
  });
  return {
    near(x, y) {
      const hits = [];
      for (const column of [-1, 0, 1].map((step) => Math.round(x) + step)) {
        for (const row of [-1, 0, 1].map((step) => Math.round(y) + step)) {
          hits.push(...(cells.get(`${column},${row}`) ?? []));
        }
      }
      return hits;
    },
  };
}

/** A further figure of a node: a key that ends in _ms is a time. */
function figureOf(key, value) {
  const words = key.replace(/_ms$/, "").replaceAll("_", " ");
  const name = words.charAt(0).toUpperCase() + words.slice(1);
  if (value === null || value === undefined) return [name, GAP];
  if (typeof value === "boolean") return [name, value ? "yes" : "no"];
  if (typeof value !== "number") return [name, String(value)];
  return [name, key.endsWith("_ms") ? milliseconds(value) : formatted(value, Number.isInteger(value) ? 0 : 3)];
}

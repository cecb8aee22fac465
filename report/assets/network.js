// A graph: boxes for nodes, curves for edges; a click shows a node's figures and neighbours.

const UNIT_X = 190; // CSS pixels, at scale 1, of one layer and of one row
const UNIT_Y = 34;
const BOX_X = 156;
const BOX_Y = 24;
const LARGEST = 1.2; // scale at which a small graph is shown
const LEGIBLE = 0.55; // scale from which on names are written
const MOST_LISTED = 60;
const SHOWN_ELSEWHERE = new Set(["label", "cat", "x", "y", "critical", "dur_ms"]);

drawers.network = (chart, place) => {
  const { nodes, edges, kinds } = chart;
  const box = around(chart);
  const colourOf = coloursOf(chart);
  const pressed = new Set();
  let found = null;
  let chosen = -1;
  let beside = new Set(); // the chosen node and its neighbours
  const aside = element("aside", { hidden: true, "aria-label": "Chosen node" });
  const frame = element("div", { className: "graph" });
  const tall = (box.bottom - box.top + 3) * UNIT_Y * LARGEST;
  const height = Math.max(200, Math.min(680, innerHeight * 0.75, tall));

  const board = makeBoard(`${chart.title}: graph`, height, {
    limits: (state) => ({ min: Math.min(fit(state).scale / 2, 0.5), max: 4 }),
    fit,
    hover: (x, y) => { const node = nodes[nodeAt(x, y)]; return node ? described(node) : ""; },
    click: (x, y) => choose(nodeAt(x, y)),
    draw,
  });

  /** All of the graph; of one whose names could not be read then, its beginning in the width that there is. */
  function fit(state) {
    const wide = state.width / ((box.right - box.left + 1.1) * UNIT_X);
    const whole = Math.min(LARGEST, wide, state.height / ((box.bottom - box.top + 1.6) * UNIT_Y));
    const scale = whole < LEGIBLE && wide >= LEGIBLE ? Math.min(LARGEST, wide) : whole;
    const middle = scale === whole ? state.height / 2 - ((box.top + box.bottom) / 2) * UNIT_Y * scale
      : (0.8 - box.top) * UNIT_Y * scale;
    return { scale, x: state.width / 2 - ((box.left + box.right) / 2) * UNIT_X * scale, y: middle };
  }

  function described(node) {
    const path = node.critical ? ` · critical path` : "";
    return `${node.label}\n${node.cat} · ${milliseconds(node.dur_ms)}${path}`;
  }

  function nodeAt(x, y) {
    const { view } = board.state;
    const [atX, atY] = [(x - view.x) / view.scale, (y - view.y) / view.scale];
    return nodes.findIndex((node) =>
      Math.abs(node.x * UNIT_X - atX) <= BOX_X / 2 && Math.abs(node.y * UNIT_Y - atY) <= BOX_Y / 2);
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
    const touching = edges.filter(([source, target]) => source === index || target === index);
    beside = new Set([index, ...touching.flatMap((edge) => edge.slice(0, 2))]);
    aside.hidden = !node;
    frame.classList.toggle("open", Boolean(node));
    aside.replaceChildren(...(node ? nodeFacts(node, index) : []));
    board.redraw();
  }

  function nodeFacts(node, index) {
    const rows = [["Kind", node.cat], ["Duration", milliseconds(node.dur_ms)], ["Critical path", node.critical ? "yes" : "no"]];
    for (const [key, value] of Object.entries(node)) if (!SHOWN_ELSEWHERE.has(key)) rows.push(figureOf(key, value));
    const pairs = rows.flatMap(([key, value]) => [element("dt", {}, key), element("dd", {}, value)]);
    return [element("h3", {}, node.label), element("dl", {}, ...pairs),
      ...neighbours("Waits for", edges.filter((edge) => edge[1] === index), 0),
      ...neighbours("Leads to", edges.filter((edge) => edge[0] === index), 1)];
  }

  function neighbours(title, list, end) {
    const items = list.slice(0, MOST_LISTED).map((edge) => {
      const button = element("button", { type: "button" }, `${nodes[edge[end]].label} (${kinds[edge[2]]})`);
      button.addEventListener("click", () => { visit(edge[end]); aside.querySelector("button")?.focus(); });
      return element("li", {}, button);
    });
    return [element("h3", {}, `${title} (${formatted(list.length, 0)})`), element("ul", {}, ...items)];
  }

  function isFaded(index) {
    if (beside.has(index) && chosen >= 0) return false;
    return (found && !found.has(index)) || (pressed.size && !pressed.has(nodes[index].cat));
  }

  function draw(context, view) {
    const ink = inks();
    context.save();
    context.translate(view.x, view.y);
    context.scale(view.scale, view.scale);
    drawEdges(context, view, ink);
    nodes.forEach((node, index) => drawNode(context, view, node, index, ink));
    context.restore();
  }

  function drawEdges(context, view, ink) {
    const thin = 1 / Math.max(view.scale, 0.25);
    for (const [source, target, , marked, row] of edges) {
      const isNear = source === chosen || target === chosen;
      const usual = isFaded(source) || isFaded(target) || chosen >= 0 ? 0.12 : 0.45;
      context.globalAlpha = isNear || marked ? 1 : usual;
      context.strokeStyle = isNear ? ink.accent : marked ? ink.ink : ink.soft;
      context.lineWidth = thin * (isNear || marked ? 2.2 : 1);
      context.stroke(lineOf(nodes[source], nodes[target], row));
    }
    context.globalAlpha = 1;
  }

  function drawNode(context, view, node, index, ink) {
    const [x, y] = [node.x * UNIT_X - BOX_X / 2, node.y * UNIT_Y - BOX_Y / 2];
    context.globalAlpha = isFaded(index) ? 0.15 : 1;
    context.fillStyle = colourOf(node.cat);
    context.fillRect(x, y, BOX_X, BOX_Y);
    if (node.critical || index === chosen) {
      context.strokeStyle = index === chosen ? ink.accent : ink.ink;
      context.lineWidth = 3 / Math.max(view.scale, 0.25);
      context.strokeRect(x, y, BOX_X, BOX_Y);
    }
    if (view.scale >= LEGIBLE) {
      context.font = "11px system-ui, sans-serif";
      context.textBaseline = "middle";
      context.fillStyle = inkOn(colourOf(node.cat));
      const took = node.dur_ms === null ? "" : formatted(node.dur_ms, 6);
      const beyond = took ? widthOf(context, took) + 6 : 0;
      context.fillText(fitted(context, chart.short[index], BOX_X - 12 - beyond), x + 6, y + BOX_Y / 2 + 0.5);
      context.fillText(took, x + BOX_X - beyond, y + BOX_Y / 2 + 0.5);
    }
    context.globalAlpha = 1;
  }

  const lower = nodes.map((node) => `${node.label}\n${node.name ?? ""}`.toLowerCase());
  const finder = makeFinder("Find a node",
    (text) => lower.flatMap((label, index) => (label.includes(text) ? [index] : [])),
    (hits) => { found = hits; board.redraw(); }, visit);
  const legend = makeLegend(counted(nodes.map((node) => node.cat)), colourOf, pressed, board.redraw);
  aside.style.maxHeight = `${height}px`;
  frame.append(board.board, aside);
  const timed = nodes.some((node) => node.dur_ms !== null)
    ? "The number in a box is its duration in ms. Time goes to the right. " : "";
  const hint = element("p", { className: "soft" },
    `${counting(nodes.length, "node")}, ${counting(edges.length, "edge")}. ${timed}` +
    "Drag to move; click, then use the wheel to zoom; keys ← ↑ → ↓ + − 0.");
  place.append(toolbar(finder, board.buttons), legend, frame, hint);
  board.resize();
};

/** The box around all nodes and edges. */
function around({ nodes, edges }) {
  const [xs, ys] = [nodes.map((node) => node.x), nodes.map((node) => node.y)];
  const rows = edges.map((edge) => edge[4]).filter((row) => row !== null);
  return {
    left: Math.min(...xs), right: Math.max(...xs), top: Math.min(...ys, ...rows), bottom: Math.max(...ys, ...rows),
  };
}

/** An edge as a curve to the next layer; else beside its source's box, along a row without boxes, beside its target's. */
function lineOf(a, b, row) {
  const [x1, y1] = [a.x * UNIT_X + BOX_X / 2, a.y * UNIT_Y];
  const [x2, y2] = [b.x * UNIT_X - BOX_X / 2, b.y * UNIT_Y];
  const path = new Path2D();
  path.moveTo(x1, y1);
  if (row === null) {
    const bend = Math.max(10, Math.min(95, (x2 - x1) / 2));
    path.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2, y2);
  } else {
    const y = row * UNIT_Y;
    for (const [x, at] of [[x1 + 12, y1], [x1 + 12, y], [x2 - 12, y], [x2 - 12, y2], [x2, y2]]) path.lineTo(x, at);
  }
  for (const side of [-4, 4]) {
    path.moveTo(x2, y2);
    path.lineTo(x2 - 7, y2 + side);
  }
  return path;
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

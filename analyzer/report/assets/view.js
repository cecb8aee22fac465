// A canvas that can be moved and zoomed sideways by mouse, touch and keyboard; timelines draw on it.

/**
 * Makes the canvas of a drawing and keeps `view` (scale and offset, in CSS pixels) up to date.
 * hooks: draw(context, view), fit() -> view, click(x, y), hover(x, y) -> text or "", limits {min, max}, leave(),
 * within(view) -> view that shows something, moved() after the user moved it. Call `resize` once the board is in
 * the page: until then it has no width.
 */
function makeBoard(label, height, hooks) {
  const canvas = element("canvas", { tabIndex: 0, role: "application", "aria-label": label });
  const tip = element("div", { className: "tip", hidden: true });
  const board = element("div", { className: "board" }, canvas, tip);
  canvas.style.height = `${height}px`;
  canvas.style.touchAction = "pan-y"; // a finger scrolls the page
  const state = { view: { scale: 1, x: 0 }, width: 0, height, ratio: 1, fitted: true, pending: false };

  function redraw() {
    if (state.pending) return;
    state.pending = true;
    requestAnimationFrame(() => {
      state.pending = false;
      const context = canvas.getContext("2d");
      context.setTransform(1, 0, 0, 1, 0, 0);
      context.clearRect(0, 0, canvas.width, canvas.height);
      context.setTransform(state.ratio, 0, 0, state.ratio, 0, 0);
      hooks.draw(context, state.view, state);
    });
  }

  function resize() {
    const ratio = devicePixelRatio || 1;
    state.ratio = ratio;
    state.width = canvas.clientWidth;
    canvas.width = Math.max(1, Math.round(state.width * ratio));
    canvas.height = Math.max(1, Math.round(state.height * ratio));
    if (state.fitted) state.view = hooks.fit(state);
    redraw();
  }

  function fit() {
    state.fitted = true;
    state.view = hooks.fit(state);
    redraw();
    hooks.moved();
  }

  function turn(view) {
    state.view = hooks.within(view, state);
    state.fitted = false;
    redraw();
    hooks.moved();
  }

  function zoom(factor, x = state.width / 2) {
    const { view } = state;
    const { min, max } = hooks.limits(state);
    const scale = Math.min(max, Math.max(min, view.scale * factor));
    const change = scale / view.scale;
    turn({ scale, x: x - (x - view.x) * change });
  }

  function move(dx) {
    turn({ ...state.view, x: state.view.x + dx });
  }

  listenToPointers(canvas, tip, hooks, { zoom, move });
  listenToKeys(canvas, { zoom, move, fit });
  new ResizeObserver(resize).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const buttons = [
    iconButton("+", "Zoom in", () => zoom(1.6)),
    iconButton("−", "Zoom out", () => zoom(1 / 1.6)),
    iconButton("Fit", "Show all", fit),
  ];
  return { board, canvas, buttons, redraw, fit, resize, state };
}

function listenToKeys(canvas, { zoom, move, fit }) {
  const keys = {
    "+": () => zoom(1.4), "=": () => zoom(1.4), "-": () => zoom(1 / 1.4), 0: fit,
    ArrowLeft: () => move(60), ArrowRight: () => move(-60),
    w: () => zoom(1.4), s: () => zoom(1 / 1.4), a: () => move(60), d: () => move(-60),
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
}

function listenToPointers(canvas, tip, hooks, { zoom, move }) {
  const down = new Map(); // pointer id -> last place
  let travelled = 0;
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };

  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    if (!down.size) travelled = 0;
    down.set(event.pointerId, at(event));
    tip.hidden = true;
  });
  canvas.addEventListener("pointermove", (event) => {
    const now = at(event);
    if (!down.has(event.pointerId)) {
      showTip(now);
      return;
    }
    const before = down.get(event.pointerId);
    travelled += Math.abs(now.x - before.x) + Math.abs(now.y - before.y);
    if (down.size === 1) move(now.x - before.x);
    else if (down.size === 2) pinch(event.pointerId, before, now);
    down.set(event.pointerId, now);
  });
  const up = (event) => {
    const pressed = down.delete(event.pointerId);
    if (pressed && event.type === "pointerup" && travelled < 6) hooks.click(at(event).x, at(event).y);
  };
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", up);
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; hooks.leave(); });
  // the page scrolls under the wheel until the drawing has been clicked, or with Ctrl (as in a pinch)
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && document.activeElement !== canvas) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), at(event).x);
  }, { passive: false });

  function pinch(id, before, now) {
    const other = [...down].find(([key]) => key !== id)[1];
    const span = (a, b) => Math.max(Math.hypot(a.x - b.x, a.y - b.y), 10);
    zoom(span(now, other) / span(before, other), (now.x + other.x) / 2);
  }

  function showTip({ x, y }) {
    const text = hooks.hover(x, y);
    canvas.style.cursor = text ? "pointer" : "grab";
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const left = Math.min(x + 14, canvas.clientWidth - tip.offsetWidth - 4);
    const below = y + 18 + tip.offsetHeight < canvas.clientHeight;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${below ? y + 18 : Math.max(4, y - tip.offsetHeight - 10)}px`;
  }
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

/** A button with a sign and an accessible name. */
function iconButton(text, name, action) {
  const made = element("button", { type: "button", "aria-label": name, title: name }, text);
  made.addEventListener("click", action);
  return made;
}

/** The line above a drawing: the finder on the left, the zoom buttons on the right. */
function toolbar(finder, buttons) {
  return element("div", { className: "tools" }, ...finder, element("span", { className: "tools push" }, ...buttons));
}

/** The meaning of each colour, with the number of its boxes. */
function makeLegend({ spans, groups, colours }) {
  const counts = new Map(); // by group, in order of first appearance
  for (const [, , , , group] of spans) counts.set(group, (counts.get(group) ?? 0) + 1);
  const legend = element("div", { className: "legend" });
  for (const [group, count] of counts) {
    const swatch = element("i");
    swatch.style.background = colours[group];
    legend.append(element("span", {}, swatch, `${groups[group] || "(none)"} ${formatted(count, 0)}`));
  }
  return legend;
}

/** A search field that marks its hits: find(words) -> indices; visit(index) on Enter. */
function makeFinder(label, find, changed, visit) {
  const input = element("input", { type: "search", placeholder: label, "aria-label": label });
  const status = element("span", { className: "soft", role: "status" });
  let hits = [];
  let next = 0;
  input.addEventListener("input", () => {
    const text = input.value.trim().toLowerCase();
    hits = text ? find(text) : [];
    next = 0;
    const how = hits.length ? ", Enter goes to the next" : "";
    status.textContent = text ? `${formatted(hits.length, 0)} found${how}` : "";
    changed(text ? new Set(hits) : null);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !hits.length) return;
    status.textContent = `${formatted(next + 1, 0)} of ${formatted(hits.length, 0)}`;
    visit(hits[next]);
    next = (next + 1) % hits.length;
  });
  return [input, status];
}

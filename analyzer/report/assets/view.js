// What timelines and large drawings share: a search, zoom by buttons and keys, a text beside the pointer.

/**
 * Makes the line above a drawing, the finder on the left and buttons on the right, and listens to the drawing's
 * keys: zoom(factor), move(pixels) to the right, fit().
 */
function zoomTools(drawing, finder, { zoom, move, fit }) {
  const [closer, wider, left, right] = [() => zoom(1.5), () => zoom(1 / 1.5), () => move(60), () => move(-60)];
  const keys = {
    "+": closer, "=": closer, w: closer, "-": wider, s: wider, 0: fit,
    ArrowLeft: left, a: left, ArrowRight: right, d: right,
  };
  drawing.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  const buttons = [["+", "Zoom in", closer], ["−", "Zoom out", wider], ["Fit", "Show all", fit]].map(
    ([sign, name, act]) => buttonOf(sign, act, { "aria-label": name, title: name }));
  return element("div", { className: "tools" }, ...finder, element("span", { className: "tools push" }, ...buttons));
}

/** A search field that marks its hits: find(words) -> indices; visit(index) of the first, on Enter of the next. */
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
    if (hits.length) visit(hits[next++]);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !hits.length) return;
    next %= hits.length;
    status.textContent = `${formatted(next + 1, 0)} of ${formatted(hits.length, 0)}`;
    visit(hits[next++]);
  });
  return [input, status];
}

/** Shows a text beside the pointer, or hides it where there is none. */
function showTip(tip, text, event) {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const box = tip.parentElement.getBoundingClientRect();
  tip.style.left = `${Math.max(0, Math.min(event.clientX - box.left + 14, box.width - tip.offsetWidth))}px`;
  tip.style.top = `${event.clientY - box.top + 18}px`;
}

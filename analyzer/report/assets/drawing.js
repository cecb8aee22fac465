// A chart drawn as SVG: marks show their labels under the pointer, a picked step is picked in all charts by step,
// and a large drawing can be searched and zoomed.

drawers.drawing = (chart, place) => {
  const parsed = new DOMParser().parseFromString(chart.svg, "image/svg+xml").documentElement;
  const drawing = document.importNode(parsed, true);
  const width = parsed.width.baseVal.value; // texts are shown at their own size, or a little larger
  drawing.style.maxWidth = `${width * (chart.narrow ? 1.2 : 1.4)}px`;
  drawing.style.minWidth = `${Math.min(width, chart.narrow ? 320 : 600)}px`;
  const tip = element("div", { className: "tip", hidden: true });
  const frame = element("div", { className: "drawing" }, drawing);
  drawing.setAttribute("role", "graphics-document");
  drawing.setAttribute("aria-label", chart.title);
  const marks = [...drawing.querySelectorAll("[role='graphics-symbol']")];
  if (chart.large) place.append(zoomable(drawing, frame, marks, width));
  place.append(frame, tip);
  if (chart.grid) {
    const button = buttonOf("Show in 3-D", () => button.replaceWith(...columnsIn3d(chart.grid, marks, tip)));
    place.prepend(button);
  }
  pickSteps(marks.filter((mark) => mark.dataset.step), place, drawing);
  frame.addEventListener("pointermove", (event) => {
    showTip(tip, event.target.closest("[role='graphics-symbol']")?.getAttribute("aria-label"), event);
  });
  frame.addEventListener("pointerleave", () => { tip.hidden = true; });
};

/** Lets a large drawing scroll in its frame, zoom and be searched; returns the line above it. */
function zoomable(drawing, frame, marks, width) {
  frame.classList.add("large");
  frame.tabIndex = 0;
  drawing.style.maxWidth = "none";
  const show = (scale) => {
    drawing.style.minWidth = "0";
    drawing.style.width = scale ? `${width * scale}px` : "100%";
  };
  show(1.15);
  const lower = marks.map((mark) => mark.getAttribute("aria-label").toLowerCase());
  const finder = makeFinder("Find a node",
    (words) => lower.flatMap((label, index) => (label.includes(words) ? [index] : [])),
    (hits) => marks.forEach((mark, index) => mark.classList.toggle("aside", Boolean(hits && !hits.has(index)))),
    (index) => marks[index].scrollIntoView({ block: "center", inline: "center" }));
  return zoomTools(frame, finder, {
    zoom: (factor) => show((drawing.clientWidth / width) * factor),
    move: (pixels) => frame.scrollBy(-pixels, 0),
    fit: () => show(0),
  });
}

/** Draws a column for each cell of a grid, in the colour of its mark; a drag turns the drawing. */
function columnsIn3d({ columns, rows, values }, marks, tip) {
  const [wide, deep, tall] = [1, 1.5, 0.8];
  const most = values.flat().reduce((largest, value) => Math.max(largest, value ?? 0), 0) || 1;
  const centre = (index, names, size) => size * ((index + 0.5) / names.length - 0.5);
  const known = values.flatMap((row, y) => row.flatMap((value, x) => (value === null ? [] : [{ x, y, value }])));
  const cells = known.map(({ x, y, value }, index) => (
    { x: centre(x, columns, wide), y: centre(y, rows, deep), z: (tall * value) / most, mark: marks[index], faces: [] }));
  const [halfX, halfY] = [(0.36 * wide) / columns.length, (0.36 * deep) / rows.length];
  const canvas = element("canvas", { className: "plot", tabIndex: 0, role: "application", "aria-label": "The map in 3-D" });
  const context = canvas.getContext("2d");
  const view = {};
  const change = (to) => { Object.assign(view, to); draw(); };
  const start = { turn: 0.5, size: 1 };

  function draw() {
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    [canvas.width, canvas.height] = [width, height].map((side) => Math.round(side * devicePixelRatio)); // clears it
    context.scale(devicePixelRatio, devicePixelRatio);
    const [sin, cos] = [Math.sin(view.turn), Math.cos(view.turn)];
    const scale = Math.min(width / 2, height / 1.8) * view.size;
    const near = ({ x, y }) => x * sin + y * cos;
    const onScreen = (x, y, z) => [width / 2 + scale * (x * cos - y * sin), height / 2 + scale * (0.4 + near({ x, y }) / 2 - z)];
    const shape = (corners) => new Path2D(`M${corners.map((corner) => onScreen(...corner)).join("L")}Z`);
    cells.sort((a, b) => near(a) - near(b)); // the farthest is drawn first
    for (const { x, y, z, mark, faces } of cells) {
      const side = Math.sign(cos) * halfY;
      const end = Math.sign(sin) * halfX;
      const seen = [
        [[x - halfX, y + side], [x + halfX, y + side]],
        [[x + end, y - halfY], [x + end, y + halfY]],
      ].map(([from, to]) => shape([[...from, 0], [...to, 0], [...to, z], [...from, z]]));
      const roof = shape([[x - halfX, y - halfY, z], [x + halfX, y - halfY, z], [x + halfX, y + halfY, z], [x - halfX, y + halfY, z]]);
      faces.splice(0, 3, ...seen, roof);
      for (const [index, shade] of [0.2, 0.35, 0].entries()) {
        context.fillStyle = mark.getAttribute("fill");
        context.fill(faces[index]);
        context.fillStyle = `rgb(0 0 0 / ${shade})`;
        context.fill(faces[index]);
      }
    }
    const [beside, before] = [Math.sign(sin) * (wide / 2 + 0.03), Math.sign(cos) * (deep / 2 + 0.05)];
    drawNames(columns.map((name, index) => [name, ...onScreen(centre(index, columns, wide), before, 0)]), sin < 0 ? "left" : "right");
    drawNames(rows.map((name, index) => [name, ...onScreen(beside, centre(index, rows, deep), 0)]), sin * cos < 0 ? "right" : "left");
  }

  /** Draws the names that do not cover each other. */
  function drawNames(names, align) {
    Object.assign(context, { font: "12px system-ui, sans-serif", fillStyle: inks().ink, textAlign: align, textBaseline: "middle" });
    let last = Infinity;
    for (const [name, x, y] of names) {
      if (Math.abs(y - last) < 13) continue;
      last = y;
      context.fillText(name, x, y);
    }
  }

  const cellAt = (x, y) => cells.findLast(({ faces }) => (
    faces.some((face) => context.isPointInPath(face, x * devicePixelRatio, y * devicePixelRatio))));
  const zoom = (factor) => change({ size: view.size * factor });
  const move = (pixels) => change({ turn: view.turn - pixels / 200 });
  listenToPointers(canvas, {
    hover: (event) => showTip(tip, event && cellAt(event.offsetX, event.offsetY)?.mark.getAttribute("aria-label"), event),
    drag: move,
    zoom,
  });
  new ResizeObserver(() => change(view.size ? {} : start)).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => change({}));
  const hint = element("p", { className: "soft" }, "Drag, or use ← and →, to turn it. A column is a cell of the map, as high as its value.");
  return [zoomTools(canvas, [], { zoom, move, fit: () => change(start) }), canvas, hint];
}

/** Lets a click on a mark pick its step; a second click, or Escape, shows all steps again. */
function pickSteps(marks, place, drawing) {
  if (new Set(marks.map((mark) => mark.dataset.step)).size < 2) return;
  const hint = `Click a step to pick it${steps.drawn.length > 1 ? " and to see it below" : ""}.`;
  const detail = element("p", { className: "detail soft", role: "status" }, hint);
  place.append(detail);
  let picked = null;
  steps.followers.push((step) => {
    const ofStep = marks.filter((mark) => mark.dataset.step === step);
    picked = ofStep.length ? step : null;
    for (const mark of marks) mark.classList.toggle("aside", picked !== null && mark.dataset.step !== step);
    const said = ofStep.map((mark) => mark.getAttribute("aria-label")).join(" · ");
    detail.textContent = said || (step === null ? hint : `Step ${step} is not in this chart.`);
  });
  drawing.addEventListener("click", (event) => {
    const { step } = event.target.dataset;
    if (step) steps.pick(step === picked ? null : step);
  });
}

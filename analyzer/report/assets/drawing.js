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
  if (chart.figure) offer3d(chart.figure, place);
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

/** A button that shows the same values in 3-D; plotly starts with the click. */
function offer3d({ data, layout }, place) {
  const button = element("button", { type: "button" }, "Show in 3-D");
  place.append(button);
  button.addEventListener("click", () => {
    document.head.append(element("script", { textContent: document.getElementById("plotly").textContent }));
    const plot = element("div", { className: "plot" });
    button.replaceWith(plot);
    const buttons = [["toImage", "orbitRotation", "pan3d", "resetCameraDefault3d"]]; // none that sends the data
    Plotly.newPlot(plot, data, layout, { responsive: true, displaylogo: false, modeBarButtons: buttons });
  });
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

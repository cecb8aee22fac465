// A chart that came as a drawing (SVG): its marks say what they are under the pointer. A step that is picked in
// one is picked in all that are by step.

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
  place.append(frame, tip);
  if (chart.figure) offer3d(chart.figure, place);
  showWhole(drawing);
  if (chart.by === "step" && chart.place !== null) pickSteps(chart, place, drawing);
  frame.addEventListener("pointermove", (event) => {
    const mark = event.target.closest("[role='graphics-symbol'][aria-label]");
    say(mark, event.clientX, event.clientY);
  });
  frame.addEventListener("pointerleave", () => say(null));

  /** Shows what a mark is beside a place in the window; nothing without a mark. */
  function say(mark, atX, atY) {
    tip.hidden = !mark;
    if (!mark) return;
    tip.textContent = `${mark.getAttribute("aria-label")} ${chart.unit ?? ""}`.trim();
    const box = place.getBoundingClientRect();
    tip.style.left = `${Math.max(0, Math.min(atX - box.left + 12, box.width - tip.offsetWidth))}px`;
    tip.style.top = `${atY - box.top + 16}px`;
  }
};

/** A button that shows the same values in 3-D; plotly starts when it is first wanted. */
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

/** Makes room for texts that are wider in this browser's font than where the chart was drawn. */
function showWhole(drawing) {
  const [seen, view] = [drawing.getBBox(), drawing.viewBox.baseVal];
  const left = Math.min(view.x, seen.x);
  const right = Math.max(view.x + view.width, seen.x + seen.width);
  drawing.setAttribute("viewBox", [left, view.y, right - left, view.height].join(" "));
}

/** Lets a step be picked by a click on one of its marks; a second one, or Escape, shows all again. */
function pickSteps(chart, place, drawing) {
  const marks = [...drawing.querySelectorAll("[aria-roledescription='bar'], [aria-roledescription='rect mark']")]
    .map((mark) => {
      const label = mark.getAttribute("aria-label");
      const words = label.slice(0, label.lastIndexOf(": ")).split(", ");
      const [step] = words.splice(chart.place, 1);
      return { mark, step, said: [words.join(", "), label.slice(label.lastIndexOf(": ") + 2), chart.unit].filter(Boolean).join(" ") };
    });
  if (new Set(marks.map(({ step }) => step)).size < 2) return;
  const hint = `Click a step to pick it${steps.drawn.length > 1 ? " and to see it below" : ""}.`;
  const detail = element("p", { className: "detail soft", role: "status" }, hint);
  place.append(detail);
  let picked = null;
  const show = (step) => {
    const own = marks.filter((one) => one.step === step);
    picked = own.length ? step : null;
    for (const one of marks) one.mark.classList.toggle("aside", picked !== null && one.step !== step);
    const said = own.map((one) => one.said).join(" · ");
    detail.textContent = own.length ? `Step ${step}: ${said}` : step === null ? hint : `Step ${step} is not in this chart.`;
  };
  steps.followers.push(show);
  drawing.addEventListener("click", (event) => {
    const hit = marks.find(({ mark }) => mark === event.target);
    if (!hit) return;
    steps.pick(hit.step === picked ? null : hit.step);
  });
}

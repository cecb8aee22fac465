// A chart that came as a drawing (SVG): its marks say what they are under the pointer.

drawers.drawing = (chart, place) => {
  const parsed = new DOMParser().parseFromString(chart.svg, "image/svg+xml").documentElement;
  const drawing = document.importNode(parsed, true);
  const width = parsed.width.baseVal.value; // texts are shown at their own size, or a little larger
  drawing.style.maxWidth = `${width * 1.15}px`;
  drawing.style.minWidth = `${Math.min(width, chart.narrow ? 320 : 600)}px`;
  const tip = element("div", { className: "tip", hidden: true });
  const frame = element("div", { className: "drawing" }, drawing);
  place.append(frame, tip);
  frame.addEventListener("pointermove", (event) => {
    const mark = event.target.closest("[role='graphics-symbol'][aria-label]");
    tip.hidden = !mark;
    if (!mark) return;
    tip.textContent = mark.getAttribute("aria-label");
    const box = place.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    tip.style.left = `${Math.max(0, Math.min(x + 12, box.width - tip.offsetWidth))}px`;
    tip.style.top = `${y + 16}px`;
  });
  frame.addEventListener("pointerleave", () => { tip.hidden = true; });
};

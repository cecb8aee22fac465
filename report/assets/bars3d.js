// A grid of bars that turns, and maps and bars beside it, drawn by plotly. Names are escaped: plotly reads some markup
// in texts, and looks them up in plain objects, in which a space tells a name from what all objects have.

const LONGEST_LABEL = 40;
const NARROW = 640; // CSS pixels: a phone
const LIGHT = { ambient: 0.62, diffuse: 0.7, specular: 0.05, roughness: 0.9, fresnel: 0 };
const RATIOS = ["#053061", "#2166ac", "#4393c3", "#92c5de", "#d1e5f0", "#f7f7f7", "#fddbc7", "#f4a582", "#d6604d",
  "#b2182b", "#67001f"].map((colour, index) => [index / 10, colour]);
// Two triangles for each side and the top of a box, whose corners are numbered round the floor, then the top.
const BOX_FACES = [
  [0, 1, 5], [0, 5, 4], [1, 2, 6], [1, 6, 5], [2, 3, 7], [2, 7, 6], [3, 0, 4], [3, 4, 7], [4, 5, 6], [4, 6, 7],
];

function escaped(text) {
  const name = text in {} ? `${text} ` : String(text);
  return name.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function valueText(value) {
  return value === null ? GAP : formatted(value, 6);
}

function titled(text, standoff = 6) {
  return { title: { text: escaped(text), standoff } };
}

/** Places 0, 1, 2, … on an axis with names, as many as there is room for. */
function namedTicks(names, room, longest = LONGEST_LABEL) {
  const step = Math.max(1, Math.ceil(names.length / Math.max(1, room)));
  const values = names.map((_, index) => index).filter((index) => index % step === 0);
  const texts = values.map((index) => escaped(shortened(names[index], longest)));
  return { tickmode: "array", tickvals: values, ticktext: texts };
}

function axisStyle() {
  const line = inks().line;
  return { gridcolor: line, linecolor: line, zerolinecolor: line, tickcolor: line, automargin: true };
}

function layoutFor(place, more) {
  const narrow = place.clientWidth < NARROW;
  const below = { orientation: "h", y: -0.2, yanchor: "top", x: 0 };
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: inks().ink, size: narrow ? 11 : 12, family: "system-ui, sans-serif" },
    margin: { l: narrow ? 44 : 60, r: narrow ? 8 : 24, t: 34, b: 48 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: inks().soft, activecolor: inks().accent },
    legend: narrow ? below : { orientation: "v", x: 1.01, y: 1 },
    hoverlabel: { font: { size: 12 }, namelength: -1, align: "left" },
    ...more,
  };
}

/** Draws now, and again when light turns to dark or a phone is turned; made() -> {traces, layout}. */
function plotted(place, height, made) {
  if (typeof Plotly === "undefined") {
    document.head.append(element("script", { textContent: document.getElementById("plotly").textContent }));
  }
  const plot = element("div", { className: "plot" });
  plot.style.height = `${height}px`;
  place.append(plot);
  const draw = () => {
    const { traces, layout } = made();
    return Plotly.react(plot, traces, layout, optionsFor(layout));
  };
  draw();
  onTheme(draw);
  matchMedia(`(max-width: ${NARROW}px)`).addEventListener("change", draw);
  return { plot, draw };
}

/** Only these buttons: plotly's own choice includes one that would send the data to a server. */
function optionsFor(layout) {
  const turning = ["orbitRotation", "pan3d", "resetCameraDefault3d"];
  const ways = layout.scene ? turning : ["zoom2d", "pan2d", "resetScale2d"];
  return { responsive: true, displaylogo: false, modeBarButtons: [["toImage"], ways] };
}

drawers.bars3d = (chart, place) => {
  const colourOf = coloursOf(chart);
  let flat = !hasWebGL();
  const height = Math.max(400, Math.min(720, innerHeight * 0.8, place.clientWidth * 1.1));
  const toggle = element("button", { type: "button", "aria-pressed": String(flat), disabled: flat }, "Flat");
  const hint = element("span", { className: "soft" });
  place.append(element("div", { className: "tools" }, toggle, hint));
  const made = () => (flat ? flatMap(chart, place) : grid3d(chart, place, colourOf));
  const { plot, draw } = plotted(place, height, made);
  const say = () => { hint.textContent = flat ? "Colour is height; blank: no such operation in that run."
    : "Drag to turn, wheel to zoom; no bar: no such operation in that run."; };
  say();
  toggle.addEventListener("click", () => {
    flat = !flat;
    toggle.setAttribute("aria-pressed", String(flat));
    say();
    Plotly.purge(plot); // a 3-D scene does not turn into flat axes
    draw();
  });
};

/** Bars side by side. */
drawers.bars = (chart, place) => {
  const colourOf = coloursOf(chart);
  plotted(place, 340, () => {
    const traces = Object.entries(chart.series).map(([name, values]) => ({
      type: "bar", name: escaped(name), x: values.map((_, index) => index), y: values, hoverinfo: "text",
      hovertext: values.map((value, index) => `${escaped(chart.x[index])}<br>${escaped(name)}: ${valueText(value)}`),
      marker: { color: colourOf(name) }, textposition: "none",
    }));
    const xaxis = { ...axisStyle(), ...namedTicks(chart.x, place.clientWidth / 26), ...titled(chart.x_label, 14) };
    const yaxis = { ...axisStyle(), ...titled(chart.y_label) };
    const width = Math.min(place.clientWidth, 320 + 180 * chart.x.length); // a few bars are no walls
    return { traces, layout: layoutFor(place, { xaxis, yaxis, width, bargap: 0.22, showlegend: true }) };
  });
};

/** Ratios: blue below 1, red above, beyond those of nearly all in the last colours. */
drawers.heatmap = (chart, place) => {
  const all = chart.values.flat().filter((value) => value > 0).map((value) => Math.abs(Math.log(value)));
  const most = Math.max(all.sort((a, b) => a - b)[Math.floor(0.95 * (all.length - 1))] ?? 0, Math.log(1.1));
  const hover = chart.values.map((row, y) => row.map((value, x) =>
    `${escaped(chart.y[y])}<br>${escaped(chart.x[x])}: ${valueText(value)} ${escaped(chart.value_label)}`));
  const ends = [Math.exp(-most), 1, Math.exp(most)];
  plotted(place, 170 + 18 * chart.y.length, () => {
    const shown = { ...chart, z: chart.values, z_label: chart.value_label };
    const { traces: [trace], layout } = flatMap(shown, place, hover, chart.y.length);
    trace.z = chart.values.map((row) => row.map((value) => (value === null ? null : Math.max(-most, Math.log(value)))));
    Object.assign(trace, { colorscale: RATIOS, zmin: -most, zmax: most, ygap: 1 });
    Object.assign(trace.colorbar, { orientation: "h", lenmode: "pixels", len: 200, x: 0, xanchor: "left", y: 1,
      yanchor: "bottom", ticklabeloverflow: "allow", tickvals: ends.map(Math.log), ticktext: ends.map((value) => valueText(value)) });
    trace.colorbar.title.side = "top";
    const width = Math.min(place.clientWidth, 560 + 48 * chart.x.length);
    const margin = { ...layout.margin, t: 70, r: place.clientWidth < NARROW ? 8 : 160 }; // the scale's words are wide
    return { traces: [trace], layout: { ...layout, width, margin } };
  });
};

function hasWebGL() {
  const probe = document.createElement("canvas");
  return Boolean(probe.getContext("webgl2") ?? probe.getContext("webgl"));
}

function hoverOf(chart, row, column) {
  const value = chart.z[row][column];
  return `${escaped(chart.y[row])}<br>${escaped(chart.group[row])}, ${escaped(chart.x[column])}<br>` +
    `${escaped(chart.z_label)}: ${valueText(value)}`;
}

/** One mesh per group, a box per bar; where there is no value there is no box. */
function grid3d(chart, place, colourOf) {
  const meshes = new Map();
  chart.z.forEach((heights, row) => {
    const group = chart.group[row];
    if (!meshes.has(group)) meshes.set(group, { x: [], y: [], z: [], i: [], j: [], k: [], hovertext: [] });
    heights.forEach((height, column) => {
      if (height !== null) addBox(meshes.get(group), column, row, height, hoverOf(chart, row, column));
    });
  });
  const traces = [...meshes].map(([group, mesh]) => ({
    type: "mesh3d", name: escaped(group), showlegend: true, color: colourOf(group), hoverinfo: "text",
    flatshading: true, lighting: LIGHT, lightposition: { x: 2000, y: -4000, z: 6000 }, ...mesh,
  }));
  const narrow = place.clientWidth < NARROW;
  const axis = { ...axisStyle(), showbackground: false, showspikes: false, tickfont: { size: narrow ? 8 : 10 } };
  const scene = {
    xaxis: { ...axis, ...namedTicks(chart.x, 12, 18), ...titled(chart.x_label) },
    yaxis: { ...axis, ...namedTicks(chart.y, narrow ? 8 : 14, narrow ? 14 : 20), ...titled(chart.y_label) },
    zaxis: { ...axis, ...titled(chart.z_label), rangemode: "tozero" },
    aspectmode: "manual",
    aspectratio: { x: 1, y: 1.6, z: 0.8 },
    camera: { eye: narrow ? { x: 2.3, y: -2.3, z: 1.5 } : { x: 1.6, y: -1.6, z: 0.95 }, center: { z: -0.12 } },
  };
  const margin = { l: 0, r: 0, t: 30, b: 0 };
  return { traces, layout: layoutFor(place, { scene, margin, legend: { x: 0, y: 1, bgcolor: "rgba(0,0,0,0)" } }) };
}

function addBox(mesh, column, row, height, hover) {
  const base = mesh.x.length;
  for (const z of [0, height]) {
    for (const [dx, dy] of [[-0.3, -0.4], [0.3, -0.4], [0.3, 0.4], [-0.3, 0.4]]) {
      mesh.x.push(column + dx);
      mesh.y.push(row + dy);
      mesh.z.push(z);
      mesh.hovertext.push(hover);
    }
  }
  for (const [i, j, k] of BOX_FACES) {
    mesh.i.push(base + i);
    mesh.j.push(base + j);
    mesh.k.push(base + k);
  }
}

/** The same values as coloured fields, for small screens and where there is no WebGL. */
function flatMap(chart, place, hover, room = 40) {
  const trace = {
    type: "heatmap", z: chart.z, x: chart.x.map((_, index) => index), y: chart.y.map((_, index) => index),
    colorscale: "Viridis", xgap: 1, hoverongaps: false, hoverinfo: "text",
    text: hover ?? chart.z.map((heights, row) => heights.map((_, column) => hoverOf(chart, row, column))),
    colorbar: { title: { text: escaped(chart.z_label), side: "right" }, thickness: 12 },
  };
  const narrow = place.clientWidth < NARROW;
  const names = namedTicks(chart.y, room, narrow ? 16 : LONGEST_LABEL);
  const xaxis = { ...axisStyle(), ...namedTicks(chart.x, 20, 16), ...titled(chart.x_label, 14) };
  const yaxis = { ...axisStyle(), ...names, autorange: "reversed" };
  return { traces: [trace], layout: layoutFor(place, { xaxis, yaxis }) };
}

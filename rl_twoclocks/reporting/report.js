"use strict";
// Listeners sit on the document, and what `dress` does can be done again: what lies below may be renewed.

// Reads values back from the drawn lines, so that the page holds every number once. A lone point ends in h0.
let readings = new WeakMap();
function reading(plot) {
  if (!readings.has(plot)) {
    const svg = plot.querySelector("svg");
    const lines = [...svg.querySelectorAll(".line:not(.thin)")].map((path) => ({
      label: path.dataset.label,
      points: path.getAttribute("d").split(/[M ]/).filter(Boolean).map((p) => p.split(",").map(parseFloat)),
    }));
    const times = [...new Set(lines.flatMap((line) => line.points.map((p) => p[0])))].sort((a, b) => a - b);
    const scale = Object.fromEntries(Object.entries(svg.dataset).map(([key, text]) => [key, Number(text)]));
    readings.set(plot, { lines, times, scale });
  }
  return readings.get(plot);
}
function value({ low, high, log }, y) {
  const share = 1 - y / 1000;
  return log ? low * (high / low) ** share : low + share * (high - low);
}
const nearest = (list, x, key) => list.reduce((a, b) => (Math.abs(key(b) - x) < Math.abs(key(a) - x) ? b : a));
const output = (plot) => plot.closest("figure").querySelector("output");

// The plot that is being read, and where: at most one.
let shown = null;
function show(plot, at) {
  const { lines, times, scale } = reading(plot);
  const x = nearest(times, at, (t) => t);
  if (shown && shown.plot !== plot) hide();
  shown = { plot, x };
  const cursor = plot.querySelector(".cursor");
  cursor.hidden = false;
  cursor.style.left = `${x / 10}%`;
  const said = lines.slice(0, 8).map((line) => {
    const point = nearest(line.points, x, (p) => p[0]);
    return `${line.label} ${Number(value(scale, point[1]).toPrecision(3)).toLocaleString("en")}`;
  });
  const frames = Math.round((x / 1000) * scale.frames).toLocaleString("en");
  output(plot).textContent = `${frames} frames: ${said.join(" · ")}`;
}
function hide() {
  if (!shown) return;
  shown.plot.querySelector(".cursor").hidden = true;
  output(shown.plot).textContent = "";
  shown = null;
}
const plotOf = (node) => (node instanceof Element ? node.closest(".plot") : null);
document.addEventListener("pointermove", (event) => {
  const plot = plotOf(event.target);
  if (!plot) return;
  const box = plot.getBoundingClientRect();
  show(plot, (1000 * (event.clientX - box.left)) / box.width);
});
document.addEventListener("pointerout", (event) => {
  if (shown && plotOf(event.target) === shown.plot && plotOf(event.relatedTarget) !== shown.plot) hide();
});
document.addEventListener("focusout", (event) => {
  if (shown && event.target === shown.plot) hide();
});
document.addEventListener("keydown", (event) => {
  const plot = event.target instanceof Element && event.target.matches(".plot") ? event.target : null;
  if (!plot) return;
  const { times } = reading(plot), far = event.shiftKey ? 20 : 1;
  const at = shown && shown.plot === plot ? times.indexOf(shown.x) : 0;
  const to = { ArrowLeft: at - far, ArrowRight: at + far, Home: 0, End: times.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  show(plot, times[Math.min(Math.max(to, 0), times.length - 1)]);
});

// The slider of an entropy map.
function turn(figure) {
  const slider = figure.querySelector("input"), image = figure.querySelector("img");
  const text = slider.dataset.words.split("|")[slider.value];
  image.style.top = `${-100 * slider.value}%`;
  image.alt = `Heat map of visited states. ${text}`;
  slider.setAttribute("aria-valuetext", text);
  figure.querySelector("output").textContent = text;
}

// The filter of a table.
function sift(filter) {
  const rows = [...filter.parentElement.querySelectorAll("tr[data-kind]")];
  const kinds = new Set([...filter.querySelectorAll("input:checked")].map((box) => box.value));
  for (const row of rows) row.hidden = !kinds.has(row.dataset.kind);
  const left = rows.filter((row) => !row.hidden).length;
  filter.querySelector("output").textContent = `${left} of ${rows.length} rows`;
}
document.addEventListener("input", (event) => {
  const figure = event.target.closest(".heat");
  if (figure) turn(figure);
});
document.addEventListener("change", (event) => {
  const filter = event.target.closest(".filter");
  if (filter) sift(filter);
});
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copier");
  if (!button) return;
  const code = button.previousElementSibling;
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "copied";
  } catch {
    // Some browsers forbid it for a file: then the text is selected, ready for Ctrl+C.
    getSelection().selectAllChildren(code);
    button.textContent = "press Ctrl+C";
  }
});

// Adds what needs the script; elements that the page did not come with carry `data-own`.
function own(tag, name) {
  const element = document.createElement(tag);
  element.className = name;
  element.dataset.own = "";
  return element;
}
function dress() {
  readings = new WeakMap();
  for (const plot of document.querySelectorAll(".plot")) {
    plot.tabIndex = 0;
    plot.setAttribute("role", "group");
    const title = plot.closest("figure")?.querySelector("h3")?.textContent ?? "Values";
    plot.setAttribute("aria-label", `${title}: left and right arrow keys, Home, End`);
    if (plot.querySelector(".cursor")) continue;
    const cursor = own("div", "cursor");
    cursor.hidden = true;
    plot.append(cursor);
  }
  for (const figure of document.querySelectorAll(".heat")) {
    figure.querySelector(".slide").hidden = false;
    turn(figure);
  }
  for (const filter of document.querySelectorAll(".filter")) {
    filter.hidden = false;
    sift(filter);
  }
  for (const code of document.querySelectorAll("code.copy")) {
    const button = code.nextElementSibling?.matches(".copier") ? code.nextElementSibling : own("button", "copier");
    button.setAttribute("aria-label", `Copy ${code.textContent}`);
    if (button.isConnected) continue;
    button.textContent = "copy";
    code.after(button);
  }
  if (shown && shown.plot.isConnected) show(shown.plot, shown.x);
  else shown = null;
}
dress();

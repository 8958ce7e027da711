"use strict";
// Reads values back from the drawn lines, so that the page holds every number once.
for (const plot of document.querySelectorAll(".plot")) {
  const svg = plot.querySelector("svg");
  const { frames, low, high, log } = Object.fromEntries(
    Object.entries(svg.dataset).map(([key, value]) => [key, Number(value)]));
  const output = plot.closest("figure").querySelector("output");
  let lines = null, times = [], at = 0;
  const read = () => {
    if (lines) return;
    lines = [...svg.querySelectorAll(".line")].map((path) => ({
      label: path.dataset.label, thin: path.classList.contains("thin"),
      points: path.getAttribute("d").split(/[M ]/).filter(Boolean).map((p) => p.split(",").map(Number)),
    }));
    lines = lines.filter((line) => !line.thin);
    times = [...new Set(lines.flatMap((line) => line.points.map((p) => p[0])))].sort((a, b) => a - b);
  };
  const value = (y) => {
    const share = 1 - y / 1000;
    return log ? low * (high / low) ** share : low + share * (high - low);
  };
  const nearest = (list, x, key) => list.reduce((a, b) => (Math.abs(key(b) - x) < Math.abs(key(a) - x) ? b : a));
  const cursor = document.createElement("div");
  cursor.className = "cursor";
  cursor.hidden = true;
  plot.append(cursor);
  const show = (x) => {
    at = times.indexOf(x);
    cursor.hidden = false;
    cursor.style.left = `${x / 10}%`;
    const said = lines.slice(0, 8).map((line) => {
      const point = nearest(line.points, x, (p) => p[0]);
      return `${line.label} ${Number(value(point[1]).toPrecision(3)).toLocaleString("en")}`;
    });
    output.textContent = `${Math.round((x / 1000) * frames).toLocaleString("en")} frames: ${said.join(" · ")}`;
  };
  const hide = () => { cursor.hidden = true; output.textContent = ""; };
  plot.addEventListener("pointermove", (event) => {
    read();
    const box = plot.getBoundingClientRect();
    show(nearest(times, (1000 * (event.clientX - box.left)) / box.width, (t) => t));
  });
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("blur", hide);
  plot.tabIndex = 0;
  plot.setAttribute("role", "group");
  plot.setAttribute("aria-label", "Values: left and right arrow keys, Home, End");
  plot.addEventListener("keydown", (event) => {
    read();
    const far = event.shiftKey ? 20 : 1;
    const to = { ArrowLeft: at - far, ArrowRight: at + far, Home: 0, End: times.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    show(times[Math.min(Math.max(to, 0), times.length - 1)]);
  });
}
for (const figure of document.querySelectorAll(".heat")) {
  const slider = figure.querySelector("input");
  const words = slider.dataset.words.split("|");
  figure.querySelector(".slide").hidden = false;
  slider.addEventListener("input", () => {
    const image = figure.querySelector("img");
    const text = words[slider.value];
    image.style.top = `${-100 * slider.value}%`;
    image.alt = `Heat map of visited states. ${text}`;
    slider.setAttribute("aria-valuetext", text);
    figure.querySelector("output").textContent = text;
  });
  slider.setAttribute("aria-valuetext", words[slider.value]);
}
for (const filter of document.querySelectorAll(".filter")) {
  const rows = [...filter.parentElement.querySelectorAll("tr[data-kind]")];
  filter.hidden = false;
  filter.addEventListener("change", () => {
    const shown = new Set([...filter.querySelectorAll("input:checked")].map((box) => box.value));
    for (const row of rows) row.hidden = !shown.has(row.dataset.kind);
    const left = rows.filter((row) => !row.hidden).length;
    filter.querySelector("output").textContent = `${left} of ${rows.length} rows`;
  });
}
for (const code of document.querySelectorAll("code.copy")) {
  const button = document.createElement("button");
  button.textContent = "copy";
  button.setAttribute("aria-label", `Copy ${code.textContent}`);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "copied";
    } catch {
      // Some browsers forbid it for a file: then the text is selected, ready for Ctrl+C.
      getSelection().selectAllChildren(code);
      button.textContent = "press Ctrl+C";
    }
  });
  code.after(button);
}

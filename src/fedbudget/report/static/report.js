// Draws a report's document into an element, and again in place when the document changes.
// What comes from files is text: it goes into the page as textContent, never as HTML.
(function () {
  "use strict";

  // Okabe-Ito, told apart by colour-blind readers; the last is the ink of the theme
  const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", ""];
  const DASHES = ["solid", "8px,4px", "8px,3px,2px,3px", "2px,2px", "9px,2px,2px,2px,2px,2px", "14px,4px", "5px,2px"];
  const THEMES = {
    light: { ink: "#1a1d21", quiet: "#555d66", grid: "#e4e7ea", black: "#000000", low: "#ffffff" },
    dark: { ink: "#e9ecef", quiet: "#a5adb5", grid: "#2f353b", black: "#ffffff", low: "#14171a" },
  };
  const MARKERS = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x"];
  const COUNTED = ["round", "agent"]; // x axes without fractions
  const HEIGHT = 280;
  const PAPER = 660; // pixels across when printed
  const states = new WeakMap(); // element -> what was drawn in it
  const roots = new Set(); // elements that are in the page

  // ---- themes -------------------------------------------------------------------------------

  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const coarse = window.matchMedia("(pointer: coarse)"); // a finger scrolls the page, it does not zoom a plot
  const still = window.matchMedia("(hover: none)"); // nothing to hover with: no tool bar over the plot
  let chosen = new URLSearchParams(window.location.search).get("theme") || stored();
  let printing = false;

  function stored() {
    try { return window.localStorage.getItem("fedbudget-theme"); } catch { return null; } // file: may have none
  }

  function theme() {
    if (printing) return "light";
    return chosen === "dark" || chosen === "light" ? chosen : system.matches ? "dark" : "light";
  }

  function mark() {
    document.documentElement.dataset.theme = theme();
    const other = theme() === "dark" ? "light" : "dark";
    for (const button of document.querySelectorAll("[data-theme-toggle]")) button.textContent = `${other} mode`;
  }

  function applyTheme() {
    mark();
    for (const root of roots) {
      if (root.isConnected) redraw(root);
      else clear(root);
    }
  }

  document.addEventListener("click", (event) => {
    if (!(event.target instanceof Element) || !event.target.closest("[data-theme-toggle]")) return;
    chosen = theme() === "dark" ? "light" : "dark";
    try { window.localStorage.setItem("fedbudget-theme", chosen); } catch { /* only for this page then */ }
    applyTheme();
  });
  system.addEventListener("change", applyTheme);
  window.addEventListener("beforeprint", () => { printing = true; applyTheme(); });
  window.addEventListener("afterprint", () => {
    printing = false;
    applyTheme();
    for (const root of roots) for (const plot of root.querySelectorAll(".plot")) window.Plotly.Plots.resize(plot);
  });
  document.addEventListener("DOMContentLoaded", mark);
  mark();

  function colour(place) {
    return COLOURS[place % COLOURS.length] || THEMES[theme()].black;
  }

  // past the last colour they begin again with other dashes
  function dash(place) {
    return DASHES[(place + Math.floor(place / COLOURS.length)) % DASHES.length];
  }

  function faint(hex, alpha) {
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    return `rgba(${r},${g},${b},${alpha})`;
  }

  // ---- elements -----------------------------------------------------------------------------

  function make(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value !== null && value !== undefined) element.setAttribute(name, value);
    }
    for (const child of children) {
      if (child === null || child === undefined) continue;
      element.append(child instanceof Node ? child : document.createTextNode(String(child)));
    }
    return element;
  }

  // a part of the page that is made anew only when its data changed
  function part(state, name, data, build) {
    let known = state.parts.get(name);
    if (!known) {
      known = { text: null, element: make("section", { class: name }) };
      state.parts.set(name, known);
    }
    const text = JSON.stringify(data === undefined ? null : data);
    if (known.text !== text) {
      known.text = text;
      known.element.replaceChildren(...(data ? build(data) : []).filter(Boolean));
    }
    return known.element;
  }

  function table(sheet, text) {
    const head = make("tr", null, ...sheet.columns.map((c) => make("th", { scope: "col" }, c)));
    const rows = sheet.rows.map((row) =>
      make("tr", null, ...row.map((cell, i) => make(i ? "td" : "th", i ? null : { scope: "row" }, cell))));
    const box = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": sheet.title || "comparison" },
      make("table", { class: text ? "text" : null }, make("thead", null, head), make("tbody", null, ...rows)));
    return [
      make("h2", null, sheet.title || "comparison"),
      box,
      sheet.caption ? make("p", { class: "note" }, sheet.caption) : null,
    ];
  }

  // ---- plots --------------------------------------------------------------------------------

  // Plotly reads some tags in its texts
  function plain(text) {
    return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  }

  // every x of a panel
  function across(panel) {
    return panel.lines.flatMap((line) => line.x).concat(panel.strip ? panel.strip.x : []);
  }

  // a trace, for a shape is either under the grid or over the curves
  function limit(panel) {
    const x = across(panel);
    if (panel.limit === null || !x.length) return [];
    const [first, last] = [Math.min(...x), Math.max(...x)];
    return [{
      x: first < last ? [first, last] : [first - 0.5, last + 0.5], y: [panel.limit, panel.limit],
      mode: "lines", line: { color: THEMES[theme()].black, width: 1.5 }, hoverinfo: "skip",
    }];
  }

  function traces(panel, hidden) {
    const found = limit(panel);
    for (const line of panel.lines) {
      if (hidden.has(line.name)) continue;
      const own = colour(line.place);
      const shape = line.steps ? "hvh" : "linear";
      if (line.low && !line.points) {
        const edge = { x: line.x, mode: "lines", line: { width: 0, shape }, hoverinfo: "skip", showlegend: false };
        found.push({ ...edge, y: line.low }, { ...edge, y: line.high, fill: "tonexty", fillcolor: faint(own, 0.16) });
      }
      const range = line.low ? line.low.map((low, i) => [low, line.high[i]]) : null;
      const words = panel.categories.length ? line.y.map((y) => plain(panel.categories[y])) : null;
      const value = words ? "%{text}" : "%{y:.4~g}";
      const band = range && !words ? " (%{customdata[0]:.4~g} to %{customdata[1]:.4~g})" : "";
      found.push({
        x: line.x, y: line.y, name: plain(line.name), customdata: range, text: words,
        mode: line.points || line.x.length === 1 ? "markers" : "lines",
        line: { color: own, width: 2, shape, dash: dash(line.place) },
        marker: { color: own, size: line.points ? 7 : 8, symbol: line.points ? MARKERS[line.place % MARKERS.length] : "circle" },
        cliponaxis: !line.points, // the dot of a 0 is whole
        error_y: line.points && line.low ? bars(line, own) : { visible: false },
        hovertemplate: value + band + "<extra>%{fullData.name}</extra>",
      });
    }
    if (panel.strip) {
      const { rows, x, shares } = panel.strip;
      found.push({
        type: "heatmap", x, y: rows.map((_, i) => i), z: shares, zmin: 0, zmax: 1, showscale: false,
        ygap: 2, colorscale: [[0, THEMES[theme()].low], [1, colour(0)]],
        text: shares.map((row, i) => row.map(() => plain(rows[i]))),
        hovertemplate: "round %{x}: %{text} trained by %{z:.0%}<extra></extra>",
      });
    }
    return found;
  }

  // from the least to the most of the seeds
  function bars(line, own) {
    return {
      type: "data", symmetric: false, color: own, thickness: 1, width: 0,
      array: line.high.map((high, i) => high - line.y[i]), arrayminus: line.low.map((low, i) => line.y[i] - low),
    };
  }

  // rounds have no halves; many of them leave no room for such ticks
  function steps(panel) {
    const x = across(panel);
    if (!COUNTED.includes(panel.x) || !x.length || Math.max(...x) - Math.min(...x) > 12) return {};
    return { tick0: 0, dtick: 1 };
  }

  function layout(panel) {
    const { ink, quiet, grid, low } = THEMES[theme()];
    const axis = {
      color: quiet, gridcolor: grid, zeroline: false, linecolor: grid, automargin: true,
      fixedrange: coarse.matches,
      title: { font: { size: 12 }, standoff: 6 },
    };
    const yaxis = { ...axis, title: { ...axis.title, text: plain(panel.y) }, type: panel.log ? "log" : "linear" };
    const values = panel.lines.flatMap((line) => [...line.y, ...(line.high || [])]).concat(panel.limit ?? []);
    if (panel.log) {
      const ticks = decades(values.filter((y) => y > 0));
      Object.assign(yaxis, { tickmode: "array", tickvals: ticks, ticktext: ticks.map((t) => String(Number(t.toPrecision(1)))) });
    } else if (panel.zero) {
      yaxis.range = [0, (Math.max(...values, panel.whole ? 2 : 0) || 1) * 1.1];
      if (panel.whole && yaxis.range[1] < 6) yaxis.dtick = 1;
    }
    const names = panel.strip ? panel.strip.rows : panel.categories;
    if (names.length) {
      Object.assign(yaxis, {
        tickmode: "array", tickvals: names.map((_, i) => i), ticktext: names.map(plain),
        range: [-0.5, names.length - 0.5], showgrid: !panel.strip,
      });
    }
    return {
      height: panel.strip ? 90 + 26 * Math.max(2, names.length) : HEIGHT,
      margin: { l: 8, r: 10, t: 10, b: 8 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: ink, size: 12, family: "system-ui, sans-serif" },
      hoverlabel: { namelength: 40, bgcolor: low, bordercolor: grid, font: { color: ink } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: quiet, activecolor: ink },
      showlegend: false, yaxis,
      xaxis: { ...axis, title: { ...axis.title, text: plain(panel.x) }, hoverformat: ".4~g", showgrid: !panel.strip, ...steps(panel) },
      hovermode: panel.strip ? "closest" : "x unified",
      dragmode: coarse.matches ? false : "zoom",
      uirevision: "kept", // a zoom survives new data
    };
  }

  // ticks of a log axis: 1, 2, 5 of each decade, or the decades alone where there are many
  function decades(values) {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const steps = high > 300 * low ? [1] : [1, 2, 5];
    const found = [];
    for (let e = Math.floor(Math.log10(low)) - 1; e <= Math.ceil(Math.log10(high)); e++) {
      for (const step of steps) found.push(step * 10 ** e);
    }
    return found;
  }

  // what a reader who cannot see the plot is told
  function told(panel) {
    if (panel.strip) return `${panel.title}: ${panel.y} by ${panel.x}, shades from frozen to trained`;
    const ends = panel.lines.map((line) => {
      if (line.points) return `${line.name}: ${line.y.length} points, ${Math.min(...line.y).toPrecision(3)} to ${Math.max(...line.y).toPrecision(3)}`;
      const last = line.y[line.y.length - 1];
      const value = panel.categories.length ? panel.categories[last] : Number(last).toPrecision(3);
      return `${line.name} ends at ${value}`;
    });
    return `${panel.title || panel.y}: ${panel.y} by ${panel.x}. ${ends.join("; ")}.`;
  }

  function draw(state, chart, kept, force) {
    return Promise.all(chart.panels.map((panel, i) => {
      const hold = kept.panels[i];
      const text = JSON.stringify([panel, [...kept.hidden], theme(), printing]);
      if (hold.text === text && !force) return null;
      hold.text = text;
      hold.title.textContent = panel.title;
      hold.title.hidden = !panel.title;
      hold.plot.setAttribute("aria-label", told(panel));
      const page = printing ? { width: chart.panels.length === 1 ? PAPER : (PAPER - 40) / 2 } : {}; // paper is not measured
      return window.Plotly.react(hold.plot, traces(panel, kept.hidden), { ...layout(panel), ...page }, {
        displaylogo: false, displayModeBar: coarse.matches || still.matches || printing ? false : "hover",
        modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
        toImageButtonOptions: { filename: `fedbudget-${chart.name}-${i + 1}`, scale: 2 },
      });
    }));
  }

  // a line as it is drawn, or a shade of a strip
  function swatch(place, fill) {
    const ns = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(ns, "svg");
    for (const [k, v] of Object.entries({ width: 30, height: 8, "aria-hidden": "true" })) svg.setAttribute(k, v);
    if (fill !== undefined) {
      const box = { width: 14, height: 8, x: 8, fill: fill ? colour(0) : "none", stroke: colour(0) };
      const rect = document.createElementNS(ns, "rect");
      for (const [k, v] of Object.entries(box)) rect.setAttribute(k, v);
      svg.append(rect);
      return svg;
    }
    const line = document.createElementNS(ns, "line");
    const look = {
      x1: 0, x2: 30, y1: 4, y2: 4, stroke: colour(place), "stroke-width": 2.5,
      "stroke-dasharray": dash(place) === "solid" ? "none" : dash(place).replace(/px/g, ""),
    };
    for (const [k, v] of Object.entries(look)) line.setAttribute(k, v);
    svg.append(line);
    return svg;
  }

  // the shape of points; letters have all of them
  function dot(place) {
    const sign = make("span", { class: "dot", "aria-hidden": "true" }, "●■▲◆▼✚✖"[place % MARKERS.length]);
    sign.style.color = colour(place);
    return sign;
  }

  function legend(state, chart, kept) {
    const names = new Map();
    for (const panel of chart.panels) for (const line of panel.lines) names.set(line.name, line.place);
    const points = new Set(chart.panels.flatMap((panel) => panel.lines.filter((line) => line.points).map((line) => line.name)));
    const items = [...names].map(([name, place]) => {
      const button = make("button", { type: "button", "aria-pressed": String(!kept.hidden.has(name)), title: "show or hide" },
        points.has(name) ? dot(place) : swatch(place), name);
      button.addEventListener("click", () => {
        if (!kept.hidden.delete(name)) kept.hidden.add(name);
        button.setAttribute("aria-pressed", String(!kept.hidden.has(name)));
        draw(state, chart, kept, false);
      });
      return make("li", null, button);
    });
    if (chart.panels.some((panel) => panel.strip)) {
      items.push(make("li", { class: "key" }, swatch(0, true), "trained"), make("li", { class: "key" }, swatch(0, false), "frozen"));
    }
    kept.legend.replaceChildren(...items);
  }

  function figure(state, chart) {
    let kept = state.charts.get(chart.name);
    if (!kept) {
      kept = { hidden: new Set(), panels: [], text: null };
      kept.title = make("h2");
      kept.legend = make("ul", { class: "legend", "aria-label": "lines" });
      kept.grid = make("div", { class: "panels" });
      kept.caption = make("figcaption");
      kept.element = make("figure", { id: `chart-${chart.name}` }, kept.title, kept.legend, kept.grid, kept.caption);
      state.charts.set(chart.name, kept);
    }
    kept.chart = chart;
    kept.grid.classList.toggle("one", chart.panels.length === 1);
    kept.grid.style.setProperty("--columns", columns(chart.panels.length));
    kept.title.textContent = chart.title;
    const about = JSON.stringify([chart.caption, chart.commands]);
    if (kept.text !== about) {
      kept.text = about;
      kept.caption.replaceChildren(chart.caption, ...made(chart.commands));
    }
    while (kept.panels.length > chart.panels.length) drop(state, kept.panels.pop());
    while (kept.panels.length < chart.panels.length) {
      const title = make("h3");
      const plot = make("div", { class: "plot", role: "img" });
      const box = make("div", { class: "panel" }, title, plot);
      kept.grid.append(box);
      kept.panels.push({ box, title, plot, text: null });
      state.sizes.observe(plot);
    }
    return kept;
  }

  // at most three beside each other, and no last row with a single one
  function columns(number) {
    return number < 4 ? number : number % 3 === 1 || number % 3 === 2 && number % 2 === 0 ? 2 : 3;
  }

  function made(commands) {
    if (!commands.length) return [];
    if (commands.length === 1) return [" Made by ", make("code", null, commands[0])];
    return [make("details", null, make("summary", null, `Made by ${commands.length} commands`),
      make("pre", null, commands.join("\n")))];
  }

  function drop(state, hold) {
    state.sizes.unobserve(hold.plot);
    window.Plotly.purge(hold.plot);
    hold.box.remove();
  }

  function redraw(root) {
    const state = states.get(root);
    for (const kept of state.charts.values()) {
      legend(state, kept.chart, kept);
      draw(state, kept.chart, kept, true);
    }
  }

  // ---- the page -----------------------------------------------------------------------------

  // returns a promise of the last plot
  function render(root, doc) {
    let state = states.get(root);
    if (!state) {
      const sizes = new ResizeObserver((entries) => {
        for (const { target } of entries) {
          if (target.isConnected && target.data && target.offsetWidth) window.Plotly.Plots.resize(target);
        }
      });
      state = { parts: new Map(), charts: new Map(), sizes, figures: make("section", { class: "figures" }) };
      states.set(root, state);
      roots.add(root);
      root.classList.add("fedbudget");
      root.replaceChildren();
    }
    const sections = [
      part(state, "verdict", doc.verdict, (lines) => lines.map((line) => make("p", null, line))),
      part(state, "notes", doc.notes && doc.notes.length ? doc.notes : null, (notes) => [
        make("ul", { "aria-label": "notes on the data" }, ...notes.map((note) => make("li", null, note)))]),
      part(state, "sheets", doc.sheets, (sheets) => sheets.flatMap((sheet) => table(sheet, false))),
      state.figures,
      part(state, "failures", doc.failures, (sheet) => table(sheet, true)),
      part(state, "differences", doc.differences, (sheet) => table(sheet, true)),
      part(state, "configs", doc.configs.length ? doc.configs : null, (configs) => [
        make("h2", null, "configuration"),
        ...configs.map((c) => make("details", null, make("summary", null, c.folder), make("pre", null, c.text)))]),
      part(state, "folders", doc.folders, (folders) => [
        make("p", { class: "note" }, `Read from ${folders.join(", ")}.`)]),
    ];
    if (root.children.length !== sections.length) root.replaceChildren(...sections);

    const names = new Set(doc.charts.map((chart) => chart.name));
    for (const [name, kept] of state.charts) {
      if (names.has(name)) continue;
      kept.panels.forEach((hold) => drop(state, hold));
      kept.element.remove();
      state.charts.delete(name);
    }
    return Promise.all(doc.charts.map((chart, i) => {
      const kept = figure(state, chart);
      if (state.figures.children[i] !== kept.element) state.figures.insertBefore(kept.element, state.figures.children[i] || null);
      legend(state, chart, kept);
      return draw(state, chart, kept, false);
    }));
  }

  // forget an element and free its plots
  function clear(root) {
    const state = states.get(root);
    if (!state) return;
    for (const kept of state.charts.values()) kept.panels.forEach((hold) => drop(state, hold));
    state.sizes.disconnect();
    states.delete(root);
    roots.delete(root);
    root.replaceChildren();
  }

  window.fedbudget = { render, clear, theme };
})();

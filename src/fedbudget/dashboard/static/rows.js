// The list of runs: a table row each, changed in place. What comes from files is text, never HTML.
(function () {
  "use strict";

  const LIVE = ["starting", "running", "stopping"];
  const ORDER = [...LIVE, "stopped", "damaged", "finished"];
  const OVER = 1 + 1e-9;
  const natural = new Intl.Collator("en", { numeric: true });
  const COLUMNS = [
    { key: "run", title: "Run", of: null },
    { key: "state", title: "State", of: (r) => ORDER.indexOf(r.state) },
    { key: "seed", title: "Seed", of: (r) => r.seed },
    { key: "round", title: "Round", of: (r) => r.round, down: true },
    { key: "loss", title: "Validation loss", of: (r) => r.loss },
    { key: "budgets", title: "Budgets", of: (r) => r.worst },
    { key: "time", title: "Time", of: (r) => r.wall_s, down: true },
    { key: "act", title: "", of: null },
  ];

  function make(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value !== null && value !== undefined) element.setAttribute(name, value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  }

  const small = (text) => (text ? make("span", { class: "small" }, text) : null);

  // 75 -> "1 min 15 s"
  function duration(seconds) {
    const s = Math.round(seconds);
    if (s < 60) return seconds < 10 ? `${seconds.toFixed(1)} s` : `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min` + (s < 600 && s % 60 ? ` ${s % 60} s` : "");
    return `${Math.floor(s / 3600)} h` + (Math.floor((s % 3600) / 60) ? ` ${Math.floor((s % 3600) / 60)} min` : "");
  }

  function ago(time) {
    const seconds = Date.now() / 1000 - time;
    return seconds < 3 ? "now" : seconds < 172800 ? `${duration(Math.max(10, seconds))} ago` : new Date(time * 1000).toLocaleDateString();
  }

  // never 100% for what is over, nor for what is not there yet
  function share(value) {
    if (value >= 9.995) return `${Number(value.toPrecision(3))} times`;
    if (value >= 0.995 && value < 1) return `${(Math.floor(1000 * value) / 10).toFixed(1)}%`;
    if (value > OVER && value < 1.005) return `${Math.max(100.1, 100 * value).toFixed(1)}%`;
    return `${Math.round(100 * value)}%`;
  }

  // losses as a line; its last point is marked
  function sparkline(points) {
    const [width, height, edge] = [88, 20, 2];
    const shape = (tag, attributes) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
      return element;
    };
    const svg = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    const [first, last] = [points[0][0], points[points.length - 1][0]];
    const values = points.map((p) => p[1]);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const place = ([round, loss]) => [
      edge + (last > first ? (round - first) / (last - first) : 1) * (width - 2 * edge),
      edge + (high > low ? (high - loss) / (high - low) : 0.5) * (height - 2 * edge),
    ].map((v) => v.toFixed(1));
    svg.append(shape("polyline", { points: points.map((p) => place(p).join(",")).join(" ") }));
    const [cx, cy] = place(points[points.length - 1]);
    svg.append(shape("circle", { cx, cy, r: 2 }));
    return svg;
  }

  const cells = {
    state: (r) => [make("b", null, r.state), small(r.why)],
    seed: (r) => [r.seed === null ? "–" : String(r.seed)],
    round: (r) => [
      r.rounds ? `${r.round} of ${r.rounds}` : String(r.round),
      r.rounds ? make("progress", { max: r.rounds, value: Math.min(r.round, r.rounds), "aria-label": "rounds done" }) : null,
    ],
    loss: (r) => (r.loss === null ? ["–"] : [r.loss.toFixed(r.loss < 100 ? 3 : 0), r.points.length > 1 ? sparkline(r.points) : null]),
    budgets: (r) => {
      if (r.budgets === null) return ["–"]; // an older run under way does not say
      if (!r.budgets) return ["no budgets"];
      const kept = r.kept === r.budgets;
      return [
        make("span", { class: kept ? "kept" : "over" },
          make("b", null, kept ? `✓ ${r.budgets === 1 ? "kept" : `all ${r.budgets} kept`}` : `✗ ${r.kept} of ${r.budgets} kept`)),
        small(`worst: ${share(r.worst)} of ${r.worst_of}`),
      ];
    },
    time: (r) => {
      const live = LIVE.includes(r.state);
      const left = live && r.left_s !== null ? `about ${duration(r.left_s)} left` : live ? "" : ago(r.updated);
      return [r.wall_s ? duration(r.wall_s) : "–", small(left)];
    },
    act: (r) => [
      r.can_stop ? make("button", { type: "button", "data-act": "stop", title: "ends after its round, as Ctrl-C does" }, "Stop") : null,
      r.can_resume ? make("button", { type: "button", "data-act": "resume" }, "Resume") : null,
    ],
  };

  function title(r) {
    return r.seed === null ? r.name : `${r.name}, seed ${r.seed}`;
  }

  // `tick(id, on)` and `act(what, id)` are told what the user does
  function build(body, tick, act) {
    const known = new Map(); // id -> {row, element, cells, box}

    function add(r) {
      const box = make("input", { type: "checkbox", "aria-label": `compare ${r.folder}` });
      const what = make("span", { class: "what" });
      const parts = { run: make("th", { scope: "row", class: "run" }, make("label", null, box, what)) };
      for (const { key } of COLUMNS.slice(1)) parts[key] = make("td", { class: key });
      const element = make("tr", { "data-id": r.id }, ...Object.values(parts));
      box.addEventListener("change", () => tick(r.id, box.checked));
      parts.act.addEventListener("click", (event) => {
        const button = event.target.closest("button");
        if (!button) return;
        button.disabled = true; // until the row says otherwise
        act(button.dataset.act, r.id).catch(() => { button.disabled = false; });
      });
      return { element, parts, box, what, texts: {} };
    }

    function fill(entry, r, ticked) {
      entry.row = r;
      entry.element.className = ticked ? `${r.state} ticked` : r.state;
      entry.box.checked = ticked;
      entry.what.replaceChildren(r.name, small([r.folder, r.method].filter(Boolean).join(" · ")) || "");
      entry.what.title = title(r);
      for (const [key, of] of Object.entries(cells)) {
        const made = of(r).filter((child) => child !== null);
        const text = made.map((child) => child.outerHTML || child).join("");
        if (entry.texts[key] === text) continue; // a button that has the focus keeps it
        entry.texts[key] = text;
        entry.parts[key].replaceChildren(...made);
      }
    }

    return function draw(rows, ticked, filter, sort) {
      const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
      const shown = [...rows.values()].filter((r) => {
        const text = `${r.name} ${r.folder} ${r.method} ${r.state} seed ${r.seed} seed-${r.seed} ${r.why}`.toLowerCase();
        return words.every((word) => text.includes(word));
      });
      const { of } = COLUMNS.find((column) => column.key === sort.key) || COLUMNS[0];
      const turn = sort.down ? -1 : 1;
      const live = (r) => (LIVE.includes(r.state) ? 0 : 1);
      shown.sort((a, b) => {
        const byName = natural.compare(a.folder, b.folder);
        if (!of) return sort.key === "run" ? turn * byName : live(a) - live(b) || byName;
        const [x, y] = [of(a), of(b)];
        if (x === null || y === null) return (x === null) - (y === null) || byName; // unknown ones last
        return turn * (x - y) || byName;
      });
      for (const [id, entry] of known) {
        if (!rows.has(id)) { entry.element.remove(); known.delete(id); }
      }
      const wanted = shown.map((r) => {
        if (!known.has(r.id)) known.set(r.id, add(r));
        const entry = known.get(r.id);
        fill(entry, r, ticked.has(r.id));
        return entry.element;
      });
      if (wanted.length !== body.children.length || wanted.some((e, i) => body.children[i] !== e)) {
        const focused = document.activeElement;
        body.replaceChildren(...wanted);
        if (focused && body.contains(focused)) focused.focus();
      }
      return shown.length;
    };
  }

  window.fedbudgetRows = { build, make, COLUMNS, LIVE };
})();

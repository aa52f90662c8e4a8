// Keeps the list and the comparison up to date: server-sent events, or asking every few seconds.
(function () {
  "use strict";

  const { build, make, COLUMNS, LIVE } = window.fedbudgetRows;
  const POLL_MS = 3000;
  const COMPARE_MS = 1000; // the comparison is drawn at most this often
  const at = (id) => document.getElementById(id);
  const rows = new Map();
  let ticked = new Set(readHash());
  let sort = { key: "", down: false };
  const draw = build(at("rows"), tick, act);

  // ---- ticks, in the address ----------------------------------------------------------------

  function readHash() {
    return window.location.hash.slice(1).split(",").filter(Boolean);
  }

  function tick(id, on) {
    if (on) ticked.add(id);
    else ticked.delete(id);
    changed();
  }

  function changed() {
    const address = ticked.size ? `#${[...ticked].join(",")}` : window.location.pathname + window.location.search;
    window.history.replaceState(null, "", address);
    show();
    compare();
  }

  window.addEventListener("hashchange", () => { ticked = new Set(readHash()); show(); compare(); });
  at("clear").addEventListener("click", () => { ticked.clear(); changed(); at("filter").focus(); });

  // ---- list ---------------------------------------------------------------------------------

  function heads() {
    for (const { key, title, down } of COLUMNS) {
      if (!title) { at("heads").append(make("td")); continue; }
      const button = make("button", { type: "button" }, title);
      button.addEventListener("click", () => sortBy(key, sort.key === key ? !sort.down : Boolean(down)));
      at("heads").append(make("th", { scope: "col", "data-key": key }, button));
    }
    at("sort").append(make("option", { value: "" }, "running first"));
    for (const { key, title, down } of COLUMNS) {
      if (title) at("sort").append(make("option", { value: key, "data-down": down ? "1" : null }, title.toLowerCase()));
    }
    at("sort").addEventListener("change", (event) => {
      sortBy(event.target.value, Boolean(event.target.selectedOptions[0].dataset.down));
    });
  }

  function sortBy(key, down) {
    sort = { key, down };
    at("sort").value = key;
    for (const head of at("heads").querySelectorAll("th")) {
      if (head.dataset.key === key) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    show();
  }

  function show() {
    const shown = draw(rows, ticked, at("filter").value, sort);
    const counts = {};
    for (const r of rows.values()) counts[r.state] = (counts[r.state] || 0) + 1;
    const told = Object.entries(counts).sort().map(([state, n]) => `${n} ${state}`);
    at("count").textContent = shown === rows.size ? told.join(", ") : `${shown} of ${rows.size} runs`;
    at("list").hidden = !rows.size;
    at("empty").hidden = rows.size > 0;
    at("nothing").hidden = shown > 0;
    at("clear").hidden = !ticked.size;
    at("hint").hidden = ticked.size > 0;
    const running = [...rows.values()].filter((r) => LIVE.includes(r.state)).length;
    document.title = running ? `(${running}) fedbudget dashboard` : "fedbudget dashboard";
  }

  at("filter").addEventListener("input", show);
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
      event.preventDefault();
      at("filter").focus();
    } else if (event.key === "Escape" && event.target === at("filter")) {
      at("filter").value = "";
      show();
    }
  });
  setInterval(() => { if (!document.hidden && rows.size) show(); }, 30000); // "2 min ago" grows

  // ---- comparison ---------------------------------------------------------------------------

  let asked = 0; // comparisons asked for; an answer that was overtaken is dropped
  let timer = null;
  let last = 0;

  const plotly = (() => {
    let loading = null;
    return () => loading || (loading = new Promise((resolve, reject) => {
      const script = make("script", { src: "/static/plotly.min.js" });
      script.onload = resolve;
      script.onerror = () => { loading = null; reject(new Error("the figures' script did not load")); };
      document.head.append(script);
    }));
  })();

  function compare() {
    clearTimeout(timer);
    timer = setTimeout(drawComparison, Math.max(0, last + COMPARE_MS - Date.now()));
  }

  async function drawComparison() {
    const number = ++asked;
    last = Date.now();
    const here = [...ticked].filter((id) => rows.has(id));
    const missing = rows.size ? [...ticked].filter((id) => !rows.has(id)) : [];
    at("compare").hidden = !ticked.size;
    document.body.classList.toggle("comparing", ticked.size > 0);
    const notes = missing.map((id) => `${id}: no such run here`);
    if (here.length) {
      try {
        const [answer] = await Promise.all([
          ask(`/api/document?${here.map((id) => `run=${encodeURIComponent(id)}`).join("&")}`), plotly(),
        ]);
        if (number !== asked) return;
        notes.push(...answer.problems);
        at("report").hidden = !answer.document;
        if (answer.document) await window.fedbudget.render(at("report"), answer.document);
      } catch (error) {
        if (number !== asked) return;
        notes.push(error.message);
      }
    } else {
      at("report").hidden = true;
    }
    at("missing").replaceChildren(...notes.map((note) => make("p", null, note)));
  }

  // ---- the server ---------------------------------------------------------------------------

  async function ask(address, options) {
    let answer;
    try {
      answer = await fetch(address, { credentials: "same-origin", ...options });
    } catch {
      throw new Error("the dashboard does not answer; is it still running?");
    }
    const text = await answer.text();
    let body = null;
    try { body = JSON.parse(text); } catch { /* a sentence */ }
    if (!answer.ok || body === null) throw new Error((body && body.problem) || text.trim() || `error ${answer.status}`);
    return body;
  }

  async function act(what, id) {
    try {
      const row = await ask(`/api/${what}?run=${encodeURIComponent(id)}`, { method: "POST" });
      at("problem").hidden = true;
      take({ all: false, runs: [row], gone: [] });
    } catch (error) {
      at("problem").textContent = `${what} ${rows.has(id) ? rows.get(id).folder : id}: ${error.message}`;
      at("problem").hidden = false;
      throw error;
    }
  }

  function take(news) {
    const touched = new Set(news.gone);
    if (news.all) {
      const there = new Set(news.runs.map((r) => r.id));
      for (const id of rows.keys()) if (!there.has(id)) { rows.delete(id); touched.add(id); }
    }
    for (const id of news.gone) rows.delete(id);
    for (const r of news.runs) {
      const before = rows.get(r.id);
      rows.set(r.id, r);
      if (!before || before.round !== r.round || before.state !== r.state || before.updated !== r.updated) touched.add(r.id);
    }
    show();
    if ([...ticked].some((id) => touched.has(id))) compare();
  }

  let source = null;
  let polling = null;

  function linked(state, text) {
    if (at("link").dataset.state !== state) {
      at("link").dataset.state = state;
      at("link").textContent = text;
    }
  }

  async function poll() {
    try {
      take(await ask("/api/runs"));
      linked("live", "live (asking)");
    } catch {
      linked("lost", "not connected; trying again");
    }
  }

  function listen() {
    if (source) return;
    source = new EventSource("/api/events");
    source.onmessage = (event) => {
      clearInterval(polling);
      polling = null;
      linked("live", "live");
      take(JSON.parse(event.data));
    };
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) { // refused: the browser does not try again
        source = null;
        setTimeout(listen, 10 * POLL_MS);
      }
      if (!polling) { poll(); polling = setInterval(poll, POLL_MS); }
    };
  }

  // a page that nobody sees asks for nothing
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) { listen(); return; }
    if (source) source.close();
    source = null;
    clearInterval(polling);
    polling = null;
    linked("", "paused");
  });

  heads();
  ask("/api/runs").then((news) => {
    at("root").textContent = news.root;
    at("start").textContent = news.start;
    take(news);
    if (ticked.size) compare();
    listen();
  }, (error) => {
    linked("lost", "not connected");
    at("problem").textContent = error.message;
    at("list").hidden = at("problem").hidden = false;
    listen();
  });
})();

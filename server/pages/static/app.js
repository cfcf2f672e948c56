/* What pages do by themselves: they hear that something happened, fetch their live part anew,
   draw, and count down. Without this script they are complete, and stand still.

   One event stream says *that* a study moved; htmx fetches what there is to show, at most once a
   second. If either breaks off, the page says so and tries again until the server is back. */
(() => {
  "use strict";
  const main = document.getElementById("main");
  const trouble = document.getElementById("trouble");
  const REST = 1000; // milliseconds between two fetches, at least
  const AGAIN = 2000; // until the next try when the server does not answer
  const LOST = "Connection lost, trying again…";

  // -- the live part ------------------------------------------------------------------------
  let timer = null, due = Infinity, busy = false, wanted = false, last = 0;
  let source = null, followed = "", seen = 0;

  function refresh(soon = 0) {
    const at = Math.max(Date.now() + soon, last + REST);
    if (at >= due) return; // it is to come earlier anyway
    clearTimeout(timer);
    due = at;
    timer = setTimeout(fetchPart, at - Date.now());
  }

  function fetchPart() {
    timer = null;
    due = Infinity;
    if (document.hidden) return; // it is fetched once somebody looks
    if (busy) { wanted = true; return; }
    busy = true;
    last = Date.now();
    htmx.trigger(main, "refresh");
  }

  const pulse = () => document.getElementById("pulse")?.dataset ?? {};

  function unfollow() {
    source?.close();
    source = null;
    followed = "";
  }

  function follow() {
    const { events, after, kinds } = pulse();
    if (!events || document.hidden) return unfollow();
    if (followed === events) return;
    unfollow();
    seen = Math.max(seen, Number(after));
    followed = events;
    source = new EventSource(`${events}?after=${seen}`);
    for (const kind of kinds.split(" ")) {
      source.addEventListener(kind, (event) => {
        seen = Math.max(seen, Number(event.lastEventId));
        refresh();
      });
    }
    source.onerror = () => { // over, refused or broken off: the page itself will tell
      unfollow();
      refresh(200);
    };
  }

  function settle() {
    trouble.textContent = "";
    draw();
    start();
    follow();
    const { every } = pulse();
    if (every) refresh(Number(every));
  }

  function lose() {
    trouble.textContent = LOST;
    unfollow();
    refresh(AGAIN);
  }

  const mine = (event) => event.target === main || event.detail?.ctx?.sourceElement === main;
  document.addEventListener("htmx:after:swap", (event) => { if (mine(event)) settle(); });
  for (const name of ["htmx:error", "htmx:response:error"]) {
    document.addEventListener(name, (event) => { if (mine(event)) lose(); });
  }
  document.addEventListener("htmx:finally:request", (event) => {
    if (!mine(event)) return;
    busy = false;
    if (wanted) { wanted = false; refresh(); }
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) unfollow(); // a browser has few connections for all of its tabs
    else if (main.hasAttribute("hx-get")) refresh();
  });
  document.addEventListener("input", (event) => { if (event.target.id === "q") refresh(250); });

  // -- the form: what was wrong with a field is forgotten once it is changed ------------------
  const form = document.getElementById("ask");

  function forget(field) {
    document.getElementById(`${field.id}-fault`)?.remove();
    field.removeAttribute("aria-invalid");
    document.getElementById("misfits")?.remove(); // how fields fit together is told beside them
    if (!form.querySelector("[aria-invalid]")) document.getElementById("refused")?.remove();
  }

  form?.addEventListener("input", ({ target }) => forget(target));
  document.addEventListener("htmx:after:swap", () => {
    // Advice is of all that is asked of devices: where it has none against it, two fields that did
    // not fit do, whichever of them was changed.
    if (!form || document.querySelector("#advice .fault, #advice .waits")) return;
    form.querySelectorAll(":is([name^='question.'], [name^='terms.'], [name=rounds])[aria-invalid]").forEach(forget);
  });

  // -- countdowns ---------------------------------------------------------------------------
  const ends = new WeakMap();

  function start() {
    for (const one of document.querySelectorAll("[data-left]")) {
      ends.set(one, performance.now() + 1000 * Number(one.dataset.left));
    }
  }

  function words(seconds) {
    if (seconds < 60) return `${Math.ceil(seconds)} s`;
    const minutes = Math.floor(seconds / 60);
    if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
    return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  }

  setInterval(() => {
    for (const one of document.querySelectorAll("[data-left]")) {
      const end = ends.get(one);
      if (end !== undefined) one.textContent = words(Math.max(0, (end - performance.now()) / 1000));
    }
  }, 500);

  // -- charts -------------------------------------------------------------------------------
  const drawn = new WeakMap();
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const HEIGHT = 200;

  function figures(value) {
    const size = Math.abs(value);
    if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
    if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`;
    return `${+value.toPrecision(4)}`;
  }

  function options(data, width) {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const lines = ["--accent", "--line-2", "--line-3", "--line-4", "--line-5"].map(colour);
    const axis = {
      stroke: colour("--soft"),
      grid: { stroke: colour("--rule"), width: 1 },
      ticks: { show: false },
      font: "12px system-ui, sans-serif",
    };
    const isRounds = data.xLabel === "round";
    const most = Math.max(...data.series.flatMap((one) => one.values.map((value) => value ?? 0)));
    const isLog = data.scale === "log" && most > 30;
    const latest = (plot) => { // the legend tells the last values unless somebody points elsewhere
      if (plot.cursor.idx == null) plot.setLegend({ idx: data.x.length - 1 });
    };
    let next = 0;
    const series = data.series.map((one) => {
      const plain = one.style === "line";
      const stroke = plain ? lines[next++ % lines.length] : colour("--soft");
      return {
        label: one.label,
        stroke,
        width: one.style === "band" ? 0.5 : plain ? 2 : 1.25,
        dash: one.style === "bound" ? [5, 4] : undefined,
        points: { show: plain && isRounds && data.x.length < 40, size: 5, fill: stroke },
        value: (_, value) => (value == null ? "–" : figures(value)),
      };
    });
    const edges = data.series.flatMap((one, place) => (one.style === "band" ? [place + 1] : []));
    const whole = (_, splits) => splits.map((at) => (Number.isInteger(at) ? at : ""));
    return {
      width,
      height: HEIGHT,
      scales: {
        x: { time: false, range: (_, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) },
        y: {
          distr: isLog ? 3 : 1,
          range: data.scale === "share" ? [0, 1]
            : isLog ? (_, low, high) => [Math.min(1, low), Math.max(10, high * 1.5)]
            : (_, low, high) => [Math.min(0, low ?? 0), (high || 1) * 1.08],
        },
      },
      axes: [
        { ...axis, size: 30, ...(isRounds ? { values: whole } : {}) },
        { ...axis, size: 52, values: (_, splits) => splits.map((at) => (at == null ? "" : figures(at))) },
      ],
      bands: edges.length === 2
        ? [{ series: [edges[1], edges[0]], fill: `color-mix(in srgb, ${colour("--accent")} 18%, transparent)` }]
        : [],
      series: [{ label: data.xLabel, value: (_, value) => (value == null ? "–" : figures(value)) }, ...series],
      legend: { show: true, live: true },
      hooks: { ready: [latest], setCursor: [latest] },
      cursor: { drag: { x: false, y: false }, points: { size: 6 } },
    };
  }

  function draw() {
    for (const figure of document.querySelectorAll("[data-chart]")) {
      const plot = figure.querySelector(".plot");
      const width = Math.floor(plot.clientWidth);
      const key = `${figure.dataset.chart} ${dark.matches} ${width}`;
      const known = drawn.get(plot);
      if (known?.key === key || !width) continue;
      known?.plot.destroy();
      const data = JSON.parse(figure.dataset.chart);
      const rows = [data.x, ...data.series.map((one) => one.values)];
      drawn.set(plot, { key, plot: new uPlot(options(data, width), rows, plot) });
    }
  }

  let resized = null;
  addEventListener("resize", () => {
    clearTimeout(resized);
    resized = setTimeout(draw, 150);
  });
  dark.addEventListener("change", draw);

  if (main.hasAttribute("hx-get")) settle();
})();

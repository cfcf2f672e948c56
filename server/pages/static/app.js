/* Pages with scripts: an event notifies a page that something changed, the page fetches its live
   part again, and it draws charts and countdowns. Without this script pages are complete but static.

   One event stream notifies the page *that* a study changed; htmx fetches the live part, at most
   once a second. If either fails, the page shows this and retries until the server is back. */
(() => {
  "use strict";
  const main = document.getElementById("main");
  const connectionStatus = document.getElementById("connection-status");
  const MIN_FETCH_INTERVAL_MS = 1000;
  const RETRY_MS = 2000; // after a request that the server did not answer
  const CONNECTION_LOST = "Connection lost, trying again…";

  // -- the live part ------------------------------------------------------------------------
  let timer = null, dueAt = Infinity, isFetching = false, refetchNeeded = false, lastFetch = 0;
  let eventSource = null, followedUrl = "", lastEventId = 0;

  function refresh(delay = 0) {
    const at = Math.max(Date.now() + delay, lastFetch + MIN_FETCH_INTERVAL_MS);
    if (at >= dueAt) return; // an earlier fetch is planned
    clearTimeout(timer);
    dueAt = at;
    timer = setTimeout(fetchLivePart, at - Date.now());
  }

  function fetchLivePart() {
    timer = null;
    dueAt = Infinity;
    if (document.hidden) return; // it is fetched when the page becomes visible
    if (isFetching) { refetchNeeded = true; return; }
    isFetching = true;
    lastFetch = Date.now();
    htmx.trigger(main, "refresh");
  }

  const liveSource = () => document.getElementById("live-source")?.dataset ?? {};

  function unfollow() {
    eventSource?.close();
    eventSource = null;
    followedUrl = "";
  }

  function follow() {
    const { events, after, kinds } = liveSource();
    if (!events || document.hidden) return unfollow();
    if (followedUrl === events) return;
    unfollow();
    lastEventId = Math.max(lastEventId, Number(after));
    followedUrl = events;
    eventSource = new EventSource(`${events}?after=${lastEventId}`);
    for (const kind of kinds.split(" ")) {
      eventSource.addEventListener(kind, (event) => {
        lastEventId = Math.max(lastEventId, Number(event.lastEventId));
        refresh();
      });
    }
    eventSource.onerror = () => { // ended, refused or disconnected: the page itself shows which
      unfollow();
      refresh(200);
    };
  }

  function onSwap() {
    connectionStatus.textContent = "";
    restoreDetails();
    drawCharts();
    startCountdowns();
    follow();
    const { every } = liveSource();
    if (every) refresh(Number(every));
  }

  function onConnectionLost() {
    connectionStatus.textContent = CONNECTION_LOST;
    unfollow();
    refresh(RETRY_MS);
  }

  const isOfMain = (event) => event.target === main || event.detail?.ctx?.sourceElement === main;
  document.addEventListener("htmx:after:swap", (event) => { if (isOfMain(event)) onSwap(); });
  for (const name of ["htmx:error", "htmx:response:error"]) {
    document.addEventListener(name, (event) => { if (isOfMain(event)) onConnectionLost(); });
  }
  document.addEventListener("htmx:finally:request", (event) => {
    if (!isOfMain(event)) return;
    isFetching = false;
    if (refetchNeeded) { refetchNeeded = false; refresh(); }
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) unfollow(); // a browser has few connections for all of its tabs
    else if (main.hasAttribute("hx-get")) refresh();
  });
  document.addEventListener("input", (event) => { if (event.target.id === "q") refresh(250); });

  // -- folded details stay as the reader left them when the live part is fetched again ---------
  const isOpen = new Map();
  if (matchMedia("(max-width: 40rem)").matches) {
    for (const { id } of document.querySelectorAll("[data-folded-on-phones]")) isOpen.set(id, false);
  }
  document.addEventListener("toggle", ({ target }) => {
    if (target.id) isOpen.set(target.id, target.open);
    if (target.open) drawCharts(); // a chart that is folded away has no width
  }, true);

  function restoreDetails() {
    for (const [id, open] of isOpen) document.getElementById(id)?.toggleAttribute("open", open);
  }

  // -- the form: the error of a field is cleared when the field changes ------------------------
  const form = document.getElementById("study-form");

  function clearError(field) {
    document.getElementById(`${field.id}-fault`)?.remove();
    field.removeAttribute("aria-invalid");
    document.getElementById("general-errors")?.remove(); // the preview shows these
    if (!form.querySelector("[aria-invalid]")) document.getElementById("form-errors")?.remove();
  }

  form?.addEventListener("input", ({ target }) => clearError(target));
  document.addEventListener("htmx:after:swap", () => {
    // The preview depends on every field that devices see. If it has no error, then two fields that
    // did not fit together now fit, even if only one of them was changed.
    if (!form || document.querySelector("#preview .fault, #preview .waits")) return;
    form.querySelectorAll(":is([name^='question.'], [name^='terms.'], [name=rounds])[aria-invalid]").forEach(clearError);
  });

  // -- a prediction whose request fails shows this, and does not end in silence -----------------
  for (const name of ["htmx:error", "htmx:response:error"]) {
    document.addEventListener(name, (event) => {
      const source = event.detail?.ctx?.sourceElement;
      const target = document.getElementById("prediction");
      if (!target || source?.getAttribute("hx-post") !== "/studies/new/prediction") return;
      const fault = document.createElement("p");
      fault.className = "fault";
      fault.textContent = "The service did not answer: predict again in a moment.";
      target.replaceChildren(fault);
    });
  }

  // -- countdowns ---------------------------------------------------------------------------
  const ends = new WeakMap();

  function startCountdowns() {
    for (const element of document.querySelectorAll("[data-left]")) {
      ends.set(element, performance.now() + 1000 * Number(element.dataset.left));
    }
  }

  function formatDuration(seconds) {
    if (seconds < 60) return `${Math.ceil(seconds)} s`;
    const minutes = Math.floor(seconds / 60);
    if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
    return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  }

  setInterval(() => {
    for (const element of document.querySelectorAll("[data-left]")) {
      const end = ends.get(element);
      if (end !== undefined) element.textContent = formatDuration(Math.max(0, (end - performance.now()) / 1000));
    }
  }, 500);

  // -- charts -------------------------------------------------------------------------------
  const drawnPlots = new WeakMap();
  const darkScheme = matchMedia("(prefers-color-scheme: dark)");
  const HEIGHT = 218;

  function formatNumber(value) {
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
    const title = (label) => ({ label, labelSize: 18, labelFont: "12px system-ui, sans-serif", labelGap: 0 });
    const isRounds = data.xLabel === "round";
    const largest = Math.max(...data.series.flatMap((line) => line.values.map((value) => value ?? 0)));
    const isLog = data.scale === "log" && largest > 30;
    const showLatest = (plot) => { // without a cursor, the legend shows the last values
      if (plot.cursor.idx == null) plot.setLegend({ idx: data.x.length - 1 });
    };
    let nextLine = 0;
    const series = data.series.map((line) => {
      const isPlain = line.style === "line";
      const stroke = isPlain ? lines[nextLine++ % lines.length] : colour("--soft");
      return {
        label: line.label,
        stroke,
        width: line.style === "band" ? 0.5 : isPlain ? 2 : 1.25,
        dash: line.style === "bound" ? [5, 4] : undefined,
        points: { show: isPlain && isRounds && data.x.length < 40, size: 5, fill: stroke },
        value: (_, value) => (value == null ? "–" : formatNumber(value)),
      };
    });
    const edges = data.series.flatMap((line, index) => (line.style === "band" ? [index + 1] : []));
    const integers = (_, splits) => splits.map((at) => (Number.isInteger(at) ? at : ""));
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
        { ...axis, ...title(data.xLabel), size: 30, ...(isRounds ? { values: integers } : {}) },
        { ...axis, ...title(data.yLabel), size: 52, values: (_, splits) => splits.map((at) => (at == null ? "" : formatNumber(at))) },
      ],
      bands: edges.length === 2
        ? [{ series: [edges[1], edges[0]], fill: `color-mix(in srgb, ${colour("--accent")} 18%, transparent)` }]
        : [],
      series: [{ label: data.xLabel, value: (_, value) => (value == null ? "–" : formatNumber(value)) }, ...series],
      legend: { show: true, live: true },
      hooks: { ready: [showLatest], setCursor: [showLatest] },
      cursor: { drag: { x: false, y: false }, points: { size: 6 } },
    };
  }

  function drawCharts() {
    for (const figure of document.querySelectorAll("[data-chart]")) {
      const plot = figure.querySelector(".plot");
      const width = Math.floor(plot.clientWidth);
      const key = `${figure.dataset.chart} ${darkScheme.matches} ${width}`;
      const drawn = drawnPlots.get(plot);
      if (drawn?.key === key || !width) continue;
      drawn?.plot.destroy();
      const data = JSON.parse(figure.dataset.chart);
      const rows = [data.x, ...data.series.map((line) => line.values)];
      drawnPlots.set(plot, { key, plot: new uPlot(options(data, width), rows, plot) });
    }
  }

  let resizeTimer = null;
  addEventListener("resize", () => {
    clearTimeout(resizeTimer);
    resizeTimer = setTimeout(drawCharts, 150);
  });
  darkScheme.addEventListener("change", drawCharts);

  if (main.hasAttribute("hx-get")) onSwap();
})();

/* Pages with scripts: an event notifies a page that something changed, the page fetches its live
   part again, and it updates countdowns. Without this script pages are complete but static.

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
  document.addEventListener("input", (event) => { if (event.target.matches("#q, .kept")) refresh(250); });

  // -- folded details stay as the reader left them when the live part is fetched again ---------
  const isOpen = new Map();
  document.addEventListener("toggle", ({ target }) => {
    if (target.id) isOpen.set(target.id, target.open);
  }, true);

  function restoreDetails() {
    for (const [id, open] of isOpen) document.getElementById(id)?.toggleAttribute("open", open);
  }

  // -- the form: the preview has the errors of all fields, each is also shown at its field ------
  function markFault(field, fault) {
    const place = document.getElementById(`${field.id}-fault`);
    if (!place) return;
    place.textContent = fault;
    if (fault) field.setAttribute("aria-invalid", "true");
    else field.removeAttribute("aria-invalid");
  }

  // A choice fetches the whole form, and the preview follows.
  document.addEventListener("input", (event) => { if (event.target.closest(".kinds")) event.stopPropagation(); }, true);
  document.addEventListener("input", ({ target }) => { if (target.form?.id === "study-form") markFault(target, ""); });
  document.addEventListener("htmx:after:swap", ({ target, detail }) => {
    restoreDetails();
    const form = document.getElementById("study-form");
    if (!form || (target.id !== "preview" && !detail?.ctx?.sourceElement?.closest?.("#preview"))) return;
    const faults = new Map([...document.querySelectorAll("#preview [data-field]")].map(({ dataset }) => [dataset.field, dataset.fault]));
    const others = [...form.elements].filter(({ name }) => name !== "name");
    for (const field of others) markFault(field, faults.get(field.id) ?? "");
    if (!document.querySelector("#study-form [aria-invalid]")) document.getElementById("form-errors")?.remove();
  });

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

  // -- charts: all with the same axis show their values at the pointer --------------------------
  const charts = (axis) => [...document.querySelectorAll("[data-cursor]")]
    .map((figure) => ({ figure, data: JSON.parse(figure.dataset.cursor) }))
    .filter(({ data }) => axis === undefined || data.axis === axis);

  function showValues({ figure, data }, x) {
    const index = x === undefined ? data.x.length - 1 : data.x.indexOf(x);
    const isShown = x !== undefined && index >= 0;
    figure.querySelector(".cursor").setAttribute("d", `M${isShown ? data.at[index] : -9} 0V100`);
    figure.querySelector("output").textContent = isShown ? data.x[index].toLocaleString("en") : "";
    figure.querySelectorAll(".legend strong").forEach((value, line) => {
      value.textContent = data.texts[line][index] ?? "–";
    });
  }

  document.addEventListener("pointermove", ({ target, clientX }) => {
    const lines = target.closest?.(".lines");
    if (!lines) return;
    const { left, width } = lines.getBoundingClientRect();
    const { axis, x, at } = JSON.parse(lines.closest("[data-cursor]").dataset.cursor);
    const distances = at.map((place) => Math.abs(place - 100 * (clientX - left) / width));
    const nearest = x[distances.indexOf(Math.min(...distances))];
    for (const chart of charts(axis)) showValues(chart, nearest);
  });
  document.addEventListener("pointerout", ({ target, relatedTarget }) => {
    if (!target.closest?.(".lines") || relatedTarget?.closest?.(".lines")) return;
    for (const chart of charts()) showValues(chart);
  });

  // -- a chart as PNG: the SVG of the service, drawn at twice its size ---------------------------
  document.documentElement.classList.add("scripted");
  document.addEventListener("click", async ({ target }) => {
    const button = target.closest?.("[data-png]");
    if (!button) return;
    const image = new Image();
    image.src = button.dataset.png;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = 2 * image.naturalWidth;
    canvas.height = 2 * image.naturalHeight;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    const link = document.createElement("a");
    link.href = canvas.toDataURL("image/png");
    link.download = button.dataset.name;
    link.click();
  });

  if (main.hasAttribute("hx-get")) onSwap();
})();

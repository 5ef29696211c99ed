// The rest: where we are, keys, and asking once a second.

const EVERY = 1000;
const SLOWEST = 10_000;

let place = { view: "requests", open: null };
let failures = 0;
let timer = 0;
let gateIsOpen = false;

// === where we are ===

/** Goes to a place, at once, and back again by the browser's own button. */
function go(fragment) {
  if (location.hash !== `#${fragment}`) history.pushState(null, "", `#${fragment}`);
  arrive();
}

function onLink(event) {
  const link = event.target.closest('a[href^="#"]');
  if (!link || event.defaultPrevented || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  go(link.getAttribute("href").slice(1));
}

function placeOf(hash) {
  const [name, value] = hash.replace(/^#/, "").split(/=(.*)/s);
  let open = null;
  try {
    open = value ? decodeURIComponent(value) : null;
  } catch {
    // No address of ours.
  }
  const view = name === "store" || name === "payload" ? "store" : name === "costs" ? "costs" : "requests";
  return { view, open: name === "request" || name === "payload" ? open : null };
}

function arrive() {
  if (takeToken() && gateIsOpen) letIn();
  const before = place;
  place = placeOf(location.hash);
  for (const view of ["requests", "costs", "store"]) {
    const isHere = view === place.view;
    $(`view-${view}`).hidden = !isHere;
    if (isHere) $(`to-${view}`).setAttribute("aria-current", "page");
    else $(`to-${view}`).removeAttribute("aria-current");
  }
  if (gateIsOpen) return;
  if (place.view === "requests") {
    closePayload();
    if (place.open) openRequest(place.open);
    else backTo("rows", "id", closeRequest());
  } else if (place.view === "costs") {
    closeRequest();
    closePayload();
    loadCosts();
  } else {
    closeRequest();
    showStoreFacts();
    if (before.view !== "store" || $("payloads").children.length === 0) loadPayloads(false);
    if (place.open) openPayload(place.open);
    else backTo("payloads", "handle", closePayload());
  }
}

/** Gives the focus back to the row of what was open. */
function backTo(list, key, value) {
  if (value === null) return;
  const row = rowsOf($(list)).find((one) => one.dataset[key] === value);
  row?.focus({ preventScroll: true });
  row?.scrollIntoView({ block: "nearest" });
}

const listHere = () => $(place.view === "store" ? "payloads" : "rows");
const fieldHere = () => $(place.view === "store" ? "search" : "filter");

// === keys ===

const isField = (element) => element?.matches("input:not([type=checkbox]), select, textarea");

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || $("keys").open || gateIsOpen) return;
  if (event.key === "Escape") return onEscape(event);
  if (isField(event.target)) {
    if (event.key === "ArrowDown" && event.target === fieldHere()) {
      event.preventDefault();
      step(listHere(), 0);
    }
    return;
  }
  // Who speaks to the machine, or types without looking, may want none of these.
  if (event.key.length === 1 && !$("letters").checked) return;
  const arrows = event.target === document.body || listHere().contains(event.target);
  const doing = {
    j: () => step(listHere(), 1),
    k: () => step(listHere(), -1),
    ArrowDown: arrows && (() => step(listHere(), 1)),
    ArrowUp: arrows && (() => step(listHere(), -1)),
    "/": () => place.view !== "costs" && focusField(),
    r: () => go("requests"),
    c: () => go("costs"),
    s: () => go("store"),
    t: () => nextTheme(),
    "?": () => $("keys").showModal(),
  }[event.key];
  if (!doing) return;
  event.preventDefault();
  doing();
}

function focusField() {
  if (fieldHere().offsetParent === null) go(place.view);
  fieldHere().focus();
  fieldHere().select();
}

function onEscape(event) {
  if (isField(event.target) && event.target.closest(".bar")) {
    event.preventDefault();
    if (event.target.value) {
      event.target.value = "";
      event.target.dispatchEvent(new Event("input"));
    } else step(listHere(), 0);
  } else if (place.open) go(place.view);
}

// === the gate ===

/** Whether the error is that we may not: then the page asks for a token. */
async function gated(error) {
  if (error.status !== 401 && error.status !== 403) return false;
  openGate(error);
  return true;
}

function openGate(error) {
  clearTimeout(timer);
  const isRefused = token !== null && error.status === 401;
  if (isRefused) setToken(null);
  say($("gate-title"), error.status === 401 ? "abridge asks for a token" : "abridge refuses");
  say($("gate-why"), isRefused ? `It does not take this one. ${error.message}` : error.message);
  $("body").hidden = true;
  $("gate").hidden = false;
  setLink("gone", error.status === 401 ? "token needed" : "refused");
  if (!gateIsOpen) $("token").focus();
  gateIsOpen = true;
}

function onToken(event) {
  event.preventDefault();
  setToken($("token").value.trim());
  $("token").value = "";
  letIn();
}

/** Tries with the token that there is now. */
function letIn() {
  gateIsOpen = false;
  poll();
}

function closeGate() {
  if ($("gate").hidden) return;
  $("gate").hidden = true;
  $("body").hidden = false;
  gateIsOpen = false;
  arrive();
}

// === asking ===

function setLink(state, text) {
  $("link").dataset.link = state;
  say($("link-text"), text);
}

async function poll() {
  clearTimeout(timer);
  if (document.hidden) return;
  try {
    const now = await json("status");
    const isOther = status !== null && status.started !== now.started;
    if (isOther) forgetRequests();
    showStatus(now);
    takeRequests(await json(`requests?after=${requests.latest}&limit=${MOST_ROWS}`));
    if (place.view === "store") showStoreFacts();
    if (place.view === "costs") await loadCosts();
    failures = 0;
    $("body").classList.remove("stale");
    setLink("live", "live");
    closeGate();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    if (await gated(error)) return;
    failures += 1;
    $("body").classList.toggle("stale", failures > 1);
    setLink("gone", error.status === 0 ? "abridge is gone, reconnecting" : `abridge answers ${error.status}, trying again`);
  } finally {
    if (!gateIsOpen) timer = setTimeout(poll, Math.min(EVERY * 2 ** Math.max(failures - 1, 0), SLOWEST));
  }
}

// === begin ===

function begin() {
  takeToken();
  addEventListener("hashchange", arrive);
  addEventListener("keydown", onKey);
  addEventListener("click", onLink);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) setLink("wait", "paused");
    else if (!gateIsOpen) poll();
  });
  let resized = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(resized);
    resized = requestAnimationFrame(drawChart);
  });
  $("theme").addEventListener("click", nextTheme);
  $("letters").checked = recalled(localStorage, "abridge-letters") !== "off";
  $("letters").addEventListener("change", () => remember(localStorage, "abridge-letters", $("letters").checked ? null : "off"));
  $("help").addEventListener("click", () => $("keys").showModal());
  $("gate-form").addEventListener("submit", onToken);
  $("filter").addEventListener("input", showRequests);
  $("edited-only").addEventListener("change", showRequests);
  $("search").addEventListener("input", () => {
    clearTimeout(store.timer);
    store.timer = setTimeout(() => loadPayloads(false), 250);
  });
  $("store-more").addEventListener("click", () => loadPayloads(true));
  $("skip").addEventListener("click", () => step(listHere(), 0));
  arrive();
  poll();
}

begin();

// What the rest of the page stands on: elements, numbers, the API, the theme.
// Nothing that was received becomes markup: texts are text nodes, and the policy of the page forbids the other way.
"use strict";

const $ = (id) => document.getElementById(id);

/** An element with attributes and children; strings become text. */
function el(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") element.addEventListener(key, value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

function svg(name, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes ?? {})) element.setAttribute(key, String(value));
  element.append(...children);
  return element;
}

/** Sets a text only when it is another one, so that nothing flickers and no selection is lost. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// === numbers and times ===

const known = (value) => typeof value === "number" && Number.isFinite(value);
const whole = (value) => (known(value) ? Math.round(value).toLocaleString("en") : "–");
const many = (value, one, more = `${one}s`) => `${whole(value)} ${value === 1 ? one : more}`;

function short(value) {
  if (!known(value)) return "–";
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (value >= size) {
      const scaled = value / (unit === "k" ? 1e3 : size);
      return `${scaled >= 100 ? Math.round(scaled).toLocaleString("en") : scaled.toFixed(1)}${unit}`;
    }
  }
  return whole(value);
}

function bytes(value) {
  if (!known(value)) return "–";
  if (value < 1000) return `${whole(value)}\u00a0B`;
  const unit = value < 1e6 ? ["kB", 1e3] : value < 1e9 ? ["MB", 1e6] : ["GB", 1e9];
  const scaled = value / unit[1];
  return `${scaled < 100 ? scaled.toFixed(1) : whole(scaled)}\u00a0${unit[0]}`;
}

function millis(value) {
  if (!known(value)) return "–";
  if (value < 10) return `${value.toFixed(2)}\u00a0ms`;
  if (value < 1000) return `${value.toFixed(0)}\u00a0ms`;
  return `${(value / 1000).toFixed(value < 10_000 ? 2 : 1)}\u00a0s`;
}

const percent = (part, all) => (known(part) && known(all) && all > 0 ? `${Math.round((100 * part) / all)}\u00a0%` : "–");

/** An amount in billionths of a dollar. */
function dollars(nano) {
  if (!known(nano)) return "–";
  const amount = nano / 1e9;
  const digits = amount === 0 || amount >= 1 ? 2 : amount >= 0.01 ? 3 : 5;
  return `$${amount.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
}

/** What became of a size, in percent: `−62 %`. */
function change(before, after) {
  if (!known(before) || !known(after) || before <= 0) return "";
  const by = Math.round((100 * (after - before)) / before);
  return by === 0 ? "±0\u00a0%" : `${by < 0 ? "−" : "+"}${Math.abs(by)}\u00a0%`;
}

/** A time as Unix seconds, or as a text that a date can be read from. */
function when(value) {
  const date = known(value) ? new Date(value * 1000) : new Date(value ?? NaN);
  return Number.isNaN(date.getTime()) ? null : date;
}

const clock = (value) => when(value)?.toLocaleTimeString("en-GB") ?? "–";
const day = (value) => when(value)?.toLocaleDateString("sv-SE") ?? "";
const moment = (value) => (when(value) ? `${day(value)} ${clock(value)}` : "–");

function span(seconds) {
  if (!known(seconds)) return "–";
  if (seconds < 120) return `${Math.round(seconds)}\u00a0s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86_400)} days`;
}

// === what the tab remembers ===

function recalled(store, key) {
  try {
    return store.getItem(key);
  } catch {
    return null;
  }
}

function remember(store, key, value) {
  try {
    if (value === null) store.removeItem(key);
    else store.setItem(key, value);
  } catch {
    // A browser that keeps nothing asks again.
  }
}

// === the API ===

const TOKEN = "abridge-token";
let token = recalled(sessionStorage, TOKEN);

/** Takes `#token=…` out of the address before anybody sees it, and says whether it was there. */
function takeToken() {
  const found = /^#token=(.+)$/.exec(location.hash);
  if (!found) return false;
  history.replaceState(null, "", location.pathname + location.search);
  try {
    setToken(decodeURIComponent(found[1]));
  } catch {
    setToken(found[1]);
  }
  return true;
}

function setToken(value) {
  token = value;
  remember(sessionStorage, TOKEN, value);
}

/** An answer that is none: `status` 0 stands for no answer at all. */
class Refused extends Error {
  constructor(status, message, body) {
    super(message);
    this.status = status;
    this.body = body;
  }
}

/** Asks abridge; paths are below the page's own. */
async function ask(path, patience = 15_000) {
  let answer;
  let text = "";
  try {
    answer = await fetch(path, {
      cache: "no-store",
      credentials: "same-origin",
      redirect: "error",
      headers: token ? { authorization: `Bearer ${token}` } : {},
      signal: AbortSignal.timeout(patience),
    });
    if (!answer.ok) text = await answer.text();
  } catch (error) {
    throw new Refused(0, error.name === "TimeoutError" ? "abridge took too long to answer" : "abridge does not answer");
  }
  if (answer.ok) return answer;
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    // A plain sentence.
  }
  const message = body?.reason ?? body?.error?.message ?? (typeof body?.error === "string" ? body.error : null);
  throw new Refused(answer.status, (message ?? text.trim().slice(0, 600)) || `abridge answered ${answer.status}`, body);
}

async function json(path) {
  const answer = await ask(path);
  try {
    return await answer.json();
  } catch {
    throw new Refused(0, "the answer broke off");
  }
}

// === the theme ===

const THEMES = ["auto", "light", "dark"];

function setTheme(theme) {
  const name = THEMES.includes(theme) ? theme : "auto";
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  say($("theme"), `Theme: ${name}`);
  return name;
}

let theme = setTheme(recalled(localStorage, "abridge-theme"));

function nextTheme() {
  theme = setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]);
  remember(localStorage, "abridge-theme", theme === "auto" ? null : theme);
}

// === lists ===

/** The rows of a list that can be seen. */
const rowsOf = (list) => [...list.querySelectorAll("a.row")].filter((row) => !row.closest("[hidden]"));

/** One row of a list can be reached with Tab, the others with the arrows. */
function rove(list, row) {
  for (const other of list.querySelectorAll('a.row[tabindex="0"]')) if (other !== row) other.tabIndex = -1;
  if (row) row.tabIndex = 0;
}

/** Sees to it that one row can be reached. */
function keepReachable(list) {
  const rows = rowsOf(list);
  if (!rows.some((row) => row.tabIndex === 0)) rove(list, rows[0]);
}

function step(list, by) {
  const rows = rowsOf(list);
  const at = rows.findIndex((row) => row === document.activeElement);
  const from = at >= 0 ? at + by : Math.max(rows.findIndex((row) => row.tabIndex === 0), 0);
  const row = rows[Math.min(Math.max(from, 0), rows.length - 1)];
  if (!row) return;
  rove(list, row);
  row.focus({ preventScroll: true });
  row.scrollIntoView({ block: "nearest" });
}

/** Shows a part of many, and a button for the next part. */
function inParts(items, size, draw, into, name) {
  let shown = 0;
  const more = el("button", { type: "button", class: "run", click: () => grow(true) });
  const grow = (isAsked) => {
    const part = items.slice(shown, shown + size).map(draw);
    shown += part.length;
    into.append(...part);
    const left = items.length - shown;
    more.remove();
    if (left > 0) {
      more.textContent = `Show ${whole(Math.min(size, left))} more of ${many(left, name)} that ${left === 1 ? "is" : "are"} left`;
      into.append(into.tagName === "OL" ? el("li", { class: "rest" }, more) : more);
    }
    if (isAsked) (part[0]?.querySelector("button, a") ?? more).focus({ preventScroll: true });
  };
  grow(false);
}

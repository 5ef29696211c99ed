// The list of requests, the totals above it, and the chart between them.

/** What each edit did, in a word. */
const DID = { patch: "patched", filter: "filtered", truncate: "cut", clear: "cleared", summary: "summarised" };

/** As many as abridge itself keeps. */
const MOST_ROWS = 500;

const requests = { entries: [], rows: new Map(), latest: 0, most: 1, open: null, isFirst: true };

// === one row ===

const edits = (entry) => Object.entries(entry.edits ?? {});
const inTokens = (entry) => known(entry.tokens_before);
const before = (entry) => (inTokens(entry) ? entry.tokens_before : entry.bytes_before);
const after = (entry) => (inTokens(entry) ? (entry.tokens_after ?? entry.tokens_before) : entry.bytes_after);
/** The length of a bar: tokens, or where they were not counted what they may be. */
const BYTES_A_TOKEN = 4;
const drawn = (entry, size) => (inTokens(entry) ? size : size / BYTES_A_TOKEN);
const isFailure = (entry) => known(entry.status) && entry.status >= 400;

function chip(name, text, title) {
  return el("span", { class: `chip ${name}`, title }, text);
}

function chips(entry) {
  const isDry = entry.outcome === "would_be_edited";
  const all = edits(entry).map(([name, n]) => {
    const word = DID[name] ?? name;
    const text = name === "summary" && n === 1 ? word : `${word} ${whole(n)}`;
    return chip(isDry ? `dry ${name}` : name, text, isDry ? "A dry run: it went on as it came" : null);
  });
  if (isDry) all.unshift(chip("dry", "dry run"));
  if (entry.outcome === "not_understood") all.push(chip("bad", "not understood", "It went on as it came"));
  if (isFailure(entry)) all.push(chip("bad", String(entry.status), "The status that came back"));
  if (entry.end && entry.end !== "complete") all.push(chip("bad", entry.end.replaceAll("_", " ")));
  if (all.length === 0) all.push(el("span", { class: "soft small" }, "as it came"));
  return all;
}

/** Received and sent, in figures and as bars that share the list's scale. */
function sizes(entry) {
  const [from, to] = [before(entry), after(entry)];
  const figure = inTokens(entry) ? whole : bytes;
  const figures = el("span", { class: "figures" });
  if (from === to) figures.append(el("b", {}, figure(to)));
  else figures.append(el("span", { class: "from" }, figure(from)), " → ", el("b", {}, figure(to)));
  if (inTokens(entry)) figures.append(el("span", { class: "hidden" }, " tokens"));
  const bar = (kind, n) => {
    const i = el("i", { class: kind });
    i.style.setProperty("--n", String(drawn(entry, n)));
    return i;
  };
  const meter = el("span", { class: "meter", "aria-hidden": "true" }, bar("before", from), bar("after", to));
  return el("span", { class: "cells" }, figures, meter);
}

function requestRow(entry) {
  const cached = percent(entry.cached_tokens, entry.input_tokens);
  const row = el("a", { class: "row", href: `#request=${encodeURIComponent(entry.id)}`, tabindex: -1, "data-id": entry.id },
    el("time", { class: "soft", title: moment(entry.time) }, clock(entry.time)),
    el("span", { class: "model isolate", title: entry.model }, entry.model ?? "no model"),
    sizes(entry),
    el("span", { class: "chips" }, chips(entry)),
    el("span", { class: "num", "data-name": "added", title: "What abridge added to the way there" }, known(entry.added_ms) ? millis(entry.added_ms) : "–"),
    el("span", { class: "num", "data-name": "cached", title: `Cached prompt tokens, as billed: ${whole(entry.cached_tokens)} of ${whole(entry.input_tokens)}` }, cached));
  return el("li", {}, row);
}

// === the list ===

function takeRequests(answer) {
  const fresh = answer.requests.filter((entry) => !requests.rows.has(entry.id));
  for (const entry of fresh) {
    const row = requestRow(entry);
    if (!requests.isFirst) row.classList.add("new");
    requests.rows.set(entry.id, row);
    requests.entries.push(entry);
    $("rows").prepend(row);
  }
  while (requests.entries.length > MOST_ROWS) {
    const old = requests.entries.shift();
    const row = requests.rows.get(old.id);
    requests.rows.delete(old.id);
    const hadFocus = row.contains(document.activeElement);
    row.remove();
    if (hadFocus) rowsOf($("rows")).at(-1)?.focus({ preventScroll: true });
  }
  requests.latest = Math.max(requests.latest, answer.latest ?? 0, ...fresh.map((entry) => entry.seq));
  if (fresh.length > 0 || requests.isFirst) showRequests();
  requests.isFirst = false;
}

/** Another process answers: its requests are others. */
function forgetRequests() {
  Object.assign(requests, { entries: [], rows: new Map(), latest: 0, isFirst: true });
  $("rows").replaceChildren();
}

function showRequests() {
  const wanted = $("filter").value.trim().toLowerCase();
  const onlyEdited = $("edited-only").checked;
  let shown = 0;
  let most = 1;
  for (const entry of requests.entries) {
    const isWanted = (!onlyEdited || edits(entry).length > 0) && (!wanted || textOf(entry).includes(wanted));
    requests.rows.get(entry.id).hidden = !isWanted;
    if (isWanted) {
      shown += 1;
      most = Math.max(most, drawn(entry, before(entry)), drawn(entry, after(entry)));
    }
  }
  $("rows").style.setProperty("--most", String(most));
  const all = requests.entries.length;
  say($("count"), shown === all ? many(all, "request") : `${whole(shown)} of ${whole(all)}`);
  keepReachable($("rows"));
  showEmpty(all, shown);
  drawChart();
}

const textOf = (entry) =>
  [entry.model, entry.id, entry.outcome, entry.status, entry.end, entry.stop_reason, entry.path, ...edits(entry).flatMap(([name]) => [name, DID[name]])]
    .join(" ").toLowerCase();

function showEmpty(all, shown) {
  const empty = $("empty");
  empty.hidden = shown > 0;
  const kind = all === 0 ? "none" : "filtered";
  if (shown > 0 || empty.dataset.kind === kind) return;
  empty.dataset.kind = kind;
  if (kind === "filtered") {
    empty.replaceChildren(el("p", {}, "No request here is like that. ", el("button", { type: "button", class: "text", click: clearFilter }, "Show all"), "."));
    return;
  }
  const base = `${location.origin}/v1`;
  empty.replaceChildren(
    el("h3", {}, "No conversation has come by yet"),
    el("p", {}, "Point an agent or a client at abridge, and each of its chat requests shows up here when its answer has ended:"),
    el("pre", { class: "line" }, `export OPENAI_BASE_URL=${base}`),
    el("p", {}, "Or send one by hand, with your key and a model of yours:"),
    el("pre", { class: "line" }, `curl ${base}/chat/completions -H "authorization: Bearer $OPENAI_API_KEY" -H "content-type: application/json" -d '{"model": "gpt-4.1-mini", "messages": [{"role": "user", "content": "Hello"}]}'`),
    el("p", { class: "soft" }, "Where this page is at an address of [admin] listen, take the one of [server] listen instead."),
    el("p", { class: "soft" }, "Nothing of this leaves the machine but the request itself, which goes to the upstream named above."));
}

function clearFilter() {
  $("filter").value = "";
  $("edited-only").checked = false;
  showRequests();
  $("filter").focus();
}

// === the chart ===

const CHART = { height: 122, left: 44, right: 6, top: 8, bottom: 20 };

/** A step for the axis: 1, 2 or 5 times a power of ten, so that there are two to four lines. */
function tick(most) {
  const power = 10 ** Math.floor(Math.log10(Math.max(most, 1)));
  return [0.2, 0.5, 1, 2, 5].map((n) => n * power).find((n) => most / n < 5) ?? power;
}

const axis = (value) => (value >= 1e6 ? `${value / 1e6}M` : value >= 1000 ? `${value / 1000}k` : String(value));

function drawChart() {
  const shown = requests.entries.filter((entry) => !requests.rows.get(entry.id).hidden);
  $("chart-box").hidden = shown.length === 0;
  if (shown.length === 0) return;
  const width = Math.max($("chart").clientWidth, 240);
  const room = width - CHART.left - CHART.right;
  const entries = shown.slice(-Math.floor(room / 5));
  const [received, sent] = [(entry) => drawn(entry, before(entry)), (entry) => drawn(entry, after(entry))];
  const most = Math.max(...entries.map((entry) => Math.max(received(entry), sent(entry))), 1);
  const bottom = CHART.height - CHART.bottom;
  const y = (value) => bottom - (value / most) * (bottom - CHART.top);
  const step = Math.min(room / entries.length, 26);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${CHART.height}`, role: "img", "aria-labelledby": "chart-title chart-text" });
  const interval = tick(most);
  for (let value = 0; value <= most; value += interval) {
    picture.append(
      svg("line", { class: "grid", x1: CHART.left, x2: width - CHART.right, y1: y(value), y2: y(value) }),
      svg("text", { x: CHART.left - 6, y: y(value) + 4, "text-anchor": "end" }, axis(value)));
  }
  entries.forEach((entry, n) => picture.append(chartBar(entry, CHART.left + n * step, step, y, bottom)));
  timeLabels(entries, step, width).forEach((label) => picture.append(label));
  $("chart").replaceChildren(picture);
  const sum = (of) => entries.reduce((all, entry) => all + of(entry), 0);
  const isGuessed = entries.some((entry) => !inTokens(entry));
  $("chart-note").hidden = !isGuessed;
  say($("chart-text"), `A bar chart of the last ${many(entries.length, "request")}, from ${clock(entries[0].time)} to ${clock(entries.at(-1).time)}: `
    + `${isGuessed ? "about " : ""}${whole(sum(received))} tokens received, ${whole(sum(sent))} sent; the largest request had ${whole(most)}. The list below has the figures.`);
}

function chartBar(entry, x, step, y, bottom) {
  const thick = Math.max(Math.min(step - 1.5, 18), 2);
  const rect = (kind, size) => {
    const top = y(drawn(entry, size));
    return svg("rect", { class: kind, x: x.toFixed(2), y: top.toFixed(2), width: thick.toFixed(2), height: Math.max(bottom - top, 1).toFixed(2), rx: Math.min(1.5, thick / 3) });
  };
  const figure = inTokens(entry) ? whole : bytes;
  const title = svg("title", {}, `${clock(entry.time)}  ${entry.model ?? ""}\n${figure(before(entry))} → ${figure(after(entry))}${inTokens(entry) ? " tokens" : ""}`);
  const hit = svg("rect", { class: "hit", x: (x - 0.75).toFixed(2), y: 0, width: step.toFixed(2), height: bottom });
  const bar = svg("g", entry.id === requests.open ? { class: "open" } : {}, title, rect("before", before(entry)), rect("after", after(entry)), hit);
  bar.addEventListener("click", () => go(`request=${encodeURIComponent(entry.id)}`));
  return bar;
}

/** Times below the bars, as many as have room, each at a bar that it tells the time of. */
function timeLabels(entries, step, width) {
  const gap = Math.max(Math.ceil(92 / step), 1);
  const labels = [];
  for (let n = 0; n < entries.length; n += gap) {
    const x = CHART.left + n * step;
    if (x + 54 > width) break;
    labels.push(svg("text", { x: x.toFixed(1), y: CHART.height - 5 }, clock(entries[n].time)));
  }
  return labels;
}

// === totals ===

let status = null;

/** One tile: what it is, the figure, and what else there is to say. */
function tile(name, figure, ...more) {
  return { name, figure: [figure].flat(), more: more.filter(Boolean) };
}

function tiles(now) {
  const { requests: of = {}, tokens = {}, billed = {}, added_ms: added = {}, store } = now;
  const failed = [[of.failed, "unanswered"], [of.shed, "shed"], [of.refused, "refused"], [of.not_understood, "not understood"]].filter(([n]) => n > 0);
  const seen = [[of.edited, "edited"], [of.would_be_edited, "would be edited"], [of.unedited, "as they came"], [of.passed, "not conversations"]].filter(([n]) => n > 0);
  const list = (pairs) => pairs.map(([n, what]) => `${whole(n)} ${what}`).join(" · ");
  const predicted = now.predicted_cached;
  const { summaries = {}, rescues } = now;
  const others = [[summaries.made, "summaries made"], [summaries.failed, "failed"], [total(rescues), "sent a second time"]].filter(([n]) => n > 0);
  const caches = (now.caches ?? []).filter((cache) => known(cache.smallest));
  const lost = [["edits", "edits"], ["expired", "pauses"], ["client", "the client"], ["upstream", "the upstream"]]
    .map(([key, what]) => [caches.reduce((sum, { lost: of }) => sum + (of?.[key] ?? 0), 0), what]).filter(([n]) => n > 0);
  return [
    tile("Requests", whole(of.total), list(seen), list(failed), now.savings, now.why_unedited),
    tokens.before > 0
      ? tile("Tokens, where counted", [short(tokens.before), " → ", short(tokens.after)], change(tokens.before, tokens.after), list(others))
      : tile("Tokens", "–", "counted when a conversation is long", list(others)),
    tile("Cached, as billed", percent(billed.cached, billed.input), billed.input > 0 && `${short(billed.cached)} of ${short(billed.input)} tokens`, known(predicted) && predicted > 0 && `${short(predicted)} foreseen`, lost.length > 0 && `lost to ${lost.map(([n, what]) => `${what} ${short(n)}`).join(" · ")}`),
    added.count > 0
      ? tile("Added by abridge", [millis(added.p50), el("small", {}, " median")], `p99 ${millis(added.p99)}`)
      : tile("Added by abridge", "–"),
    tile("Originals kept", store ? bytes(store.bytes) : "none", store ? `${many(store.payloads, "payload")}, ${bytes(store.stored_bytes)} on disk` : "there is no store", now.recalls && `${many(total(now.recalls), "recall")}`),
    tile("Now", [whole(now.in_flight), el("small", {}, " in flight")], `${many(now.streams ?? 0, "stream")}, ${bytes(now.buffered_bytes)} of bodies`, `${known(now.rss_bytes) ? `${bytes(now.rss_bytes)} of memory, ` : ""}up ${span(now.uptime_seconds)}`),
  ];
}

const total = (counts) => (known(counts) ? counts : Object.values(counts ?? {}).filter(known).reduce((sum, n) => sum + n, 0));

function showStatus(now) {
  status = now;
  say($("version"), now.version ?? "");
  const upstreams = now.upstreams ?? [];
  const several = upstreams.map((upstream) => `${upstream.name} → ${upstream.url}`).join("; ");
  say($("upstream"), upstreams.length > 1 ? several : now.upstream ? `→ ${now.upstream}` : "");
  const drawn = tiles(now).map(({ name, figure, more }) =>
    el("div", {}, el("dt", {}, name), el("dd", { class: "big" }, figure), more.map((line) => el("dd", { class: "sub" }, line))));
  // What says the same stays, so that it can be marked and copied.
  if (drawn.map((one) => one.textContent).join() !== [...$("totals").children].map((one) => one.textContent).join()) $("totals").replaceChildren(...drawn);
  say($("totals-title"), `Totals since ${moment(now.started)}`);
  showTrouble(now);
}

/** What somebody should know, in words. */
function showTrouble(now) {
  const said = [];
  if (now.dry_run) said.push("A dry run: every request goes on as it came, and what you see is what would have been done.");
  if (now.store?.trouble) said.push(`The store has trouble: ${now.store.trouble}.`);
  if (now.store_notice) said.push(`${now.store_notice}.`);
  const open = Object.entries(now.fail_open ?? {}).filter(([, n]) => n > 0);
  if (open.length > 0) said.push(`Went on unedited because something was wrong: ${open.map(([why, n]) => `${whole(n)} × ${why.replaceAll("_", " ")}`).join(", ")}.`);
  $("trouble").hidden = said.length === 0;
  say($("trouble"), said.join(" "));
}

// The list of requests by conversation, and the totals above it.

/** What each edit did, in a word. */
const DID = { patch: "patched", filter: "filtered", truncate: "cut", clear: "cleared", summary: "summarised" };

/** As many as abridge itself keeps. */
const MOST_ROWS = 500;

const requests = { entries: [], rows: new Map(), groups: new Map(), latest: 0, open: null, isFirst: true };

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

// === conversations ===

/** A conversation and its requests. A request that does not show its beginning stands alone. */
function groupOf(entry) {
  const key = entry.conversation ?? entry.id;
  let group = requests.groups.get(key);
  if (!group) {
    const [name, facts, list] = [el("span", { class: "isolate name" }), el("span", { class: "soft" }), el("ol", {})];
    group = { key, entries: [], title: null, name, facts, list, element: el("section", { class: "group" }, el("h3", {}, name, facts), list) };
    requests.groups.set(key, group);
  }
  return group;
}

const newest = (group) => group.entries.at(-1)?.seq;

/** Its first words where they may be shown, or else who began it and when. */
const nameOf = ({ title, entries: [first] }) => title || `${first?.client || "unknown"}, ${clock(first?.time)}`;

/** What requests have cost, and what they would have cost; tokens where nothing has a price. */
function costOf(entries) {
  const sum = (of) => entries.reduce((all, entry) => all + (of(entry) ?? 0), 0);
  const isDry = (entry) => entry.outcome === "would_be_edited";
  const unpriced = entries.filter((entry) => !known(entry.edited_cost)).length;
  if (unpriced === entries.length) {
    const [from, to] = [sum((entry) => drawn(entry, before(entry))), sum((entry) => drawn(entry, after(entry)))];
    return from === to ? `${short(to)} tokens` : `${short(to)} tokens, ${short(from)} without edits`;
  }
  const billed = dollars(sum((entry) => (isDry(entry) ? entry.unedited_cost : entry.edited_cost)));
  const wouldBe = entries.some(isDry) ? [dollars(sum((entry) => entry.edited_cost)), "with edits"] : [dollars(sum((entry) => entry.unedited_cost)), "without edits"];
  const told = billed === wouldBe[0] ? `${billed} so far` : `${billed} so far, ${wouldBe.join(" ")}`;
  return unpriced > 0 ? `${told}, ${many(unpriced, "request")} not priced` : told;
}

function showGroup(group) {
  say(group.name, nameOf(group));
  say(group.facts, ` ${many(group.entries.length, "request")} · ${costOf(group.entries)}`);
}

// === the list ===

function takeRequests(answer) {
  const fresh = answer.requests.filter((entry) => !requests.rows.has(entry.id));
  const changed = new Set();
  for (const entry of fresh) {
    const row = requestRow(entry);
    if (!requests.isFirst) row.classList.add("new");
    requests.rows.set(entry.id, row);
    requests.entries.push(entry);
    const group = groupOf(entry);
    group.title ||= entry.title;
    group.entries.push(entry);
    group.list.prepend(row);
    changed.add(group);
  }
  while (requests.entries.length > MOST_ROWS) changed.add(dropOldest());
  // The conversation with the newest request is the first one. What has the focus keeps it.
  const focused = document.activeElement;
  for (const group of [...changed].filter(newest).sort((one, other) => newest(one) - newest(other))) {
    showGroup(group);
    if ($("rows").firstElementChild !== group.element && newest(group) > requests.latest) $("rows").prepend(group.element);
  }
  if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
  requests.latest = Math.max(requests.latest, answer.latest ?? 0, ...fresh.map((entry) => entry.seq));
  if (fresh.length > 0 || requests.isFirst) showRequests();
  requests.isFirst = false;
}

/** Removes the oldest request, and its conversation with the last one. */
function dropOldest() {
  const old = requests.entries.shift();
  const group = groupOf(old);
  const row = requests.rows.get(old.id);
  const hadFocus = row.contains(document.activeElement);
  requests.rows.delete(old.id);
  group.entries = group.entries.filter((entry) => entry !== old);
  row.remove();
  if (group.entries.length === 0) {
    requests.groups.delete(group.key);
    group.element.remove();
  }
  if (hadFocus) rowsOf($("rows")).at(-1)?.focus({ preventScroll: true });
  return group;
}

/** Another process answers: its requests are others. */
function forgetRequests() {
  Object.assign(requests, { entries: [], rows: new Map(), groups: new Map(), latest: 0, isFirst: true });
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
  for (const group of requests.groups.values()) group.element.hidden = shownOf(group).length === 0;
  $("rows").style.setProperty("--most", String(most));
  const all = requests.entries.length;
  say($("count"), shown === all ? many(all, "request") : `${whole(shown)} of ${whole(all)}`);
  keepReachable($("rows"));
  showEmpty(all, shown);
  drawChart();
}

/** The requests of a conversation that the filter lets through. */
const shownOf = (group) => group.entries.filter((entry) => !requests.rows.get(entry.id).hidden);

const textOf = (entry) =>
  [entry.model, groupOf(entry).title, entry.client, entry.id, entry.outcome, entry.status, entry.end, entry.stop_reason, entry.path, ...edits(entry).flatMap(([name]) => [name, DID[name]])]
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

// The store: what was taken out, to be searched and recalled.

/** So much of a payload is asked for at a time. */
const PAGE_BYTES = 65_536;
const PAGE_PAYLOADS = 100;

/** So many pages are searched before somebody asks for more. */
const MOST_IN_VAIN = 8;

const store = { next: null, query: null, asked: 0, open: null, timer: 0, isLoading: false };

// === the list ===

async function loadPayloads(isMore) {
  const query = $("search").value.trim();
  if (isMore && (store.next === null || store.isLoading)) return;
  const asked = ++store.asked;
  store.isLoading = true;
  let answer = { next: isMore ? store.next : null };
  try {
    // A page that was searched in vain has nothing, and may not be the last one.
    for (let n = 0; n < MOST_IN_VAIN && (n === 0 || answer.next); n += 1) {
      const parameters = new URLSearchParams({ limit: String(PAGE_PAYLOADS) });
      if (query) parameters.set("search", query);
      if (answer.next) parameters.set("after", answer.next);
      answer = await json(`payloads?${parameters}`);
      if (asked !== store.asked) return;
      if (answer.payloads.length > 0) break;
    }
  } catch (error) {
    if (asked === store.asked) {
      store.isLoading = false;
      if (!(await gated(error))) showPayloads([], isMore, query, error);
    }
    return;
  }
  store.isLoading = false;
  store.next = answer.next ?? null;
  store.query = query;
  showPayloads(answer.payloads, isMore, query, answer.reason ?? null);
}

/** The conversation that a text was taken out of, as far as the last requests tell. */
function conversationOf({ conversation, title, client }) {
  const group = requests.groups.get(conversation);
  return group ? nameOf(group) : title || client || "–";
}

function payloadRow(payload) {
  const created = moment(payload.created);
  const row = el("a", { class: "row payload", href: `#payload=${encodeURIComponent(payload.handle)}`, tabindex: -1, "data-handle": payload.handle },
    el("span", { class: "mono" }, payload.handle),
    el("span", { class: "tool isolate", title: payload.tool }, payload.tool ?? "–"),
    el("span", { class: "of isolate" }, conversationOf(payload)),
    el("span", { class: "num" }, bytes(payload.bytes)),
    el("span", { class: "num wide" }, bytes(payload.stored_bytes)),
    el("span", { class: "num wide soft" }, created),
    el("span", { class: "num wide soft" }, moment(payload.used)),
    payload.preview ? el("span", { class: "preview isolate soft" }, payload.preview) : null);
  return el("li", {}, row);
}

function showPayloads(payloads, isMore, query, reason) {
  const list = $("payloads");
  const rows = payloads.map(payloadRow);
  if (isMore) list.append(...rows);
  else list.replaceChildren(...rows);
  if (isMore) rows[0]?.firstElementChild.focus();
  const n = list.children.length;
  $("store-more").hidden = store.next === null;
  say($("store-count"), n === 0 ? "" : `${many(n, "payload")}${store.next === null ? "" : " so far"}`);
  if (store.open) markOpen("payloads", "handle", store.open);
  keepReachable(list);
  $("store-empty").hidden = n > 0;
  if (n === 0) $("store-empty").replaceChildren(...emptyStore(query, reason));
}

function emptyStore(query, reason) {
  if (reason instanceof Refused) return [el("h3", {}, "The store could not be read"), el("p", {}, reason.message)];
  if (status?.store_notice && !status.store) {
    return [el("h3", {}, "The store could not be opened"), el("p", {}, `${status.store_notice}.`)];
  }
  if (status && !status.store) {
    return [el("h3", {}, "There is no store"), el("p", {}, "What edits take out of conversations could not be kept, so nothing is taken out that should be. ", el("code", {}, "store.enabled"), " switches it on.")];
  }
  if (query) {
    const where = store.next ? "Not in what was looked through so far." : "No handle begins with that, and no payload has that text.";
    return [el("h3", {}, "Nothing found"), el("p", {}, reason ? sentence(reason) : where)];
  }
  return [el("h3", {}, "Nothing is stored yet"), el("p", {}, "When an edit takes a text out of a conversation, the original is kept here first, and a handle in the conversation says where.")];
}

function showStoreFacts() {
  const facts = status?.store;
  say($("store-facts"), facts
    ? [facts.path, many(facts.payloads, "payload"), `${bytes(facts.bytes)} of text`, `${bytes(facts.stored_bytes)} on disk`].filter(Boolean).join(" · ")
    : "");
}

// === one payload ===

async function openPayload(handle) {
  const pane = $("payload");
  store.open = handle;
  markOpen("payloads", "handle", handle);
  pane.hidden = false;
  $("store-split").classList.add("open");
  const text = el("pre", { class: "content payload-text", id: "payload-text", tabindex: 0, "aria-label": "The text" }, "…");
  const told = el("span", { class: "small soft", role: "status", id: "payload-told" });
  const recall = { handle, at: 0, size: null, text, told };
  pane.replaceChildren(paneHead("payload-title", "Payload", handle, "#store"), partsForm(recall), text);
  showPane("payload-title");
  await recallPart(recall, { offset: 0, limit: PAGE_BYTES });
}

function closePayload() {
  const handle = store.open;
  store.open = null;
  $("payload").hidden = true;
  $("payload").replaceChildren();
  $("store-split").classList.remove("open");
  markOpen("payloads", "handle", null);
  return handle;
}

/** The controls for parts: pages of bytes, lines, and lines that hold a text. */
function partsForm(recall) {
  const page = (by) => recallPart(recall, { offset: Math.max(recall.at + by, 0), limit: PAGE_BYTES });
  recall.back = el("button", { type: "button", disabled: true, click: () => page(-PAGE_BYTES) }, "Previous");
  recall.on = el("button", { type: "button", disabled: true, click: () => recallPart(recall, { offset: recall.end, limit: PAGE_BYTES }) }, "Next");
  const what = el("input", { type: "text", "aria-label": "Lines, as 10-40, or a text to find", placeholder: "10-40, or a text", spellcheck: "false" });
  const show = (event) => {
    event.preventDefault();
    const wanted = what.value.trim();
    if (wanted === "") recallPart(recall, { offset: 0, limit: PAGE_BYTES });
    else if (/^\d+(-\d*)?$/.test(wanted)) recallPart(recall, { lines: wanted });
    else recallPart(recall, { grep: what.value });
  };
  return el("form", { class: "parts", submit: show },
    recall.back, recall.on, what, el("button", { type: "submit" }, "Show"), recall.told);
}

async function recallPart(recall, part) {
  let answer;
  let text;
  try {
    answer = await ask(`recall/${encodeURIComponent(recall.handle)}?${query(part)}`);
    text = await answer.text();
  } catch (error) {
    if (store.open !== recall.handle || (error instanceof Refused && (await gated(error)))) return;
    say(recall.told, "");
    recall.text.replaceChildren(el("span", { class: "elided" }, error.message));
    return;
  }
  if (store.open !== recall.handle) return;
  const number = (name) => Number(answer.headers.get(name) ?? NaN);
  const size = number("x-abridge-size");
  const [from, to] = (answer.headers.get("x-abridge-range") ?? "").split("-").map(Number);
  const isBytes = part.offset !== undefined;
  if (isBytes) [recall.at, recall.end] = [from || 0, to || 0];
  recall.back.disabled = !isBytes || recall.at === 0;
  recall.on.disabled = !isBytes || recall.end >= size;
  recall.text.replaceChildren();
  if (text === "") recall.text.append(el("span", { class: "elided" }, "nothing there"));
  else pour(recall.text, text, 4 * PAGE_BYTES, false);
  say(recall.told, whatIsShown({ part, size, from, to, lines: number("x-abridge-lines"), matches: number("x-abridge-matches") }));
}

/** The query of a part, spelled as recall reads it: a space is %20. */
const query = (part) => Object.entries(part).map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join("&");

function whatIsShown({ part, size, from, to, lines, matches }) {
  if (part.grep !== undefined) return `${many(matches, "line")} with it, of ${bytes(size)}`;
  if (part.lines !== undefined) return `lines ${part.lines} of ${whole(lines)}, ${bytes(size)} in all`;
  if (from === 0 && to === size) return `all of it, ${bytes(size)}`;
  return `bytes ${whole(from)} to ${whole(to)} of ${whole(size)}`;
}

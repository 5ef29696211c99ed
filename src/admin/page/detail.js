// One request: its figures, what was changed, and its messages as they came and as they went on.

/** What became of a message: a sign and a word, so that no colour is needed to tell. */
const STATES = {
  same: ["=", "unchanged"],
  patched: ["±", "patched"],
  inserted: ["+", "put in"],
  moved: ["↕", "moved"],
  dropped: ["−", "left out"],
  cut: ["…", "cut"],
  cleared: ["∅", "cleared"],
  filtered: ["−", "filtered"],
  summarised: ["Σ", "summarised"],
};

/** Why an edit did not do what it would have done. */
const WHY = {
  no_store: "what it takes out could not be stored",
  not_smaller: "what would stand there is not smaller",
  too_little: "it would free too little",
  no_summary: "there is no summary yet",
  rewritten: "nearly the same was summarised before, and the client has changed messages since",
};

const OUTCOMES = {
  edited: "edited",
  unedited: "nothing to edit",
  would_be_edited: "would be edited (dry run)",
  not_understood: "not understood, went on as it came",
  passed: "passed",
};

/** So much of a text is shown before somebody asks for more, and so many messages. */
const MOST_CHARS = 1500;
const MOST_TAKEN = 600;
const MORE_CHARS = 50_000;
const MOST_SAME = 400;
const MOST_MESSAGES = 100;
const MOST_CHANGES = 30;

/** So often messages are asked for that are being written. */
const MOST_TRIES = 4;

let view = "difference";

// === the pane ===

async function openRequest(id) {
  const pane = $("detail");
  const entry = requests.entries.find((one) => one.id === id);
  requests.open = id;
  markOpen("rows", "id", id);
  pane.hidden = false;
  $("request-split").classList.add("open");
  pane.replaceChildren(paneHead("detail-title", entry?.model ?? "Request", id, "#requests"), el("section", {}, el("p", { class: "soft" }, "…")));
  drawChart();
  showPane("detail-title");
  await loadRequest(id, MOST_TRIES);
}

async function loadRequest(id, tries) {
  const pane = $("detail");
  const entry = requests.entries.find((one) => one.id === id);
  let answer;
  try {
    answer = await json(`requests/${encodeURIComponent(id)}`);
  } catch (error) {
    // What is there already is better than nothing.
    if ((await gated(error)) || tries < MOST_TRIES) return;
    answer = { request: entry ?? null, reason: error.message, ...error.body };
  }
  if (requests.open !== id) return;
  drawRequest(pane, { ...answer, request: answer.request ?? entry ?? null }, id);
  // Its messages are written when its answer has ended, which may be just now.
  const isWritten = answer.content || !answer.request?.inspectable;
  if (!isWritten && tries > 0) setTimeout(() => requests.open === id && loadRequest(id, tries - 1), 700);
}

function closeRequest() {
  const id = requests.open;
  requests.open = null;
  $("detail").hidden = true;
  $("detail").replaceChildren();
  $("request-split").classList.remove("open");
  markOpen("rows", "id", null);
  drawChart();
  return id;
}

/** Marks the row of what is open. */
function markOpen(list, key, value) {
  for (const row of rowsOf($(list))) {
    if (row.dataset[key] === value) {
      row.setAttribute("aria-current", "true");
      rove($(list), row);
    } else row.removeAttribute("aria-current");
  }
}

/** A pane that takes the place of the list is read from its beginning. */
function showPane(title) {
  if (listHere().offsetParent === null) scrollTo(0, 0);
  $(title).focus({ preventScroll: true });
}

function paneHead(titleId, title, name, back) {
  return el("header", {},
    el("h2", { id: titleId, tabindex: -1 }, el("span", { class: "isolate" }, title), " ", el("span", { class: "mono soft isolate" }, name)),
    el("button", { type: "button", class: "quiet close", title: "Close (Esc)", click: () => go(back.slice(1)) }, "Close"));
}

function drawRequest(pane, answer, id) {
  const { request, changes = [], left_out: leftOut = [], content } = answer;
  const head = pane.querySelector("header");
  const parts = [];
  if (request) {
    say(head.querySelector("h2 .isolate"), request.model ?? "no model");
    parts.push(el("section", { class: "chips" }, chips(request)), facts(request));
  }
  const lists = [];
  if (changes.length > 0) lists.push(section("What was changed", changeList(changes), restOf(changes, answer.n_changes)));
  if (leftOut.length > 0) lists.push(section("What was left as it is", leftOutList(leftOut)));
  const messages = el("section", { class: "content" }, ...(content ? messagesOf(content.messages ?? [], content) : noContent(answer, id)));
  // The messages show what the lists only name.
  parts.push(...(content ? [messages, ...lists] : [...lists, messages]));
  // The head stays where it is, for it may have the focus.
  while (head.nextSibling) head.nextSibling.remove();
  pane.append(...parts);
}

const section = (title, ...inside) => el("section", {}, el("h3", {}, title), ...inside);

const regretsOf = ({ repeated, recalled, in_all: all, keep_doubled: doubled }) =>
  `${whole(all)} times, now ${whole(repeated)} repeated and ${whole(recalled)} recalled${doubled ? "; keep is doubled" : ""}`;

function facts(entry) {
  const pairs = [
    ["Time", moment(entry.time)],
    ["Outcome", OUTCOMES[entry.outcome] ?? entry.outcome],
    ["Tokens", inTokens(entry) ? `${whole(entry.tokens_before)} → ${whole(after(entry))}  ${change(entry.tokens_before, after(entry))}` : "not counted"],
    ["Body", `${bytes(entry.bytes_before)} → ${bytes(entry.bytes_after)}`],
    ["Messages", whole(entry.messages)],
    ["Stored", entry.offloaded_bytes > 0 ? bytes(entry.offloaded_bytes) : "nothing"],
    ["Added by abridge", known(entry.added_ms) ? millis(entry.added_ms) : "–"],
    ["Summary", known(entry.summary_ms) ? `waited ${millis(entry.summary_ms)}` : null],
    ["First byte", millis(entry.first_byte_ms)],
    ["Whole answer", millis(entry.total_ms)],
    ["Status", `${entry.status ?? "none"}${entry.end && entry.end !== "complete" ? `, ${entry.end.replaceAll("_", " ")}` : ""}`],
    ["Stop reason", entry.stop_reason],
    ["Tokens counted as", known(entry.token_factor) && entry.token_factor !== 1 ? `${entry.token_factor} billed for each` : null],
    ["Billed prompt", known(entry.input_tokens) ? `${whole(entry.input_tokens)} tokens` : "not told"],
    ["Cached, as billed", known(entry.cached_tokens) ? `${whole(entry.cached_tokens)} (${percent(entry.cached_tokens, entry.input_tokens)})` : "not told"],
    ["Same beginning as before", known(entry.prefix_kept) ? percent(entry.prefix_kept, 1) : null],
    ["Cost", known(entry.edited_cost) ? costOf([entry]).replace(" so far", "") : null],
    ["Billed answer", known(entry.output_tokens) ? `${whole(entry.output_tokens)} tokens` : null],
    ["Asked for what was cleared", entry.regrets ? regretsOf(entry.regrets) : null],
    ["Beyond the window", known(entry.beyond_window) ? `of ${whole(entry.beyond_window)} tokens` : null],
    ["Path", entry.path],
  ];
  return el("dl", { class: "facts" }, pairs.filter(([, value]) => value).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", { class: "isolate" }, value))));
}

// === changes ===

function changeList(changes) {
  const list = el("ol", { class: "changes" });
  inParts(changes, MOST_CHANGES, (one) => el("li", {},
    el("span", {}, chip(one.label ?? one.edit, DID[one.label ?? one.edit] ?? one.label ?? one.edit)),
    el("span", { class: "what" }, messageName(one), " ", el("span", { class: "isolate" }, one.tool ?? ""), one.call_id ? el("span", { class: "soft mono isolate" }, ` ${one.call_id}`) : null),
    el("span", { class: "num" }, `${bytes(one.bytes_before)} → ${bytes(one.bytes_after)}`),
    el("span", { class: "to" }, handles(one))), list, "change");
  return list;
}

const restOf = (changes, all) => (all > changes.length ? el("p", { class: "soft small" }, `${whole(all - changes.length)} more are only counted.`) : null);

/** Which message a change is about, and what it does there where the edit's name does not say it. */
function messageName({ action, message, to }) {
  const at = whole(message);
  switch (action) {
    case "insert": return `put in behind message ${at}`;
    case "insert_text": return `a text put in after message ${at}`;
    case "move": return `message ${at} moved behind ${whole(to)}`;
    case "drop": return `message ${at} left out`;
    case "drop_call": return `message ${at}, a call left out`;
    case "clear_input": return `message ${at}, arguments of a call`;
    case "summarize": return `messages ${at} to ${whole(to)}`;
    default: return `message ${at}`;
  }
}

const handles = (one) =>
  [one.handle, ...(one.more_handles ?? [])].filter(Boolean)
    .map((handle, n) => el("a", { href: `#payload=${encodeURIComponent(handle)}` }, n === 0 ? "original" : ` ${n + 1}`));

function leftOutList(leftOut) {
  const list = el("ol", { class: "changes" });
  inParts(leftOut, MOST_CHANGES, (one) => el("li", {},
    el("span", {}, chip("", one.label ?? one.edit)),
    el("span", { class: "what" }, known(one.message) ? `message ${whole(one.message)} ` : "", el("span", { class: "isolate" }, one.tool ?? one.tool_name ?? ""), ` ${WHY[one.why] ?? String(one.why ?? "")}`)), list, "entry");
  return list;
}

// === no content ===

const sentence = (text) => (text ? `${text[0].toUpperCase()}${text.slice(1)}${text.endsWith(".") ? "" : "."}` : null);

function noContent({ request, reason }, id) {
  const isOn = status?.inspect_keep > 0;
  const inside = [el("h3", {}, "Messages")];
  const note = el("div", { class: "note" });
  if (!request) note.append(el("p", {}, sentence(reason) ?? "abridge no longer knows this request."));
  else if (isOn || edits(request).length === 0) {
    note.append(el("p", {}, sentence(reason) ?? `abridge keeps the messages of the last ${many(status.inspect_keep, "edited request")}; this is none of them.`));
  } else {
    note.append(
      el("p", {}, "What the messages say is not kept: it belongs to the people who wrote it. To see it here, before and after, let abridge keep the last edited requests in its store:"),
      el("pre", { class: "line" }, "[inspect]\nkeep = 20"),
      el("p", {}, "That goes into ", el("code", {}, "proxy.toml"), ", or ", el("code", {}, "ABRIDGE__INSPECT__KEEP=20"), " into the environment. It holds for requests that come afterwards; ", el("code", {}, `abridge diff ${id}`), " shows the same in a terminal."));
  }
  return [...inside, note];
}

// === messages ===

function messagesOf(messages, content) {
  const changed = messages.filter((one) => one.state !== "same").length;
  const box = el("div", { class: "messages", id: "messages" });
  const redraw = () => {
    box.replaceChildren();
    inParts(inRuns(messages), MOST_MESSAGES, (item) => (Array.isArray(item) ? runOf(item) : messageBox(item)), box, "part");
  };
  const buttons = [["difference", "Difference"], ["before", "As it came"], ["after", "As it was sent"]].map(([name, label]) =>
    el("button", { type: "button", "aria-pressed": String(view === name), "data-view": name, click: () => choose(name) }, label));
  const choose = (name) => {
    view = name;
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.view === name));
    redraw();
  };
  redraw();
  return [
    el("h3", {}, "Messages ", el("span", { class: "soft" }, `${whole(changed)} of ${whole(messages.length)} changed`)),
    content.reason ? el("p", { class: "soft" }, content.reason) : null,
    el("div", { class: "segments", role: "group", "aria-label": "What to show of each message" }, buttons),
    box,
  ].filter(Boolean);
}

/** What many messages in a row can have in common, so that they become one line. */
const RUNS = { same: "unchanged", summarised: "summarised", filtered: "filtered" };

/** Three or more messages in a row of which the same is to be said are one item. */
function inRuns(messages) {
  const items = [];
  let run = [];
  const end = () => {
    items.push(...(run.length >= 3 ? [run] : run));
    run = [];
  };
  for (const message of messages) {
    const isAlike = message.state in RUNS && message.before !== null;
    if (!isAlike || (run.length > 0 && run[0].state !== message.state)) end();
    if (isAlike) run.push(message);
    else items.push(message);
  }
  end();
  return items;
}

function runOf(run) {
  const size = run.reduce((sum, one) => sum + (one.before_bytes ?? (one.before ?? "").length), 0);
  const [first, last] = [run[0].index, run.at(-1).index];
  const open = (event) => {
    const box = el("div", { class: "messages" });
    inParts(run, MOST_MESSAGES, messageBox, box, "message");
    event.currentTarget.replaceWith(box);
    box.querySelector("pre")?.focus({ preventScroll: true });
  };
  const [sign] = STATES[run[0].state];
  return el("button", { type: "button", class: `run ${run[0].state}`, click: open },
    `${sign} Messages ${whole(first)} to ${whole(last)} ${RUNS[run[0].state]} · ${whole(run.length)} messages, ${bytes(size)} · show`);
}

/** A message with both of its texts: what went on as it came is told once. */
function bothTexts(message) {
  const isThere = known(message.at) || message.state === "same" || message.state === "moved";
  const after = message.after ?? (isThere ? message.before : null);
  const size = (text, length) => (text === null ? null : (length ?? new Blob([text]).size));
  return {
    state: message.state,
    before: message.before,
    after,
    sizes: [size(message.before, message.before_bytes), size(after, message.after === null ? message.before_bytes : message.after_bytes)],
  };
}

function messageBox(message) {
  const both = bothTexts(message);
  const isNew = message.before === null;
  const [sign, word] = isNew && message.state === "summarised" ? ["Σ", "the summary"] : (STATES[message.state] ?? ["?", String(message.state)]);
  const [from, to] = both.sizes;
  const sizes = from === to || to === null ? bytes(from) : from === null ? bytes(to) : `${bytes(from)} → ${bytes(to)}`;
  return el("article", { class: `message ${STATES[message.state] ? message.state : ""}` },
    el("div", { class: "title" },
      el("span", { class: "soft", title: isNew ? `behind message ${whole(message.index)}` : null }, isNew ? "new" : whole(message.index)),
      el("span", {}, message.role ?? ""),
      message.name ? el("span", { class: "isolate mono" }, message.name) : null,
      el("span", { class: `chip ${message.state}` }, `${sign} ${word}`),
      el("span", { class: "end" }, sizes)),
    textsOf(both),
    keptOnly(both));
}

/** Says so where a text is only the beginning of what it was. */
function keptOnly({ before: from, after: to, sizes }) {
  const isShort = [from, to].some((text, n) => text !== null && new Blob([text]).size < sizes[n]);
  return isShort ? el("p", { class: "soft small cut-note" }, "Only the beginning of this text was kept.") : null;
}

function textsOf({ state, before: from, after: to }) {
  if (state === "same") return [textBox([["", from ?? ""]], view === "difference" ? MOST_SAME : MOST_CHARS)];
  if (view === "before") return [from === null ? nothing("was not there") : textBox([["", from]])];
  if (view === "after") return [to === null ? nothing("is not there any more") : textBox([["", to]])];
  if (from === null) return [textBox([["ins", to ?? ""]])];
  if (to === null) return [textBox([["del", from]])];
  if (from === to) return [textBox([["", from]])];
  return [textBox(difference(from, to))];
}

const nothing = (text) => el("pre", { class: "content" }, el("span", { class: "elided" }, text));

/** What two texts begin and end with alike, and what is between that in each. */
function difference(from, to) {
  const least = Math.min(from.length, to.length);
  let head = 0;
  while (head < least && from[head] === to[head]) head += 1;
  if (isSplit(from, head)) head -= 1;
  let tail = 0;
  while (tail < least - head && from[from.length - 1 - tail] === to[to.length - 1 - tail]) tail += 1;
  if (tail > 0 && isSplit(from, from.length - tail)) tail -= 1;
  // A letter or two that happen to be alike say nothing.
  if (head + tail < 12 && head + tail < least / 2) [head, tail] = [0, 0];
  return [
    ["", from.slice(0, head), "end"],
    ["del", from.slice(head, from.length - tail)],
    ["ins", to.slice(head, to.length - tail)],
    ["", from.slice(from.length - tail)],
  ].filter(([, text]) => text !== "");
}

/** Whether a place is in the middle of a character that takes two units. */
function isSplit(text, at) {
  const unit = text.charCodeAt(at);
  return at > 0 && unit >= 0xdc00 && unit <= 0xdfff;
}

function textBox(pieces, mostAlone = MOST_CHARS) {
  const isWhole = pieces.length === 1;
  const box = el("pre", { class: "content", tabindex: -1 });
  for (const [kind, text, keeps] of pieces) {
    const most = isWhole ? mostAlone : kind === "ins" ? MOST_CHARS : kind === "del" ? MOST_TAKEN : MOST_SAME;
    const isBlock = kind !== "" && (text.length > 120 || text.includes("\n"));
    const into = kind === "" ? el("span") : el(kind, { class: isBlock ? "block" : null }, el("span", { class: "tag" }, kind === "del" ? "− taken out" : "+ put in"));
    if (kind === "" && text === "") into.append(el("span", { class: "elided" }, "no text"));
    pour(into, text, most, keeps === "end");
    box.append(into);
  }
  return box;
}

/** Puts a text in, the beginning of it or the end if it is long, with a button for more. */
function pour(into, text, most, keepsEnd) {
  if (text.length <= most * 1.2) {
    into.append(text);
    return;
  }
  if (keepsEnd) {
    const at = text.length - most;
    const cut = isSplit(text, at) ? at - 1 : at;
    const button = el("button", { type: "button", class: "text", click: () => more.replaceWith(text.slice(0, cut)) }, "show");
    const more = el("span", { class: "elided" }, `${whole(cut)} characters, unchanged · `, button);
    into.append(more, text.slice(cut));
    return;
  }
  let shown = isSplit(text, most) ? most - 1 : most;
  const shownText = document.createTextNode(text.slice(0, shown));
  const left = el("span", {});
  const button = el("button", { type: "button", class: "text", click: () => {
    const to = Math.min(shown + MORE_CHARS, text.length);
    shownText.appendData(text.slice(shown, to));
    shown = to;
    tell();
  } }, "show more");
  const more = el("span", { class: "elided" }, left, button);
  const tell = () => {
    if (shown >= text.length) more.remove();
    else say(left, `${whole(text.length - shown)} characters more · `);
  };
  tell();
  into.append(shownText, more);
}

// Costs by day from the ledger, as billed and without edits, and the arms of experiments.

/** Of so many days, and how often the ledger is read while it is looked at, in milliseconds. */
const COST_DAYS = 30;
const COSTS_EVERY = 10_000;

const costs = { asked: 0, shown: null };

async function loadCosts() {
  if (performance.now() - costs.asked < COSTS_EVERY && costs.shown) return;
  costs.asked = performance.now();
  try {
    showCosts(await json(`ledger?days=${COST_DAYS}&by=day`));
  } catch (error) {
    if (await gated(error)) return;
    costs.shown = null;
    say($("verdict"), `The ledger could not be read: ${error.message}`);
  }
}

function showCosts(report) {
  const text = JSON.stringify(report);
  if (text === costs.shown) return;
  costs.shown = text;
  const { lines, savings, experiments } = report;
  say($("verdict"), `Last ${COST_DAYS} days: ${savings ?? (lines.length > 0 ? "no answer has reported its tokens" : "no request was billed")}`);
  $("days-box").hidden = lines.length === 0;
  const most = Math.max(...lines.map(({ edited_cost: edited, unedited_cost: unedited }) => Math.max(edited, unedited)), 1);
  $("days").replaceChildren(...lines.toReversed().map((line) => dayRow(line, most)));
  $("experiments").replaceChildren(...experiments.map(experimentPanel));
}

/** Of a dry run, what was billed is the cost without edits, and the saving would be one. */
function dayRow({ name, dry_run: isDry, requests: n, edited, edited_cost: cost, unedited_cost: without, asked_again: again, billed }, most) {
  const bar = (kind, n_) => {
    const i = el("i", { class: kind });
    i.style.setProperty("--n", String(n_));
    return i;
  };
  const meter = el("span", { class: "meter", "aria-hidden": "true" }, bar("before", without), bar("after", cost));
  meter.style.setProperty("--most", String(most));
  const saved = without === 0 ? "–" : `${cost > without ? "−" : ""}${percent(Math.abs(without - cost), without)}`;
  return el("tr", {},
    el("th", { scope: "row" }, name, isDry ? [" ", chip("dry", "dry run")] : []),
    el("td", {}, whole(n)), el("td", {}, whole(edited)), el("td", {}, short(billed.input)),
    el("td", { class: "billed" }, dollars(isDry ? without : cost)),
    el("td", { class: "other" }, isDry ? `${dollars(cost)} with edits` : dollars(without)),
    el("td", {}, meter),
    el("td", {}, isDry && saved !== "–" ? `would be ${saved}` : saved), el("td", {}, whole(again)));
}

// === experiments ===

function experimentPanel({ policy, unit, usual, tried, difference, conclusion }) {
  const amount = unit === "dollars" ? (value) => dollars(value * 1e9) : whole;
  const part = (value) => `${value < 0 ? "−" : "+"}${Math.abs(Math.round(100 * value))}\u00a0%`;
  const told = (mean, figure) => (mean ? [figure(mean.estimate), mean.interval && el("span", { class: "soft interval" }, ` ${figure(mean.interval[0])} to ${figure(mean.interval[1])}`)].filter(Boolean) : "–");
  const row = (name, { conversations, requests: n, amount: all, ...means }, figure) =>
    el("tr", {}, el("th", { scope: "row", class: "isolate" }, name),
      el("td", {}, conversations === undefined ? "" : (conversations === null ? "too many" : whole(conversations))),
      el("td", {}, n === undefined ? "" : whole(n)), el("td", {}, all === undefined ? "" : amount(all)),
      el("td", {}, told(means.per_conversation, figure)), el("td", {}, told(means.per_request, figure)));
  const what = unit === "dollars" ? "Cost" : "Tokens";
  return el("section", { class: "panel experiment" },
    el("h2", {}, "Experiment with the policy ", el("span", { class: "isolate" }, policy)),
    el("div", { class: "wide-table", tabindex: 0, role: "group", "aria-label": "The arms" }, el("table", {},
      el("thead", {}, el("tr", {}, ["Arm", "Conversations", "Requests", what, "Per conversation", "Per request"].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, row("as usual", usual, amount), row(policy, tried, amount), row("difference", difference, part)))),
    el("p", { class: "soft small" }, "Ranges have the true value in 95 of 100 experiments."),
    conclusion.map((line) => el("p", { class: "conclusion" }, sentence(line))));
}

// The lanes: one for each conversation, with the tokens of its requests over time and the context window as a line.

const LANE = { height: 62, left: 44, right: 20, top: 7, axis: 17 };

/** So many lanes are drawn at first, and more when somebody asks for them. */
const FIRST_LANES = 4;
let mostLanes = FIRST_LANES;

/** A window of more than so many times the largest request is beyond the scale, or nothing else could be seen. */
const FAR = 4;

/** Steps between the times on the axis, in seconds. */
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800];

/** A step for the axis: 1, 2 or 5 times a power of ten, so that there are one or two lines. */
function tick(most) {
  const power = 10 ** Math.floor(Math.log10(Math.max(most, 1)));
  return [0.5, 1, 2, 5].map((n) => n * power).find((n) => most / n < 3) ?? power;
}

const axis = (value) => (value >= 1e6 ? `${value / 1e6}M` : value >= 1000 ? `${value / 1000}k` : String(value));

const received = (entry) => drawn(entry, before(entry));
const sent = (entry) => drawn(entry, after(entry));

function drawChart() {
  const lanes = [...requests.groups.values()].map((group) => ({ group, entries: shownOf(group) })).filter(({ entries }) => entries.length > 0);
  lanes.sort((one, other) => newest(other) - newest(one));
  $("chart-box").hidden = lanes.length === 0;
  if (lanes.length === 0) return;
  const drawnLanes = lanes.slice(0, mostLanes);
  const entries = drawnLanes.flatMap((lane) => lane.entries);
  const times = timeScale(entries, Math.max($("chart").clientWidth, 240));
  const rest = lanes.length - drawnLanes.length;
  const more = rest > 0 && el("button", { type: "button", class: "run", click: moreLanes }, `Show ${whole(Math.min(FIRST_LANES, rest))} more of ${many(rest, "conversation")} that ${rest === 1 ? "is" : "are"} left`);
  const focused = document.activeElement?.closest("#chart button");
  $("chart").replaceChildren(...drawnLanes.map((lane) => drawLane(lane, times)), drawTimes(times), ...(more ? [more] : []));
  if (focused && more) more.focus({ preventScroll: true });
  sayChart(entries);
}

function moreLanes() {
  mostLanes += FIRST_LANES;
  drawChart();
}

function sayChart(entries) {
  const sum = (of) => entries.reduce((all, entry) => all + of(entry), 0);
  const isGuessed = entries.some((entry) => !inTokens(entry));
  const all = entries.map((entry) => entry.time);
  $("chart-note").hidden = !isGuessed;
  say($("chart-text"), `A bar chart for each conversation, of the last ${many(entries.length, "request")}, from ${clock(Math.min(...all))} to ${clock(Math.max(...all))}: `
    + `${isGuessed ? "about " : ""}${whole(sum(received))} tokens received, ${whole(sum(sent))} sent; the largest request had ${whole(Math.max(...entries.map(received), ...entries.map(sent)))}. The list below has the figures.`);
}

// === time ===

/** All lanes share one axis, on which equal times are equally long. */
function timeScale(entries, width) {
  const all = entries.map((entry) => entry.time);
  const from = Math.min(...all);
  const to = Math.max(...all, from + 10);
  const room = width - LANE.left - LANE.right;
  const x = (time) => LANE.left + ((time - from) / (to - from)) * room;
  const step = STEPS.find((one) => ((to - from) / one) * 92 <= room) ?? Math.ceil(((to - from) * 92) / room);
  const offset = new Date(from * 1000).getTimezoneOffset() * 60;
  const ticks = [];
  for (let time = Math.ceil((from - offset) / step) * step + offset; time <= to; time += step) ticks.push(time);
  const label = (time, n) => {
    const at = step < 60 ? clock(time) : clock(time).slice(0, 5);
    if (step >= 86_400) return day(time).slice(5);
    return day(time) === day(n === 0 ? from : ticks[n - 1]) ? at : `${day(time).slice(5)} ${at}`;
  };
  return { width, x, ticks, label };
}

function drawTimes({ width, x, ticks, label }) {
  const picture = svg("svg", { class: "times", viewBox: `0 0 ${width} ${LANE.axis}`, "aria-hidden": "true" });
  ticks.forEach((time, n) => {
    const at = x(time);
    if (at < width - 30) picture.append(svg("text", { x: at.toFixed(1), y: 12, "text-anchor": at < 30 ? "start" : "middle" }, label(time, n)));
  });
  return picture;
}

// === one lane ===

function drawLane({ group, entries }, times) {
  const { width, x, ticks } = times;
  const largest = Math.max(...entries.map(received), ...entries.map(sent), 1);
  const window = entries.map((entry) => entry.window).findLast(known);
  const isFar = known(window) && window > FAR * largest;
  const most = known(window) && !isFar ? Math.max(largest, window) : largest;
  const y = (value) => LANE.height - (value / most) * (LANE.height - LANE.top - (isFar ? 6 : 0));
  const says = `${many(entries.length, "request")} · ${costOf(entries)}${known(window) ? ` · window ${short(window)}` : ""}`;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${LANE.height}`, role: "img", "aria-label": `${nameOf(group)}: ${says}` });
  for (const time of ticks) picture.append(svg("line", { class: "grid", x1: x(time), x2: x(time), y1: 0, y2: LANE.height }));
  const interval = tick(most);
  for (let value = 0; value <= most; value += interval) {
    picture.append(
      svg("line", { class: "grid", x1: LANE.left, x2: width, y1: y(value), y2: y(value) }),
      svg("text", { x: LANE.left - 6, y: Math.min(y(value) + 4, LANE.height), "text-anchor": "end" }, axis(value)));
  }
  entries.forEach((entry, n) => picture.append(chartBar(entry, x(entry.time), (entries[n + 1] ? x(entries[n + 1].time) : width) - x(entry.time), y)));
  if (known(window)) {
    const at = isFar ? 3 : y(window);
    picture.append(svg("line", { class: isFar ? "window far" : "window", x1: LANE.left, x2: width, y1: at, y2: at },
      svg("title", {}, `The context window, ${whole(window)} tokens${isFar ? ": beyond this scale" : ""}`)));
  }
  return el("div", { class: "lane" },
    el("div", { class: "lane-head" }, el("span", { class: "isolate name" }, nameOf(group)), el("span", { class: "soft" }, `${says}${isFar ? " ↑" : ""}`)),
    picture);
}

function chartBar(entry, x, room, y) {
  const thick = Math.min(Math.max(room - 1, 2), 12);
  const rect = (kind, size) => {
    const top = y(drawn(entry, size));
    return svg("rect", { class: kind, x: x.toFixed(2), y: top.toFixed(2), width: thick.toFixed(2), height: Math.max(LANE.height - top, 1).toFixed(2), rx: Math.min(1.5, thick / 3) });
  };
  const figure = inTokens(entry) ? whole : bytes;
  const title = svg("title", {}, `${clock(entry.time)}  ${entry.model ?? ""}\n${figure(before(entry))} → ${figure(after(entry))}${inTokens(entry) ? " tokens" : ""}`);
  const hit = svg("rect", { class: "hit", x: x.toFixed(2), y: 0, width: Math.max(thick, 4).toFixed(2), height: LANE.height });
  const bar = svg("g", entry.id === requests.open ? { class: "open" } : {}, title, rect("before", before(entry)), rect("after", after(entry)), hit);
  bar.addEventListener("click", () => go(`request=${encodeURIComponent(entry.id)}`));
  return bar;
}

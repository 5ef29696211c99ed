// What the page says of conversations: lanes, the list by conversation, costs by day, experiments, and where texts in the store are from.
import assert from "node:assert/strict";

import { ask, chat, check, close, end, focused, open, overflow, tooFaint } from "./harness.mjs";

const { worded, bare, dry, compared, operator } = JSON.parse(process.env.ABRIDGE_PAGE);

const live = (page) => page.waitForSelector('[data-link="live"]');
const call = (id, name) => ({ id, type: "function", function: { name, arguments: "{}" } });
const output = (seed) => Array.from({ length: 900 }, (_, n) => `line ${n} of ${seed}: ${(n * 7919) % 1000}`).join("\n");
const pause = (seconds) => new Promise((done) => { setTimeout(done, 1000 * seconds); });

/** A session of so many results, of which older ones are cleared. */
const session = (words, n, model = "gpt-4o") => ({
  model,
  messages: [
    { role: "user", content: `<system-reminder>Be brief.</system-reminder> ${words}` },
    ...Array.from({ length: n }, (_, at) => [
      { role: "assistant", content: null, tool_calls: [call(`c${at}`, "build")] },
      { role: "tool", tool_call_id: `c${at}`, content: output(`${words} ${at}`) },
    ]).flat(),
  ],
  tools: [{ type: "function", function: { name: "build" } }],
});

async function get(abridge, path) {
  const answer = await fetch(`${abridge}/abridge/${path}`, { headers: { authorization: `Bearer ${operator}` } });
  return answer.json();
}

const dollars = (text) => Number(/\$([\d.,]+)/.exec(text)[1].replaceAll(",", ""));
const seconds = (text) => text.split(":").reduce((sum, part) => 60 * sum + Number(part), 0);

/** Sends the requests of two conversations, with a pause of seconds after the first. */
async function converse(abridge) {
  await chat(abridge, session("Fix the build", 3));
  await pause(4);
  await chat(abridge, session("Another question", 1));
  await pause(1);
  await chat(abridge, session("Fix the build", 4));
}

await check("a conversation has a lane: its words, its window as a line, its cost so far and without edits", async () => {
  await converse(worded);
  const page = await open(`${worded}/abridge/`);
  await live(page);
  await page.waitForFunction(() => document.querySelectorAll("#rows a").length === 3);
  const lanes = page.locator("#chart .lane");
  assert.deepEqual(await lanes.locator(".name").allTextContents(), ["Fix the build", "Another question"], "the newest first");
  const head = await lanes.first().locator(".lane-head").textContent();
  assert.match(head, /2 requests · \$[\d.]+ so far, \$[\d.]+ without edits · window 128k/);
  const { requests } = await get(worded, "requests");
  const own = requests.filter((entry) => entry.title === "Fix the build");
  const sum = (key) => own.reduce((all, entry) => all + entry[key], 0) / 1e9;
  assert.ok(sum("edited_cost") < sum("unedited_cost"));
  const [so_far, without] = head.split("so far");
  for (const [text, amount] of [[so_far, sum("edited_cost")], [without, sum("unedited_cost")]]) assert.ok(Math.abs(dollars(text) - amount) < 0.001, head);
  assert.match(await lanes.last().textContent(), /1 request · \$[\d.]+ so far · window/, "nothing was edited here");
  assert.equal(await lanes.first().locator("line.window").count(), 1);
  assert.match(await lanes.first().locator("line.window title").textContent(), /128,000 tokens/);
  await close(page);
});

await check("the axis of time is as it is labelled", async () => {
  const page = await open(`${worded}/abridge/`);
  await live(page);
  await page.waitForSelector("#chart .times text");
  const { labels, bars } = await page.evaluate(() => {
    const middle = (element) => { const { left, width } = element.getBoundingClientRect(); return left + width / 2; };
    return {
      labels: [...document.querySelectorAll("#chart .times text")].filter((text) => text.getAttribute("text-anchor") === "middle").map((text) => [text.textContent, middle(text)]),
      bars: [...document.querySelectorAll("#chart .lane g")].map((bar) => [bar.querySelector("title").textContent.slice(0, 8), bar.querySelector(".after").getBoundingClientRect().left]),
    };
  });
  assert.ok(labels.length >= 3 && bars.length === 3, `${labels} ${bars}`);
  const [first, last] = [labels[0], labels.at(-1)];
  const second = (last[1] - first[1]) / (seconds(last[0]) - seconds(first[0]));
  const at = (time) => first[1] + (seconds(time) - seconds(first[0])) * second;
  for (const [time, x] of labels) assert.ok(Math.abs(x - at(time)) < 1.5, `${time} is at ${x} and not ${at(time)}`);
  // A request has a fraction of a second, which its label has not.
  for (const [time, x] of bars) assert.ok(x - at(time) > -1.5 && x - at(time) < second + 1.5, `${time} is at ${x} and not ${at(time)}`);
  await close(page);
});

await check("the list groups requests by conversation, and what has the focus keeps it when one moves up", async () => {
  const page = await open(`${worded}/abridge/`);
  await live(page);
  await page.waitForFunction(() => document.querySelectorAll("#rows a").length === 3);
  const groups = () => page.locator("#rows .group").evaluateAll((all) => all.map((group) => [group.querySelector(".name").textContent, group.querySelectorAll("a").length]));
  assert.deepEqual(await groups(), [["Fix the build", 2], ["Another question", 1]]);
  assert.match(await page.textContent("#rows .group h3"), /2 requests · \$/);
  const other = page.locator("#rows .group").last().locator("a");
  const id = await other.getAttribute("data-id");
  await other.focus();
  await chat(worded, session("Another question", 2));
  await page.waitForFunction(() => document.querySelector("#rows .group .name").textContent === "Another question");
  assert.deepEqual(await groups(), [["Another question", 2], ["Fix the build", 2]]);
  assert.equal((await focused(page)).request, id);
  await page.fill("#filter", "fix the");
  assert.deepEqual(await page.locator("#rows .group:visible .name").allTextContents(), ["Fix the build"]);
  assert.equal(await page.locator("#chart .lane").count(), 1);
  await close(page);
});

await check("without [inspect] a conversation is named by its client and its time, and no text is shown", async () => {
  await chat(bare, session("Secret words", 3));
  const page = await open(`${bare}/abridge/`);
  await live(page);
  const name = page.locator("#rows .group .name").first();
  await name.waitFor();
  assert.match(await name.textContent(), /^\S+, \d\d:\d\d:\d\d$/);
  assert.equal(await page.locator("#chart .lane .name").first().textContent(), await name.textContent());
  await page.click("#to-store");
  await page.waitForSelector("#payloads a");
  assert.equal(await page.locator("#payloads .preview").count(), 0);
  assert.ok(!(await page.textContent("body")).includes("Secret words"));
  await close(page);
});

await check("the store says of a text its tool, size, conversation and beginning", async () => {
  const page = await open(`${worded}/abridge/#store`);
  await live(page);
  await page.waitForSelector("#payloads a");
  await page.reload();
  const row = page.locator("#payloads a", { hasText: "of Fix the build 0" });
  await row.waitFor();
  assert.equal(await row.locator(".tool").textContent(), "build");
  assert.equal(await row.locator(".of").textContent(), "Fix the build");
  assert.match(await row.locator(".preview").textContent(), /^line 0 of Fix the build 0: 0 line 1/);
  assert.match(await row.locator(".num").first().textContent(), /kB/);
  await close(page);
});

await check("the messages of a request are above the list of its changes", async () => {
  const page = await open(`${worded}/abridge/`);
  await page.locator("#rows a", { hasText: "cleared" }).first().click();
  await page.waitForSelector("#messages");
  const [messages, changes] = await page.evaluate(() => ["#messages", ".changes"].map((one) => document.querySelector(one).getBoundingClientRect().top));
  assert.ok(messages < changes, `${messages} ${changes}`);
  assert.match(await page.textContent("#detail .facts"), /Cost\$[\d.]+, \$[\d.]+ without edits/);
  await close(page);
});

await check("costs by day are those of the ledger, as billed beside without edits", async () => {
  const page = await open(`${worded}/abridge/`);
  await page.keyboard.press("c");
  await page.waitForSelector("#days tr");
  const { lines: [line], savings } = await get(worded, "ledger?by=day");
  assert.equal(await page.textContent("#verdict"), `Last 30 days: ${savings}`);
  assert.match(savings, /^saved \$[\d.]+ of \$/);
  const row = page.locator("#days tr").first();
  assert.equal(await row.locator("th").textContent(), line.name);
  for (const [cell, amount] of [[".billed", line.edited_cost], [".other", line.unedited_cost]]) {
    assert.ok(Math.abs(dollars(await row.locator(cell).textContent()) - amount / 1e9) < 0.001, cell);
  }
  const [without, billed] = await row.locator(".meter i").evaluateAll((all) => all.map((bar) => bar.getBoundingClientRect().width));
  assert.ok(billed < without && billed > 0, `bars of ${without} and ${billed}`);
  assert.equal(await page.getAttribute("#to-costs", "aria-current"), "page");
  await close(page);
});

await check("of a dry run the costs are those without edits, and the others would be", async () => {
  for (const n of [3, 4]) await chat(dry, session("Only looking", n));
  const page = await open(`${dry}/abridge/`);
  await page.waitForSelector("#rows .group");
  assert.match(await page.textContent("#rows .group h3"), /2 requests · \$[\d.]+ so far, \$[\d.]+ with edits/);
  await page.click("#to-costs");
  await page.waitForSelector("#days tr");
  const { lines: [line] } = await get(dry, "ledger?by=day");
  assert.ok(line.dry_run && line.edited_cost < line.unedited_cost);
  const row = await page.textContent("#days tr");
  assert.match(row, /dry run.*\$[\d.]+ with edits.*would be \d+\s%/);
  assert.ok(Math.abs(dollars(await page.textContent("#days .billed")) - line.unedited_cost / 1e9) < 0.001);
  assert.match(await page.textContent("#verdict"), /would have saved/);
  await close(page);
});

await check("an experiment shows both arms with their intervals and what can be concluded", async () => {
  for (let n = 0; n < 100; n += 1) await chat(compared, session(`Conversation ${n}`, 3));
  const page = await open(`${compared}/abridge/#costs`);
  await page.waitForSelector("#experiments table");
  const { experiments: [{ usual, tried, conclusion }] } = await get(compared, "ledger?by=day");
  const rows = page.locator("#experiments tbody tr");
  assert.deepEqual(await rows.locator("th").allTextContents(), ["as usual", "none", "difference"]);
  for (const [at, arm] of [[0, usual], [1, tried]]) {
    const cells = await rows.nth(at).locator("td").allTextContents();
    assert.deepEqual(cells.slice(0, 2), [String(arm.conversations), String(arm.requests)]);
    assert.match(cells[4], /^\$[\d.]+ \$[\d.]+ to \$[\d.]+$/, "the cost of a request, and its interval");
    assert.ok(Math.abs(dollars(cells[4]) - arm.per_request.estimate) < 0.001);
  }
  assert.match(await rows.nth(2).textContent(), /\+\d+\s% \+\d+\s% to \+\d+\s%/, "without edits it costs more");
  assert.equal(await page.locator("#experiments .conclusion").count(), conclusion.length);
  assert.match(await page.textContent("#experiments"), /Per request, none has \d+ % more/);
  await close(page);
});

for (const theme of ["light", "dark"]) {
  await check(`${theme}: costs and lanes are legible, and nothing is wider than a phone`, async () => {
    for (const [abridge, place, shown] of [[compared, "costs", "#experiments table"], [dry, "costs", "#days tr"], [worded, "requests", "#chart .lane"], [worded, "store", "#payloads .preview"]]) {
      const page = await open(`${abridge}/abridge/#${place}`, { theme });
      await page.waitForSelector(shown);
      assert.deepEqual(await tooFaint(page), [], place);
      for (const width of [390, 320]) {
        await page.setViewportSize({ width, height: 844 });
        assert.equal(await overflow(page), 0, `${place} at ${width}`);
      }
      await close(page);
    }
  });
}

await check("a query of the ledger that is not known is refused", async () => {
  for (const [query, status] of [["by=day", 200], ["by=week", 400], ["by=", 400], ["days=0&by=day", 400]]) {
    const answer = await ask(`${worded}/abridge/ledger?${query}`, { authorization: `Bearer ${operator}` });
    assert.equal(answer.statusCode, status, query);
  }
});

await end();

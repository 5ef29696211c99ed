// Drives the page at /abridge/ in a real browser, in front of real abridges that tests/page.rs has started.
import assert from "node:assert/strict";

import { ask, browser, chat, check, close, end, focused, open, overflow, tooFaint } from "./harness.mjs";

/** One that keeps messages, one that does not, one that asks for a token, and an origin that is not abridge's. */
const { inspected, bare, guarded, token, operator, elsewhere } = JSON.parse(process.env.ABRIDGE_PAGE);

const EVIL = '<img src=x onerror="globalThis.hacked=1"></script><script>globalThis.hacked=2</script>';
const LONG = Array.from({ length: 6000 }, (_, n) => `line ${n}: é\t"${(n * 7919) % 1000}" ${n === 10 ? EVIL : ""}`).join("\n");
const live = (page) => page.waitForSelector('[data-link="live"]');
const call = (id, name) => ({ id, type: "function", function: { name, arguments: "{}" } });

/** A result that is too long, and a call that nobody answered. */
const conversation = (model, text = EVIL) => ({
  model,
  messages: [
    { role: "system", content: "You build things." },
    { role: "user", content: text },
    { role: "assistant", content: null, tool_calls: [call("c1", "build")] },
    { role: "tool", tool_call_id: "c1", content: LONG },
    { role: "assistant", content: null, tool_calls: [call("c2", "search")] },
    { role: "user", content: "never mind the search" },
  ],
  tools: [{ type: "function", function: { name: "build" } }, { type: "function", function: { name: "search" } }],
});

// === nothing yet ===

await check("an abridge that has seen nothing says what to do", async () => {
  const page = await open(`${bare}/abridge/`);
  await live(page);
  assert.match(await page.textContent("#empty"), new RegExp(`export OPENAI_BASE_URL=${bare}/v1`));
  assert.equal(await page.isVisible("#chart-box"), false);
  await page.click("#to-store");
  await page.waitForSelector("#store-empty:not([hidden])");
  assert.match(await page.textContent("#store-empty"), /Nothing is stored yet/);
  await close(page);
});

await check("the path without its slash leads to the page", async () => {
  const page = await open(`${bare}/abridge`);
  assert.equal(page.url(), `${bare}/abridge/`);
  await page.context().close();
});

// === what came by ===

let id;

await check("a request that is sent while the page is open appears, with its figures", async () => {
  const page = await open(`${inspected}/abridge/`);
  await live(page);
  id = await chat(inspected, conversation("gpt-4o"));
  const row = page.locator(`#rows a[data-id="${id}"]`);
  await row.waitFor();
  const text = await row.textContent();
  assert.match(text, /gpt-4o/);
  assert.match(text, /65,\d{3} → 26,\d{3}\stokens/);
  assert.match(text, /cut 1/);
  assert.match(text, /patched 1/);
  assert.match(text, /[\d.]+\sm?s/);
  assert.match(text, /75\s%/, "the share of cached tokens as the upstream billed them");
  const bars = await row.locator(".meter i").evaluateAll((all) => all.map((bar) => bar.getBoundingClientRect().width));
  assert.ok(bars[0] > bars[1] && bars[1] > 0, `bars of ${bars}`);
  for (const told of ["1 edited", "1 payload", "saved"]) await page.locator("#totals", { hasText: told }).waitFor();
  const picture = page.locator('#chart svg[role="img"]');
  assert.equal(await picture.locator("rect.after").count(), 1);
  assert.match(await page.textContent("#chart-text"), /last 1 request, .*tokens received, .* sent/);
  await close(page);
});

await check("a request opens: what was cut and patched, before and after", async () => {
  const page = await open(`${inspected}/abridge/`);
  await page.click(`#rows a[data-id="${id}"]`);
  await page.waitForSelector("#messages");
  assert.equal(await page.textContent(".message.cut .chip"), "… cut");
  assert.match(await page.textContent(".message.cut del"), /− taken out/);
  assert.match(await page.textContent(".message.cut ins"), /left out here/);
  assert.equal(await page.textContent(".message.inserted .chip"), "+ put in");
  assert.match(await page.textContent(".changes"), /patched.*search.*cut.*build/);
  await page.click('[data-view="after"]');
  assert.equal(await page.locator(".message.cut del").count(), 0);
  await page.click('[data-view="before"]');
  await page.locator(".message.cut button.text").click();
  assert.ok((await page.textContent(".message.cut pre")).includes(LONG.slice(0, 20_000)), "all of the text can be shown");
  await close(page);
});

await check("what models and clients write stays text", async () => {
  await chat(inspected, conversation(EVIL));
  const page = await open(`${inspected}/abridge/`);
  const row = page.locator("#rows a").first();
  await row.locator(".model", { hasText: "<img" }).waitFor();
  await row.click();
  await page.waitForSelector("#messages");
  await page.locator("button.run").first().click({ timeout: 1000 }).catch(() => {});
  assert.ok((await page.textContent("#detail")).includes(EVIL));
  await page.locator('.changes a[href^="#payload="]').first().click();
  await page.waitForFunction(() => document.querySelector("#payload-text")?.textContent.includes("line 10:"));
  assert.ok((await page.textContent("#payload-text")).includes(EVIL));
  assert.equal(await page.locator("img, script:not([nonce])").count(), 0);
  assert.equal(await page.evaluate(() => globalThis.hacked), undefined);
  await close(page);
});

await check("the policy is in force: nothing else runs, nothing becomes markup, nothing frames the page", async () => {
  const page = await open(`${inspected}/abridge/`, { expected: /./ });
  const policy = page.answer.headers()["content-security-policy"];
  assert.match(policy, /default-src 'none'; script-src 'nonce-[0-9a-f]{32}'; style-src 'nonce-/);
  assert.doesNotMatch(policy, /unsafe/);
  assert.equal(page.answer.headers()["cache-control"], "no-store");
  const tried = await page.evaluate(async () => {
    const script = document.createElement("script");
    let isMarkup = true;
    try {
      script.text = "globalThis.hacked = 3";
    } catch {
      script.append("globalThis.hacked = 3");
    }
    document.head.append(script);
    try {
      document.createElement("p").innerHTML = "<b>bold</b>";
    } catch {
      isMarkup = false;
    }
    const isLoaded = await fetch("http://127.0.0.2:9/").then(() => true, () => false);
    return { hacked: globalThis.hacked, isMarkup, isLoaded };
  });
  assert.deepEqual(tried, { hacked: undefined, isMarkup: false, isLoaded: false });
  await page.context().close();
});

// === the store ===

await check("the store lists, searches and recalls", async () => {
  const page = await open(`${inspected}/abridge/#store`);
  await page.waitForSelector("#payloads a");
  const handle = await page.locator("#payloads a").first().getAttribute("data-handle");
  await page.fill("#search", handle.slice(0, 12));
  await page.waitForFunction((one) => [...document.querySelectorAll("#payloads a")].map((row) => row.dataset.handle).join() === one, handle);
  await page.locator("#payloads a").first().click();
  await page.waitForFunction(() => /bytes 0 to 65,\d+ of/.test(document.querySelector("#payload-told")?.textContent));
  assert.ok(LONG.startsWith(await page.textContent("#payload-text")), "the first part, byte by byte");
  await page.click("text=Next");
  await page.waitForFunction(() => /bytes 65,\d+ to/.test(document.querySelector("#payload-told").textContent));
  assert.ok(LONG.includes(await page.textContent("#payload-text")));
  await page.fill(".parts input", "2-3");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => /lines 2-3/.test(document.querySelector("#payload-told").textContent));
  assert.equal(await page.textContent("#payload-text"), `${LONG.split("\n").slice(1, 3).join("\n")}\n`);
  await page.fill(".parts input", "line 4711:");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => /1 line with it/.test(document.querySelector("#payload-told").textContent));
  assert.match(await page.textContent("#payload-text"), /^4712:line 4711:/);
  await page.fill("#search", "zzzzzzzzzzzz");
  await page.waitForSelector("#store-empty:not([hidden])");
  assert.match(await page.textContent("#store-empty"), /Nothing found/);
  await close(page);
});

// === without a mouse ===

await check("all of it can be done with keys, and what has the focus can be seen", async () => {
  const page = await open(`${inspected}/abridge/`);
  await page.waitForSelector("#rows a");
  const press = async (...keys) => {
    for (const key of keys) await page.keyboard.press(key);
    return focused(page);
  };
  const rows = await page.locator("#rows a").evaluateAll((all) => all.map((row) => row.dataset.id));
  assert.equal((await press("Tab")).id, "skip");
  assert.equal((await press("Enter")).request, rows[0]);
  assert.equal((await press("j")).request, rows[1]);
  assert.equal((await press("k")).request, rows[0]);
  const last = await press("ArrowDown");
  assert.deepEqual([last.request, last.seen], [rows[1], true]);
  assert.equal((await press("Enter")).id, "detail-title");
  await page.waitForSelector("#messages");
  const close_ = await press("Tab");
  assert.deepEqual([close_.tag, close_.seen], ["BUTTON", true]);
  assert.equal((await press("Escape")).request, rows[1], "back where it was");
  assert.equal(await page.isVisible("#detail"), false);
  const field = await press("/");
  assert.deepEqual([field.id, field.seen], ["filter", true]);
  await page.keyboard.type("gpt-4o");
  assert.equal(await page.locator("#rows li:not([hidden])").count(), 1);
  await press("Escape");
  assert.equal(await page.locator("#rows li:not([hidden])").count(), rows.length);
  assert.ok((await press("Escape")).request, "out of the field, into the list");
  await press("s");
  await page.waitForSelector("#payloads a");
  assert.ok((await press("j")).payload);
  assert.equal((await press("Enter")).id, "payload-title");
  await press("Escape");
  assert.equal(await page.isVisible("#payload"), false);
  await press("?");
  assert.equal(await page.locator("#keys").evaluate((dialog) => dialog.open), true);
  await page.uncheck("#letters");
  await press("Escape", "r", "?");
  assert.equal(await page.locator("#keys").evaluate((dialog) => dialog.open), false, "keys of one letter can be switched off");
  assert.match(page.url(), /#store$/);
  await page.click("#help");
  await page.check("#letters");
  await press("Escape");
  assert.equal(await page.locator("#keys").evaluate((dialog) => dialog.open), false);
  await press("r", "t");
  assert.equal(await page.textContent("#theme"), "Theme: light");
  await close(page);
});

// === how it looks ===

for (const theme of ["light", "dark"]) {
  await check(`${theme}: legible everywhere, and nothing is wider than a phone`, async () => {
    const page = await open(`${inspected}/abridge/`, { theme });
    const background = async () => (await page.evaluate(() => getComputedStyle(document.body).backgroundColor)).match(/\d+/g).map(Number)[0];
    const isDark = (await background()) < 128;
    assert.equal(isDark, theme === "dark", "as the system asks");
    for (const [place, shown] of [["requests", "#rows a"], ["costs", "#days tr"], [`request=${id}`, "#messages"], ["store", "#payloads a"]]) {
      await page.evaluate((to) => { location.hash = to; }, place);
      await page.waitForSelector(shown);
      assert.deepEqual(await tooFaint(page), [], place);
      for (const width of [390, 320]) {
        await page.setViewportSize({ width, height: 844 });
        assert.equal(await overflow(page), 0, `${place} at ${width}`);
      }
      await page.setViewportSize({ width: 1280, height: 860 });
    }
    await page.click("#theme");
    await page.click("#theme");
    assert.equal(await page.textContent("#theme"), "Theme: dark");
    assert.ok((await background()) < 128);
    await page.reload();
    assert.ok((await background()) < 128, "the choice stays");
    await close(page);
  });
}

// === what is not there ===

await check("without [inspect] the page says which key switches it on", async () => {
  const without = await chat(bare, conversation("gpt-4o"));
  const page = await open(`${bare}/abridge/#request=${without}`);
  await page.waitForSelector("#detail .note");
  assert.match(await page.textContent("#detail .note"), /\[inspect\]\s+keep = \d+/);
  assert.match(await page.textContent("#detail .changes"), /cut.*build/);
  assert.equal(await page.locator("#messages").count(), 0);
  await close(page);
});

await check("a request of ten thousand messages opens, in parts", async () => {
  const messages = Array.from({ length: 4998 }, (_, n) => [{ role: "user", content: `question ${n}` }, { role: "assistant", content: `answer ${n}` }]).flat();
  const many = conversation("gpt-4o");
  many.messages.splice(1, 0, ...messages);
  const long = await chat(inspected, many);
  const page = await open(`${inspected}/abridge/#request=${long}`);
  await page.waitForSelector("#messages");
  const count = () => page.locator("#messages .message").count();
  assert.ok((await count()) < 50);
  await page.locator("#messages button.run").first().click();
  await page.waitForFunction(() => document.querySelectorAll("#messages .message").length > 50);
  assert.ok((await count()) < 200);
  await page.locator("#messages button.run", { hasText: "more" }).first().click();
  await page.waitForFunction(() => document.querySelectorAll("#messages .message").length > 150);
  await close(page);
});

await check("when abridge is gone the page says so, and comes back by itself", async () => {
  const page = await open(`${inspected}/abridge/`, { expected: /ERR_INTERNET_DISCONNECTED/ });
  await live(page);
  await page.context().setOffline(true);
  await page.waitForSelector('[data-link="gone"]');
  assert.match(await page.textContent("#link-text"), /reconnecting/);
  assert.ok((await page.locator("#rows a").count()) > 0, "what was there stays");
  await page.waitForSelector("#body.stale");
  assert.deepEqual(await tooFaint(page), [], "and stays legible");
  await page.context().setOffline(false);
  await live(page);
  await close(page);
});

// === who may see it ===

await check("pages of another origin and foreign names are refused", async () => {
  const host = new URL(inspected).host;
  for (const path of ["status", "requests", "payloads", ""]) {
    const url = `${inspected}/abridge/${path}`;
    const status = async (headers) => (await ask(url, { authorization: `Bearer ${operator}`, ...headers })).statusCode;
    assert.equal(await status({}), 200, path);
    assert.equal(await status({ origin: `http://${host}` }), 200, path);
    assert.equal(await status({ origin: "http://evil.test" }), 403, path);
    assert.equal(await status({ host: "evil.test" }), 403, path);
    assert.equal(await status({ "sec-fetch-site": "cross-site" }), 403, path);
  }
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.goto(elsewhere);
  const read = await page.evaluate(async (base) => {
    const answers = [];
    for (const mode of ["cors", "no-cors"]) {
      answers.push(await fetch(`${base}/abridge/status`, { mode }).then((answer) => answer.text(), () => "refused"));
    }
    const frame = document.createElement("iframe");
    frame.src = `${base}/abridge/`;
    await new Promise((loaded) => { frame.onload = loaded; document.body.append(frame); });
    return answers;
  }, inspected);
  // An answer that is opaque has no text.
  assert.ok(read.every((text) => text === "refused" || text === ""), `read ${read}`);
  assert.equal(await page.frames()[1].locator("#totals").count(), 0, "the page is in no frame");
  await context.close();
});

await check("where a token is asked for the page asks, and keeps it for the tab", async () => {
  const page = await open(`${guarded}/abridge/`, { expected: /status of 401/ });
  await page.waitForSelector("#gate:not([hidden])");
  assert.equal((await focused(page)).id, "token");
  await page.keyboard.type("wrong");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector("#gate-why").textContent.startsWith("It does not take this one"));
  await page.fill("#token", token);
  await page.keyboard.press("Enter");
  await live(page);
  assert.equal(await page.isVisible("#gate"), false);
  await page.reload();
  await live(page);
  await close(page);
  const by = await open(`${guarded}/abridge/#token=${token}`);
  await live(by);
  assert.equal(by.url(), `${guarded}/abridge/`, "the token is out of the address");
  await close(by);
});

await end();

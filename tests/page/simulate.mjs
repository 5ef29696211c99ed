// Opens the page that `abridge simulate --html` has written, as a file, in a real browser.
import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";

import { browser, check, end, overflow, tooFaint } from "./harness.mjs";

const { simulated, evil } = JSON.parse(process.env.ABRIDGE_PAGE);
const url = pathToFileURL(simulated).href;

/** The page, and what it has done that it must not do. */
async function open({ width = 1280, theme = "light" } = {}) {
  const context = await browser.newContext({ viewport: { width, height: 860 }, colorScheme: theme });
  const page = await context.newPage();
  page.wrong = [];
  page.on("request", (request) => { if (request.url() !== url) page.wrong.push(`asked ${request.url()}`); });
  page.on("pageerror", (error) => page.wrong.push(`threw ${error.message}`));
  page.on("console", (message) => page.wrong.push(`console: ${message.text()}`));
  await page.goto(url);
  return page;
}

async function close(page) {
  const wrong = page.wrong;
  await page.context().close();
  assert.deepEqual(wrong, []);
}

await check("each policy is a line in each drawing, a point on the front and a row", async () => {
  const page = await open();
  assert.equal(await page.locator("figure svg").count(), 2);
  assert.equal(await page.locator("polyline.line").count(), 2);
  assert.equal(await page.locator("circle.point").count(), 2);
  const rows = await page.locator("table tr").allTextContents();
  assert.match(rows[1], /^policy/);
  assert.match(rows[2], /^none/);
  for (const line of await page.locator("polyline.line").all()) {
    const { width } = await line.boundingBox();
    assert.ok(width > 100, `the line is ${width} wide`);
  }
  await close(page);
});

await check("a fault opens and shows what was missed as text", async () => {
  const page = await open();
  const fault = page.locator("details").first();
  assert.match(await fault.locator("summary").textContent(), /hard policy, .*request 4 missed the result of read in message 2/);
  assert.equal(await fault.locator("li").first().isVisible(), false);
  await fault.locator("summary").click();
  assert.equal(await fault.locator("li").first().isVisible(), true);
  assert.equal(await fault.locator("code").first().textContent(), evil);
  assert.equal(await page.evaluate(() => globalThis.hacked), undefined);
  assert.equal(await page.locator("img, script").count(), 0);
  await close(page);
});

for (const theme of ["light", "dark"]) {
  await check(`all texts can be read, and a phone shows the whole width (${theme})`, async () => {
    const page = await open({ width: 390, theme });
    await page.locator("summary").first().click();
    assert.deepEqual(await tooFaint(page), []);
    assert.ok(await overflow(page) <= 0);
    await close(page);
  });
}

await end();

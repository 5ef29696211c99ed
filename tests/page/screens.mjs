// Pictures of the page in both themes, at three sizes, with nothing, one and five hundred requests, to be looked at: of a session of an agent that was really played.
// `ABRIDGE_SCREENS=DIR` beside ABRIDGE_BROWSER has tests/page.rs take them.
import { mkdirSync } from "node:fs";
import { join } from "node:path";

import { browser, chat, close, open } from "./harness.mjs";

const { shown } = JSON.parse(process.env.ABRIDGE_PAGE);
const folder = process.env.ABRIDGE_SCREENS;
mkdirSync(folder, { recursive: true });

const WORDS = "error warning note crate module function returned expected found type lifetime borrow value test passed failed build linking compiled took".split(" ");
const word = (n) => WORDS[n % WORDS.length];
const output = (seed, n) => Array.from({ length: n }, (_, i) =>
  `${String(i + 1).padStart(4)} | ${word(seed * 7 + i * 3)} ${word(seed + i * 5)} src/${word(i + seed)}.rs:${(i * 37 + seed * 11) % 900}`).join("\n");
const call = (id, name, input) => ({ id, type: "function", function: { name, arguments: JSON.stringify(input) } });
const NAMES = ["read_file", "run", "search"];
const tools = NAMES.map((name) => ({ type: "function", function: { name, parameters: { type: "object", properties: {} } } }));

/** Rounds of tools, one of them very long, and a call that the user cuts short. */
async function play(n_rounds) {
  const messages = [
    { role: "system", content: "You are a coding agent." },
    { role: "user", content: "The build of the workspace fails since yesterday. Find out why, and fix it." },
  ];
  for (let n = 0; n < n_rounds; n += 1) {
    await chat(shown, { model: "gpt-4o", messages, tools });
    if (n % 9 === 4) await chat(shown, { model: "gpt-4o-mini", messages: [{ role: "user", content: "A title for this session, please." }] });
    const name = NAMES[n % 3];
    messages.push(
      { role: "assistant", content: n % 4 === 0 ? "Let me look further." : null, tool_calls: [call(`call_${n}`, name, { path: `src/part_${n}.rs` })] },
      { role: "tool", tool_call_id: `call_${n}`, content: output(n, n === 9 ? 1500 : 130 + ((n * 17) % 70)) });
    if (n === 15) {
      messages.push(
        { role: "assistant", content: null, tool_calls: [call("call_x", "run", { command: "cargo test" })] },
        { role: "user", content: "Stop that, look at the linker first." });
    }
  }
}

const SIZES = [["1440", 1440, 900], ["800", 800, 1000], ["360", 360, 740]];

/** Opens the page in each theme and size, and has it drawn there. */
async function everywhere(draw) {
  for (const theme of ["light", "dark"]) {
    for (const [size, width, height] of SIZES) {
      const page = await open(`${shown}/abridge/`, { theme, width, height });
      await draw(page, async (name) => {
        await page.mouse.move(0, 0);
        await page.screenshot({ path: join(folder, `${name}-${theme}-${size}.png`) });
      });
      await close(page);
    }
  }
}

await everywhere(async (page, shoot) => {
  await page.waitForSelector("main");
  await shoot("nothing");
});
await chat(shown, { model: "gpt-4o-mini", messages: [{ role: "user", content: "A title for this session, please." }] });
await everywhere(async (page, shoot) => {
  await page.waitForSelector("#rows a");
  await shoot("one");
});
await play(44);
await everywhere(async (page, shoot) => {
  await page.waitForSelector("#chart svg");
  await shoot("requests");
  await page.locator("#rows a").nth(2).click();
  await page.waitForSelector("#messages");
  await shoot("request");
  await page.locator("#messages").evaluate((messages) => messages.scrollIntoView());
  await shoot("messages");
  await page.evaluate(() => { location.hash = "costs"; });
  await page.waitForSelector("#days tr");
  await shoot("costs");
  await page.evaluate(() => { location.hash = "store"; });
  await page.waitForSelector("#payloads a");
  await shoot("store");
  await page.locator("#payloads a").nth(1).click();
  await page.waitForFunction(() => document.querySelector("#payload-told")?.textContent);
  await shoot("payload");
});
for (let n = 0; n < 460; n += 1) {
  await chat(shown, { model: n % 3 ? "gpt-4o" : "gpt-4o-mini", messages: [{ role: "user", content: `Question ${n}.` }] });
}
await everywhere(async (page, shoot) => {
  await page.waitForFunction(() => document.querySelectorAll("#rows a").length >= 100);
  await shoot("five-hundred");
});
await browser.close();
console.log(`  pictures are in ${folder}`);

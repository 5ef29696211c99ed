// What the checks of the page stand on: one browser, pages that are watched, and requests as a client sends them.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import http from "node:http";
import { createRequire } from "node:module";
import { join } from "node:path";

const folder = process.env.ABRIDGE_BROWSER;
const { chromium } = createRequire(join(folder, "package.json"))("playwright-core");

export const browser = await chromium.launch({
  executablePath: readFileSync(join(folder, "browser"), "utf8").trim(),
  args: [
    "--disable-background-networking", "--disable-component-update", "--disable-gpu", "--disable-quic", "--disable-sync",
    "--no-first-run", "--no-proxy-server", ...(process.getuid() === 0 ? ["--no-sandbox"] : []),
  ],
});

/** Far longer than anything here takes. */
export const PATIENCE = 20_000;

let failed = 0;

/** One named check; those behind it run in any case. */
export async function check(name, body) {
  const began = Date.now();
  try {
    await body();
    console.log(`  ok  ${name} (${Date.now() - began} ms)`);
  } catch (error) {
    failed += 1;
    console.log(`  FAILED  ${name}\n${String(error.stack).replace(/^/gm, "      ")}`);
  }
}

export async function end() {
  await browser.close();
  process.exit(failed === 0 ? 0 : 1);
}

/**
 * A page that is watched: whatever it asks of another origin, writes to the console as an error or throws is kept in
 * `page.wrong`, but for the browser's own words on answers that are `expected` to be errors.
 */
export async function open(url, { width = 1280, height = 860, theme = "light", expected = null } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: theme, reducedMotion: "reduce" });
  // As the address that `abridge serve` prints does it, except where a test gives the token itself.
  const { guarded, operator } = JSON.parse(process.env.ABRIDGE_PAGE);
  if (!url.startsWith(guarded)) {
    await context.addInitScript((token) => {
      if (location.protocol === "http:") sessionStorage.setItem("abridge-token", token);
    }, operator);
  }
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.wrong = [];
  const own = new URL(url).origin;
  page.on("request", (request) => {
    const asked = request.url();
    if (!asked.startsWith("data:") && new URL(asked).origin !== own) page.wrong.push(`asked ${asked}`);
    // The page's own paths, and no others of this abridge: those would go to the upstream.
    if (!asked.startsWith("data:") && !new URL(asked).pathname.startsWith("/abridge/")) page.wrong.push(`asked ${asked}`);
  });
  page.on("pageerror", (error) => page.wrong.push(`threw ${error.message}`));
  page.on("console", (message) => {
    const text = message.text();
    if (["error", "warning"].includes(message.type()) && !(expected && expected.test(text))) page.wrong.push(`console: ${text}`);
  });
  page.answer = await page.goto(url);
  return page;
}

/** Closes a page that must have done nothing wrong. */
export async function close(page) {
  const wrong = page.wrong;
  await page.context().close();
  assert.deepEqual(wrong, []);
}

/** Sends a conversation as a client does. */
export async function chat(abridge, body) {
  const answer = await fetch(`${abridge}/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: "Bearer sk-client" },
    body: JSON.stringify(body),
  });
  assert.equal(answer.status, 200, await answer.clone().text());
  await answer.text();
  return answer.headers.get("x-abridge-request-id");
}

/** A bare request with these header fields; what comes back, without its body. */
export function ask(url, headers) {
  return new Promise((resolve, reject) => {
    const request = http.request(url, { headers, agent: false }, (answer) => {
      answer.resume();
      answer.on("end", () => resolve(answer));
    });
    request.on("error", reject);
    request.end();
  });
}

/** Texts whose contrast is below what WCAG 2 AA asks for: 4.5 to 1, or 3 to 1 where they are large. */
export const tooFaint = (page) => page.evaluate(() => {
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = color;
    pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((n) => n / 255).map((n) => (n <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4))
    .reduce((sum, n, i) => sum + n * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = rgba(getComputedStyle(at).backgroundColor);
      if (color[3] > 250) return color;
    }
    return rgba(getComputedStyle(document.documentElement).colorScheme === "dark" ? "#000" : "#fff");
  };
  const seen = new Map();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !element.checkVisibility() || element.closest("script, style, .hidden, svg, :disabled")) continue;
    const style = getComputedStyle(element);
    const [one, other] = [light(rgba(style.color)), light(ground(element))];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (contrast < (isLarge ? 3 : 4.5)) seen.set(`${element.className || element.tagName}: ${contrast.toFixed(2)}`, texts.currentNode.data.trim().slice(0, 30));
  }
  return [...seen].map((pair) => pair.join(" "));
});

/** By how much the page is wider than what shows it. */
export const overflow = (page) => page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);

/** What has the focus, as text, and whether that can be seen. */
export const focused = (page) => page.evaluate(() => {
  const at = document.activeElement;
  const { outlineStyle, outlineWidth } = getComputedStyle(at);
  return { id: at.id, tag: at.tagName, request: at.dataset?.id ?? null, payload: at.dataset?.handle ?? null, seen: outlineStyle !== "none" && parseFloat(outlineWidth) >= 2 };
});

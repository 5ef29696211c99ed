// The openai package of npm through abridge. One line a check; the exit status says whether all of them held.
// What the upstream answers to which model is in tests/clients.rs.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { createRequire } from "node:module";

import { raised, run } from "./harness.mjs";

const require = createRequire(`${process.env.ABRIDGE_CLIENTS}/`);
const { default: OpenAI, toFile } = require("openai");

const client = new OpenAI({ maxRetries: 0, timeout: 30_000 });
const base = process.env.OPENAI_BASE_URL;
const messages = [{ role: "user", content: "go" }];
const tools = [{ type: "function", function: { name: "f", parameters: { type: "object", properties: {} } } }];
const headers = { authorization: "Bearer sk-client", "content-type": "application/json" };

/** Asks the upstream, through abridge, without the client that is tested. */
const get = async (path) => (await fetch(base + path, { headers })).json();
const refusal = (status) => `{ "error": {"message":"no: ${status}", "type":"t","param":null,"code":"c${status}"}}\n`;

async function text(stream) {
  let all = "";
  for await (const chunk of stream) all += chunk.choices[0]?.delta.content ?? "";
  return all;
}

const checks = {
  async "an answer in one piece"() {
    const answer = await client.chat.completions.create({ model: "text", messages });
    assert.equal(answer.choices[0].message.content, "café 🦀");
    assert.equal(answer.usage.total_tokens, 5);
  },

  async "an answer in pieces"() {
    const chunks = [];
    const stream = await client.chat.completions.create({
      model: "text", messages, stream: true, stream_options: { include_usage: true },
    });
    for await (const chunk of stream) chunks.push(chunk);
    assert.equal(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""), "café 🦀");
    assert.equal(chunks.at(-1).usage.total_tokens, 5);
    assert.equal(chunks.at(-2).choices[0].finish_reason, "stop");
  },

  async "a piece is there before the next one is made"() {
    const user = randomUUID();
    const stream = await client.chat.completions.create({ model: "paced", messages, stream: true, user });
    const pieces = stream[Symbol.asyncIterator]();
    assert.equal((await pieces.next()).value.choices[0].delta.content, "first");
    assert.ok(await get(`/release?${user}`));
    assert.equal((await pieces.next()).value.choices[0].delta.content, "second");
  },

  async "tool calls in one piece and in pieces"() {
    const calls = (answer) => answer.choices[0].message.tool_calls.map((call) => [call.id, call.function.arguments]);
    const expected = [["call_a", '{"x": 1}'], ["call_b", "{}"]];
    assert.deepEqual(calls(await client.chat.completions.create({ model: "tools", messages, tools })), expected);
    const stream = client.chat.completions.stream({ model: "tools", messages, tools });
    assert.deepEqual(calls(await stream.finalChatCompletion()), expected);
  },

  async "a call without a result is patched for a strict upstream"() {
    const asked = (await client.chat.completions.create({ model: "tools", messages, tools })).choices[0].message;
    const result = { role: "tool", tool_call_id: "call_a", content: "1" };
    const request = { model: "text", messages: [...messages, asked, result, ...messages], tools };
    const { data, response } = await client.chat.completions.create(request).withResponse();
    assert.equal(data.choices[0].message.content, "café 🦀");
    assert.equal(response.headers.get("x-abridge-edits"), "patch=1");
    assert.ok(response.headers.get("x-abridge-request-id"));

    // Without abridge's help the upstream refuses it, and its refusal comes back as it wrote it.
    const error = await raised(client.chat.completions.create(request, { headers: { "x-abridge": "off" } }));
    assert.ok(error instanceof OpenAI.BadRequestError, error);
    const off = { ...headers, "x-abridge": "off" };
    const raw = await fetch(`${base}/chat/completions`, { method: "POST", headers: off, body: JSON.stringify(request) });
    assert.equal(await raw.text(), refusal(400));
  },

  async "responses in one piece and in pieces"() {
    const answer = await client.responses.create({ model: "text", input: "go" });
    assert.equal(answer.output_text, "café 🦀");
    assert.equal(answer.usage.total_tokens, 5);
    const events = [];
    for await (const event of await client.responses.create({ model: "text", input: "go", stream: true })) {
      events.push(event);
    }
    const pieces = events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta);
    assert.deepEqual(pieces, ["café ", "🦀"]);
    assert.equal(events[0].type, "response.created");
    assert.equal(events.at(-1).type, "response.completed");
    assert.equal(events.at(-1).response.output[0].content[0].text, "café 🦀");
  },

  async "a call without an output is patched in responses"() {
    const call = { type: "function_call", call_id: "call_a", name: "f", arguments: "{}" };
    const request = { model: "text", input: [...messages, call, ...messages] };
    const { data, response } = await client.responses.create(request).withResponse();
    assert.equal(data.output_text, "café 🦀");
    assert.equal(response.headers.get("x-abridge-edits"), "patch=1");
    const error = await raised(client.responses.create(request, { headers: { "x-abridge": "off" } }));
    assert.ok(error instanceof OpenAI.BadRequestError, error);
    for (const stream of [false, true]) {
      const limited = await raised(client.responses.create({ model: "429 Too Many Requests", input: "go", stream }));
      assert.ok(limited instanceof OpenAI.RateLimitError, limited);
      assert.deepEqual(limited.error, { message: "no: 429", type: "t", param: null, code: "c429" });
      assert.equal(limited.headers.get("retry-after"), "7");
    }
  },

  async "response headers are the upstream's"() {
    const { response, request_id } = await client.chat.completions.create({ model: "text", messages }).withResponse();
    // `connection` and `keep-alive` are of this hop; what else there is comes from the upstream.
    const names = [...response.headers.keys()].filter((name) => !["connection", "keep-alive"].includes(name)).sort();
    assert.deepEqual(names, ["content-length", "content-type", "x-request-id"]);
    assert.equal(request_id, "req_1");
  },

  async "errors come back as they were"() {
    const kinds = {
      "400 Bad Request": OpenAI.BadRequestError,
      "401 Unauthorized": OpenAI.AuthenticationError,
      "404 Not Found": OpenAI.NotFoundError,
      "429 Too Many Requests": OpenAI.RateLimitError,
      "500 Internal Server Error": OpenAI.InternalServerError,
      "503 Service Unavailable": OpenAI.InternalServerError,
    };
    for (const [model, kind] of Object.entries(kinds)) {
      for (const stream of [false, true]) {
        const error = await raised(client.chat.completions.create({ model, messages, stream }));
        const status = model.slice(0, 3);
        assert.ok(error instanceof kind, error);
        assert.deepEqual(error.error, { message: `no: ${status}`, type: "t", param: null, code: `c${status}` });
        assert.equal(error.headers.get("retry-after"), "7");
        assert.equal(error.headers.get("x-abridge-error"), null);
        assert.equal(error.requestID, "req_1");
      }
    }
    const wrong = client.withOptions({ apiKey: "sk-wrong" });
    assert.ok((await raised(wrong.models.list())) instanceof OpenAI.AuthenticationError);
  },

  async "a time-out of the client cancels the upstream"() {
    const user = randomUUID();
    const error = await raised(client.chat.completions.create({ model: "silent", messages, user }, { timeout: 1000 }));
    assert.ok(error instanceof OpenAI.APIConnectionTimeoutError, error);
    assert.ok(await get(`/gone?${user}`));
  },

  async "aborting a stream cancels the upstream"() {
    const user = randomUUID();
    const stream = await client.chat.completions.create({ model: "endless", messages, stream: true, user });
    for await (const chunk of stream) {
      assert.equal(chunk.choices[0].delta.content, "first");
      break;
    }
    stream.controller.abort();
    assert.ok(await get(`/gone?${user}`));
  },

  async "aborting a request that is not streamed cancels the upstream"() {
    const user = randomUUID();
    const abort = new AbortController();
    const asked = client.chat.completions.create({ model: "silent", messages, user }, { signal: abort.signal });
    const error = raised(asked);
    assert.ok(await get(`/came?${user}`));
    abort.abort();
    assert.ok((await error) instanceof OpenAI.APIUserAbortError);
    assert.ok(await get(`/gone?${user}`));
  },

  async "a stream that breaks off is an error"() {
    const stream = await client.chat.completions.create({ model: "broken", messages, stream: true });
    const error = await raised(text(stream));
    assert.ok(!(error instanceof SyntaxError), error);
  },

  async "models and files pass"() {
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    assert.deepEqual(ids, ["text"]);
    const file = await toFile(Buffer.from("what the file holds"), "a.txt");
    assert.equal((await client.files.create({ file, purpose: "batch" })).status, "true");
  },

  async "many at a time"() {
    const ask = async () => text(await client.chat.completions.create({ model: "text", messages, stream: true }));
    const answers = await Promise.all(Array.from({ length: 24 }, ask));
    assert.deepEqual(answers, Array(24).fill("café 🦀"));
  },
};

await run(checks);

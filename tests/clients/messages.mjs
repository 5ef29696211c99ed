// The @anthropic-ai/sdk package of npm through abridge. One line a check; the exit status says whether all of them held.
// What the upstream answers to which model is in tests/clients.rs.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

import { raised, run } from "./harness.mjs";

const require = createRequire(`${process.env.ABRIDGE_CLIENTS}/`);
const { default: Anthropic } = require("@anthropic-ai/sdk");

const client = new Anthropic({ maxRetries: 0, timeout: 30_000 });
const user = { role: "user", content: "go" };
const ask = { model: "text", max_tokens: 100, messages: [user] };
const call = { type: "tool_use", id: "toolu_a", name: "f", input: {} };
const tools = [{ name: "f", input_schema: { type: "object", properties: {} } }];
const dangling = { ...ask, messages: [user, { role: "assistant", content: [call] }, user], tools };

const checks = {
  async "a message in one piece"() {
    const answer = await client.messages.create(ask);
    assert.equal(answer.content[0].text, "café 🦀");
    assert.equal(answer.stop_reason, "end_turn");
    assert.deepEqual([answer.usage.input_tokens, answer.usage.output_tokens], [3, 2]);
  },

  async "a message in pieces"() {
    const events = [];
    for await (const event of await client.messages.create({ ...ask, stream: true })) events.push(event);
    const pieces = events.filter((event) => event.type === "content_block_delta").map((event) => event.delta.text);
    assert.deepEqual(pieces, ["café ", "🦀"]);
    assert.equal(events[0].type, "message_start");
    assert.equal(events.at(-1).type, "message_stop");
    const answer = await client.messages.stream(ask).finalMessage();
    assert.equal(answer.content[0].text, "café 🦀");
  },

  async "a call without a result is patched for a strict upstream"() {
    const { data, response } = await client.messages.create(dangling).withResponse();
    assert.equal(data.content[0].text, "café 🦀");
    assert.equal(response.headers.get("x-abridge-edits"), "patch=1");
    const error = await raised(client.messages.create(dangling, { headers: { "x-abridge": "off" } }));
    assert.ok(error instanceof Anthropic.BadRequestError, error);
  },

  async "errors come back as they were"() {
    const kinds = {
      "401 Unauthorized": Anthropic.AuthenticationError,
      "429 Too Many Requests": Anthropic.RateLimitError,
      "500 Internal Server Error": Anthropic.InternalServerError,
      "529 Overloaded": Anthropic.InternalServerError,
    };
    for (const [model, kind] of Object.entries(kinds)) {
      for (const stream of [false, true]) {
        const error = await raised(client.messages.create({ ...ask, model, stream }));
        const status = model.slice(0, 3);
        assert.ok(error instanceof kind, error);
        assert.deepEqual(error.error, { error: { message: `no: ${status}`, type: "t", param: null, code: `c${status}` } });
        assert.equal(error.headers.get("retry-after"), "7");
        assert.equal(error.headers.get("x-abridge-error"), null);
      }
    }
    const wrong = client.withOptions({ apiKey: "sk-wrong" });
    assert.ok((await raised(wrong.messages.create(ask))) instanceof Anthropic.AuthenticationError);
  },
};

await run(checks);

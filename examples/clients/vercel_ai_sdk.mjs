// The AI SDK of Vercel: @ai-sdk/openai reads OPENAI_BASE_URL and OPENAI_API_KEY.
//
// `openai.chat(...)` speaks Chat Completions; plain `openai(...)` asks /v1/responses, which abridge edits, too.
//
//     OPENAI_BASE_URL=http://127.0.0.1:8787/v1 node vercel_ai_sdk.mjs
import { openai } from "@ai-sdk/openai";
import { jsonSchema, stepCountIs, streamText, tool } from "ai";

const answer = streamText({
  model: openai.chat("gpt-4o-mini"),
  prompt: "What is in notes.txt?",
  tools: {
    read_file: tool({
      description: "Read a file.",
      inputSchema: jsonSchema({ type: "object", properties: { path: { type: "string" } }, required: ["path"] }),
      execute: async ({ path }) => `what is in ${path}`,
    }),
  },
  stopWhen: stepCountIs(5),
});
for await (const text of answer.textStream) {
  process.stdout.write(text);
}
process.stdout.write("\n");

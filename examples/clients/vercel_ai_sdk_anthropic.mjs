// The AI SDK of Vercel with an Anthropic model: @ai-sdk/anthropic reads ANTHROPIC_API_KEY, and ANTHROPIC_BASE_URL with `/v1` at its end.
//
//     ANTHROPIC_BASE_URL=http://127.0.0.1:8787/v1 node vercel_ai_sdk_anthropic.mjs
import { anthropic } from "@ai-sdk/anthropic";
import { generateText } from "ai";

const answer = await generateText({ model: anthropic("claude-haiku-4-5"), prompt: "Say hello." });
console.log(answer.text);

// The AI SDK of Vercel with its default model of OpenAI, which speaks OpenAI Responses: it reads OPENAI_BASE_URL and
// OPENAI_API_KEY.
//
//     OPENAI_BASE_URL=http://127.0.0.1:8787/v1 node vercel_ai_sdk_responses.mjs
import { openai } from "@ai-sdk/openai";
import { generateText } from "ai";

const answer = await generateText({ model: openai("gpt-4o-mini"), prompt: "Say hello." });
console.log(answer.text);

// The openai package of npm: it reads OPENAI_BASE_URL and OPENAI_API_KEY.
//
//     OPENAI_BASE_URL=http://127.0.0.1:8787/v1 node openai_sdk.mjs
import OpenAI from "openai";

const client = new OpenAI();
const answer = await client.chat.completions.create({
  model: "gpt-4o-mini",
  messages: [{ role: "user", content: "Say hello." }],
});
console.log(answer.choices[0].message.content);

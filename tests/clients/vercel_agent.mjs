// An agent of Vercel's AI SDK with a shell, and with the default model of the provider that its first argument names. It says
// what the model says last.
import { execSync } from "node:child_process";
import { createRequire } from "node:module";

const require = createRequire(`${process.env.ABRIDGE_CLIENTS}/`);
const { generateText, jsonSchema, stepCountIs, tool } = require("ai");
const [provider, prompt] = process.argv.slice(2);
const run = (command) => execSync(command, { encoding: "utf8" }).replace(/\n$/, "");
const string = { type: "string" };
const shell = (properties, execute) =>
  tool({
    description: "Run a command.",
    inputSchema: jsonSchema({ type: "object", properties, required: Object.keys(properties) }),
    execute: async (input) => execute(input),
  });
const models = {
  openai: () => require("@ai-sdk/openai").openai("gpt-5"),
  anthropic: () => require("@ai-sdk/anthropic").anthropic("claude-opus-4-8"),
};
const tools = {
  openai: { exec_command: shell({ cmd: string }, ({ cmd }) => run(cmd)) },
  anthropic: { Bash: shell({ command: string, description: string }, ({ command }) => run(command)) },
};
const answer = await generateText({
  model: models[provider](),
  tools: tools[provider],
  prompt,
  stopWhen: stepCountIs(60),
});
console.log(answer.text);

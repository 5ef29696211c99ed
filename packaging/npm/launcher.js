#!/usr/bin/env node
// Runs the abridge of this platform, which npm has installed as an optional dependency, and ends as it ends.
"use strict";
const { spawn } = require("node:child_process");
const { constants } = require("node:os");

// From the terminal, these reach the whole process group, and so the child; a second one would end it at once.
const FROM_TERMINAL = ["SIGINT", "SIGQUIT"];
const FORWARDED = ["SIGTERM", "SIGHUP", ...FROM_TERMINAL];

function installed() {
  const name = `@abridge-proxy/${process.platform}-${process.arch}`;
  const file = process.platform === "win32" ? "bin/abridge.exe" : "bin/abridge";
  const [first, second] = [name, `${name}-musl`].flatMap((name) => {
    try {
      return [require.resolve(`${name}/${file}`)];
    } catch {
      return [];
    }
  });
  // npm before 10.4 does not look at the libc of a package, and installs both.
  return second && !process.report.getReport().header.glibcVersionRuntime ? second : first;
}

const abridge = installed();
if (!abridge) {
  console.error(
    `abridge-proxy: there is no package of abridge for ${process.platform}-${process.arch}, or npm was told to omit ` +
      "optional dependencies; install again without --omit=optional, or build with: cargo install abridge-proxy",
  );
  process.exit(69);
}

const child = spawn(abridge, process.argv.slice(2), { stdio: "inherit" });
for (const signal of FORWARDED) {
  process.on(signal, () => {
    if (!(FROM_TERMINAL.includes(signal) && process.stdin.isTTY)) child.kill(signal);
  });
}
child.on("error", (error) => {
  console.error(`abridge-proxy: ${abridge} cannot be run: ${error.message}; install again`);
  process.exit(70);
});
child.on("exit", (code, signal) => {
  if (signal) {
    process.removeAllListeners(signal);
    process.kill(process.pid, signal);
  }
  process.exitCode = code ?? 128 + constants.signals[signal];
});

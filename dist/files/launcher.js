#!/usr/bin/env node
// Runs the toolgate binary of this platform, and ends as it ends.
"use strict";

const { spawn } = require("node:child_process");
const os = require("node:os");

const name = `toolgate-server-${process.platform}-${process.arch}`;

function findBinary() {
  try {
    return require.resolve(`${name}/bin/toolgate`);
  } catch {
    console.error(
      `toolgate: the package ${name} is missing. toolgate runs on Linux with x64 and arm64. ` +
        "If this is such a system, install again without --omit=optional.",
    );
    process.exit(1);
  }
}

const child = spawn(findBinary(), process.argv.slice(2), { stdio: "inherit" });

// A terminal sends these signals to the whole process group, so the binary already has them.
const fromTerminal = new Set(["SIGINT", "SIGQUIT"]);
const hasTerminal = process.stdin.isTTY || process.stdout.isTTY || process.stderr.isTTY;
for (const signal of ["SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"]) {
  process.on(signal, () => {
    if (!(hasTerminal && fromTerminal.has(signal))) {
      child.kill(signal);
    }
  });
}

child.on("error", (error) => {
  console.error(`toolgate: cannot start the binary: ${error.message}`);
  process.exit(1);
});

child.on("exit", (code, signal) => {
  if (signal === null) {
    process.exit(code);
  }
  // End with the same signal, so that the caller sees the same reason.
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
  setTimeout(() => process.exit(128 + os.constants.signals[signal]), 1000);
});

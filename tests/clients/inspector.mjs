#!/usr/bin/env node
// Runs the command line of the MCP Inspector, which uses the TypeScript SDK's client, against a
// toolgate server.
//
// The server must serve a workspace with a `README.md`, and allow the program `printf`. The driver
// prints `ok NAME` or `FAIL NAME: why` for each check, then `N passed, M failed`. It exits with 0
// only if no check failed. Lines that begin with `#` are notes. Each check is one run of the
// Inspector with its own connection and, over stdio, its own server.
//
//     inspector.mjs --workspace DIR --era modern --url http://127.0.0.1:8000/mcp
//     inspector.mjs --workspace DIR --era legacy --stdio toolgate stdio DIR

import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const REVISIONS = { legacy: "2025-11-25", auto: "2026-07-28", modern: "2026-07-28" };
const ONE_RUN_MS = 15_000;
const TOOL_ERROR = 5; // the Inspector's exit code for a result with `isError`
const MISSING = "no-such-file-7f3a.txt";
const PRINTED = "hi-7f3a";
const LOAD = { requests: 60, concurrency: 20 };

const options = readOptions();
const readme = readFileSync(join(options.workspace, "README.md"), "utf8");
const home = mkdtempSync(join(tmpdir(), "inspector-home-"));
const startedAt = Date.now();
let passed = 0;
let failed = 0;
let tools = [];

console.log(`# inspector ${options.version}, node ${process.version}, ${options.transport}, ${options.era}`);

await check("negotiate", async () => {
  const { result } = await succeeds(["--method", "initialize"]);
  want(result.protocolVersion === options.expect, `${result.protocolVersion}, not ${options.expect}`);
  want(result.serverInfo?.name, "the server does not report its name");
  want(result.capabilities?.tools, "the server does not declare `tools`");
});

await check("tools-list", async () => {
  // With --strict, the Inspector exits with 6 if the API of a model would reject a schema.
  const { result } = await succeeds(["--method", "tools/list", "--strict"]);
  tools = result.tools;
  const names = tools.map((tool) => tool.name);
  console.log(`# ${names.length} tools`);
  for (const name of ["files_read", "exec_run"]) want(names.includes(name), `${name} is not among ${names}`);
  want(new Set(names).size === names.length, `not unique: ${names}`);
  want(`${names}` === `${[...names].sort()}`, `not sorted: ${names}`);
  for (const tool of tools) want(tool.inputSchema?.type === "object", `${tool.name}: inputSchema is not of type object`);
});

await check("read", async () => {
  const { result } = await succeeds(call("files_read", "--tool-arg", "path=README.md"));
  want(!result.isError, `isError: ${text(result)}`);
  want(text(result).includes(readme), `not the file's text: ${text(result)}`);
  const found = JSON.stringify(result.structuredContent);
  want(strings(result.structuredContent).includes(readme), `the file's text is not in structuredContent: ${found}`);
});

await check("missing-file", async () => {
  const { result } = await fails(TOOL_ERROR, call("files_read", "--tool-arg", `path=${MISSING}`));
  want(result.isError === true, "not isError");
  want(text(result).includes(MISSING), `does not name the path: ${text(result)}`);
});

await check("invalid-argument", async () => {
  const { result } = await fails(TOOL_ERROR, call("files_read", "--tool-args-json", '{"path": 5}'));
  want(result.isError === true, "not isError");
  want(text(result).includes("/path"), `does not point at /path: ${text(result)}`);
});

await check("exec", async () => {
  const { result } = await succeeds(call("exec_run", "--tool-args-json", JSON.stringify(command("printf", PRINTED))));
  want(text(result).includes(PRINTED), `stdout is not in the text: ${text(result)}`);
  const found = JSON.stringify(result.structuredContent);
  want(strings(result.structuredContent).includes(PRINTED), `stdout is not in structuredContent: ${found}`);
});

await check("load", async () => {
  const bounds = ["--load", "--load-requests", `${LOAD.requests}`, "--load-concurrency", `${LOAD.concurrency}`];
  const { result } = await succeeds(call("files_read", "--tool-arg", "path=README.md", ...bounds));
  want(result.ok === LOAD.requests, `${result.ok} of ${LOAD.requests} succeeded: ${JSON.stringify(result.errorMessages)}`);
});

// These checks are independent runs, so they run at once. `auto` chooses one of the other eras.
if (options.era !== "auto") await Promise.all([
  check("resources", async () => {
    const { result } = await succeeds(["--method", "resources/list"]);
    const file = result.resources.find((one) => one.name === "README.md");
    want(file, JSON.stringify(result));
    const { result: read } = await succeeds(["--method", "resources/read", "--uri", file.uri]);
    want(read.contents[0].text === readme, JSON.stringify(read));
    const { result: templates } = await succeeds(["--method", "resources/templates/list"]);
    want(templates.resourceTemplates.length > 0, JSON.stringify(templates));
  }),
  check("prompts", async () => {
    const { result } = await succeeds(["--method", "prompts/list"]);
    want(result.prompts.some((one) => one.name === "explain"), JSON.stringify(result));
    const get = ["--method", "prompts/get", "--prompt-name", "explain", "--prompt-args", "path=README.md"];
    const { result: got } = await succeeds(get);
    want(JSON.stringify(got.messages).includes("README.md"), JSON.stringify(got));
  }),
  check("skills-verify", async () => {
    const run = await inspect(["--method", "skills/list", "--verify", "--require-digests"]);
    if (options.era === "legacy") {
      // Skills are an extension, and only the stateless revision has extensions.
      want(run.stderr.includes("skills_unsupported"), `${run.code}: ${run.stderr}`);
      return;
    }
    want(run.code === 0, `the inspector exited with ${run.code}: ${run.stderr} ${run.stdout}`);
    const skills = run.stdout.trim().split("\n").map((line) => JSON.parse(line));
    want(skills.some((one) => one.uri === "skill://toolgate/SKILL.md"), run.stdout);
    for (const one of skills) want(one.outcome === "verified" && one.files.length > 0, JSON.stringify(one));
  }),
]);

rmSync(home, { recursive: true, force: true });
console.log(`${passed} passed, ${failed} failed`);
process.exitCode = failed === 0 && passed > 0 ? 0 : 1;

// Shared functions

/** Runs one check. An exception is its failure. */
async function check(name, work) {
  try {
    await work();
    passed += 1;
    console.log(`ok ${name}`);
  } catch (err) {
    failed += 1;
    console.log(`FAIL ${name}: ${`${err.message}`.replace(/\s+/g, " ").slice(0, 600)}`);
  }
}

function want(holds, otherwise) {
  if (!holds) throw new Error(otherwise);
}

/** Returns the flags that call `tool`. */
function call(tool, ...flags) {
  return ["--method", "tools/call", "--tool-name", tool, ...flags];
}

/** Returns the output of a run that must exit with 0. */
function succeeds(flags) {
  return fails(0, flags);
}

/** Returns the output of a run that must exit with `code`. */
async function fails(code, flags) {
  const run = await inspect(flags);
  want(!run.timedOut, `the inspector did not end within ${run.within_ms} ms: ${run.stderr}`);
  want(run.code === code, `the inspector exited with ${run.code}, not ${code}: ${run.stderr || run.stdout}`);
  want(run.stdout.trim(), `the inspector printed nothing: ${run.stderr}`);
  return JSON.parse(run.stdout);
}

/** Runs the Inspector once. */
function inspect(flags) {
  const within_ms = Math.max(1, Math.min(ONE_RUN_MS, startedAt + options.timeout_ms - Date.now()));
  const header = options.header.flatMap((line) => ["--header", line]);
  const server = options.url
    ? ["--transport", "http", "--server-url", options.url, ...header]
    : ["--transport", "stdio", "--", ...options.stdio];
  const args = [options.cli, "--cli", "--format", "json", "--protocol-era", options.era, ...flags, ...server];
  const env = { ...process.env, HOME: home, NO_COLOR: "1" };
  return new Promise((settle) => {
    // The run has its own process group, so that a kill also ends the server that it started.
    const child = spawn(process.execPath, args, { env, detached: true, stdio: ["ignore", "pipe", "pipe"] });
    const run = { code: null, stdout: "", stderr: "", within_ms, timedOut: false };
    child.stdout.setEncoding("utf8").on("data", (part) => (run.stdout += part));
    child.stderr.setEncoding("utf8").on("data", (part) => (run.stderr += part));
    const clock = setTimeout(() => {
      run.timedOut = true;
      try {
        process.kill(-child.pid, "SIGKILL");
      } catch {
        // The run has just ended.
      }
    }, within_ms);
    child.on("error", (err) => (run.stderr += err.message));
    child.on("close", (code, signal) => {
      clearTimeout(clock);
      settle({ ...run, code: code ?? signal });
    });
  });
}

/** Returns the arguments of `exec_run` for one command, with the names of its schema. */
function command(program, ...args) {
  const properties = tools.find((tool) => tool.name === "exec_run")?.inputSchema.properties;
  want(properties, "exec_run is not listed");
  for (const name of ["argv", "command", "program", "cmd"]) {
    if (!(name in properties)) continue;
    if (properties[name].type === "array") return { [name]: [program, ...args] };
    if ("args" in properties) return { [name]: program, args };
    return { [name]: [program, ...args].join(" ") };
  }
  throw new Error(`no known way to name a command in ${Object.keys(properties)}`);
}

function text(result) {
  return result.content.map((block) => block.text ?? "").join("\n");
}

/** Returns all strings inside a JSON value. */
function strings(value) {
  if (typeof value === "string") return [value];
  return value && typeof value === "object" ? Object.values(value).flatMap(strings) : [];
}

function readOptions() {
  const argv = process.argv.slice(2);
  const at = argv.indexOf("--stdio");
  const stdio = at < 0 ? [] : argv.splice(at).slice(1);
  const { values } = parseArgs({
    args: argv,
    options: {
      url: { type: "string" },
      workspace: { type: "string" },
      era: { type: "string", default: "auto" },
      expect: { type: "string" },
      header: { type: "string", multiple: true, default: [] },
      modules: { type: "string" },
      timeout: { type: "string", default: "60" },
    },
  });
  const usage =
    "usage: inspector.mjs --workspace DIR [--era legacy|auto|modern] [--expect REVISION] [--header 'NAME: VALUE']… " +
    "[--modules DIR] [--timeout SECONDS] (--url URL | --stdio CMD ARGS…)";
  if (!values.workspace || !(values.era in REVISIONS) || (stdio.length > 0) === Boolean(values.url)) {
    console.error(usage);
    process.exit(2);
  }
  const here = dirname(fileURLToPath(import.meta.url));
  const modules = resolve(values.modules ?? join(here, "../../.tools/node/node_modules"));
  const inspector = join(modules, "@modelcontextprotocol/inspector");
  return {
    ...values,
    stdio,
    transport: values.url ? "http" : "stdio",
    expect: values.expect ?? REVISIONS[values.era],
    timeout_ms: Number(values.timeout) * 1000,
    cli: join(inspector, "clients/launcher/build/index.js"),
    version: JSON.parse(readFileSync(join(inspector, "package.json"), "utf8")).version,
  };
}

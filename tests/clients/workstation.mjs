#!/usr/bin/env node
// Runs the TypeScript SDK's clients against a toolgate server with the workstation contract:
// `@modelcontextprotocol/sdk` 1.x and its successor, `@modelcontextprotocol/client`, over stdio and
// at each URL. The output has the form of the output of `typescript.mjs`.
//
//     workstation.mjs --workspace DIR --toolgate FILE --url URL [--url URL]…

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const IDENTITY = { name: "typescript-driver", version: "1" };
const ONE_CHECK_MS = 15_000;

const { values: options } = parseArgs({
  options: {
    workspace: { type: "string" }, toolgate: { type: "string" }, url: { type: "string", multiple: true },
  },
});
const modules = resolve(dirname(fileURLToPath(import.meta.url)), "../../.tools/node/node_modules");
const require = createRequire(join(modules, "none.js"));
let [passed, failed] = [0, 0];
const warnings = new Set();
console.warn = (...words) => warnings.add(words.join(" "));

const one = "@modelcontextprotocol/sdk";
const two = "@modelcontextprotocol/client";
const sdks = [
  {
    name: one,
    Client: require(`${one}/client/index.js`).Client,
    Stdio: require(`${one}/client/stdio.js`).StdioClientTransport,
    Http: require(`${one}/client/streamableHttp.js`).StreamableHTTPClientTransport,
    call: (client, params) => client.callTool(params, undefined),
  },
  {
    name: two,
    Client: require(two).Client,
    Stdio: require(`${two}/stdio`).StdioClientTransport,
    Http: require(two).StreamableHTTPClientTransport,
    call: (client, params) => client.callTool(params),
  },
];

async function main() {
  for (const sdk of sdks) {
    // A settings file that the command line names is trusted.
    const own = ["--config", `${options.workspace}/toolgate.toml`];
    const args = ["stdio", options.workspace, ...own, "--dialect", "workstation"];
    await drive(sdk, "stdio", new sdk.Stdio({ command: options.toolgate, args, stderr: "ignore" }));
    for (const url of options.url) await drive(sdk, url, new sdk.Http(new URL(url)));
  }
  await checked("no-warnings", async () => want(warnings.size === 0, [...warnings].join("; ")));
  console.log(`${passed} passed, ${failed} failed`);
  process.exit(failed === 0 && passed > 0 ? 0 : 1);
}

async function drive(sdk, where, transport) {
  const client = new sdk.Client(IDENTITY, { capabilities: {} });
  const complaints = [];
  client.onerror = (err) => complaints.push(err.message);
  const check = (name, work) => checked(`${sdk.name} ${where} ${name}`, work);
  const call = (name, args) => sdk.call(client, { name, arguments: args });
  const readme = readFileSync(join(options.workspace, "README.md"), "utf8");
  const text = ({ content }) => {
    want(content.length === 1 && content[0].type === "text", JSON.stringify(content));
    return content[0].text;
  };
  const refuses = async (code, words, request) => {
    const answer = await request.then((it) => ({ it }), (err) => ({ err }));
    want(answer.err, `not refused but ${JSON.stringify(answer.it)}`);
    want(answer.err.code === code && answer.err.message.includes(words), `${answer.err.code} ${answer.err.message}`);
  };
  if (!(await check("connect", () => client.connect(transport)))) return;
  await check("ping", () => client.ping());
  await check("tools-list", async () => {
    const { tools, nextCursor } = await client.listTools();
    want(tools[0].name === "filesystem/read" && tools.length >= 19, JSON.stringify(tools.map((tool) => tool.name)));
    want(nextCursor === undefined, "there is more than one page");
  });
  await check("read", async () => want(text(await call("filesystem/read", { path: "README.md" })) === readme, "other text"));
  await check("write", async () => {
    await call("filesystem/write", { path: "ts/made.txt", content: "by typescript\n" });
    want(readFileSync(join(options.workspace, "ts/made.txt"), "utf8") === "by typescript\n", "other text");
  });
  await check("run", async () => {
    const ran = text(await call("ci/run", { command: "printf hi-7f3a" }));
    want(ran === "Exit Code: 0\nhi-7f3a", ran);
  });
  await check("refusals", async () => {
    await refuses(-32603, "Internal error", call("filesystem/read", { path: "no-such-file" }));
    await refuses(-32602, "Invalid params", call("filesystem/read", { path: 5 }));
    await refuses(-32601, "Method not found", call("no_such_tool", {}));
  });
  await check("calls-at-once", async () => {
    const calls = Array.from({ length: 20 }, () => call("filesystem/read", { path: "README.md" }));
    want((await Promise.all(calls)).every((result) => text(result) === readme), "other text");
  });
  await check("no-complaints", async () => want(complaints.length === 0, complaints.join("; ")));
  await check("close", () => client.close());
}

/** Runs one check. An exception or a timeout is its failure. */
async function checked(name, work) {
  let clock;
  const late = new Promise((_, fail) => {
    clock = setTimeout(() => fail(new Error(`no end within ${ONE_CHECK_MS} ms`)), ONE_CHECK_MS);
  });
  try {
    await Promise.race([work(), late]);
    passed += 1;
    console.log(`ok ${name}`);
    return true;
  } catch (err) {
    failed += 1;
    console.log(`FAIL ${name}: ${`${err.message}`.replace(/\s+/g, " ").slice(0, 600)}`);
    return false;
  } finally {
    clearTimeout(clock);
  }
}

function want(holds, otherwise) {
  if (!holds) throw new Error(otherwise);
}

await main();

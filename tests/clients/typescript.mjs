#!/usr/bin/env node
// Runs the TypeScript SDK's clients against two servers: toolgate with a workspace, and
// `example-everything`. `--sdk client` is the current package, `@modelcontextprotocol/client`.
// `--sdk v1` is its predecessor, `@modelcontextprotocol/sdk`.
//
// The checks run in this process, in every revision that the client supports, over both
// transports. The driver prints `ok REVISION TRANSPORT SERVER NAME` or `FAIL …: why` for each
// check, then `N passed, M failed`. It exits with 0 only if no check failed. Lines that begin with
// `#` are notes. README.md in this folder lists the files that the workspace must contain.
//
//     typescript.mjs --sdk client --workspace DIR --toolgate FILE --toolgate-url URL
//                    [--everything FILE --everything-url URL] [--revision REVISION]…

import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

const MODERN = "2026-07-28";
const HANDSHAKES = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
const FORMS_SINCE = "2025-06-18";
const STRUCTURE_SINCE = "2025-06-18";
const STREAMS_SINCE = "2025-03-26";
const ONE_CHECK_MS = 15_000;
const AT_ONCE = 4;
const LOG_LEVEL = "io.modelcontextprotocol/logLevel";
const IDENTITY = { name: "typescript-driver", version: "1" };
const CAPABILITIES = { elicitation: {}, sampling: {}, roots: {} };
const ROOT = { uri: "file:///a/folder", name: "A folder" };

const options = readOptions();
const sdk = options.sdk === "v1" ? versionOne() : versionTwo();
let passed = 0;
let failed = 0;
const warnings = new Set();
console.warn = (...words) => warnings.add(words.join(" "));

/** Runs the checks over each connection, several connections at once. */
async function main() {
  console.log(`# ${sdk.name} ${sdk.version}, node ${process.version}`);
  const runs = [];
  for (const revision of options.revision ?? sdk.revisions) {
    for (const server of options.everything ? ["toolgate", "everything"] : ["toolgate"]) {
      for (const transport of ["stdio", "http"]) runs.push({ revision, server, transport });
    }
  }
  await Promise.all(Array.from({ length: AT_ONCE }, async () => {
    for (let run = runs.shift(); run; run = runs.shift()) await drive(run);
  }));
  // The client warns about invalid schemas on the terminal.
  await checked("no-warnings", async () => want(warnings.size === 0, [...warnings].join("; ")));
  console.log(`${passed} passed, ${failed} failed`);
  process.exit(failed === 0 && passed > 0 ? 0 : 1);
}

// One connection

/** Connects, runs the checks of the server, and disconnects. */
async function drive(run) {
  const label = `${run.revision} ${run.transport} ${run.server}`;
  const check = (name, work) => checked(`${label} ${name}`, work);
  const peer = new Peer(run);
  if (!(await check("connect", () => peer.connect()))) return;
  await (run.server === "toolgate" ? workspaceChecks : everythingChecks)(peer, check);
  const complaints = [...peer.complaints];
  await check("no-complaints", async () => want(complaints.length === 0, complaints.join("; ")));
  await check("close", () => peer.close());
}

class Peer {
  constructor({ revision, server, transport }) {
    this.revision = revision;
    this.modern = revision === MODERN;
    this.name = `${revision}-${transport}`;
    this.over = transport;
    this.server = server;
    this.complaints = [];
    this.fetched = [];
    this.notifications = [];
    this.asked = [];
    this.answer = { action: "accept", content: {} };
  }

  async connect() {
    const [file, url] = [options[this.server], options[`${this.server}-url`]];
    // A settings file that the command line names is trusted.
    const own = [options.workspace, "--config", `${options.workspace}/toolgate.toml`];
    const words = this.server === "toolgate" ? ["stdio", ...own] : ["stdio"];
    this.transport = url && this.over === "http"
      ? sdk.http(new URL(url), { fetch: (...request) => (this.fetched.push(request[1]), fetch(...request)) })
      : sdk.stdio({ command: file, args: words, stderr: "ignore" });
    this.client = sdk.make(this.revision, this.transport);
    this.client.onerror = (err) => this.complaints.push(`${err.message}`);
    sdk.answers(this.client, {
      "elicitation/create": ({ params }) => (this.asked.push(params.message), this.answer),
      "sampling/createMessage": () => sampled("a reply"),
      "roots/list": () => ({ roots: [ROOT] }),
    });
    sdk.listens(this.client, (message) => this.notifications.push(message));
    this.tap();
    await this.client.connect(this.transport);
    const spoken = sdk.spoken(this.client, this.transport);
    want(spoken === this.revision, `${spoken}, not ${this.revision}`);
    want(this.client.getServerVersion()?.name, "the server does not report its name");
  }

  /** Records the messages that the client sends and receives. */
  tap() {
    const send = this.transport.send.bind(this.transport);
    this.sent = [];
    this.received = [];
    this.transport.send = (message, more) => (this.sent.push(message), send(message, more));
    let onMessage;
    Object.defineProperty(this.transport, "onmessage", {
      get: () => onMessage,
      set: (listener) => {
        onMessage = listener && ((message, more) => (this.received.push(message), listener(message, more)));
      },
    });
  }

  /** Calls a tool, and returns its result and its progress notifications. */
  async progresses(name, args) {
    const [reported, before] = [[], this.received.length];
    const result = await this.call(name, args, { onprogress: (one) => reported.push(one) });
    const progress = this.received.slice(before).filter((one) => one.method === "notifications/progress");
    // If a notification arrives in one read with the answer, both clients report an unknown token.
    const strange = (complaint) => complaint.startsWith("Received a progress notification for an unknown token");
    if (this.over === "stdio") this.complaints = this.complaints.filter((complaint) => !strange(complaint));
    want(reported.length === progress.length || (this.over === "stdio" && reported.length < progress.length),
      `${reported.length} of ${progress.length} were reported`);
    return { result, steps: progress.map((one) => one.params) };
  }

  call(name, args = {}, more = {}, meta) {
    return sdk.call(this.client, { name, arguments: args, ...(meta && { _meta: meta }) }, more);
  }

  /** Returns every page of a list. The current client fetches all pages at once. */
  async all(method, member) {
    const [found, seen] = [[], new Set()];
    let cursor;
    do {
      const page = await this.client[method](cursor === undefined ? {} : { cursor });
      found.push(...page[member]);
      cursor = page.nextCursor;
      want(!seen.has(cursor), `cursor ${cursor} came twice`);
      seen.add(cursor);
    } while (cursor !== undefined);
    return { found };
  }

  /** Waits for a notification that `fits`. */
  async receives(method, fits = () => true) {
    const one = () => this.notifications.find((message) => message.method === method && fits(message.params));
    await until(one, () => `no ${method} among ${JSON.stringify(this.notifications)}`);
    return one();
  }

  async close() {
    if (this.over === "http" && !this.modern) {
      want(this.transport.sessionId, "there is no session");
      await this.transport.terminateSession();
      want(this.transport.sessionId === undefined, "the session could not be ended");
    }
    const begun = Date.now();
    await this.client.close();
    // A process has 2 s after its input is closed before it is sent SIGTERM.
    want(Date.now() - begun < 1900, `the server let the client wait ${Date.now() - begun} ms`);
  }
}

// The checks

async function workspaceChecks(peer, check) {
  const { client, revision, modern } = peer;
  const root = pathToFileURL(options.workspace).href;
  const readme = readFileSync(join(options.workspace, "README.md"), "utf8");
  const structured = revision >= STRUCTURE_SINCE;

  // The stateless revision has no ping, and the client does not send one.
  if (!modern) await check("ping", () => client.ping());
  await check("tools-list", async () => {
    const { found } = await peer.all("listTools", "tools");
    const names = found.map((tool) => tool.name);
    const listings = peer.sent.filter((message) => message.method === "tools/list");
    want(listings.length > 1, "one page");
    for (const name of ["files_read", "exec_run"]) want(names.includes(name), `${name} is not among ${names}`);
    want(new Set(names).size === names.length, `not unique: ${names}`);
  });
  await check("call", async () => {
    const result = await peer.call("files_read", { path: "README.md" });
    want(!result.isError && text(result).includes(readme), text(result));
    if (structured) want(result.structuredContent.content === readme, JSON.stringify(result.structuredContent));
  });
  await check("call-error", async () => {
    const result = await peer.call("files_read", { path: "none.txt" });
    want(result.isError && text(result).includes("none.txt"), text(result));
  });
  await check("call-unknown", () => refuses(-32602, peer.call("no_such_tool")));
  await check("progress", async () => {
    const script = { command: "for n in 1 2 3; do echo $n; sleep 0.15; done", shell: true };
    const { result, steps } = await peer.progresses("exec_run", script);
    want(text(result).includes("3"), text(result));
    want(steps.length > 0, "no progress");
    want(steps.every(({ progress }, at) => at === 0 || progress > steps[at - 1].progress), "progress does not grow");
  });
  await check("resources-list", async () => {
    const uris = (await peer.all("listResources", "resources")).found.map((one) => one.uri);
    for (const uri of [`${root}/README.md`, `${root}/dot.png`]) want(uris.includes(uri), `${uri} not in ${uris}`);
    const { found } = await peer.all("listResourceTemplates", "resourceTemplates");
    want(found.some((one) => one.uriTemplate === `${root}/{+path}`), JSON.stringify(found));
  });
  await check("resources-read", async () => {
    const [read] = (await client.readResource({ uri: `${root}/README.md` })).contents;
    want(read.text === readme && read.mimeType === "text/markdown", JSON.stringify(read));
    const [dot] = (await client.readResource({ uri: `${root}/dot.png` })).contents;
    const bytes = readFileSync(join(options.workspace, "dot.png")).toString("base64");
    want(dot.blob === bytes && dot.mimeType === "image/png", JSON.stringify(dot));
    // The file is read by the template, because its folder is in no list.
    const [hidden] = (await client.readResource({ uri: `${root}/folder/a%20file.txt` })).contents;
    want(hidden.text === "in a folder\n", JSON.stringify(hidden));
  });
  await check("resources-missing", () =>
    refuses(modern ? -32602 : sdk.missing, client.readResource({ uri: `${root}/none.txt` })));
  await check("subscribe", async () => {
    const file = `watched-${options.sdk}-${peer.name}.txt`;
    const put = (words) => writeFileSync(join(options.workspace, file), words);
    put("before");
    const uri = `${root}/${file}`;
    const end = await sdk.subscribe(peer, { resourceSubscriptions: [uri] });
    put("after it");
    await peer.receives("notifications/resources/updated", (params) => params.uri === uri);
    const [read] = (await client.readResource({ uri })).contents;
    want(read.text === "after it", JSON.stringify(read));
    await end();
  });
  await check("prompts", async () => {
    const { found } = await peer.all("listPrompts", "prompts");
    want(found.some((one) => one.name === "explain"), JSON.stringify(found));
    const { messages } = await client.getPrompt({ name: "explain", arguments: { path: "README.md" } });
    want(JSON.stringify(messages).includes("README.md"), JSON.stringify(messages));
    await refuses(-32602, client.getPrompt({ name: "explain", arguments: {} }));
  });
  await check("complete", async () => {
    const prompt = { type: "ref/prompt", name: "explain" };
    const file = await client.complete({ ref: prompt, argument: { name: "path", value: "READ" } });
    want(file.completion.values[0] === "README.md", JSON.stringify(file));
    const template = { type: "ref/resource", uri: `${root}/{+path}` };
    const path = await client.complete({ ref: template, argument: { name: "path", value: "folder/" } });
    want(`${path.completion.values}`.includes("a%20file.txt"), JSON.stringify(path));
  });
  await check("confirm", async () => {
    const touch = (name) => peer.call("exec_run", { command: "touch", args: [name] });
    const made = (name) => readdirSync(options.workspace).includes(name);
    const [yes, no] = ["yes", "no"].map((word) => `${word}-${options.sdk}-${peer.name}`);
    if (revision < FORMS_SINCE) {
      // Revisions without forms cannot ask for a confirmation, so the command does not run.
      want((await touch(yes)).isError && !made(yes) && peer.asked.length === 0, "it was run");
      return;
    }
    const agreed = await touch(yes);
    want(!agreed.isError && made(yes), text(agreed));
    want(peer.asked.length === 1 && peer.asked[0].includes(yes), `asked ${JSON.stringify(peer.asked)}`);
    peer.answer = { action: "decline" };
    const declined = await touch(no);
    want(declined.isError && !made(no), text(declined));
    want(peer.asked.length === 2, `asked ${JSON.stringify(peer.asked)}`);
  });
  await check("skills", () => sdk.skills(peer));
  await check("cancel", async () => {
    // A unique duration, by which the process is found.
    const seconds = `30.${process.pid}${Math.floor(Math.random() * 1e6)}`;
    const stop = new AbortController();
    const call = peer.call("exec_run", { command: "sleep", args: [seconds] }, { signal: stop.signal })
      .then((result) => `a result: ${text(result)}`, () => undefined);
    await until(() => runs_with(seconds), () => "`sleep` never ran");
    stop.abort();
    const came = await call;
    want(came === undefined, came);
    await until(() => !runs_with(seconds), () => "the command still runs");
    const result = await peer.call("files_read", { path: "README.md" });
    want(text(result).includes(readme), text(result));
  });
}

async function everythingChecks(peer, check) {
  const { client, revision, modern } = peer;

  await check("content", async () => {
    await peer.all("listTools", "tools");
    const kinds = (await peer.call("test_multiple_content_types")).content.map((block) => block.type);
    want(`${kinds}` === "text,image,resource", `${kinds}`);
    const audio = (await peer.call("test_audio_content")).content[0].type;
    // The oldest revision has no audio content.
    want((audio === "audio") === (revision >= "2025-03-26"), audio);
  });
  await check("progress", async () => {
    const { steps } = await peer.progresses("test_tool_with_progress");
    const shown = steps.map(({ progress, total }) => `${progress}/${total}`);
    want(`${shown}` === "0/100,50/100,100/100", `${shown}`);
  });
  await check("log", async () => {
    // In the stateless revision, each request sets its own log level.
    if (!modern) await client.setLoggingLevel("info");
    await peer.call("test_tool_with_logging", {}, {}, modern ? { [LOG_LEVEL]: "info" } : undefined);
    const logged = () => peer.notifications.filter((one) => one.method === "notifications/message");
    await until(() => logged().length === 3, () => JSON.stringify(logged()));
    want(logged().every(({ params }) => params.level === "info" && params.data), JSON.stringify(logged()));
  });
  await check("sampling", async () => {
    const result = await peer.call("test_sampling", { prompt: "Say something" });
    want(text(result) === "LLM response: a reply", text(result));
  });
  await check("roots", async () => {
    const result = await peer.call("test_input_required_result_list_roots");
    want(text(result).includes(ROOT.uri), text(result));
  });
  await check("form", async () => {
    peer.answer = { action: "accept", content: { username: "ada", email: "ada@example.com" } };
    const result = await peer.call("test_elicitation", { message: "Who?" });
    if (revision < FORMS_SINCE) want(result.isError && peer.asked.length === 0, text(result));
    else want(text(result).includes("action=accept") && text(result).includes("ada@example.com"), text(result));
  });
  await check("rounds", async () => {
    if (revision < FORMS_SINCE) return;
    peer.answer = { action: "accept", content: { name: "Ada", color: "red", ok: true } };
    const asked = peer.asked.length;
    const result = await peer.call("test_input_required_result_multi_round");
    want(!result.isError && peer.asked.length === asked + 2, `${text(result)}, asked ${peer.asked}`);
    const three = await peer.call("test_input_required_result_multiple_inputs");
    want(text(three) === "Answered: client_roots, greeting, user_name", text(three));
  });
  await check("lists-change", async () => {
    const end = await sdk.subscribe(peer, { toolsListChanged: true });
    await peer.call("test_trigger_tool_change");
    await peer.receives("notifications/tools/list_changed");
    await end();
  });
  await check("reconnect", async () => {
    const result = await peer.call("test_reconnection");
    want(text(result) === "The client came back for this", text(result));
    // The server closes the stream in the revisions whose streams are resumable.
    const resumed = peer.fetched.some(({ headers }) => new Headers(headers).has("last-event-id"));
    want(resumed === (peer.over === "http" && revision >= STREAMS_SINCE && !modern), `resumed: ${resumed}`);
  });
  await check("prompt", async () => {
    const params = { name: "test_prompt_with_arguments", arguments: { arg1: "a", arg2: "b" } };
    want(JSON.stringify(await client.getPrompt(params)).includes("arg1='a', arg2='b'"), "other words");
  });
  await check("template", async () => {
    const [read] = (await client.readResource({ uri: "test://template/7/data" })).contents;
    want(JSON.parse(read.text).id === "7", read.text);
  });
  await check("error", async () => {
    const result = await peer.call("test_error_handling");
    want(result.isError && text(result), JSON.stringify(result));
  });
}

// The two packages

/** `@modelcontextprotocol/client`. */
function versionTwo() {
  const name = "@modelcontextprotocol/client";
  const { Client, StreamableHTTPClientTransport } = options.require(name);
  const { StdioClientTransport } = options.require(`${name}/stdio`);
  const { SkillsClient } = options.require(`${name}/ext/skills`);
  return {
    name,
    version: versionOf(name),
    revisions: [MODERN, ...HANDSHAKES],
    // This client converts the older code to the current one.
    missing: -32602,
    http: (url, more) => new StreamableHTTPClientTransport(url, more),
    stdio: (server) => new StdioClientTransport(server),
    make: (revision) => {
      // `auto` asks for the stateless revision. `legacy` offers the first supported revision.
      const modern = revision === MODERN;
      const versionNegotiation = { mode: modern ? "auto" : "legacy" };
      const older = modern ? {} : { supportedProtocolVersions: [revision] };
      return new Client(IDENTITY, { capabilities: CAPABILITIES, versionNegotiation, ...older });
    },
    spoken: (client) => client.getNegotiatedProtocolVersion(),
    answers: (client, handlers) =>
      Object.entries(handlers).forEach(([method, answer]) => client.setRequestHandler(method, async (it) => answer(it))),
    listens: (client, listener) => (client.fallbackNotificationHandler = async (message) => listener(message)),
    call: (client, params, more) => client.callTool(params, more),
    subscribe: async (peer, filter) => {
      if (!peer.modern) return subscribe(peer, filter);
      const subscription = await peer.client.listen(filter);
      const honored = JSON.stringify(subscription.honoredFilter);
      want(honored === JSON.stringify(filter), `only ${honored} is honoured`);
      return () => subscription.close();
    },
    skills: async (peer) => {
      // Skills are an extension, and only the stateless revision has extensions.
      const skills = new SkillsClient(peer.client);
      if (!peer.modern) return;
      want(skills.supported, "the server does not declare skills");
      const { skills: found } = await skills.list();
      const tea = found.find((skill) => skill.uri === "skill://tea/SKILL.md");
      want(tea, JSON.stringify(found));
      const { text: read } = await skills.read(tea);
      want(read.includes("Boil"), read);
    },
  };
}

/** `@modelcontextprotocol/sdk`, which supports no revision after 2025-11-25 and no skills. */
function versionOne() {
  const name = "@modelcontextprotocol/sdk";
  const { Client } = options.require(`${name}/client/index.js`);
  const { StdioClientTransport } = options.require(`${name}/client/stdio.js`);
  const { StreamableHTTPClientTransport } = options.require(`${name}/client/streamableHttp.js`);
  const types = options.require(`${name}/types.js`);
  const schemas = {
    "elicitation/create": types.ElicitRequestSchema,
    "sampling/createMessage": types.CreateMessageRequestSchema,
    "roots/list": types.ListRootsRequestSchema,
  };
  return {
    name,
    version: versionOf(name),
    revisions: HANDSHAKES,
    missing: -32002,
    http: (url, more) => new StreamableHTTPClientTransport(url, more),
    stdio: (server) => new StdioClientTransport(server),
    make: (revision, transport) => {
      // The client always offers its newest revision, so the driver changes the offer in the message.
      const send = transport.send.bind(transport);
      transport.send = (message, more) => {
        if (message.method === "initialize") message.params.protocolVersion = revision;
        return send(message, more);
      };
      transport.setProtocolVersion = ((set) => (version) => {
        transport.spoken = version;
        set?.call(transport, version);
      })(transport.setProtocolVersion);
      return new Client(IDENTITY, { capabilities: CAPABILITIES });
    },
    spoken: (_client, transport) => transport.spoken,
    answers: (client, handlers) =>
      Object.entries(handlers).forEach(([method, answer]) =>
        client.setRequestHandler(schemas[method], async (it) => answer(it))),
    listens: (client, listener) => (client.fallbackNotificationHandler = async (message) => listener(message)),
    call: (client, params, more) => client.callTool(params, undefined, more),
    subscribe,
    skills: async () => {},
  };
}

/** Subscribes to files one by one. A session is always subscribed to lists. */
async function subscribe({ client }, { resourceSubscriptions: uris = [] }) {
  for (const uri of uris) await client.subscribeResource({ uri });
  return async () => {
    for (const uri of uris) await client.unsubscribeResource({ uri });
  };
}

// Shared functions

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

/** Checks that the request is refused with this protocol error. */
async function refuses(code, request) {
  const answer = await request.then((it) => ({ it }), (err) => ({ err }));
  want(answer.err, `not refused but ${JSON.stringify(answer.it)}`);
  want(answer.err.code === code, `error ${answer.err.code}, not ${code}: ${answer.err.message}`);
}

async function until(holds, otherwise) {
  const end = Date.now() + ONE_CHECK_MS - 2000;
  while (!holds()) {
    want(Date.now() < end, otherwise());
    await new Promise((go) => setTimeout(go, 10));
  }
}

/** Returns true if the command line of a process ends with `argument`. */
function runs_with(argument) {
  return readdirSync("/proc").filter((name) => /^\d+$/.test(name)).some((pid) => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, "utf8").endsWith(`\0${argument}\0`);
    } catch {
      return false;
    }
  });
}

function text(result) {
  return result.content.map((block) => block.text ?? "").join("\n");
}

function sampled(words) {
  return { role: "assistant", model: "none", stopReason: "endTurn", content: { type: "text", text: words } };
}

function versionOf(name) {
  return JSON.parse(readFileSync(join(options.modules, name, "package.json"), "utf8")).version;
}

function readOptions() {
  const one = { type: "string" };
  const { values } = parseArgs({
    options: {
      sdk: one, workspace: one, toolgate: one, "toolgate-url": one, everything: one, "everything-url": one,
      modules: one, revision: { type: "string", multiple: true },
    },
  });
  const modules = resolve(values.modules ?? join(dirname(fileURLToPath(import.meta.url)), "../../.tools/node/node_modules"));
  if (!["client", "v1"].includes(values.sdk) || !values.workspace || !values.toolgate || !values["toolgate-url"]) {
    console.error("usage: typescript.mjs --sdk client|v1 --workspace DIR --toolgate FILE --toolgate-url URL …");
    process.exit(2);
  }
  return { ...values, modules, require: createRequire(join(modules, "none.js")) };
}

await main();

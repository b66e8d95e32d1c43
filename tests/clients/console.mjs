#!/usr/bin/env node
// The console in a real browser: Debian's Chromium, driven by playwright-core, with axe-core for
// accessibility. The driver creates its own workspace and starts the servers. The output has the
// form of the output of `typescript.mjs`.
//
//     console.mjs --toolgate FILE [--chromium FILE] [--shots FOLDER]
//
// `--shots` writes a picture of each page into FOLDER, light and dark, wide and narrow.

import { execFileSync, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const ONE_CHECK_MS = 60_000;
const PAGE_BYTES_MAX = 100_000;
const PAINT_MS_MAX = 200;

const { values: options } = parseArgs({
  options: {
    toolgate: { type: "string" }, chromium: { type: "string", default: "/usr/bin/chromium" },
    modules: { type: "string" }, shots: { type: "string" },
  },
});
const repository = resolve(dirname(fileURLToPath(import.meta.url)), "../..");
const modules = options.modules ?? join(repository, ".tools/node/node_modules");
const require = createRequire(join(modules, "none.js"));
const { chromium } = require("playwright-core");
const axe = readFileSync(join(modules, "axe-core/axe.min.js"), "utf8");
const folder = mkdtempSync(join(tmpdir(), "toolgate-console-"));
const servers = [];
let [passed, failed] = [0, 0];

const SETTINGS = `
[command."site.build"]
about = "Builds the site"
program = "sh"
argv = ["-c", "echo '40% of the pages'; sleep 60"]
progress = '(\\\\d+)%'

[[policy.rules]]
name = "no-secrets"
effect = "deny"
tools = ["files.write"]
when = "input.path.startsWith('secret')"
`;

/** Starts `toolgate serve` over a new workspace with these settings. */
async function serve(name, settings) {
  const [root, home] = [join(folder, name), join(folder, `${name}-home`)];
  mkdirSync(root);
  mkdirSync(home);
  writeFileSync(join(root, "README.md"), "# A workspace\n\nIt is small.\n");
  writeFileSync(join(root, "toolgate.toml"), settings);
  const env = {
    PATH: process.env.PATH, HOME: home, XDG_CACHE_HOME: join(home, "cache"), PYTHONDONTWRITEBYTECODE: "1",
    TOOLGATE_CONFIG: join(root, "toolgate.toml"),
  };
  const run = (...words) => execFileSync(options.toolgate, words, { env, cwd: root, encoding: "utf8" });
  return { root, env, run };
}

/** Starts the server of `site`, and adds its address. */
async function start(site) {
  const args = ["serve", site.root, "--listen", "127.0.0.1:0"];
  const server = spawn(options.toolgate, args, { env: site.env, stdio: ["ignore", "ignore", "pipe"] });
  servers.push(server);
  let log = "";
  server.stderr.on("data", (data) => { log += data; });
  await until("the server listens", () => / at http:\/\/([^/\s]+)\/mcp/.test(log));
  site.base = `http://${log.match(/ at http:\/\/([^/\s]+)\/mcp/)[1]}`;
  site.link = () => site.run("console", site.root, "--no-browser", "--url", site.base).trim();
  return site;
}

let id = 0;

/** Calls a tool as an agent does. */
async function call(site, name, args) {
  const prefix = "io.modelcontextprotocol";
  const meta = {
    [`${prefix}/protocolVersion`]: "2026-07-28", [`${prefix}/clientInfo`]: { name: "console-driver", version: "1" },
    [`${prefix}/clientCapabilities`]: {},
  };
  const params = { name, arguments: args, _meta: meta };
  const headers = {
    "content-type": "application/json", accept: "application/json, text/event-stream",
    "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": name,
  };
  const body = JSON.stringify({ jsonrpc: "2.0", id: ++id, method: "tools/call", params });
  return (await fetch(`${site.base}/mcp`, { method: "POST", headers, body })).text();
}

async function until(what, test) {
  for (const end = Date.now() + 30_000; Date.now() < end;) {
    if (await test()) return;
    await new Promise((wake) => setTimeout(wake, 50));
  }
  throw new Error(`never: ${what}`);
}

function want(holds, otherwise) {
  if (!holds) throw new Error(otherwise);
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
  } catch (err) {
    failed += 1;
    console.log(`FAIL ${name}: ${err.message}`);
  } finally {
    clearTimeout(clock);
  }
}

/** Opens a window whose requests and errors are collected. */
async function open(browser, site, width, height, colorScheme = "light") {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme });
  const page = await context.newPage();
  page.problems = [];
  page.on("request", (it) => { if (!it.url().startsWith(site.base)) page.problems.push(`outside: ${it.url()}`); });
  page.on("pageerror", (err) => page.problems.push(String(err)));
  page.on("dialog", (it) => { page.problems.push(`a dialog: ${it.message()}`); it.dismiss(); });
  page.on("console", (it) => { if (it.type() === "error") page.problems.push(`${it.text()} at ${page.url()}`); });
  return page;
}

async function signIn(page, site) {
  await page.goto(site.link());
  await page.waitForURL(`${site.base}/`);
}

const isLive = (page) => page.waitForFunction(() => document.getElementById("live").textContent.includes("live"));

/** Checks each page in one size and color scheme. */
async function checkPages(browser, site, paths, width, scheme) {
  const page = await open(browser, site, width, 900, scheme);
  await signIn(page, site);
  for (const [name, path] of Object.entries(paths)) {
    await checked(`page ${name} ${width} ${scheme}`, async () => {
      const answer = await page.goto(site.base + path);
      want(answer.status() === 200, `status ${answer.status()}`);
      const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      want(over <= 0, `${over} px wider than the window`);
      await page.evaluate(axe);
      const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
      const serious = violations.filter(({ impact }) => ["serious", "critical"].includes(impact));
      want(serious.length === 0, JSON.stringify(serious.map((it) => [it.id, it.nodes.map((node) => node.html)])));
      want(page.problems.length === 0, page.problems.join("; "));
      if (options.shots) {
        await page.screenshot({ path: join(options.shots, `${name}-${width}-${scheme}.png`), fullPage: true });
      }
    });
    page.problems.length = 0;
  }
  await page.context().close();
}

async function checkSize(browser, site, paths) {
  const page = await open(browser, site, 1280, 900);
  await signIn(page, site);
  await checked("each page and its files are small", async () => {
    for (const path of Object.values(paths)) {
      let bytes = 0;
      const count = async (it) => { bytes += (await it.body().catch(() => "")).length; };
      const counting = [];
      const listener = (it) => { if (!it.url().endsWith("/events")) counting.push(count(it)); };
      page.on("response", listener);
      await page.goto(site.base + path, { waitUntil: "load" });
      await Promise.all(counting);
      page.off("response", listener);
      want(bytes <= PAGE_BYTES_MAX, `${path}: ${bytes} bytes`);
    }
  });
  await checked("the first page is painted soon", async () => {
    const times = [];
    // The best of several, because other tests run at the same time.
    for (let n = 0; n < 8; n += 1) {
      await page.goto(`${site.base}/`);
      const paint = () => performance.getEntriesByName("first-contentful-paint")[0]?.startTime;
      await page.waitForFunction(paint);
      times.push(await page.evaluate(paint));
    }
    want(Math.min(...times) <= PAINT_MS_MAX, `${times.map(Math.round)} ms`);
  });
  await page.context().close();
}

async function checkUse(browser, site) {
  const page = await open(browser, site, 1280, 900);
  await checked("without the link, nothing is shown", async () => {
    await page.goto(`${site.base}/console/calls`);
    want(page.url().endsWith("/console/sign-in"), page.url());
    want(!(await page.content()).includes("missing.md"), "calls are shown");
  });
  await checked("a link signs in once", async () => {
    const link = site.link();
    await page.goto(link);
    await page.waitForURL(`${site.base}/`);
    const other = await open(browser, site, 1280, 900);
    await other.goto(link);
    await other.waitForFunction(() => document.body.textContent.includes("used already"));
    await other.context().close();
  });
  await checked("a call appears in two tabs by itself", async () => {
    const second = await page.context().newPage();
    for (const tab of [page, second]) {
      await tab.goto(`${site.base}/console/calls`);
      await isLive(tab);
    }
    await page.bringToFront();
    await call(site, "files_exists", { path: "appears-by-itself.txt" });
    for (const tab of [page, second]) {
      await tab.bringToFront();
      await tab.waitForFunction(() => document.body.textContent.includes("appears-by-itself.txt"));
    }
    await second.close();
  });
  await checked("a call in full shows its steps and the rule", async () => {
    await page.goto(`${site.base}/console/calls?failed=1&tool=files.write`);
    await page.click("tbody a:has(time)");
    await page.waitForFunction(() => document.body.textContent.includes("Audit seal"));
    const text = await page.textContent("main");
    want(text.includes("no-secrets") && text.includes("authorize"), text);
    await page.click("a:has-text('Explain the policy decision about this call')");
    await page.waitForFunction(() => document.body.textContent.includes("denied by no-secrets"));
  });
  await checked("the first page names the most frequent error of a failing tool", async () => {
    await page.goto(`${site.base}/`);
    want((await page.textContent("[data-part=failing]")).includes("does not exist"), "no error is shown");
  });
  await checked("a tool is called by its form, with the keyboard only", async () => {
    await page.goto(`${site.base}/console/tools/files.read`);
    await page.keyboard.press("Tab");
    want((await page.evaluate(() => document.activeElement.className)) === "skip", "the first stop is no skip link");
    await page.keyboard.press("Enter");
    for (let n = 0; (await page.evaluate(() => document.activeElement.name)) !== "arg.path"; n += 1) {
      want(n < 60, "the field is never reached");
      await page.keyboard.press("Tab");
    }
    const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
    want(outline !== "none", "the focus is invisible");
    await page.keyboard.type("README.md");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.querySelector("pre")?.textContent.includes("It is small."));
  });
  await checked("a running job shows its output and is cancelled", async () => {
    const headers = { "content-type": "application/json" };
    const body = JSON.stringify({ tool: "site.build", arguments: {} });
    const job = await (await fetch(`${site.base}/v1/jobs`, { method: "POST", headers, body })).json();
    await page.goto(`${site.base}/console/jobs/${job.job_id}`);
    await page.waitForFunction(() => document.body.textContent.includes("40% of the pages"));
    await page.click("button:has-text('Cancel the job')");
    await page.waitForFunction(() => document.body.textContent.includes("canceled"));
  });
  await checked("a changed tool is approved on the first page", async () => {
    await call(site, "odd_turn", {});
    await page.goto(`${site.base}/`);
    await isLive(page);
    await page.waitForSelector("button:has-text('Approve the current tools of odd')");
    await page.click("button:has-text('Approve the current tools of odd')");
    await page.waitForURL(`${site.base}/console/upstreams`);
    await page.goto(`${site.base}/`);
    want(!(await page.content()).includes("wait for your approval"), "it still waits");
  });
  await checked("a reconnected upstream reports its tools", async () => {
    await page.goto(`${site.base}/console/upstreams/odd`);
    await page.click("button:has-text('Reconnect')");
    await page.waitForURL(`${site.base}/console/upstreams?reconnected=odd`);
    await page.waitForFunction(() => document.body.textContent.includes("`odd` is connected again. Its tools: "));
  });
  await checked("a refused call is one click from the first page, with the lines that allow it", async () => {
    await page.goto(`${site.base}/`);
    await page.locator("[data-part=failing] tr", { hasText: "files_write" }).locator("a").last().click();
    await page.waitForFunction(() => document.body.textContent.includes("Why the call was refused"));
    const content = await page.textContent("main");
    for (const part of ["no-secrets", "To allow the call", "allow-files_write"]) {
      want(content.includes(part), `${part} is missing: ${content}`);
    }
  });
  await checked("the changes of a caller to a file are two clicks from the list of calls", async () => {
    await page.goto(`${site.base}/console/calls`);
    await page.click("[data-part=calls] a:has-text('http') >> nth=0");
    await page.waitForURL(`${site.base}/console/calls?caller=http`);
    await page.fill("#subject", "secret.txt");
    await page.check("#changes");
    await page.click("button:has-text('Filter')");
    await page.waitForURL(/changes=1/);
    const content = await page.textContent("[data-part=calls]");
    want(content.includes("files_write") && !content.includes("files_read"), content);
  });
  await checked("a change is summed up in the list of calls and shown in full", async () => {
    await page.goto(`${site.base}/console/calls?caller=http&subject=README.md&changes=1`);
    await page.click("[data-part=calls] a:has-text('+1 −1 lines')");
    await page.waitForFunction(() => document.body.textContent.includes("Changes: +1 −1 lines"));
    const diff = await page.textContent("pre[aria-label=Changes]");
    want(diff.includes("-# A workspace\n+# The <b>workspace</b>"), diff);
    want(await page.locator("main b").count() === 0, "the change is interpreted as markup");
  });
  await checked("refused calls are found by the suggested outcome", async () => {
    await page.goto(`${site.base}/console/calls`);
    const suggested = await page.locator("#outcomes option").evaluateAll((all) => all.map((one) => one.value));
    want(suggested.includes("refused") && suggested.includes("not_found"), suggested.join());
    await page.fill("#outcome", "refused");
    await page.click("button:has-text('Filter')");
    await page.waitForURL(/outcome=refused/);
    const content = await page.textContent("[data-part=calls] tbody");
    want(content.includes("secret.txt") && !content.includes("missing.md"), content);
  });
  await checked("no page asked another server or failed", async () => {
    want(page.problems.length === 0, page.problems.join("; "));
  });
  await page.context().close();
}

async function checkKeys(browser, site) {
  const page = await open(browser, site, 390, 844);
  const enter = async (key) => {
    await page.goto(`${site.base}/console/sign-in`);
    await page.fill("input[name=key]", key);
    await page.keyboard.press("Enter");
  };
  await checked("a wrong key is refused", async () => {
    await enter("wrong");
    await page.waitForFunction(() => document.body.textContent.includes("unknown, expired or revoked"));
  });
  await checked("a key that may look only shows no form", async () => {
    await enter("bob-key");
    await page.waitForURL(`${site.base}/`);
    await page.goto(`${site.base}/console/tools/files.read`);
    want(!(await page.content()).includes("arg.path"), "there is a form");
    await page.click("button:has-text('Sign out')");
    await page.waitForURL(`${site.base}/console/sign-in`);
  });
  await checked("a page reports the end of its session after its key is revoked", async () => {
    await enter("ada-key");
    await page.waitForURL(`${site.base}/`);
    await isLive(page);
    writeFileSync(join(site.root, "toolgate.toml"), keysOf("bob"));
    await page.waitForFunction(() => document.getElementById("live").textContent.includes("sign in again"));
    await page.goto(`${site.base}/console/calls`);
    want(page.url().endsWith("/console/sign-in"), page.url());
  });
  await page.context().close();
}

/** Returns the settings of keys: `ada` may act, `bob` may look. */
function keysOf(...names) {
  const role = (name) => (name === "ada" ? "admin" : "console");
  const digest = (name) => createHash("sha256").update(`${name}-key`).digest("hex");
  const keys = names.map((name) => `[[keys]]\nname = "${name}"\nroles = ["${role(name)}"]\nsha256 = "${digest(name)}"\n`);
  return keys.join("\n");
}

async function main() {
  if (options.shots) mkdirSync(options.shots, { recursive: true });
  const python = JSON.stringify([join(repository, ".tools/python/bin/python"), join(repository, "tests/upstreams/odd.py")]);
  const odd = `[upstream.odd]\ncommand = ${python}\nenv = { ODD_LOG = ${JSON.stringify(join(folder, "odd.log"))} }\n`;
  writeFileSync(join(folder, "odd.log"), "");
  const site = await serve("site", odd + SETTINGS);
  site.run("pins", "accept", "--yes");
  await start(site);
  await call(site, "files_read", { path: "README.md" });
  await call(site, "files_read", { path: "missing.md" });
  await call(site, "files_read", { path: "<img src=x onerror=alert(1)>.md" });
  await call(site, "files_write", { path: "secret.txt", content: "x" });
  await call(site, "odd_echo", { message: "hello" });
  await call(site, "files_edit", { path: "README.md", edits: [{ old: "# A workspace", new: "# The <b>workspace</b>" }] });
  const sandbox = process.getuid() === 0 ? ["--no-sandbox"] : [];
  const browser = await chromium.launch({ executablePath: options.chromium, args: sandbox });
  const explained = "caller=ada&tool=files.write&input=%7B%22path%22%3A%22secret.txt%22%2C%22content%22%3A%22%22%7D";
  const paths = {
    overview: "/", calls: "/console/calls", call: "/console/calls/1", refused: "/console/calls/4",
    edit: "/console/calls/6", jobs: "/console/jobs", tools: "/console/tools",
    tool: "/console/tools/files.read", upstreams: "/console/upstreams", upstream: "/console/upstreams/odd",
    policy: `/console/policy?${explained}`, callers: "/console/callers", search: "/console/search",
    settings: "/console/settings",
  };
  for (const [width, scheme] of [[390, "light"], [390, "dark"], [1280, "light"], [1920, "dark"]]) {
    await checkPages(browser, site, paths, width, scheme);
  }
  await checkSize(browser, site, paths);
  await checkUse(browser, site);
  await checkKeys(browser, await start(await serve("keys", keysOf("ada", "bob"))));
  await browser.close();
}

try {
  await main();
} catch (err) {
  failed += 1;
  console.log(`FAIL ${err.stack}`);
} finally {
  for (const server of servers) server.kill("SIGTERM");
  rmSync(folder, { recursive: true, force: true });
}
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed === 0 && passed > 0 ? 0 : 1);

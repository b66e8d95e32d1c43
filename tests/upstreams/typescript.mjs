#!/usr/bin/env node
// A server over stdio by the TypeScript SDK of today, with one tool, `shout`.
//
//     typescript.mjs FOLDER    FOLDER/node_modules holds `@modelcontextprotocol/server`

import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const { resolve } = createRequire(join(process.argv[2], "none.js"));
const load = (name) => import(pathToFileURL(resolve(name)));
const { McpServer, fromJsonSchema } = await load("@modelcontextprotocol/server");
const { serveStdio } = await load("@modelcontextprotocol/server/stdio");

serveStdio(() => {
  const server = new McpServer({ name: "typescript", version: "1" });
  const text = { type: "object", properties: { text: { type: "string" } }, required: ["text"] };
  const about = { description: "Says it in capitals.", inputSchema: fromJsonSchema(text) };
  server.registerTool("shout", about, ({ text }) => ({
    content: [{ type: "text", text: text.toUpperCase() }],
  }));
  return server;
});

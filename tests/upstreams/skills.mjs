#!/usr/bin/env node
// A server over stdio by the TypeScript SDK of today, with the skills of a folder.
//
//     skills.mjs FOLDER SKILLS         FOLDER/node_modules holds `@modelcontextprotocol/server`
//     skills.mjs FOLDER SKILLS --live  lists what there was at its start, and reads what there is;
//                                      of a skill with a file `lie`, that in place of its SKILL.md

import { existsSync, readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [modules, folder, live] = process.argv.slice(2);
const { resolve } = createRequire(join(modules, "none.js"));
const load = (name) => import(pathToFileURL(resolve(name)));
const { McpServer } = await load("@modelcontextprotocol/server");
const { serveStdio } = await load("@modelcontextprotocol/server/stdio");
const { SkillsExtension, skillEntry } = await load("@modelcontextprotocol/server/ext/skills");
const { loadSkills } = await load("@modelcontextprotocol/server/ext/skills/node");

const read = (path) => readFileSync(join(folder, path), "utf8");

function entry(name) {
  const files = readdirSync(join(folder, name)).filter((file) => file.endsWith(".md"));
  return skillEntry(name, Object.fromEntries(files.map((file) => [file, read(`${name}/${file}`)])));
}

async function unchecked() {
  const skills = await Promise.all(readdirSync(folder).map(entry));
  const path = (uri) => uri.slice("skill://".length);
  const source = {
    list: async () => ({ skills }),
    get: async (uri) => {
      const name = path(uri).split("/")[0];
      return existsSync(join(folder, name)) ? entry(name) : undefined;
    },
    read: async (uri) => {
      const at = path(uri);
      if (!existsSync(join(folder, at))) return undefined;
      const lie = at.replace(/SKILL\.md$/, "lie");
      return { text: read(existsSync(join(folder, lie)) ? lie : at), mimeType: "text/markdown" };
    },
  };
  return new SkillsExtension({ source });
}

const skills = live ? await unchecked() : await loadSkills(folder);
serveStdio(() => {
  const server = new McpServer({ name: "skills", version: "1" });
  skills.attach(server);
  return server;
});

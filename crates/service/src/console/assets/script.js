"use strict";
// Keeps the parts of a page up to date: the server names what has changed, and the page is read
// again. Only the server makes markup, so nothing that a call contains is interpreted here.
const main = document.querySelector("main[data-live]");
const topics = main ? main.dataset.live.split(" ").filter(Boolean) : [];
const note = document.getElementById("live");
const PAUSE_MS = 1000;
let source = null;
let due = false;
let waiting = false;

function say(text) {
  if (note && note.textContent !== text) note.textContent = text;
}

async function refresh() {
  waiting = false;
  if (document.visibilityState !== "visible") {
    due = true;
    return;
  }
  due = false;
  const response = await fetch(location.href, { headers: { "x-console-refresh": "1" } });
  if (!response.ok || response.redirected) {
    source.close();
    say("This page is no longer live: sign in again.");
    return;
  }
  const next = new DOMParser().parseFromString(await response.text(), "text/html");
  for (const part of next.querySelectorAll("[data-part]")) {
    const old = document.querySelector(`[data-part="${CSS.escape(part.dataset.part)}"]`);
    // A part that the person is using is replaced later.
    if (old && !old.contains(document.activeElement) && old.outerHTML !== part.outerHTML) {
      old.replaceWith(document.importNode(part, true));
    }
  }
}

function schedule() {
  if (waiting) return;
  waiting = true;
  setTimeout(() => refresh().catch(() => say("The server does not answer.")), PAUSE_MS);
}

if (topics.length > 0) {
  source = new EventSource("/console/events");
  source.addEventListener("open", () => say("This page is live."));
  source.addEventListener("error", () => say("The server does not answer; trying again."));
  source.addEventListener("change", (event) => {
    if (topics.includes(event.data)) schedule();
  });
  document.addEventListener("visibilitychange", () => {
    if (due && document.visibilityState === "visible") schedule();
  });
}

// A one-time link signs in without a further click.
const link = document.querySelector("form[data-submit]");
if (link) link.requestSubmit();

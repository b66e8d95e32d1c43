//! The example behind toolgate: every pair of a revision that the suite speaks to us with one that
//! we speak to the example, by every way there is.

use std::fmt;
use std::path::Path;

use anyhow::Context;

use super::older::{self, Older};
use super::server::Server;
use super::suite::Scenario;
use crate::shell::checkout;

/// The revisions that are spoken on either side.
const REVISIONS: [&str; 5] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"];

/// What nobody can pass on: scenarios for which the example would have to say what its revision has
/// no words for, and since which revision it has them.
const BEYOND: [(&str, &str); 20] = [
    // Sounds.
    ("tools-call-audio", "2025-03-26"),
    // Forms.
    ("tools-call-elicitation", "2025-06-18"),
    ("elicitation-sep1034-defaults", "2025-06-18"),
    ("input-required-result-basic-elicitation", "2025-06-18"),
    ("input-required-result-request-state", "2025-06-18"),
    ("input-required-result-multiple-input-requests", "2025-06-18"),
    ("input-required-result-multi-round", "2025-06-18"),
    ("input-required-result-missing-input-response", "2025-06-18"),
    ("input-required-result-non-tool-request", "2025-06-18"),
    ("input-required-result-result-type", "2025-06-18"),
    ("input-required-result-tampered-state", "2025-06-18"),
    ("input-required-result-ignore-extra-params", "2025-06-18"),
    ("input-required-result-validate-input", "2025-06-18"),
    ("tasks-mrtr-input", "2025-11-25"),
    // Several choices in a form.
    ("elicitation-sep1330-enums", "2025-11-25"),
    // Tools that are called as tasks alone.
    ("tasks-lifecycle", "2025-11-25"),
    ("tasks-dispatch-and-envelope", "2025-11-25"),
    ("tasks-required-task-error", "2025-11-25"),
    ("tasks-mrtr-composition", "2025-11-25"),
    ("tasks-status-notifications", "2025-11-25"),
];

/// Whether `revision` has words for all that `scenario` is about.
fn has_words_for(revision: &str, scenario: &str) -> bool {
    let since = BEYOND.iter().find(|(name, _)| *name == scenario).map(|(_, since)| *since);
    since.is_none_or(|since| revision >= since)
}

/// How toolgate is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Client {
    pub(super) revision: &'static str,
}

impl Client {
    /// Every one there is.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        REVISIONS.into_iter().map(|revision| Self { revision })
    }

    /// What the suite is told to hold against.
    pub(super) fn suited(self) -> &'static str {
        match super::REVISIONS.contains(&self.revision) {
            true => self.revision,
            false => older::SAID,
        }
    }

    /// Whether `scenario` is about what it knows.
    pub(super) fn asks(self, scenario: &Scenario) -> bool {
        // Of those before the suite knows this one alone.
        let known = self.revision.max("2025-06-18");
        scenario.is_of(known, super::EXTENSIONS) && has_words_for(self.revision, &scenario.name)
    }

    /// Where it reaches `server`.
    pub(super) fn reaches(self, server: &Server) -> anyhow::Result<String> {
        match self.suited() == self.revision {
            true => Ok(server.url.clone()),
            false => Ok(Older::before(&server.url, self.revision)?.url),
        }
    }
}

/// How the example is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Stdio,
    Http,
    /// HTTP+SSE.
    Events,
    Socket,
}

/// How toolgate speaks to the example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Edge {
    pub(super) revision: &'static str,
    pub(super) way: Way,
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match self.way {
            Way::Stdio => "stdio",
            Way::Http => "HTTP",
            Way::Events => "HTTP+SSE",
            Way::Socket => "WebSocket",
        };
        write!(f, "{} over {way}", self.revision)
    }
}

impl Edge {
    /// Every one there is: HTTP is what the revision knows by that name, and no revision knows
    /// WebSockets, over which the newest of sessions and the stateless one are spoken.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        REVISIONS.into_iter().flat_map(|revision| {
            let http = if revision == "2024-11-05" { Way::Events } else { Way::Http };
            let socket = (revision >= "2025-11-25").then_some(Way::Socket);
            let ways = [Some(Way::Stdio), Some(http), socket];
            ways.into_iter().flatten().map(move |way| Self { revision, way })
        })
    }

    /// Whether the example can say all that `scenario` is about.
    pub(super) fn has_words_for(self, scenario: &str) -> bool {
        has_words_for(self.revision, scenario)
    }

    /// toolgate before the example, and the example where it runs by itself.
    pub(super) fn start(self, folder: &Path) -> anyhow::Result<(Server, Option<Server>)> {
        let example = checkout().join("target/debug/example-everything");
        let (behind, at) = match self.way {
            Way::Stdio => (None, format!("command = [{example:?}, \"stdio\"]")),
            Way::Http => {
                let behind = Server::start(&example, folder)?;
                let at = format!("url = {:?}", behind.url);
                (Some(behind), at)
            }
            Way::Events => {
                let behind = Server::start(&example, folder)?;
                let url = behind.url.replace("/mcp", "/sse");
                (Some(behind), format!("url = {url:?}\ntransport = \"sse\""))
            }
            Way::Socket => {
                let behind = Server::over_websocket(&example, folder)?;
                let at = format!("url = {:?}\ntransport = \"websocket\"", behind.url);
                (Some(behind), at)
            }
        };
        let revision = self.revision;
        let settings = format!(
            "[server]\nkeys_file = \"off\"\n\
             [tools]\ndeny = [\"files.*\", \"exec.*\", \"git.*\", \"ci.*\", \"search.*\"]\n\
             [search]\nenabled = false\n[resources]\nfiles = false\naudit = false\n\
             [prompts]\nenabled = false\n[skills]\nenabled = false\n\
             [upstream.everything]\n{at}\nprefix = \"\"\nrevision = \"{revision}\"\n"
        );
        let file = folder.join("through.toml");
        std::fs::write(&file, settings).with_context(|| file.display().to_string())?;
        let served = folder.join("served");
        std::fs::create_dir_all(&served).with_context(|| served.display().to_string())?;
        Ok((Server::gateway(&checkout().join("target/debug/toolgate"), &file, &served)?, behind))
    }
}

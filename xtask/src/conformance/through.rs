//! The example behind toolgate: every pair of a revision that the suite speaks to us with one that
//! we speak to the example, by every way there is.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::older::{self, Older};
use super::server::Server;
use super::suite::Scenario;
use crate::shell::checkout;

/// The revisions that are spoken on either side.
const REVISIONS: [&str; 5] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"];

/// What nobody can pass on: scenarios for which the example would have to say what its revision has
/// no words for, and since which revision it has them.
const BEYOND: [(&str, &str); 23] = [
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
    // Skills.
    ("sep-2640-skills-directory", "2026-07-28"),
    ("sep-2640-skills-enumeration", "2026-07-28"),
    ("sep-2640-skills-manifest", "2026-07-28"),
];

/// Whether `revision` has words for all that `scenario` is about.
fn has_words_for(revision: &str, scenario: &str) -> bool {
    let since = BEYOND.iter().find(|(name, _)| *name == scenario).map(|(_, since)| *since);
    since.is_none_or(|since| revision >= since)
}

/// How something is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Stdio,
    Http,
    /// HTTP+SSE.
    Events,
    Socket,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stdio => "stdio",
            Self::Http => "HTTP",
            Self::Events => "HTTP+SSE",
            Self::Socket => "WebSocket",
        })
    }
}

/// How toolgate is spoken to. The suite speaks Streamable HTTP alone: any other way it has by a
/// toolgate of its own, which is that client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Client {
    pub(super) revision: &'static str,
    pub(super) way: Way,
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} over {}", self.revision, self.way)
    }
}

impl Client {
    /// Every one there is.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let over = |way| REVISIONS.into_iter().map(move |revision| Self { revision, way });
        let events = Self { revision: "2024-11-05", way: Way::Events };
        over(Way::Http).chain(over(Way::Stdio)).chain([events])
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

    /// What the suite speaks to so that `tested` is spoken to by this client, and the toolgate
    /// between them, if there has to be one.
    pub(super) fn reaches(self, tested: &Tested) -> anyhow::Result<(String, Option<Server>)> {
        let between = match self.way {
            Way::Http => None,
            way => Some(tested.before(way, self.revision)?),
        };
        let url = between.as_ref().map_or(&tested.server.url, |between| &between.url);
        let url = match self.suited() == self.revision {
            true => url.clone(),
            false => Older::before(url, self.revision)?.url,
        };
        Ok((url, between))
    }
}

/// How toolgate speaks to the example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Edge {
    pub(super) revision: &'static str,
    pub(super) way: Way,
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} over {}", self.revision, self.way)
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

    /// toolgate before the example.
    pub(super) fn start(self, folder: &Path) -> anyhow::Result<Tested> {
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
                let at = over_events(&behind.url);
                (Some(behind), at)
            }
            Way::Socket => {
                let behind = Server::over_websocket(&example, folder)?;
                let at = format!("url = {:?}\ntransport = \"websocket\"", behind.url);
                (Some(behind), at)
            }
        };
        let settings = Settings::write(folder, "tested", &at, self.revision)?;
        let server = Server::gateway(&toolgate(), &settings.file, &settings.served)?;
        Ok(Tested { server, behind, folder: folder.to_owned(), settings })
    }
}

/// toolgate before the example, and the example where it runs by itself.
pub(super) struct Tested {
    pub(super) server: Server,
    behind: Option<Server>,
    folder: PathBuf,
    settings: Settings,
}

impl Tested {
    /// A toolgate that speaks to this one in `revision` by `way`.
    fn before(&self, way: Way, revision: &str) -> anyhow::Result<Server> {
        let Settings { file, served } = &self.settings;
        let at = match way {
            // One of its own, which is this one in all but who speaks to it how.
            Way::Stdio => format!(
                "command = [{:?}, \"stdio\", \"--config\", {file:?}, {served:?}]\n\
                 env = {{ XDG_STATE_HOME = {folder:?}, XDG_CACHE_HOME = {folder:?} }}",
                toolgate(),
                folder = self.folder
            ),
            Way::Http => format!("url = {:?}", self.server.url),
            Way::Events => over_events(&self.server.url),
            Way::Socket => bail!("toolgate serves no MCP over WebSockets"),
        };
        let settings = Settings::write(&self.folder, "between", &at, revision)?;
        Server::gateway(&toolgate(), &settings.file, &settings.served)
    }

    /// Ends both in order.
    pub(super) fn stop(self) -> anyhow::Result<()> {
        self.server.stop()?;
        self.behind.map_or(Ok(()), Server::stop)
    }
}

/// A toolgate that offers an upstream alone.
struct Settings {
    file: PathBuf,
    /// The folder that it serves.
    served: PathBuf,
}

impl Settings {
    /// The upstream is `at` and spoken to in `revision`.
    fn write(folder: &Path, name: &str, at: &str, revision: &str) -> anyhow::Result<Self> {
        let settings = format!(
            "[server]\nkeys_file = \"off\"\nhttp_sse = true\n\
             [tools]\ndeny = [\"files.*\", \"exec.*\", \"git.*\", \"ci.*\", \"search.*\"]\n\
             [search]\nenabled = false\n[resources]\nfiles = false\naudit = false\n\
             [prompts]\nenabled = false\n[skills]\nenabled = false\n\
             [upstream.everything]\n{at}\nprefix = \"\"\nrevision = \"{revision}\"\n"
        );
        let file = folder.join(format!("{name}.toml"));
        let served = folder.join(name);
        std::fs::write(&file, settings).with_context(|| file.display().to_string())?;
        std::fs::create_dir_all(&served).with_context(|| served.display().to_string())?;
        Ok(Self { file, served })
    }
}

fn toolgate() -> PathBuf {
    checkout().join("target/debug/toolgate")
}

/// Where the server at `url` is spoken to over HTTP+SSE.
fn over_events(url: &str) -> String {
    format!("url = {:?}\ntransport = \"sse\"", url.replace("/mcp", "/sse"))
}

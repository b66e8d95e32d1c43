//! Tests the example server through toolgate, for each pair of a client's revision and transport
//! and the upstream's revision and transport.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::older::{self, OlderRevisionRelay};
use super::server::ConformanceServerProcess;
use super::suite::ConformanceScenario;
use crate::shell::checkout;

/// MCP revisions of clients and of upstreams.
const REVISIONS: [&str; 5] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"];

/// Scenarios that need messages which older revisions do not have, each with the first revision
/// that has them.
const FIRST_REVISIONS: [(&str, &str); 23] = [
    // Audio.
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
    // Multiple choices in a form.
    ("elicitation-sep1330-enums", "2025-11-25"),
    // Tools that are only called as tasks.
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

/// Returns true if MCP `revision` has all messages that `scenario` needs.
fn has_messages_for(revision: &str, scenario: &str) -> bool {
    let first = FIRST_REVISIONS.iter().find(|(name, _)| *name == scenario);
    first.is_none_or(|(_, first)| revision >= *first)
}

/// Transport between a client and a server in a conformance run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConformanceTransport {
    Stdio,
    Http,
    /// HTTP+SSE transport of the MCP revision 2024-11-05.
    HttpSse,
    WebSocket,
}

impl fmt::Display for ConformanceTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stdio => "stdio",
            Self::Http => "HTTP",
            Self::HttpSse => "HTTP+SSE",
            Self::WebSocket => "WebSocket",
        })
    }
}

/// Client of the gateway: MCP revision and transport. The suite speaks only Streamable HTTP; for
/// another transport, a second toolgate acts as the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConformanceClient {
    pub(super) revision: &'static str,
    pub(super) transport: ConformanceTransport,
}

impl fmt::Display for ConformanceClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} over {}", self.revision, self.transport)
    }
}

impl ConformanceClient {
    /// Returns every combination of revision and transport that is tested as a client.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let over =
            |transport| REVISIONS.into_iter().map(move |revision| Self { revision, transport });
        let events = Self { revision: "2024-11-05", transport: ConformanceTransport::HttpSse };
        over(ConformanceTransport::Http).chain(over(ConformanceTransport::Stdio)).chain([events])
    }

    /// Returns the MCP revision in which the suite is started for this client.
    pub(super) fn suite_revision(self) -> &'static str {
        match super::REVISIONS.contains(&self.revision) {
            true => self.revision,
            false => older::SUITE_REVISION,
        }
    }

    /// Returns true if `scenario` runs in the client's revision, which must have all messages that
    /// it needs.
    pub(super) fn supports(self, scenario: &ConformanceScenario) -> bool {
        // 2025-06-18 is the oldest revision in the suite's list.
        let listed = self.revision.max("2025-06-18");
        let has_messages = has_messages_for(self.revision, &scenario.name);
        scenario.runs_in(listed, super::EXTENSIONS) && has_messages
    }

    /// Returns the URL at which the suite reaches `tested` as this client. If the client needs a
    /// second toolgate, starts and returns it, too.
    pub(super) fn connect(
        self,
        tested: &TestedGateway,
    ) -> anyhow::Result<(String, Option<ConformanceServerProcess>)> {
        let client = match self.transport {
            ConformanceTransport::Http => None,
            transport => Some(tested.start_client(transport, self.revision)?),
        };
        let url = client.as_ref().map_or(&tested.server.url, |client| &client.url);
        let url = match self.suite_revision() == self.revision {
            true => url.clone(),
            false => OlderRevisionRelay::start(url, self.revision)?.url,
        };
        Ok((url, client))
    }
}

/// Connection between toolgate and the example server: MCP revision and transport. Also called an
/// edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExampleServerConnection {
    pub(super) revision: &'static str,
    pub(super) transport: ConformanceTransport,
}

impl fmt::Display for ExampleServerConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} over {}", self.revision, self.transport)
    }
}

impl ExampleServerConnection {
    /// Returns every connection to test. HTTP means HTTP+SSE in 2024-11-05. No revision defines
    /// WebSockets, which are tested in the last revision with sessions and in the stateless
    /// revision.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        REVISIONS.into_iter().flat_map(|revision| {
            let http = if revision == "2024-11-05" {
                ConformanceTransport::HttpSse
            } else {
                ConformanceTransport::Http
            };
            let socket = (revision >= "2025-11-25").then_some(ConformanceTransport::WebSocket);
            let transports = [Some(ConformanceTransport::Stdio), Some(http), socket];
            transports.into_iter().flatten().map(move |transport| Self { revision, transport })
        })
    }

    /// Returns true if the upstream's revision has all messages that `scenario` needs.
    pub(super) fn supports(self, scenario: &str) -> bool {
        has_messages_for(self.revision, scenario)
    }

    /// Starts toolgate with the example server as its upstream over this connection.
    pub(super) fn start_gateway(self, folder: &Path) -> anyhow::Result<TestedGateway> {
        let example = checkout().join("target/debug/example-everything");
        let (upstream, address) = match self.transport {
            ConformanceTransport::Stdio => (None, format!("command = [{example:?}, \"stdio\"]")),
            ConformanceTransport::Http => {
                let upstream = ConformanceServerProcess::start(&example, folder)?;
                let address = format!("url = {:?}", upstream.url);
                (Some(upstream), address)
            }
            ConformanceTransport::HttpSse => {
                let upstream = ConformanceServerProcess::start(&example, folder)?;
                let address = http_sse_address(&upstream.url);
                (Some(upstream), address)
            }
            ConformanceTransport::WebSocket => {
                let upstream = ConformanceServerProcess::over_websocket(&example, folder)?;
                let address = format!("url = {:?}\ntransport = \"websocket\"", upstream.url);
                (Some(upstream), address)
            }
        };
        let settings = GatewaySettingsFile::write(folder, "tested", &address, self.revision)?;
        let server =
            ConformanceServerProcess::gateway(&toolgate(), &settings.file, &settings.served)?;
        Ok(TestedGateway { server, upstream, folder: folder.to_owned(), settings })
    }
}

/// Running toolgate whose upstream is the example server.
pub(super) struct TestedGateway {
    pub(super) server: ConformanceServerProcess,
    /// Process of the example server, unless toolgate starts the example as a child.
    upstream: Option<ConformanceServerProcess>,
    folder: PathBuf,
    settings: GatewaySettingsFile,
}

impl TestedGateway {
    /// Starts a second toolgate whose upstream is this gateway, in `revision` and over `transport`.
    fn start_client(
        &self,
        transport: ConformanceTransport,
        revision: &str,
    ) -> anyhow::Result<ConformanceServerProcess> {
        let GatewaySettingsFile { file, served } = &self.settings;
        let address = match transport {
            // The client starts a gateway of its own, with the same settings as this one.
            ConformanceTransport::Stdio => format!(
                "command = [{:?}, \"stdio\", \"--config\", {file:?}, {served:?}]\n\
                 env = {{ XDG_STATE_HOME = {folder:?}, XDG_CACHE_HOME = {folder:?} }}",
                toolgate(),
                folder = self.folder
            ),
            ConformanceTransport::Http => format!("url = {:?}", self.server.url),
            ConformanceTransport::HttpSse => http_sse_address(&self.server.url),
            ConformanceTransport::WebSocket => bail!("toolgate serves no MCP over WebSockets"),
        };
        let settings = GatewaySettingsFile::write(&self.folder, "between", &address, revision)?;
        ConformanceServerProcess::gateway(&toolgate(), &settings.file, &settings.served)
    }

    /// Stops toolgate and then the example server.
    pub(super) fn stop(self) -> anyhow::Result<()> {
        self.server.stop()?;
        self.upstream.map_or(Ok(()), ConformanceServerProcess::stop)
    }
}

/// Settings file of a toolgate that offers only one upstream, and the folder that toolgate serves.
pub(super) struct GatewaySettingsFile {
    pub(super) file: PathBuf,
    /// Empty workspace that the toolgate serves.
    pub(super) served: PathBuf,
}

impl GatewaySettingsFile {
    /// Writes the settings file `name` into `folder`. `address` are the settings by which toolgate
    /// reaches the upstream, in MCP `revision`.
    pub(super) fn write(
        folder: &Path,
        name: &str,
        address: &str,
        revision: &str,
    ) -> anyhow::Result<Self> {
        let settings = format!(
            "[server]\nkeys_file = \"off\"\nhttp_sse = true\n\
             [tools]\ndeny = [\"files.*\", \"exec.*\", \"git.*\", \"ci.*\", \"search.*\"]\n\
             [resources]\nkinds = [\"jobs\"]\n\
             [prompts]\nfolder = \"off\"\n[skills]\nfolders = []\n\
             [upstream.everything]\n{address}\nprefix = \"\"\nrevision = \"{revision}\"\n"
        );
        let file = folder.join(format!("{name}.toml"));
        let served = folder.join(name);
        std::fs::write(&file, settings).with_context(|| file.display().to_string())?;
        std::fs::create_dir_all(&served).with_context(|| served.display().to_string())?;
        Ok(Self { file, served })
    }
}

pub(super) fn toolgate() -> PathBuf {
    checkout().join("target/debug/toolgate")
}

/// Returns the settings of an upstream at `url` over HTTP+SSE.
fn http_sse_address(url: &str) -> String {
    format!("url = {:?}\ntransport = \"sse\"", url.replace("/mcp", "/sse"))
}

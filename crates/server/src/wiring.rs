//! Builds a host from settings: the one place that knows every room.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use toolgate_contract::{AnyTool, Effects};
use toolgate_dialects::Facts;
use toolgate_host::{Audit, AuditDestination, Catalog, Host, Limits, Policy, Settings};
use toolgate_toolsets::world::{Processes, Root};
use toolgate_toolsets::{exec, files};

use crate::config::{Config, EffectsMax, environment, state_folder};
use crate::exchange::SessionBounds;
use crate::lines::LineBounds;

/// A folder being served: the host before it, and what its tools hold of the world.
pub struct Workspace {
    /// Answers requests.
    pub host: Arc<Host>,
    processes: Processes,
}

impl Workspace {
    /// Serves the folder `root` under `config`.
    pub fn open(root: &Path, config: &Config) -> anyhow::Result<Self> {
        let processes = Processes::new(environment()).context("programs cannot be run")?;
        let host = host_with(toolsets(root, &processes, config)?, config)?;
        Ok(Self { host: Arc::new(host), processes })
    }

    /// The same to look at: nothing is called there, so no audit log is opened.
    pub fn look(root: &Path, config: &Config) -> anyhow::Result<Self> {
        destination(&config.audit.to)?;
        let mut config = config.clone();
        "off".clone_into(&mut config.audit.to);
        Self::open(root, &config)
    }

    /// Ends every program still running, and waits until every record is written.
    pub async fn close(&self) {
        self.processes.close().await;
        self.host.flush();
    }
}

/// A host that serves `tools`, whoever wrote them, under `config`.
pub fn host_with(tools: Vec<Arc<dyn AnyTool>>, config: &Config) -> anyhow::Result<Host> {
    let limits = &config.limits;
    let catalog = Catalog::new(tools)?;
    let policy =
        Policy::new(&config.tools.allow, &config.tools.deny, effects_max(config.tools.effects))?;
    policy.check(&catalog.ids()).context("in tools.allow or tools.deny")?;
    let slots = Limits::new(
        limits.calls,
        limits.programs,
        limits.waiting,
        Duration::from_millis(limits.wait_ms),
    );
    let settings = Settings {
        deadline: Duration::from_millis(limits.deadline_ms),
        cancel_grace: Duration::from_millis(limits.cancel_grace_ms),
        output_check: config.validation.output,
        page_size: limits.page_size,
    };
    Ok(Host::new(catalog, policy, slots, audit(&config.audit.to)?, settings))
}

/// Every toolset over the folder `root`: a new one is a folder and a line here.
fn toolsets(
    root: &Path,
    processes: &Processes,
    config: &Config,
) -> anyhow::Result<Vec<Arc<dyn AnyTool>>> {
    let root = Root::open(root)
        .with_context(|| format!("the folder {} cannot be served", root.display()))?;
    let mut tools = files::tools(&root, &config.files);
    tools.extend(exec::tools(&root, processes, &config.exec));
    Ok(tools)
}

/// What this server says of itself.
pub fn facts() -> Arc<Facts> {
    Arc::new(Facts {
        name: "toolgate".to_owned(),
        title: "toolgate".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        about: "Serves a workspace's files and commands to agents.".to_owned(),
        instructions: "Tools over one workspace folder. Paths are relative to it, with `/`. \
                       Answers that are cut say how to go on. Read a file before you edit it and \
                       pass its etag as `if_match` to be sure that it has not changed. Prefer \
                       files_search and files_tree to running programs for looking around."
            .to_owned(),
    })
}

/// What a stdio client is borne.
pub fn line_bounds(config: &Config) -> LineBounds {
    LineBounds {
        line_bytes_max: config.limits.message_bytes,
        in_flight_max: config.limits.in_flight,
        eof_grace: Duration::from_millis(config.limits.eof_grace_ms),
        drain: Duration::from_millis(config.server.drain_ms),
        wrap_up: wrap_up(config),
    }
}

/// How long cancelled calls may take to end, and a moment for their answers to be read.
fn wrap_up(config: &Config) -> Duration {
    Duration::from_millis(config.limits.cancel_grace_ms.saturating_add(1_000))
}

/// What an HTTP server bears.
pub fn http_bounds(config: &Config) -> toolgate_transports::http::Bounds {
    toolgate_transports::http::Bounds {
        body_bytes_max: config.limits.message_bytes,
        body_time_max: Duration::from_millis(config.server.body_time_ms),
        head_time_max: Duration::from_millis(config.server.head_time_ms),
        write_time_max: Duration::from_millis(config.server.write_time_ms),
        connections_max: config.server.connections_max,
        keep_alive: Duration::from_millis(config.server.keep_alive_ms),
        // Calls are cancelled when the drain is over, and then still answered.
        drain: Duration::from_millis(
            config.server.drain_ms + config.limits.cancel_grace_ms + 1_000,
        ),
    }
}

/// How sessions over HTTP are bounded.
pub fn session_bounds(config: &Config) -> SessionBounds {
    SessionBounds {
        sessions_max: config.server.sessions_max,
        stream_after: Duration::from_millis(config.server.stream_after_ms),
    }
}

fn effects_max(effects: EffectsMax) -> Effects {
    match effects {
        EffectsMax::Reads => Effects::Reads,
        EffectsMax::Adds => Effects::Adds,
        EffectsMax::Changes => Effects::Changes,
        EffectsMax::Runs => Effects::Runs,
    }
}

/// Where records go.
fn destination(to: &str) -> anyhow::Result<AuditDestination> {
    Ok(match to {
        "off" => AuditDestination::Off,
        "stderr" => AuditDestination::Stderr,
        "state" => match state_folder() {
            Some(folder) => AuditDestination::File(folder.join("audit.jsonl")),
            None => AuditDestination::Stderr,
        },
        path if Path::new(path).is_absolute() => AuditDestination::File(path.into()),
        path => bail!(
            "audit.to is `{path}`; give an absolute path (a relative one would lie among the files \
             that tools can write), `state`, `stderr` or `off`"
        ),
    })
}

/// Opens the audit log. The user's own state folder may be missing or read-only, which must not
/// keep anyone from working; a file that was asked for must be had.
fn audit(to: &str) -> anyhow::Result<Audit> {
    match Audit::open(&destination(to)?) {
        Ok(audit) => Ok(audit),
        Err(err) if to == "state" => {
            tracing::warn!(
                "calls are recorded here, since the state folder cannot be written: {err}"
            );
            Audit::open(&AuditDestination::Stderr).context("no audit log can be opened")
        }
        Err(err) => Err(err).with_context(|| format!("the audit log {to} cannot be opened")),
    }
}

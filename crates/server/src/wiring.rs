//! Builds a host from settings. This is the only module that knows every toolset.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use toolgate_contract::{AnyTool, Effects, Hold, fold, with_icons};
use toolgate_dialects::{Card, Facts};
use toolgate_host::{
    Catalog, Gate, Host, JobSettings, JobsHandle, KnownTools, Library, Limits, OutputChecks,
    Policy, PolicyRule, Quantity, Rate, Scope, Settings, check_pattern, job_resources, job_tools,
};
use toolgate_toolsets::world::processes::Mark;
use toolgate_toolsets::world::{Fetch, Processes, Root};
use toolgate_toolsets::{
    assets, ci, commands, docs, exec, files, git, icons, prompts, search, skills,
};

use crate::config::{self, Config, EffectsMax, Loaded, Validation, cache_folder, state_folder};
use crate::enveloping;
use crate::exchange::{KEY_BYTES, Sealed, SessionBounds};
use crate::ground::Ground;
use crate::lines::LineBounds;
use crate::offer::Served;
use crate::recording;
use crate::reloading::{self, Follows};
use crate::telemetry::{self, Told};
use crate::trusted;
use crate::upstreams::{self, Offered};

/// Messages that may wait for a WebSocket client before it counts as too slow.
const SOCKET_MESSAGES: usize = 256;

/// Bytes of messages that may wait for a WebSocket client. A single larger message is allowed if
/// none waits.
const SOCKET_BYTES: usize = 1 << 20;

/// Workspace being served: its host, programs and upstreams.
pub struct Workspace {
    /// Host that answers requests.
    pub host: Arc<Host>,
    processes: Processes,
    http_sse: bool,
    card: Option<Card>,
    zyra_body_bytes_max: Option<usize>,
    keys: bool,
    tls: bool,
    searches: bool,
    told: Told,
    offered: Offered,
}

impl Workspace {
    /// Opens the folder `root` under `config`.
    ///
    /// # Errors
    /// When the configuration, a schema or the audit log is unusable.
    pub fn open(root: &Path, config: &Config) -> anyhow::Result<Self> {
        Self::on(Ground::of(root, config)?, config)
    }

    /// Opens the prepared folder of `ground` under `config`.
    ///
    /// # Errors
    /// When the configuration, a schema or the audit log is unusable.
    pub fn on(ground: Ground, config: &Config) -> anyhow::Result<Self> {
        let Ground { root, files, declared, processes } = ground;
        let root = &*root;
        let Toolsets { mut tools, mut library } =
            toolsets(root, &processes, config, &files, declared)?;
        let jobs = jobs(root, &processes, config)?;
        let handle = JobsHandle::default();
        if jobs.is_some() {
            tools.extend(job_tools(&handle));
            if config.resources.jobs {
                library.resources.push(job_resources(&handle));
            }
        }
        let pictured = |tool: Arc<dyn AnyTool>| {
            let icons = icons::of(tool.spec().id.toolset());
            with_icons(tool, icons)
        };
        let (upstreams, memory) =
            upstreams::open(&Root::open(root)?, &processes, config, &library.changes)?;
        library.others = Some(Arc::new(upstreams::Readable(upstreams.clone())));
        let schemas = enveloping::schemas(root, config)?;
        let tools = tools.into_iter().map(pictured).collect();
        let catalog = Catalog::with_schemas(tools, schemas.clone())?;
        let told = Told::of(&config.telemetry, Some(&upstreams))?;
        let gate = gate(catalog, library, config, Some(root))?.with_witness(told.witness());
        let envelopes = enveloping::envelopes(&config.envelope, schemas)?;
        let host = Host::new(gate, jobs).with_job_tools(&handle).with_envelopes(envelopes);
        let http_sse = config.server.http_sse;
        let card = card(&config.server);
        let zyra_body_bytes_max = config.contracts.zyra_body_bytes_max;
        let keys = config.asks().unwrap_or(true);
        let searches = config.search.enabled;
        let tls = config.server.tls_certificate.is_some();
        let host = Arc::new(host);
        let offered = upstreams::serve(&upstreams, &memory, &host);
        Ok(Self {
            host,
            processes,
            http_sse,
            card,
            zyra_body_bytes_max,
            keys,
            tls,
            searches,
            told,
            offered,
        })
    }

    /// Opens the folder for inspection only, without audit log, envelope log and traces.
    ///
    /// # Errors
    /// When the configuration or a schema is unusable.
    pub fn look(root: &Path, config: &Config) -> anyhow::Result<Self> {
        recording::destination(&config.audit)?;
        let mut config = config.clone();
        "off".clone_into(&mut config.audit.to);
        "off".clone_into(&mut config.envelope.log_dir);
        config.telemetry.otlp = None;
        Self::open(root, &config)
    }

    /// Returns the workspace as a server.
    pub fn served(&self) -> Served {
        let looking = if self.searches {
            "files_tree, search_semantic (by meaning) and search_text (exact text)"
        } else {
            "files_tree and files_search"
        };
        let facts = Facts {
            name: "toolgate".to_owned(),
            title: "toolgate".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            about: "Serves a workspace's files and commands to agents.".to_owned(),
            instructions: format!(
                "Tools over one workspace folder. Paths are relative to it, with `/`. Answers that \
                 are cut say how to go on. Read a file before you edit it and pass its etag as \
                 `if_match` to be sure that it has not changed. For looking around, prefer \
                 {looking} to running programs."
            )
            .into(),
            jobs: false,
            resources: false,
            prompts: false,
            skills: false,
            http_sse: self.http_sse,
            card: self.card.clone(),
            zyra_body_bytes_max: self.zyra_body_bytes_max,
            keys: self.keys,
            tls: self.tls,
        };
        Served::new(self.host.clone(), facts, self.told.clone())
    }

    /// Applies changes of upstreams in the configuration `file` until the result is dropped.
    ///
    /// `load` reads the file again. `config` is the configuration that is in force.
    pub fn follow(
        &self,
        config: &Config,
        file: PathBuf,
        load: impl Fn() -> anyhow::Result<Loaded> + Send + 'static,
    ) -> Hold {
        let offered = self.offered.clone();
        let began_with = reloading::written(config);
        Follows { offered, file, load, began_with }.begin()
    }

    /// Stops all jobs and programs, and waits until every record is written.
    pub async fn close(&self) {
        self.host.stop_jobs().await;
        self.offered.upstreams.close();
        self.processes.close().await;
        self.host.flush();
        self.told.close().await;
    }
}

/// Returns the server card that `server` configures.
pub(crate) fn card(server: &config::Server) -> Option<Card> {
    server.card.clone().map(|name| Card { name, url: server.url.clone() })
}

/// Builds the gate over `catalog` and `library` under `config`. `root` is the workspace.
pub(crate) fn gate(
    catalog: Catalog,
    mut library: Library,
    config: &Config,
    root: Option<&Path>,
) -> anyhow::Result<Gate> {
    let limits = &config.limits;
    let policy =
        Policy::new(&allowed(config), &config.tools.deny, effects_max(config.tools.effects))?
            .with_confirm(&config.tools.confirm)?
            .with_scopes(&scopes(&config.scopes))?;
    let policy = match root {
        // Tools use the path with all links resolved.
        Some(root) => policy.with_root(&real(root)),
        None => policy,
    };
    let rules: Vec<PolicyRule> = config.policy.rules.iter().map(PolicyRule::from).collect();
    let policy = policy.with_rules(&rules, config.policy.default.into())?;
    let audit = recording::audit(&config.audit)?;
    if config.resources.audit {
        library.resources.extend(audit.resources());
    }
    let guards = library.resources.iter().map(|source| source.guard().id.clone());
    // Without an audit log, a rule about records is still valid.
    let records = config.resources.audit.then(toolgate_host::audit_guard);
    let tools: Vec<_> = catalog.ids().into_iter().chain(guards).chain(records).collect();
    // Upstream tools are not known yet, and a disabled upstream may have rules too.
    let prefixes = config.upstream.values().filter_map(|upstream| upstream.prefix.clone());
    // The tool that reads long results exists if there are upstreams.
    let results = config.upstream.values().next().map(|_| "results".to_owned());
    let later = config.upstream.keys().cloned().chain(prefixes).chain(results).collect();
    let named = KnownTools { tools, later };
    // A server without tools may still have resources or prompts, so its rules are not checked.
    let named = (!named.tools.is_empty()).then_some(named);
    if let Some(named) = &named {
        policy.check(named)?;
        for rule in &config.sandbox.rules {
            check_pattern("sandbox.for", &rule.tools, named)?;
        }
    }
    let slots = Limits::new(
        limits.calls,
        limits.programs,
        limits.waiting,
        Duration::from_millis(limits.wait_ms),
    )
    .with_rates(&rates(&limits.rate))?;
    let slots = bounded_each(slots, config);
    if let Some(named) = &named {
        slots.check(named)?;
    }
    let Validation { output, rules } = &config.validation;
    let rules: Vec<_> = rules.iter().map(|rule| (rule.tools.as_str(), rule.output)).collect();
    let output_checks = OutputChecks::new(&rules, *output)?;
    if let Some(named) = &named {
        output_checks.check(named)?;
    }
    let settings = Settings {
        deadline: Duration::from_millis(limits.deadline_ms),
        job_deadline: Duration::from_millis(config.jobs.deadline_ms),
        answer_wait: Duration::from_millis(limits.answer_ms),
        cancel_grace: Duration::from_millis(limits.cancel_grace_ms),
        output_checks,
        page_size: limits.page_size,
    };
    Ok(Gate::new(catalog, policy, slots, audit, settings)
        .with_library(library)
        .with_secrets(telemetry::secrets(config)?))
}

/// Returns the patterns of available tools. An upstream's tools need the one that reads long
/// results.
fn allowed(config: &Config) -> Vec<String> {
    let results = config.upstream.values().next().map(|_| "results.read".to_owned());
    config.tools.allow.iter().cloned().chain(results).collect()
}

/// Converts the configured scopes of tokens.
fn scopes(scopes: &[config::oauth::Scope]) -> Vec<Scope> {
    let scopes = scopes.iter().map(|scope| Scope {
        name: scope.name.clone(),
        tools: scope.tools.clone(),
        effects: effects_max(scope.effects),
    });
    scopes.collect()
}

/// Adds each caller's share to `slots`.
fn bounded_each(slots: Limits, config: &Config) -> Limits {
    let limits = &config.limits;
    let share = share(config);
    let share = |each: usize, all: usize| if each == 0 { share(all) } else { each };
    let calls = share(limits.calls_each, limits.calls);
    let programs = share(limits.programs_each, limits.programs);
    let slots = match calls < limits.calls || programs < limits.programs {
        true => slots.with_each(calls, programs),
        false => slots,
    };
    let refused = NonZeroU32::new(limits.refused).zip(NonZeroU32::new(limits.refused_per_s));
    let slots = match refused {
        Some((burst, per_second)) => slots.with_refused(burst, per_second),
        None => slots,
    };
    let slots = match limits.written_bytes {
        0 => slots,
        at_once => slots.with_written(Quantity { at_once, per_second: limits.written_per_s_bytes }),
    };
    match limits.carried_bytes {
        at_once if at_once > 0 && config.asks().unwrap_or(true) => {
            slots.with_carried(Quantity { at_once, per_second: limits.carried_per_s_bytes })
        }
        _ => slots,
    }
}

/// Returns a function that computes one caller's share of a limit.
fn share(config: &Config) -> impl Fn(usize) -> usize {
    // An invalid key file stops the server elsewhere.
    let several = config.asks().unwrap_or(true);
    // A single caller gets everything; one of several gets three quarters.
    move |all| if several { (all * 3).div_ceil(4) } else { all }
}

/// Converts the configured rate rules.
fn rates(rules: &[config::Rate]) -> Vec<Rate> {
    let rules = rules.iter().filter_map(|rule| {
        Some(Rate {
            tools: rule.tools.clone(),
            calls: NonZeroU32::new(rule.calls)?,
            per: Duration::from_millis(rule.in_ms),
            burst: NonZeroU32::new(rule.burst.unwrap_or(rule.calls))?,
        })
    });
    rules.collect()
}

/// Tools and resources of a workspace.
struct Toolsets {
    tools: Vec<Arc<dyn AnyTool>>,
    library: Library,
}

/// Creates every toolset of the folder `root`. A new toolset needs one line here.
fn toolsets(
    root: &Path,
    processes: &Processes,
    config: &Config,
    files: &files::Settings,
    declared: Vec<commands::Declared>,
) -> anyhow::Result<Toolsets> {
    let root = Root::open(root)
        .with_context(|| format!("the folder {} cannot be served", root.display()))?;
    let mut tools = files::tools(&root, files);
    let programs = exec::Programs::new(&root, processes, &config.exec);
    tools.extend(programs.tools());
    tools.extend(git::tools(&programs, &config.git));
    tools.extend(ci::tools(&programs, &config.ci, env!("CARGO_PKG_VERSION")));
    let folders = search_folders(root.path(), &config.search.cache);
    let service = search::Service::new(&root, &config.search, files, folders, &Fetch::default())
        .map_err(|why| anyhow!(why))?;
    tools.extend(service.iter().flat_map(search::tools));
    tools.extend(docs::tools(&root, &config.docs, service.as_ref()));
    let mut library = Library::default();
    if config.resources.files {
        library.resources.push(files::resources(&root, files));
    }
    library.prompts = prompts::sources(&root, &config.prompts);
    if let Some(skills) = skills::Shelf::new(&root, &config.skills) {
        library.resources.push(skills.clone());
        library.skills.push(skills);
    }
    if let Some(assets) = assets::Assets::open(&root, &config.assets)? {
        tools.extend(assets::tools(&assets, &config.assets, &Fetch::default()));
        library.resources.extend(assets::Source::new(&assets).map(|source| source as _));
    }
    Ok(Toolsets { tools: displaced(tools, declared, &programs)?, library })
}

/// Combines `tools` and `declared` commands. A command replaces a built-in tool of its name only if
/// it declares so.
fn displaced(
    mut tools: Vec<Arc<dyn AnyTool>>,
    declared: Vec<commands::Declared>,
    programs: &exec::Programs,
) -> anyhow::Result<Vec<Arc<dyn AnyTool>>> {
    for command in &declared {
        let has_name =
            |tool: &Arc<dyn AnyTool>| fold(tool.spec().id.as_str()) == fold(command.id());
        let Some(at) = tools.iter().position(has_name) else { continue };
        let gone = tools.remove(at);
        if !command.replaces() {
            bail!(
                "{}: `{}` is the name of a built-in tool. Call the command otherwise, or have it \
                 take that tool's place with `replaces = true`",
                command.stands(),
                gone.spec().id
            );
        }
        tracing::info!("a declared command takes the place of the tool `{}`", gone.spec().id);
    }
    tools.extend(commands::tools(programs, declared));
    Ok(tools)
}

/// Returns the settings of jobs in the folder `root`, or `None` if jobs are off.
fn jobs(
    root: &Path,
    processes: &Processes,
    config: &Config,
) -> anyhow::Result<Option<JobSettings>> {
    let Some(folder) = jobs_folder(root, &config.jobs.to)? else { return Ok(None) };
    let share = share(config);
    Ok(Some(JobSettings {
        running_each: share(config.jobs.running),
        queued_each: share(config.jobs.queued),
        mark: processes.mark().number(),
        end_left: {
            let processes = processes.clone();
            Arc::new(move |mark| {
                if Mark::of(mark).is_some_and(|mark| processes.end_left_by(mark)) {
                    tracing::info!("ended what programs of a server that is gone had left running");
                }
            })
        },
        ..jobs_in(folder, &config.jobs)
    }))
}

/// Returns job settings for `folder`, for tools that leave no programs running.
pub(crate) fn jobs_in(folder: PathBuf, config: &config::Jobs) -> JobSettings {
    JobSettings {
        folder,
        running_max: config.running,
        running_each: config.running,
        queued_max: config.queued,
        queued_each: config.queued,
        keep: Duration::from_millis(config.keep_ms),
        keep_max: Duration::from_millis(config.keep_max_ms),
        ended_max: config.ended,
        output_bytes_max: config.output_bytes,
        files_bytes_max: config.files_bytes,
        mark: 0,
        end_left: Arc::new(|_| {}),
    }
}

/// Returns the folder in which jobs of the workspace `root` are kept. Servers of one workspace
/// share it.
pub(crate) fn jobs_folder(root: &Path, to: &str) -> anyhow::Result<Option<PathBuf>> {
    let folder = match to {
        "off" => return Ok(None),
        "state" => state_folder().map(|state| state.join("jobs")),
        path if Path::new(path).is_absolute() => Some(PathBuf::from(path)),
        path => bail!(
            "jobs.to is `{path}`; give an absolute folder (a relative one would lie among the files \
             that tools can write), `state` or `off`"
        ),
    };
    // Each workspace has its own folder, so that servers never run each other's jobs.
    Ok(folder.map(|folder| folder.join(own_name(&real(root)))))
}

/// Returns the folders of the search index. Servers of one workspace share them.
fn search_folders(root: &Path, cache: &str) -> search::Folders {
    let cache = match cache {
        "memory" => None,
        "user" => cache_folder().map(|cache| cache.join("search")),
        path => Some(PathBuf::from(path)),
    };
    let documents = state_folder().map(|state| state.join("documents").join(own_name(root)));
    search::Folders { cache, documents }
}

/// Returns a folder name for the workspace at the resolved path `real`.
fn own_name(real: &Path) -> String {
    let hash = blake3::hash(real.as_os_str().as_encoded_bytes()).to_hex();
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    let name = name.replace(|c: char| !c.is_alphanumeric(), "_");
    format!("{name}-{}", &hash[..16])
}

/// Returns the path of `file` relative to `root`, a [resolved](real) path, if it lies inside.
pub fn beneath(root: &Path, file: &Path) -> Option<String> {
    Some(real(file).strip_prefix(root).ok()?.to_str()?.to_owned())
}

/// Resolves all links of `path`. Returns it unchanged if it does not exist.
#[allow(clippy::disallowed_methods, reason = "the person's own paths, before anything is served")]
pub fn real(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns the sealer of session ids, with the configured key or a random one.
///
/// # Errors
/// When the key file cannot be read, other users could have written it, or it is shorter than 32
/// bytes.
pub(crate) fn sealed(config: &Config) -> anyhow::Result<Sealed> {
    let mut key = [0; KEY_BYTES];
    match &config.server.session_key {
        Some(path) => {
            let read = trusted::read(Path::new(path), trusted::Links::Followed);
            let (bytes, _) = read.context("in server.session_key")?;
            if bytes.len() < KEY_BYTES {
                bail!(
                    "server.session_key: {path} has {} bytes; make one of {KEY_BYTES} or more, \
                     e.g. with `head -c 32 /dev/urandom > {path}`",
                    bytes.len()
                );
            }
            key = *blake3::hash(&bytes).as_bytes();
        }
        None => getrandom::fill(&mut key).context("the system gives no random numbers")?,
    }
    Ok(Sealed::new(&key))
}

/// Returns the limits of a stdio client.
pub fn line_bounds(config: &Config) -> LineBounds {
    LineBounds {
        line_bytes_max: config.limits.message_bytes,
        in_flight_max: config.limits.in_flight,
        eof_grace: Duration::from_millis(config.limits.eof_grace_ms),
        drain: Duration::from_millis(config.server.drain_ms),
        wrap_up: wrap_up(config),
    }
}

/// Returns the time for cancelled calls to end, plus 1 s for their answers to be read.
fn wrap_up(config: &Config) -> Duration {
    Duration::from_millis(config.limits.cancel_grace_ms.saturating_add(1_000))
}

/// Returns the limits of the HTTP server.
pub fn http_bounds(config: &Config) -> toolgate_transports::http::Bounds {
    toolgate_transports::http::Bounds {
        body_bytes_max: config.limits.message_bytes,
        body_time_max: Duration::from_millis(config.server.body_time_ms),
        unsent_bytes_max: config.limits.message_bytes.saturating_mul(8).max(64 << 20),
        head_time_max: Duration::from_millis(config.server.head_time_ms),
        write_time_max: Duration::from_millis(config.server.write_time_ms),
        connections_max: config.server.connections_max,
        streams_max: config.server.streams_max.min(config.server.connections_max.div_ceil(2)),
        streams_each: config.server.streams_each,
        socket_waiting_messages: SOCKET_MESSAGES,
        socket_waiting_bytes: SOCKET_BYTES,
        occupancy: toolgate_transports::http::Occupancy::default(),
        keep_alive: Duration::from_millis(config.server.keep_alive_ms),
        // Calls that are cancelled after the drain time still get an answer.
        drain: Duration::from_millis(
            config.server.drain_ms + config.limits.cancel_grace_ms + 1_000,
        ),
    }
}

/// Returns the limits of HTTP sessions.
pub fn session_bounds(config: &Config) -> SessionBounds {
    SessionBounds {
        sessions_max: config.server.sessions_max,
        stream_after: Duration::from_millis(config.server.stream_after_ms),
        socket: line_bounds(config),
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

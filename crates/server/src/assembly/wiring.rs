//! Builds a host from settings. This is the only module that uses every toolset.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use toolgate_contract::{AnyTool, Effects, WatchGuard, fold_name, with_icons};
use toolgate_dialects::{ServerCard, ServerInfo};
use toolgate_host::{
    ByteRate, CallLimits, CallRate, Catalog, Gate, GateSettings, Host, JobSettings, JobsHandle,
    KnownTools, Library, OutputCheckRules, PolicyRule, TokenScope, ToolPolicy, check_pattern,
    job_resources, job_tools,
};
use toolgate_toolsets::{
    assets, ci, commands, docs, exec, files, git, icons, prompts, search, skills,
};
use toolgate_upstream::UpstreamState;
use toolgate_world::programs::ServerMark;
use toolgate_world::{HttpFetcher, ProcessRunner, Root};

use crate::assembly::audit_setup;
use crate::assembly::config_reload;
use crate::assembly::config_reload::ConfigWatcher;
use crate::assembly::envelope_setup;
use crate::assembly::offer::PreparedServer;
use crate::assembly::rule_warnings;
use crate::assembly::server_prep::ServerPrep;
use crate::config::{
    self, Config, EffectsMax, LoadedConfig, ValidationSection, cache_folder, state_folder,
};
use crate::owned_files;
use crate::serve::exchange::{SESSION_KEY_BYTES, SessionBounds, SessionSealer};
use crate::serve::lines::LineBounds;
use crate::telemetry::{self, TelemetrySinks};
use crate::upstreams::{self, UpstreamCatalog};

/// Messages that may wait for a WebSocket client before it counts as too slow.
const SOCKET_MESSAGES_MAX: usize = 256;

/// Bytes of messages that may wait for a WebSocket client. A single larger message is allowed if
/// none waits.
const SOCKET_BYTES_MAX: usize = 1 << 20;

/// A workspace that is being served: its host, programs and upstreams.
pub struct ServedWorkspace {
    /// Host that answers requests.
    pub host: Arc<Host>,
    processes: ProcessRunner,
    http_sse: bool,
    card: Option<ServerCard>,
    zyra_body_bytes_max: Option<usize>,
    requires_credential: bool,
    tls: bool,
    has_search: bool,
    telemetry: TelemetrySinks,
    catalog: UpstreamCatalog,
}

impl ServedWorkspace {
    /// Opens the folder `root` under `config`.
    ///
    /// # Errors
    /// The configuration, a schema or the audit log is unusable.
    pub fn open(root: &Path, config: &Config) -> anyhow::Result<Self> {
        Self::open_prepared(ServerPrep::prepare(root, config)?, config)
    }

    /// Opens the folder that `prep` has prepared, under `config`.
    ///
    /// # Errors
    /// The configuration, a schema or the audit log is unusable.
    pub fn open_prepared(prep: ServerPrep, config: &Config) -> anyhow::Result<Self> {
        let ServerPrep { root, files, declared, processes } = prep;
        let root = &*root;
        let WorkspaceTools { mut tools, mut library } =
            workspace_tools(root, &processes, config, &files, declared)?;
        let jobs = job_settings(root, &processes, config)?;
        let handle = JobsHandle::default();
        if jobs.is_some() {
            tools.extend(job_tools(&handle));
            if config.resources.jobs {
                library.resources.push(job_resources(&handle));
            }
        }
        let with_toolset_icons = |tool: Arc<dyn AnyTool>| {
            let icons = icons::for_toolset(tool.spec().id.toolset());
            with_icons(tool, icons)
        };
        let (upstreams, cache) =
            upstreams::open_upstreams(&Root::open(root)?, &processes, config, &library.changes)?;
        library.dynamic_sources = Some(Arc::new(upstreams::UpstreamSources(upstreams.clone())));
        let schemas = envelope_setup::load_schemas(root, config)?;
        let tools = tools.into_iter().map(with_toolset_icons).collect();
        let catalog = Catalog::with_schemas(tools, schemas.clone())?;
        let telemetry = TelemetrySinks::from_config(&config.telemetry, Some(&upstreams))?;
        let gate =
            build_gate(catalog, library, config, Some(root))?.with_observer(telemetry.observer());
        let envelopes = envelope_setup::new_envelopes(&config.envelope, schemas)?;
        let host = Host::new(gate, jobs).with_job_tools(&handle).with_envelopes(envelopes);
        let host = Arc::new(host);
        let catalog = upstreams::offer_tools(&upstreams, &cache, &host);
        Ok(Self {
            host,
            processes,
            http_sse: config.server.http_sse,
            card: server_card(&config.server),
            zyra_body_bytes_max: config.contracts.zyra_body_bytes_max,
            requires_credential: config.requires_credential().unwrap_or(true),
            tls: config.server.tls_certificate.is_some(),
            has_search: config.search.enabled,
            telemetry,
            catalog,
        })
    }

    /// Opens the folder for inspection only, without audit log, envelope log and traces.
    ///
    /// # Errors
    /// The configuration or a schema is unusable.
    pub fn open_for_inspection(root: &Path, config: &Config) -> anyhow::Result<Self> {
        audit_setup::audit_destination(&config.audit)?;
        let mut config = config.clone();
        "off".clone_into(&mut config.audit.to);
        "off".clone_into(&mut config.envelope.log_dir);
        config.telemetry.otlp = None;
        Self::open(root, &config)
    }

    /// Returns the workspace as a server.
    pub fn server(&self) -> PreparedServer {
        let search_tools = if self.has_search {
            "files_tree, search_semantic (by meaning) and search_text (exact text)"
        } else {
            "files_tree and files_search"
        };
        let info = ServerInfo {
            name: "toolgate".to_owned(),
            title: "toolgate".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            description: "Serves a workspace's files and commands to agents.".to_owned(),
            instructions: format!(
                "Tools over one workspace folder. Paths are relative to it, with `/`. An answer that is \
                 cut says how to get the rest. Read a file before you edit it, and pass its etag as \
                 `if_match` to be sure that it has not changed. To explore, prefer {search_tools} to \
                 running programs."
            )
            .into(),
            jobs: false,
            resources: false,
            prompts: false,
            skills: false,
            http_sse: self.http_sse,
            card: self.card.clone(),
            zyra_body_bytes_max: self.zyra_body_bytes_max,
            requires_auth: self.requires_credential,
            tls: self.tls,
        };
        PreparedServer::new(self.host.clone(), info, self.telemetry.clone())
    }

    /// Returns the state of each enabled upstream, by name.
    pub fn upstream_states(&self) -> Vec<(String, UpstreamState)> {
        self.catalog.upstreams.states()
    }

    /// Applies changes of upstreams in the configuration `file` until the returned guard is
    /// dropped.
    ///
    /// `load` reads the file again. `config` is the configuration that is in force.
    pub fn watch_config(
        &self,
        config: &Config,
        file: PathBuf,
        load: impl Fn() -> anyhow::Result<LoadedConfig> + Send + 'static,
    ) -> WatchGuard {
        let catalog = self.catalog.clone();
        let initial_text = config_reload::source_text(config);
        ConfigWatcher { catalog, file, load, initial_text }.start()
    }

    /// Stops all jobs and programs, and waits until every record is written.
    pub async fn close(&self) {
        self.host.stop_jobs().await;
        self.catalog.upstreams.close();
        self.processes.close().await;
        self.host.flush();
        self.telemetry.close().await;
    }
}

/// Returns the server card that `server` configures.
pub(crate) fn server_card(server: &config::ServerSection) -> Option<ServerCard> {
    server.card.clone().map(|name| ServerCard { name, url: server.url.clone() })
}

/// Builds the gate for the `catalog`, and for the resources, prompts and skills of `library`, under
/// `config`. `root` is the workspace.
pub(crate) fn build_gate(
    catalog: Catalog,
    mut library: Library,
    config: &Config,
    root: Option<&Path>,
) -> anyhow::Result<Gate> {
    let limits = &config.limits;
    let policy = ToolPolicy::new(
        &allowed_patterns(config),
        &config.tools.deny,
        convert_effects(config.tools.effects),
    )?
    .with_confirm(&config.tools.confirm)?
    .with_scopes(&token_scopes(&config.scopes))?;
    let policy = match root {
        // Tools use the path with all links resolved.
        Some(root) => policy.with_root(&resolve_links(root)),
        None => policy,
    };
    let rules: Vec<PolicyRule> = config.policy.rules.iter().map(PolicyRule::from).collect();
    let policy = policy.with_rules(&rules, config.policy.default.into())?;
    let audit = audit_setup::open_audit(&config.audit)?;
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
    let known = KnownTools { tools, later_toolsets: later };
    // A server without tools may still have resources or prompts, so its rules are not checked.
    let known = (!known.tools.is_empty()).then_some(known);
    if let Some(known) = &known {
        policy.check(known)?;
        for rule in &config.sandbox.rules {
            check_pattern("sandbox.for", &rule.tools, known)?;
        }
    }
    for warning in rule_warnings::warnings(&config.policy.rules) {
        tracing::warn!("{warning}");
    }
    let slots = CallLimits::new(
        limits.calls,
        limits.programs,
        limits.waiting,
        Duration::from_millis(limits.wait_ms),
    )
    .with_rates(&rate_rules(&limits.rate))?;
    let slots = with_caller_shares(slots, config);
    if let Some(known) = &known {
        slots.check(known)?;
    }
    let ValidationSection { output, rules } = &config.validation;
    let rules: Vec<_> = rules.iter().map(|rule| (rule.tools.as_str(), rule.output)).collect();
    let output_checks = OutputCheckRules::new(&rules, *output)?;
    if let Some(known) = &known {
        output_checks.check_rules(known)?;
    }
    let settings = GateSettings {
        deadline: Duration::from_millis(limits.deadline_ms),
        job_deadline: Duration::from_millis(config.jobs.deadline_ms),
        answer_wait: Duration::from_millis(limits.answer_ms),
        cancel_grace: Duration::from_millis(limits.cancel_grace_ms),
        output_checks,
        page_size: limits.page_size,
    };
    Ok(Gate::new(catalog, policy, slots, audit, settings)
        .with_library(library)
        .with_secrets(telemetry::redacted_secrets(config)?))
}

/// Returns the patterns of available tools. If an upstream's tools are available, so is the tool
/// that reads long results.
fn allowed_patterns(config: &Config) -> Vec<String> {
    let results = config.upstream.values().next().map(|_| "results.read".to_owned());
    config.tools.allow.iter().cloned().chain(results).collect()
}

/// Converts the configured scopes of tokens.
fn token_scopes(scopes: &[config::oauth::ScopeEntry]) -> Vec<TokenScope> {
    let scopes = scopes.iter().map(|scope| TokenScope {
        name: scope.name.clone(),
        tools: scope.tools.clone(),
        effects: convert_effects(scope.effects),
    });
    scopes.collect()
}

/// Adds the limits of each caller to `slots`.
fn with_caller_shares(slots: CallLimits, config: &Config) -> CallLimits {
    let limits = &config.limits;
    let share = caller_share(config);
    let share = |each: usize, all: usize| if each == 0 { share(all) } else { each };
    let calls = share(limits.calls_each, limits.calls);
    let programs = share(limits.programs_each, limits.programs);
    let slots = match calls < limits.calls || programs < limits.programs {
        true => slots.with_caller_limits(calls, programs),
        false => slots,
    };
    let refused = NonZeroU32::new(limits.refused).zip(NonZeroU32::new(limits.refused_per_s));
    let slots = match refused {
        Some((burst, per_second)) => slots.with_refusal_limit(burst, per_second),
        None => slots,
    };
    let slots = match limits.written_bytes {
        0 => slots,
        at_once => {
            slots.with_write_budget(ByteRate { at_once, per_second: limits.written_per_s_bytes })
        }
    };
    match limits.carried_bytes {
        at_once if at_once > 0 && config.requires_credential().unwrap_or(true) => {
            slots.with_traffic_budget(ByteRate { at_once, per_second: limits.carried_per_s_bytes })
        }
        _ => slots,
    }
}

/// Returns a function that computes one caller's share of a limit.
fn caller_share(config: &Config) -> impl Fn(usize) -> usize {
    // An invalid key file stops the server elsewhere.
    let several = config.requires_credential().unwrap_or(true);
    // A single caller gets everything; one of several gets three quarters.
    move |all| if several { (all * 3).div_ceil(4) } else { all }
}

/// Converts the configured rate rules.
fn rate_rules(rules: &[config::RateLimitEntry]) -> Vec<CallRate> {
    let rules = rules.iter().filter_map(|rule| {
        Some(CallRate {
            tools: rule.tools.clone(),
            calls: NonZeroU32::new(rule.calls)?,
            per: Duration::from_millis(rule.in_ms),
            burst: NonZeroU32::new(rule.burst.unwrap_or(rule.calls))?,
        })
    });
    rules.collect()
}

/// Tools and resources of a workspace.
struct WorkspaceTools {
    tools: Vec<Arc<dyn AnyTool>>,
    library: Library,
}

/// Creates every toolset of the folder `root`. Add one line here for a new toolset.
fn workspace_tools(
    root: &Path,
    processes: &ProcessRunner,
    config: &Config,
    files: &files::FileSettings,
    declared: Vec<commands::DeclaredCommand>,
) -> anyhow::Result<WorkspaceTools> {
    let root =
        Root::open(root).with_context(|| format!("cannot serve the folder {}", root.display()))?;
    let mut tools = files::tools(&root, files);
    let programs = exec::WorkspacePrograms::new(&root, processes, &config.exec);
    tools.extend(programs.tools());
    tools.extend(git::tools(&programs, &config.git));
    tools.extend(ci::tools(&programs, &config.ci, env!("CARGO_PKG_VERSION")));
    let folders = search_folders(root.path(), &config.search.cache);
    let service =
        search::SearchService::new(&root, &config.search, files, folders, &HttpFetcher::default())
            .map_err(|why| anyhow!(why))?;
    tools.extend(service.iter().flat_map(search::tools));
    tools.extend(docs::tools(&root, &config.docs, service.as_ref()));
    let mut library = Library::default();
    if config.resources.files {
        library.resources.push(files::resources(&root, files));
    }
    library.prompts = prompts::sources(&root, &config.prompts);
    if let Some(skills) = skills::SkillLibrary::new(&root, &config.skills) {
        library.resources.push(skills.clone());
        library.skills.push(skills);
    }
    if let Some(assets) = assets::AssetSnapshot::open(&root, &config.assets)? {
        tools.extend(assets::tools(&assets, &config.assets, &HttpFetcher::default()));
        library.resources.extend(assets::AssetSource::new(&assets).map(|source| source as _));
    }
    Ok(WorkspaceTools { tools: merge_declared(tools, declared, &programs)?, library })
}

/// Combines `tools` and `declared` commands. A command replaces a built-in tool with the same name
/// only if its declaration allows this.
fn merge_declared(
    mut tools: Vec<Arc<dyn AnyTool>>,
    declared: Vec<commands::DeclaredCommand>,
    programs: &exec::WorkspacePrograms,
) -> anyhow::Result<Vec<Arc<dyn AnyTool>>> {
    for command in &declared {
        let has_name =
            |tool: &Arc<dyn AnyTool>| fold_name(tool.spec().id.as_str()) == fold_name(command.id());
        let Some(at) = tools.iter().position(has_name) else { continue };
        let replaced = tools.remove(at);
        if !command.replaces() {
            bail!(
                "{}: `{}` is the name of a built-in tool; rename the command, or replace the tool \
                 with `replaces = true`",
                command.location(),
                replaced.spec().id
            );
        }
        tracing::info!("a declared command replaces the tool `{}`", replaced.spec().id);
    }
    tools.extend(commands::tools(programs, declared));
    Ok(tools)
}

/// Returns the settings of jobs in the folder `root`, or `None` if jobs are off.
fn job_settings(
    root: &Path,
    processes: &ProcessRunner,
    config: &Config,
) -> anyhow::Result<Option<JobSettings>> {
    let Some(folder) = jobs_folder(root, &config.jobs.to)? else { return Ok(None) };
    let share = caller_share(config);
    Ok(Some(JobSettings {
        running_per_caller: share(config.jobs.running),
        queued_per_caller: share(config.jobs.queued),
        mark: processes.mark().number(),
        end_leftovers: {
            let processes = processes.clone();
            Arc::new(move |mark| {
                if ServerMark::from_number(mark)
                    .is_some_and(|mark| processes.kill_leftovers_of(mark))
                {
                    tracing::info!("ended processes that a server left running when it was killed");
                }
            })
        },
        ..job_settings_in(folder, &config.jobs)
    }))
}

/// Returns job settings for `folder`, for tools that leave no programs running.
pub(crate) fn job_settings_in(folder: PathBuf, config: &config::JobsSection) -> JobSettings {
    JobSettings {
        folder,
        running_max: config.running,
        running_per_caller: config.running,
        queued_max: config.queued,
        queued_per_caller: config.queued,
        keep: Duration::from_millis(config.keep_ms),
        keep_max: Duration::from_millis(config.keep_max_ms),
        ended_max: config.ended,
        output_bytes_max: config.output_bytes,
        files_bytes_max: config.files_bytes,
        mark: 0,
        end_leftovers: Arc::new(|_| {}),
    }
}

/// Returns the folder in which jobs of the workspace `root` are stored. Servers of the same
/// workspace share the folder.
pub(crate) fn jobs_folder(root: &Path, to: &str) -> anyhow::Result<Option<PathBuf>> {
    let folder = match to {
        "off" => return Ok(None),
        "state" => state_folder().map(|state| state.join("jobs")),
        path if Path::new(path).is_absolute() => Some(PathBuf::from(path)),
        path => bail!(
            "jobs.to is `{path}`; write an absolute path (a relative path would be in the workspace, \
             where tools can write), `state` or `off`"
        ),
    };
    // Each workspace has its own folder, so that servers never run each other's jobs.
    Ok(folder.map(|folder| folder.join(workspace_folder_name(&resolve_links(root)))))
}

/// Returns the folders of the search index. Servers of the same workspace share them.
fn search_folders(root: &Path, cache: &str) -> search::IndexFolders {
    let cache = match cache {
        "memory" => None,
        "user" => cache_folder().map(|cache| cache.join("search")),
        path => Some(PathBuf::from(path)),
    };
    let documents =
        state_folder().map(|state| state.join("documents").join(workspace_folder_name(root)));
    search::IndexFolders { cache, documents }
}

/// Returns a folder name for the workspace at the resolved path `real`.
fn workspace_folder_name(real: &Path) -> String {
    let hash = blake3::hash(real.as_os_str().as_encoded_bytes()).to_hex();
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    let name = name.replace(|c: char| !c.is_alphanumeric(), "_");
    format!("{name}-{}", &hash[..16])
}

/// Returns the path of `file` relative to `root`, if it is inside. Links in `root` must be
/// [resolved](resolve_links).
pub fn relative_to_root(root: &Path, file: &Path) -> Option<String> {
    Some(resolve_links(file).strip_prefix(root).ok()?.to_str()?.to_owned())
}

/// Resolves all links in `path`. Returns `path` unchanged if it does not exist.
#[allow(clippy::disallowed_methods, reason = "the user's own paths, before anything is served")]
pub fn resolve_links(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns the sealer of session ids, with the configured key or a random one.
///
/// # Errors
/// The key file cannot be read, other users could have written it, or it is shorter than 32 bytes.
pub(crate) fn session_sealer(config: &Config) -> anyhow::Result<SessionSealer> {
    let mut key = [0; SESSION_KEY_BYTES];
    match &config.server.session_key {
        Some(path) => {
            let read = owned_files::read_owned(Path::new(path), owned_files::LinkPolicy::Followed);
            let (bytes, _) = read.context("in server.session_key")?;
            if bytes.len() < SESSION_KEY_BYTES {
                bail!(
                    "server.session_key: {path} has {} bytes, and needs at least {SESSION_KEY_BYTES}; \
                     create it with `head -c 32 /dev/urandom > {path}`",
                    bytes.len()
                );
            }
            if owned_files::is_readable_by_others(Path::new(path)) {
                tracing::warn!(
                    "{path}, the key of server.session_key, can be read by others; run `chmod go-r \
                     {path}`"
                );
            }
            key = *blake3::hash(&bytes).as_bytes();
        }
        None => getrandom::fill(&mut key).context("the system provides no random numbers")?,
    }
    Ok(SessionSealer::new(&key))
}

/// Returns the limits of a stdio client.
pub fn line_bounds(config: &Config) -> LineBounds {
    LineBounds {
        line_bytes_max: config.limits.message_bytes,
        in_flight_max: config.limits.in_flight,
        eof_grace: Duration::from_millis(config.limits.eof_grace_ms),
        drain: Duration::from_millis(config.server.drain_ms),
        wrap_up: wrap_up_time(config),
    }
}

/// Returns the time in which cancelled calls must end, plus 1 s in which the client can read their
/// answers.
fn wrap_up_time(config: &Config) -> Duration {
    Duration::from_millis(config.limits.cancel_grace_ms.saturating_add(1_000))
}

/// Returns the limits of the HTTP server.
pub fn http_bounds(config: &Config) -> toolgate_transports::http::HttpBounds {
    toolgate_transports::http::HttpBounds {
        body_bytes_max: config.limits.message_bytes,
        body_time_max: Duration::from_millis(config.server.body_time_ms),
        unsent_bytes_max: config.limits.message_bytes.saturating_mul(8).max(64 << 20),
        head_time_max: Duration::from_millis(config.server.head_time_ms),
        write_time_max: Duration::from_millis(config.server.write_time_ms),
        connections_max: config.server.connections_max,
        streams_max: config.server.streams_max.min(config.server.connections_max.div_ceil(2)),
        streams_each: config.server.streams_each,
        socket_waiting_messages: SOCKET_MESSAGES_MAX,
        socket_waiting_bytes: SOCKET_BYTES_MAX,
        occupancy: toolgate_transports::http::OccupancyCounter::default(),
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

fn convert_effects(effects: EffectsMax) -> Effects {
    match effects {
        EffectsMax::Reads => Effects::Reads,
        EffectsMax::Adds => Effects::Adds,
        EffectsMax::Changes => Effects::Changes,
        EffectsMax::Runs => Effects::Runs,
    }
}

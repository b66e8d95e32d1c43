//! Builds a host from settings. This is the only module that uses every toolset.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use http::Uri;
use toolgate_contract::{AnyTool, Caller, Effects, KeepActiveGuard, ToolId, ToolResultFormat};
use toolgate_dialects::{ServerCard, ServerInfo};
use toolgate_host::{
    AuditLog, Catalog, ContentLibrary, Gate, GateSettings, Host, JobSettings, JobStoreKind,
    JobsToolHandle, KnownToolSet, OutputSchemaCheck, OutputSchemaCheckRules, PolicyRule,
    TokenScope, ToolPolicy, ToolSearchHandle, ToolVectors, check_pattern, job_resources, job_tools,
    tool_search_tools,
};
use toolgate_toolsets::{
    assets, ci, commands, docs, exec, files, git, grammars, prompts, search, skills,
};
use toolgate_upstream::UpstreamState;
use toolgate_world::programs::ServerProcessMark;
use toolgate_world::{HttpFetcher, ProcessRunner, Root};

use crate::assembly::audit_setup;
use crate::assembly::config_reload::ConfigWatcher;
use crate::assembly::declared_tools::remove_replaced;
use crate::assembly::envelope_setup;
use crate::assembly::fleet_digests::settings_digests;
use crate::assembly::limits::{
    QUEUED_JOBS_MAX, call_limits, caller_share, job_limits, job_settings_in,
};
use crate::assembly::live_settings::{ReloadableSettings, SettingsLoader};
use crate::assembly::offer::PreparedServer;
use crate::assembly::rule_warnings;
use crate::assembly::server_prep::PreparedWorkspace;
use crate::assembly::tool_search::{searches_tools, tool_search_settings, tool_vectors};
use crate::assembly::{tool_sets, transport_limits};
use crate::config::{
    self, Config, ConsoleMode, LoadedConfig, ResourceKind, ToolEffectLimit, cache_folder,
    state_folder,
};
use crate::console;
use crate::owned_files::{self, OwnedFileSymlinkPolicy};
use crate::serve::exchange::{SESSION_KEY_BYTES, SessionIdSealer};
use crate::serve::listeners::ListenerSecurity;
use crate::telemetry::{self, TelemetrySinks};
use crate::upstreams::{self, UpstreamCatalog};

/// Name of the server that clients see.
const NAME: &str = "toolgate";

/// A workspace that the server serves, with its host, programs and upstreams.
pub struct ServedWorkspace {
    /// Host that answers requests.
    pub host: Arc<Host>,
    processes: ProcessRunner,
    http_sse: bool,
    card: Option<ServerCard>,
    zyra_body_bytes_max: Option<usize>,
    requires_credential: bool,
    tls: bool,
    results: ToolResultFormat,
    telemetry: TelemetrySinks,
    catalog: UpstreamCatalog,
    settings: Arc<ReloadableSettings>,
    /// Ids of the built-in tools that declared commands replaced when the workspace was opened.
    replaced: Vec<ToolId>,
}

impl ServedWorkspace {
    /// Opens the workspace `root` under `config`, so that it can be served.
    ///
    /// # Errors
    /// The configuration, a schema or the audit log is unusable.
    pub fn open(root: &Path, config: &Config) -> anyhow::Result<Self> {
        Self::assemble(PreparedWorkspace::prepare(root, config)?, config)
    }

    /// Opens the workspace that `prep` has prepared, under `config`, for a server. Logs each
    /// built-in tool that a declared command replaces.
    ///
    /// # Errors
    /// The configuration, a schema or the audit log is unusable.
    pub fn open_prepared(prep: PreparedWorkspace, config: &Config) -> anyhow::Result<Self> {
        let workspace = Self::assemble(prep, config)?;
        for tool in &workspace.replaced {
            tracing::info!("a declared command replaces the tool `{tool}`");
        }
        Ok(workspace)
    }

    fn assemble(prep: PreparedWorkspace, config: &Config) -> anyhow::Result<Self> {
        let PreparedWorkspace { root, workspace, files, declared, processes } = prep;
        grammars::parse_in_workers(&processes);
        let jobs = job_settings(&root, &processes, config)?;
        let digests = match jobs.as_ref().map(|jobs| &jobs.place) {
            Some(JobStoreKind::Postgres(database)) => Some(database.profile.settings.clone()),
            Some(JobStoreKind::Folder) | None => None,
        };
        if let Some(digests) = &digests {
            digests.replace(settings_digests(config, &root));
        }
        let handle = JobsToolHandle::default();
        let handle_of_jobs = jobs.is_some().then_some(&handle);
        let parts = WorkspaceServices::open(workspace, &processes, config, &files, handle_of_jobs)?;
        let WorkspaceFeatures { tools, mut library, replaced } =
            parts.tools(config, &files, declared)?;
        let opened = upstreams::open_upstreams(&parts.root, &processes, config, &library.changes)?;
        let upstreams = opened.upstreams.clone();
        library.dynamic_sources =
            Some(Arc::new(upstreams::UpstreamContentSources(upstreams.clone())));
        let schemas = envelope_setup::load_schemas(&root, config)?;
        let catalog = Catalog::with_schemas(tools, schemas.clone())?;
        let telemetry = TelemetrySinks::from_config(&config.telemetry, Some(&upstreams))?;
        let secrets = telemetry::redacted_secrets(config)?;
        telemetry::redact_from_log(secrets.clone());
        let audit = Arc::new(audit_setup::open_audit(&config.audit)?);
        let vectors = parts.tool_vectors.clone();
        let gate = build_gate(catalog, library, config, Some(&root), audit, vectors)?
            .with_secrets(secrets)
            .with_observer(telemetry.observer());
        let envelopes = envelope_setup::new_envelopes(&config.envelope, schemas.clone())?;
        let host = Host::new(gate, jobs).with_job_tools(&handle).with_envelopes(envelopes);
        let host = Arc::new(host.with_tool_search_tools(&parts.tool_search));
        let catalog = upstreams::offer_tools(opened, &host);
        let settings = Arc::new(ReloadableSettings {
            root,
            host: host.clone(),
            processes: processes.clone(),
            catalog: catalog.clone(),
            schemas,
            current: Mutex::new((config.clone(), parts)),
            loader: OnceLock::new(),
            digests,
        });
        Ok(Self {
            settings,
            host,
            processes,
            http_sse: config.server.http_sse,
            card: server_card(&config.server, NAME),
            zyra_body_bytes_max: config.contracts.zyra_body_bytes_max,
            requires_credential: config.requires_credential().unwrap_or(true),
            tls: config.server.tls_certificate.is_some(),
            results: config.server.results,
            telemetry,
            catalog,
            replaced,
        })
    }

    /// Opens the workspace `root` only for commands that inspect it, without audit log, envelope
    /// log and traces.
    ///
    /// # Errors
    /// The configuration or a schema is unusable.
    pub fn open_for_inspection(root: &Path, config: &Config) -> anyhow::Result<Self> {
        audit_setup::audit_destination(&config.audit)?;
        let mut config = config.clone();
        "off".clone_into(&mut config.audit.to);
        config.envelope.log_dir = None;
        config.telemetry.otlp = None;
        Self::open(root, &config)
    }

    /// Returns the workspace as a server that is ready to serve.
    pub fn server(&self) -> PreparedServer {
        let offered = self.host.tools(&Caller::local()).tools;
        let has_search = offered.iter().any(|tool| tool.spec().id.as_str() == "search.semantic");
        let search_tools = if has_search {
            "files_tree, search_semantic (by meaning) and search_text (exact text)"
        } else {
            "files_tree and files_search"
        };
        let info = ServerInfo {
            name: NAME.to_owned(),
            title: NAME.to_owned(),
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
            results: self.results,
        };
        PreparedServer::new(self.host.clone(), info, self.telemetry.clone())
            .with_console(self.settings.console_sources())
    }

    /// Returns the name and the state of each enabled upstream.
    pub fn upstream_states(&self) -> Vec<(String, UpstreamState)> {
        self.catalog.upstreams.states()
    }

    /// Returns the reason why the upstream that may have the tool `name` is unreachable, if it is.
    pub fn unavailable_upstream(&self, name: &str) -> Option<String> {
        self.catalog.upstreams.unavailable_reason(name)
    }

    /// Reloads the settings when the configuration `file`, or a file that it names, changes, until
    /// the returned guard is dropped.
    ///
    /// `load` reads the file again. `security` is the security of the listeners, if the server has
    /// any.
    pub fn watch_config(
        &self,
        file: PathBuf,
        load: impl Fn() -> anyhow::Result<LoadedConfig> + Send + Sync + 'static,
        security: Option<&ListenerSecurity>,
    ) -> KeepActiveGuard {
        let settings = self.settings.clone();
        let identity = security.map(|security| security.identity.clone());
        let load: SettingsLoader = Arc::new(load);
        // Settings are watched once.
        let _ = settings.loader.set(load.clone());
        ConfigWatcher { settings, identity, file, load: move || load() }.start()
    }

    /// Stops all jobs and programs of the workspace, and waits until all audit records are written.
    pub async fn close(&self) {
        self.host.stop_jobs().await;
        self.catalog.upstreams.close();
        self.processes.close().await;
        grammars::end_workers();
        self.host.flush();
        self.telemetry.close().await;
    }
}

/// Returns the server card, which describes the server to clients, with `name` as the server's
/// name. Returns `None` unless the server has a public URL whose host is a domain.
pub(crate) fn server_card(server: &config::ServerSection, name: &str) -> Option<ServerCard> {
    let url = server.url.clone()?;
    let host = url.parse::<Uri>().ok()?.host()?.to_ascii_lowercase();
    let is_plain =
        |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    let is_domain = host.contains('.') && is_plain(&host) && host.parse::<IpAddr>().is_err();
    // For example, `tools.example` becomes `example.tools/toolgate`.
    let labels: Vec<&str> = host.rsplit('.').collect();
    (is_domain && is_plain(name))
        .then(|| ServerCard { name: format!("{}/{name}", labels.join(".")), url })
}

/// Builds the gate, which checks every call against the policy and limits of `config`. The gate
/// serves the tools in `catalog`, and the resources, prompts and skills of `library`. `root` is the
/// workspace. Fails if the policy is invalid.
pub(crate) fn build_gate(
    catalog: Catalog,
    mut library: ContentLibrary,
    config: &Config,
    root: Option<&Path>,
    audit: Arc<AuditLog>,
    vectors: Option<ToolVectors>,
) -> anyhow::Result<Gate> {
    let limits = &config.limits;
    let policy = ToolPolicy::new(
        &tool_sets::allowed_patterns(config, &catalog.ids()),
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
    let offers_records = config.resources.offers(ResourceKind::Audit);
    if offers_records {
        library.resources.extend(audit.resources());
    }
    let guards = library.resources.iter().map(|source| source.guard().id.clone());
    // Without an audit log, a rule about records is still valid.
    let records = offers_records.then(toolgate_host::audit_guard);
    let actions = match config.server.console {
        ConsoleMode::On => console::ACTIONS,
        ConsoleMode::Off => &[],
    };
    let actions = actions.iter().filter_map(|id| ToolId::new(id));
    let mut tools: Vec<_> = catalog.ids().into_iter().chain(guards).chain(records).collect();
    let has_tools = !tools.is_empty();
    tools.extend(actions);
    // Upstream tools are not known yet, and a disabled upstream may have rules too.
    let prefixes = config.upstream.values().filter_map(|upstream| upstream.prefix.clone());
    // The tool that reads long results exists if there are upstreams.
    let results = config.upstream.values().next().map(|_| "results".to_owned());
    let searching = searches_tools(config).then(|| "tools".to_owned());
    let later = config.upstream.keys().cloned().chain(prefixes).chain(results).chain(searching);
    let known = KnownToolSet { tools, later_toolsets: later.collect() };
    // A server without tools may still have resources or prompts, so its rules are not checked.
    let known = has_tools.then_some(known);
    if let Some(known) = &known {
        policy.check(known).map_err(|err| rule_warnings::add_line(&err, config))?;
        for rule in &config.sandbox.rules {
            check_pattern("sandbox.for", &rule.tools, known)?;
        }
        for pattern in &config.discovery.favourites {
            check_pattern("discovery.favourites", pattern, known)?;
        }
    }
    for warning in rule_warnings::warnings(&config.policy.rules) {
        tracing::warn!("{warning}");
    }
    let slots = call_limits(config)?;
    if let Some(known) = &known {
        slots.check(known)?;
    }
    let shadow = config.validation.shadow.iter();
    let rules: Vec<_> = shadow.map(|tools| (tools.as_str(), OutputSchemaCheck::Shadow)).collect();
    let output_checks = OutputSchemaCheckRules::new(&rules, OutputSchemaCheck::Enforce)?;
    if let Some(known) = &known {
        output_checks.check_rules(known)?;
    }
    let settings = GateSettings {
        deadline: Duration::from_millis(limits.deadline_ms),
        output_checks,
        recorded_arguments: config.audit.arguments.into(),
        keeps_recent_calls: console::keeps_recent_calls(config),
        ..GateSettings::default()
    };
    let gate = Gate::new(catalog, policy, slots, audit, settings);
    let gate = gate.with_input_memory(transport_limits::input_memory(config));
    Ok(gate.with_library(library).with_tool_search(tool_search_settings(config), vectors)?)
}

/// Converts the configured scopes of tokens to a list of `TokenScope`.
fn token_scopes(scopes: &[config::oauth::OAuthScopeEntry]) -> Vec<TokenScope> {
    let scopes = scopes.iter().map(|scope| TokenScope {
        name: scope.name.clone(),
        tools: scope.tools.clone(),
        effects: convert_effects(scope.effects),
    });
    scopes.collect()
}

/// Tools, resources, prompts and skills that a workspace offers without its upstreams.
pub(crate) struct WorkspaceFeatures {
    pub(crate) tools: Vec<Arc<dyn AnyTool>>,
    pub(crate) library: ContentLibrary,
    /// Ids of the built-in tools that declared commands replace.
    pub(crate) replaced: Vec<ToolId>,
}

/// Services that the tools of a workspace use, such as the search index and the program runner.
/// When the settings are reloaded, only services with changed settings are replaced.
pub(crate) struct WorkspaceServices {
    root: Root,
    programs: exec::WorkspaceProgramRunner,
    search: Arc<search::SearchService>,
    assets: Option<Arc<assets::AssetSnapshot>>,
    /// Reference through which the `jobs.*` tools reach the jobs, or `None` if jobs are disabled.
    jobs: Option<JobsToolHandle>,
    /// Reference through which the tools that find and call other tools reach the gate.
    tool_search: ToolSearchHandle,
    /// Vectors that tool search uses to compare tools, if an embedding model is configured.
    pub(crate) tool_vectors: Option<ToolVectors>,
}

impl WorkspaceServices {
    /// Opens the services that the tools of the workspace `root` use, such as the search index.
    fn open(
        root: Root,
        processes: &ProcessRunner,
        config: &Config,
        files: &files::FileSettings,
        jobs: Option<&JobsToolHandle>,
    ) -> anyhow::Result<Self> {
        let programs = exec::WorkspaceProgramRunner::new(&root, processes, &config.exec);
        let folders = search_folders(root.path(), &config.search.cache);
        let fetch = HttpFetcher::default();
        let search = search::SearchService::new(&root, &config.search, files, folders, &fetch)
            .map_err(|why| anyhow!(why))?;
        let assets = open_assets(&root, &config.assets)?;
        let (jobs, tool_search) = (jobs.cloned(), ToolSearchHandle::default());
        let tool_vectors = tool_vectors(&search);
        Ok(Self { root, programs, search, assets, jobs, tool_search, tool_vectors })
    }

    /// Returns the services for the settings `config`. Keeps the search index and stored output.
    pub(crate) fn with_settings(&self, config: &Config) -> anyhow::Result<Self> {
        // A server for Synesthetic reads its assets once, as the contract demands.
        let assets = match config.assets.owner.always_offered {
            true => self.assets.clone(),
            false => open_assets(&self.root, &config.assets)?,
        };
        Ok(Self {
            root: self.root.clone(),
            programs: self.programs.with_settings(&config.exec),
            search: self.search.clone(),
            assets,
            jobs: self.jobs.clone(),
            tool_search: self.tool_search.clone(),
            tool_vectors: self.tool_vectors.clone(),
        })
    }

    /// Returns the folders of assets to watch for changes. Empty if assets are read only once.
    pub(crate) fn asset_folders(&self, settings: &assets::AssetSettings) -> Vec<PathBuf> {
        match settings.owner.always_offered {
            true => Vec::new(),
            false => settings.folders(self.root.path()).into(),
        }
    }

    /// Creates the tools of every toolset, and the library of resources, prompts and skills.
    pub(crate) fn tools(
        &self,
        config: &Config,
        files: &files::FileSettings,
        declared: Vec<commands::DeclaredCommand>,
    ) -> anyhow::Result<WorkspaceFeatures> {
        let Self { root, programs, search, assets, jobs, tool_search, tool_vectors: _ } = self;
        let mut tools = files::tools(root, files);
        tools.extend(programs.tools());
        tools.extend(git::tools(programs, &config.git));
        tools.extend(ci::tools(programs, env!("CARGO_PKG_VERSION")));
        tools.extend(search::tools(search));
        tools.extend(docs::tools(root, search));
        let mut library = ContentLibrary::default();
        if config.resources.offers(ResourceKind::Files) {
            library.resources.push(files::resources(root, files));
        }
        library.prompts = prompts::sources(root, &config.prompts);
        if let Some(skills) = skills::SkillLibrary::new(root, &config.skills) {
            library.resources.push(skills.clone());
            library.skills.push(skills);
        }
        if let Some(assets) = assets {
            tools.extend(assets::tools(assets, &config.assets, &HttpFetcher::default()));
            let source = assets::AssetResourceSource::new(assets);
            library.resources.extend(source.map(|source| source as _));
        }
        let replaced = remove_replaced(&mut tools, &declared)?;
        tools.extend(commands::tools(programs, declared));
        if let Some(jobs) = jobs {
            tools.extend(job_tools(jobs));
            if config.resources.offers(ResourceKind::Jobs) {
                library.resources.push(job_resources(jobs));
            }
        }
        if searches_tools(config) {
            tools.extend(tool_search_tools(tool_search));
        }
        Ok(WorkspaceFeatures { tools, library, replaced })
    }
}

/// Reads the assets of the workspace. Returns `None` if there are no assets. If they are unusable,
/// fails for a server of Synesthetic's clients. Otherwise logs an error and returns `None`.
fn open_assets(
    root: &Root,
    settings: &assets::AssetSettings,
) -> anyhow::Result<Option<Arc<assets::AssetSnapshot>>> {
    match assets::AssetSnapshot::open(root, settings) {
        Err(why) if !settings.owner.always_offered => {
            tracing::error!("no assets are served: {why}");
            Ok(None)
        }
        opened => Ok(opened?),
    }
}

/// Returns the settings of jobs in the workspace `root`, or `None` if jobs are disabled.
fn job_settings(
    root: &Path,
    processes: &ProcessRunner,
    config: &Config,
) -> anyhow::Result<Option<JobSettings>> {
    let Some(folder) = jobs_folder(root, &config.jobs.to)? else { return Ok(None) };
    let share = caller_share(config);
    let (_, running_per_caller) = job_limits(config);
    let database = config.fleet.job_store(&resolve_links(root)).map_err(anyhow::Error::msg)?;
    Ok(Some(JobSettings {
        place: database
            .map_or(JobStoreKind::Folder, |database| JobStoreKind::Postgres(Box::new(database))),
        running_per_caller,
        queued_per_caller: share(QUEUED_JOBS_MAX),
        mark: processes.mark().number(),
        end_leftovers: {
            let processes = processes.clone();
            Arc::new(move |mark| {
                if ServerProcessMark::from_number(mark)
                    .is_some_and(|mark| processes.kill_leftovers_of(mark))
                {
                    tracing::info!("ended processes that a server left running when it was killed");
                }
            })
        },
        report_alive: {
            let processes = processes.clone();
            Arc::new(move |silence| processes.report_alive(silence))
        },
        ..job_settings_in(folder, config)
    }))
}

/// Returns the folder in which jobs of the workspace `root` are stored, for the value `to` of the
/// setting `jobs.to`. Returns `None` if jobs are disabled, or if this user has no state folder.
/// Fails if `to` is invalid.
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

/// Returns the folders of the search index of `root`, which servers of the same workspace share.
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

/// Returns the name of the folder for data of the workspace at `real`, a path without symlinks.
fn workspace_folder_name(real: &Path) -> String {
    let hash = blake3::hash(real.as_os_str().as_encoded_bytes()).to_hex();
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    let name = name.replace(|c: char| !c.is_alphanumeric(), "_");
    format!("{name}-{}", &hash[..16])
}

/// Returns the path of `file` relative to `root`, or `None` if `file` is outside of `root`.
/// Symbolic links in `root` must be [resolved](resolve_links).
pub fn relative_to_root(root: &Path, file: &Path) -> Option<String> {
    Some(resolve_links(file).strip_prefix(root).ok()?.to_str()?.to_owned())
}

/// Resolves all symbolic links in `path`. Returns `path` unchanged if it does not exist.
#[allow(clippy::disallowed_methods, reason = "the user's own paths, before anything is served")]
pub fn resolve_links(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Sets the configured session key for the request states of `host`, and returns a sealer of
/// session ids with this key. Servers with the same key accept them. The default key is random.
///
/// # Errors
/// The key file cannot be read, other users could have written it, or it is shorter than 32 bytes.
pub(crate) fn session_sealer(config: &Config, host: &Host) -> anyhow::Result<SessionIdSealer> {
    let mut key = [0; SESSION_KEY_BYTES];
    match &config.server.session_key {
        Some(path) => {
            let read = owned_files::read_owned(Path::new(path), OwnedFileSymlinkPolicy::Followed);
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
            host.share_request_states(&bytes);
            key = *blake3::hash(&bytes).as_bytes();
        }
        None => getrandom::fill(&mut key).context("the system provides no random numbers")?,
    }
    Ok(SessionIdSealer::new(&key))
}

fn convert_effects(effects: ToolEffectLimit) -> Effects {
    match effects {
        ToolEffectLimit::Reads => Effects::Reads,
        ToolEffectLimit::Adds => Effects::Adds,
        ToolEffectLimit::Changes => Effects::Changes,
        ToolEffectLimit::Runs => Effects::Runs,
    }
}

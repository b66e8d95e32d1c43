//! The settings in force of a served workspace, and the objects of the server that depend on them.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use anyhow::anyhow;
use toolgate_contract::{Caller, lock_mutex};
use toolgate_host::{Catalog, Gate, Host, RejectedTool, SchemaRegistry, SettingsDigests};
use toolgate_toolsets::{commands, files};
use toolgate_world::ProcessRunner;

use crate::assembly::declared_tools::check_command_hosts;
use crate::assembly::fleet_digests::settings_digests;
use crate::assembly::limits::job_limits;
use crate::assembly::wiring::{WorkspaceFeatures, WorkspaceServices, build_gate};
use crate::assembly::{audit_setup, pins, protected_paths};
use crate::config::restart::{applied_settings, changed_settings};
use crate::config::{Config, LoadedConfig, environment};
use crate::console::{ConsoleWorkspaceAccess, SettingsPreview};
use crate::identity::Authenticator;
use crate::telemetry::{self, StagedLogLevel};
use crate::upstreams::{self, UpstreamCatalog};

/// Function that loads the settings again from the configuration file and the environment.
pub(crate) type SettingsLoader = Arc<dyn Fn() -> anyhow::Result<LoadedConfig> + Send + Sync>;

/// Settings in force, together with the objects of the server that depend on them, such as the
/// policy check of calls.
pub(crate) struct ReloadableSettings {
    pub(crate) root: PathBuf,
    pub(crate) host: Arc<Host>,
    pub(crate) processes: ProcessRunner,
    pub(crate) catalog: UpstreamCatalog,
    pub(crate) schemas: Arc<SchemaRegistry>,
    pub(crate) current: Mutex<(Config, WorkspaceServices)>,
    /// Function that loads the settings again. Set only if the server watches the settings for
    /// changes.
    pub(crate) loader: OnceLock<SettingsLoader>,
    /// Digests of the settings for `toolgate fleet status`, if servers share a job database.
    pub(crate) digests: Option<SettingsDigests>,
}

/// Changes of the settings that a reload applied, and changes that need a restart.
pub(crate) struct SettingsChange {
    /// Names of the changed settings that are in force now.
    pub(crate) applied: Vec<String>,
    /// Names of the changed upstreams, each with a short text about the change, such as `is new`.
    pub(crate) upstreams: Vec<(String, &'static str)>,
    /// Names of the changed settings that have no effect before a restart.
    pub(crate) waiting: Vec<String>,
    /// Upstream tools that are unavailable under the new settings.
    pub(crate) rejected: Vec<RejectedTool>,
}

impl ReloadableSettings {
    /// Returns the paths of files and folders whose content is part of the settings in force, such
    /// as files of secrets.
    pub(crate) fn sources(&self) -> ReferencedSettingsPaths {
        let current = lock_mutex(&self.current);
        let (config, parts) = &*current;
        ReferencedSettingsPaths {
            files: config.secrets.files.iter().map(PathBuf::from).collect(),
            packs: commands::pack_paths(&config.commands, config.source.as_ref()).collect(),
            assets: parts.asset_folders(&config.assets),
        }
    }

    /// Returns the handle with which the web console reads and changes the workspace.
    pub(crate) fn console_sources(self: &Arc<Self>) -> ConsoleWorkspaceAccess {
        let in_force = |settings: &Self| lock_mutex(&settings.current).0.clone();
        let log = audit_setup::audit_file(&in_force(self).audit).ok().flatten();
        let settings = self.clone();
        let reviewed = self.clone();
        let compared = self.clone();
        let previewed = self.clone();
        ConsoleWorkspaceAccess {
            host: self.host.clone(),
            upstreams: self.catalog.upstreams.clone(),
            settings: Arc::new(move || in_force(&settings)),
            review_pins: Arc::new(move |name, seen| {
                let settings = reviewed.clone();
                Box::pin(async move {
                    let upstreams = &settings.catalog.upstreams;
                    pins::review(&settings.root, upstreams, &name, seen.as_deref()).await
                })
            }),
            changed_pins: Arc::new(move || {
                pins::changed_upstreams(&compared.root, &compared.catalog.upstreams)
            }),
            preview_settings: Arc::new(move || previewed.preview()),
            log: log.map(|file| file.path),
            root: self.root.clone(),
        }
    }

    /// Puts the configuration `next` into force. Also updates `identity`, which authenticates
    /// callers over HTTP. If `rereads` is true, the files that the configuration names have changed
    /// as well.
    ///
    /// Checks all new settings before replacing any. An error therefore changes nothing, and each
    /// call is checked either by all old settings or by all new ones.
    ///
    /// # Errors
    /// A setting is invalid, or a file cannot be read.
    pub(crate) fn apply(
        &self,
        next: &Config,
        identity: Option<&Authenticator>,
        rereads: bool,
    ) -> anyhow::Result<SettingsChange> {
        let mut current = lock_mutex(&self.current);
        let (before, parts) = &*current;
        let (next, waiting) = applied_settings(before, next);
        let applied = changed_settings(before, &next);
        if applied.is_empty() && !rereads {
            let (upstreams, rejected) = (Vec::new(), Vec::new());
            return Ok(SettingsChange { applied, upstreams, waiting, rejected });
        }
        let has_changed =
            |section: &str| applied.iter().any(|name| name.split('.').next() == Some(section));
        upstreams::check_upstreams(&next)?;
        let declared = commands::load_commands(&next.commands, next.source.as_ref())?;
        check_command_hosts(&next.sandbox, &declared)?;
        let files = protected_paths::protected_settings(&self.root, &next, &declared)?;
        let variables = environment();
        protected_paths::check_allowed_programs(&self.root, &next, &variables)?;
        let additions = protected_paths::sandbox_additions(&next, &files, &declared, &variables);
        let sandbox = self.processes.sandbox();
        let sandbox = match sandbox.has_settings(&next.sandbox, &additions) {
            true => None,
            false => {
                Some(sandbox.with_settings(&next.sandbox, additions).map_err(|why| anyhow!(why))?)
            }
        };
        let (parts, gate) = self.next_gate(parts, &next, &files, declared)?;
        let secrets = telemetry::redacted_secrets(&next)?;
        let gate = gate.with_secrets(secrets.clone());
        let credentials =
            identity.map(|identity| identity.prepare(&next, has_changed("oauth"))).transpose()?;
        let level = StagedLogLevel::parse(&next.log.level)?;
        // The number of callers decides how much of a limit each of them gets.
        let resets_limits = ["limits", "keys", "oauth"].into_iter().any(has_changed);

        let restarts_programs = has_changed("sandbox");
        let mut rejected = Vec::new();
        let upstreams = self.catalog.change_upstreams(&next, restarts_programs, || {
            if let Some(sandbox) = sandbox {
                self.processes.replace_sandbox(sandbox);
            }
            telemetry::redact_from_log(secrets);
            rejected = self.host.replace_gate(gate, resets_limits);
            let (total, per_caller) = job_limits(&next);
            self.host.limit_jobs(total, per_caller);
        });
        let upstreams = upstreams.map_err(|why| anyhow!(why))?;
        if let (Some(identity), Some(credentials)) = (identity, credentials) {
            identity.replace(credentials);
        }
        level.apply();
        if let Some(digests) = &self.digests {
            digests.replace(settings_digests(&next, &self.root));
        }
        *current = (next, parts);
        Ok(SettingsChange { applied, upstreams, waiting, rejected })
    }

    /// Creates the workspace's services from `parts`, and the gate that checks calls, for the
    /// settings `next`. Does not put them into force. Fails if a setting is invalid.
    fn next_gate(
        &self,
        parts: &WorkspaceServices,
        next: &Config,
        files: &files::FileSettings,
        declared: Vec<commands::DeclaredCommand>,
    ) -> anyhow::Result<(WorkspaceServices, Gate)> {
        let parts = parts.with_settings(next)?;
        let WorkspaceFeatures { tools, library, .. } = parts.tools(next, files, declared)?;
        let catalog = Catalog::with_schemas(tools, self.schemas.clone())?;
        let (audit, vectors) = (self.host.audit(), parts.tool_vectors.clone());
        let gate = build_gate(catalog, library, next, Some(&self.root), audit, vectors)?;
        Ok((parts, gate))
    }

    /// Returns the changes that a reload of the settings would make now, without making them.
    /// Returns `None` if this server does not reload settings.
    ///
    /// # Errors
    /// A setting is invalid, or a file cannot be read. A reload would fail for the same reason.
    fn preview(&self) -> anyhow::Result<Option<SettingsPreview>> {
        let Some(load) = self.loader.get() else { return Ok(None) };
        let next = load()?.config;
        let current = lock_mutex(&self.current);
        let (before, parts) = &*current;
        let (in_force, waiting) = applied_settings(before, &next);
        let applied = changed_settings(before, &in_force);
        let person = Caller::local();
        let now = self.host.own_tools(&person);
        let mut then = now.clone();
        if !applied.is_empty() {
            upstreams::check_upstreams(&in_force)?;
            let declared = commands::load_commands(&in_force.commands, in_force.source.as_ref())?;
            let files = protected_paths::protected_settings(&self.root, &in_force, &declared)?;
            let (_, gate) = self.next_gate(parts, &in_force, &files, declared)?;
            then = gate.own_tools(&person);
        }
        let added = then.iter().filter(|id| !now.contains(id)).cloned().collect();
        let removed = now.iter().filter(|id| !then.contains(id)).cloned().collect();
        Ok(Some(SettingsPreview { next, applied, waiting, added, removed }))
    }
}

/// Paths of the files and folders that a server reads as settings, apart from the settings file.
pub(crate) struct ReferencedSettingsPaths {
    /// Files that contain secrets, one per line.
    pub(crate) files: Vec<PathBuf>,
    /// Packs of declared commands: files, and folders of `*.toml` files.
    pub(crate) packs: Vec<PathBuf>,
    /// Folders of assets, which are read with their subfolders.
    pub(crate) assets: Vec<PathBuf>,
}

//! Prepares a workspace: creates everything that must exist before the server process confines
//! itself.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use toolgate_toolsets::commands::{self, DeclaredCommand};
use toolgate_toolsets::files;
use toolgate_world::root::hide_path;
use toolgate_world::sandbox::{ServerPathAccess, confine_server};
use toolgate_world::{ProcessRunner, Root, Sandbox};

use crate::assembly::audit_setup;
use crate::assembly::declared_tools::check_command_hosts;
use crate::assembly::envelope_setup;
use crate::assembly::protected_paths;
use crate::assembly::wiring::{jobs_folder, resolve_links};
use crate::config::{Config, cache_folder, environment, key_file, state_folder};
use crate::upstreams;

/// A prepared workspace. The next steps are to confine the server process, and to serve the
/// workspace.
pub struct PreparedWorkspace {
    pub(crate) root: PathBuf,
    /// The workspace folder, with the ignore rules in the folders above it. The confined server
    /// cannot read these rules later.
    pub(crate) workspace: Root,
    pub(crate) files: files::FileSettings,
    pub(crate) declared: Vec<DeclaredCommand>,
    pub(crate) processes: ProcessRunner,
}

impl PreparedWorkspace {
    /// Prepares the folder `root` under `config` and creates the process launcher for its programs.
    ///
    /// # Errors
    /// The configuration does not fit the folder or this system.
    pub fn prepare(root: &Path, config: &Config) -> anyhow::Result<Self> {
        audit_setup::secret_paths(config)?.iter().for_each(|path| hide_path(path));
        upstreams::check_upstreams(config)?;
        let declared = commands::load_commands(&config.commands, config.source.as_ref())?;
        check_command_hosts(&config.sandbox, &declared)?;
        let files = protected_paths::protected_settings(root, config, &declared)?;
        let variables = environment();
        protected_paths::check_allowed_programs(root, config, &variables)?;
        let additions = protected_paths::sandbox_additions(config, &files, &declared, &variables);
        let sandbox = Sandbox::new(&config.sandbox, additions).map_err(|why| anyhow!(why))?;
        let processes = ProcessRunner::with_sandbox_in(root, variables, sandbox)
            .context("cannot run programs")?;
        let workspace = Root::open(root)
            .with_context(|| format!("cannot serve the folder {}", root.display()))?
            .with_ignore_rules_above();
        Ok(Self { root: root.to_owned(), workspace, files, declared, processes })
    }

    /// Confines this process to the files that it needs, if `config` enables this and the system
    /// supports it.
    ///
    /// Call this before any other thread starts. Returns the reason if confinement is not possible.
    ///
    /// # Errors
    /// A configured path is invalid.
    pub fn confine_server(&self, config: &Config) -> anyhow::Result<Option<String>> {
        if !config.server.confined {
            tracing::warn!("the server itself is not confined (server.confined = false)");
            return Ok(None);
        }
        let confined = confine_server(&self.file_access(config)?);
        if confined.is_ok() {
            tracing::debug!("the server itself is confined");
        }
        Ok(confined.err())
    }

    /// Returns the folders that the confined server may read and write. Creates writable folders
    /// that are missing. Fails if a configured path is invalid.
    fn file_access(&self, config: &Config) -> anyhow::Result<ServerPathAccess> {
        let parent = |path: PathBuf| path.parent().map(Path::to_owned);
        let own = [state_folder(), cache_folder(), envelope_setup::log_folder(&config.envelope)?];
        let jobs = jobs_folder(&self.root, &config.jobs.to)?;
        let cache = Some(PathBuf::from(&config.search.cache)).filter(|path| path.is_absolute());
        let records = audit_setup::audit_file(&config.audit)?;
        let records = records.into_iter().flat_map(|file| [file.path, file.key]);
        let ready = config.contracts.ready_file.clone();
        let parents = records.chain(ready).filter_map(parent);
        let writable = own.into_iter().flatten().chain(jobs).chain(cache).chain(parents);
        let writable: Vec<_> = writable.collect();
        writable.iter().for_each(|folder| create_folder(folder));
        // It is not created: without it, the shared file system is not mounted.
        let shared = config.fleet.files_folder().map(Path::to_owned);
        let writable = writable.into_iter().chain(shared);
        let writes = [resolve_links(&self.root), std::env::temp_dir()].into_iter().chain(writable);

        // Watch the parent folders: a replaced file is a new file in the same folder.
        let server = &config.server;
        let tls = [&server.tls_certificate, &server.tls_key, &server.session_key];
        let tls = tls.into_iter().flatten();
        let secrets = config.secrets.files.iter().chain(tls).map(PathBuf::from);
        // The configuration is read again when it changes.
        let source = config.source.iter().map(|source| source.file.clone());
        let named = secrets.chain(key_file::path(server)?).chain(source).filter_map(parent);
        let roots = config.search.outside_folders().map(PathBuf::from);
        let model = config.search.embedder.folder.iter().map(PathBuf::from);
        let assets = &config.assets;
        let assets =
            [&assets.schemas, &assets.examples, &assets.owner.schemas, &assets.owner.examples];
        let assets = assets.into_iter().flatten().map(|folder| self.root.join(folder));
        let trusted = ["SSL_CERT_FILE", "SSL_CERT_DIR"];
        let trusted = trusted.into_iter().filter_map(|name| self.processes.variable(name));
        let trusted = trusted.map(PathBuf::from);
        // Needed to suggest a similar program name in errors.
        let path = self.processes.search_path();
        let programs = path.split(':').map(PathBuf::from);
        // Files that programs write there are kept with their jobs.
        let written = self.processes.writable_folders();
        let reads = named.chain(roots).chain(model).chain(assets).chain(trusted).chain(programs);
        let reads = reads.chain(written);
        Ok(ServerPathAccess { reads: reads.collect(), writes: writes.collect() })
    }
}

/// Creates `folder` if it is missing. Ignores failures, because the code that uses the folder
/// reports them.
#[allow(clippy::disallowed_methods, reason = "the server's own folders, outside the workspace")]
pub(crate) fn create_folder(folder: &Path) {
    let _ = DirBuilder::new().recursive(true).mode(0o700).create(folder);
}

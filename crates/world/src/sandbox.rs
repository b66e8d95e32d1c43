//! Confines the programs that tools start: limits the files, processes and networks that they can
//! reach.
//!
//! The server does not start a confined program directly. It starts a
//! [helper](run_helper_if_asked): a small program, or its own executable under another name. The
//! helper sets up the namespaces and mounts, drops privileges, and then executes the program. The
//! file tree that a confined program sees is called its view.
//!
//! A [worker](run_worker_if_asked) is the server's own code in a process that gives up its rights.

#![allow(
    clippy::disallowed_methods,
    reason = "this module inspects the machine to build a program's view"
)]

mod settings;
mod coverage;
mod view;
mod guarded_paths;
mod reserved_names;
mod helper_messages;
mod exit_pipe;
mod helper_executable;
mod standby;
mod layers;
mod cgroups;
mod seccomp;
mod plan;
mod setup_step;
mod helper;
mod kernel;
mod capabilities;
mod network_check;
mod run_folder;
mod trusted_certificates;
mod ssh_connector;
mod ssh_access;
mod confine;
mod unconfined_thread;
mod server_confinement;
mod namespace_check;
mod worker_frames;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use globset::{Glob, GlobMatcher};
use toolgate_contract::glob_problem;

pub use coverage::{MissingSandboxLayer, SandboxCoverage, SandboxLayer};
pub use namespace_check::namespace_obstacle;
#[cfg(any(fuzzing, test))]
pub(crate) use plan::check as fuzz_plans;
pub use server_confinement::{ServerPathAccess, confine_thread as confine_server};
pub use settings::{
    GitFolderAccess, IncompleteSandboxPolicy, RestoreRegistryAccess, SandboxCredential,
    SandboxProfile, SandboxProfileRule, SandboxSettings, SandboxSshRemote,
};

pub(super) use confine::{ConfinedProgramResources, SandboxedProgramStart};
pub use coverage::IncompleteSandboxError;
pub use setup_step::{SandboxSetupFailure, SandboxSetupStep};
pub use worker::{WorkerProcessLimits, run_worker_if_asked};
pub(super) use worker_frames::{read_frame, write_frame};

use super::Root;
use super::forwarder::{HostCredential, PackageHostSource, ProgramHostAccess, SshRemote};
use super::programs::HELPER_NAME;
use capabilities::SandboxCapabilities;
use guarded_paths::GuardedPaths;
use network_check::SandboxNetworkTestResults;
pub(super) use reserved_names::LeftoverPlaceholders;
use reserved_names::ReservedFileNames;
use ssh_connector::CONNECTOR_NAME;
use standby::IdleSandboxHelpers;
use unconfined_thread::UnconfinedThread;

/// The sandbox that confines programs. Clones are cheap.
#[derive(Clone)]
pub struct Sandbox(Arc<SandboxState>);

struct SandboxState {
    settings: SandboxSettings,
    paths: SandboxPaths,
    rules: Vec<ToolSandboxRule>,
    /// The hosts that a program may reach if no `[[sandbox.for]]` rule applies to it.
    hosts: Option<Arc<ProgramHostAccess>>,
    /// The credentials that forwarders add to requests of programs.
    credentials: Vec<HostCredential>,
    /// The SSH servers that programs may use.
    ssh_remotes: Vec<SshRemote>,
    /// The results of the tests of the network that confined programs have.
    network_tests: SandboxNetworkTestResults,
    reserved: ReservedFileNames,
    idle: IdleSandboxHelpers,
    /// A thread outside the server's own confinement, which tests the sandbox on this system.
    /// `None` if no program is confined.
    unconfined_thread: Option<Arc<UnconfinedThread>>,
    /// The sandbox capabilities of this system. Tests determine them before the first confined
    /// program starts.
    capabilities: OnceLock<Result<SandboxCapabilities, String>>,
}

/// A `[[sandbox.for]]` rule of the settings, which sets the profile for the programs of some tools.
struct ToolSandboxRule {
    tools: GlobMatcher,
    profile: SandboxProfile,
    hosts: Option<Arc<ProgramHostAccess>>,
}

/// The confinement of one program: its sandbox profile, and the paths and hosts that it may use.
pub struct ProgramConfinement {
    /// The sandbox profile that applies to the program.
    pub profile: SandboxProfile,
    /// The workspace that the program is confined to.
    pub workspace: Root,
    /// `true` if the program may only read the workspace, even if its profile allows more.
    pub read_only: bool,
    /// The workspace's `.git` folder, if the program is git and may change this folder.
    pub git_folder: Option<PathBuf>,
    /// Additional paths that the program sees.
    pub visible_paths: Vec<PathBuf>,
    /// Files and folders of a git repository outside the workspace that the program sees.
    pub repository_places: Vec<OutsideRepositoryPath>,
    /// Folders of package caches that the program sees. A program that may write the workspace may
    /// write them, too.
    pub cache_folders: Vec<PathBuf>,
    /// Package managers whose caches the program gets, in addition to those of the presets in
    /// `hosts`.
    pub cache_sources: Vec<PackageHostSource>,
    /// The only files and folders that may be executed. `None` allows every file that the program
    /// sees.
    pub executables: Option<Vec<PathBuf>>,
    /// The hosts that the program may reach through a forwarder. `None` if its profile alone
    /// decides about the network.
    pub hosts: Option<Arc<ProgramHostAccess>>,
}

/// A file or folder of a git repository that is outside the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutsideRepositoryPath {
    /// Path of the file or folder. The sandbox leaves out a path that does not exist.
    pub path: PathBuf,
    /// `true` if a program that may write the workspace may also write this path.
    pub is_writable: bool,
}

impl ProgramConfinement {
    /// Returns `true` if the program may write the workspace and the folders of `sandbox.write`.
    pub fn may_write(&self) -> bool {
        !self.read_only && self.profile != SandboxProfile::ReadOnly
    }

    /// Returns `true` if the program may reach any host outside its own network namespace.
    pub fn has_network(&self) -> bool {
        self.hosts.is_some() || self.profile >= SandboxProfile::Network
    }

    /// Limits the program's network to `access`, even if its profile allows more.
    pub fn limit_to_hosts(&mut self, access: &Arc<ProgramHostAccess>) {
        self.profile = self.profile.min(SandboxProfile::Workspace);
        self.hosts = Some(access.clone());
    }
}

/// Paths that the server passes to the sandbox in addition to the [`SandboxSettings`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SandboxPaths {
    /// The values of `PATH` in which the server searches for programs.
    pub search_paths: Vec<String>,
    /// Paths that no program may change, relative to the workspace.
    pub guarded: Vec<String>,
    /// Paths of instruction files for agents, relative to the workspace. No program may change
    /// these files, but git may check out committed versions.
    pub instructions: Vec<String>,
    /// The server's own folders, as absolute paths. They are hidden from all programs.
    pub hidden: Vec<PathBuf>,
    /// The folder of the package caches, as an absolute path. The programs of each workspace write
    /// to a subfolder. `None` if there are no caches.
    pub package_caches: Option<PathBuf>,
    /// The folder in which the server stores the hosts that a person allowed, as an absolute path.
    /// `None` if it does not store them.
    pub allowed_hosts: Option<PathBuf>,
}

impl Sandbox {
    /// Creates a disabled sandbox: all programs run unconfined, with the server's rights.
    pub fn disabled() -> Self {
        let settings =
            SandboxSettings { profile: SandboxProfile::Off, ..SandboxSettings::default() };
        let paths = SandboxPaths::default();
        Self::from_parts(
            settings,
            paths,
            CompiledSandboxRules::default(),
            None,
            ReservedFileNames::default(),
        )
    }

    /// Creates the sandbox that `settings` describe. The `main` function of the executable must
    /// first call [`run_helper_if_asked`].
    ///
    /// # Errors
    /// The settings are invalid, or no thread can be started.
    pub fn new(settings: &SandboxSettings, paths: SandboxPaths) -> Result<Self, String> {
        let rules = compile_rules(settings)?;
        helper_executable::open_small_helper();
        let outside = UnconfinedThread::start().map_err(|err| err.to_string())?;
        let outside = Some(Arc::new(outside));
        Ok(Self::from_parts(settings.clone(), paths, rules, outside, ReservedFileNames::default()))
    }

    /// Returns a sandbox with `settings` and `paths`, which shares the reserved names and the
    /// unconfined thread of this sandbox.
    ///
    /// # Errors
    /// Fails if the settings are invalid.
    pub fn with_settings(
        &self,
        settings: &SandboxSettings,
        paths: SandboxPaths,
    ) -> Result<Self, String> {
        let rules = compile_rules(settings)?;
        let outside = self.0.unconfined_thread.clone();
        Ok(Self::from_parts(settings.clone(), paths, rules, outside, self.0.reserved.clone()))
    }

    /// Returns true if this sandbox was created with `settings` and `paths`.
    pub fn has_settings(&self, settings: &SandboxSettings, paths: &SandboxPaths) -> bool {
        self.0.settings == *settings && self.0.paths == *paths
    }

    /// Returns the confinement of a program that `tool` starts in `workspace`. Returns `None` if
    /// the program is unconfined.
    ///
    /// The first matching `[[sandbox.for]]` rule decides. If no rule matches and `only_reads` is
    /// set, a program with the profile `workspace` may only read the workspace.
    pub fn confinement_for(
        &self,
        tool: &str,
        only_reads: bool,
        workspace: &Root,
    ) -> Option<ProgramConfinement> {
        let rule = self.0.rules.iter().find(|rule| rule.tools.is_match(tool));
        let (profile, only_reads) = match (rule, self.0.settings.profile) {
            (Some(rule), _) => (rule.profile, false),
            (None, SandboxProfile::Workspace) if only_reads => (SandboxProfile::ReadOnly, true),
            (None, profile) => (profile, only_reads),
        };
        let hosts = rule.map_or(&self.0.hosts, |rule| &rule.hosts).clone();
        let confinement = Self::new_confinement(profile, only_reads, workspace)?;
        Some(ProgramConfinement { hosts, ..confinement })
    }

    /// Returns the setting that decides if `tool` may reach the user's package registry to restore
    /// dependencies. Returns `None` if a `[[sandbox.for]]` rule applies to `tool`, or if the
    /// profile of other programs is not `workspace`.
    pub fn restore_access(&self, tool: &str) -> Option<RestoreRegistryAccess> {
        let SandboxState { settings, rules, .. } = &*self.0;
        let is_ruled = rules.iter().any(|rule| rule.tools.is_match(tool));
        let is_workspace = settings.profile == SandboxProfile::Workspace;
        (is_workspace && !is_ruled).then_some(settings.restore)
    }

    /// Returns `true` if the settings show programs files or folders outside the workspace.
    pub fn shows_other_folders(&self) -> bool {
        let SandboxSettings { read, write, .. } = &self.0.settings;
        !(read.is_empty() && write.is_empty())
    }

    /// Returns the package managers that are asked for hosts because of presets in the settings,
    /// each once.
    pub fn host_sources(&self) -> Vec<PackageHostSource> {
        let state = &self.0;
        let ruled = state.rules.iter().filter_map(|rule| rule.hosts.as_ref());
        let all = state.hosts.iter().chain(ruled).flat_map(|access| access.sources.iter().copied());
        all.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns the confinement of a program in `workspace` under `profile`. `None` if the program
    /// is unconfined.
    pub fn confinement_with(
        &self,
        profile: SandboxProfile,
        workspace: &Root,
    ) -> Option<ProgramConfinement> {
        Self::new_confinement(profile, false, workspace)
    }

    /// Returns the paths that the server passed to this sandbox.
    pub(super) fn paths(&self) -> &SandboxPaths {
        &self.0.paths
    }

    /// Returns `true` if no program but git may change the workspace's `.git` folder.
    pub(super) fn protects_git_folder(&self) -> bool {
        self.0.settings.git == GitFolderAccess::Read
    }

    fn new_confinement(
        profile: SandboxProfile,
        only_reads: bool,
        workspace: &Root,
    ) -> Option<ProgramConfinement> {
        let inside = ProgramConfinement {
            profile,
            workspace: workspace.clone(),
            read_only: only_reads,
            git_folder: None,
            visible_paths: Vec::new(),
            repository_places: Vec::new(),
            cache_folders: Vec::new(),
            cache_sources: Vec::new(),
            executables: None,
            hosts: None,
        };
        (profile != SandboxProfile::Off).then_some(inside)
    }

    /// Returns the folders outside the workspace that the settings let programs write. `variables`
    /// is the server's environment.
    pub(super) fn writable_folders(
        &self,
        variables: &BTreeMap<OsString, OsString>,
    ) -> Vec<PathBuf> {
        let variable = |name: &str| variables.get(OsStr::new(name)).map(PathBuf::from);
        view::writable_folders(&self.0.settings, &variable)
    }

    /// Returns the coverage of `profile` for programs in `workspace`: the profile with its missing
    /// layers. `variables` is the server's environment.
    ///
    /// # Errors
    /// This system cannot confine programs.
    pub fn coverage(
        &self,
        profile: SandboxProfile,
        workspace: &Root,
        variables: &BTreeMap<OsString, OsString>,
    ) -> io::Result<SandboxCoverage> {
        match profile {
            SandboxProfile::Off => Ok(SandboxCoverage::unconfined()),
            profile => Ok(self.capabilities(workspace, variables)?.coverage(profile)),
        }
    }

    /// Ends the idle helper processes of the sandbox, and removes the placeholders that it keeps
    /// for the next program.
    pub(super) fn close(&self) {
        self.0.idle.close();
        self.release_names();
    }

    /// Removes the placeholder folders that are kept for the next confined program. Call this
    /// before a program starts that may create entries with the reserved names.
    pub(super) fn release_names(&self) {
        self.0.reserved.remove_unused();
    }

    /// Returns the placeholder folders that killed servers may have left in the folder `workspace`.
    ///
    /// # Errors
    /// The folder `workspace` does not exist.
    pub(super) fn leftovers(&self, workspace: &Path) -> io::Result<LeftoverPlaceholders> {
        // An earlier server may have protected more than this one, so all names are checked.
        let guards = GuardedPaths::new(&self.0.paths, false);
        LeftoverPlaceholders::open(workspace, guards.reserved_names())
    }

    fn from_parts(
        settings: SandboxSettings,
        paths: SandboxPaths,
        rules: CompiledSandboxRules,
        outside: Option<Arc<UnconfinedThread>>,
        reserved: ReservedFileNames,
    ) -> Self {
        let CompiledSandboxRules { rules, hosts, credentials, ssh_remotes } = rules;
        let idle = IdleSandboxHelpers::default();
        let capabilities = OnceLock::new();
        Self(Arc::new(SandboxState {
            settings,
            paths,
            rules,
            hosts,
            credentials,
            ssh_remotes,
            network_tests: SandboxNetworkTestResults::default(),
            reserved,
            idle,
            unconfined_thread: outside,
            capabilities,
        }))
    }
}

/// The rules of the sandbox settings in compiled form.
#[derive(Default)]
struct CompiledSandboxRules {
    rules: Vec<ToolSandboxRule>,
    hosts: Option<Arc<ProgramHostAccess>>,
    credentials: Vec<HostCredential>,
    ssh_remotes: Vec<SshRemote>,
}

/// Checks the sandbox `settings` and returns their rules.
fn compile_rules(settings: &SandboxSettings) -> Result<CompiledSandboxRules, String> {
    settings.check()?;
    let rules = settings.rules.iter().map(|rule| {
        let odd = |why: String| {
            format!("`{}` in sandbox.for is not a valid tool pattern: {why}", rule.tools)
        };
        if let Some(why) = glob_problem(&rule.tools) {
            return Err(odd(why));
        }
        let pattern = Glob::new(&rule.tools).map_err(|err| odd(err.to_string()))?;
        let hosts = rule.access()?;
        Ok(ToolSandboxRule { tools: pattern.compile_matcher(), profile: rule.profile, hosts })
    });
    Ok(CompiledSandboxRules {
        rules: rules.collect::<Result<_, _>>()?,
        hosts: settings.access()?,
        credentials: settings.host_credentials()?,
        ssh_remotes: settings.ssh_remotes()?,
    })
}

/// Runs the sandbox helper if this process was started as a helper, and never returns in that case.
/// Also runs the program that connects `ssh` in the sandbox. Call this first in `main`.
pub fn run_helper_if_asked() {
    let Some(name) = std::env::args_os().next() else { return };
    if name == HELPER_NAME {
        helper_executable::keep_build_mark();
        helper::run_helper();
    }
    if Path::new(&name).file_name() == Some(OsStr::new(CONNECTOR_NAME)) {
        ssh_connector::run_connector();
    }
}

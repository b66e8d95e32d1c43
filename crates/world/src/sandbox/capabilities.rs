//! The sandbox capabilities of this system, and the plan for each program that follows from them.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::fstat;

use super::SandboxPaths;
use super::cgroups::{CgroupLimits, CgroupParents, RunCgroups};
use super::coverage::{MissingSandboxLayer, SandboxCoverage, SandboxLayer};
use super::helper_executable;
use super::layers::{self, AvailableSandboxLayers};
use super::plan::{
    FileIdentity, LandlockConfig, OsStringBytes, SandboxNamespaces, SandboxPlan,
    SandboxSpawnRequest, SeccompFilters,
};
use super::seccomp::{SocketFamilies, build_filters};
use super::settings::{SandboxProfile, SandboxSettings};
use super::view::{MachineMountPaths, SandboxViewRequest};
use crate::Root;

/// The maximum number of files that a program may have open.
const OPEN_FILES_MAX: u64 = 4096;
/// The largest file that a program may write, in bytes.
const FILE_BYTES_MAX: u64 = 8 << 30;

/// The server's environment variables. Some of them name the folders of toolchains.
pub(super) type ServerEnvironmentVariables = BTreeMap<OsString, OsString>;

/// The sandbox layers that this system supports, and the settings that apply to all programs.
pub(super) struct SandboxCapabilities {
    pub(super) layers: AvailableSandboxLayers,
    pub(super) machine_view: MachineMountPaths,
    cgroup_parents: Option<CgroupParents>,
    /// The system call filters for programs with internet sockets, for programs without them, and
    /// for programs with both internet and Unix sockets, in this order.
    filters: [SeccompFilters; 3],
    limits: Vec<(u32, u64)>,
}

impl SandboxCapabilities {
    pub(super) fn detect(
        settings: &SandboxSettings,
        sandbox_paths: &SandboxPaths,
        workspace: &Root,
        variables: &ServerEnvironmentVariables,
    ) -> io::Result<Self> {
        let variable = |name: &str| variables.get(OsStr::new(name)).map(PathBuf::from);
        let path = variables.get(OsStr::new("PATH")).map(|path| path.to_string_lossy());
        let path = path.unwrap_or_default();
        let paths = sandbox_paths.search_paths.iter().map(String::as_str).chain([&*path]);
        let base =
            MachineMountPaths::detect(settings, sandbox_paths, workspace.path(), paths, &variable);
        let memory_bytes = match settings.memory_bytes {
            0 => machine_memory_bytes() / 2,
            bytes => bytes,
        };
        let SandboxSettings { processes, cpu_percent, .. } = *settings;
        let room = CgroupLimits { memory_bytes, processes, cpu_percent };
        let parents = CgroupParents::find(room);
        let layers = AvailableSandboxLayers::all(parents.as_ref().map(drop).map_err(Clone::clone));
        let unix = settings.unix_sockets;
        let mut capabilities = Self {
            layers: layers.clone(),
            machine_view: base,
            cgroup_parents: parents.ok(),
            filters: Default::default(),
            limits: Vec::new(),
        };
        capabilities.filters = [
            build_filters(SocketFamilies { internet: true, unix })?,
            build_filters(SocketFamilies { internet: false, unix })?,
            build_filters(SocketFamilies { internet: true, unix: true })?,
        ];
        let attempt = |layers: &AvailableSandboxLayers| {
            let folder = ProgramStartFolder::at_workspace(workspace)?;
            let handle = folder.workspace.try_clone()?;
            let request = folder.empty_request();
            let plan = capabilities.plan(layers, &SandboxViewRequest::LARGEST, folder);
            layers::attempt(capabilities.create_groups(layers)?, plan, &request, handle)
        };
        let layers = layers.try_out(|layers| match attempt(layers) {
            Err(err) if helper_executable::disable_small_helper() => {
                tracing::debug!("the small program of the sandbox does not work: {err}");
                attempt(layers)
            }
            attempted => attempted,
        })?;
        capabilities.limits = resource_limits(&layers, room);
        capabilities.layers = layers;
        Ok(capabilities)
    }

    /// Returns the profile `profile` together with the layers that it lacks on this system.
    pub(super) fn coverage(&self, profile: SandboxProfile) -> SandboxCoverage {
        // A program in the machine's network is promised no network namespace.
        let is_promised = |it: &&MissingSandboxLayer| {
            it.layer != SandboxLayer::Network || profile != SandboxProfile::Network
        };
        let missing = self.layers.missing.iter().filter(is_promised).cloned().collect();
        SandboxCoverage { profile, missing }
    }

    /// Creates control groups for a run of a program. Returns `None` if this system has no control
    /// groups.
    pub(super) fn create_groups(
        &self,
        layers: &AvailableSandboxLayers,
    ) -> io::Result<Option<RunCgroups>> {
        layers
            .groups
            .then_some(self.cgroup_parents.as_ref())
            .flatten()
            .map(CgroupParents::create_groups)
            .transpose()
    }

    /// Checks that this system can give programs a separate network, in which a forwarder listens.
    pub(super) fn check_own_network(&self) -> io::Result<()> {
        if self.layers.namespaces.is_some_and(|spaces| spaces.net) {
            return Ok(());
        }
        let missing = self.layers.missing.iter().find(|it| it.layer == SandboxLayer::Network);
        let why = missing.map(|it| format!(": {}", it.why)).unwrap_or_default();
        Err(io::Error::other(format!(
            "`hosts` needs the sandbox layer `network`, which this system lacks{why}"
        )))
    }

    /// Returns the system call filters of a program with its own network and an SSH agent socket.
    pub(super) fn agent_filters(&self) -> SeccompFilters {
        let [_, _, agent] = &self.filters;
        if self.layers.seccomp { agent.clone() } else { SeccompFilters::default() }
    }

    pub(super) fn plan(
        &self,
        layers: &AvailableSandboxLayers,
        wanted: &SandboxViewRequest<'_>,
        folder: ProgramStartFolder,
    ) -> SandboxPlan {
        let shares_network = wanted.profile == SandboxProfile::Network;
        let spaces =
            layers.namespaces.map(|it| SandboxNamespaces { net: it.net && !shares_network, ..it });
        let has_own = spaces.is_some_and(|spaces| spaces.net);
        // Without its own network namespace, a program must not create any socket that reaches a
        // network.
        let [internet, none, _] = &self.filters;
        let filters = if has_own || shares_network { internet } else { none };
        let (base, view) = self.machine_view.view(&folder.path, wanted);
        SandboxPlan {
            base,
            view,
            workspace: folder.path.into(),
            workspace_identity: folder.workspace_identity,
            spaces,
            groups: Vec::new(),
            limits: self.limits.clone(),
            landlock: layers
                .landlock
                .map(|abi| LandlockConfig { abi, tcp: !has_own && !shares_network }),
            filters: if layers.seccomp { filters.clone() } else { SeccompFilters::default() },
            has_forwarder: false,
        }
    }
}

/// The workspace and the working directory of a program. The working directory is in the workspace,
/// or is one of the additional paths that the program sees.
pub(super) struct ProgramStartFolder {
    pub(super) workspace: OwnedFd,
    path: PathBuf,
    pub(super) workspace_identity: FileIdentity,
    cwd: OsStringBytes,
    cwd_identity: FileIdentity,
}

impl ProgramStartFolder {
    pub(super) fn new(workspace: &Root, cwd: BorrowedFd<'_>, seen: &[PathBuf]) -> io::Result<Self> {
        let workspace = workspace.open_dir(".").map_err(into_io_error)?;
        let path = path_of_fd(&workspace)?;
        let at = path_of_fd(cwd)?;
        if path == Path::new("/") {
            return Err(io::Error::other("the workspace is `/`, so a sandbox could hide nothing"));
        }
        let cwd_at: OsStringBytes = match at.strip_prefix(&path) {
            Ok(beneath) if beneath.as_os_str().is_empty() => Path::new(".").into(),
            Ok(beneath) => beneath.into(),
            Err(_) if seen.contains(&at) => at.into(),
            Err(_) => {
                return Err(io::Error::other(format!(
                    "the working directory {} is outside the workspace, so it is not visible in \
                     the sandbox",
                    at.display()
                )));
            }
        };
        let [workspace_identity, cwd_identity] = [identity_of(&workspace)?, identity_of(cwd)?];
        Ok(Self { workspace, path, workspace_identity, cwd: cwd_at, cwd_identity })
    }

    /// Returns a start folder with the workspace as the working directory.
    pub(super) fn at_workspace(workspace: &Root) -> io::Result<Self> {
        let folder = workspace.open_dir(".").map_err(into_io_error)?;
        Self::new(workspace, folder.as_fd(), &[])
    }

    /// Returns a request to a sandbox helper with this working directory, but without a program.
    /// Such a request only tests the sandbox.
    pub(super) fn empty_request(&self) -> SandboxSpawnRequest {
        SandboxSpawnRequest {
            program: None,
            cwd: self.cwd.clone(),
            cwd_identity: self.cwd_identity,
            tag: None,
            mounted_files: Vec::new(),
            network_test: None,
            runs: None,
            grace_ms: 0,
        }
    }
}

fn into_io_error(err: toolgate_contract::ToolError) -> io::Error {
    io::Error::other(err.message)
}

fn path_of_fd(handle: impl AsFd) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd()))
}

fn identity_of(handle: impl AsFd) -> io::Result<FileIdentity> {
    let stat = fstat(handle)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Returns the resource limits of each process of a program, as pairs of a resource number and its
/// limit. `room` contains the limits of a run.
fn resource_limits(layers: &AvailableSandboxLayers, room: CgroupLimits) -> Vec<(u32, u64)> {
    let mut limits =
        vec![(libc::RLIMIT_NOFILE, OPEN_FILES_MAX), (libc::RLIMIT_FSIZE, FILE_BYTES_MAX)];
    if !layers.groups {
        limits.push((libc::RLIMIT_DATA, room.memory_bytes));
    }
    // The limit counts processes per user namespace. Before Linux 5.14 it counted them on the whole
    // machine.
    if layers.namespaces.is_some_and(|spaces| spaces.user) && kernel_is_at_least(5, 14) {
        limits.push((libc::RLIMIT_NPROC, room.processes));
    }
    limits
}

fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map(|number| number.trim().parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor)
}

fn machine_memory_bytes() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    // If the amount is unknown, a small machine is assumed.
    kib.map_or(2 << 30, |kib| kib << 10)
}

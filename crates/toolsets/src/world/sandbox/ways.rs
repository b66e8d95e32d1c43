//! The sandbox capabilities of this system, and the plan for each program that follows from them.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::fstat;

use super::Beside;
use super::calls::{Sockets, filters};
use super::groups::{Groups, Parents, Room};
use super::held::{Held, Lacking, Layer};
use super::layers::{self, Layers};
use super::plan::{Bytes, Errand, Filters, Ground, Identity, Plan, Spaces};
use super::settings::{Profile, Settings};
use super::view::{Base, Wanted};
use crate::world::Root;

/// The most files that a program may have open.
const FILES: u64 = 4096;
/// The largest file that a program may write, in bytes.
const FILE_BYTES: u64 = 8 << 30;

/// The server's environment variables, by which toolchains are found.
pub(super) type Variables = BTreeMap<OsString, OsString>;

/// The capabilities of this system and the settings shared by all programs.
pub(super) struct Ways {
    pub(super) layers: Layers,
    pub(super) base: Base,
    parents: Option<Parents>,
    /// The filters with internet sockets (own or shared network), and those without.
    filters: [Filters; 2],
    limits: Vec<(u32, u64)>,
}

impl Ways {
    pub(super) fn find(
        settings: &Settings,
        beside: &Beside,
        workspace: &Root,
        variables: &Variables,
    ) -> io::Result<Self> {
        let variable = |name: &str| variables.get(OsStr::new(name)).map(PathBuf::from);
        let path = variables.get(OsStr::new("PATH")).map(|path| path.to_string_lossy());
        let path = path.unwrap_or_default();
        let paths = beside.paths.iter().map(String::as_str).chain([&*path]);
        let base = Base::look(settings, beside, workspace.path(), paths, &variable);
        let memory_bytes = match settings.memory_bytes {
            0 => machine_bytes() / 2,
            bytes => bytes,
        };
        let Settings { processes, cpu_percent, .. } = *settings;
        let room = Room { memory_bytes, processes, cpu_percent };
        let parents = Parents::find(room);
        let layers = Layers::all(parents.as_ref().map(drop).map_err(Clone::clone));
        let unix = settings.unix_sockets;
        let mut ways = Self {
            layers: layers.clone(),
            base,
            parents: parents.ok(),
            filters: Default::default(),
            limits: Vec::new(),
        };
        ways.filters = [
            filters(Sockets { internet: true, unix })?,
            filters(Sockets { internet: false, unix })?,
        ];
        let layers = layers.try_out(|layers| {
            let folder =
                Folder::of(workspace, workspace.open_dir(".").map_err(told)?.as_fd(), &[])?;
            let handle = folder.workspace.try_clone()?;
            let errand = folder.errand();
            let plan = ways.plan(layers, &Wanted::ALL, folder);
            layers::attempt(ways.groups(layers)?, plan, &errand, handle)
        })?;
        ways.limits = limits(&layers, room);
        ways.layers = layers;
        Ok(ways)
    }

    /// Returns the layers of `profile` that are in force.
    pub(super) fn held(&self, profile: Profile) -> Held {
        // A program in the machine's network is promised no network namespace.
        let is_promised = |it: &&Lacking| it.layer != Layer::Network || profile != Profile::Network;
        let missing = self.layers.lacking.iter().filter(is_promised).cloned().collect();
        Held { profile, missing }
    }

    /// Creates control groups for a run, if this system has them.
    pub(super) fn groups(&self, layers: &Layers) -> io::Result<Option<Groups>> {
        layers.groups.then_some(self.parents.as_ref()).flatten().map(Parents::make).transpose()
    }

    pub(super) fn plan(&self, layers: &Layers, wanted: &Wanted<'_>, folder: Folder) -> Plan {
        let shares_network = wanted.profile == Profile::Network;
        let spaces = layers.spaces.map(|it| Spaces { net: it.net && !shares_network, ..it });
        let has_own = spaces.is_some_and(|spaces| spaces.net);
        // Without its own network namespace, a program must not create any socket that reaches a
        // network.
        let [internet, none] = &self.filters;
        let filters = if has_own || shares_network { internet } else { none };
        let (base, view) = self.base.view(&folder.path, wanted);
        Plan {
            base,
            view,
            workspace: folder.path.into(),
            workspace_identity: folder.workspace_identity,
            spaces,
            groups: Vec::new(),
            limits: self.limits.clone(),
            landlock: layers.landlock.map(|abi| Ground { abi, tcp: !has_own && !shares_network }),
            filters: if layers.seccomp { filters.clone() } else { Filters::default() },
        }
    }
}

/// The workspace and the working directory of a program. The directory is in the workspace or among
/// the additional visible paths.
pub(super) struct Folder {
    pub(super) workspace: OwnedFd,
    path: PathBuf,
    pub(super) workspace_identity: Identity,
    cwd: Bytes,
    cwd_identity: Identity,
}

impl Folder {
    pub(super) fn of(workspace: &Root, cwd: BorrowedFd<'_>, seen: &[PathBuf]) -> io::Result<Self> {
        let workspace = workspace.open_dir(".").map_err(told)?;
        let path = whereabouts(&workspace)?;
        let at = whereabouts(cwd)?;
        if path == Path::new("/") {
            return Err(io::Error::other(
                "a workspace that is the whole machine hides nothing of it",
            ));
        }
        let cwd_at: Bytes = match at.strip_prefix(&path) {
            Ok(beneath) if beneath.as_os_str().is_empty() => Path::new(".").into(),
            Ok(beneath) => beneath.into(),
            Err(_) if seen.contains(&at) => at.into(),
            Err(_) => {
                return Err(io::Error::other(format!(
                    "the folder that the program is to start in, {}, is not in the workspace, so it \
                     is not seen from within the sandbox",
                    at.display()
                )));
            }
        };
        let [workspace_identity, cwd_identity] = [identity(&workspace)?, identity(cwd)?];
        Ok(Self { workspace, path, workspace_identity, cwd: cwd_at, cwd_identity })
    }

    /// Returns a request without a program, for this folder.
    pub(super) fn errand(&self) -> Errand {
        Errand {
            program: None,
            cwd: self.cwd.clone(),
            cwd_identity: self.cwd_identity,
            tag: None,
            runs: None,
            grace_ms: 0,
        }
    }
}

fn told(err: toolgate_contract::ToolError) -> io::Error {
    io::Error::other(err.message)
}

fn whereabouts(handle: impl AsFd) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd()))
}

fn identity(handle: impl AsFd) -> io::Result<Identity> {
    let stat = fstat(handle)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Returns the resource limits of each process of a run.
fn limits(layers: &Layers, room: Room) -> Vec<(u32, u64)> {
    let mut limits = vec![(libc::RLIMIT_NOFILE, FILES), (libc::RLIMIT_FSIZE, FILE_BYTES)];
    if !layers.groups {
        limits.push((libc::RLIMIT_DATA, room.memory_bytes));
    }
    // The limit counts processes per user namespace. Before Linux 5.14 it counted them on the whole
    // machine.
    if layers.spaces.is_some_and(|spaces| spaces.user) && kernel_is_at_least(5, 14) {
        limits.push((libc::RLIMIT_NPROC, room.processes));
    }
    limits
}

fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map(|number| number.trim().parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor)
}

fn machine_bytes() -> u64 {
    let told = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = told.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    // If the amount is unknown, a small machine is assumed.
    kib.map_or(2 << 30, |kib| kib << 10)
}

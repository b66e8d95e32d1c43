//! From what a tool wants to run to what the helper is told.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{self, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::fstat;
use rustix::io::read;
use rustix::pipe::{PipeFlags, pipe_with};

use super::calls::{Sockets, filters};
use super::groups::{Groups, Parents, Room};
use super::held::{Held, Lacking, Layer, Unheld};
use super::layers::{self, Layers};
use super::plan::{Becoming, Bytes, Ground, Identity, Plan, Spaces};
use super::reserved::Reservation;
use super::settings::{Profile, Require, Settings};
use super::standby::{Idle, Likeness, Standby, Task, is_gone};
use super::view::{Base, Wanted, expanded};
use super::{Beside, Inside, Sandbox, held};
use crate::world::Root;
use crate::world::processes::{Child, Image, Program, Tag};

/// How many files a program may have open.
const FILES: u64 = 4096;
/// How large a file may be that it writes.
const FILE_BYTES: u64 = 8 << 30;

/// The variables of a server, by which its toolchains are found.
type Variables = BTreeMap<OsString, OsString>;

/// What this system has, and what follows from that for every program.
pub(super) struct Ways {
    layers: Layers,
    base: Base,
    parents: Option<Parents>,
    /// The filters of programs without a network and of those in the machine's own.
    filters: [Vec<Vec<u64>>; 2],
    limits: Vec<(u32, u64)>,
}

/// A program to be confined.
pub(in crate::world) struct Start {
    pub(in crate::world) program: Program,
    pub(in crate::world) args: Vec<OsString>,
    pub(in crate::world) cwd: OwnedFd,
    pub(in crate::world) env: BTreeMap<OsString, OsString>,
    pub(in crate::world) is_fed: bool,
    pub(in crate::world) grace: Duration,
    /// What all its processes bear.
    pub(in crate::world) tag: Tag,
}

/// What is held for a program while it runs.
pub(in crate::world) struct Around {
    /// Where the helper says why the program did not begin.
    birth: OwnedFd,
    /// Where it says how the program ended, which its own process does not.
    end: OwnedFd,
    /// How it is confined.
    pub(in crate::world) held: Arc<Held>,
    /// Whether another process stays beside it, and hears signals for all it starts.
    pub(in crate::world) is_apart: bool,
    helper: Option<Standby>,
    like: Likeness,
    idle: Idle,
    is_over: bool,
    _reserved: Option<Reservation>,
}

impl Around {
    /// How the program ended, of which nothing is left, and whose process ended as `status` says.
    pub(in crate::world) fn ended(&mut self, status: ExitStatus) -> ExitStatus {
        let mut told = [0; 4];
        let is_told = poll(&mut [PollFd::new(&self.end, PollFlags::IN)], Some(&layers::AT_ONCE));
        match is_told.and_then(|_| read(&self.end, &mut told)) {
            Ok(4) => {
                self.is_over = true;
                ExitStatus::from_raw(i32::from_ne_bytes(told))
            }
            // It was killed, could not begin, or was that process.
            Ok(_) | Err(_) => {
                self.is_over = !self.is_apart;
                status
            }
        }
    }

    /// Why the program did not begin, once it has ended.
    pub(in crate::world) fn failure(&self) -> Option<io::Error> {
        let failed = layers::heard(&self.birth, Some(&layers::AT_ONCE)).ok()??;
        Some(held::refused(failed))
    }
}

impl Drop for Around {
    fn drop(&mut self) {
        if let Some(helper) = self.helper.take()
            && self.is_over
        {
            self.idle.give_back(helper, self.like.clone());
        }
    }
}

impl Sandbox {
    /// Starts `start` confined, by a helper that is started by `begin` where none stands by.
    /// Blocks.
    pub(in crate::world) fn confine(
        &self,
        inside: &Inside,
        start: Start,
        variables: &Variables,
        begin: impl Fn(Image) -> io::Result<Child>,
    ) -> io::Result<(Child, Around)> {
        let ways = self.ways(&inside.workspace, variables)?;
        let held = ways.held(inside.profile);
        let wanted = Wanted::of(inside);
        if self.0.settings.require == Require::Strict && !held.is_whole() {
            return Err(io::Error::other(Unheld(held)));
        }
        let folder = Folder::of(&inside.workspace, start.cwd.as_fd())?;
        let (birth, their_birth) = pipe_with(PipeFlags::CLOEXEC)?;
        let (end, their_end) = pipe_with(PipeFlags::CLOEXEC)?;
        let workspace = folder.workspace.try_clone()?;
        let reserved = match wanted.reserves() && ways.layers.spaces.is_some() {
            true => Some(self.reserve(ways, &folder)?),
            false => None,
        };
        let is_fed = start.is_fed;
        let mut plan = ways.plan(&ways.layers, &wanted, folder);
        plan.runs = inside.runs.as_ref().map(|runs| runs.iter().map(Bytes::from).collect());
        plan.grace_ms = u64::try_from(start.grace.as_millis()).unwrap_or(u64::MAX);
        plan.tag = Some(start.tag.number());
        plan.program = Some(becoming(start));
        let is_apart = plan.spaces.is_some();
        let sealed = plan.seal()?;
        let plan = Plan { program: None, ..plan };
        let (spaces, view) = (plan.spaces, plan.view.clone());
        let like = Likeness { workspace: plan.workspace.clone(), spaces, view };
        let task = Task { plan: sealed, birth: their_birth, end: their_end, workspace, is_fed };
        let (helper, child) = self.begun(ways, &task, plan, &like, begin)?;
        let (held, idle) = (Arc::new(held), self.0.idle.clone());
        let (helper, is_over, _reserved) = (Some(helper), false, reserved);
        let around = Around { birth, end, held, is_apart, helper, like, idle, is_over, _reserved };
        Ok((child, around))
    }

    /// The process that does `task`, and the helper that has made it.
    fn begun(
        &self,
        ways: &Ways,
        task: &Task,
        plan: Plan,
        like: &Likeness,
        begin: impl Fn(Image) -> io::Result<Child>,
    ) -> io::Result<(Standby, Child)> {
        while let Some(mut helper) = self.0.idle.take(like) {
            match helper.order(task) {
                // Somebody has ended it, or it had other things ready; another does as well.
                Err(err) if is_gone(&err) => {}
                begun => return Ok((helper, begun?.map_err(held::refused)?)),
            }
        }
        // What all see may be another by the time it is asked for: then the second fits.
        let mut first = Standby::begin(ways.groups(&ways.layers)?, plan.clone(), task, &begin)?;
        match first.order(task) {
            Err(err) if is_gone(&err) => drop(first),
            begun => return Ok((first, begun?.map_err(held::refused)?)),
        }
        let mut helper = Standby::begin(ways.groups(&ways.layers)?, plan, task, &begin)?;
        let child = helper.order(task)?.map_err(held::refused)?;
        Ok((helper, child))
    }

    /// What this system has, tried out once.
    pub(super) fn ways(&self, workspace: &Root, variables: &Variables) -> io::Result<&Ways> {
        let ways = self.0.ways.get_or_init(|| {
            self.look(workspace, variables)
                .map_err(|err| format!("programs cannot be confined here: {err}"))
        });
        ways.as_ref().map_err(|why| io::Error::other(why.clone()))
    }

    fn look(&self, workspace: &Root, variables: &Variables) -> io::Result<Ways> {
        let outside = self.0.outside.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let (settings, beside) = (self.0.settings.clone(), self.0.beside.clone());
        let (workspace, variables) = (workspace.clone(), variables.clone());
        outside.run(move || Ways::find(&settings, &beside, &workspace, &variables))?
    }

    /// Whether a program confined as `inside` sees the file that is called `named`.
    ///
    /// # Errors
    /// When nothing can be confined here.
    pub(crate) fn shows(
        &self,
        inside: &Inside,
        named: &Path,
        variables: &Variables,
    ) -> io::Result<bool> {
        let ways = self.ways(&inside.workspace, variables)?;
        let Ok(real) = fs::canonicalize(named) else { return Ok(false) };
        let workspace = inside.workspace.path();
        Ok(ways.base.shows(workspace, &Wanted::of(inside), named, &real))
    }

    /// Whether programs in `workspace`, of a server whose home is `home`, write the folder `at`, as
    /// it is named or where it lies.
    pub(in crate::world) fn writes(
        &self,
        workspace: &Root,
        home: Option<&Path>,
        at: &Path,
    ) -> bool {
        let real = fs::canonicalize(at);
        let ats = [Some(at), real.as_deref().ok()];
        let written = self.0.settings.write.iter().map(|path| expanded(path, home));
        let mut written = written.chain([workspace.path().to_owned()]);
        written.any(|it| ats.iter().flatten().any(|at| at.starts_with(&it)))
    }

    fn reserve(&self, ways: &Ways, folder: &Folder) -> io::Result<Reservation> {
        let workspace = folder.workspace.try_clone()?;
        Ok(self.0.reserved.take(workspace, folder.workspace_identity, ways.base.reserved()))
    }
}

impl Ways {
    fn find(
        settings: &Settings,
        beside: &Beside,
        workspace: &Root,
        variables: &Variables,
    ) -> io::Result<Self> {
        let variable = |name: &str| variables.get(OsStr::new(name)).map(OsString::as_os_str);
        let path = variable("PATH").map(|path| path.to_string_lossy()).unwrap_or_default();
        let paths = beside.paths.iter().map(String::as_str).chain([&*path]);
        let base = Base::look(settings, beside, workspace.path(), paths, variable);
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
            filters: [true, true].map(|_| Vec::new()),
            limits: Vec::new(),
        };
        ways.filters = [
            filters(Sockets { internet: true, unix })?,
            filters(Sockets { internet: false, unix })?,
        ];
        let layers = layers.try_out(|layers| {
            let folder = Folder::of(workspace, workspace.open_dir(".").map_err(told)?.as_fd())?;
            let handle = folder.workspace.try_clone()?;
            let plan = ways.plan(layers, &Wanted::ALL, folder);
            layers::attempt(ways.groups(layers)?, plan, handle)
        })?;
        ways.limits = limits(&layers, room);
        ways.layers = layers;
        Ok(ways)
    }

    /// What is held of `profile`.
    pub(super) fn held(&self, profile: Profile) -> Held {
        // Who is in the machine's network is promised none of his own.
        let is_promised = |it: &&Lacking| it.layer != Layer::Network || profile != Profile::Network;
        let missing = self.layers.lacking.iter().filter(is_promised).cloned().collect();
        Held { profile, missing }
    }

    /// Groups that bound what is in them, if this system has any.
    fn groups(&self, layers: &Layers) -> io::Result<Option<Groups>> {
        layers.groups.then_some(self.parents.as_ref()).flatten().map(Parents::make).transpose()
    }

    fn plan(&self, layers: &Layers, wanted: &Wanted<'_>, folder: Folder) -> Plan {
        let shares_network = wanted.profile == Profile::Network;
        let spaces = layers.spaces.map(|it| Spaces { net: it.net && !shares_network, ..it });
        let has_own = spaces.is_some_and(|spaces| spaces.net);
        // Without a network of its own it must not make any socket that reaches another's.
        let [internet, none] = &self.filters;
        let filters = if has_own || shares_network { internet } else { none };
        let (base, view) = self.base.view(&folder.path, wanted);
        Plan {
            server: i32::try_from(process::id()).unwrap_or_default(),
            program: None,
            base,
            view,
            workspace: folder.path.into(),
            workspace_identity: folder.workspace_identity,
            cwd: folder.beneath.into(),
            cwd_identity: folder.cwd_identity,
            spaces,
            groups: Vec::new(),
            tag: None,
            limits: self.limits.clone(),
            landlock: layers.landlock.map(|abi| Ground { abi, tcp: !has_own && !shares_network }),
            runs: None,
            filters: if layers.seccomp { filters.clone() } else { Vec::new() },
            grace_ms: 0,
        }
    }
}

/// Where a program starts: the workspace, and a folder in it.
struct Folder {
    workspace: OwnedFd,
    path: PathBuf,
    workspace_identity: Identity,
    beneath: PathBuf,
    cwd_identity: Identity,
}

impl Folder {
    fn of(workspace: &Root, cwd: std::os::fd::BorrowedFd<'_>) -> io::Result<Self> {
        let workspace = workspace.open_dir(".").map_err(told)?;
        let (path, at) = (whereabouts(&workspace)?, whereabouts(cwd)?);
        if path == Path::new("/") {
            return Err(io::Error::other(
                "a workspace that is the whole machine hides nothing of it",
            ));
        }
        let beneath = at.strip_prefix(&path).map_err(|_| {
            io::Error::other("the folder that the program is to start in has been moved away")
        })?;
        let beneath = if beneath.as_os_str().is_empty() { Path::new(".") } else { beneath };
        let beneath = beneath.to_owned();
        let [workspace_identity, cwd_identity] = [identity(&workspace)?, identity(cwd)?];
        Ok(Self { workspace, path, workspace_identity, beneath, cwd_identity })
    }
}

fn told(err: toolgate_contract::ToolError) -> io::Error {
    io::Error::other(err.message)
}

fn whereabouts(handle: impl AsFd) -> io::Result<PathBuf> {
    use std::os::fd::AsRawFd;
    fs::read_link(format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd()))
}

fn identity(handle: impl AsFd) -> io::Result<Identity> {
    let stat = fstat(handle)?;
    Ok((stat.st_dev, stat.st_ino))
}

fn becoming(start: Start) -> Becoming {
    let Start { program, args, cwd: _, env, is_fed, grace: _, tag: _ } = start;
    let env = env.into_iter().map(|(mut name, value)| {
        name.push("=");
        name.push(value);
        Bytes::from(name)
    });
    Becoming {
        path: program.path.into(),
        identity: program.identity,
        args: std::iter::once(program.name.into())
            .chain(args.into_iter().map(Bytes::from))
            .collect(),
        env: env.collect(),
        is_fed,
    }
}

/// What each process of a run is bounded by.
fn limits(layers: &Layers, room: Room) -> Vec<(u32, u64)> {
    let mut limits = vec![(libc::RLIMIT_NOFILE, FILES), (libc::RLIMIT_FSIZE, FILE_BYTES)];
    if !layers.groups {
        limits.push((libc::RLIMIT_DATA, room.memory_bytes));
    }
    // Counted in the program's own namespace of users; before Linux 5.14 in the whole machine's.
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
    // A machine that does not say has little.
    kib.map_or(2 << 30, |kib| kib << 10)
}

//! Detects which sandbox layers this system supports, by confining a test process.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::read;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, setsid, waitpid};

use super::cgroups::RunCgroups;
use super::coverage::{MissingSandboxLayer, SandboxLayer};
use super::plan::{SandboxNamespaces, SandboxPlan, SandboxSpawnRequest, seal};
use super::setup_step::{FAILURE_BYTES, SandboxSetupFailure, SandboxSetupStep};
use super::standby::{SandboxHelperProcess, SandboxHelperTask, has_helper_ended};
use crate::programs::PreparedProgram;

/// The time limit of testing the sandbox layers.
const TEST_TIMEOUT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// The newest version of the Landlock interface that this code uses.
pub(super) const LANDLOCK_MAX: i32 = 7;
/// The oldest usable Landlock version. Before this version, Landlock did not allow moving files
/// between folders.
pub(super) const LANDLOCK_MIN: i32 = 2;

/// The sandbox layers that this system supports.
#[derive(Debug, Clone)]
pub(super) struct AvailableSandboxLayers {
    pub(super) namespaces: Option<SandboxNamespaces>,
    pub(super) landlock: Option<i32>,
    pub(super) seccomp: bool,
    pub(super) groups: bool,
    pub(super) missing: Vec<MissingSandboxLayer>,
}

impl AvailableSandboxLayers {
    /// Returns all sandbox layers except those that are obviously missing. `groups` is an error if
    /// this system has no control groups. The layers are not tested yet.
    pub(super) fn all(groups: Result<(), String>) -> Self {
        let spaces = SandboxNamespaces { user: true, net: true, proc: true };
        let mut all = Self {
            namespaces: Some(spaces),
            landlock: None,
            seccomp: true,
            groups: groups.is_ok(),
            missing: Vec::new(),
        };
        if let Err(why) = groups {
            all.add_missing(SandboxLayer::Groups, why);
        }
        match landlock_version() {
            Ok(abi) if abi >= LANDLOCK_MIN => all.landlock = Some(abi.min(LANDLOCK_MAX)),
            Ok(abi) => all.add_missing(
                SandboxLayer::Landlock,
                format!("this kernel has only version {abi} of Landlock"),
            ),
            Err(err) => {
                all.add_missing(
                    SandboxLayer::Landlock,
                    format!("this kernel does not support it: {err}"),
                );
            }
        }
        all
    }

    /// Tests the sandbox layers with `attempt`. Removes each layer that fails, and records the
    /// reason, until an attempt succeeds. Returns the remaining layers.
    ///
    /// # Errors
    /// Something other than a layer fails. In that case this system cannot confine programs.
    pub(super) fn try_out(
        mut self,
        attempt: impl Fn(&Self) -> io::Result<Option<SandboxSetupFailure>>,
    ) -> io::Result<Self> {
        // There are fewer layers and namespace variants than this.
        for _ in 0..16 {
            let Some(failed) = attempt(&self)? else { return Ok(self) };
            let Some(layer) = SandboxLayer::from_step(failed.step) else {
                return Err(io::Error::other(failed));
            };
            self.remove(layer, &failed);
        }
        Err(io::Error::other("no sandbox works on this system"))
    }

    fn remove(&mut self, layer: SandboxLayer, failed: &SandboxSetupFailure) {
        match layer {
            SandboxLayer::View => {
                let is_root = rustix::process::geteuid().is_root();
                self.namespaces = match self.namespaces {
                    Some(spaces)
                        if spaces.user && is_root && failed.step != SandboxSetupStep::Root =>
                    {
                        // Root can create the other namespaces without a user namespace.
                        Some(SandboxNamespaces { user: false, ..spaces })
                    }
                    Some(spaces) if spaces.net && failed.step == SandboxSetupStep::Namespaces => {
                        self.add_missing(SandboxLayer::Network, failed.to_string());
                        Some(SandboxNamespaces { user: true, net: false, ..spaces })
                    }
                    Some(_) | None => {
                        self.missing.retain(|it| it.layer != SandboxLayer::Network);
                        self.add_missing(SandboxLayer::View, failed.to_string());
                        let why = "this layer needs the layer `view`";
                        self.add_missing(SandboxLayer::Proc, why.to_owned());
                        self.add_missing(SandboxLayer::Network, why.to_owned());
                        None
                    }
                };
            }
            SandboxLayer::Proc => {
                self.namespaces =
                    self.namespaces.map(|spaces| SandboxNamespaces { proc: false, ..spaces });
                self.add_missing(SandboxLayer::Proc, failed.to_string());
            }
            SandboxLayer::Network => {
                self.namespaces =
                    self.namespaces.map(|spaces| SandboxNamespaces { net: false, ..spaces });
                self.add_missing(SandboxLayer::Network, failed.to_string());
            }
            SandboxLayer::Landlock => {
                self.landlock = None;
                self.add_missing(SandboxLayer::Landlock, failed.to_string());
            }
            SandboxLayer::Seccomp => {
                self.seccomp = false;
                self.add_missing(SandboxLayer::Seccomp, failed.to_string());
            }
            SandboxLayer::Groups => {
                self.groups = false;
                self.add_missing(SandboxLayer::Groups, failed.to_string());
            }
        }
    }

    fn add_missing(&mut self, layer: SandboxLayer, why: String) {
        if !self.missing.iter().any(|it| it.layer == layer) {
            self.missing.push(MissingSandboxLayer { layer, why });
        }
    }
}

/// Sets up a confinement without a program: a new helper follows `plan` and `request` in the
/// control groups `groups`. Returns the step that failed, if any.
pub(super) fn attempt(
    groups: Option<RunCgroups>,
    plan: SandboxPlan,
    request: &SandboxSpawnRequest,
    workspace: OwnedFd,
) -> io::Result<Option<SandboxSetupFailure>> {
    let (birth, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    let (_end, end) = pipe_with(PipeFlags::CLOEXEC)?;
    let task = SandboxHelperTask {
        request: seal(request)?,
        failure_pipe: theirs,
        exit_pipe: end,
        workspace,
        is_fed: false,
    };
    let start = |image: PreparedProgram| image.start(&|| Ok(setsid().map(drop)?));
    let mut helper = SandboxHelperProcess::start(groups, 0, plan, &task, start)?;
    let started = helper.run_task(&task);
    drop(task);
    let child = match started {
        Ok(Ok(child)) => child,
        Ok(Err(failed)) => return Ok(Some(failed)),
        Err(err) if has_helper_ended(&err) => {
            return Err(io::Error::other(
                "the helper exited without a report: does main call `run_helper_if_asked` first?",
            ));
        }
        Err(err) => return Err(err),
    };
    let failed = read_failure(&birth, Some(&TEST_TIMEOUT));
    if failed.is_err() {
        kill_process(child.pid, Signal::KILL)?;
    }
    let status = wait_for_status(child.pid)?;
    match failed? {
        None if status != 0 => {
            Err(io::Error::other(format!("the helper exited with status {status}")))
        }
        failed => Ok(failed),
    }
}

/// Reads the sandbox helper's report of a failure from the pipe `birth`. Returns `None` if the
/// program has started. Fails if no report arrives within `limit`.
pub(super) fn read_failure(
    birth: &OwnedFd,
    limit: Option<&Timespec>,
) -> io::Result<Option<SandboxSetupFailure>> {
    if poll(&mut [PollFd::new(birth, PollFlags::IN)], limit)? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut bytes = [0; FAILURE_BYTES];
    let read = read(birth, &mut bytes)?;
    Ok(SandboxSetupFailure::from_bytes(bytes.get(..read).unwrap_or_default()))
}

fn wait_for_status(pid: Pid) -> io::Result<i32> {
    let ended = waitpid(Some(pid), WaitOptions::empty())?;
    Ok(ended.map_or(0, |(_, status)| status.as_raw()))
}

/// Returns the Landlock version of this kernel.
#[allow(unsafe_code, reason = "the call only returns a version number")]
pub(super) fn landlock_version() -> io::Result<i32> {
    const VERSION: u32 = 1;
    let none = std::ptr::null::<u8>();
    // SAFETY: with this flag no memory is read.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0, VERSION) };
    if version < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(i32::try_from(version).unwrap_or(0))
    }
}

/// A timeout of zero, for a poll that does not wait.
pub(super) const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

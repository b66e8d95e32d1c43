//! Detects the available sandbox layers by confining a test process.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::read;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, setsid, waitpid};

use super::super::processes::Image;
use super::groups::Groups;
use super::held::{Lacking, Layer};
use super::plan::{Errand, Plan, Spaces, seal};
use super::standby::{Standby, Task, is_gone};
use super::step::{Failed, Step, TOLD_BYTES};

/// The time limit of the test.
const PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// The newest Landlock version that this code uses.
pub(super) const LANDLOCK_MAX: i32 = 7;
/// The oldest usable Landlock version. Before it, files could not be moved between folders.
pub(super) const LANDLOCK_MIN: i32 = 2;

/// The layers that this system has.
#[derive(Debug, Clone)]
pub(super) struct Layers {
    pub(super) spaces: Option<Spaces>,
    pub(super) landlock: Option<i32>,
    pub(super) seccomp: bool,
    pub(super) groups: bool,
    pub(super) lacking: Vec<Lacking>,
}

impl Layers {
    /// Returns all layers before any test, without those that are obviously missing.
    pub(super) fn all(groups: Result<(), String>) -> Self {
        let spaces = Spaces { user: true, net: true, proc: true };
        let mut all = Self {
            spaces: Some(spaces),
            landlock: None,
            seccomp: true,
            groups: groups.is_ok(),
            lacking: Vec::new(),
        };
        if let Err(why) = groups {
            all.lack(Layer::Groups, why);
        }
        match landlock() {
            Ok(abi) if abi >= LANDLOCK_MIN => all.landlock = Some(abi.min(LANDLOCK_MAX)),
            Ok(abi) => all.lack(Layer::Landlock, format!("this kernel has version {abi} of it")),
            Err(err) => all.lack(Layer::Landlock, format!("this kernel has none: {err}")),
        }
        all
    }

    /// Tests the layers with `attempt` and removes those that fail, with the reason, until it
    /// succeeds.
    ///
    /// # Errors
    /// If something other than a layer fails. Nothing can be confined then.
    pub(super) fn try_out(
        mut self,
        attempt: impl Fn(&Self) -> io::Result<Option<Failed>>,
    ) -> io::Result<Self> {
        // There are fewer layers and namespace variants than this.
        for _ in 0..16 {
            let Some(failed) = attempt(&self)? else { return Ok(self) };
            let Some(layer) = Layer::of(failed.step) else { return Err(io::Error::other(failed)) };
            self.without(layer, &failed);
        }
        Err(io::Error::other("no way of confining programs works here"))
    }

    fn without(&mut self, layer: Layer, failed: &Failed) {
        match layer {
            Layer::View => {
                let is_root = rustix::process::geteuid().is_root();
                self.spaces = match self.spaces {
                    Some(spaces) if spaces.user && is_root && failed.step != Step::Root => {
                        // Root can create the other namespaces without a user namespace.
                        Some(Spaces { user: false, ..spaces })
                    }
                    Some(spaces) if spaces.net && failed.step == Step::Spaces => {
                        self.lack(Layer::Network, failed.to_string());
                        Some(Spaces { user: true, net: false, ..spaces })
                    }
                    Some(_) | None => {
                        self.lacking.retain(|it| it.layer != Layer::Network);
                        self.lack(Layer::View, failed.to_string());
                        self.lack(Layer::Proc, "it comes with the view".to_owned());
                        self.lack(Layer::Network, "it comes with the view".to_owned());
                        None
                    }
                };
            }
            Layer::Proc => {
                self.spaces = self.spaces.map(|spaces| Spaces { proc: false, ..spaces });
                self.lack(Layer::Proc, failed.to_string());
            }
            Layer::Network => {
                self.spaces = self.spaces.map(|spaces| Spaces { net: false, ..spaces });
                self.lack(Layer::Network, failed.to_string());
            }
            Layer::Landlock => {
                self.landlock = None;
                self.lack(Layer::Landlock, failed.to_string());
            }
            Layer::Seccomp => {
                self.seccomp = false;
                self.lack(Layer::Seccomp, failed.to_string());
            }
            Layer::Groups => {
                self.groups = false;
                self.lack(Layer::Groups, failed.to_string());
            }
        }
    }

    fn lack(&mut self, layer: Layer, why: String) {
        if !self.lacking.iter().any(|it| it.layer == layer) {
            self.lacking.push(Lacking { layer, why });
        }
    }
}

/// Runs `errand`, which has no program, under `plan` in `groups` and `workspace`. Returns the
/// failure, if any.
pub(super) fn attempt(
    groups: Option<Groups>,
    plan: Plan,
    errand: &Errand,
    workspace: OwnedFd,
) -> io::Result<Option<Failed>> {
    let (birth, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    let (_end, end) = pipe_with(PipeFlags::CLOEXEC)?;
    let task = Task { errand: seal(errand)?, birth: theirs, end, workspace, is_fed: false };
    let start = |image: Image| image.start(&|| Ok(setsid().map(drop)?));
    let mut helper = Standby::begin(groups, 0, plan, &task, start)?;
    let made = helper.order(&task);
    drop(task);
    let child = match made {
        Ok(Ok(child)) => child,
        Ok(Err(failed)) => return Ok(Some(failed)),
        Err(err) if is_gone(&err) => {
            return Err(io::Error::other(
                "the helper ended and told nothing: is `enter_if_asked` called first in main?",
            ));
        }
        Err(err) => return Err(err),
    };
    let failed = heard(&birth, Some(&PATIENCE));
    if failed.is_err() {
        kill_process(child.pid, Signal::KILL)?;
    }
    let status = ended(child.pid)?;
    match failed? {
        None if status != 0 => Err(io::Error::other(format!("the helper ended with {status}"))),
        failed => Ok(failed),
    }
}

/// Reads the helper's report from `birth`. `None` if the program has started.
pub(super) fn heard(birth: &OwnedFd, patience: Option<&Timespec>) -> io::Result<Option<Failed>> {
    if poll(&mut [PollFd::new(birth, PollFlags::IN)], patience)? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut told = [0; TOLD_BYTES];
    let read = read(birth, &mut told)?;
    Ok(Failed::heard(told.get(..read).unwrap_or_default()))
}

fn ended(pid: Pid) -> io::Result<i32> {
    let ended = waitpid(Some(pid), WaitOptions::empty())?;
    Ok(ended.map_or(0, |(_, status)| status.as_raw()))
}

/// Returns the Landlock version of this kernel.
#[allow(unsafe_code, reason = "only the number of a version is asked for")]
pub(super) fn landlock() -> io::Result<i32> {
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

/// A zero timeout, for a poll that does not wait.
pub(super) const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

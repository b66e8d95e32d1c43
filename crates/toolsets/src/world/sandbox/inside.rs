//! What the helper does: from the server's surroundings to the program's, one step after another.
//!
//! It runs in a process of its own with one thread. What it opens it opens before it hides
//! anything; what it gives up it gives up before it becomes the program; and no handle from before
//! goes with the program, since by one all mounts can be gone round.

mod surroundings;
mod giving_up;
mod reaper;
mod becoming;

use std::io;
use std::os::fd::{AsFd, FromRawFd as _, OwnedFd};
use std::process::exit;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{FdFlags, fcntl_setfd, write};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, getegid, geteuid, getppid, set_parent_process_death_signal};

use super::kernel;
use super::plan::{BIRTH_FD, Identity, PLAN_FD, Plan, Spaces};
use super::step::{Failed, Step};
use becoming::Found;

/// How many watchers of files a program may have; by default a user has 128.
const INOTIFY_INSTANCES: &str = "48";

/// Becomes the program of the plan that was left for this process; never returns.
pub(super) fn enter() -> ! {
    let Some((plan, birth)) = handed() else { exit(127) };
    let failed = match outer(plan, &birth) {
        Ok(never) => match never {},
        Err(failed) => failed,
    };
    // Nobody may be left to hear it.
    let _ = write(&birth, &failed.told());
    exit(127)
}

/// What never is.
enum Never {}

/// The plan, and where to say what went wrong.
#[allow(unsafe_code, reason = "descriptors are handed over by number")]
fn handed() -> Option<(OwnedFd, OwnedFd)> {
    // SAFETY: the server has put them there, and nobody else here knows of them. Who started this
    // by hand has none there, and is told so by the next call.
    let [plan, birth] = [PLAN_FD, BIRTH_FD].map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    fcntl_setfd(&plan, FdFlags::CLOEXEC).ok()?;
    fcntl_setfd(&birth, FdFlags::CLOEXEC).ok()?;
    // By a handle of a folder all that follows could be gone round, whoever left it open.
    kernel::close_from(BIRTH_FD + 1).ok()?;
    Some((plan, birth))
}

/// In the process that the server knows as the program: makes what is around the program, and
/// ends as that ended.
fn outer(plan: OwnedFd, birth: &OwnedFd) -> Result<Never, Failed> {
    let plan = Step::Plan.done(Plan::unseal(plan))?;
    Step::Plan.done(reaper::block_signals())?;
    Step::Groups.done(join(&plan))?;
    Step::Spaces.done(die_with(Pid::from_raw(plan.server)))?;
    let Some(spaces) = plan.spaces else {
        let found = Found::of(&plan)?;
        giving_up::all(&plan)?;
        return becoming::become_it(&plan, found);
    };
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    Step::Spaces.done(kernel::unshare(flags(spaces)))?;
    if spaces.user {
        Step::Ids.done(keep_ids(user, group))?;
    }
    // Gone with the rights that were given up, on some kernels.
    Step::Spaces.done(die_with(Pid::from_raw(plan.server)))?;
    let (told, status) = Step::Spaces.done(pipe_with(PipeFlags::CLOEXEC))?;
    let (life, alive) = Step::Spaces.done(pipe_with(PipeFlags::CLOEXEC))?;
    match Step::Spaces.done(kernel::fork())? {
        None => {
            drop((told, alive));
            first(&plan, spaces, birth, &status, &life)
        }
        Some(pid) => {
            drop((status, life));
            reaper::end_as(pid, &told, birth)
        }
    }
}

/// In the first process of the new namespaces: puts everything in its place, gives up all rights,
/// and starts the program.
fn first(
    plan: &Plan,
    spaces: Spaces,
    birth: &OwnedFd,
    status: &OwnedFd,
    life: &OwnedFd,
) -> Result<Never, Failed> {
    Step::Spaces.done(die_with_outer(life))?;
    if spaces.net {
        Step::Network.done(kernel::loopback_up())?;
    }
    surroundings::make(plan, spaces)?;
    let found = Found::of(plan)?;
    giving_up::all(plan)?;
    Step::Rights.done(die_with_outer(life))?;
    match Step::Begin.done(kernel::fork())? {
        None => {
            Step::Begin.done(becoming::stand_alone())?;
            becoming::become_it(plan, found)
        }
        Some(pid) => {
            drop(found);
            reaper::reap(pid, plan.grace_ms, status, birth)
        }
    }
}

/// Joins the groups that bound what it takes.
fn join(plan: &Plan) -> io::Result<()> {
    for group in &plan.groups {
        let procs = openat(CWD, group.path(), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        write(procs, b"0")?;
    }
    Ok(())
}

/// Dies when `parent` does, which must not have happened yet.
fn die_with(parent: Option<Pid>) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() == parent { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
}

/// Dies when the process does that this one was made by, which has no number in here.
fn die_with_outer(life: &OwnedFd) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut asked = [PollFd::new(life, PollFlags::IN)];
    match poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? {
        0 => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

fn flags(Spaces { user, net, proc: _ }: Spaces) -> libc::c_int {
    let always = libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    let user = if user { libc::CLONE_NEWUSER } else { 0 };
    let net = if net { libc::CLONE_NEWNET } else { 0 };
    always | user | net
}

/// Is inside who it is outside, and nobody else: its `user` and `group` from before.
fn keep_ids(user: u32, group: u32) -> io::Result<()> {
    let put = |file: &str, text: &str| {
        let file = openat(CWD, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        write(file, text.as_bytes()).map(drop)
    };
    put("/proc/self/setgroups", "deny")?;
    put("/proc/self/uid_map", &format!("{user} {user} 1"))?;
    put("/proc/self/gid_map", &format!("{group} {group} 1"))?;
    // They are counted for the user outside, who would have none left. Not every kernel tells.
    let _ = put("/proc/sys/user/max_inotify_instances", INOTIFY_INSTANCES);
    Ok(())
}

/// Which file `fd` is.
fn identity(fd: impl AsFd) -> io::Result<Identity> {
    let stat = rustix::fs::fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

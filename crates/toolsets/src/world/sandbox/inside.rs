//! What the helper does: from the server's surroundings to the program's, one step after another.
//!
//! It runs in a process of its own with one thread. What it opens it opens before it hides
//! anything; what it gives up it gives up before it becomes the program; and no handle from before
//! goes with the program, since by one all mounts can be gone round.

mod surroundings;
mod giving_up;
mod reaper;
mod becoming;

use std::env::args_os;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, FromRawFd as _, OwnedFd};
use std::process::exit;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{FdFlags, fcntl_setfd, write};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, Signal, fchdir, getegid, geteuid, getppid, set_parent_process_death_signal, setsid,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use super::kernel;
use super::orders::{Answer, Order};
use super::plan::{Identity, Plan, Spaces};
use super::step::{Failed, Step};
use crate::world::processes::{HANDED, Tag};
use becoming::Found;

/// How many watchers of files a program may have; by default a user has 128.
const INOTIFY_INSTANCES: &str = "48";

/// Makes a process for each program that the server orders; never returns.
pub(super) fn enter() -> ! {
    let Some(line) = handed() else { exit(127) };
    match stand_by(&line) {
        Ok(()) => exit(0),
        Err(failed) => {
            // Nobody may be left to hear it.
            let _ = Answer::Failed(failed).send(&line);
            exit(127)
        }
    }
}

/// What never is.
enum Never {}

/// The line to the server, which is all that is left open.
#[allow(unsafe_code, reason = "a descriptor is handed over by number")]
fn handed() -> Option<OwnedFd> {
    // SAFETY: the server has put it there, and nobody else here knows of it. Who started this by
    // hand has none there, and is told so by the next call.
    let line = unsafe { OwnedFd::from_raw_fd(HANDED) };
    fcntl_setfd(&line, FdFlags::CLOEXEC).ok()?;
    // By a handle of a folder all that follows could be gone round, whoever left it open.
    kernel::close_from(HANDED + 1).ok()?;
    Some(line)
}

/// Joins the groups that bound what programs take, and waits for orders.
fn stand_by(line: &OwnedFd) -> Result<(), Failed> {
    Step::Plan.done(reaper::block_signals())?;
    Step::Groups.done(join(args_os().skip(1)))?;
    while let Some(order) = Step::Plan.done(Order::receive(line))? {
        // The server's child, as this process is: it ends with that, and is waited for by that.
        let answer = match Step::Spaces.done(kernel::fork_beside()) {
            Ok(None) => fulfil(line, order),
            Ok(Some(pid)) => Answer::Made(pid),
            Err(failed) => Answer::Failed(failed),
        };
        Step::Plan.done(answer.send(line))?;
    }
    Ok(())
}

/// Becomes the program of `order`, in a process of its own.
fn fulfil(line: &OwnedFd, order: Order<OwnedFd>) -> ! {
    let Order { streams, plan, birth, workspace } = order;
    let told = |answer: Answer| answer.send(line).is_ok();
    let plan = match Step::Plan.done(Plan::unseal(plan)).and_then(|plan| {
        Step::Begin.done(stand_apart(&plan, streams, &workspace))?;
        Ok(plan)
    }) {
        Ok(plan) => plan,
        Err(failed) => {
            told(Answer::Failed(failed));
            exit(127)
        }
    };
    drop(workspace);
    if !told(Answer::Apart) {
        exit(127);
    }
    // Nobody here has more to say to the server.
    let _ = kernel::close(line);
    let failed = match outer(&plan, &birth) {
        Ok(never) => match never {},
        Err(failed) => failed,
    };
    // Nobody may be left to hear it.
    let _ = write(&birth, &failed.told());
    exit(127)
}

/// Is a process by itself: with a session, streams and a tag of its own, in the workspace.
fn stand_apart(plan: &Plan, streams: [OwnedFd; 3], workspace: &OwnedFd) -> io::Result<()> {
    setsid()?;
    die_with(Pid::from_raw(plan.server))?;
    plan.tag.map_or(Ok(()), |tag| Tag::of(tag).put_on())?;
    let [stdin, stdout, stderr] = streams;
    dup2_stdin(stdin)?;
    dup2_stdout(stdout)?;
    dup2_stderr(stderr)?;
    Ok(fchdir(workspace)?)
}

/// In the process that the server knows as the program: makes what is around the program, and
/// ends as that ended.
fn outer(plan: &Plan, birth: &OwnedFd) -> Result<Never, Failed> {
    let Some(spaces) = plan.spaces else {
        let found = Found::of(plan)?;
        giving_up::all(plan)?;
        return becoming::become_it(plan, found);
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
            first(plan, spaces, birth, &status, &life)
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

/// Joins the groups of which these are the doors.
fn join(doors: impl Iterator<Item = OsString>) -> io::Result<()> {
    for door in doors {
        let procs = openat(CWD, door, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
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

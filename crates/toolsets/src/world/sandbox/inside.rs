//! What the helper does: from the server's surroundings to the program's, one step after another.
//!
//! It runs in a process of its own with one thread. What it opens it opens before it hides
//! anything; what it gives up it gives up before it becomes the program; and no handle from before
//! goes with the program, since by one all mounts can be gone round.

mod ready;
mod surroundings;
mod giving_up;
mod reaper;
mod becoming;

use std::io;
use std::os::fd::{AsFd, FromRawFd as _, OwnedFd};
use std::process::exit;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{FdFlags, fcntl_setfd, read, write};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, fchdir, set_parent_process_death_signal, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use super::kernel;
use super::orders::{Answer, Order};
use super::plan::{Bytes, Identity, Plan, Spaces};
use super::step::{Failed, Step};
use crate::world::processes::{HANDED, Tag};
use becoming::Found;
use ready::Ready;

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

/// Joins the groups that bound what programs take, makes ready what an order like the first needs,
/// and has one process after another wait for its order.
fn stand_by(line: &OwnedFd) -> Result<(), Failed> {
    Step::Plan.done(reaper::block_signals())?;
    let Some(like) = Step::Plan.done(Order::receive(line))? else { return Ok(()) };
    let plan = Step::Plan.done(Plan::unseal(like.plan.as_fd()))?;
    drop(like);
    Step::Groups.done(join(&plan.groups))?;
    let flags = plan.spaces.map_or(0, flags);
    let ready = plan.spaces.map(|spaces| Ready::make(plan, spaces)).transpose()?;
    loop {
        let (taken, take) = Step::Spaces.done(pipe_with(PipeFlags::CLOEXEC))?;
        // The server's child, as this process is: it ends with that, and is waited for by that.
        match Step::Spaces.done(kernel::fork_beside(flags))? {
            None => {
                drop(taken);
                wait_for_order(line, ready.as_ref(), &take)
            }
            Some(pid) => {
                drop(take);
                Step::Plan.done(Answer::Made(pid).send(line))?;
                // It had no order, or one for others.
                if read(&taken, &mut [0]) != Ok(1) {
                    return Ok(());
                }
            }
        }
    }
}

/// In the process that the server knows as the program: makes what is around that as far as all
/// orders are alike, waits for its own, and becomes the program or stays beside it.
fn wait_for_order(line: &OwnedFd, ready: Option<&Ready>, take: &OwnedFd) -> ! {
    let ordered = begin(ready).and_then(|()| Step::Plan.done(Order::receive(line)));
    let taken = ordered.and_then(|order| {
        let Some(order) = order else { exit(0) };
        let plan = Step::Plan.done(Plan::unseal(order.plan.as_fd()))?;
        if ready.is_some_and(|ready| !ready.fits(&plan)) || ready.is_none() != plan.spaces.is_none()
        {
            exit(0);
        }
        let Order { streams, birth, end, workspace, plan: _ } = order;
        Step::Begin.done(stand_apart(&plan, streams, &workspace))?;
        Ok((plan, birth, end))
    });
    let (told, taken) = match taken {
        Ok(taken) => (Answer::Apart, Some(taken)),
        Err(failed) => (Answer::Failed(failed), None),
    };
    // Nobody is left to hear it, where it cannot be told.
    let (Ok(()), Some((plan, birth, end))) = (told.send(line), taken) else { exit(127) };
    // The next process is made when this one has all processors it can use behind it.
    let make_next = || {
        let _ = write(take, &[0]);
    };
    let done = match ready {
        Some(_) => first(&plan, &birth, &end, line, make_next),
        None => {
            make_next();
            alone(&plan, line)
        }
    };
    let failed = match done {
        Ok(never) => match never {},
        Err(failed) => failed,
    };
    let _ = write(&birth, &failed.told());
    make_next();
    exit(127)
}

/// Is a process with a session of its own, and what all orders need around it.
fn begin(ready: Option<&Ready>) -> Result<(), Failed> {
    Step::Begin.done(setsid())?;
    Step::Begin.done(die_with_server(None))?;
    ready.map_or(Ok(()), Ready::begin)
}

/// Has streams and a tag of its own, and is in the workspace where it sees all that the server
/// does.
fn stand_apart(plan: &Plan, streams: [OwnedFd; 3], workspace: &OwnedFd) -> io::Result<()> {
    plan.tag.map_or(Ok(()), |tag| Tag::of(tag).put_on())?;
    let [stdin, stdout, stderr] = streams;
    dup2_stdin(stdin)?;
    dup2_stdout(stdout)?;
    dup2_stderr(stderr)?;
    if plan.spaces.is_none() { Ok(fchdir(workspace)?) } else { Ok(()) }
}

/// Becomes the program in the server's own surroundings.
fn alone(plan: &Plan, line: &OwnedFd) -> Result<Never, Failed> {
    let found = Found::of(plan)?;
    giving_up::all(plan)?;
    Step::Rights.done(die_with_server(Some(line)))?;
    becoming::become_it(plan, found)
}

/// In the first process of new namespaces: puts everything in its place, gives up all rights, and
/// starts the program.
fn first(
    plan: &Plan,
    birth: &OwnedFd,
    end: &OwnedFd,
    line: &OwnedFd,
    make_next: impl Fn(),
) -> Result<Never, Failed> {
    surroundings::make(plan)?;
    let found = Found::of(plan)?;
    giving_up::all(plan)?;
    // Gone with the rights that were given up, on some kernels.
    Step::Rights.done(die_with_server(Some(line)))?;
    match Step::Begin.done(kernel::fork())? {
        None => {
            Step::Begin.done(becoming::stand_alone())?;
            becoming::become_it(plan, found)
        }
        Some(pid) => {
            drop(found);
            make_next();
            // Nobody here has more to say to the server by it.
            let _ = kernel::close(line);
            reaper::reap(pid, plan.grace_ms, end, birth)
        }
    }
}

/// Joins the groups of which these are the doors.
fn join(doors: &[Bytes]) -> io::Result<()> {
    for door in doors {
        let procs = openat(CWD, door.path(), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        write(procs, b"0")?;
    }
    Ok(())
}

/// Dies when the server does, which must not have happened yet: who held the other end of `line`.
fn die_with_server(line: Option<&OwnedFd>) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    set_parent_process_death_signal(Some(Signal::KILL))?;
    let Some(line) = line else { return Ok(()) };
    let mut asked = [PollFd::new(line, PollFlags::empty())];
    match poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? {
        0 => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

/// The namespaces that each program has of its own; that of users is its helper's.
fn flags(Spaces { user: _, net, proc: _ }: Spaces) -> libc::c_int {
    let always = libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    let net = if net { libc::CLONE_NEWNET } else { 0 };
    always | net
}

/// An error unless `file` is the one that is meant.
fn is(file: impl AsFd, meant: Identity) -> io::Result<()> {
    let stat = rustix::fs::fstat(file)?;
    let is_it = (stat.st_dev, stat.st_ino) == meant;
    if is_it { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESTALE)) }
}

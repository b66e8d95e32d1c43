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
use super::plan::{Bytes, Errand, Identity, Plan, unseal};
use super::step::{Failed, Step};
use crate::world::processes::{HANDED, Tag};
use becoming::Found;

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

/// Joins the groups that bound what programs take, makes ready what the plan says, which comes
/// first, and has one process after another wait for its order.
fn stand_by(line: &OwnedFd) -> Result<(), Failed> {
    Step::Plan.done(reaper::block_signals())?;
    let Some(first) = Step::Plan.done(Order::receive(line))? else { return Ok(()) };
    let plan: Plan = Step::Plan.done(unseal(first.told.as_fd()))?;
    drop(first);
    Step::Groups.done(join(&plan.groups))?;
    ready::make(&plan)?;
    giving_up::ahead(&plan)?;
    let flags = plan.spaces.map_or(0, |_| OWN_SPACES);
    loop {
        let (taken, take) = Step::Spaces.done(pipe_with(PipeFlags::CLOEXEC))?;
        // The server's child, as this process is: it ends with that, and is waited for by that.
        match Step::Spaces.done(kernel::fork_beside(flags))? {
            None => {
                drop(taken);
                wait_for_order(line, &plan, &take)
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
fn wait_for_order(line: &OwnedFd, plan: &Plan, take: &OwnedFd) -> ! {
    let ordered = begin(plan).and_then(|()| Step::Plan.done(Order::receive(line)));
    let taken = ordered.and_then(|order| {
        let Some(order) = order else { exit(0) };
        let errand: Errand = Step::Plan.done(unseal(order.told.as_fd()))?;
        let Order { streams, birth, end, workspace, told: _ } = order;
        Step::Begin.done(stand_apart(plan, &errand, streams, &workspace))?;
        Ok((errand, birth, end))
    });
    let (told, taken) = match taken {
        Ok(taken) => (Answer::Apart, Some(taken)),
        Err(failed) => (Answer::Failed(failed), None),
    };
    // Nobody is left to hear it, where it cannot be told.
    let (Ok(()), Some((errand, birth, end))) = (told.send(line), taken) else { exit(127) };
    // The next process is made when this one has all processors it can use behind it.
    let make_next = || {
        let _ = write(take, &[0]);
    };
    let around = Around { plan, errand: &errand, birth: &birth, line };
    let done = match plan.spaces {
        Some(_) => first(&around, &end, make_next),
        None => {
            make_next();
            alone(&around)
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
fn begin(plan: &Plan) -> Result<(), Failed> {
    Step::Begin.done(setsid())?;
    Step::Begin.done(die_with_server(None))?;
    ready::begin(plan)
}

/// What a process does that has its order, and by what it is heard.
struct Around<'a> {
    plan: &'a Plan,
    errand: &'a Errand,
    birth: &'a OwnedFd,
    line: &'a OwnedFd,
}

/// Has streams and a tag of its own, and is in the workspace where it sees all that the server
/// does.
fn stand_apart(
    plan: &Plan,
    errand: &Errand,
    streams: [OwnedFd; 3],
    workspace: &OwnedFd,
) -> io::Result<()> {
    errand.tag.map_or(Ok(()), |tag| Tag::of(tag).put_on())?;
    let [stdin, stdout, stderr] = streams;
    dup2_stdin(stdin)?;
    dup2_stdout(stdout)?;
    dup2_stderr(stderr)?;
    if plan.spaces.is_none() { Ok(fchdir(workspace)?) } else { Ok(()) }
}

/// Becomes the program in the server's own surroundings.
fn alone(Around { plan, errand, birth: _, line }: &Around<'_>) -> Result<Never, Failed> {
    let found = Found::of(plan, errand)?;
    giving_up::rest(plan, errand)?;
    Step::Rights.done(die_with_server(Some(line)))?;
    becoming::become_it(errand, found.as_ref())
}

/// In the first process of new namespaces: puts everything in its place, gives up all rights, and
/// starts the program.
fn first(around: &Around<'_>, end: &OwnedFd, make_next: impl Fn()) -> Result<Never, Failed> {
    let Around { plan, errand, birth, line } = around;
    surroundings::make_late(plan)?;
    let found = Found::of(plan, errand)?;
    giving_up::rest(plan, errand)?;
    // Gone with the rights that were given up, on some kernels.
    Step::Rights.done(die_with_server(Some(line)))?;
    let program = Step::Begin.done(kernel::fork_into(&|| {
        let begun = Step::Begin.done(becoming::stand_alone());
        match begun.and_then(|()| becoming::become_it(errand, found.as_ref())) {
            Ok(never) => match never {},
            Err(failed) => drop(write(birth, &failed.told())),
        }
    }))?;
    make_next();
    // Nobody here has more to say to the server by it.
    let _ = kernel::close(line);
    reaper::reap(program, errand.grace_ms, end, birth)
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

/// The namespaces that each program has of its own; those of users and networks are its helper's.
const OWN_SPACES: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// An error unless `file` is the one that is meant.
fn is(file: impl AsFd, meant: Identity) -> io::Result<()> {
    let stat = rustix::fs::fstat(file)?;
    let is_it = (stat.st_dev, stat.st_ino) == meant;
    if is_it { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESTALE)) }
}

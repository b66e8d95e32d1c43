//! The sandbox helper: sets up the confinement step by step and then becomes the program.
//!
//! It runs as a separate process with one thread. It opens files before it hides them, and drops
//! privileges before it executes the program. The program inherits no earlier handle, because a
//! handle could bypass all mounts.

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

/// Runs the helper: creates a process for each program that the server orders. Never returns.
pub(super) fn enter() -> ! {
    let Some(line) = handed() else { exit(127) };
    match stand_by(&line) {
        Ok(()) => exit(0),
        Err(failed) => {
            // The server may be gone already.
            let _ = Answer::Failed(failed).send(&line);
            exit(127)
        }
    }
}

/// A type without values, for functions that return only on failure.
enum Never {}

/// Takes the connection to the server and closes all other descriptors.
#[allow(unsafe_code, reason = "a descriptor is handed over by number")]
fn handed() -> Option<OwnedFd> {
    // SAFETY: the server has put the descriptor there, and no other code here uses it. If a person
    // started this process, there is none, and the next call fails.
    let line = unsafe { OwnedFd::from_raw_fd(HANDED) };
    fcntl_setfd(&line, FdFlags::CLOEXEC).ok()?;
    // An inherited folder handle could bypass everything that follows.
    kernel::close_from(HANDED + 1).ok()?;
    Some(line)
}

/// Prepares everything that all programs share, and keeps one process waiting for the next order.
///
/// It joins the control groups, sets up the plan from the first message, and then forks a process
/// for each order.
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
        // The new process is a child of the server, as this one is: it ends with the server, which
        // waits for it.
        match Step::Spaces.done(kernel::fork_beside(flags))? {
            None => {
                drop(taken);
                wait_for_order(line, &plan, &take)
            }
            Some(pid) => {
                drop(take);
                Step::Plan.done(Answer::Made(pid).send(line))?;
                // The process had no order, or it could not be used.
                if read(&taken, &mut [0]) != Ok(1) {
                    return Ok(());
                }
            }
        }
    }
}

/// Runs in the process that the server knows as the program. It sets up the part that all orders
/// share, and waits for an order. It then becomes the program, or its reaper.
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
    // If the answer cannot be sent, nobody is left to receive it.
    let (Ok(()), Some((errand, birth, end))) = (told.send(line), taken) else { exit(127) };
    // The next process is created only now, when this one no longer needs more processors.
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

/// Starts a session and sets up the part that all orders share.
fn begin(plan: &Plan) -> Result<(), Failed> {
    Step::Begin.done(setsid())?;
    Step::Begin.done(die_with_server(None))?;
    ready::begin(plan)
}

/// The order of a process, and the handles for its reports.
struct Around<'a> {
    plan: &'a Plan,
    errand: &'a Errand,
    birth: &'a OwnedFd,
    line: &'a OwnedFd,
}

/// Takes over the streams and the tag. Without namespaces, it also enters the workspace.
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

/// Becomes the program without namespaces.
fn alone(Around { plan, errand, birth: _, line }: &Around<'_>) -> Result<Never, Failed> {
    let found = Found::of(plan, errand)?;
    giving_up::rest(plan, errand)?;
    Step::Rights.done(die_with_server(Some(line)))?;
    becoming::become_it(errand, found.as_ref())
}

/// Runs as the first process of new namespaces: completes the mounts, drops privileges, starts the
/// program and becomes its reaper.
fn first(around: &Around<'_>, end: &OwnedFd, make_next: impl Fn()) -> Result<Never, Failed> {
    let Around { plan, errand, birth, line } = around;
    surroundings::make_late(plan)?;
    let found = Found::of(plan, errand)?;
    giving_up::rest(plan, errand)?;
    // On some kernels, dropping privileges clears this setting.
    Step::Rights.done(die_with_server(Some(line)))?;
    let program = Step::Begin.done(kernel::fork_into(&|| {
        let begun = Step::Begin.done(becoming::stand_alone());
        match begun.and_then(|()| becoming::become_it(errand, found.as_ref())) {
            Ok(never) => match never {},
            Err(failed) => drop(write(birth, &failed.told())),
        }
    }))?;
    make_next();
    // This process sends nothing more to the server on it.
    let _ = kernel::close(line);
    reaper::reap(program, errand.grace_ms, end, birth)
}

/// Joins the control groups whose process files are `doors`.
fn join(doors: &[Bytes]) -> io::Result<()> {
    for door in doors {
        let procs = openat(CWD, door.path(), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        write(procs, b"0")?;
    }
    Ok(())
}

/// Makes this process die with the server. Fails if the server, the other end of `line`, is already
/// gone.
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

/// The namespaces that each program has alone. User and network namespaces belong to its helper.
const OWN_SPACES: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// Fails if `file` is not the file `meant`.
fn is(file: impl AsFd, meant: Identity) -> io::Result<()> {
    let stat = rustix::fs::fstat(file)?;
    let is_it = (stat.st_dev, stat.st_ino) == meant;
    if is_it { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESTALE)) }
}

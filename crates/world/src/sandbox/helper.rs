//! The sandbox helper: sets up the confinement step by step and then becomes the program.
//!
//! The helper is a separate process with one thread. It opens files before it hides them, and drops
//! privileges before it executes the program. The program inherits no handle that was opened before
//! the mounts, because such a handle could bypass them.

mod preparation;
mod mounts;
mod privileges;
mod reaper;
mod network_test;
mod exec;

use std::io;
use std::os::fd::{AsFd, FromRawFd as _, OwnedFd};
use std::process::exit;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{FdFlags, fcntl_setfd, read, write};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, fchdir, set_parent_process_death_signal, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

pub(super) use network_test::GOT_THROUGH;
#[cfg(test)]
pub(super) use network_test::run as test_network_from_inside;
pub(super) use privileges::drop_privileges;

use super::helper_messages::{SandboxHelperAnswer, SandboxHelperOrder};
use super::kernel;
use super::plan::{FileIdentity, OsStringBytes, SandboxPlan, SandboxSpawnRequest, unseal};
use super::setup_step::{SandboxSetupFailure, SandboxSetupStep};
use crate::forwarder;
use crate::programs::{EXTRA_FD, ProgramRunTag};
use exec::LocatedProgramFile;
use mounts::MountedFiles;

/// Runs the sandbox helper: creates a process for each program that the server requests. Never
/// returns.
pub(super) fn run_helper() -> ! {
    let Some(line) = take_connection() else { exit(127) };
    match serve_orders(&line) {
        Ok(()) => exit(0),
        Err(failed) => {
            // The server may be gone already.
            let _ = SandboxHelperAnswer::Failed(failed).send(&line);
            exit(127)
        }
    }
}

/// A type without values, for functions that return only if they fail.
enum NeverReturns {}

/// Returns the sandbox helper's connection to the server, and closes all other descriptors except
/// the standard streams.
#[allow(unsafe_code, reason = "a descriptor is handed over by number")]
pub(super) fn take_connection() -> Option<OwnedFd> {
    // SAFETY: the server has put the descriptor there, and no other code here uses it. If a person
    // started this process, there is none, and the next call fails.
    let line = unsafe { OwnedFd::from_raw_fd(EXTRA_FD) };
    fcntl_setfd(&line, FdFlags::CLOEXEC).ok()?;
    // An inherited folder handle could bypass everything that follows.
    kernel::close_from(EXTRA_FD + 1).ok()?;
    Some(line)
}

/// Prepares the part of the confinement that all programs of this sandbox helper share. Then forks
/// one process after another, each of which waits for an order. `line` is the connection to the
/// server.
///
/// The first message contains the plan. The helper joins the control groups and applies the plan
/// before it forks the first process.
fn serve_orders(line: &OwnedFd) -> Result<(), SandboxSetupFailure> {
    SandboxSetupStep::Plan.check(reaper::block_signals())?;
    let Some(first) = SandboxSetupStep::Plan.check(SandboxHelperOrder::receive(line))? else {
        return Ok(());
    };
    let plan: SandboxPlan = SandboxSetupStep::Plan.check(unseal(first.message.as_fd()))?;
    drop(first);
    SandboxSetupStep::Groups.check(join_groups(&plan.groups))?;
    let shared = preparation::prepare_helper(&plan)?;
    if plan.has_forwarder {
        let listener = SandboxSetupStep::Network.check(forwarder::open_listener())?;
        SandboxSetupStep::Network
            .check(SandboxHelperAnswer::ListenerOpened(listener).send(line))?;
    }
    privileges::drop_early(&plan)?;
    let flags = plan.spaces.map_or(0, |_| PROGRAM_NAMESPACES);
    let mut is_first = true;
    loop {
        let (taken, take) = SandboxSetupStep::Namespaces.check(pipe_with(PipeFlags::CLOEXEC))?;
        // The new process is a child of the server, as this one is: it ends with the server, which
        // waits for it.
        match SandboxSetupStep::Namespaces.check(kernel::fork_beside(flags))? {
            None => {
                drop(taken);
                // The first process is newer than its order.
                let shared = (!is_first).then_some(&shared);
                wait_for_order(line, &plan, shared, &take)
            }
            Some(pid) => {
                drop(take);
                SandboxSetupStep::Plan.check(SandboxHelperAnswer::ProcessReady(pid).send(line))?;
                // The process had no order, or it could not be used.
                if read(&taken, &mut [0]) != Ok(1) {
                    return Ok(());
                }
                is_first = false;
            }
        }
    }
}

/// Runs the process of one program in the sandbox helper: sets up the confinement, and waits on the
/// connection `line` for the server's order. After the order, the process becomes the program or
/// its reaper. Given `shared`, the files that the helper has mounted, refuses an order whose files
/// differ from the mounted files.
fn wait_for_order(
    line: &OwnedFd,
    plan: &SandboxPlan,
    shared: Option<&MountedFiles<'_>>,
    take: &OwnedFd,
) -> ! {
    let ordered = set_up_process(plan).and_then(|own| {
        let order = SandboxSetupStep::Plan.check(SandboxHelperOrder::receive(line))?;
        Ok((own, order))
    });
    let taken = ordered.and_then(|(own, order)| {
        let Some(order) = order else { exit(0) };
        let request: SandboxSpawnRequest =
            SandboxSetupStep::Plan.check(unseal(order.message.as_fd()))?;
        if let Some(shared) = shared {
            let mut mounted = shared.clone();
            mounted.extend(own);
            let is_current = mounted.check(plan, &request.mounted_files);
            SandboxSetupStep::Sources.check(is_current)?;
        }
        let SandboxHelperOrder { streams, failure_pipe, exit_pipe: end, workspace, message: _ } =
            order;
        SandboxSetupStep::Start.check(take_over_order(plan, &request, streams, &workspace))?;
        Ok((request, failure_pipe, end))
    });
    let (answer, taken) = match taken {
        Ok(taken) => (SandboxHelperAnswer::OrderTaken, Some(taken)),
        Err(failed) => (SandboxHelperAnswer::Failed(failed), None),
    };
    // If the answer cannot be sent, nobody is left to receive it.
    let (Ok(()), Some((request, failure_pipe, end))) = (answer.send(line), taken) else {
        exit(127)
    };
    // The next process is created only now, when this one no longer needs more processors.
    let make_next = || {
        let _ = write(take, &[0]);
    };
    let around = ReceivedHelperOrder { plan, request: &request, failure_pipe: &failure_pipe, line };
    let done = match plan.spaces {
        Some(_) => run_as_first_process(&around, &end, make_next),
        None => {
            make_next();
            run_without_namespaces(&around)
        }
    };
    let failed = match done {
        Ok(never) => match never {},
        Err(failed) => failed,
    };
    let _ = write(&failure_pipe, &failed.to_bytes());
    make_next();
    exit(127)
}

/// Starts a session in a new process of the sandbox helper, and sets up the confinement that does
/// not depend on the order. Returns the files that are mounted for this process only.
fn set_up_process(plan: &SandboxPlan) -> Result<MountedFiles<'_>, SandboxSetupFailure> {
    SandboxSetupStep::Start.check(setsid())?;
    SandboxSetupStep::Start.check(die_with_server(None))?;
    preparation::prepare_program(plan)
}

/// The server's order to start a program, and the handles for the reports to the server.
struct ReceivedHelperOrder<'a> {
    plan: &'a SandboxPlan,
    request: &'a SandboxSpawnRequest,
    failure_pipe: &'a OwnedFd,
    line: &'a OwnedFd,
}

/// Installs the standard streams and the tag from an order of the server. Without namespaces, also
/// enters the directory `workspace`.
fn take_over_order(
    plan: &SandboxPlan,
    request: &SandboxSpawnRequest,
    streams: [OwnedFd; 3],
    workspace: &OwnedFd,
) -> io::Result<()> {
    request.tag.map_or(Ok(()), |tag| ProgramRunTag::from_number(tag).apply())?;
    let [stdin, stdout, stderr] = streams;
    dup2_stdin(stdin)?;
    dup2_stdout(stdout)?;
    dup2_stderr(stderr)?;
    if plan.spaces.is_none() { Ok(fchdir(workspace)?) } else { Ok(()) }
}

/// Confines this process without namespaces, and executes the program.
fn run_without_namespaces(
    ReceivedHelperOrder { plan, request, failure_pipe: _, line }: &ReceivedHelperOrder<'_>,
) -> Result<NeverReturns, SandboxSetupFailure> {
    let found = LocatedProgramFile::locate(plan, request)?;
    privileges::drop_rest(plan, request)?;
    SandboxSetupStep::Rights.check(die_with_server(Some(line)))?;
    exec::execute(request, found.as_ref())
}

/// Runs in the first process of new namespaces: completes the mounts, drops privileges, starts the
/// program and becomes its reaper.
fn run_as_first_process(
    around: &ReceivedHelperOrder<'_>,
    end: &OwnedFd,
    make_next: impl Fn(),
) -> Result<NeverReturns, SandboxSetupFailure> {
    let ReceivedHelperOrder { plan, request, failure_pipe, line } = around;
    mounts::build_late(plan)?;
    let found = LocatedProgramFile::locate(plan, request)?;
    privileges::drop_rest(plan, request)?;
    // On some kernels, dropping privileges clears this setting.
    SandboxSetupStep::Rights.check(die_with_server(Some(line)))?;
    let program = SandboxSetupStep::Start.check(kernel::fork_into(&|| {
        let begun = SandboxSetupStep::Start.check(exec::start_session());
        match begun.and_then(|()| exec::execute(request, found.as_ref())) {
            Ok(never) => match never {},
            Err(failed) => drop(write(failure_pipe, &failed.to_bytes())),
        }
    }))?;
    make_next();
    // This process sends nothing more to the server on it.
    let _ = kernel::close(line);
    reaper::run_reaper(program, request.grace_ms, end, failure_pipe)
}

/// Moves this process into the control groups whose process files (`cgroup.procs`) are `doors`.
fn join_groups(doors: &[OsStringBytes]) -> io::Result<()> {
    for door in doors {
        let procs = openat(CWD, door.path(), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        write(procs, b"0")?;
    }
    Ok(())
}

/// Makes the kernel kill this process when the server ends. Fails if the server, which holds the
/// other end of `line`, has already ended.
fn die_with_server(line: Option<&OwnedFd>) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    set_parent_process_death_signal(Some(Signal::KILL))?;
    let Some(line) = line else { return Ok(()) };
    let mut fds = [PollFd::new(line, PollFlags::empty())];
    match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? {
        0 => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

/// The flags of the namespaces that each program gets alone. The program shares the user and
/// network namespaces with its sandbox helper.
const PROGRAM_NAMESPACES: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// Fails if `file` is not the file with the identity `expected`.
fn check_identity(file: impl AsFd, expected: FileIdentity) -> io::Result<()> {
    let stat = rustix::fs::fstat(file)?;
    let is_it = (stat.st_dev, stat.st_ino) == expected;
    if is_it { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESTALE)) }
}

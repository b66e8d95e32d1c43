//! The last step of the sandbox helper: locates the program and its working directory in the
//! sandbox's file tree, and executes the program.

#![allow(unsafe_code, reason = "execve and its like, and the signals before it")]

use std::ffi::{CStr, CString, c_char};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::pread;
use rustix::process::{fchdir, setsid};
use rustix::stdio::dup2_stdin;

use super::super::kernel;
use super::super::plan::{OsStringBytes, SandboxPlan, SandboxSpawnRequest, SandboxedExecutable};
use super::super::setup_step::{SandboxSetupFailure, SandboxSetupStep};
use super::{NeverReturns, check_identity, network_test};

/// The interpreter of a script without a `#!` line.
const SHELL: &CStr = c"/bin/sh";

/// The maximum number of retries while the program file is still open for writing, with
/// [`RETRY_PAUSE`] between them.
const TRIES: usize = 20;
/// The pause between two attempts to start a program whose file is still open for writing.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// The program file in the sandbox's file tree: the same file that the server looked up outside the
/// sandbox.
pub(super) struct LocatedProgramFile {
    file: OwnedFd,
    is_script: bool,
}

impl LocatedProgramFile {
    /// Enters the working directory and opens the program from there. Returns `None` if `request`
    /// contains no program.
    ///
    /// The helper opens the directory and the program again and compares them with the server's
    /// handles. It uses no handle from outside the sandbox, because such a handle could bypass all
    /// mounts.
    pub(super) fn locate(
        plan: &SandboxPlan,
        request: &SandboxSpawnRequest,
    ) -> Result<Option<Self>, SandboxSetupFailure> {
        SandboxSetupStep::Folder.check(enter_folder(plan, request))?;
        let Some(program) = &request.program else { return Ok(None) };
        if !program.is_fed {
            SandboxSetupStep::Folder.check(empty_stdin())?;
        }
        let path = program.path.path();
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let file = SandboxSetupStep::Program.check(openat(CWD, path, flags, Mode::empty()))?;
        SandboxSetupStep::Program.check(check_identity(&file, program.identity))?;
        // A file that may be executed but not read is no script.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let is_script = openat(CWD, path, flags, Mode::empty()).is_ok_and(|text| {
            let mut begin = [0; 2];
            check_identity(&text, program.identity).is_ok()
                && pread(&text, &mut begin, 0) == Ok(2)
                && begin == *b"#!"
        });
        Ok(Some(Self { file, is_script }))
    }
}

fn enter_folder(plan: &SandboxPlan, request: &SandboxSpawnRequest) -> io::Result<()> {
    let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let workspace = match plan.spaces {
        Some(_) => openat(CWD, plan.workspace.path(), folder, Mode::empty())?,
        None => openat(CWD, c".", folder, Mode::empty())?,
    };
    check_identity(&workspace, plan.workspace_identity)?;
    let path = request.cwd.path();
    let cwd = if path.is_absolute() {
        openat(CWD, path, folder, Mode::empty())?
    } else {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        kernel::retry(|| Ok(openat2(&workspace, path, folder, Mode::empty(), resolve)?))?
    };
    check_identity(&cwd, request.cwd_identity)?;
    Ok(fchdir(cwd)?)
}

/// Opens `/dev/null` again as standard input, because the server's handle was opened outside the
/// sandbox's file tree.
fn empty_stdin() -> io::Result<()> {
    let nothing = openat(CWD, c"/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(dup2_stdin(nothing)?)
}

/// Starts a new session for this process, as the server does for a program without a sandbox.
pub(super) fn start_session() -> io::Result<()> {
    setsid()?;
    Ok(())
}

/// Executes the program of the request. If the request contains no program, runs its network test,
/// if any, and exits.
pub(super) fn execute(
    request: &SandboxSpawnRequest,
    found: Option<&LocatedProgramFile>,
) -> Result<NeverReturns, SandboxSetupFailure> {
    match (&request.program, found) {
        (Some(program), Some(found)) => {
            SandboxSetupStep::Start.check(execute_program(program, found))
        }
        (None, _) | (_, None) => {
            if let Some(test) = request.network_test {
                SandboxSetupStep::NetworkTest.check(network_test::run(test))?;
            }
            // SAFETY: nothing needs to be done at exit.
            unsafe { libc::_exit(0) }
        }
    }
}

fn execute_program(
    program: &SandboxedExecutable,
    LocatedProgramFile { file, is_script }: &LocatedProgramFile,
) -> io::Result<NeverReturns> {
    let strings = |texts: &[OsStringBytes]| {
        texts.iter().map(|text| text.string()).collect::<io::Result<Vec<_>>>()
    };
    let args = strings(&program.args)?;
    let env = strings(&program.env)?;
    let path = program.path.string()?;
    let env = pointer_list(&env);
    reset_signals()?;
    for _ in 0..TRIES {
        let args = pointer_list(&args);
        // SAFETY: all strings and lists are terminated. The handle is open, and execution closes
        // it.
        unsafe {
            if *is_script {
                // The interpreter opens the script again by this path.
                libc::execve(path.as_ptr(), args.as_ptr(), env.as_ptr());
            } else {
                let fd = file.as_raw_fd();
                let args = args.as_ptr();
                let env = env.as_ptr();
                libc::syscall(libc::SYS_execveat, fd, c"".as_ptr(), args, env, libc::AT_EMPTY_PATH);
            }
        }
        let err = io::Error::last_os_error();
        match err.raw_os_error() {
            // A process that is just being forked can briefly hold a freshly written file open.
            Some(libc::ETXTBSY) => thread::sleep(RETRY_PAUSE),
            Some(libc::ENOEXEC) => return execute_by_shell(&path, &args, &env),
            _ => return Err(err),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ETXTBSY))
}

fn execute_by_shell(
    path: &CStr,
    args: &[*const c_char],
    env: &[*const c_char],
) -> io::Result<NeverReturns> {
    let rest = args.iter().copied().skip(1);
    let args: Vec<_> = [SHELL.as_ptr(), path.as_ptr()].into_iter().chain(rest).collect();
    // SAFETY: all strings and lists are terminated.
    unsafe { libc::execve(SHELL.as_ptr(), args.as_ptr(), env.as_ptr()) };
    Err(io::Error::last_os_error())
}

/// Returns the strings as a null-terminated list of pointers.
fn pointer_list(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
}

/// Unblocks all signals of this process and resets SIGPIPE to its default action.
fn reset_signals() -> io::Result<()> {
    let mut none = MaybeUninit::uninit();
    // SAFETY: the set is emptied before it is used. The standard library ignores SIGPIPE.
    let set = unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut())
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

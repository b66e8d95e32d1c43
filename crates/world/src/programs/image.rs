//! Starts a process as `posix_spawn` does: the new process shares the server's memory until it
//! executes its program.
//!
//! A plain fork copies the server's page tables, and slows down each thread that writes to memory.
//! The standard library uses `posix_spawn` only for programs that need no preparation before exec.

#![allow(
    unsafe_code,
    reason = "between clone and exec only system calls are made, nothing is allocated"
)]

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// The size of the stack on which a new process runs before it executes its program, in bytes.
const STACK_BYTES: usize = 64 << 10;
/// The path of the server's own executable. Workers for which there is no separate executable run
/// it, too.
pub(crate) const SERVER_FILE: &str = "/proc/self/exe";
/// The name (`argv[0]`) under which the server starts its sandbox helper.
pub(crate) const HELPER_NAME: &str = "toolgate-sandbox";
/// The descriptor number under which a started program gets its extra descriptor.
pub(crate) const EXTRA_FD: RawFd = 3;
/// The lowest number of an extra descriptor in the server, before it becomes [`EXTRA_FD`] in the
/// process.
pub(crate) const EXTRA_FD_SOURCE_MIN: RawFd = 16;
/// The highest number of a signal.
const SIGNAL_MAX: c_int = 64;

/// The interpreter of a script without a `#!` line.
const SHELL: &CStr = c"/bin/sh";

/// A program that is ready to start. All memory that its start needs is allocated.
pub(crate) struct PreparedProgram {
    path: CString,
    args: Vec<CString>,
    env: Vec<CString>,
    is_fed: bool,
    /// An extra descriptor, which the program gets under the number 3. `None` if the program gets
    /// none.
    handle: Option<OwnedFd>,
}

/// The standard streams of a program: the program's ends and the server's ends.
pub(crate) struct StandardStreams {
    pub(crate) program_ends: [OwnedFd; 3],
    stdin: Option<OwnedFd>,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

/// A child process and the server's ends of its pipes.
pub(crate) struct ChildProcess {
    pub(crate) pid: Pid,
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
}

impl PreparedProgram {
    /// Prepares the program at `path`, with `name` as its `argv[0]`. If `is_fed`, standard input is
    /// a pipe, otherwise it is empty.
    pub(crate) fn new(
        path: PathBuf,
        name: String,
        args: Vec<OsString>,
        env: impl IntoIterator<Item = (OsString, OsString)>,
        is_fed: bool,
    ) -> io::Result<Self> {
        let string = |text: OsString| CString::new(text.into_vec()).map_err(io::Error::from);
        let args = std::iter::once(OsString::from(name)).chain(args).map(string);
        let env = env.into_iter().map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            string(name)
        });
        Ok(Self {
            path: string(path.into_os_string())?,
            args: args.collect::<io::Result<_>>()?,
            env: env.collect::<io::Result<_>>()?,
            is_fed,
            handle: None,
        })
    }

    /// Prepares the sandbox helper at `path`, which receives orders on `handle`. The environment is
    /// empty, because the helper starts unconfined.
    pub(crate) fn helper(path: PathBuf, handle: &OwnedFd) -> io::Result<Self> {
        Self::with_handle(path, HELPER_NAME, handle)
    }

    /// Prepares the program at `path` with an empty environment, no arguments and `name` as its
    /// `argv[0]`. The program gets `handle` as its extra descriptor.
    pub(crate) fn with_handle(path: PathBuf, name: &str, handle: &OwnedFd) -> io::Result<Self> {
        let handle = fcntl_dupfd_cloexec(handle, EXTRA_FD_SOURCE_MIN)?;
        let image = Self::new(path, name.to_owned(), Vec::new(), [], false)?;
        Ok(Self { handle: Some(handle), ..image })
    }

    /// Starts the program. `set_apart` prepares the new process before exec, and may make system
    /// calls only.
    pub(crate) fn start(&self, set_apart: &dyn Fn() -> io::Result<()>) -> io::Result<ChildProcess> {
        let streams = StandardStreams::new(self.is_fed)?;
        let theirs = streams.program_ends.each_ref().map(AsRawFd::as_raw_fd);
        let args: Vec<_> = self.args.iter().map(CString::as_c_str).collect();
        let pid = match self.exec(&self.path, &args, theirs, set_apart) {
            // Like a shell, it runs an executable text without a `#!` line as a shell script.
            Err(err) if err.raw_os_error() == Some(libc::ENOEXEC) => {
                let rest = args.iter().skip(1).copied();
                let args: Vec<_> = [SHELL, &self.path].into_iter().chain(rest).collect();
                self.exec(SHELL, &args, theirs, set_apart)?
            }
            started => started?,
        };
        Ok(ChildProcess::new(pid, streams))
    }

    fn exec(
        &self,
        path: &CStr,
        args: &[&CStr],
        streams: [RawFd; 3],
        set_apart: &dyn Fn() -> io::Result<()>,
    ) -> io::Result<Pid> {
        let end = std::iter::once(ptr::null());
        let args: Vec<_> = args.iter().map(|arg| arg.as_ptr()).chain(end.clone()).collect();
        let env: Vec<_> = self.env.iter().map(|pair| pair.as_ptr()).chain(end).collect();
        let birth = ExecContext {
            path: path.as_ptr(),
            args: args.as_ptr(),
            env: env.as_ptr(),
            streams,
            handle: self.handle.as_ref(),
            set_apart,
            failure: AtomicI32::new(0),
        };
        let pid = birth.spawn()?;
        match birth.failure.load(Ordering::Acquire) {
            0 => Ok(pid),
            errno => {
                // The process has reported the error and ended.
                waitpid(Some(pid), WaitOptions::empty())?;
                Err(io::Error::from_raw_os_error(errno))
            }
        }
    }
}

/// Data that a new process needs until it executes its program.
struct ExecContext<'a> {
    path: *const c_char,
    args: *const *const c_char,
    env: *const *const c_char,
    streams: [RawFd; 3],
    handle: Option<&'a OwnedFd>,
    set_apart: &'a dyn Fn() -> io::Result<()>,
    /// The error number (`errno`) that kept the program from starting. 0 means no error.
    failure: AtomicI32,
}

impl ExecContext<'_> {
    /// Creates the process of the program. Returns when the program has started or the process has
    /// ended.
    fn spawn(&self) -> io::Result<Pid> {
        let mut stack = Vec::<MaybeUninit<u128>>::with_capacity(STACK_BYTES / size_of::<u128>());
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: sigfillset fills `all` and pthread_sigmask fills `before`. The new process runs
        // on `stack`, which grows down from its aligned end, and on no other memory of ours. This
        // thread waits until the process has its own memory or has ended. Signals stay blocked
        // until the process has none of our handlers.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            let top = stack.as_mut_ptr().add(stack.capacity()).cast::<c_void>();
            let how = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            let pid = libc::clone(run_child, top, how, ptr::from_ref(self).cast_mut().cast());
            let made = if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid) };
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
            let none = || io::Error::other("the new process has no ID");
            made.and_then(|pid| Pid::from_raw(pid).ok_or_else(none))
        }
    }

    /// Executes the program. Returns only if that fails, with the error. Makes system calls only.
    fn exec(&self) -> io::Error {
        if let Err(err) = reset_signal_handlers().and_then(|()| (self.set_apart)()) {
            return err;
        }
        // SAFETY: the descriptors are open, and the strings and lists are terminated as execve
        // requires.
        unsafe {
            for (stream, fd) in self.streams.iter().zip(0..) {
                if libc::dup2(*stream, fd) < 0 {
                    return io::Error::last_os_error();
                }
            }
            if let Some(handle) = self.handle
                && libc::dup2(handle.as_raw_fd(), EXTRA_FD) < 0
            {
                return io::Error::last_os_error();
            }
            let mut none = MaybeUninit::uninit();
            libc::sigemptyset(none.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
            libc::execve(self.path, self.args, self.env);
        }
        io::Error::last_os_error()
    }
}

extern "C" fn run_child(birth: *mut c_void) -> c_int {
    // SAFETY: the pointer is the `ExecContext` whose `spawn` waits for this process.
    let birth = unsafe { &*birth.cast::<ExecContext<'_>>() };
    let err = birth.exec();
    birth.failure.store(err.raw_os_error().unwrap_or(libc::EINVAL), Ordering::Release);
    // SAFETY: it ends this process alone and runs no code of the server's.
    unsafe { libc::_exit(127) }
}

/// Resets the server's signal handlers in the new process, where they would report signals that are
/// not for the server. Signals that were ignored before the server started stay ignored.
fn reset_signal_handlers() -> io::Result<()> {
    for signal in 1..=SIGNAL_MAX {
        let mut now = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: sigaction fills `now`, or fails if the signal is reserved by the C library.
        unsafe {
            if libc::sigaction(signal, ptr::null(), now.as_mut_ptr()) != 0 {
                continue;
            }
            let mut now = now.assume_init();
            // The standard library makes the server ignore SIGPIPE.
            let is_ours = now.sa_sigaction != libc::SIG_IGN || signal == libc::SIGPIPE;
            if now.sa_sigaction != libc::SIG_DFL && is_ours {
                now.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &raw const now, ptr::null_mut());
            }
        }
    }
    Ok(())
}

impl StandardStreams {
    /// Creates the streams of a program. Standard input is a pipe if `is_fed`, and empty otherwise.
    pub(crate) fn new(is_fed: bool) -> io::Result<Self> {
        let (input, stdin) = match is_fed {
            true => new_pipe().map(|(theirs, ours)| (theirs, Some(ours)))?,
            false => {
                let nothing = open(c"/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
                (above_streams(nothing)?, None)
            }
        };
        let ((stdout, output), (stderr, errors)) = (new_pipe()?, new_pipe()?);
        Ok(Self { program_ends: [input, output, errors], stdin, stdout, stderr })
    }
}

/// Creates a pipe and returns its read and write ends.
fn new_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((above_streams(read)?, above_streams(write)?))
}

/// Returns `fd` under a number above those of the standard streams. Duplicates `fd` if necessary.
///
/// If the server runs without a standard stream, a new descriptor can get that stream's number.
/// Installing the program's streams would overwrite it.
fn above_streams(fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() > 2 { Ok(fd) } else { Ok(fcntl_dupfd_cloexec(&fd, 3)?) }
}

impl ChildProcess {
    /// Creates a handle of the child process `pid`, which holds the program's ends of `streams`.
    pub(crate) fn new(pid: Pid, streams: StandardStreams) -> Self {
        let StandardStreams { program_ends: _, stdin, stdout, stderr } = streams;
        Self { pid, stdin, stdout: Some(stdout), stderr: Some(stderr) }
    }

    /// Returns the exit status if the process has ended, and reaps the process. Do not call this
    /// again after that.
    pub(crate) fn try_wait(&self) -> io::Result<Option<ExitStatus>> {
        let ended = waitpid(Some(self.pid), WaitOptions::NOHANG)?;
        Ok(ended.map(|(_, status)| ExitStatus::from_raw(status.as_raw())))
    }

    /// Kills the child process and waits for its end.
    pub(crate) fn kill_and_wait(&self) -> io::Result<()> {
        kill_and_wait(self.pid)
    }
}

/// Kills the child process `pid` and waits for its end.
pub(crate) fn kill_and_wait(pid: Pid) -> io::Result<()> {
    kill_process(pid, Signal::KILL)?;
    waitpid(Some(pid), WaitOptions::empty())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{File, set_permissions, write};
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn image(path: &str, args: &[&str]) -> PreparedProgram {
        let args = args.iter().map(OsString::from).collect();
        let env = [("A".into(), "b c".into())];
        PreparedProgram::new(path.into(), "called".to_owned(), args, env, false).unwrap()
    }

    /// Runs the program of `image` to its end. Returns its output and its exit status.
    fn run(image: &PreparedProgram) -> (String, ExitStatus) {
        let child = image.start(&|| Ok(())).unwrap();
        let mut printed = String::new();
        File::from(child.stdout.unwrap()).read_to_string(&mut printed).unwrap();
        let (_, status) = waitpid(Some(child.pid), WaitOptions::empty()).unwrap().unwrap();
        (printed, ExitStatus::from_raw(status.as_raw()))
    }

    #[test]
    fn a_program_gets_exactly_its_arguments_and_environment() {
        let (printed, status) =
            run(&image("/bin/sh", &["-c", "echo $0 $1; env | sort", "x y", "$z"]));
        // The shell adds variables of its own.
        let own = |line: &&str| !line.starts_with("PWD=") && !line.starts_with("_=");
        let lines: Vec<_> = printed.lines().filter(own).collect();
        assert_eq!(lines, ["x y $z", "A=b c"]);
        assert!(status.success());
    }

    #[test]
    fn a_program_blocks_no_signals_and_does_not_ignore_sigpipe() {
        let (printed, _) = run(&image("/bin/cat", &["/proc/self/status"]));
        let signals = |name| {
            let line = printed.lines().find_map(|line| line.strip_prefix(name));
            u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
        };
        assert_eq!(signals("SigBlk:"), 0);
        // Others may have been ignored before the server began.
        assert_eq!(signals("SigIgn:") & 1 << (libc::SIGPIPE - 1), 0);
    }

    #[test]
    fn a_program_that_cannot_start_is_an_error_and_leaves_no_process() {
        let absent = image("/nowhere/at/all", &[]).start(&|| Ok(())).err().unwrap();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
        let refused = || Err(io::Error::from_raw_os_error(libc::EPERM));
        let refused = image("/bin/true", &[]).start(&refused).err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        let left = waitpid(None, WaitOptions::NOHANG);
        assert_eq!(left.err(), Some(rustix::io::Errno::CHILD));
    }

    #[test]
    fn a_script_without_an_interpreter_line_is_run_by_the_shell() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        write(&script, "echo \"$0 $1\"; exit 3\n").unwrap();
        set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
        let (printed, status) = run(&image(script.to_str().unwrap(), &["one"]));
        assert_eq!(printed, format!("{} one\n", script.display()));
        assert_eq!(status.code(), Some(3));
    }
}

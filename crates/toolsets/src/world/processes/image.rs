//! A program's process made as `posix_spawn` makes one: in the server's memory, which stands
//! still until the program takes its place.
//!
//! A plain fork copies the server's page tables, and makes each thread that goes on writing pay
//! for it on every core; beside that the program itself costs little. The standard library has
//! this way only for programs that need nothing of their own before they begin.

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

/// How much stack what is done between clone and exec may take.
const STACK_BYTES: usize = 64 << 10;
/// What the helper that confines programs is called by whoever starts it.
pub(in crate::world) const HELPER: &str = "toolgate-sandbox";
/// By which number a handle is handed over.
pub(in crate::world) const HANDED: RawFd = 3;
/// One that is to be is above that number.
const HANDED_MIN: RawFd = 16;
/// The highest signal there is.
const SIGNAL_MAX: c_int = 64;

/// What runs what is no program but the text of one.
const SHELL: &CStr = c"/bin/sh";

/// A program to be started, with all that needs memory done.
pub(in crate::world) struct Image {
    path: CString,
    args: Vec<CString>,
    env: Vec<CString>,
    is_fed: bool,
    /// What it finds open beside its streams, at the first number after theirs.
    handle: Option<OwnedFd>,
}

/// A program's standard streams: its ends, and ours.
pub(in crate::world) struct Streams {
    pub(in crate::world) theirs: [OwnedFd; 3],
    stdin: Option<OwnedFd>,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

/// A process and our ends of its pipes.
pub(in crate::world) struct Child {
    pub(in crate::world) pid: Pid,
    pub(super) stdin: Option<OwnedFd>,
    pub(super) stdout: Option<OwnedFd>,
    pub(super) stderr: Option<OwnedFd>,
}

impl Image {
    /// The program at `path`, told that it is called `name`.
    pub(super) fn new(
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

    /// The helper at `path` that confines programs, told what by `handle`. Of the server's
    /// environment it has nothing, nor of a program's: it runs before that is confined.
    pub(in crate::world) fn helper(path: PathBuf, handle: &OwnedFd) -> io::Result<Self> {
        let handle = fcntl_dupfd_cloexec(handle, HANDED_MIN)?;
        let image = Self::new(path, HELPER.to_owned(), Vec::new(), [], false)?;
        Ok(Self { handle: Some(handle), ..image })
    }

    /// Starts it. `set_apart` is done in the new process: system calls only.
    pub(in crate::world) fn start(
        &self,
        set_apart: &dyn Fn() -> io::Result<()>,
    ) -> io::Result<Child> {
        let streams = Streams::new(self.is_fed)?;
        let theirs = streams.theirs.each_ref().map(AsRawFd::as_raw_fd);
        let args: Vec<_> = self.args.iter().map(CString::as_c_str).collect();
        let pid = match self.exec(&self.path, &args, theirs, set_apart) {
            // As the shell and the standard library do with a script that does not name what
            // runs it.
            Err(err) if err.raw_os_error() == Some(libc::ENOEXEC) => {
                let rest = args.iter().skip(1).copied();
                let args: Vec<_> = [SHELL, &self.path].into_iter().chain(rest).collect();
                self.exec(SHELL, &args, theirs, set_apart)?
            }
            started => started?,
        };
        Ok(Child::of(pid, streams))
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
        let birth = Birth {
            path: path.as_ptr(),
            args: args.as_ptr(),
            env: env.as_ptr(),
            streams,
            handle: self.handle.as_ref(),
            set_apart,
            failure: AtomicI32::new(0),
        };
        let pid = birth.give()?;
        match birth.failure.load(Ordering::Acquire) {
            0 => Ok(pid),
            errno => {
                // It has said why and ended.
                waitpid(Some(pid), WaitOptions::empty())?;
                Err(io::Error::from_raw_os_error(errno))
            }
        }
    }
}

/// What the new process needs until the program takes its place.
struct Birth<'a> {
    path: *const c_char,
    args: *const *const c_char,
    env: *const *const c_char,
    streams: [RawFd; 3],
    handle: Option<&'a OwnedFd>,
    set_apart: &'a dyn Fn() -> io::Result<()>,
    /// The number of the error that kept the program from beginning.
    failure: AtomicI32,
}

impl Birth<'_> {
    /// Makes the process. Returns once the program has begun, or the process has ended without.
    fn give(&self) -> io::Result<Pid> {
        let mut stack = Vec::<MaybeUninit<u128>>::with_capacity(STACK_BYTES / size_of::<u128>());
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: sigfillset fills `all` and pthread_sigmask `before`. The new process runs on
        // `stack`, which grows down from its end and is aligned as it must be, and on nothing
        // else of ours: this thread stands still until it has a memory of its own or has ended.
        // Signals are blocked until it has no handler of ours any more.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            let top = stack.as_mut_ptr().add(stack.capacity()).cast::<c_void>();
            let how = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            let pid = libc::clone(born, top, how, ptr::from_ref(self).cast_mut().cast());
            let made = if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid) };
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
            let none = || io::Error::other("the new process has no number");
            made.and_then(|pid| Pid::from_raw(pid).ok_or_else(none))
        }
    }

    /// Becomes the program; the error if it cannot. System calls only.
    fn become_it(&self) -> io::Error {
        if let Err(err) = forget_handlers().and_then(|()| (self.set_apart)()) {
            return err;
        }
        // SAFETY: the descriptors are open, and the strings and their lists end as execve wants
        // them to.
        unsafe {
            for (stream, fd) in self.streams.iter().zip(0..) {
                if libc::dup2(*stream, fd) < 0 {
                    return io::Error::last_os_error();
                }
            }
            if let Some(handle) = self.handle
                && libc::dup2(handle.as_raw_fd(), HANDED) < 0
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

extern "C" fn born(birth: *mut c_void) -> c_int {
    // SAFETY: it is the `Birth` whose `give` waits for this.
    let birth = unsafe { &*birth.cast::<Birth<'_>>() };
    let err = birth.become_it();
    birth.failure.store(err.raw_os_error().unwrap_or(libc::EINVAL), Ordering::Release);
    // SAFETY: it ends this process alone, and runs nothing of the server's.
    unsafe { libc::_exit(127) }
}

/// Gives up the server's handlers: run here, they would tell the server of signals to another.
/// What it ignores the program does not, but for what was ignored before the server began.
fn forget_handlers() -> io::Result<()> {
    for signal in 1..=SIGNAL_MAX {
        let mut now = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: sigaction fills `now`, or fails where the signal is the C library's own.
        unsafe {
            if libc::sigaction(signal, ptr::null(), now.as_mut_ptr()) != 0 {
                continue;
            }
            let mut now = now.assume_init();
            // The standard library ignores it in the server.
            let is_ours = now.sa_sigaction != libc::SIG_IGN || signal == libc::SIGPIPE;
            if now.sa_sigaction != libc::SIG_DFL && is_ours {
                now.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &raw const now, ptr::null_mut());
            }
        }
    }
    Ok(())
}

impl Streams {
    /// Of a program that reads from a pipe if it `is_fed`, and else finds nothing to read.
    pub(in crate::world) fn new(is_fed: bool) -> io::Result<Self> {
        let (input, stdin) = match is_fed {
            true => pipe().map(|(theirs, ours)| (theirs, Some(ours)))?,
            false => {
                let nothing = open(c"/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
                (above_streams(nothing)?, None)
            }
        };
        let ((stdout, output), (stderr, errors)) = (pipe()?, pipe()?);
        Ok(Self { theirs: [input, output, errors], stdin, stdout, stderr })
    }
}

/// A pipe's end to read and its end to write.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((above_streams(read)?, above_streams(write)?))
}

/// The same with a number above the standard streams'. Where a server runs without one of these,
/// what came in its place would be overwritten while the program's are put in theirs.
fn above_streams(fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() > 2 { Ok(fd) } else { Ok(fcntl_dupfd_cloexec(&fd, 3)?) }
}

impl Child {
    /// The process `pid`, which has the other ends of `streams`.
    pub(in crate::world) fn of(pid: Pid, streams: Streams) -> Self {
        let Streams { theirs: _, stdin, stdout, stderr } = streams;
        Self { pid, stdin, stdout: Some(stdout), stderr: Some(stderr) }
    }

    /// How it ended, if it has; it is buried then, and must not be asked again.
    pub(super) fn try_wait(&self) -> io::Result<Option<ExitStatus>> {
        let ended = waitpid(Some(self.pid), WaitOptions::NOHANG)?;
        Ok(ended.map(|(_, status)| ExitStatus::from_raw(status.as_raw())))
    }

    /// Kills it and waits for its end.
    pub(super) fn end(&self) -> io::Result<()> {
        end(self.pid)
    }
}

/// Kills the child `pid` and waits for its end.
pub(in crate::world) fn end(pid: Pid) -> io::Result<()> {
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

    fn image(path: &str, args: &[&str]) -> Image {
        let args = args.iter().map(OsString::from).collect();
        let env = [("A".into(), "b c".into())];
        Image::new(path.into(), "called".to_owned(), args, env, false).unwrap()
    }

    /// What it prints, and how it ends.
    fn run(image: &Image) -> (String, ExitStatus) {
        let child = image.start(&|| Ok(())).unwrap();
        let mut printed = String::new();
        File::from(child.stdout.unwrap()).read_to_string(&mut printed).unwrap();
        let (_, status) = waitpid(Some(child.pid), WaitOptions::empty()).unwrap().unwrap();
        (printed, ExitStatus::from_raw(status.as_raw()))
    }

    #[test]
    fn a_program_has_its_words_its_environment_and_no_more() {
        let (printed, status) =
            run(&image("/bin/sh", &["-c", "echo $0 $1; env | sort", "x y", "$z"]));
        // The shell adds variables of its own.
        let own = |line: &&str| !line.starts_with("PWD=") && !line.starts_with("_=");
        let lines: Vec<_> = printed.lines().filter(own).collect();
        assert_eq!(lines, ["x y $z", "A=b c"]);
        assert!(status.success());
    }

    #[test]
    fn a_program_blocks_no_signal_and_hears_of_a_broken_pipe() {
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
    fn what_keeps_a_program_from_beginning_is_told_and_no_process_is_left() {
        let absent = image("/nowhere/at/all", &[]).start(&|| Ok(())).err().unwrap();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
        let refused = || Err(io::Error::from_raw_os_error(libc::EPERM));
        let refused = image("/bin/true", &[]).start(&refused).err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        let left = waitpid(None, WaitOptions::NOHANG);
        assert_eq!(left.err(), Some(rustix::io::Errno::CHILD));
    }

    #[test]
    fn a_script_that_names_no_interpreter_is_run_by_the_shell() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        write(&script, "echo \"$0 $1\"; exit 3\n").unwrap();
        set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
        let (printed, status) = run(&image(script.to_str().unwrap(), &["one"]));
        assert_eq!(printed, format!("{} one\n", script.display()));
        assert_eq!(status.code(), Some(3));
    }
}

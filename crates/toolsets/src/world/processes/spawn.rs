//! The one thread that starts programs, and what is done between fork and exec.

use std::io;
use std::ops::Range;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{
    Resource, Rlimit, Signal, fchdir, getpid, getppid, getrlimit, set_parent_process_death_signal,
    setrlimit, setsid,
};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::Start;
use super::family::Family;
use super::keeper::Keeper;
use super::mark::{Mark, Tag};
use super::strays::Live;

/// How many programs may wait to be started.
const QUEUE: usize = 64;

/// No descriptor has a higher number, where the kernel must be asked about each.
const FD_MAX: u64 = 1 << 20;

/// Starts programs on a thread that lives as long as they may.
///
/// A thread of its own for two reasons: a program is to die with the server, and
/// Linux takes the end of the thread that started it for the end of the server;
/// and starting waits for the new process, which a worker of the runtime must not.
pub(super) struct Spawner {
    requests: mpsc::Sender<Request>,
    mark: Mark,
}

struct Request {
    command: Command,
    live: Live,
    token: TaskTrackerToken,
    reply: oneshot::Sender<io::Result<Family>>,
}

impl Spawner {
    /// Programs will bear `mark`.
    pub(super) fn start(mark: Mark) -> io::Result<Self> {
        let (sender, mut requests) = mpsc::channel::<Request>(QUEUE);
        thread::Builder::new().name("toolgate-spawn".to_owned()).spawn(move || {
            let mut keeper = Keeper::of(mark);
            while let Some(Request { command, live, token, reply }) = requests.blocking_recv() {
                if !reply.is_closed() {
                    // If nobody waits for it any more it is dropped here, which kills it.
                    let family = keeper.watch().and_then(|()| spawn(command, live, token));
                    let _ = reply.send(family);
                }
            }
        })?;
        Ok(Self { requests: sender, mark })
    }

    pub(super) fn mark(&self) -> Mark {
        self.mark
    }

    /// Starts a program, with pipes at its outputs.
    pub(super) async fn spawn(&self, start: Start, token: TaskTrackerToken) -> io::Result<Family> {
        let Start { program, args, cwd, env, stdin, bounds: _ } = start;
        let live = Live::new(self.mark);
        let mut command = Command::new(program.path);
        command.arg0(program.name).args(args).env_clear().envs(env);
        command.stdin(if stdin.is_some() { Stdio::piped() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        set_apart(&mut command, cwd, live.tag());
        let (reply, family) = oneshot::channel();
        let gone = || io::Error::other("the thread that starts programs has ended");
        self.requests.send(Request { command, live, token, reply }).await.map_err(|_| gone())?;
        family.await.map_err(|_| gone())?
    }
}

fn spawn(mut command: Command, live: Live, token: TaskTrackerToken) -> io::Result<Family> {
    // A file just written can be held open for an instant by a process just forked.
    for _ in 0..20 {
        match command.spawn() {
            Err(err) if err.kind() == io::ErrorKind::ExecutableFileBusy => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(err) => return Err(err),
            Ok(child) => return Family::of(child, live, token),
        }
    }
    Err(io::ErrorKind::ExecutableFileBusy.into())
}

/// Gives the program a session, a directory and a tag of its own, and nothing of ours.
///
/// The standard library already resets the signal mask and SIGPIPE.
#[allow(
    unsafe_code,
    reason = "between fork and exec only system calls are made, nothing is allocated"
)]
fn set_apart(command: &mut Command, cwd: OwnedFd, tag: Tag) {
    let server = getpid();
    let set_apart = move || -> io::Result<()> {
        setsid()?;
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != Some(server) {
            return Err(rustix::io::Errno::SRCH.into());
        }
        fchdir(&cwd)?;
        setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
        tag.put_on()?;
        // SAFETY: it only sets a flag on descriptors.
        let rc =
            unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        if rc != 0 {
            // Linux before 5.11 does not know the flag, and a sandbox may refuse the call.
            close_each_at_exec();
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls only; it neither allocates nor takes a lock.
    unsafe { command.pre_exec(set_apart) };
}

/// Lets no descriptor but the first three outlive an exec, one by one. Only system calls.
#[allow(unsafe_code, reason = "between fork and exec the descriptors are known by number alone")]
fn close_each_at_exec() {
    for fd in descriptors(3) {
        // SAFETY: it only sets a flag, and fails where there is no such descriptor.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// The numbers from `first` on that descriptors may have. Only a system call.
pub(super) fn descriptors(first: RawFd) -> Range<RawFd> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).min(FD_MAX);
    first..RawFd::try_from(limit).unwrap_or(RawFd::MAX)
}

#[cfg(test)]
mod tests {
    use rustix::io::{FdFlags, dup, fcntl_getfd, fcntl_setfd};

    use super::*;

    #[test]
    fn an_older_kernel_passes_no_descriptor_on_either() {
        let held = dup(io::stderr()).unwrap();
        fcntl_setfd(&held, FdFlags::empty()).unwrap();
        close_each_at_exec();
        assert_eq!(fcntl_getfd(&held).unwrap(), FdFlags::CLOEXEC);
        assert_eq!(fcntl_getfd(io::stderr()).unwrap(), FdFlags::empty());
    }
}

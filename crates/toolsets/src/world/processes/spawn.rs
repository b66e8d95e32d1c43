//! The one thread that starts programs, and what is done before they begin.

use std::io;
use std::ops::Range;
use std::os::fd::{OwnedFd, RawFd};
use std::thread;
use std::time::Duration;

use rustix::process::{
    Pid, Resource, Rlimit, Signal, fchdir, getpid, getppid, getrlimit,
    set_parent_process_death_signal, setrlimit, setsid,
};
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::family::Family;
use super::image::Image;
use super::keeper::Keeper;
use super::mark::{Mark, Tag};
use super::strays::Live;
use super::{Processes, Start};
use crate::world::sandbox::{self, Around, Confined};

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
    image: Image,
    cwd: OwnedFd,
    live: Live,
    around: Option<Around>,
    token: TaskTrackerToken,
    reply: oneshot::Sender<io::Result<Family>>,
}

impl Spawner {
    /// Programs will bear `mark`.
    pub(super) fn start(mark: Mark) -> io::Result<Self> {
        let (sender, mut requests) = mpsc::channel::<Request>(QUEUE);
        thread::Builder::new().name("toolgate-spawn".to_owned()).spawn(move || {
            let mut keeper = Keeper::of(mark);
            while let Some(request) = requests.blocking_recv() {
                let Request { image, cwd, live, around, token, reply } = request;
                if !reply.is_closed() {
                    // If nobody waits for it any more it is dropped here, which kills it.
                    let family =
                        keeper.watch().and_then(|()| spawn(&image, &cwd, live, around, token));
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
    pub(super) async fn spawn(
        &self,
        start: Start,
        house: &Processes,
        token: TaskTrackerToken,
    ) -> io::Result<Family> {
        let live = Live::new(self.mark);
        let (image, cwd, around) = match start.inside {
            Some(_) => {
                let house = house.clone();
                let confined = spawn_blocking(move || confined(start, &house));
                let Confined { image, workspace, around } =
                    confined.await.map_err(io::Error::other)??;
                (image, workspace, Some(around))
            }
            None => {
                let Start { program, args, cwd, env, stdin, bounds: _, inside: _ } = start;
                let image = Image::new(program.path, program.name, args, env, stdin.is_some())?;
                (image, cwd, None)
            }
        };
        let (reply, family) = oneshot::channel();
        let gone = || io::Error::other("the thread that starts programs has ended");
        let request = Request { image, cwd, live, around, token, reply };
        self.requests.send(request).await.map_err(|_| gone())?;
        family.await.map_err(|_| gone())?
    }
}

/// What starts a program confined.
fn confined(start: Start, house: &Processes) -> io::Result<Confined> {
    let Start { program, args, cwd, env, stdin, bounds, inside } = start;
    let inside = inside.ok_or(io::ErrorKind::InvalidInput)?;
    let (is_fed, grace) = (stdin.is_some(), bounds.grace);
    let start = sandbox::Start { program, args, cwd, env, is_fed, grace };
    house.sandbox().confine(&inside, start, house.variables())
}

fn spawn(
    image: &Image,
    cwd: &OwnedFd,
    live: Live,
    around: Option<Around>,
    token: TaskTrackerToken,
) -> io::Result<Family> {
    let (server, tag) = (getpid(), live.tag());
    let set_apart = || set_apart(server, cwd, tag);
    // A file just written can be held open for an instant by a process just forked.
    for _ in 0..20 {
        match image.start(&set_apart) {
            Err(err) if err.kind() == io::ErrorKind::ExecutableFileBusy => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(err) => return Err(err),
            Ok(child) => return Family::of(child, live, around, token),
        }
    }
    Err(io::ErrorKind::ExecutableFileBusy.into())
}

/// Gives the program a session, a directory and a tag of its own, and nothing of ours. System
/// calls only.
#[allow(unsafe_code, reason = "rustix lacks the one that closes descriptors")]
fn set_apart(server: Pid, cwd: &OwnedFd, tag: Tag) -> io::Result<()> {
    setsid()?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != Some(server) {
        return Err(rustix::io::Errno::SRCH.into());
    }
    fchdir(cwd)?;
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

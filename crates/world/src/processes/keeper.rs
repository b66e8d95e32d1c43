//! The keeper process, which briefly outlives the server and ends the programs of a killed server.
//!
//! When the server is killed, its programs die with it, but the children of these programs become
//! children of init. Therefore the server forks a keeper before it starts its first program. The
//! keeper waits until the server has ended for any reason, and then kills all processes with the
//! server's mark. The mark is stored in a resource limit. The keeper does not find a process that
//! lowered this limit.
//!
//! The keeper is also a watchdog. If the server has reported that it is not frozen, and the next
//! report is overdue, the keeper kills the programs, although the server has not ended.

#![allow(
    unsafe_code,
    reason = "a fork of many threads may make system calls only, some of which rustix lacks"
)]

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, RawDir, openat};
use rustix::io::{Errno, read, write};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, setsid, waitpid,
};
use toolgate_contract::lock_mutex;

use super::spawn::possible_descriptors;
use crate::programs::{RlimitLocksValues, ServerProcessMark};
use crate::sandbox::LeftoverPlaceholders;

/// The longest time that killing all processes with a server's mark may take.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest time for which the keeper tries to remove placeholder folders that are locked.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause after killing processes, before the next scan for more. Also the pause between two
/// attempts to remove placeholder folders.
const SCAN_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The number of consecutive scans that must find no process with the server's mark. A process that
/// forks during a scan can be missed by it.
const EMPTY_SCANS_MIN: u32 = 2;

/// The buffer size for `/proc/<pid>/limits`, in bytes. The file is shorter.
const LIMITS_BYTES: usize = 4096;

/// A handle of the keeper process, which ends all processes with the server's mark.
///
/// The keeper is a child of the thread that starts programs. A child of the first thread would be
/// killed as a [lost orphan](super::strays::kill_lost_orphans).
pub(super) struct ProcessKeeperHandle {
    mark: ServerProcessMark,
    /// The sandbox's placeholder folders in the workspace. The keeper process removes them after
    /// the server has ended.
    leftovers: Option<LeftoverPlaceholders>,
    lifeline: ProcessKeeperPipe,
    process: Option<Pid>,
}

/// The pipe to the keeper process, which waits until all write ends of the pipe are closed. Clones
/// share the write end.
///
/// The pipe carries reports that the server is not frozen. Each report is the longest time until
/// the next report, in milliseconds. After a report of zero, no further report is expected.
#[derive(Clone, Default)]
pub(super) struct ProcessKeeperPipe(Arc<Mutex<ProcessKeeperPipeState>>);

#[derive(Default)]
struct ProcessKeeperPipeState {
    /// The write end of the pipe to the keeper process. Writing to it never blocks. `None` if no
    /// keeper process runs.
    pipe: Option<OwnedFd>,
    /// The last report to the keeper process: the longest time until the next report, in
    /// milliseconds.
    silence_ms: u64,
    /// The time of the last report.
    reported_at: Option<Instant>,
}

impl ProcessKeeperPipe {
    /// Reports to the keeper process that the server is not frozen. The keeper kills all programs
    /// of the server if the next report does not come within `silence`. With zero, no further
    /// report is expected.
    pub(super) fn report_alive(&self, silence: Duration) {
        let mut state = lock_mutex(&self.0);
        state.silence_ms = u64::try_from(silence.as_millis()).unwrap_or(u64::MAX);
        state.reported_at = Some(Instant::now());
        state.send();
    }

    /// Fails if the next report is overdue: this server was frozen, and the keeper has killed its
    /// programs. Call this right before a program starts, because another server may already run
    /// the job for which the program starts.
    ///
    /// # Errors
    /// An `Interrupted` error if the next report is overdue.
    pub(super) fn check_report(&self) -> io::Result<()> {
        let state = lock_mutex(&self.0);
        let silence = Duration::from_millis(state.silence_ms);
        let is_overdue = state.reported_at.is_some_and(|at| at.elapsed() > silence);
        if silence.is_zero() || !is_overdue {
            return Ok(());
        }
        let why = "this server was frozen, and another server may run its jobs";
        Err(io::Error::new(io::ErrorKind::Interrupted, why))
    }

    /// Returns `true` if the server must send further reports that it is not frozen.
    pub(super) fn is_watched(&self) -> bool {
        lock_mutex(&self.0).silence_ms != 0
    }

    /// Replaces the pipe by `pipe`, which leads to the next keeper process. Sends the last report
    /// again if the keeper expects further reports.
    fn replace(&self, pipe: Option<OwnedFd>) {
        let mut state = lock_mutex(&self.0);
        state.pipe = pipe;
        if state.silence_ms != 0 {
            state.send();
        }
    }
}

impl ProcessKeeperPipeState {
    /// Sends the last report to the keeper process, if one runs.
    fn send(&self) {
        if let Some(pipe) = &self.pipe {
            // A full pipe has enough reports. A keeper that was killed is replaced.
            let _ = write(pipe, &self.silence_ms.to_ne_bytes());
        }
    }
}

impl ProcessKeeperHandle {
    /// Creates a handle without a keeper process. The process that starts later waits on the pipe
    /// `lifeline`, and kills all processes with `mark`.
    pub(super) fn new(
        mark: ServerProcessMark,
        leftovers: Option<LeftoverPlaceholders>,
        lifeline: ProcessKeeperPipe,
    ) -> Self {
        Self { mark, leftovers, lifeline, process: None }
    }

    /// Starts a keeper process if none is running, for example because the last keeper was killed.
    pub(super) fn ensure_running(&mut self) -> io::Result<()> {
        if self.process.is_some_and(|keeper| !reap_if_ended(keeper)) {
            return Ok(());
        }
        // Another process may have its number by now.
        self.process = None;
        self.lifeline.replace(None);
        let (keeper, pipe) = spawn_keeper(self.mark, self.leftovers.as_ref())?;
        self.process = Some(keeper);
        self.lifeline.replace(Some(pipe));
        Ok(())
    }
}

impl Drop for ProcessKeeperHandle {
    /// Closes the pipe, so that the keeper process kills all processes with the server's mark, and
    /// reaps the keeper.
    fn drop(&mut self) {
        if let Some(keeper) = self.process.take() {
            self.lifeline.replace(None);
            // It may be reaped already.
            let _ = waitpid(Some(keeper), WaitOptions::empty());
        }
    }
}

/// Starts a keeper process. Returns its process ID and the write end of the pipe to it.
fn spawn_keeper(
    mark: ServerProcessMark,
    leftovers: Option<&LeftoverPlaceholders>,
) -> io::Result<(Pid, OwnedFd)> {
    let (read_end, lifeline) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let (ready, getting_ready) = pipe_with(PipeFlags::CLOEXEC)?;
    let pid = fork(|| run_keeper(mark, read_end.as_raw_fd(), leftovers))?;
    // The read ends when nobody holds the pipe: the keeper has closed all it inherited.
    drop(getting_ready);
    while read(&ready, &mut [0]) == Err(Errno::INTR) {}
    Ok((pid, lifeline))
}

/// Returns `true` if the keeper process with the process ID `keeper` has ended, and reaps it in
/// that case.
fn reap_if_ended(keeper: Pid) -> bool {
    !matches!(waitpid(Some(keeper), WaitOptions::NOHANG), Ok(None))
}

/// Forks a process that runs `work`, which may make system calls only. The process blocks all
/// signals except SIGKILL and SIGSTOP.
fn fork(work: impl FnOnce()) -> io::Result<Pid> {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: sigfillset fills `all` and pthread_sigmask fills `before`. The child makes system
    // calls only and never returns. Signals are blocked before the fork: otherwise the child would
    // run the server's handler and notify the server.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let pid = libc::fork();
        if pid == 0 {
            work();
            libc::_exit(0);
        }
        let forked = if pid < 0 { None } else { Pid::from_raw(pid) };
        let forked = forked.ok_or_else(io::Error::last_os_error);
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
        forked
    }
}

/// Runs the keeper process. Makes system calls only.
fn run_keeper(mark: ServerProcessMark, lifeline: RawFd, leftovers: Option<&LeftoverPlaceholders>) {
    // If one of these calls fails, the keeper is still useful.
    let _ = setsid();
    // A server above this one kills all processes with its mark. The keeper must survive that.
    let _ = RlimitLocksValues::clear();
    // SAFETY: the name is terminated. Of the inherited descriptors only two are used later: the
    // lifeline and, if there is one, the workspace.
    let (lifeline, workspace) = unsafe {
        libc::prctl(libc::PR_SET_NAME, c"toolgate-keeper".as_ptr());
        // Neither may already have the other's number.
        let first = libc::fcntl(lifeline, libc::F_DUPFD, 3);
        let second = leftovers.map(|it| libc::fcntl(it.workspace.as_raw_fd(), libc::F_DUPFD, 3));
        libc::dup2(if first < 0 { lifeline } else { first }, 0);
        let close_from = match second {
            Some(second) if libc::dup2(second, 1) == 1 => 2,
            _ => 1,
        };
        if libc::syscall(libc::SYS_close_range, close_from, u32::MAX, 0) != 0 {
            // Linux before 5.9 lacks this call, and a sandbox may refuse it.
            for fd in possible_descriptors(close_from) {
                libc::close(fd);
            }
        }
        (BorrowedFd::borrow_raw(0), (close_from == 2).then(|| BorrowedFd::borrow_raw(1)))
    };
    watch_lifeline(lifeline, mark);
    kill_all_marked(mark);
    if let (Some(leftovers), Some(workspace)) = (leftovers, workspace) {
        remove_leftovers(leftovers, workspace);
    }
}

/// Removes the placeholder folders `leftovers` in `workspace`. Leaves those that other servers
/// still need after [`REMOVE_TIMEOUT`].
///
/// A single attempt is not enough. The kernel closes the files of a killed server one after the
/// other, so the server may still have locks on the placeholders after its pipe is closed.
fn remove_leftovers(leftovers: &LeftoverPlaceholders, workspace: BorrowedFd<'_>) {
    let started = Instant::now();
    while !leftovers.remove_at(workspace) && started.elapsed() < REMOVE_TIMEOUT {
        let _ = poll(&mut [], Some(&SCAN_PAUSE));
    }
}

/// Waits until the other end of the pipe `lifeline` is closed. While a report of the server is
/// overdue, kills all processes with `mark`. The time does not count while the machine is
/// suspended.
fn watch_lifeline(lifeline: BorrowedFd<'_>, mark: ServerProcessMark) {
    let mut silence: Option<Timespec> = None;
    loop {
        match poll(&mut [PollFd::new(&lifeline, PollFlags::IN)], silence.as_ref()) {
            Ok(0) => _ = kill_all_marked(mark),
            Err(Errno::INTR) => {}
            Err(_) => return,
            Ok(_) => {
                let mut report = [0; 8];
                match read(lifeline, &mut report) {
                    Ok(0) => return,
                    Ok(_) => {
                        let silence_ms = u64::from_ne_bytes(report);
                        let due = Timespec::try_from(Duration::from_millis(silence_ms)).ok();
                        silence = due.filter(|_| silence_ms != 0);
                    }
                    Err(Errno::INTR | Errno::AGAIN) => {}
                    Err(_) => return,
                }
            }
        }
    }
}

/// Kills all processes with `mark`, and the processes that they start meanwhile. Returns `true` if
/// any process had this mark.
///
/// Makes system calls only, because this function runs in a fork of a threaded process. Gives up
/// after [`KILL_TIMEOUT`].
pub(super) fn kill_all_marked(mark: ServerProcessMark) -> bool {
    let started = Instant::now();
    let mut was_any = false;
    let mut looks_in_vain = 0;
    while looks_in_vain < EMPTY_SCANS_MIN && started.elapsed() < KILL_TIMEOUT {
        match kill_marked(mark) {
            Ok(false) => looks_in_vain += 1,
            Ok(true) => {
                was_any = true;
                looks_in_vain = 0;
                let _ = poll(&mut [], Some(&SCAN_PAUSE));
            }
            // The system may be short of descriptors for a moment.
            Err(_) => _ = poll(&mut [], Some(&SCAN_PAUSE)),
        }
    }
    was_any
}

/// Kills the processes with `mark` that exist now. Returns `true` if any of them was still alive.
fn kill_marked(mark: ServerProcessMark) -> rustix::io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let proc = openat(CWD, c"/proc", flags, Mode::empty())?;
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(&proc, &mut buffer);
    let mut was_any = false;
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        let Some(pid) = name.to_str().ok().and_then(|name| Pid::from_raw(name.parse().ok()?))
        else {
            continue;
        };
        // Opening the handle before the check ensures that the signal cannot reach another process.
        let Some(handle) = none_if_gone(pidfd_open(pid, PidfdFlags::empty()))? else { continue };
        let mut limits = [0; LIMITS_BYTES];
        if mark.matches(RlimitLocksValues::parse(read_limits(&proc, name, &mut limits)?))
            && !has_ended(&handle)
        {
            was_any = true;
            // It may have ended by itself, or belong to another user.
            let _ = pidfd_send_signal(&handle, Signal::KILL);
        }
    }
    Ok(was_any)
}

/// Reads the file `<pid>/limits` in the directory `proc` into `limits`. Returns an empty slice if
/// the process is gone.
fn read_limits<'a>(
    proc: &OwnedFd,
    pid: &CStr,
    limits: &'a mut [u8; LIMITS_BYTES],
) -> rustix::io::Result<&'a [u8]> {
    let mut path = [0; 32];
    let written = pid.to_bytes().iter().chain(b"/limits");
    path.iter_mut().zip(written).for_each(|(to, from)| *to = *from);
    let Ok(path) = CStr::from_bytes_until_nul(&path) else { return Ok(&[]) };
    let file = openat(proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let Some(file) = none_if_gone(file)? else { return Ok(&[]) };
    let read = none_if_gone(read(&file, &mut limits[..]))?;
    Ok(limits.get(..read.unwrap_or_default()).unwrap_or_default())
}

/// Returns `None` if `result`, from a system call about a process, means that the process is gone
/// or belongs to another user. Fails if a retry may succeed.
fn none_if_gone<T>(result: rustix::io::Result<T>) -> rustix::io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(err @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => Err(err),
        Err(_) => Ok(None),
    }
}

/// Returns `true` if all threads of the process with the handle `handle` have ended, reaped or not.
fn has_ended(handle: &OwnedFd) -> bool {
    poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&NO_WAIT)) != Ok(0)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::{Child, Command, ExitStatus};
    use std::thread;

    use rustix::process::{getpid, kill_process};

    use super::super::ProcessRunner;
    use super::*;
    use crate::sandbox::{Sandbox, SandboxPaths, SandboxSettings};

    /// A long-running program for tests. Dropping this value kills the program.
    struct SleepingProgram(Child);

    impl SleepingProgram {
        fn with_mark(mark: ServerProcessMark) -> Self {
            let mut command = Command::new("sleep");
            // SAFETY: the closure makes a system call only.
            unsafe { command.arg("300").pre_exec(move || mark.tag(7).apply()) };
            Self(command.spawn().unwrap())
        }

        fn is_alive(&mut self) -> bool {
            self.0.try_wait().unwrap().is_none()
        }

        fn wait(&mut self) -> ExitStatus {
            self.0.wait().unwrap()
        }
    }

    impl Drop for SleepingProgram {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn running_keeper(keeper: &mut ProcessKeeperHandle) -> Pid {
        keeper.ensure_running().unwrap();
        keeper.process.unwrap()
    }

    #[test]
    fn a_dropped_keeper_kills_only_programs_with_its_mark() {
        let mark = ServerProcessMark::random().unwrap();
        let other = ServerProcessMark::random().unwrap();
        let mut keeper = ProcessKeeperHandle::new(mark, None, ProcessKeeperPipe::default());
        let pid = running_keeper(&mut keeper);
        let mut own = SleepingProgram::with_mark(mark);
        let mut foreign = SleepingProgram::with_mark(other);
        assert_eq!(running_keeper(&mut keeper), pid);
        assert!(own.is_alive());
        drop(keeper);
        assert_eq!(own.wait().signal(), Some(libc::SIGKILL));
        assert!(foreign.is_alive());
        assert!(!fs::exists(format!("/proc/{pid}")).unwrap(), "the keeper still runs");
    }

    #[test]
    fn a_killed_keeper_is_replaced() {
        let mark = ServerProcessMark::random().unwrap();
        let mut keeper = ProcessKeeperHandle::new(mark, None, ProcessKeeperPipe::default());
        let first = running_keeper(&mut keeper);
        let handle = pidfd_open(first, PidfdFlags::empty()).unwrap();
        kill_process(first, Signal::KILL).unwrap();
        poll(&mut [PollFd::new(&handle, PollFlags::IN)], None).unwrap();
        assert_ne!(running_keeper(&mut keeper), first);
        assert!(!fs::exists(format!("/proc/{first}")).unwrap(), "it was not reaped");
        let mut sleep = SleepingProgram::with_mark(mark);
        drop(keeper);
        assert_eq!(sleep.wait().signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn programs_are_killed_while_the_next_report_of_their_server_is_overdue() {
        let mark = ServerProcessMark::random().unwrap();
        let lifeline = ProcessKeeperPipe::default();
        let mut keeper = ProcessKeeperHandle::new(mark, None, lifeline.clone());
        let pid = running_keeper(&mut keeper);
        let mut foreign = SleepingProgram::with_mark(ServerProcessMark::random().unwrap());
        assert!(!lifeline.is_watched());
        lifeline.report_alive(Duration::from_millis(100));
        assert!(lifeline.is_watched());
        for _ in 0..2 {
            let mut own = SleepingProgram::with_mark(mark);
            assert_eq!(own.wait().signal(), Some(libc::SIGKILL));
        }
        assert_eq!(running_keeper(&mut keeper), pid, "the keeper waits for the end of the server");
        assert!(lifeline.check_report().is_err(), "no program may start now");
        // The next keeper learns that a report is due.
        kill_process(pid, Signal::KILL).unwrap();
        let handle = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        poll(&mut [PollFd::new(&handle, PollFlags::IN)], None).unwrap();
        assert_ne!(running_keeper(&mut keeper), pid);
        let mut own = SleepingProgram::with_mark(mark);
        assert_eq!(own.wait().signal(), Some(libc::SIGKILL));
        assert!(foreign.is_alive());
    }

    #[test]
    fn a_placeholder_is_removed_although_the_ended_server_unlocks_it_late() {
        let workspace = tempfile::tempdir().unwrap();
        let paths = SandboxPaths { guarded: vec![".git".to_owned()], ..SandboxPaths::default() };
        let sandbox =
            Sandbox::disabled().with_settings(&SandboxSettings::default(), paths).unwrap();
        let leftovers = sandbox.leftovers(workspace.path()).unwrap();
        let name = workspace.path().join(".git");
        fs::create_dir(&name).unwrap();
        fs::set_permissions(&name, Permissions::from_mode(0o555)).unwrap();
        let locked = File::open(&name).unwrap();
        locked.lock_shared().unwrap();
        let mark = ServerProcessMark::random().unwrap();
        let mut keeper =
            ProcessKeeperHandle::new(mark, Some(leftovers), ProcessKeeperPipe::default());
        running_keeper(&mut keeper);
        let ended = thread::spawn(move || drop(keeper));
        // If the keeper is late and finds no lock, this test passes as well.
        thread::sleep(Duration::from_millis(200));
        assert!(name.exists());
        drop(locked);
        ended.join().unwrap();
        assert!(!name.exists());
    }

    #[test]
    fn a_server_whose_reports_are_not_due_keeps_its_programs_until_it_ends() {
        let mark = ServerProcessMark::random().unwrap();
        let lifeline = ProcessKeeperPipe::default();
        let mut keeper = ProcessKeeperHandle::new(mark, None, lifeline.clone());
        running_keeper(&mut keeper);
        lifeline.report_alive(Duration::from_secs(3600));
        lifeline.report_alive(Duration::ZERO);
        assert!(!lifeline.is_watched() && lifeline.check_report().is_ok());
        let mut own = SleepingProgram::with_mark(mark);
        assert!(own.is_alive());
        drop(keeper);
        assert_eq!(own.wait().signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn a_keeper_inherits_no_descriptors_and_blocks_signals() {
        let mark = ServerProcessMark::random().unwrap();
        let mut keeper = ProcessKeeperHandle::new(mark, None, ProcessKeeperPipe::default());
        let pid = running_keeper(&mut keeper);
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
        assert_eq!(read("comm"), "toolgate-keeper\n");
        assert_eq!(fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(), 1);
        assert_eq!(RlimitLocksValues::parse(read("limits").as_bytes()).candidate_tags().count(), 2);
        assert!(read("limits").contains("Max file locks            0                    0  "));
        // Field 4 is the parent, field 6 the session.
        let stat = read("stat");
        assert_eq!(stat.split(' ').nth(3), Some(&*getpid().to_string()));
        assert_eq!(stat.split(' ').nth(5), Some(&*pid.to_string()));
        let status = read("status");
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
        let blocked = u64::from_str_radix(blocked, 16).unwrap();
        for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::PIPE, Signal::USR1] {
            assert_eq!(blocked >> (signal.as_raw() - 1) & 1, 1, "{signal:?}");
        }
    }

    #[test]
    fn the_leftovers_of_a_dead_server_are_killed_by_the_next() {
        let processes = ProcessRunner::new([]).unwrap();
        let dead_server = ServerProcessMark::random().unwrap();
        let other = ServerProcessMark::random().unwrap();
        let mut leftover = SleepingProgram::with_mark(dead_server);
        let mut foreign = SleepingProgram::with_mark(other);
        let started = Instant::now();
        assert!(processes.kill_leftovers_of(dead_server));
        assert!(started.elapsed() < KILL_TIMEOUT / 2, "it waits until the dead process is reaped");
        assert_eq!(leftover.wait().signal(), Some(libc::SIGKILL));
        assert!(!processes.kill_leftovers_of(dead_server));
        assert!(foreign.is_alive());
    }

    #[test]
    fn a_server_does_not_kill_its_own_programs_as_leftovers() {
        let processes = ProcessRunner::new([]).unwrap();
        let mut own = SleepingProgram::with_mark(processes.mark());
        assert!(!processes.kill_leftovers_of(processes.mark()));
        assert!(own.is_alive());
    }
}

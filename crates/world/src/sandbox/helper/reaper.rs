//! The reaper beside a program: the first process of its PID namespace. It forwards signals, reaps
//! dead processes, and reports how the program ended.

#![allow(
    unsafe_code,
    reason = "signals and waiting, by calls that only read and fill what is here"
)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::ptr;
use std::time::{Duration, Instant};

use rustix::io::write;

use super::super::exit_pipe::OVER_MESSAGE;
use super::super::setup_step::SandboxSetupFailure;
use super::NeverReturns;

/// Blocks all signals of the reaper, which receives each signal by waiting for it.
pub(super) fn block_signals() -> io::Result<()> {
    // SAFETY: the set is filled before it is used.
    match unsafe {
        libc::sigprocmask(
            libc::SIG_SETMASK,
            &raw const *full_signal_set().as_ptr(),
            ptr::null_mut(),
        )
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn full_signal_set() -> MaybeUninit<libc::sigset_t> {
    let mut all = MaybeUninit::uninit();
    // SAFETY: it fills the set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    all
}

/// Closes the reaper's handles that belong to the program: the pipe `birth`, which reports a failed
/// start, and the standard streams.
fn close_program_handles(birth: &OwnedFd) {
    use std::os::fd::AsRawFd;
    // SAFETY: no code here uses any of them again.
    unsafe {
        libc::close(birth.as_raw_fd());
        for stream in 0..3 {
            libc::close(stream);
        }
    }
}

fn exit_at_once(code: libc::c_int) -> ! {
    // SAFETY: nothing needs to be done at exit.
    unsafe { libc::_exit(code) }
}

/// Forwards signals and reaps dead processes until no process is left. When the program ends, asks
/// the remaining processes to stop, and kills them after `grace_ms` milliseconds. Writes the exit
/// status of the program to the pipe `end`, and a second message when no process is left. Closes
/// `birth`, the pipe that reports a failed start.
pub(super) fn run_reaper(
    program: libc::pid_t,
    grace_ms: u64,
    end: &OwnedFd,
    birth: &OwnedFd,
) -> Result<NeverReturns, SandboxSetupFailure> {
    close_program_handles(birth);
    let mut kill_from = None;
    loop {
        let left = reap_dead(program, |ended| {
            // The receiver may be gone.
            let _ = write(end, &ended.to_ne_bytes());
            kill_from = Some(Instant::now() + Duration::from_millis(grace_ms));
        });
        if !left {
            // The message arrives before the kernel takes the namespaces down.
            let _ = write(end, &OVER_MESSAGE);
            exit_at_once(0);
        }
        match kill_from {
            None => forward_signal(None),
            Some(at) => {
                let left = at.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    signal_all(libc::SIGKILL);
                }
                // The server handles processes that do not die: it kills this one.
                forward_signal((!left.is_zero()).then_some(left));
            }
        }
    }
}

/// Reaps all dead processes. If `program` is among them, calls `ended` with its status and asks the
/// other processes to stop. Returns `true` if any process is left.
fn reap_dead(program: libc::pid_t, mut ended: impl FnMut(libc::c_int)) -> bool {
    let mut has_ended = false;
    let is_any_left = loop {
        let mut status = 0;
        // SAFETY: it fills `status`.
        match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
            0 => break true,
            -1 => break false,
            pid if pid == program => {
                ended(status);
                has_ended = true;
            }
            _ => {}
        }
    };
    if has_ended && is_any_left {
        signal_all(libc::SIGTERM);
    }
    is_any_left
}

/// Waits at most `limit` for a signal to the reaper, and forwards the signal to all other processes
/// of its PID namespace.
fn forward_signal(limit: Option<Duration>) {
    let set = full_signal_set();
    // SAFETY: the set is filled, and the kernel only reads the time.
    let signal = unsafe {
        match limit {
            None => libc::sigwaitinfo(set.as_ptr(), ptr::null_mut()),
            Some(limit) => {
                let limit = libc::timespec {
                    tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
                    tv_nsec: limit.subsec_nanos().into(),
                };
                libc::sigtimedwait(set.as_ptr(), ptr::null_mut(), &raw const limit)
            }
        }
    };
    match signal {
        ..=0 | libc::SIGCHLD => {}
        signal => signal_all(signal),
    }
}

fn signal_all(signal: libc::c_int) {
    // SAFETY: it reaches only the processes of this namespace, without this one.
    unsafe {
        libc::kill(-1, signal);
        // A stopped process must continue to receive the signal.
        if signal == libc::SIGTERM {
            libc::kill(-1, libc::SIGCONT);
        }
    }
}

//! The process that stays beside a program: the first of its namespaces, which passes signals on
//! and buries, and tells how the program ended.

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

use super::super::ending::OVER;
use super::super::step::Failed;
use super::Never;

/// Blocks all signals; each is then waited for.
pub(super) fn block_signals() -> io::Result<()> {
    // SAFETY: the set is filled before it is used.
    match unsafe {
        libc::sigprocmask(libc::SIG_SETMASK, &raw const *all().as_ptr(), ptr::null_mut())
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn all() -> MaybeUninit<libc::sigset_t> {
    let mut all = MaybeUninit::uninit();
    // SAFETY: it fills the set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    all
}

/// Starts nothing any more, and holds nothing of the program's.
fn let_go(birth: &OwnedFd) {
    use std::os::fd::AsRawFd;
    // SAFETY: nobody here uses any of them again.
    unsafe {
        libc::close(birth.as_raw_fd());
        for stream in 0..3 {
            libc::close(stream);
        }
    }
}

fn exit_at_once(code: libc::c_int) -> ! {
    // SAFETY: nothing here is to be done at the end.
    unsafe { libc::_exit(code) }
}

/// Passes signals on, buries what dies, and once the program has ended ends what it left: it is
/// asked, and has `grace_ms`. On `end` is said how the program ended, and then that nothing is left.
pub(super) fn reap(
    program: libc::pid_t,
    grace_ms: u64,
    end: &OwnedFd,
    birth: &OwnedFd,
) -> Result<Never, Failed> {
    let_go(birth);
    let mut kill_from = None;
    loop {
        let left = bury(program, |ended| {
            // Who waits for it may be gone.
            let _ = write(end, &ended.to_ne_bytes());
            kill_from = Some(Instant::now() + Duration::from_millis(grace_ms));
        });
        if !left {
            // Heard before these namespaces are taken down.
            let _ = write(end, &OVER);
            exit_at_once(0);
        }
        match kill_from {
            None => pass_on(None),
            Some(at) => {
                let left = at.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    send_all(libc::SIGKILL);
                }
                // What does not die is seen to by the server, which kills this process.
                pass_on((!left.is_zero()).then_some(left));
            }
        }
    }
}

/// Buries all that is dead and tells how `program` ended, if it did; whether anything lives.
///
/// What it leaves is asked to stop.
fn bury(program: libc::pid_t, mut ended: impl FnMut(libc::c_int)) -> bool {
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
        send_all(libc::SIGTERM);
    }
    is_any_left
}

/// Waits for a signal, but not for longer than `patience`, and passes it on to everything in here.
fn pass_on(patience: Option<Duration>) {
    let set = all();
    // SAFETY: the set is filled, and the kernel reads the time.
    let signal = unsafe {
        match patience {
            None => libc::sigwaitinfo(set.as_ptr(), ptr::null_mut()),
            Some(patience) => {
                let patience = libc::timespec {
                    tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
                    tv_nsec: patience.subsec_nanos().into(),
                };
                libc::sigtimedwait(set.as_ptr(), ptr::null_mut(), &raw const patience)
            }
        }
    };
    match signal {
        ..=0 | libc::SIGCHLD => {}
        signal => send_all(signal),
    }
}

fn send_all(signal: libc::c_int) {
    // SAFETY: it goes to everything of these namespaces but this process.
    unsafe {
        libc::kill(-1, signal);
        // What is stopped must go on to hear it.
        if signal == libc::SIGTERM {
            libc::kill(-1, libc::SIGCONT);
        }
    }
}

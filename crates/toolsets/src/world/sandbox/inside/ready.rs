//! What is ready before an order comes: what all programs see, in a namespace that each process's is
//! a copy of, and in that what each has for itself.

use std::io;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::write;
use rustix::process::{Signal, getegid, geteuid, set_parent_process_death_signal};

use super::super::kernel::{self, Seen};
use super::super::plan::{Plan, Spaces};
use super::super::step::{Failed, Step};
use super::surroundings;

/// How many watchers of files a program may have; by default a user has 128.
const INOTIFY_INSTANCES: &str = "48";

/// In the helper: makes ready what all processes see, and has the root of that for its working
/// directory.
pub(super) fn make(plan: &Plan) -> Result<(), Failed> {
    let Some(spaces) = plan.spaces else { return Ok(()) };
    own_spaces(spaces)?;
    if spaces.net {
        Step::Network.done(kernel::loopback_up())?;
    }
    surroundings::make_common(plan)
}

/// In namespaces that are one program's: makes what it sees, but for what depends on what the last
/// one did, and goes there.
pub(super) fn begin(plan: &Plan) -> Result<(), Failed> {
    let Some(spaces) = plan.spaces else { return Ok(()) };
    surroundings::make_own(plan, spaces.proc)
}

/// Has the namespaces that programs share with the helper, or have copies of.
///
/// A network is slow to make and to take down, and of a program that is gone nothing is left in one
/// that only has a loopback interface: its helper's programs have it one after another.
fn own_spaces(spaces: Spaces) -> Result<(), Failed> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let users = if spaces.user { libc::CLONE_NEWUSER } else { 0 };
    let networks = if spaces.net { libc::CLONE_NEWNET } else { 0 };
    Step::Spaces.done(kernel::unshare(libc::CLONE_NEWNS | users | networks))?;
    if spaces.user {
        Step::Ids.done(keep_ids(user, group))?;
    }
    // Gone with the rights that were given up, on some kernels.
    Step::Spaces.done(set_parent_process_death_signal(Some(Signal::KILL)))?;
    // What is mounted later in the machine may be what programs are to see.
    Step::Sources.done(kernel::keep_mounts_apart(Seen::Theirs))
}

/// Is inside who it is outside, and nobody else: its `user` and `group` from before.
fn keep_ids(user: u32, group: u32) -> io::Result<()> {
    let put = |file: &str, text: &str| {
        let file = openat(CWD, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        write(file, text.as_bytes()).map(drop)
    };
    put("/proc/self/setgroups", "deny")?;
    put("/proc/self/uid_map", &format!("{user} {user} 1"))?;
    put("/proc/self/gid_map", &format!("{group} {group} 1"))?;
    // They are counted for the user outside, who would have none left. Not every kernel tells.
    let _ = put("/proc/sys/user/max_inotify_instances", INOTIFY_INSTANCES);
    Ok(())
}

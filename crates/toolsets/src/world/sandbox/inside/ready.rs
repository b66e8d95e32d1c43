//! Prepares the shared view before an order arrives, and each program's own part of it.

use std::io;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::write;
use rustix::process::{Signal, getegid, geteuid, set_parent_process_death_signal};

use super::super::kernel::{self, Seen};
use super::super::plan::{Plan, Spaces};
use super::super::step::{Failed, Step};
use super::surroundings;

/// The most inotify instances of a program. The usual default is 128 per user.
const INOTIFY_INSTANCES: &str = "48";

/// Prepares the shared view in the helper and enters it.
pub(super) fn make(plan: &Plan) -> Result<(), Failed> {
    let Some(spaces) = plan.spaces else { return Ok(()) };
    own_spaces(spaces)?;
    if spaces.net {
        Step::Network.done(kernel::loopback_up())?;
    }
    surroundings::make_common(plan)
}

/// Prepares one program's own view in its namespaces and enters it. Leaves out the parts that
/// depend on the last program's changes.
pub(super) fn begin(plan: &Plan) -> Result<(), Failed> {
    let Some(spaces) = plan.spaces else { return Ok(()) };
    surroundings::make_own(plan, spaces.proc)
}

/// Creates the namespaces that programs share with the helper or copy.
///
/// Network namespaces are slow to create and remove. One that only has a loopback interface keeps
/// nothing of an ended program, so the helper's programs use it one after another.
fn own_spaces(spaces: Spaces) -> Result<(), Failed> {
    let user = geteuid().as_raw();
    let group = getegid().as_raw();
    let users = if spaces.user { libc::CLONE_NEWUSER } else { 0 };
    let networks = if spaces.net { libc::CLONE_NEWNET } else { 0 };
    Step::Spaces.done(kernel::unshare(libc::CLONE_NEWNS | users | networks))?;
    if spaces.user {
        Step::Ids.done(keep_ids(user, group))?;
    }
    // On some kernels, the new user namespace clears this setting.
    Step::Spaces.done(set_parent_process_death_signal(Some(Signal::KILL)))?;
    // Later mounts of the machine may be part of the view.
    Step::Sources.done(kernel::keep_mounts_apart(Seen::Theirs))
}

/// Maps only the current `user` and `group`, both from before the namespace was created.
fn keep_ids(user: u32, group: u32) -> io::Result<()> {
    let put = |file: &str, text: &str| {
        let file = openat(CWD, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        write(file, text.as_bytes()).map(drop)
    };
    put("/proc/self/setgroups", "deny")?;
    put("/proc/self/uid_map", &format!("{user} {user} 1"))?;
    put("/proc/self/gid_map", &format!("{group} {group} 1"))?;
    // Instances count against the user outside, who would run out of them. Not every kernel allows
    // this setting.
    let _ = put("/proc/sys/user/max_inotify_instances", INOTIFY_INSTANCES);
    Ok(())
}

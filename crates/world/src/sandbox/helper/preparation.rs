//! Prepares the part of the file tree that all programs of a sandbox helper share, and the part
//! that belongs to one program, before an order arrives.

use std::io;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::write;
use rustix::mount::MountPropagationFlags;
use rustix::process::{Signal, getegid, geteuid, set_parent_process_death_signal};

use super::super::kernel;
use super::super::plan::{SandboxNamespaces, SandboxPlan};
use super::super::setup_step::{SandboxSetupFailure, SandboxSetupStep};
use super::mounts::{self, MountedFiles};

/// The maximum number of inotify instances of a program. The usual default is 128 per user.
const INOTIFY_INSTANCES: &str = "48";

/// Creates the namespaces of the sandbox helper, builds the part of the file tree that all its
/// programs share, and enters it. Returns the files that are mounted.
pub(super) fn prepare_helper(plan: &SandboxPlan) -> Result<MountedFiles<'_>, SandboxSetupFailure> {
    let Some(spaces) = plan.spaces else { return Ok(MountedFiles::default()) };
    enter_namespaces(spaces)?;
    if spaces.net {
        SandboxSetupStep::Network.check(kernel::bring_loopback_up())?;
    }
    mounts::build_shared(plan)
}

/// Builds the file tree of one program in the program's own namespaces, and enters it. Leaves out
/// paths in the workspace that an earlier program may have changed. They are added when the program
/// starts. Returns the files that are mounted.
pub(super) fn prepare_program(plan: &SandboxPlan) -> Result<MountedFiles<'_>, SandboxSetupFailure> {
    let Some(spaces) = plan.spaces else { return Ok(MountedFiles::default()) };
    mounts::build_own(plan, spaces.proc)
}

/// Creates the namespaces of the sandbox helper, which the programs of the helper share or copy.
///
/// Creating and removing network namespaces is slow. A namespace that has only a loopback interface
/// keeps no state of an ended program. Therefore the programs of one helper use the same network
/// namespace one after another.
fn enter_namespaces(spaces: SandboxNamespaces) -> Result<(), SandboxSetupFailure> {
    let user = geteuid().as_raw();
    let group = getegid().as_raw();
    let users = if spaces.user { libc::CLONE_NEWUSER } else { 0 };
    let networks = if spaces.net { libc::CLONE_NEWNET } else { 0 };
    SandboxSetupStep::Namespaces.check(kernel::unshare(libc::CLONE_NEWNS | users | networks))?;
    if spaces.user {
        SandboxSetupStep::UserIds.check(map_own_ids(user, group))?;
    }
    // On some kernels, the new user namespace clears this setting.
    SandboxSetupStep::Namespaces.check(set_parent_process_death_signal(Some(Signal::KILL)))?;
    // Later mounts of the machine may be part of the view.
    SandboxSetupStep::Sources.check(kernel::isolate_mounts(MountPropagationFlags::DOWNSTREAM))
}

/// Maps the user id `user` and the group id `group` of this process to themselves in its new user
/// namespace. Both were read before the namespace was created.
fn map_own_ids(user: u32, group: u32) -> io::Result<()> {
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

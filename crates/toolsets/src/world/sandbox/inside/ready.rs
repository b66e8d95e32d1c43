//! What a helper has ready for the programs that it makes: what all of them see, in a namespace that
//! each program's is a copy of.

use std::io;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, statat};
use rustix::io::write;
use rustix::process::{Signal, getegid, geteuid, set_parent_process_death_signal};

use super::super::kernel::{self, Seen};
use super::super::plan::{Bytes, Identity, Place, Plan, Spaces};
use super::super::step::{Failed, Step};
use super::surroundings;

/// How many watchers of files a program may have; by default a user has 128.
const INOTIFY_INSTANCES: &str = "48";

/// What a helper has ready: namespaces of users and of mounts, and its working directory the root
/// of what all programs see.
pub(super) struct Ready {
    base: Vec<Place>,
    workspace: Bytes,
    spaces: Spaces,
    /// What was found at each place.
    found: Vec<Option<Identity>>,
}

impl Ready {
    /// Makes ready what all programs see that are ordered as `plan` is, in `spaces`.
    pub(super) fn make(plan: Plan, spaces: Spaces) -> Result<Self, Failed> {
        own_spaces(spaces)?;
        let found = plan.base.iter().map(found).collect();
        surroundings::make_common(&plan)?;
        Ok(Self { base: plan.base, workspace: plan.workspace, spaces, found })
    }

    /// In namespaces that are one program's: makes what each has for itself.
    pub(super) fn begin(&self) -> Result<(), Failed> {
        if self.spaces.net {
            Step::Network.done(kernel::loopback_up())?;
        }
        surroundings::make_own(self.spaces.proc)
    }

    /// Whether it is what `plan` asks for, and what is there now.
    ///
    /// For another workspace it is not: no program is to see the folders that led to that.
    pub(super) fn fits(&self, plan: &Plan) -> bool {
        Some(self.spaces) == plan.spaces
            && self.base == plan.base
            && self.workspace == plan.workspace
            && self.base.iter().map(found).eq(self.found.iter().copied())
    }
}

/// What is at `place`, wherever that leads.
fn found(place: &Place) -> Option<Identity> {
    let Place::Same { at, .. } = place else { return None };
    let stat = statat(CWD, at.path(), AtFlags::empty()).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// Has the namespaces that programs share with the helper, or have copies of.
fn own_spaces(spaces: Spaces) -> Result<(), Failed> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let users = if spaces.user { libc::CLONE_NEWUSER } else { 0 };
    Step::Spaces.done(kernel::unshare(libc::CLONE_NEWNS | users))?;
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

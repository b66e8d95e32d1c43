//! What a program must not have, given up for it: room without end, rights, files, system calls.

use std::io;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, Ruleset, RulesetAttr,
    RulesetStatus, Scope,
};

use super::super::calls;
use super::super::kernel;
use super::super::own::allow;
use super::super::plan::{Errand, Ground, How, Plan};
use super::super::step::{Failed, Step};
use super::surroundings::places;

/// What each program needs beside what the plan names, where that is its own.
const OWN: [(&str, How); 3] =
    [("/dev", How::Device), ("/dev/shm", How::Write), ("/dev/pts", How::Device)];

/// The same where it is the machine's.
const SHARED: [(&str, How); 7] = [
    ("/proc", How::Read),
    ("/dev/null", How::Device),
    ("/dev/zero", How::Device),
    ("/dev/full", How::Device),
    ("/dev/random", How::Device),
    ("/dev/urandom", How::Device),
    ("/dev/tty", How::Device),
];

/// Capabilities come neither by being root nor by files, and that stays so.
const NO_ROOT: libc::c_ulong = 0b1111;

/// Gives up what neither the helper nor a process that it makes needs any more.
pub(super) fn ahead(plan: &Plan) -> Result<(), Failed> {
    Step::Rights.done(kernel::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0))?;
    filter(&plan.filters.ahead)
}

/// Gives up the rest, in the order in which one does not need the next.
pub(super) fn rest(plan: &Plan, errand: &Errand) -> Result<(), Failed> {
    for &(resource, limit) in &plan.limits {
        Step::Limits.done(bound(resource, limit))?;
    }
    Step::Rights.done(rights())?;
    if let Some(ground) = plan.landlock {
        Step::Ground.done(enter_landlock(plan, errand, ground))?;
    }
    filter(&plan.filters.last)
}

fn filter(filters: &[Vec<u64>]) -> Result<(), Failed> {
    for filter in filters {
        let filter = calls::unpacked(filter);
        Step::Calls.done(seccompiler::apply_filter(&filter).map_err(io::Error::other))?;
    }
    Ok(())
}

#[allow(unsafe_code, reason = "the resources are numbers here")]
fn bound(resource: u32, limit: u64) -> io::Result<()> {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both structs are as the kernel's, and outlive the calls.
    unsafe {
        if libc::getrlimit(resource, &raw mut now) != 0 {
            return Err(io::Error::last_os_error());
        }
        let limit = limit.min(now.rlim_max);
        let limit = libc::rlimit { rlim_cur: limit.min(now.rlim_cur), rlim_max: limit };
        if libc::setrlimit(resource, &raw const limit) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

fn rights() -> io::Result<()> {
    match kernel::prctl(libc::PR_SET_SECUREBITS, NO_ROOT, 0) {
        // Who may not say so is not root, and has nothing by being that.
        Err(err) if err.raw_os_error() == Some(libc::EPERM) => {}
        said => said?,
    }
    kernel::drop_capabilities()?;
    kernel::prctl(libc::PR_SET_DUMPABLE, 0, 0)
}

/// Enters a ruleset of which all is held, or fails.
fn enter_landlock(plan: &Plan, errand: &Errand, ground: Ground) -> io::Result<()> {
    let Ground { abi, tcp } = ground;
    let abi = ABI::from(abi);
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(abi))
        .map_err(io::Error::other)?;
    if tcp && abi >= ABI::V4 {
        ruleset = ruleset.handle_access(AccessNet::from_all(abi)).map_err(io::Error::other)?;
    }
    if abi >= ABI::V6 {
        ruleset = ruleset.scope(Scope::from_all(abi)).map_err(io::Error::other)?;
    }
    let mut ruleset = ruleset.create().map_err(io::Error::other)?;
    let always = if plan.spaces.is_some() { &OWN[..] } else { &SHARED[..] };
    let always = always.iter().map(|&(path, how)| (Path::new(path), how));
    let unrun = if errand.runs.is_some() { AccessFs::Execute.into() } else { BitFlags::EMPTY };
    // All that a view of its own shows may be read: the rest is not there, and this rule is of that
    // root alone.
    let is_own = plan.spaces.is_some();
    let root = is_own.then_some((Path::new("/"), How::Read));
    let listed = places(plan).filter(|(_, how)| !is_own || *how != How::Read);
    for (path, how) in
        root.into_iter().chain(listed.map(|(at, how)| (at.path(), how))).chain(always)
    {
        ruleset = allow(ruleset, path, access(how, abi) & !unrun, abi)?;
    }
    for path in errand.runs.iter().flatten() {
        ruleset = allow(ruleset, path.path(), access(How::Read, abi), abi)?;
    }
    let status = ruleset.restrict_self().map_err(io::Error::other)?;
    match status.ruleset {
        RulesetStatus::FullyEnforced => Ok(()),
        RulesetStatus::PartiallyEnforced | RulesetStatus::NotEnforced => {
            Err(io::ErrorKind::Unsupported.into())
        }
    }
}

fn access(how: How, abi: ABI) -> BitFlags<AccessFs> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let device = read | AccessFs::WriteFile;
    let asked = if abi >= ABI::V5 { AccessFs::IoctlDev.into() } else { BitFlags::EMPTY };
    match how {
        How::Read => read | AccessFs::Execute,
        How::Write => AccessFs::from_all(abi) & !(AccessFs::MakeChar | AccessFs::MakeBlock),
        How::Device if abi >= ABI::V3 => device | AccessFs::Truncate | asked,
        How::Device => device | asked,
    }
}

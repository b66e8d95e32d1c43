//! Drops what a program must not have: unlimited resources, privileges, files and system calls.

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

/// Paths that each program needs in addition to the plan, in its own view.
const OWN: [(&str, How); 3] =
    [("/dev", How::Device), ("/dev/shm", How::Write), ("/dev/pts", How::Device)];

/// Paths that each program needs in addition to the plan, in the machine's own view.
const SHARED: [(&str, How); 7] = [
    ("/proc", How::Read),
    ("/dev/null", How::Device),
    ("/dev/zero", How::Device),
    ("/dev/full", How::Device),
    ("/dev/random", How::Device),
    ("/dev/urandom", How::Device),
    ("/dev/tty", How::Device),
];

/// Neither the root user nor file capabilities grant capabilities, and this is locked.
const NO_ROOT: libc::c_ulong = 0b1111;

/// Drops the rights that neither the helper nor its processes need any more.
pub(super) fn ahead(plan: &Plan) -> Result<(), Failed> {
    Step::Rights.done(kernel::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0))?;
    filter(&plan.filters.ahead)
}

/// Drops the remaining rights. Each step does not need the ones dropped before.
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
    // SAFETY: both structs have the kernel's layout and outlive the calls.
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
        // A process that may not change this has no root privileges to lose.
        Err(err) if err.raw_os_error() == Some(libc::EPERM) => {}
        said => said?,
    }
    kernel::drop_capabilities()?;
    kernel::prctl(libc::PR_SET_DUMPABLE, 0, 0)
}

/// Applies a Landlock ruleset. Fails if it is not fully enforced.
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
    // Everything visible in a separate view may be read. This rule covers only that view's root.
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

//! Drops what a program must not have: unlimited resources, privileges, and access to other files
//! and system calls.

use std::io;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, Ruleset, RulesetAttr,
    RulesetStatus, Scope,
};

use super::super::kernel;
use super::super::plan::{LandlockConfig, SandboxMountAccess, SandboxPlan, SandboxSpawnRequest};
use super::super::seccomp;
use super::super::server_confinement::allow_path;
use super::super::setup_step::{SandboxSetupFailure, SandboxSetupStep};
use super::mounts::places;

/// Paths that each program needs in addition to those of its sandbox plan, if the program has its
/// own file tree.
const OWN_VIEW_PATHS: [(&str, SandboxMountAccess); 3] = [
    ("/dev", SandboxMountAccess::Device),
    ("/dev/shm", SandboxMountAccess::Write),
    ("/dev/pts", SandboxMountAccess::Device),
];

/// Paths that each program needs in addition to those of its sandbox plan, if the program sees the
/// machine's own file tree.
const SHARED_VIEW_PATHS: [(&str, SandboxMountAccess); 7] = [
    ("/proc", SandboxMountAccess::Read),
    ("/dev/null", SandboxMountAccess::Device),
    ("/dev/zero", SandboxMountAccess::Device),
    ("/dev/full", SandboxMountAccess::Device),
    ("/dev/random", SandboxMountAccess::Device),
    ("/dev/urandom", SandboxMountAccess::Device),
    ("/dev/tty", SandboxMountAccess::Device),
];

/// Secure bits with which neither the root user nor file capabilities grant capabilities. A process
/// cannot clear these bits again.
const NO_ROOT_SECUREBITS: libc::c_ulong = 0b1111;

/// Drops the rights of the sandbox helper that neither the helper nor its processes need any
/// longer.
pub(super) fn drop_early(plan: &SandboxPlan) -> Result<(), SandboxSetupFailure> {
    SandboxSetupStep::Rights.check(kernel::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0))?;
    SandboxSetupStep::Rights.check(kernel::drop_bounding_set())?;
    apply_filters(&plan.filters.ahead)
}

/// Sets the resource limits of a program, drops the privileges, and applies the Landlock rules and
/// filters. No step needs a right that an earlier step has dropped.
pub(super) fn drop_rest(
    plan: &SandboxPlan,
    request: &SandboxSpawnRequest,
) -> Result<(), SandboxSetupFailure> {
    for &(resource, limit) in &plan.limits {
        SandboxSetupStep::Limits.check(set_limit(resource, limit))?;
    }
    SandboxSetupStep::Rights.check(drop_privileges())?;
    if let Some(config) = plan.landlock {
        SandboxSetupStep::Landlock.check(enter_landlock(plan, request, config))?;
    }
    apply_filters(&plan.filters.last)
}

fn apply_filters(filters: &[Vec<u64>]) -> Result<(), SandboxSetupFailure> {
    for filter in filters {
        let filter = seccomp::decode_filter(filter);
        SandboxSetupStep::Seccomp
            .check(seccompiler::apply_filter(&filter).map_err(io::Error::other))?;
    }
    Ok(())
}

#[allow(unsafe_code, reason = "the resources are numbers here")]
fn set_limit(resource: u32, limit: u64) -> io::Result<()> {
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

/// Drops all capabilities, and the ways to get capabilities again. Call
/// [`kernel::drop_bounding_set`] first.
pub(in crate::sandbox) fn drop_privileges() -> io::Result<()> {
    match kernel::prctl(libc::PR_SET_SECUREBITS, NO_ROOT_SECUREBITS, 0) {
        // A process that may not change this has no root privileges to lose.
        Err(err) if err.raw_os_error() == Some(libc::EPERM) => {}
        result => result?,
    }
    kernel::drop_capabilities()?;
    kernel::prctl(libc::PR_SET_DUMPABLE, 0, 0)
}

/// Applies the Landlock rules for the program of `request` to this process. Fails if the kernel
/// does not enforce them fully.
fn enter_landlock(
    plan: &SandboxPlan,
    request: &SandboxSpawnRequest,
    config: LandlockConfig,
) -> io::Result<()> {
    let LandlockConfig { abi, tcp } = config;
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
    let always = if plan.spaces.is_some() { &OWN_VIEW_PATHS[..] } else { &SHARED_VIEW_PATHS[..] };
    let always = always.iter().map(|&(path, how)| (Path::new(path), how));
    let unrun = if request.runs.is_some() { AccessFs::Execute.into() } else { BitFlags::EMPTY };
    // Everything visible in a separate view may be read. This rule covers only that view's root.
    let is_own = plan.spaces.is_some();
    let root = is_own.then_some((Path::new("/"), SandboxMountAccess::Read));
    let listed = places(plan).filter(|(_, how)| !is_own || *how != SandboxMountAccess::Read);
    for (path, how) in
        root.into_iter().chain(listed.map(|(at, how)| (at.path(), how))).chain(always)
    {
        ruleset = allow_path(ruleset, path, landlock_access(how, abi) & !unrun, abi)?;
    }
    for path in request.runs.iter().flatten() {
        ruleset =
            allow_path(ruleset, path.path(), landlock_access(SandboxMountAccess::Read, abi), abi)?;
    }
    let status = ruleset.restrict_self().map_err(io::Error::other)?;
    match status.ruleset {
        RulesetStatus::FullyEnforced => Ok(()),
        RulesetStatus::PartiallyEnforced | RulesetStatus::NotEnforced => {
            Err(io::ErrorKind::Unsupported.into())
        }
    }
}

fn landlock_access(how: SandboxMountAccess, abi: ABI) -> BitFlags<AccessFs> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let device = read | AccessFs::WriteFile;
    let ioctl = if abi >= ABI::V5 { AccessFs::IoctlDev.into() } else { BitFlags::EMPTY };
    match how {
        SandboxMountAccess::Read => read | AccessFs::Execute,
        SandboxMountAccess::Write => {
            AccessFs::from_all(abi) & !(AccessFs::MakeChar | AccessFs::MakeBlock)
        }
        SandboxMountAccess::Device if abi >= ABI::V3 => device | AccessFs::Truncate | ioctl,
        SandboxMountAccess::Device => device | ioctl,
    }
}

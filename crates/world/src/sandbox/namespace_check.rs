//! Finds the reasons why this process cannot create user namespaces, without starting a program.

use std::fs;
use std::path::Path;

use super::kernel;

/// The capability `CAP_SYS_ADMIN`, as a bit of the effective set. It allows a process to create
/// namespaces and mounts.
const CAP_SYS_ADMIN_BIT: u64 = 1 << 21;
/// A bit that is no flag of `unshare`. The kernel refuses every call of `unshare` with this bit.
const NO_UNSHARE_FLAG: libc::c_int = 1;

/// Returns the reason why this process cannot create user namespaces, which hide files, processes
/// and networks from programs. Returns `None` if no reason is known.
///
/// The check takes microseconds. [`Sandbox::coverage`](super::Sandbox::coverage) tests every layer
/// with a process of its own.
pub fn namespace_obstacle() -> Option<String> {
    if has_admin_capability() {
        return None;
    }
    if !Path::new("/proc/self/ns/user").exists() {
        return Some("this kernel has no user namespaces".to_owned());
    }
    // The kernel answers EINVAL. Only a filter in front of it answers something else.
    let answer = kernel::unshare(libc::CLONE_NEWUSER | NO_UNSHARE_FLAG);
    if answer.is_err_and(|err| err.raw_os_error() != Some(libc::EINVAL)) {
        return Some("a system call filter, such as a container's, forbids namespaces".to_owned());
    }
    let obstacles = [
        ("user/max_user_namespaces", "0", "user.max_user_namespaces is 0"),
        ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone is 0"),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "AppArmor restricts user namespaces (kernel.apparmor_restrict_unprivileged_userns is 1)",
        ),
    ];
    let is_set = |(name, value, _): &&(&str, &str, &str)| {
        fs::read_to_string(Path::new("/proc/sys").join(name))
            .is_ok_and(|text| text.trim() == *value)
    };
    obstacles.iter().find(is_set).map(|(.., reason)| (*reason).to_owned())
}

fn has_admin_capability() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    effective.is_some_and(|set| set & CAP_SYS_ADMIN_BIT != 0)
}

//! Wrappers of Linux system calls, most of which the rustix crate lacks.

#![allow(unsafe_code, reason = "system calls that no crate in the tree wraps")]

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount,
    fsopen, mount_change, move_mount, open_tree, unmount,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::{Pid, pivot_root};

/// Arguments of the system call `mount_setattr`.
#[repr(C)]
struct MountAttrArgs {
    set: u64,
    clear: u64,
    propagation: u64,
    userns: u64,
}

const AT_RECURSIVE: libc::c_int = 0x8000;

/// The flags for cloning a mount and all mounts below it.
const CLONE_TREE: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE
    .union(OpenTreeFlags::OPEN_TREE_CLOEXEC)
    .union(OpenTreeFlags::AT_RECURSIVE);

fn check_result(returned: libc::c_long) -> io::Result<libc::c_long> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}

/// The maximum number of retries of a system call that the kernel asks to repeat.
const TRIES: usize = 100;

/// Makes `call`, and repeats it if the kernel asks for a retry, for example because of a concurrent
/// rename or mount.
pub(super) fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..TRIES {
        match call() {
            Err(err) if matches!(err.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => {}
            made => return made,
        }
    }
    call()
}

/// Clones the mount at `path` and all mounts below it. The clone is not attached to a path yet.
pub(super) fn clone_mount(path: &CStr) -> io::Result<OwnedFd> {
    Ok(open_tree(CWD, path, CLONE_TREE)?)
}

/// Clones the mount at the open file or folder `place` and all mounts below it.
pub(super) fn clone_mount_of(place: impl AsFd) -> io::Result<OwnedFd> {
    Ok(open_tree(place, c"", CLONE_TREE | OpenTreeFlags::AT_EMPTY_PATH)?)
}

/// Restricts a mount with the attributes `attr`, such as read-only. With `is_recursive`, also
/// restricts all mounts below it.
pub(super) fn restrict(
    mount: impl AsFd,
    attr: MountAttrFlags,
    is_recursive: bool,
) -> io::Result<()> {
    // A mount that is added below it elsewhere later would be unrestricted, so it must not appear
    // here.
    let propagation = if is_recursive { libc::MS_PRIVATE } else { 0 };
    let attributes = MountAttrArgs { set: attr.bits().into(), clear: 0, propagation, userns: 0 };
    let recursive = if is_recursive { AT_RECURSIVE } else { 0 };
    let flags = libc::AT_EMPTY_PATH | recursive;
    let fd = mount.as_fd().as_raw_fd();
    // SAFETY: the struct has the given size and outlives the call.
    check_result(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            fd,
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<MountAttrArgs>(),
        )
    })
    .map(drop)
}

/// Attaches the mount `mount` at the open file or folder `target`.
pub(super) fn attach(mount: impl AsFd, target: impl AsFd) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    retry(|| Ok(move_mount(mount.as_fd(), c"", target.as_fd(), c"", flags)?))
}

/// Creates a file system of the type `name`, which is not attached to a path yet.
pub(super) fn create_filesystem(
    name: &CStr,
    options: &[(&CStr, Option<&CStr>)],
    attr: MountAttrFlags,
) -> io::Result<OwnedFd> {
    let made = fsopen(name, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        match value {
            Some(value) => fsconfig_set_string(&made, *key, *value)?,
            None => fsconfig_set_flag(&made, *key)?,
        }
    }
    fsconfig_create(&made)?;
    Ok(fsmount(&made, FsMountFlags::FSMOUNT_CLOEXEC, attr)?)
}

/// Keeps new mounts of this process's mount namespace invisible in other namespaces. With
/// `DOWNSTREAM` as `seen`, new mounts of the namespace from which this namespace was copied appear
/// here. With `PRIVATE`, they do not.
pub(super) fn isolate_mounts(seen: MountPropagationFlags) -> io::Result<()> {
    Ok(mount_change(c"/", MountPropagationFlags::REC | seen)?)
}

/// Makes the working directory the root directory of this process and detaches the old root.
pub(super) fn switch_root() -> io::Result<()> {
    pivot_root(c".", c".")?;
    Ok(unmount(c".", UnmountFlags::DETACH)?)
}

/// Closes every descriptor from `first` on.
pub(super) fn close_from(first: RawFd) -> io::Result<()> {
    // SAFETY: the helper has just started and owns none of these.
    match unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Closes the descriptor `fd`. The caller must not use it again.
pub(super) fn close(fd: impl AsFd) -> io::Result<()> {
    // SAFETY: its owner never returns.
    check_result(unsafe { libc::close(fd.as_fd().as_raw_fd()) }.into()).map(drop)
}

pub(super) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: it changes this process's namespaces and no memory.
    check_result(unsafe { libc::unshare(flags) }.into()).map(drop)
}

/// Calls the system call `prctl` with the option `what` and two numeric arguments.
pub(super) fn prctl(what: libc::c_int, one: libc::c_ulong, two: libc::c_ulong) -> io::Result<()> {
    // SAFETY: it is only used for options with numeric arguments.
    check_result(unsafe { libc::prctl(what, one, two, 0, 0) }.into()).map(drop)
}

/// Drops all capabilities from the bounding set, which limits the capabilities that a process can
/// gain when it executes a file. New processes inherit this set. This process keeps its
/// capabilities.
pub(super) fn drop_bounding_set() -> io::Result<()> {
    for capability in 0..64 {
        match prctl(libc::PR_CAPBSET_DROP, capability, 0) {
            // The kernel has no higher capability.
            Err(err) if err.raw_os_error() == Some(libc::EINVAL) => break,
            // A process without the right to drop them has none to lose, because it cannot gain
            // privileges from files.
            Err(err) if err.raw_os_error() == Some(libc::EPERM) => break,
            dropped => dropped?,
        }
    }
    Ok(())
}

/// Drops all capabilities of this process permanently. Call [`drop_bounding_set`] first.
pub(super) fn drop_capabilities() -> io::Result<()> {
    #[repr(C)]
    struct CapabilityHeader {
        version: u32,
        pid: i32,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let header = CapabilityHeader { version: VERSION_3, pid: 0 };
    let none = [0_u32; 6];
    // SAFETY: the struct and the sets have the layout of this version.
    check_result(unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) })?;
    prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong, 0)
}

/// The stack size of a new process until it executes a program, in bytes.
const STACK_BYTES: usize = 256 << 10;

/// Creates a process that shares the memory of this process and runs `become_it`. This process
/// waits until the new process has executed a program or ended. Returns the new process ID.
pub(super) fn fork_into(become_it: &dyn Fn()) -> io::Result<libc::pid_t> {
    extern "C" fn begin(become_it: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the pointer is the argument passed below, and its owner waits meanwhile.
        unsafe { (*become_it.cast::<&dyn Fn()>())() };
        127
    }
    let mut stack = Vec::<MaybeUninit<u128>>::with_capacity(STACK_BYTES / size_of::<u128>());
    let how = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the helper has one thread, so the new process may do anything that this one may. It
    // runs on `stack`, which grows down from its aligned end, and all signals are blocked.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(stack.capacity()).cast();
        libc::clone(begin, top, how, (&raw const become_it).cast_mut().cast())
    };
    check_result(pid.into())?;
    Ok(pid)
}

/// Forks a process in new namespaces according to `flags`. Returns its process ID, or `None` in the
/// new process, which becomes a child of this process's parent.
pub(super) fn fork_beside(flags: libc::c_int) -> io::Result<Option<Pid>> {
    let how = flags | libc::CLONE_PARENT | libc::SIGCHLD;
    let none = std::ptr::null::<u8>();
    // SAFETY: this is the call that `fork` makes, and the helper has one thread. The last four
    // arguments are null, so their order, which differs between systems, does not matter.
    let pid = check_result(unsafe { libc::syscall(libc::SYS_clone, how, none, none, none, none) })?;
    Ok(Pid::from_raw(libc::pid_t::try_from(pid).map_err(io::Error::other)?))
}

/// Brings up the loopback interface, the only interface in a new network namespace.
pub(super) fn bring_loopback_up() -> io::Result<()> {
    /// Request to the kernel about a network interface (`struct ifreq`).
    #[repr(C)]
    struct NetworkInterfaceRequest {
        name: [u8; 16],
        flags: libc::c_short,
        rest: [u8; 22],
    }
    let mut request = NetworkInterfaceRequest { name: [0; 16], flags: 0, rest: [0; 22] };
    request.name[..2].copy_from_slice(b"lo");
    let (family, kind) = (AddressFamily::INET, SocketType::DGRAM);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    let fd = socket.as_raw_fd();
    // SAFETY: the request has the kernel's size and outlives both calls.
    unsafe {
        check_result(libc::ioctl(fd, libc::SIOCGIFFLAGS, &raw mut request).into())?;
        request.flags |= libc::c_short::try_from(libc::IFF_UP).unwrap_or_default();
        check_result(libc::ioctl(fd, libc::SIOCSIFFLAGS, &raw const request).into()).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_fails_with_eagain_is_retried_a_limited_number_of_times() {
        let retry_after_failures = |times: usize| {
            let mut left = times;
            let made = retry(|| match left.checked_sub(1) {
                Some(less) => {
                    left = less;
                    Err(io::Error::from_raw_os_error(libc::EAGAIN))
                }
                None => Ok(()),
            });
            made.map_err(|err| err.raw_os_error())
        };
        assert_eq!(retry_after_failures(TRIES), Ok(()));
        assert_eq!(retry_after_failures(TRIES + 1), Err(Some(libc::EAGAIN)));
        let other = retry(|| Err::<(), _>(io::Error::from_raw_os_error(libc::ENOENT)));
        assert_eq!(other.map_err(|err| err.raw_os_error()), Err(Some(libc::ENOENT)));
    }
}

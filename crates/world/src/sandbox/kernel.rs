//! System calls that the rustix crate lacks, or provides only if more of its features are compiled
//! in.

#![allow(unsafe_code, reason = "system calls that no crate in the tree wraps")]

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::process::Pid;

/// The restrictions of a mount, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MountAttributes(pub(super) u64);

impl MountAttributes {
    pub(super) const READ_ONLY: u64 = 1;
    pub(super) const NO_SET_ID: u64 = 2;
    pub(super) const NO_DEVICES: u64 = 4;
    pub(super) const NO_EXEC: u64 = 8;
}

#[repr(C)]
struct MountAttrArgs {
    set: u64,
    clear: u64,
    propagation: u64,
    userns: u64,
}

const OPEN_TREE_CLONE: libc::c_uint = 1;
const AT_RECURSIVE: libc::c_int = 0x8000;
const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 4;
const MOVE_MOUNT_T_EMPTY_PATH: libc::c_uint = 0x40;
const FSOPEN_CLOEXEC: libc::c_uint = 1;
const FSMOUNT_CLOEXEC: libc::c_uint = 1;
const FSCONFIG_SET_FLAG: libc::c_uint = 0;
const FSCONFIG_SET_STRING: libc::c_uint = 1;
const FSCONFIG_CMD_CREATE: libc::c_uint = 6;

fn check_result(returned: libc::c_long) -> io::Result<libc::c_long> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}

fn owned_result(returned: libc::c_long) -> io::Result<OwnedFd> {
    let fd = RawFd::try_from(check_result(returned)?).map_err(io::Error::other)?;
    // SAFETY: the kernel has just returned it, so no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The maximum number of retries of a system call.
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
    let flags = OPEN_TREE_CLONE | (libc::O_CLOEXEC | AT_RECURSIVE).cast_unsigned();
    // SAFETY: the path is a terminated string.
    owned_result(unsafe {
        libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags)
    })
}

/// Clones the mount at the open entry `place` and all mounts below it.
pub(super) fn clone_mount_of(place: impl AsFd) -> io::Result<OwnedFd> {
    let flags = libc::O_CLOEXEC | AT_RECURSIVE | libc::AT_EMPTY_PATH;
    let flags = OPEN_TREE_CLONE | flags.cast_unsigned();
    let fd = place.as_fd().as_raw_fd();
    // SAFETY: the path is a terminated string.
    owned_result(unsafe { libc::syscall(libc::SYS_open_tree, fd, c"".as_ptr(), flags) })
}

/// Restricts a mount to `attr`. With `is_recursive`, also restricts all mounts below it.
pub(super) fn restrict(
    mount: impl AsFd,
    attr: MountAttributes,
    is_recursive: bool,
) -> io::Result<()> {
    // A mount that is added below it elsewhere later would be unrestricted, so it must not appear
    // here.
    let propagation = if is_recursive { libc::MS_PRIVATE } else { 0 };
    let attributes = MountAttrArgs { set: attr.0, clear: 0, propagation, userns: 0 };
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

/// Attaches a mount at `target`.
pub(super) fn attach(mount: impl AsFd, target: impl AsFd) -> io::Result<()> {
    let from = mount.as_fd().as_raw_fd();
    let to = target.as_fd().as_raw_fd();
    let flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;
    retry(|| {
        // SAFETY: both paths are terminated strings.
        check_result(unsafe {
            libc::syscall(libc::SYS_move_mount, from, c"".as_ptr(), to, c"".as_ptr(), flags)
        })
    })
    .map(drop)
}

/// Creates a file system of the type `name`, which is not attached to a path yet.
pub(super) fn create_filesystem(
    name: &CStr,
    options: &[(&CStr, Option<&CStr>)],
    attr: MountAttributes,
) -> io::Result<OwnedFd> {
    // SAFETY: all names and values are terminated strings, and the create command takes none.
    unsafe {
        let made = owned_result(libc::syscall(libc::SYS_fsopen, name.as_ptr(), FSOPEN_CLOEXEC))?;
        let fd = made.as_raw_fd();
        let none = std::ptr::null::<libc::c_char>();
        for (key, value) in options {
            let (command, value) = match value {
                Some(value) => (FSCONFIG_SET_STRING, value.as_ptr()),
                None => (FSCONFIG_SET_FLAG, none),
            };
            check_result(libc::syscall(libc::SYS_fsconfig, fd, command, key.as_ptr(), value, 0))?;
        }
        check_result(libc::syscall(libc::SYS_fsconfig, fd, FSCONFIG_CMD_CREATE, none, none, 0))?;
        owned_result(libc::syscall(libc::SYS_fsmount, fd, FSMOUNT_CLOEXEC, attr.0))
    }
}

/// The mounts of other namespaces that appear in this namespace.
#[derive(Debug, Clone, Copy)]
pub(super) enum MountPropagation {
    /// New mounts of the namespace from which this namespace was copied.
    Receive,
    Private,
}

/// Keeps new mounts of this namespace invisible in others. `seen` decides if mounts of others
/// appear in this namespace.
pub(super) fn isolate_mounts(seen: MountPropagation) -> io::Result<()> {
    let none = std::ptr::null();
    let flags = match seen {
        MountPropagation::Receive => libc::MS_REC | libc::MS_SLAVE,
        MountPropagation::Private => libc::MS_REC | libc::MS_PRIVATE,
    };
    // SAFETY: the path is a terminated string, and the others may be null.
    check_result(unsafe { libc::mount(none, c"/".as_ptr(), none, flags, none.cast()) }.into())
        .map(drop)
}

/// Makes the working directory the root and detaches the old root.
pub(super) fn switch_root() -> io::Result<()> {
    // SAFETY: the paths are terminated strings.
    unsafe {
        check_result(libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()))?;
        check_result(libc::umount2(c".".as_ptr(), libc::MNT_DETACH).into())?;
    }
    Ok(())
}

/// Closes every descriptor from `first` on.
pub(super) fn close_from(first: RawFd) -> io::Result<()> {
    // SAFETY: the helper has just started and owns none of these.
    match unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Closes a descriptor. No code may use it again.
pub(super) fn close(fd: impl AsFd) -> io::Result<()> {
    // SAFETY: its owner never returns.
    check_result(unsafe { libc::close(fd.as_fd().as_raw_fd()) }.into()).map(drop)
}

pub(super) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: it changes this process's namespaces and no memory.
    check_result(unsafe { libc::unshare(flags) }.into()).map(drop)
}

/// Calls `prctl` with numeric arguments.
pub(super) fn prctl(what: libc::c_int, one: libc::c_ulong, two: libc::c_ulong) -> io::Result<()> {
    // SAFETY: it is only used for options with numeric arguments.
    check_result(unsafe { libc::prctl(what, one, two, 0, 0) }.into()).map(drop)
}

/// Drops all capabilities permanently.
pub(super) fn drop_capabilities() -> io::Result<()> {
    #[repr(C)]
    struct CapabilityHeader {
        version: u32,
        pid: i32,
    }
    const VERSION_3: u32 = 0x2008_0522;
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
    let header = CapabilityHeader { version: VERSION_3, pid: 0 };
    let none = [0_u32; 6];
    // SAFETY: the struct and the sets have the layout of this version.
    check_result(unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) })?;
    prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong, 0)
}

/// The stack size of a new process until it executes a program, in bytes.
const STACK_BYTES: usize = 256 << 10;

/// Creates a process that shares the memory of this process and runs `become_it`. This process
/// waits until the new process has executed a program or ended.
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

/// Forks a process in new namespaces according to `flags`. Returns `None` in the new process, which
/// becomes a child of this process's parent.
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
    #[repr(C)]
    struct InterfaceRequest {
        name: [u8; 16],
        flags: libc::c_short,
        rest: [u8; 22],
    }
    let mut request = InterfaceRequest { name: [0; 16], flags: 0, rest: [0; 22] };
    request.name[..2].copy_from_slice(b"lo");
    // SAFETY: the request has the kernel's size and outlives both calls.
    unsafe {
        let how = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        let socket = owned_result(libc::socket(libc::AF_INET, how, 0).into())?;
        let fd = socket.as_raw_fd();
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

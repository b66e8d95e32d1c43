//! The system calls that a confined program may not make (seccomp).
//!
//! The filters refuse calls that bypass the mounts and namespaces, or that expose more of the
//! kernel. They allow all other calls. For sockets, the filters allow only the families that a
//! network namespace confines.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};

use super::plan::SeccompFilters;

/// The socket families that a program may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SocketFamilies {
    /// `true` if programs may use IPv4, IPv6 and routing information (netlink).
    pub(super) internet: bool,
    /// `true` if programs may use Unix sockets.
    pub(super) unix: bool,
}

/// Seccomp rules by the number of the system call. A call without rules matches always. A call with
/// rules matches if any of the rules does.
type SyscallRules = BTreeMap<i64, Vec<SeccompRule>>;

/// System calls that are refused with any arguments.
const REFUSED: &[i64] = &[
    // Access to other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Other mount views.
    libc::SYS_chroot,
    libc::SYS_fspick,
    // open_tree_attr
    467,
    libc::SYS_setns,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    // Keys of the user's other processes.
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    // Kernel features that programs do not need.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_fanotify_init,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_lookup_dcookie,
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
];

#[cfg(target_arch = "x86_64")]
const REFUSED_ON_ARCH: &[i64] = &[
    libc::SYS_kexec_file_load,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS__sysctl,
];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[i64] = &[];

/// System calls that are refused once the file tree of the program is complete. Before that, the
/// helper needs them.
const REFUSED_LAST: &[i64] = &[
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_mount_setattr,
];

/// System calls that the filter reports as missing (`ENOSYS`), because a filter cannot read their
/// arguments in memory. Programs have a fallback for them.
const MISSING: &[i64] = &[
    libc::SYS_clone3,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// A system call that the filter reports as missing (`ENOSYS`) once the program file has been
/// found. Before that, the helper needs the call.
const MISSING_LAST: &[i64] = &[libc::SYS_openat2];

/// The only system calls that a worker may make. A worker reads input from an open handle and
/// computes. None of these calls opens a file, or reaches or starts another process.
const WORKER_CALLS: &[i64] = &[
    libc::SYS_read,
    libc::SYS_write,
    // Memory.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    // Threads and locks of this process.
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    // Time and random numbers.
    libc::SYS_clock_gettime,
    libc::SYS_getrandom,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// The lowest number of the x32 system calls. On x86_64, they duplicate every system call, and no
/// rule covers them.
const X32_CALLS_MIN: u32 = 0x4000_0000;

/// Builds the seccomp filters for a program that may use the families `sockets`.
pub(super) fn build_filters(sockets: SocketFamilies) -> io::Result<SeccompFilters> {
    let ahead = [
        x32_filter(),
        compile_filter(refused_rules()?, libc::EPERM)?,
        compile_filter(unconditional_rules(MISSING), libc::ENOSYS)?,
        compile_filter(socket_rules(sockets)?, libc::EAFNOSUPPORT)?,
    ];
    let last = [add_missing(MISSING_LAST, compile_filter(refused_last_rules()?, libc::EPERM)?)?];
    let packed = |made: &[BpfProgram]| {
        made.iter().map(|filter| filter.iter().map(encode_instruction).collect()).collect()
    };
    Ok(SeccompFilters { ahead: packed(&ahead), last: packed(&last) })
}

/// Decodes a seccomp filter that [`build_filters`] encoded.
pub(super) fn decode_filter(filter: &[u64]) -> BpfProgram {
    let part = |packed: u64, bits: u32| (packed >> bits) & 0xffff_ffff;
    let unpacked = |&packed: &u64| sock_filter {
        code: u16::try_from(part(packed, 0) & 0xffff).unwrap_or_default(),
        jt: u8::try_from(part(packed, 16) & 0xff).unwrap_or_default(),
        jf: u8::try_from(part(packed, 24) & 0xff).unwrap_or_default(),
        k: u32::try_from(part(packed, 32)).unwrap_or_default(),
    };
    filter.iter().map(unpacked).collect()
}

fn encode_instruction(line: &sock_filter) -> u64 {
    u64::from(line.code)
        | u64::from(line.jt) << 16
        | u64::from(line.jf) << 24
        | u64::from(line.k) << 32
}

/// Builds the filter of a worker, which refuses every system call outside of [`WORKER_CALLS`].
pub(super) fn build_worker_filter() -> io::Result<BpfProgram> {
    let mut rules = unconditional_rules(WORKER_CALLS);
    // A worker sets its own limits before each request, and no limits of another process.
    rules.insert(libc::SYS_prlimit64, vec![new_rule(&[(0, SeccompCmpOp::Eq, 0)])?]);
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    let refuse = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    SeccompFilter::new(rules, refuse, SeccompAction::Allow, arch)
        .and_then(BpfProgram::try_from)
        .map_err(io::Error::other)
}

/// Builds the rules that refuse the system calls which the helper needs until it executes the
/// program.
fn refused_last_rules() -> io::Result<SyscallRules> {
    let mut rules = unconditional_rules(REFUSED_LAST);
    // New namespaces, with one rule per flag, because all conditions of a rule must hold.
    let spaces = [
        libc::CLONE_NEWNS,
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
    ];
    let bits = spaces.map(|flag| u64::from(flag.cast_unsigned()));
    rules.insert(libc::SYS_clone, rule_for_each_bit(0, &bits)?);
    // For `clone` the flag for a time namespace is part of the signal number.
    const CLONE_NEWTIME: u64 = 0x80;
    rules.insert(libc::SYS_unshare, rule_for_each_bit(0, &[&bits[..], &[CLONE_NEWTIME]].concat())?);
    Ok(rules)
}

fn refused_rules() -> io::Result<SyscallRules> {
    let mut rules = unconditional_rules(REFUSED);
    rules.extend(unconditional_rules(REFUSED_ON_ARCH));
    // Typing into a terminal, and changing its line discipline.
    let terminals = [libc::TIOCSTI, libc::TIOCLINUX, libc::TIOCSETD, libc::TIOCCONS];
    let ioctls = terminals.into_iter().map(|ask| new_rule(&[(1, SeccompCmpOp::Eq, ask)]));
    rules.insert(libc::SYS_ioctl, ioctls.collect::<io::Result<_>>()?);
    // Leases and notifications, with which a reader can block a file's owner.
    const F_SETLEASE: u64 = 1024;
    const F_NOTIFY: u64 = 1026;
    let leases = [F_SETLEASE, F_NOTIFY].map(|what| new_rule(&[(1, SeccompCmpOp::Eq, what)]));
    rules.insert(libc::SYS_fcntl, leases.into_iter().collect::<io::Result<_>>()?);
    // Other execution domains. Only the query is allowed.
    let other = new_rule(&[(0, SeccompCmpOp::Ne, 0), (0, SeccompCmpOp::Ne, 0xffff_ffff)])?;
    rules.insert(libc::SYS_personality, vec![other]);
    // Set-user-ID and set-group-ID files would outlast the program, and other users could run them.
    let ids = [u64::from(libc::S_ISUID), u64::from(libc::S_ISGID)];
    for (call, mode) in [
        (libc::SYS_fchmod, 1),
        (libc::SYS_fchmodat, 2),
        (libc::SYS_fchmodat2, 2),
        (libc::SYS_mknodat, 2),
        (libc::SYS_mkdirat, 2),
    ] {
        rules.insert(call, rule_for_each_bit(mode, &ids)?);
    }
    // The mode counts only if a file is created, with or without a name.
    const NAMELESS: libc::c_int = libc::O_TMPFILE & !libc::O_DIRECTORY;
    let makes = [libc::O_CREAT, NAMELESS].map(|flag| u64::from(flag.cast_unsigned()));
    let make = |flags: u8, mode: u8| {
        let both = makes.iter().flat_map(|&make| ids.iter().map(move |&id| (make, id)));
        both.map(|(make, id)| {
            let making = (flags, SeccompCmpOp::MaskedEq(make), make);
            new_rule(&[making, (mode, SeccompCmpOp::MaskedEq(id), id)])
        })
        .collect::<io::Result<Vec<_>>>()
    };
    rules.insert(libc::SYS_openat, make(2, 3)?);
    #[cfg(target_arch = "x86_64")]
    {
        rules.insert(libc::SYS_open, make(1, 2)?);
        for (call, mode) in
            [(libc::SYS_chmod, 1), (libc::SYS_creat, 1), (libc::SYS_mknod, 1), (libc::SYS_mkdir, 1)]
        {
            rules.insert(call, rule_for_each_bit(mode, &ids)?);
        }
    }
    Ok(rules)
}

/// Mask of the bits of `socket`'s `type` argument that select the socket type, such as
/// `SOCK_STREAM`. The other bits are flags, such as `SOCK_CLOEXEC`.
const SOCKET_KIND_MASK: u64 = 0xf;

/// Builds the rules that refuse all socket families except those in `sockets`.
fn socket_rules(SocketFamilies { internet, unix }: SocketFamilies) -> io::Result<SyscallRules> {
    let mut allowed = Vec::new();
    if internet {
        allowed.extend([libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK]);
    }
    if unix {
        allowed.push(libc::AF_UNIX);
    }
    let family = |family: libc::c_int| u64::from(family.cast_unsigned());
    let conditions: Vec<_> =
        allowed.into_iter().map(|it| (0, SeccompCmpOp::Ne, family(it))).collect();
    // Without any allowed family, the call is always refused.
    let mut refused = if conditions.is_empty() { Vec::new() } else { vec![new_rule(&conditions)?] };
    if internet {
        // Of netlink, only routes are allowed: name resolution needs them.
        let route = u64::try_from(libc::NETLINK_ROUTE).unwrap_or_default();
        let netlink = (0, SeccompCmpOp::Eq, family(libc::AF_NETLINK));
        refused.push(new_rule(&[netlink, (2, SeccompCmpOp::Ne, route)])?);
    }
    let mut rules = BTreeMap::from([(libc::SYS_socket, refused)]);
    if !unix {
        // The ends of a pair reach only each other, except datagram sockets, which can send to any
        // address.
        let is = |kind: libc::c_int| {
            new_rule(&[(
                1,
                SeccompCmpOp::MaskedEq(SOCKET_KIND_MASK),
                u64::from(kind.cast_unsigned()),
            )])
        };
        rules.insert(libc::SYS_socketpair, vec![is(libc::SOCK_DGRAM)?, is(libc::SOCK_RAW)?]);
    }
    Ok(rules)
}

fn unconditional_rules(calls: &[i64]) -> SyscallRules {
    calls.iter().map(|&call| (call, Vec::new())).collect()
}

/// Creates one rule for each of `bits`. The rule matches if this bit is set in the argument with
/// the index `at`.
fn rule_for_each_bit(at: u8, bits: &[u64]) -> io::Result<Vec<SeccompRule>> {
    bits.iter().map(|&bit| new_rule(&[(at, SeccompCmpOp::MaskedEq(bit), bit)])).collect()
}

/// Creates a rule that matches if all `conditions` hold. A condition consists of the argument's
/// index, the comparison and the value. The rule compares the lower 32 bits of an argument, because
/// the kernel uses only those.
fn new_rule(conditions: &[(u8, SeccompCmpOp, u64)]) -> io::Result<SeccompRule> {
    let conditions = conditions.iter().map(|(at, op, value)| {
        SeccompCondition::new(*at, SeccompCmpArgLen::Dword, op.clone(), *value)
    });
    let conditions = conditions.collect::<Result<_, _>>().map_err(io::Error::other)?;
    SeccompRule::new(conditions).map_err(io::Error::other)
}

fn compile_filter(rules: SyscallRules, errno: libc::c_int) -> io::Result<BpfProgram> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    let refuse = SeccompAction::Errno(errno.cast_unsigned());
    SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch)
        .and_then(BpfProgram::try_from)
        .map_err(io::Error::other)
}

/// BPF instruction code that loads a 32-bit word of the data about the system call, such as the
/// number of the call.
const LOAD: u16 = 0x20;
/// BPF instruction code of a jump that is taken if the loaded word equals a constant.
const IS_EQUAL: u16 = 0x15;
/// BPF instruction code of a jump that is taken if the loaded word is at least a constant.
const IS_AT_LEAST: u16 = 0x35;
/// BPF instruction code that ends the filter and returns the action for the system call.
const RETURN: u16 = 0x06;

/// Returns `filter` with additional instructions that report the system calls `missing` as missing
/// (`ENOSYS`). Each filter that a process applies takes time, so these calls get no separate
/// filter.
///
/// The instructions do not check the processor architecture. Other filters of the process check it.
fn add_missing(missing: &[i64], filter: BpfProgram) -> io::Result<BpfProgram> {
    let mut lines = vec![filter_line(LOAD, 0, 0, 0)];
    for &call in missing {
        let call = u32::try_from(call).map_err(io::Error::other)?;
        let report = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned();
        lines.extend([filter_line(IS_EQUAL, 0, 1, call), filter_line(RETURN, 0, 0, report)]);
    }
    // All jumps are relative.
    lines.extend(filter);
    Ok(lines)
}

/// Builds a filter that refuses all x32 calls. The filter is written by hand, because a rule covers
/// only a single call number.
fn x32_filter() -> BpfProgram {
    vec![
        filter_line(LOAD, 0, 0, 0),
        filter_line(IS_AT_LEAST, 0, 1, X32_CALLS_MIN),
        filter_line(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned()),
        filter_line(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

fn filter_line(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::thread;

    use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
    use rustix::io::Errno;
    use rustix::mount::{MountPropagationFlags, mount_change};

    use super::*;

    #[test]
    fn the_last_filters_refuse_mounts_and_report_openat2_as_missing() {
        let done = thread::spawn(|| {
            let filters = build_filters(SocketFamilies { internet: true, unix: false }).unwrap();
            for filter in &filters.last {
                if let Err(why) = seccompiler::apply_filter(&decode_filter(filter)) {
                    return eprintln!("NOT TRIED: {why}");
                }
            }
            let (flags, mode, resolve) = (OFlags::PATH, Mode::empty(), ResolveFlags::empty());
            assert_eq!(openat2(CWD, "/", flags, mode, resolve).unwrap_err(), Errno::NOSYS);
            let change = mount_change("/", MountPropagationFlags::PRIVATE);
            assert_eq!(change.unwrap_err(), Errno::PERM);
            assert!(fs::exists("/dev/null").unwrap());
        });
        done.join().unwrap();
    }
}

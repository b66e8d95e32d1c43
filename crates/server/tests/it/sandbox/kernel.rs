//! Tests of system calls that would escape the sandbox's file system view, or use more kernel
//! features than the sandbox allows.

use super::*;

/// System calls with their numbers on x86_64, their arguments, and the expected `errno`.
const CALLS: &[(&str, &str, &str)] = &[
    ("ptrace", "101, 0, 0, 0, 0", "EPERM"),
    ("process_vm_readv", "310, 1, 0, 0, 0, 0, 0", "EPERM"),
    ("mount", "165, 0, 0, 0, 0, 0", "EPERM"),
    ("umount2", "166, 0, 0", "EPERM"),
    ("pivot_root", "155, 0, 0", "EPERM"),
    ("open_tree", "428, -100, 0, 0", "EPERM"),
    ("move_mount", "429, 0, 0, 0, 0, 0", "EPERM"),
    ("fsopen", "430, 0, 0", "EPERM"),
    ("mount_setattr", "442, 0, 0, 0, 0, 0", "EPERM"),
    ("unshare a namespace of users", "272, 0x10000000", "EPERM"),
    ("unshare a namespace of mounts", "272, 0x20000", "EPERM"),
    ("clone a namespace of users", "56, 0x10000011, 0, 0, 0, 0", "EPERM"),
    ("setns", "308, 0, 0", "EPERM"),
    ("bpf", "321, 0, 0, 0", "EPERM"),
    ("perf_event_open", "298, 0, 0, 0, 0, 0", "EPERM"),
    ("keyctl", "250, 0, 0", "EPERM"),
    ("add_key", "248, 0, 0, 0, 0, 0", "EPERM"),
    ("userfaultfd", "323, 0", "EPERM"),
    ("open_by_handle_at", "304, 0, 0, 0", "EPERM"),
    ("pidfd_getfd", "438, 0, 0, 0", "EPERM"),
    ("kcmp", "312, 1, 1, 0, 0, 0", "EPERM"),
    ("personality", "135, 8", "EPERM"),
    ("chroot", "161, 0", "EPERM"),
    ("io_uring_setup", "425, 1, 0", "ENOSYS"),
    ("clone3", "435, 0, 0", "ENOSYS"),
    ("openat2", "437, -100, 0, 0, 0", "ENOSYS"),
    ("getpid by its second number", "0x40000000 | 39", "EPERM"),
    // The kernel reads only the lower half of an argument.
    ("unshare, with more above", "272, 0x100010000000", "EPERM"),
    ("a socket that is a file, with more above", "41, 0x100000001, 1, 0", "EAFNOSUPPORT"),
];

#[test]
#[cfg(target_arch = "x86_64")]
fn system_calls_that_leave_the_view_are_refused() {
    let workspace = TempWorkspace::new();
    let Some(mut client) = confined_with_layer(&workspace, "seccomp") else { return };
    let attempts: String = CALLS
        .iter()
        .map(|(name, call, _)| {
            format!("$! = 0; my $r = syscall({call}); print \"{name}: \", $r < 0 ? (grep {{ $!{{$_}} }} keys %!)[0] : 'done', \"\\n\";\n")
        })
        .collect();
    let results = perl(&mut client, &format!("use Errno; {attempts}"));
    let expected: String =
        CALLS.iter().map(|(name, _, errno)| format!("{name}: {errno}\n")).collect();
    assert_eq!(results, expected);
}

#[test]
fn a_program_cannot_type_into_a_terminal() {
    let workspace = TempWorkspace::new();
    let mut client = confined_client(&workspace, "workspace");
    if !has_layer(&mut client, "seccomp") || !has_layer(&mut client, "view") {
        return;
    }
    // A program can open a terminal of its own, but cannot type into that one, either.
    let script = "use Fcntl; use Errno; sysopen(T, '/dev/ptmx', O_RDWR) or print 'no terminal ';\
         for my $ask (0x5412, 0x541C) { my $c = 'x';\
         print ioctl(T, $ask, $c) ? 'typed ' : $!{EPERM} ? 'EPERM ' : 'other '; }";
    assert_eq!(perl(&mut client, script), "EPERM EPERM ");
}

#[test]
fn a_program_has_no_capabilities_and_cannot_gain_any() {
    let workspace = TempWorkspace::new();
    let mut client = confined_client(&workspace, "workspace");
    let result = sh(&mut client, "grep -E '^(Cap|NoNew)' /proc/self/status");
    let capabilities = result.stdout.lines().filter(|line| line.starts_with("Cap"));
    for line in capabilities {
        // Without root, the bounding set may stay: no file grants a capability of it.
        let is_root = rustix::process::geteuid().is_root();
        let bounding = line.starts_with("CapBnd") && !is_root;
        assert!(bounding || line.ends_with("\t0000000000000000"), "{line}");
    }
    assert!(result.stdout.contains("NoNewPrivs:\t1"), "{}", result.stdout);
    let result =
        sh(&mut client, "su -c id; mount -t tmpfs x /tmp; mknod d c 1 1; chown 1 README.md");
    assert!(!result.stdout.contains("uid="), "{}", result.stdout);
    assert!(!workspace.path("d").exists());
}

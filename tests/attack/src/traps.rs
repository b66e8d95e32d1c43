//! Programs in perl that try what a confined program must not get: each exits with 0 if it got it.

/// Sends a datagram to `port`.
pub(super) fn udp(port: u16) -> String {
    format!(
        "use Socket; socket(my $s, PF_INET, SOCK_DGRAM, 17) or die \"socket: $!\"; \
         send($s, 'out of the sandbox', 0, sockaddr_in({port}, inet_aton('127.0.0.1'))) \
         or die \"send: $!\";"
    )
}

/// Connects to `port`.
pub(super) fn tcp(port: u16) -> String {
    format!(
        "use Socket; socket(my $s, PF_INET, SOCK_STREAM, 6) or die \"socket: $!\"; \
         connect($s, sockaddr_in({port}, inet_aton('127.0.0.1'))) or die \"connect: $!\";"
    )
}

/// Connects to any of the sockets with these paths, an abstract one with `@`.
pub(super) fn unix(paths: &[String]) -> String {
    let paths: Vec<String> = paths.iter().map(|path| format!("'{path}'")).collect();
    format!(
        "use Socket; my $ok = 0; for my $p ({}) {{ (my $a = $p) =~ s/^@/\\0/; \
         socket(my $s, PF_UNIX, SOCK_STREAM, 0) or do {{ print \"socket: $!\\n\"; next }}; \
         my $to = pack('S a*', PF_UNIX, substr($p,0,1) eq '@' ? $a : \"$a\\0\"); \
         if (connect($s, $to)) {{ print \"connected to $p\\n\"; $ok = 1 }} \
         else {{ print \"$p: $!\\n\" }} }} exit($ok ? 0 : 1);",
        paths.join(",")
    )
}

/// Makes an io_uring.
pub(super) const IO_URING: &str = "my $p = \"\\0\" x 120; my $r = syscall(425, 8, $p); \
     if ($r >= 0) { print \"io_uring_setup gave $r\\n\"; exit 0 } \
     print 'io_uring_setup: ', $!+0, \"\\n\"; exit(($!+0) == 1 || ($!+0) == 38 ? 1 : 0);";

/// Traces itself, looks into its parent's memory and into the server's, takes a descriptor of theirs.
pub(super) fn ptrace(server: u32) -> String {
    format!(
        "my @got; my $r = syscall(101, 16, getppid(), 0, 0); \
         if ($r == 0) {{ push @got, 'attached to parent'; waitpid(getppid(), 0x40000000); \
           syscall(101, 17, getppid(), 0, 0) }} \
         for my $pid (getppid(), {server}) {{ next if $pid < 2; \
           my $line = ''; if (open(my $c, '<', \"/proc/$pid/cmdline\")) {{ $line = <$c> // '' }} \
           if ($line =~ /toolgate/ && open(my $m, '<', \"/proc/$pid/mem\")) {{ push @got, \"opened mem of $pid\" }} \
           my $fd = syscall(434, $pid, 0); \
           if ($fd >= 0) {{ my $t = syscall(438, $fd, 1, 0); \
             push @got, \"took descriptor of $pid\" if $t >= 0 }} }} \
         my $self = syscall(101, 0, 0, 0, 0); push @got, 'ptrace is open' if $self == 0; \
         print join(', ', @got), \"\\n\"; exit(@got ? 0 : 1);"
    )
}

/// Reads the memory of a child of its own by process_vm_readv.
pub(super) const VM_READ: &str = "my $secret = 'x' x 64; my $pid = fork; \
     if (!$pid) { sleep 5; exit 0 } \
     my $to = \"\\0\" x 64; \
     my $local = pack('QQ', unpack('Q', pack('p', $to)), 64); \
     my $remote = pack('QQ', unpack('Q', pack('p', $secret)), 64); \
     my $r = syscall(310, $pid, $local, 1, $remote, 1, 0); my $e = $!+0; kill 9, $pid; \
     waitpid $pid, 0; print \"process_vm_readv: $r errno $e\\n\"; exit($r > 0 ? 0 : 1);";

/// Opens a terminal of its own, makes it its controlling one, and types into it.
pub(super) const TIOCSTI: &str = "use POSIX (); use Fcntl; \
     sysopen(my $m, '/dev/ptmx', O_RDWR|O_NOCTTY) or do { print \"ptmx: $!\\n\"; exit 1 }; \
     my $z = pack('i', 0); ioctl($m, 0x40045431, $z) or do { print \"unlock: $!\\n\"; exit 1 }; \
     my $n = pack('I', 0); ioctl($m, 0x80045430, $n) or do { print \"number: $!\\n\"; exit 1 }; \
     my $name = '/dev/pts/' . unpack('I', $n); \
     my $pid = fork; if (!$pid) { POSIX::setsid(); \
       open(my $t, '+<', $name) or do { print \"$name: $!\\n\"; exit 1 }; \
       ioctl($t, 0x540E, 0); my $c = 'x'; \
       if (ioctl($t, 0x5412, $c)) { print \"typed\\n\"; exit 0 } \
       print \"TIOCSTI: $!\\n\"; exit 1 } waitpid $pid, 0; exit($? >> 8 ? 1 : 0);";

/// Opens a socket between virtual machines.
pub(super) const VSOCK: &str = "my $r = syscall(41, 40, 1, 0); \
     print \"AF_VSOCK: $r errno \", $!+0, \"\\n\"; exit($r >= 0 ? 0 : 1);";

/// Becomes `@ARGV` where there is neither Landlock nor a new namespace.
///
/// The filter, in words of four: the number of the call is loaded; landlock_* and clone3 are
/// ENOSYS, unshare is EPERM, and clone is with any flag that asks for a namespace.
pub(super) const WITHOUT_SANDBOX: &str = "sub op { pack('SCCL', @_) } \
     my $enosys = 0x00050000 | 38; my $eperm = 0x00050000 | 1; \
     my $f = join '', op(0x20,0,0,0), \
       op(0x15,7,0,444), op(0x15,6,0,445), op(0x15,5,0,446), op(0x15,4,0,435), \
       op(0x15,4,0,272), op(0x15,0,4,56), op(0x20,0,0,16), op(0x45,1,2,0x7e020000), \
       op(0x06,0,0,$enosys), op(0x06,0,0,$eperm), op(0x06,0,0,0x7fff0000); \
     syscall(157, 38, 1, 0, 0, 0); \
     my $prog = pack('Sx6Q', length($f)/8, unpack('Q', pack('p', $f))); \
     syscall(157, 22, 2, unpack('Q', pack('p', $prog)), 0, 0) == 0 or die \"no filter: $!\"; \
     exec { $ARGV[0] } @ARGV; die \"no exec: $!\";";

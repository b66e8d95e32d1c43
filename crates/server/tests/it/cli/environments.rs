//! Tests of starts in unusual environments: without a home, a writable state folder or namespaces,
//! and on kernels without Landlock.

use std::fs;

use serde_json::json;
use tempfile::TempDir;

use crate::support::{MODERN, ServerLaunchOptions, TempWorkspace, TestMcpClient, wait_until};

/// Beginning of the log line that describes the environment.
const LINE: &str = "in this environment, ";

/// Starts a server with the options `launch` over stdio, and checks that it answers. Returns its
/// client.
fn start(launch: ServerLaunchOptions) -> TestMcpClient {
    let mut client = TestMcpClient::stdio(launch.set("audit_to", "state"), MODERN);
    let answer = client.call("files_read", json!({ "path": "README.md" }));
    assert_eq!(answer["result"]["isError"], false, "{answer}");
    client
}

/// Returns the log line that describes the environment, and checks that there is exactly one.
#[track_caller]
fn environment_line(client: &TestMcpClient) -> String {
    let log = || client.server().log();
    wait_until("the line is logged", || {
        log().split_once(LINE).is_some_and(|(_, rest)| rest.contains('\n'))
    });
    let log = log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains(LINE)).collect();
    assert_eq!(lines.len(), 1, "{log}");
    lines[0].to_owned()
}

fn is_root(what: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("NOT TRIED: only root can {what}");
    }
    is_root
}

#[test]
fn without_a_home_the_server_answers_and_reports_what_is_lost() {
    for home in ["", "relative"] {
        let line = environment_line(&start(
            ServerLaunchOptions::over(&TempWorkspace::new()).env("HOME", home),
        ));
        let expected = "neither XDG_STATE_HOME nor HOME is an absolute path, so jobs are unavailable \
                        and audit records go to standard error";
        assert!(line.contains(expected), "{line}");
        assert!(line.contains("the search index is kept in memory"), "{line}");
    }
}

#[test]
fn with_a_home_that_cannot_be_written_the_server_answers_and_reports_the_folder() {
    // The kernel refuses new files in /proc, even for root.
    let line = environment_line(&start(
        ServerLaunchOptions::over(&TempWorkspace::new()).env("HOME", "/proc"),
    ));
    assert!(line.contains("the state folder /proc/.local/state/toolgate cannot be"), "{line}");
    assert!(line.contains("the cache folder /proc/.cache/toolgate cannot be written"), "{line}");
}

#[test]
fn with_a_read_only_state_folder_the_server_answers_and_jobs_are_refused() {
    if !is_root("mount a folder read-only") {
        return;
    }
    let state = TempDir::new().unwrap();
    fs::create_dir(state.path().join("toolgate")).unwrap();
    let mount = "mount --bind \"$XDG_STATE_HOME\" \"$XDG_STATE_HOME\" && \
                 mount -o remount,bind,ro \"$XDG_STATE_HOME\" && exec \"$@\"";
    let launch = ServerLaunchOptions::over(&TempWorkspace::new()).with_state(&state);
    let launch = launch.through(&["unshare", "--mount", "sh", "-c", mount, "sh"]);
    let mut client = start(launch);
    let line = environment_line(&client);
    let folder = state.path().join("toolgate");
    let expected = format!("the state folder {} cannot be written (Read-only", folder.display());
    assert!(line.contains(&expected), "{line}");
    assert!(!line.contains("search index"), "{line}");
    let answer = client.call("jobs_list", json!({}));
    assert!(answer.to_string().contains("cannot be written"), "{answer}");
}

#[test]
fn root_and_nobody_else_gets_a_line_about_root() {
    let client = start(ServerLaunchOptions::over(&TempWorkspace::new()));
    let ids = fs::read_to_string("/proc/self/uid_map").unwrap();
    let is_mapped = ids.split_whitespace().nth(2) != Some("4294967295");
    if rustix::process::geteuid().is_root() && !is_mapped {
        let line = environment_line(&client);
        assert!(line.contains("the server runs as root"), "{line}");
    } else {
        assert!(!client.server().log().contains("runs as root"), "{}", client.server().log());
    }
}

/// Command prefix that runs another command without any Linux capability.
const WITHOUT_CAPABILITIES: [&str; 4] =
    ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"];

#[test]
fn without_user_namespaces_programs_run_and_the_start_reports_it() {
    if !is_root("forbid namespaces in a namespace of its own") {
        return;
    }
    let forbid = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
    let namespace = ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh"];
    let wrapper = [&namespace[..], &WITHOUT_CAPABILITIES].concat();
    let launch =
        ServerLaunchOptions::over(&TempWorkspace::new()).set("sandbox_profile", "workspace");
    let mut client = start(launch.through(&wrapper));
    let line = environment_line(&client);
    assert!(line.contains("user.max_user_namespaces is 0, so programs can see"), "{line}");
    assert!(!line.contains("runs as root"), "{line}");
    let answer = client.call("exec_run", json!({ "command": "echo", "args": ["hi"] }));
    assert_eq!(answer["result"]["structuredContent"]["stdout"], "hi\n", "{answer}");
}

/// A Perl script that forbids `unshare` as containers do, and Landlock as old kernels do, and then
/// runs its arguments.
#[cfg(target_arch = "x86_64")]
const CONTAINER_FILTER: &str = r#"
    my @filter = ([0x20, 0, 0, 0], [0x15, 0, 1, 272], [0x06, 0, 0, 0x50001],
        [0x15, 0, 1, 444], [0x06, 0, 0, 0x50026], [0x06, 0, 0, 0x7fff0000]);
    my $code = join "", map { pack "SCCL", @$_ } @filter;
    my $program = pack "S x6 P", scalar @filter, $code;
    syscall(157, 38, 1, 0, 0, 0) == 0 or die "no_new_privs: $!";
    syscall(157, 22, 2, $program, 0, 0) == 0 or die "seccomp: $!";
    exec @ARGV or die "exec: $!";
"#;

#[cfg(target_arch = "x86_64")]
#[test]
fn under_a_container_filter_and_an_old_kernel_one_line_reports_both() {
    let filter = ["/usr/bin/perl", "-e", CONTAINER_FILTER];
    let is_root = rustix::process::geteuid().is_root();
    let wrapper =
        if is_root { [&WITHOUT_CAPABILITIES[..], &filter].concat() } else { filter.into() };
    let launch =
        ServerLaunchOptions::over(&TempWorkspace::new()).set("sandbox_profile", "workspace");
    let mut client = start(launch.through(&wrapper));
    let line = environment_line(&client);
    assert!(line.contains("a system call filter, such as a container's"), "{line}");
    assert!(line.contains("the server itself is not confined: this kernel"), "{line}");
    let answer = client.call("exec_run", json!({ "command": "echo", "args": ["hi"] }));
    assert_eq!(answer["result"]["structuredContent"]["stdout"], "hi\n", "{answer}");
}

#[test]
fn a_served_port_gets_the_same_line() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).env("HOME", "").served();
    wait_until("the line is logged", || served.log().contains(LINE));
    assert!(served.log().contains("jobs are unavailable"), "{}", served.log());
}

//! Tests of the processes that a confined program sees, and of its resource limits.

use std::time::{Duration, Instant};

use super::*;
use crate::support::{ProcessMarker, wait_until};

#[test]
fn a_program_sees_and_signals_only_its_own_processes() {
    let workspace = TempWorkspace::new();
    let mut client = confined_client(&workspace, "workspace");
    if !has_layer(&mut client, "view") || !has_layer(&mut client, "proc") {
        return;
    }
    // The first process is the helper. The others are the shell and what it starts.
    let result =
        sh(&mut client, "for p in /proc/[0-9]*; do cat $p/comm 2>/dev/null; done | sort -u");
    let seen: Vec<_> = result.stdout.lines().collect();
    // The shell may be listed under the name of its file.
    assert!(seen.len() <= 4 && seen.iter().any(|it| it.ends_with("sh")), "{seen:?}");
    let result = sh(&mut client, "kill -9 1; kill -9 $PPID; echo alive");
    assert_eq!(result.stdout, "alive\n", "{}", result.stderr);
    // The signal ends the shell and its processes, but not the server.
    sh(&mut client, "kill -9 -- -1");
    assert_eq!(sh(&mut client, "echo still").stdout, "still\n");
}

#[test]
fn no_child_process_survives_a_program() {
    let workspace = TempWorkspace::new();
    let Some(mut client) = confined_with_layer(&workspace, "view") else { return };
    let marker = ProcessMarker::new();
    // The script also removes the limit that marks its processes.
    let leave = format!(
        "(ulimit -x 0; setsid sh -c 'trap \"\" TERM HUP INT; sleep {} & sleep {}' & ) & sleep 0.2",
        marker.0, marker.0
    );
    let started = Instant::now();
    let result = run(&mut client, json!({ "command": "bash", "args": ["-c", leave] }));
    assert_eq!(result.code, 0, "{}", result.stderr);
    assert!(started.elapsed() < Duration::from_secs(10));
    marker.wait_until_gone();
}

#[test]
fn a_program_that_removed_its_mark_ends_with_a_killed_server() {
    let workspace = TempWorkspace::new();
    let Some(mut client) = confined_with_layer(&workspace, "view") else { return };
    let marker = ProcessMarker::new();
    let leave = format!("ulimit -x 0; setsid sleep {0} & setsid sleep {0}; wait", marker.0);
    let call = client.request(
        "tools/call",
        json!({
            "name": "exec_run", "arguments": { "command": "bash", "args": ["-c", leave] },
        }),
    );
    let crate::support::TestClientTransport::Stdio(stdio) = &mut client.wire else {
        unreachable!()
    };
    stdio.send(&call);
    wait_until("it runs", || marker.pids().len() >= 2);
    stdio.signal(Signal::KILL);
    marker.wait_until_gone();
}

#[test]
fn the_number_of_processes_is_limited() {
    let workspace = TempWorkspace::new();
    let launch = ServerLaunchOptions::over(&workspace).set("sandbox_profile", "workspace");
    let mut client = TestMcpClient::stdio(launch.set("sandbox_processes", 40), MODERN);
    if !has_layer(&mut client, "groups") && rustix::process::geteuid().is_root() {
        return;
    }
    let script = "import os, time\nmade = 0\n\
        for _ in range(200):\n    try:\n        if os.fork() == 0: time.sleep(60)\n        made += 1\n    \
        except OSError: break\nprint(made, flush=True)";
    let result = run(&mut client, json!({ "command": "/usr/bin/python3", "args": ["-c", script] }));
    let made: u64 = result.stdout.trim().parse().unwrap();
    assert!((1..40).contains(&made), "{made}");
}

#[test]
fn the_memory_of_a_program_is_limited() {
    let workspace = TempWorkspace::new();
    let launch = ServerLaunchOptions::over(&workspace).set("sandbox_profile", "workspace");
    let mut client = TestMcpClient::stdio(launch.set("sandbox_memory_bytes", 64 << 20), MODERN);
    let script = "x = bytearray(300 << 20)\nprint('had', len(x))";
    let result = run(&mut client, json!({ "command": "/usr/bin/python3", "args": ["-c", script] }));
    assert!(result.code != 0 && !result.stdout.contains("had"), "{}", result.stdout);
    assert_eq!(sh(&mut client, "echo still").stdout, "still\n");
}

#[test]
fn the_processor_time_of_a_program_is_limited() {
    let workspace = TempWorkspace::new();
    let launch = ServerLaunchOptions::over(&workspace).set("sandbox_profile", "workspace");
    let Some(mut client) =
        with_layer(TestMcpClient::stdio(launch.set("sandbox_cpu_percent", 20), MODERN), "groups")
    else {
        return;
    };
    let result =
        sh(&mut client, "timeout 2 sh -c 'while :; do :; done'; times > told; tail -1 told");
    // The user and system time of the child processes: `0m0.40s 0m0.01s`.
    let seconds = result.stdout.split_whitespace().map(|time| {
        let (minutes, seconds) = time.trim_end_matches('s').split_once('m').unwrap();
        minutes.parse::<f64>().unwrap() * 60.0 + seconds.parse::<f64>().unwrap()
    });
    let total: f64 = seconds.sum();
    assert!((0.05..0.8).contains(&total), "{total}: {}", result.stdout);
}

#[test]
fn a_program_inherits_no_open_file_of_the_server() {
    let workspace = TempWorkspace::new();
    let mut client = confined_client(&workspace, "workspace");
    let result = sh(&mut client, "for fd in /proc/self/fd/*; do readlink $fd; done; ulimit -n");
    let mut lines: Vec<_> = result.stdout.lines().collect();
    let limit: u64 = lines.pop().unwrap().parse().unwrap();
    assert!(limit <= 4096);
    let unexpected = lines.iter().filter(|it| !it.starts_with("pipe:") && **it != "/dev/null");
    assert_eq!(unexpected.count(), 0, "{lines:?}");
}

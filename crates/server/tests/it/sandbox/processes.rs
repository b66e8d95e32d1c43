//! What a confined program sees of other processes, and how many it may have.

use std::time::{Duration, Instant};

use super::*;
use crate::support::{Marker, wait_until};

#[test]
fn a_program_sees_and_signals_its_own_alone() {
    let workspace = Workspace::new();
    let mut client = confined(&workspace, "workspace");
    if !holds(&mut client, "view") || !holds(&mut client, "proc") {
        return;
    }
    // The first process is the helper; beside the shell there is what it starts.
    let ran = sh(&mut client, "for p in /proc/[0-9]*; do cat $p/comm 2>/dev/null; done | sort -u");
    let seen: Vec<_> = ran.stdout.lines().collect();
    // The shell is known by its file's own name, where it has another.
    assert!(seen.len() <= 4 && seen.iter().any(|it| it.ends_with("sh")), "{seen:?}");
    let ran = sh(&mut client, "kill -9 1; kill -9 $PPID; echo alive");
    assert_eq!(ran.stdout, "alive\n", "{}", ran.stderr);
    // It is gone with the others, and the server is not.
    sh(&mut client, "kill -9 -- -1");
    assert_eq!(sh(&mut client, "echo still").stdout, "still\n");
}

#[test]
fn nothing_survives_a_program_wherever_it_went() {
    let workspace = Workspace::new();
    let mut client = confined(&workspace, "workspace");
    if !holds(&mut client, "view") {
        return;
    }
    let marker = Marker::new();
    // The limit by which a program is known otherwise is taken off, too.
    let leave = format!(
        "(ulimit -x 0; setsid sh -c 'trap \"\" TERM HUP INT; sleep {} & sleep {}' & ) & sleep 0.2",
        marker.0, marker.0
    );
    let begun = Instant::now();
    let ran = run(&mut client, json!({ "command": "bash", "args": ["-c", leave] }));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(begun.elapsed() < Duration::from_secs(10));
    marker.gone();
}

#[test]
fn a_program_that_takes_its_tag_off_is_gone_with_a_server_that_was_killed() {
    let workspace = Workspace::new();
    let mut client = confined(&workspace, "workspace");
    if !holds(&mut client, "view") {
        return;
    }
    let marker = Marker::new();
    let leave = format!("ulimit -x 0; setsid sleep {0} & setsid sleep {0}; wait", marker.0);
    let call = client.request(
        "tools/call",
        json!({
            "name": "exec_run", "arguments": { "command": "bash", "args": ["-c", leave] },
        }),
    );
    let crate::support::Wire::Stdio(stdio) = &mut client.wire else { unreachable!() };
    stdio.send(&call);
    wait_until("it runs", || marker.pids().len() >= 2);
    stdio.signal(Signal::KILL);
    marker.gone();
}

#[test]
fn a_program_that_multiplies_is_bounded() {
    let workspace = Workspace::new();
    let launch = Launch::over(&workspace).set("sandbox_profile", "workspace");
    let mut client = Client::stdio(launch.set("sandbox_processes", 40), MODERN);
    if !holds(&mut client, "groups") && rustix::process::geteuid().is_root() {
        return;
    }
    let script = "import os, time\nmade = 0\n\
        for _ in range(200):\n    try:\n        if os.fork() == 0: time.sleep(60)\n        made += 1\n    \
        except OSError: break\nprint(made, flush=True)";
    let ran = run(&mut client, json!({ "command": "/usr/bin/python3", "args": ["-c", script] }));
    let made: u64 = ran.stdout.trim().parse().unwrap();
    assert!((1..40).contains(&made), "{made}");
}

#[test]
fn a_program_takes_no_more_memory_than_it_may() {
    let workspace = Workspace::new();
    let launch = Launch::over(&workspace).set("sandbox_profile", "workspace");
    let mut client = Client::stdio(launch.set("sandbox_memory_bytes", 64 << 20), MODERN);
    let script = "x = bytearray(300 << 20)\nprint('had', len(x))";
    let ran = run(&mut client, json!({ "command": "/usr/bin/python3", "args": ["-c", script] }));
    assert!(ran.code != 0 && !ran.stdout.contains("had"), "{}", ran.stdout);
    assert_eq!(sh(&mut client, "echo still").stdout, "still\n");
}

#[test]
fn a_program_takes_no_more_of_the_processors_than_it_may() {
    let workspace = Workspace::new();
    let launch = Launch::over(&workspace).set("sandbox_profile", "workspace");
    let mut client = Client::stdio(launch.set("sandbox_cpu_percent", 20), MODERN);
    if !holds(&mut client, "groups") {
        return;
    }
    let ran = sh(&mut client, "timeout 2 sh -c 'while :; do :; done'; times > told; tail -1 told");
    // Of what it waited for, in user and in system time: `0m0.40s 0m0.01s`.
    let seconds = ran.stdout.split_whitespace().map(|time| {
        let (minutes, seconds) = time.trim_end_matches('s').split_once('m').unwrap();
        minutes.parse::<f64>().unwrap() * 60.0 + seconds.parse::<f64>().unwrap()
    });
    let taken: f64 = seconds.sum();
    assert!((0.05..0.8).contains(&taken), "{taken}: {}", ran.stdout);
}

#[test]
fn a_program_has_few_files_open_and_none_of_the_servers() {
    let workspace = Workspace::new();
    let mut client = confined(&workspace, "workspace");
    let ran = sh(&mut client, "for fd in /proc/self/fd/*; do readlink $fd; done; ulimit -n");
    let mut lines: Vec<_> = ran.stdout.lines().collect();
    let limit: u64 = lines.pop().unwrap().parse().unwrap();
    assert!(limit <= 4096);
    let strange = lines.iter().filter(|it| !it.starts_with("pipe:") && **it != "/dev/null");
    assert_eq!(strange.count(), 0, "{lines:?}");
}

//! Killed at any instant: nothing any program started goes on, wherever it went.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{
    Launch, Marker, Post, Stdio, Workspace, binary, call, closed, descendants, is_alive,
    structured, wait_until,
};

/// A program in the middle of a call, and another it has left in a session of its own.
struct Amid {
    workspace: Workspace,
    main: Marker,
    left: Marker,
}

impl Amid {
    fn new() -> Self {
        Self { workspace: Workspace::new(), main: Marker::new(), left: Marker::new() }
    }

    /// Arguments of `exec_run` for it.
    fn ask(&self) -> Value {
        let script = "setsid sh -c 'sleep \"$0\" &' \"$2\" >/dev/null 2>&1; exec sleep \"$1\"";
        json!({ "command": script, "shell": true, "args": [self.main.0, self.left.0] })
    }

    fn stdio(&self) -> Stdio {
        let mut stdio = bare(&self.workspace).stdio();
        stdio.send(&call(1, "exec_run", self.ask()));
        self.begun();
        stdio
    }

    /// Waits until only what was left has the one marker, and only the program the other.
    fn begun(&self) {
        wait_until("both go on", || {
            self.main.pids().len() == 1
                && self.left.pids().len() == 1
                && self.main.pids() != self.left.pids()
        });
    }

    #[track_caller]
    fn gone(&self) {
        self.main.gone();
        self.left.gone();
    }
}

/// A server that does not confine its programs: nothing but its keeper ends them when it is killed.
fn bare(workspace: &Workspace) -> Launch {
    Launch::over(workspace).set("sandbox_profile", "off")
}

/// The keepers of the server `pid`.
fn keepers(pid: u32) -> Vec<u32> {
    let mut keepers = descendants(pid);
    keepers.retain(|child| name(*child) == "toolgate-keeper" && parent(*child) == Some(pid));
    keepers
}

/// What a process calls itself; nothing once it is buried.
fn name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

#[track_caller]
fn keeper(pid: u32) -> u32 {
    let keepers = keepers(pid);
    assert_eq!(keepers.len(), 1, "{keepers:?}");
    keepers[0]
}

#[track_caller]
fn is_gone(pid: u32) {
    wait_until("it is gone", || !is_alive(pid));
}

fn kill(pid: u32) {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

#[test]
fn what_programs_left_elsewhere_is_gone_soon_after_the_server_is_killed_and_so_is_its_keeper() {
    let amid = Amid::new();
    let stdio = amid.stdio();
    let its_keeper = keeper(stdio.pid);
    stdio.signal(Signal::KILL);
    stdio.ended();
    amid.gone();
    is_gone(its_keeper);

    let served = bare(&amid.workspace).served();
    let mut connection = served.connect();
    connection.post(&Post::mcp(&call(1, "exec_run", amid.ask())));
    amid.begun();
    let its_keeper = keeper(served.pid);
    served.signal(Signal::KILL);
    served.ended();
    amid.gone();
    is_gone(its_keeper);
}

#[test]
fn nothing_is_left_at_whichever_instant_the_server_is_killed() {
    let script = "for i in 1 2 3 4 5 6; do setsid sh -c 'sleep \"$0\" &' \"$1\" & done; wait; \
                  exec sleep \"$1\"";
    for micros in (0..20_000).step_by(500) {
        let marker = Marker::new();
        let mut stdio = bare(&Workspace::new()).stdio();
        stdio.ask(&call(1, "files_read", json!({ "path": "README.md" })));
        let arguments = json!({ "command": script, "shell": true, "args": [marker.0] });
        stdio.send(&call(2, "exec_run", arguments));
        sleep(Duration::from_micros(micros));
        stdio.signal(Signal::KILL);
        stdio.ended();
        marker.gone();
    }
}

#[test]
fn a_server_ended_in_order_leaves_no_keeper() {
    let mut stdio = bare(&Workspace::new()).stdio();
    stdio.ask(&call(1, "exec_run", json!({ "command": "true" })));
    let its_keeper = keeper(stdio.pid);
    stdio.close_input();
    assert_eq!(stdio.ended().code(), Some(0));
    is_gone(its_keeper);

    let served = bare(&Workspace::new()).served();
    served.ask(&call(1, "exec_run", json!({ "command": "true" })));
    let its_keeper = keeper(served.pid);
    served.signal(Signal::TERM);
    closed(served.addr);
    assert_eq!(served.ended().code(), Some(0));
    is_gone(its_keeper);
}

#[test]
fn a_server_that_runs_no_program_has_no_keeper() {
    let mut stdio = bare(&Workspace::new()).stdio();
    stdio.ask(&call(1, "files_read", json!({ "path": "README.md" })));
    assert_eq!(keepers(stdio.pid), [0_u32; 0]);
}

#[test]
fn a_keeper_that_was_killed_is_followed_by_another_before_the_next_program() {
    let amid = Amid::new();
    let mut stdio = bare(&amid.workspace).stdio();
    stdio.ask(&call(0, "exec_run", json!({ "command": "true" })));
    let first = keeper(stdio.pid);
    kill(first);
    is_gone(first);
    stdio.send(&call(1, "exec_run", amid.ask()));
    amid.begun();
    let second = keeper(stdio.pid);
    assert!(second != first && name(first).is_empty(), "the first is not buried");
    stdio.signal(Signal::KILL);
    stdio.ended();
    amid.gone();
    is_gone(second);
}

#[test]
fn a_server_that_is_killed_does_not_take_the_programs_of_another_with_it() {
    let killed = Amid::new();
    let other = Amid::new();
    let killed_server = killed.stdio();
    let other_server = other.stdio();
    let other_keeper = keeper(other_server.pid);
    let its_keeper = keeper(killed_server.pid);
    killed_server.signal(Signal::KILL);
    killed_server.ended();
    killed.gone();
    // It has looked at all there is once it is gone.
    is_gone(its_keeper);
    other.begun();
    assert_eq!(keeper(other_server.pid), other_keeper);
}

/// A server with one below it, both in the middle of a call.
struct Nested {
    outer: Amid,
    inner: Amid,
    server: Stdio,
    /// The server below, by its pid.
    below: u32,
}

impl Nested {
    fn new() -> Self {
        let outer = Amid::new();
        let inner = Amid::new();
        outer.workspace.put("ask", format!("{}\n", call(1, "exec_run", inner.ask())));
        let mut server = outer.stdio();
        // It is not the program itself, which would die with the outer server anyway.
        let script = "(cat ask; exec sleep 300) | setsid \"$1\" stdio \"$2\" >/dev/null; :";
        let arguments = json!({
            "command": script, "shell": true, "args": [binary(), inner.workspace.root()],
            "env": { "TOOLGATE_AUDIT_TO": "off" },
        });
        server.send(&call(2, "exec_run", arguments));
        inner.begun();
        let below = descendants(server.pid).into_iter().find(|pid| name(*pid) == "toolgate");
        Self { outer, inner, server, below: below.unwrap() }
    }
}

#[test]
fn a_server_below_one_that_is_killed_is_gone_with_all_it_started() {
    let Nested { outer, inner, server, below } = Nested::new();
    let keepers = [keeper(server.pid), keeper(below)];
    server.signal(Signal::KILL);
    server.ended();
    outer.gone();
    inner.gone();
    [below, keepers[0], keepers[1]].into_iter().for_each(is_gone);
}

#[test]
fn a_server_below_another_that_is_killed_takes_only_its_own_with_it() {
    let Nested { outer, inner, mut server, below } = Nested::new();
    let its_keeper = keeper(below);
    kill(below);
    inner.gone();
    is_gone(its_keeper);
    outer.begun();
    let went = call(3, "exec_run", json!({ "command": "echo", "args": ["on"] }));
    assert_eq!(structured(&server.ask(&went))["stdout"], "on\n");
    outer.begun();
}

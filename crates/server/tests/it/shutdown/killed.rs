//! Tests that a server that is killed at any time leaves no processes of its programs.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{
    ProcessMarker, ServerLaunchOptions, StdioServerProcess, TempWorkspace, TestHttpRequest, binary,
    call, descendants, is_alive, structured, wait_until, wait_until_closed,
};

/// Program that a call is running, and another program that the first one started in a session of
/// its own.
struct InterruptedCallProcesses {
    workspace: TempWorkspace,
    main: ProcessMarker,
    left: ProcessMarker,
}

impl InterruptedCallProcesses {
    fn new() -> Self {
        Self {
            workspace: TempWorkspace::new(),
            main: ProcessMarker::new(),
            left: ProcessMarker::new(),
        }
    }

    /// Returns the arguments of `exec_run` that start both programs.
    fn arguments(&self) -> Value {
        let script = "setsid sh -c 'sleep \"$0\" &' \"$2\" >/dev/null 2>&1; exec sleep \"$1\"";
        json!({ "command": script, "shell": true, "args": [self.main.0, self.left.0] })
    }

    fn stdio(&self) -> StdioServerProcess {
        let mut stdio = launch_unconfined(&self.workspace).stdio();
        stdio.send(&call(1, "exec_run", self.arguments()));
        self.wait_running();
        stdio
    }

    /// Waits until both programs run, each with its own marker.
    fn wait_running(&self) {
        wait_until("both programs run", || {
            self.main.pids().len() == 1
                && self.left.pids().len() == 1
                && self.main.pids() != self.left.pids()
        });
    }

    #[track_caller]
    fn wait_until_gone(&self) {
        self.main.wait_until_gone();
        self.left.wait_until_gone();
    }
}

/// Returns start options of a server without a sandbox. If this server is killed, only its helper
/// process `toolgate-keeper` ends the programs.
fn launch_unconfined(workspace: &TempWorkspace) -> ServerLaunchOptions {
    ServerLaunchOptions::over(workspace).set("sandbox_profile", "off")
}

/// Returns the process ids of the `toolgate-keeper` helpers of the server `pid`.
fn keepers(pid: u32) -> Vec<u32> {
    let mut keepers = descendants(pid);
    keepers.retain(|child| name(*child) == "toolgate-keeper" && parent(*child) == Some(pid));
    keepers
}

/// Returns the name of a process, or an empty text after it was reaped.
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
    wait_until("the process has ended", || !is_alive(pid));
}

fn kill(pid: u32) {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

#[test]
fn after_the_server_is_killed_leftover_processes_and_its_keeper_end() {
    let running = InterruptedCallProcesses::new();
    let stdio = running.stdio();
    let its_keeper = keeper(stdio.pid);
    stdio.signal(Signal::KILL);
    stdio.wait_for_exit();
    running.wait_until_gone();
    is_gone(its_keeper);

    let served = launch_unconfined(&running.workspace).served();
    let mut connection = served.connect();
    connection.post(&TestHttpRequest::mcp(&call(1, "exec_run", running.arguments())));
    running.wait_running();
    let its_keeper = keeper(served.pid);
    served.signal(Signal::KILL);
    served.wait_for_exit();
    running.wait_until_gone();
    is_gone(its_keeper);
}

#[test]
fn no_process_is_left_whenever_the_server_is_killed() {
    let script = "for i in 1 2 3 4 5 6; do setsid sh -c 'sleep \"$0\" &' \"$1\" & done; wait; \
                  exec sleep \"$1\"";
    for micros in (0..20_000).step_by(500) {
        let marker = ProcessMarker::new();
        let mut stdio = launch_unconfined(&TempWorkspace::new()).stdio();
        stdio.ask(&call(1, "files_read", json!({ "path": "README.md" })));
        let arguments = json!({ "command": script, "shell": true, "args": [marker.0] });
        stdio.send(&call(2, "exec_run", arguments));
        sleep(Duration::from_micros(micros));
        stdio.signal(Signal::KILL);
        stdio.wait_for_exit();
        marker.wait_until_gone();
    }
}

#[test]
fn a_server_that_ends_in_order_leaves_no_keeper() {
    let mut stdio = launch_unconfined(&TempWorkspace::new()).stdio();
    stdio.ask(&call(1, "exec_run", json!({ "command": "true" })));
    let its_keeper = keeper(stdio.pid);
    stdio.close_input();
    assert_eq!(stdio.wait_for_exit().code(), Some(0));
    is_gone(its_keeper);

    let served = launch_unconfined(&TempWorkspace::new()).served();
    served.ask(&call(1, "exec_run", json!({ "command": "true" })));
    let its_keeper = keeper(served.pid);
    served.signal(Signal::TERM);
    wait_until_closed(served.addr);
    assert_eq!(served.wait_for_exit().code(), Some(0));
    is_gone(its_keeper);
}

#[test]
fn a_server_that_runs_no_program_has_no_keeper() {
    let mut stdio = launch_unconfined(&TempWorkspace::new()).stdio();
    stdio.ask(&call(1, "files_read", json!({ "path": "README.md" })));
    assert_eq!(keepers(stdio.pid), [0_u32; 0]);
}

#[test]
fn a_killed_keeper_is_replaced_before_the_next_program() {
    let running = InterruptedCallProcesses::new();
    let mut stdio = launch_unconfined(&running.workspace).stdio();
    stdio.ask(&call(0, "exec_run", json!({ "command": "true" })));
    let first = keeper(stdio.pid);
    kill(first);
    is_gone(first);
    stdio.send(&call(1, "exec_run", running.arguments()));
    running.wait_running();
    let second = keeper(stdio.pid);
    assert!(second != first && name(first).is_empty(), "the first keeper was not reaped");
    stdio.signal(Signal::KILL);
    stdio.wait_for_exit();
    running.wait_until_gone();
    is_gone(second);
}

#[test]
fn killing_a_server_does_not_end_the_programs_of_another() {
    let killed = InterruptedCallProcesses::new();
    let other = InterruptedCallProcesses::new();
    let killed_server = killed.stdio();
    let other_server = other.stdio();
    let other_keeper = keeper(other_server.pid);
    let its_keeper = keeper(killed_server.pid);
    killed_server.signal(Signal::KILL);
    killed_server.wait_for_exit();
    killed.wait_until_gone();
    // The keeper examines all processes before it ends.
    is_gone(its_keeper);
    other.wait_running();
    assert_eq!(keeper(other_server.pid), other_keeper);
}

/// Server that runs another server as its program, both with a call in progress.
struct NestedServers {
    outer: InterruptedCallProcesses,
    inner: InterruptedCallProcesses,
    server: StdioServerProcess,
    /// Process id of the inner server.
    inner_pid: u32,
}

impl NestedServers {
    fn new() -> Self {
        let outer = InterruptedCallProcesses::new();
        let inner = InterruptedCallProcesses::new();
        outer.workspace.put("ask", format!("{}\n", call(1, "exec_run", inner.arguments())));
        let mut server = outer.stdio();
        // The inner server is not the program itself, which would end with the outer server anyway.
        let script = "(cat ask; exec sleep 300) | setsid \"$1\" stdio \"$2\" >/dev/null; :";
        let arguments = json!({
            "command": script, "shell": true, "args": [binary(), inner.workspace.root()],
            "env": { "TOOLGATE_AUDIT_TO": "off" },
        });
        server.send(&call(2, "exec_run", arguments));
        inner.wait_running();
        let inner_pid = descendants(server.pid).into_iter().find(|pid| name(*pid) == "toolgate");
        Self { outer, inner, server, inner_pid: inner_pid.unwrap() }
    }
}

#[test]
fn killing_the_outer_server_ends_the_inner_server_and_its_programs() {
    let NestedServers { outer, inner, server, inner_pid } = NestedServers::new();
    let keepers = [keeper(server.pid), keeper(inner_pid)];
    server.signal(Signal::KILL);
    server.wait_for_exit();
    outer.wait_until_gone();
    inner.wait_until_gone();
    [inner_pid, keepers[0], keepers[1]].into_iter().for_each(is_gone);
}

#[test]
fn killing_the_inner_server_ends_only_its_own_programs() {
    let NestedServers { outer, inner, mut server, inner_pid } = NestedServers::new();
    let its_keeper = keeper(inner_pid);
    kill(inner_pid);
    inner.wait_until_gone();
    is_gone(its_keeper);
    outer.wait_running();
    let echo = call(3, "exec_run", json!({ "command": "echo", "args": ["on"] }));
    assert_eq!(structured(&server.ask(&echo))["stdout"], "on\n");
    outer.wait_running();
}

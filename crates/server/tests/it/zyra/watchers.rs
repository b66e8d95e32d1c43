//! Many who watch one job, and such as watch without reading.

use std::time::Duration;

use serde_json::json;

use crate::support::{
    Ended, Launch, Marker, Workspace, at_once, go, is_alive, peak_memory_kib, wait_long_for,
    wait_until,
};

/// More bytes than the kernel's buffers and ours hold together.
const MUCH: usize = 24 << 20;

#[test]
fn two_hundred_who_watch_one_job_all_see_its_end() {
    let workspace = Workspace::with_commands();
    let served = Launch::over(&workspace).served();
    let id = served.begin("tell-steps", json!({ "name": "a" }));
    let sockets: Vec<_> = (0..200).map(|_| served.socket(&format!("/ws/jobs/{id}"))).collect();
    go(&workspace);
    for mut socket in sockets {
        let (told, ended) = socket.rest();
        assert_eq!(ended, Ended::Closed(1000));
        assert_eq!(told[..2], [json!({ "stderr": "listening" }), json!({ "progress": 0.0 })]);
        let end = told.last().unwrap();
        assert_eq!(end["status"], "succeeded", "{told:?}");
        assert_eq!(end["stdout"], "began\nlast\n");
        assert_eq!(told.iter().filter(|told| told["progress"] == 0.75).count(), 1);
    }
}

#[test]
fn who_watches_without_reading_is_dropped_and_the_job_goes_on_for_all_others() {
    let workspace = Workspace::new();
    let launch = Launch::over(&workspace).set("server_write_time_ms", 300);
    let served =
        launch.set("limits_message_bytes", 65_536).set("jobs_output_bytes", 2 * MUCH).served();
    let marker = Marker::new();
    let wait = "touch begun; until [ -e go ]; do sleep 0.02; done";
    let script = format!("{wait}; head -c $2 /dev/zero | tr '\\0' x; exec sleep $1");
    let args = [marker.0.clone(), MUCH.to_string()];
    let arguments = json!({ "command": script, "shell": true, "args": args });
    let id = served.begin("exec-run", arguments);
    let mut slow = served.socket(&format!("/ws/jobs/{id}?stream=stdout"));
    let mut brisk = served.socket(&format!("/ws/jobs/{id}?stream=stdout"));
    let sockets = || {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", served.pid)).unwrap();
        let targets = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
    };
    // Programs are started by a socket, too.
    wait_until("it runs", || workspace.path("begun").exists());
    let with_slow = sockets();
    go(&workspace);
    let program = marker.started();
    let mut heard = 0;
    while heard < MUCH {
        heard += brisk.receive()["stdout"].as_str().unwrap_or_default().len();
    }
    assert!(is_alive(program));
    wait_until("the slow one is dropped", || sockets() < with_slow);
    let (told, ended) = slow.rest();
    let told: usize = told.iter().map(|told| told["stdout"].as_str().unwrap().len()).sum();
    assert!(told < MUCH, "it was told all");
    assert_ne!(ended, Ended::Closed(1000));
    assert!(is_alive(program));
    assert_eq!(served.delete(&format!("/jobs/{id}")).status, 200);
    assert_eq!(brisk.rest().1, Ended::Closed(1000));
}

#[test]
fn who_watches_by_events_without_reading_costs_no_memory_and_the_job_goes_on() {
    let workspace = Workspace::with_commands();
    let served = Launch::over(&workspace).served();
    let id = served.begin("tell-steps", json!({ "name": "a" }));
    let before = peak_memory_kib(served.pid);
    let target = format!("/v1/mcp/progress/{id}?interval_ms=50&max_ms=3600000");
    let idle: Vec<_> = (0..50)
        .map(|_| {
            let mut connection = served.connect();
            connection.post(&crate::support::Post::bare("GET", &target));
            connection
        })
        .collect();
    at_once(0..4, |_| {
        let told = served.get(&format!("/v1/mcp/progress/{id}?max_ms=500")).events();
        assert!(told.len() >= 2, "{told:?}");
    });
    go(&workspace);
    wait_long_for(Duration::from_secs(15), "it ends", || {
        (served.job(&id)["status"] == "succeeded").then_some(())
    });
    let grown = peak_memory_kib(served.pid).saturating_sub(before);
    assert!(grown < 16 << 10, "{grown} KiB");
    drop(idle);
}

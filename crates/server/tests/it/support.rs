//! Starts toolgate in a temporary folder and sends requests to it, with a time limit on every wait.

mod workspace;
mod launch;
mod stdio;
mod wire;
mod socket;
mod message;
pub(crate) mod schemas;
mod client;
mod converse;
mod commands;
mod zyra;
mod keys;
mod judges;
mod processes;

use std::path::{Path, PathBuf};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

pub(crate) use client::{
    TestClientTransport, TestMcpClient, over_both, over_both_tuned, over_both_with,
};
pub(crate) use commands::{COMMANDS, let_continue, started_commands, wait_until_began};
pub(crate) use converse::converse;
pub(crate) use judges::run_judge;
pub(crate) use keys::keys_of;
pub(crate) use launch::{ServerLaunchOptions, TestServerProcess, binary, path, trust_config};
pub(crate) use message::{
    MODERN, NOTHING, REVISIONS, call, initialize, legacy, modern, notification, refusal, request,
    sleeps, structured, text, waits_for_go,
};
pub(crate) use processes::{
    ProcessMarker, descendants, held_memory_kib, is_alive, peak_memory_kib,
};
pub(crate) use socket::{TestWebSocket, WebSocketEnd};
pub(crate) use stdio::{StdioServerProcess, lines_of};
pub(crate) use wire::{
    HttpResponseHead, HttpServerProcess, TestHttpConnection, TestHttpRequest, TestHttpResponse,
    wait_until_closed,
};
pub(crate) use workspace::TempWorkspace;
pub(crate) use zyra::{check_command, job_params, zyra};

/// Time limit of waits for quick operations. It is long because other tests run at the same time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the root of this repository.
pub(crate) fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Calls `look` until it returns a value, and returns that value. Panics with `what` after
/// [`PATIENCE`].
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    wait_long_for(PATIENCE, what, look)
}

/// Calls `look` until it returns a value, and returns that value. Panics with `what` after
/// `patience`.
#[track_caller]
pub(crate) fn wait_long_for<T>(
    patience: Duration,
    what: &str,
    mut look: impl FnMut() -> Option<T>,
) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < patience, "timed out after {patience:?}: {what}");
        sleep(Duration::from_millis(3));
    }
}

/// Runs `check` for all `rows` at the same time, each on its own thread.
pub(crate) fn at_once<T: Send>(rows: impl IntoIterator<Item = T>, check: impl Fn(T) + Sync) {
    let check = &check;
    scope(|scope| {
        for row in rows {
            scope.spawn(move || check(row));
        }
    });
}

/// Waits until `holds` returns true. Panics with `what` after [`PATIENCE`].
#[track_caller]
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    wait_for(what, || holds().then_some(()));
}

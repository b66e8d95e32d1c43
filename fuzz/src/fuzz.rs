//! libFuzzer's loop around one target, which the variable `FUZZ_TARGET` names; `?` lists them.
//!
//! What a target is and what holds of it is beside what it fuzzes, in each crate's `fuzzing`. Here
//! is what holds of all: none takes long, and none takes much memory.
#![no_main]

mod bounds;
#[path = "../../crates/server/src/cli/remote/events.rs"]
#[allow(dead_code, unused_imports, reason = "the command line uses the rest, and its tests")]
mod events;

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use toolgate::fuzzing as server;
use toolgate_dialects::fuzzing as dialects;
use toolgate_host::fuzzing as host;
use toolgate_toolsets::fuzzing as toolsets;
use toolgate_transports::fuzzing as transports;
use toolgate_upstream::fuzzing as upstream;

type Target = fn(&[u8]);

const TARGETS: &[(&str, Target)] = &[
    ("frames_mcp", dialects::frames_mcp),
    ("frames_zyra", dialects::frames_zyra),
    ("frames_mira", dialects::frames_mira),
    ("frames_synesthetic", dialects::frames_synesthetic),
    ("frames_workstation", dialects::frames_workstation),
    ("frames_envelope", dialects::frames_envelope),
    ("cursors", dialects::cursors),
    ("http_heads", transports::http_heads),
    ("lines", transports::lines),
    ("server_sent_events", server_sent_events),
    ("request_state", host::request_state),
    ("policy_when", host::policy_when),
    ("policy_paths", host::policy_paths),
    ("policy_patterns", host::policy_patterns),
    ("audit_log", host::audit_log),
    ("edits", toolsets::edits),
    ("json_patch", toolsets::json_patch),
    ("file_cursors", toolsets::file_cursors),
    ("uris", toolsets::uris),
    ("paths", toolsets::paths),
    ("protected", toolsets::protected),
    ("packs", toolsets::packs),
    ("front_matter", toolsets::front_matter),
    ("plans", toolsets::plans),
    ("settings", server::settings),
    ("key_file", server::key_file),
    ("tokens", server::tokens),
    ("key_sets", server::key_sets),
    ("event_ids", server::event_ids),
    ("upstream_messages", upstream::upstream_messages),
    ("upstream_events", upstream::upstream_events),
    ("challenges", upstream::challenges),
    ("lock", upstream::lock),
    ("pins", upstream::pins),
];

static TARGET: OnceLock<Target> = OnceLock::new();

fuzz_target!(
    init: {
        let wanted = std::env::var("FUZZ_TARGET").unwrap_or_default();
        if wanted == "?" {
            TARGETS.iter().for_each(|(name, _)| println!("{name}"));
            std::process::exit(0);
        }
        let Some((_, target)) = TARGETS.iter().find(|(name, _)| *name == wanted) else {
            eprintln!("no target is named `{wanted}`; FUZZ_TARGET=? lists them");
            std::process::exit(2);
        };
        TARGET.get_or_init(|| *target);
    },
    |bytes: &[u8]| {
        let target = TARGET.get().expect("it was chosen before");
        bounds::within(|| target(bytes));
    }
);

/// Server-sent events come out alike however their bytes are cut.
fn server_sent_events(bytes: &[u8]) {
    let read = |size: usize| {
        let mut events = events::Events::default();
        bytes.chunks(size).flat_map(|piece| events.take(piece)).collect::<Vec<_>>()
    };
    let whole = read(bytes.len().max(1));
    for size in [1, 3] {
        assert_eq!(read(size), whole, "by {size}");
    }
}

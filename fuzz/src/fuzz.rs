//! libFuzzer's loop around one target, which the variable `FUZZ_TARGET` names; `?` lists them.
//!
//! What a target is and what holds of it is beside what it fuzzes, in each crate's `fuzzing`. Here
//! is what holds of all: none takes long, and none takes much memory.
#![no_main]

mod bounds;
#[path = "../../crates/server/src/cli/remote/events.rs"]
#[allow(
    dead_code,
    unexpected_cfgs,
    unused_imports,
    reason = "the command line uses the rest, and its tests"
)]
mod events;

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

type Target = fn(&[u8]);

/// The targets of each crate, and the one of the command line.
const TARGETS: [&[(&str, Target)]; 8] = [
    toolgate::fuzzing::TARGETS,
    toolgate_dialects::fuzzing::TARGETS,
    toolgate_host::fuzzing::TARGETS,
    toolgate_toolsets::fuzzing::TARGETS,
    toolgate_world::fuzzing::TARGETS,
    toolgate_transports::fuzzing::TARGETS,
    toolgate_upstream::fuzzing::TARGETS,
    &[("server_sent_events", events::check_any_chunking)],
];

fn targets() -> impl Iterator<Item = (&'static str, Target)> {
    TARGETS.into_iter().flatten().copied()
}

static TARGET: OnceLock<Target> = OnceLock::new();

fuzz_target!(
    init: {
        let wanted = std::env::var("FUZZ_TARGET").unwrap_or_default();
        if wanted == "?" {
            targets().for_each(|(name, _)| println!("{name}"));
            std::process::exit(0);
        }
        let Some((_, target)) = targets().find(|(name, _)| *name == wanted) else {
            eprintln!("unknown target `{wanted}`; FUZZ_TARGET=? lists the targets");
            std::process::exit(2);
        };
        TARGET.get_or_init(|| target);
    },
    |bytes: &[u8]| {
        let target = TARGET.get().expect("a target was selected");
        bounds::within(|| target(bytes));
    }
);

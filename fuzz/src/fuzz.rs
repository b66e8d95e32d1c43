//! Runs libFuzzer on one target, which the variable `FUZZ_TARGET` names. The value `?` lists all
//! targets.
//!
//! The module `fuzzing` of each crate defines its targets and their checks. This program adds the
//! limits of time and memory that apply to all targets.
#![no_main]

mod bounds;

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

/// Fuzz target: a function that takes one input and panics if it finds a bug.
type FuzzTargetFn = fn(&[u8]);

/// Fuzz targets of each crate: name and function.
const TARGETS: [&[(&str, FuzzTargetFn)]; 8] = [
    toolgate_service::fuzzing::TARGETS,
    toolgate_chunks::fuzzing::TARGETS,
    toolgate_dialects::fuzzing::TARGETS,
    toolgate_host::fuzzing::TARGETS,
    toolgate_toolsets::fuzzing::TARGETS,
    toolgate_world::fuzzing::TARGETS,
    toolgate_transports::fuzzing::TARGETS,
    toolgate_upstream::fuzzing::TARGETS,
];

/// Returns the name and function of every fuzz target.
fn targets() -> impl Iterator<Item = (&'static str, FuzzTargetFn)> {
    TARGETS.into_iter().flatten().copied()
}

static TARGET: OnceLock<FuzzTargetFn> = OnceLock::new();

fuzz_target!(
    init: {
        let target_name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        if target_name == "?" {
            targets().for_each(|(name, _)| println!("{name}"));
            std::process::exit(0);
        }
        let Some((_, target)) = targets().find(|(name, _)| *name == target_name) else {
            eprintln!("unknown target `{target_name}`; FUZZ_TARGET=? lists the targets");
            std::process::exit(2);
        };
        TARGET.get_or_init(|| target);
    },
    |bytes: &[u8]| {
        let target = TARGET.get().expect("a target was selected");
        bounds::run_within_limits(|| target(bytes));
    }
);

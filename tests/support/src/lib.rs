//! Code that the attack and chaos programs share: paths of the checkout, of its tools and of the
//! built server, and random numbers.
#![allow(clippy::disallowed_methods, reason = "test programs, which own the folders they run in")]

mod rng;

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

pub use rng::{SeededRng, random_seed};

/// Returns the root folder of the checkout that contains this crate.
pub fn checkout() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// Returns the folder into which `cargo xtask setup` installs programs.
pub fn tools() -> PathBuf {
    checkout().join(".tools")
}

/// Returns the path of the `toolgate` in the folder of `program`, because Cargo builds both there.
///
/// # Errors
///
/// If the file does not exist.
pub fn sibling_toolgate(program: &Path) -> anyhow::Result<PathBuf> {
    let toolgate = program.with_file_name("toolgate");
    ensure!(
        toolgate.is_file(),
        "{} is missing; `cargo build --workspace --profile test --bins` builds it",
        toolgate.display()
    );
    Ok(toolgate)
}

/// Copies the running program to the file `to`, even if a build has replaced its file since the
/// start.
///
/// # Errors
///
/// If `to` cannot be written.
pub fn copy_current_exe(to: &Path) -> anyhow::Result<()> {
    std::fs::copy("/proc/self/exe", to).with_context(|| to.display().to_string())?;
    Ok(())
}

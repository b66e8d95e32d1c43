//! Inputs with which fuzzing starts: those kept with the code, and those found by earlier runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::shell::checkout;

/// Largest total size of the kept inputs of one target, in bytes.
const BYTES_MAX: u64 = 200 << 10;

/// Returns the folder of the inputs of `target` that are kept in the repository.
pub(super) fn kept_folder(target: &str) -> PathBuf {
    checkout().join("fuzz/corpus").join(target)
}

/// Returns the folder of the inputs of `target` that earlier runs found. Git ignores that folder.
pub(super) fn new_folder(target: &str) -> PathBuf {
    super::home().join("corpus").join(target)
}

/// Replaces the kept inputs of `target` by the fewest and shortest that reach the same code as all
/// known inputs, at most [`BYTES_MAX`] bytes together.
pub(super) fn merge(program: &Path, target: &str) -> anyhow::Result<()> {
    let kept_inputs = kept_folder(target);
    let new_inputs = new_folder(target);
    let merged = super::home().join("merged").join(target);
    if merged.exists() {
        fs::remove_dir_all(&merged)?;
    }
    fs::create_dir_all(&merged)?;
    let mut command = Command::new(program);
    command.env("FUZZ_TARGET", target).args(["-merge=1", "-timeout=20", "-max_len=4096"]);
    command.args([&merged, &kept_inputs, &new_inputs]).stdin(Stdio::null());
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    if !status.success() {
        bail!("the corpus of `{target}` could not be merged: {status}");
    }
    let mut inputs = Vec::new();
    for entry in fs::read_dir(&merged)? {
        let entry = entry?;
        inputs.push((entry.metadata()?.len(), entry.path()));
    }
    inputs.sort();
    fs::remove_dir_all(&kept_inputs)?;
    fs::create_dir_all(&kept_inputs)?;
    let mut bytes = 0;
    let mut count = 0;
    for (length, input) in inputs.iter().take_while(|(length, _)| *length <= BYTES_MAX) {
        bytes += length;
        if bytes > BYTES_MAX {
            break;
        }
        let name = input.file_name().context("an input has a name")?;
        fs::copy(input, kept_inputs.join(name))?;
        count += 1;
    }
    eprintln!("{target:20} keeps {count} of {} inputs", inputs.len());
    Ok(())
}

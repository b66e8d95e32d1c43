//! The inputs that fuzzing begins with: those that are kept with the code, and those found since.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::shell::checkout;

/// How much is kept of one target's.
const BYTES_MAX: u64 = 200 << 10;

/// What is kept with the code.
pub(super) fn kept(target: &str) -> PathBuf {
    checkout().join("fuzz/corpus").join(target)
}

/// What was found since, which no test puts among the code.
pub(super) fn fresh(target: &str) -> PathBuf {
    super::home().join("corpus").join(target)
}

/// Keeps the fewest and shortest inputs that lead everywhere where all lead that are there.
pub(super) fn take_in(program: &Path, target: &str) -> anyhow::Result<()> {
    let kept = kept(target);
    let fresh = fresh(target);
    let merged = super::home().join("merged").join(target);
    if merged.exists() {
        fs::remove_dir_all(&merged)?;
    }
    fs::create_dir_all(&merged)?;
    let mut merge = Command::new(program);
    merge.env("FUZZ_TARGET", target).args(["-merge=1", "-timeout=20", "-max_len=4096"]);
    merge.args([&merged, &kept, &fresh]).stdin(Stdio::null());
    let status = merge.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    if !status.success() {
        bail!("the corpus of `{target}` could not be merged: {status}");
    }
    let mut inputs = Vec::new();
    for entry in fs::read_dir(&merged)? {
        let entry = entry?;
        inputs.push((entry.metadata()?.len(), entry.path()));
    }
    inputs.sort();
    fs::remove_dir_all(&kept)?;
    fs::create_dir_all(&kept)?;
    let mut bytes = 0;
    let mut count = 0;
    for (length, input) in inputs.iter().take_while(|(length, _)| *length <= BYTES_MAX) {
        bytes += length;
        if bytes > BYTES_MAX {
            break;
        }
        let name = input.file_name().context("an input has a name")?;
        fs::copy(input, kept.join(name))?;
        count += 1;
    }
    eprintln!("{target:20} keeps {count} of {} inputs", inputs.len());
    Ok(())
}

//! Builds what is given out: the compiler is told which way calls go, as they went when the
//! benchmark made them of a build that counts (profile-guided optimisation), and what it made is
//! laid out by what runs after what ([`layout`]).
//!
//! A call runs through much code, most of it once. What lies beside what, and which branch comes
//! first, is a good part of its time, and nothing in the code can say it.

mod layout;

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::setup;
use crate::shell::{cargo, checkout, host, run, run_with};

/// The programs of this project that are measured.
const PROGRAMS: [&str; 2] = ["toolgate", "example-echo"];
/// What is counted: what an agent does all day.
const CALLS: [&str; 9] =
    ["--quick", "--alone", "stdio", "web", "files", "gate", "gateway", "jobs", "search"];

/// What counts is not optimised across crates, which would take a quarter of an hour. It cannot be
/// said in the profile: functions are known by names that depend on that.
const APART: [&str; 2] = ["-Clto=no", "-Clinker-plugin-lto=no"];

/// Builds the programs, and says where they are.
pub(crate) fn build() -> anyhow::Result<PathBuf> {
    let profdata = setup::profdata()?;
    let guided = checkout().join("target/guided");
    let counts = guided.join("counts");
    let counting = guided.join("counting");
    let generate = format!("-Cprofile-generate={}", counts.display());
    compile(&[&[&*generate], &APART[..]].concat(), &counting)?;
    let profile = guided.join(format!("{:016x}.profdata", of_what(&counting)?));
    // The same programs would count the same.
    if !profile.exists() {
        count(&counting, &counts)?;
        let new = guided.join("new.profdata").display().to_string();
        run(&profdata, &["merge", "--sparse", "-o", &new, &counts.display().to_string()])?;
        fs::rename(new, &profile)?;
    }
    let linked = guided.join("linked");
    let by_counts = format!("-Cprofile-use={}", profile.display());
    compile(&[&*by_counts, layout::MOVABLE], &linked)?;
    let released = checkout().join("target/released");
    layout::lay_out(&linked, &released, &guided.join("layout"))?;
    Ok(released)
}

/// Builds the release with `flags`, and copies the programs to `folder`.
fn compile(flags: &[&str], folder: &Path) -> anyhow::Result<()> {
    let host = host()?;
    let mut words = vec!["build", "--release", "--locked"];
    // With a target, the flags are not for what runs while it is built.
    words.extend(["--target", &*host, "--target-dir", "target/guided"]);
    words.extend(PROGRAMS.iter().flat_map(|program| ["--package", program]));
    // Which may have spaces in them.
    run_with(&cargo(), &words, &[("CARGO_ENCODED_RUSTFLAGS", &flags.join("\x1f"))])?;
    copy(&checkout().join("target/guided").join(&host).join("release"), &PROGRAMS, folder)
}

/// Copies `programs`, of which some may run, from one folder to another.
pub(crate) fn copy(from: &Path, programs: &[&str], to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    for program in programs {
        let new = to.join(format!("{program}.new"));
        fs::copy(from.join(program), &new).with_context(|| new.display().to_string())?;
        fs::rename(&new, to.join(program))?;
    }
    Ok(())
}

/// What stands for the programs in `folder`.
fn of_what(folder: &Path) -> anyhow::Result<u64> {
    let mut of = DefaultHasher::new();
    for program in PROGRAMS {
        let path = folder.join(program);
        fs::read(&path).with_context(|| path.display().to_string())?.hash(&mut of);
    }
    Ok(of.finish())
}

/// Has the benchmark call the programs in `counting`, which write what they count to `counts`.
fn count(counting: &Path, counts: &Path) -> anyhow::Result<()> {
    emptied(counts)?;
    let each = counts.join("%m.profraw").display().to_string();
    call(counting, &CALLS, &[("LLVM_PROFILE_FILE", &each)])
}

/// Has the benchmark make `calls` of the programs in `folder`, which count.
fn call(folder: &Path, calls: &[&str], env: &[(&str, &str)]) -> anyhow::Result<()> {
    setup::ripgrep()?;
    run(&cargo(), &["build", "--release", "--locked", "--package", "bench"])?;
    copy(&checkout().join("target/release"), &["bench", "floor"], folder)?;
    let bench = folder.join("bench").display().to_string();
    // Confined, a server could not write what it counted.
    run_with(&bench, calls, &[env, &[("TOOLGATE_SERVER_CONFINED", "false")]].concat())
}

/// `folder` with nothing in it.
fn emptied(folder: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())
}

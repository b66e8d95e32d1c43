//! Builds toolgate, and packs it in all formats in which people install it.

use std::path::{Path, PathBuf, absolute};

use anyhow::{Context, bail};

use crate::setup;
use crate::shell::{cargo, checkout, output, run, run_with, target_folder};

/// Oldest glibc with which the shipped executable runs: that of Debian 11 and Ubuntu 20.04.
const GLIBC: &str = "2.31";

/// Arguments of Cargo that run the program that packs. The test profile optimizes its compression.
const PACKER: [&str; 7] =
    ["run", "--locked", "--profile", "test", "--package", "toolgate-dist", "--"];

/// Platform of this program, which is packed by default.
pub(crate) const HOST: &str = if cfg!(target_arch = "aarch64") {
    "aarch64-unknown-linux-gnu"
} else {
    "x86_64-unknown-linux-gnu"
};

/// Command-line options of `cargo xtask dist`.
struct DistOptions {
    /// True to pack a quick build for tests. It runs only on systems like this one.
    is_dev: bool,
    target: String,
    /// Folder for the packages. By default, a folder in `target`, which is emptied first.
    out: Option<PathBuf>,
    /// Path of an existing executable to pack, instead of a new build.
    binary: Option<PathBuf>,
    /// True to write only the index of a folder of packages.
    is_index: bool,
    /// Arguments that are passed on to the program that packs.
    others: Vec<String>,
}

/// Builds the executable and writes its packages. `words` are the command-line arguments.
pub(crate) fn from_words(words: &[String]) -> anyhow::Result<()> {
    let options = DistOptions::parse(words)?;
    let default_out = target_folder().join("packages").join(&options.target);
    let out = options.out.as_ref().unwrap_or(&default_out).display().to_string();
    if options.is_index {
        let index = [&PACKER[..], &["index", "--out", &out]].concat();
        return run(&cargo(), &[index, options.others()].concat());
    }
    let binary = match &options.binary {
        Some(binary) => binary.clone(),
        None if options.is_dev => build_dev()?,
        None => build_shipped(&options.target)?,
    };
    let binary = binary.display().to_string();
    // A binary for another processor cannot print the completions here.
    let host_binary = match options.target == HOST {
        true => binary.clone(),
        false => build_dev()?.display().to_string(),
    };
    let epoch = commit_time()?;
    if options.out.is_none() && default_out.exists() {
        std::fs::remove_dir_all(&default_out)?;
    }
    let mut args = [&PACKER[..], &["pack", "--binary", &binary]].concat();
    args.extend(["--host-binary", &host_binary, "--target", &options.target, "--out", &out]);
    match options.is_dev {
        true => args.push("--fast"),
        false => args.extend(["--glibc-max", GLIBC]),
    }
    args.extend(options.others());
    run_with(&cargo(), &args, &[("SOURCE_DATE_EPOCH", &epoch)])?;
    eprintln!("the packages are in {out}");
    Ok(())
}

impl DistOptions {
    fn parse(words: &[String]) -> anyhow::Result<Self> {
        let mut options = Self {
            is_dev: false,
            target: HOST.to_owned(),
            out: None,
            binary: None,
            is_index: false,
            others: Vec::new(),
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("{word} needs a value"));
            match word.as_str() {
                "--dev" => options.is_dev = true,
                "--index" => options.is_index = true,
                "--target" => options.target = value()?.clone(),
                "--out" => options.out = Some(absolute(value()?)?),
                "--bin" => options.binary = Some(absolute(value()?)?),
                "--repository" | "--sysroot" | "--only" => {
                    let value = value()?.clone();
                    options.others.extend([word.clone(), value]);
                }
                _ => bail!(
                    "unknown option `{word}`; use --dev, --target, --out, --bin, --only, --sysroot, \
                     --repository or --index"
                ),
            }
        }
        Ok(options)
    }

    fn others(&self) -> Vec<&str> {
        self.others.iter().map(String::as_str).collect()
    }
}

/// Builds toolgate quickly for this machine, and returns the path of the executable.
fn build_dev() -> anyhow::Result<PathBuf> {
    run(&cargo(), &["build", "--locked", "--package", "toolgate", "--bin", "toolgate"])?;
    Ok(target_folder().join("debug/toolgate"))
}

/// Builds the toolgate that is shipped for the platform `target`, linked by zig for an old glibc.
/// Appends the programs for sandbox helpers and for parsing. Returns the path of the executable.
pub(crate) fn build_shipped(target: &str) -> anyhow::Result<PathBuf> {
    eprintln!("building toolgate for {target} with glibc {GLIBC} takes about half an hour");
    let zig = setup::zig()?;
    let cargo_zigbuild = zig.join("bin/cargo-zigbuild").display().to_string();
    let zig = zig.join("ziglang/zig").display().to_string();
    // Paths of this machine do not get into the binary.
    let maps = [(checkout(), "/toolgate"), (cargo_home()?, "/cargo"), (target_folder(), "/target")];
    let map = |flag: &str, separator: &str| {
        let flags = maps.iter().map(|(from, to)| format!("{flag}={}={to}", from.display()));
        flags.collect::<Vec<_>>().join(separator)
    };
    let rust_flags = map("--remap-path-prefix", "\u{1f}");
    let c_flags = map("-ffile-prefix-map", " ");
    let epoch = commit_time()?;
    let env = [
        ("CARGO_ZIGBUILD_ZIG_PATH", zig.as_str()),
        ("CARGO_ENCODED_RUSTFLAGS", rust_flags.as_str()),
        ("CFLAGS", c_flags.as_str()),
        ("SOURCE_DATE_EPOCH", epoch.as_str()),
    ];
    let platform = format!("{target}.{GLIBC}");
    let build = ["zigbuild", "--locked", "--profile", "dist", "--target", &platform];
    let server = ["--package", "toolgate", "--no-default-features"];
    let server = [&server[..], &["--bin", "toolgate", "--bin", "toolgate-sandbox"]].concat();
    // `--no-default-features` applies to all packages of a command, so the parser with its grammars
    // has a command of its own.
    for programs in [&server[..], &["--package", "toolgate-parser"]] {
        run_with(&cargo_zigbuild, &[&build[..], programs].concat(), &env)?;
    }
    append_programs(&target_folder().join(target).join("dist"), &[])
}

/// Appends `toolgate-parser` and `toolgate-sandbox` to a copy of `toolgate`, all from the folder
/// `built`. Returns the path of the copy. `options` are additional arguments of the program that
/// appends them.
fn append_programs(built: &Path, options: &[&str]) -> anyhow::Result<PathBuf> {
    let folder = built.join("packed");
    std::fs::create_dir_all(&folder)?;
    let packed = folder.join("toolgate");
    let file = |name: &str| built.join(name).display().to_string();
    let [server, sandbox, parser] = ["toolgate", "toolgate-sandbox", "toolgate-parser"].map(file);
    let files = ["--server", &server, "--sandbox", &sandbox, "--parser", &parser];
    let out = packed.display().to_string();
    run(&cargo(), &[&PACKER[..], &["append"], &files, &["--out", &out], options].concat())?;
    Ok(packed)
}

/// Returns the time of the current commit in seconds since 1970, as text.
fn commit_time() -> anyhow::Result<String> {
    match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(epoch) => Ok(epoch),
        Err(_) => Ok(output("git", &["log", "-1", "--format=%ct"])?.trim().to_owned()),
    }
}

/// Returns Cargo's home folder, in which Cargo keeps the sources of dependencies.
fn cargo_home() -> anyhow::Result<PathBuf> {
    if let Some(home) = std::env::var_os("CARGO_HOME") {
        return Ok(home.into());
    }
    let home = std::env::var_os("HOME").context("neither CARGO_HOME nor HOME is set")?;
    Ok(Path::new(&home).join(".cargo"))
}

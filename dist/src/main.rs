//! Packs a toolgate binary: a tarball, a Debian package, a Python wheel, npm packages, an OCI
//! image, an MCP bundle, a bill of materials and checksums. `cargo xtask dist` builds the binary
//! and runs this program.
//!
//! Equal inputs give equal bytes: entries are sorted, and every time is that of the commit.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a tool for developers: it reads and writes the files that its command line names"
)]

mod append;
mod archive;
mod target;
mod elf;
mod dependencies;
mod release;
mod tarball;
mod deb;
mod wheel;
mod npm;
mod image;
mod bundle;
mod registry;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Parser, ValueEnum};

use crate::append::DistAppendArgs;
use crate::release::PlatformRelease;
use crate::target::PackedPlatform;

/// Packs a toolgate binary into the packages that people install.
#[derive(Parser)]
enum DistCli {
    /// Append the small programs to the server's executable
    Append(DistAppendArgs),
    /// Pack one binary, then write the index of the folder
    Pack(DistPackArgs),
    /// Write server.json and SHA256SUMS for the packages in a folder
    Index(DistIndexArgs),
}

#[derive(Args)]
struct DistPackArgs {
    /// Binary to pack
    #[arg(long, value_name = "FILE")]
    binary: PathBuf,
    /// Binary of the same version that runs on this machine and prints the shell completions
    #[arg(long, value_name = "FILE")]
    host_binary: Option<PathBuf>,
    /// Platform of the binary, by its Rust name
    #[arg(long, value_name = "TRIPLE", value_parser = PackedPlatform::parse)]
    target: PackedPlatform,
    /// Time of every file in the packages, in seconds since 1970
    #[arg(long, value_name = "SECONDS", env = "SOURCE_DATE_EPOCH")]
    epoch: u64,
    /// Newest glibc that the binary may need, such as 2.31
    #[arg(long, value_name = "VERSION", value_parser = elf::GlibcVersion::parse)]
    glibc_max: Option<elf::GlibcVersion>,
    /// Folder with the C library of the platform, for the image
    #[arg(long, value_name = "DIR", default_value = "/")]
    sysroot: PathBuf,
    /// Packages to write; all by default
    #[arg(long, value_enum, value_name = "KIND")]
    only: Vec<InstallPackageKind>,
    /// Compress little, for tests
    #[arg(long)]
    fast: bool,
    #[command(flatten)]
    index: DistIndexArgs,
}

#[derive(Args)]
struct DistIndexArgs {
    /// Folder of the packages
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Repository on GitHub. The MCP registry derives the server's name from it
    #[arg(long, value_name = "OWNER/NAME", env = "GITHUB_REPOSITORY", default_value = registry::PLACEHOLDER)]
    repository: String,
}

/// One kind of package.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum InstallPackageKind {
    /// Tarball with the binary, completions, service unit and licenses
    Tarball,
    /// Debian package with a systemd unit
    Deb,
    /// Python wheel that carries the binary
    Wheel,
    /// npm packages: the launcher, and the binary for one platform
    Npm,
    /// OCI image layout
    Image,
    /// MCP bundle for desktop clients
    Bundle,
    /// Bill of materials in the CycloneDX format
    Sbom,
}

impl InstallPackageKind {
    /// Packs the release as packages of this kind. Returns the file name and the bytes of each.
    fn pack(self, release: &PlatformRelease) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
        match self {
            Self::Tarball => Ok(vec![tarball::pack(release)?]),
            Self::Deb => Ok(vec![deb::pack(release)?]),
            Self::Wheel => Ok(vec![wheel::pack(release)?]),
            Self::Npm => npm::pack(release),
            Self::Image => Ok(vec![image::pack(release)?]),
            Self::Bundle => Ok(vec![bundle::pack(release)?]),
            Self::Sbom => Ok(vec![(format!("{}.cdx.json", release.stem()), release.sbom()?)]),
        }
    }
}

fn main() -> ExitCode {
    let done = match DistCli::parse() {
        DistCli::Append(args) => append::append(&args),
        DistCli::Pack(args) => pack(&args),
        DistCli::Index(args) => registry::write_index(&args.out, &args.repository),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("dist: {err:#}");
            ExitCode::FAILURE
        }
    }
}

fn pack(args: &DistPackArgs) -> anyhow::Result<()> {
    let release = PlatformRelease::load(args)?;
    let kinds = match args.only.as_slice() {
        [] => InstallPackageKind::value_variants(),
        only => only,
    };
    let out = &args.index.out;
    fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    for kind in kinds {
        for (name, bytes) in kind.pack(&release)? {
            write(&out.join(&name), &bytes)?;
            eprintln!("{:>11}  {name}", bytes.len());
        }
    }
    registry::write_index(out, &args.index.repository)
}

/// Writes `bytes` to the file `path`. The error contains the path.
fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// Reads the file `path`. The error contains the path.
fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

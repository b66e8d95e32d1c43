//! Data that all packages of one release share.

use std::path::{Path, PathBuf, absolute};
use std::process::Command;

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};

use crate::archive::{ArchiveFileTree, CompressionLevel};
use crate::dependencies::{BinaryDependencies, checkout};
use crate::elf::BinaryRequirements;
use crate::target::PackedPlatform;
use crate::{DistPackArgs, read, registry};

/// Version of toolgate and of every package.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Summary of toolgate in one sentence of at most 100 characters, as the MCP registry demands.
pub(crate) const SUMMARY: &str =
    "Tools for one folder, and a gateway to other MCP servers: sandbox, policy, limits, audit log.";

/// The license of toolgate.
pub(crate) const LICENSE: &str = "Apache-2.0";

/// Binary of a release for one platform, and the files that are shipped with the binary.
pub(crate) struct PlatformRelease {
    pub(crate) target: PackedPlatform,
    pub(crate) binary: Vec<u8>,
    pub(crate) needs: BinaryRequirements,
    /// Modification time of every packed file, in seconds since 1970.
    pub(crate) epoch: u64,
    pub(crate) level: CompressionLevel,
    /// Name of the toolgate server in the MCP registry.
    pub(crate) server_name: String,
    /// URL of the source repository.
    pub(crate) source_url: String,
    /// Folder with the C library of the platform, for the OCI image.
    pub(crate) sysroot: PathBuf,
    pub(crate) completions: ShellCompletions,
    pub(crate) license: Vec<u8>,
    pub(crate) changelog: Vec<u8>,
    /// License texts of the crates of other projects in the binary.
    pub(crate) other_licenses: String,
    dependencies: BinaryDependencies,
}

/// Completion scripts of the supported shells.
pub(crate) struct ShellCompletions {
    pub(crate) bash: Vec<u8>,
    pub(crate) zsh: Vec<u8>,
    pub(crate) fish: Vec<u8>,
}

impl PlatformRelease {
    /// Reads the binary that `args` name, and the files of the checkout that are shipped with it.
    pub(crate) fn load(args: &DistPackArgs) -> anyhow::Result<Self> {
        let binary = read(&args.binary)?;
        let needs = BinaryRequirements::parse(&binary)
            .with_context(|| args.binary.display().to_string())?;
        if needs.machine != args.target.elf_machine {
            bail!("{} is not a binary for {}", args.binary.display(), args.target.triple);
        }
        if let Some(newest) = args.glibc_max
            && needs.glibc > newest
        {
            bail!("the binary needs glibc {}, but must run with {newest}", needs.glibc);
        }
        let host_binary = args.host_binary.as_ref().unwrap_or(&args.binary);
        let completions = ShellCompletions {
            bash: run(host_binary, &["completions", "bash"])?,
            zsh: run(host_binary, &["completions", "zsh"])?,
            fish: run(host_binary, &["completions", "fish"])?,
        };
        let printed = run(host_binary, &["--version"])?;
        if printed != format!("toolgate {VERSION}\n").into_bytes() {
            bail!("{} is not toolgate {VERSION}", host_binary.display());
        }
        let dependencies = BinaryDependencies::load(args.target.triple)?;
        let repository = &args.index.repository;
        Ok(Self {
            target: args.target,
            binary,
            needs,
            epoch: args.epoch,
            level: CompressionLevel(if args.fast { 1 } else { 9 }),
            server_name: registry::server_name(repository)?,
            source_url: registry::source_url(repository),
            sysroot: args.sysroot.clone(),
            completions,
            license: read(&checkout().join("LICENSE"))?,
            changelog: read(&checkout().join("CHANGELOG.md"))?,
            other_licenses: dependencies.license_texts()?,
            dependencies,
        })
    }

    /// Returns the version and platform, with which names of package files start:
    /// `toolgate-VERSION-TRIPLE`.
    pub(crate) fn stem(&self) -> String {
        format!("toolgate-{VERSION}-{}", self.target.triple)
    }

    /// Returns the bill of materials (SBOM) of the binary.
    pub(crate) fn sbom(&self) -> anyhow::Result<Vec<u8>> {
        self.dependencies.bill_of_materials(&sha256_hex(&self.binary))
    }

    /// Adds toolgate's license and the licenses of its dependencies to the folder `folder` of
    /// `tree`.
    pub(crate) fn add_licenses(&self, tree: &mut ArchiveFileTree, folder: &str) {
        tree.file(format!("{folder}/LICENSE"), self.license.as_slice());
        tree.file(format!("{folder}/LICENSES-OF-OTHERS"), self.other_licenses.as_str());
    }
}

/// Returns the SHA-256 of `bytes` in hexadecimal digits.
pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Runs the program `binary` with `args`, and returns its standard output.
fn run(binary: &Path, args: &[&str]) -> anyhow::Result<Vec<u8>> {
    // A name without a folder would be searched in PATH.
    let output = Command::new(absolute(binary)?)
        .args(args)
        .output()
        .with_context(|| format!("cannot start {}", binary.display()))?;
    if !output.status.success() {
        bail!("`{} {}` failed: {}", binary.display(), args.join(" "), output.status);
    }
    Ok(output.stdout)
}

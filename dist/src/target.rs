//! Names of one platform in Rust and in each packaging system.

use anyhow::Context;

/// Platform for which toolgate is packed, with its name in each packaging system.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PackedPlatform {
    /// Rust's name of the platform (target triple).
    pub(crate) triple: &'static str,
    /// Name of the processor in names of Python wheels.
    pub(crate) machine: &'static str,
    /// Name of the processor in Debian packages and OCI images.
    pub(crate) debian: &'static str,
    /// Name of the processor in Node.js (`process.arch`).
    pub(crate) node: &'static str,
    /// Number of the processor in the header of ELF files (`e_machine`).
    pub(crate) elf_machine: u16,
}

/// Platforms for which toolgate is packed. The launcher of the npm packages lists the same
/// platforms.
pub(crate) const TARGETS: [PackedPlatform; 2] = [
    PackedPlatform {
        triple: "x86_64-unknown-linux-gnu",
        machine: "x86_64",
        debian: "amd64",
        node: "x64",
        elf_machine: goblin::elf::header::EM_X86_64,
    },
    PackedPlatform {
        triple: "aarch64-unknown-linux-gnu",
        machine: "aarch64",
        debian: "arm64",
        node: "arm64",
        elf_machine: goblin::elf::header::EM_AARCH64,
    },
];

impl PackedPlatform {
    /// Returns the platform whose Rust target triple is `triple`.
    pub(crate) fn parse(triple: &str) -> anyhow::Result<Self> {
        let known = TARGETS.map(|target| target.triple).join(" and ");
        let found = TARGETS.into_iter().find(|target| target.triple == triple);
        found.with_context(|| format!("toolgate is packed for {known} only"))
    }
}

//! Reads the libraries and the glibc version that a binary needs from the binary itself.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use goblin::elf::Elf;

use crate::read;

/// A version of glibc, such as 2.31.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GlibcVersion {
    major: u32,
    minor: u32,
}

/// Requirements that a binary has on the system that runs it.
pub(crate) struct BinaryRequirements {
    /// Path of the program that loads the binary and its shared libraries (the ELF interpreter).
    pub(crate) loader: PathBuf,
    /// File names of the shared libraries that the binary needs.
    pub(crate) libraries: Vec<String>,
    /// Newest version of glibc among the versions of the symbols that the binary uses.
    pub(crate) glibc: GlibcVersion,
    /// Processor number in the ELF header, as in [`crate::target::PackedPlatform::elf_machine`].
    pub(crate) machine: u16,
}

impl GlibcVersion {
    /// Parses a version such as `2.31`. Ignores a third part, as in 2.2.5.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let mut parts = text.split('.').map(str::parse);
        match (parts.next(), parts.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Ok(Self { major, minor }),
            _ => bail!("`{text}` is not a version of glibc such as 2.31"),
        }
    }

    /// Returns the version as wheels spell it in platform names, for example `2_31`.
    pub(crate) fn underscored(self) -> String {
        format!("{}_{}", self.major, self.minor)
    }
}

impl fmt::Display for GlibcVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl BinaryRequirements {
    /// Reads the requirements of a dynamically linked program from its bytes.
    pub(crate) fn parse(binary: &[u8]) -> anyhow::Result<Self> {
        let elf = Elf::parse(binary).context("the binary is not an ELF file")?;
        let loader = elf.interpreter.context("the binary is not dynamically linked")?;
        let libraries = elf.libraries.iter().map(|&name| name.to_owned()).collect();
        let (glibc, machine) = (newest_glibc(&elf)?, elf.header.e_machine);
        Ok(Self { loader: loader.into(), libraries, glibc, machine })
    }

    /// Reads the loader and all required libraries, also those that other libraries need, from the
    /// folder `sysroot`. Returns the path of each on the target system, and its bytes.
    pub(crate) fn collect_libraries(
        &self,
        sysroot: &Path,
        machine: &str,
    ) -> anyhow::Result<Vec<(PathBuf, Vec<u8>)>> {
        let loader = read(&below(sysroot, &self.loader))?;
        let mut found = vec![(self.loader.clone(), loader)];
        let mut wanted = self.libraries.clone();
        while let Some(name) = wanted.pop() {
            if found.iter().any(|(path, _)| path.ends_with(&name)) {
                continue;
            }
            let places = [
                format!("/lib/{machine}-linux-gnu/{name}"),
                format!("/lib64/{name}"),
                format!("/lib/{name}"),
            ];
            let place = places.iter().map(PathBuf::from).find(|path| below(sysroot, path).exists());
            let place = place.with_context(|| {
                format!(
                    "the image needs {name}, which is not in {}; name the folder that has it with \
                     --sysroot",
                    sysroot.display()
                )
            })?;
            let bytes = read(&below(sysroot, &place))?;
            let library = Elf::parse(&bytes).with_context(|| place.display().to_string())?;
            wanted.extend(library.libraries.iter().map(|&name| name.to_owned()));
            found.push((place, bytes));
        }
        found.sort();
        Ok(found)
    }
}

/// Returns the newest glibc version among the symbol versions that a program needs.
fn newest_glibc(elf: &Elf<'_>) -> anyhow::Result<GlibcVersion> {
    let needs = elf.verneed.as_ref().context("the binary names no versions of symbols")?;
    let names = needs.iter().flat_map(|library| {
        library
            .iter()
            .filter_map(|version| elf.dynstrtab.get_at(version.vna_name))
            .collect::<Vec<_>>()
    });
    let versions = names.filter_map(|name| name.strip_prefix("GLIBC_"));
    // `GLIBC_PRIVATE` and `GLIBC_ABI_…` are not versions.
    let newest = versions.filter_map(|version| GlibcVersion::parse(version).ok()).max();
    newest.context("the binary does not use glibc")
}

/// Returns the path of the file in the folder `sysroot` that stands for the absolute path `path`.
fn below(sysroot: &Path, path: &Path) -> PathBuf {
    sysroot.join(path.strip_prefix("/").unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_glibc_are_ordered_by_number() {
        let [old, new] = ["2.2.5", "2.31"].map(|text| GlibcVersion::parse(text).unwrap());
        assert!(old < new);
        assert_eq!((new.to_string(), new.underscored()), ("2.31".to_owned(), "2_31".to_owned()));
        assert!(GlibcVersion::parse("PRIVATE").is_err());
    }

    #[test]
    fn the_needs_of_a_running_program_are_read() {
        let needs = BinaryRequirements::parse(&std::fs::read("/proc/self/exe").unwrap()).unwrap();
        assert!(needs.libraries.iter().any(|name| name == "libc.so.6"), "{:?}", needs.libraries);
        assert!(needs.glibc >= GlibcVersion::parse("2.17").unwrap());
        assert!(BinaryRequirements::parse(b"#!/bin/sh\n").is_err());
    }
}

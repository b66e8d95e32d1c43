//! Computes a hash of the sources of this crate. Two executables with the same hash contain the same
//! sandbox helper.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a build script reads sources, and prints what Cargo should do"
)]

use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::path::{Path, PathBuf};

fn main() -> io::Result<()> {
    let sources = Path::new("src");
    let mut files = Vec::new();
    collect_files(sources, &mut files)?;
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        hasher.write(file.as_os_str().as_encoded_bytes());
        hasher.write(&fs::read(&file)?);
    }
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", sources.display());
    println!("cargo::rustc-env=TOOLGATE_WORLD_SOURCES={:016x}", hasher.finish());
    Ok(())
}

fn collect_files(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect_files(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

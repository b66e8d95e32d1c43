//! Confines the server's own file access (Landlock), as a second barrier if a caller tricks one of
//! its tools.
//!
//! The confinement applies to the calling thread and all threads that it starts later. Earlier
//! threads stay unconfined. One of them starts programs, which are confined separately.

use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetStatus,
};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};

use super::layers::{LANDLOCK_MAX, LANDLOCK_MIN, landlock_version};
use super::view::{ETC_ENTRIES, SYSTEM_FOLDERS};

/// System paths that the confined server reads in addition to those that every program reads.
const SYSTEM_READ: [&str; 4] = ["/proc", "/sys", "/run/systemd/resolve", "/run/nscd"];
/// System paths that the confined server reads and writes.
const SYSTEM_WRITE: [&str; 2] = ["/sys/fs/cgroup", "/dev/shm"];
/// Device files that the confined server reads and writes.
const DEVICES: [&str; 6] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

/// The paths that a confined server may use. Missing paths are ignored.
#[derive(Debug, Default)]
pub struct ServerPathAccess {
    /// Files and folders that the server may read, with everything below them.
    pub reads: Vec<PathBuf>,
    /// Files and folders that the server may read and write, with everything below them.
    pub writes: Vec<PathBuf>,
}

/// Restricts the calling thread to the paths in `reach` and the system files that every program
/// reads. The thread can then execute no program. This cannot be undone. Call it before starting
/// the threads that serve clients.
///
/// # Errors
/// The reason why this system cannot confine the thread. The thread is then unconfined.
pub fn confine_thread(reach: &ServerPathAccess) -> Result<(), String> {
    let version = landlock_version()
        .map_err(|err| format!("this kernel does not support Landlock: {err}"))?;
    if version < LANDLOCK_MIN {
        return Err(format!("this kernel has version {version} of Landlock; version 2 is needed"));
    }
    restrict(reach, ABI::from(version.min(LANDLOCK_MAX))).map_err(|err| err.to_string())
}

fn restrict(reach: &ServerPathAccess, abi: ABI) -> io::Result<()> {
    let all = AccessFs::from_all(abi);
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(all)
        .and_then(Ruleset::create)
        .map_err(io::Error::other)?;
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let written = all & !(AccessFs::Execute | AccessFs::MakeChar | AccessFs::MakeBlock);
    let device = written & (read | AccessFs::WriteFile | AccessFs::from_file(abi));
    let system = SYSTEM_FOLDERS.iter().chain(&SYSTEM_READ).map(PathBuf::from);
    let system = system.chain(ETC_ENTRIES.iter().map(|name| Path::new("/etc").join(name)));
    for path in system.chain(reach.reads.iter().cloned()) {
        ruleset = allow_path(ruleset, &path, read, abi)?;
    }
    for path in SYSTEM_WRITE.iter().map(Path::new).chain(reach.writes.iter().map(PathBuf::as_path))
    {
        ruleset = allow_path(ruleset, path, written, abi)?;
    }
    for path in DEVICES {
        ruleset = allow_path(ruleset, Path::new(path), device, abi)?;
    }
    match ruleset.restrict_self().map_err(io::Error::other)?.ruleset {
        RulesetStatus::FullyEnforced => Ok(()),
        RulesetStatus::PartiallyEnforced | RulesetStatus::NotEnforced => {
            Err(io::Error::other("the kernel does not enforce all Landlock rules"))
        }
    }
}

/// Allows `access` to `path` in the `ruleset`, if the path exists.
pub(super) fn allow_path(
    ruleset: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
    abi: ABI,
) -> io::Result<RulesetCreated> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let Ok(handle) = openat(CWD, path, flags, Mode::empty()) else { return Ok(ruleset) };
    let is_folder = FileType::from_raw_mode(fstat(&handle)?.st_mode) == FileType::Directory;
    let access = if is_folder { access } else { access & AccessFs::from_file(abi) };
    if access.is_empty() {
        return Ok(ruleset);
    }
    ruleset.add_rule(PathBeneath::new(handle, access)).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;
    use std::thread;

    use super::*;

    #[test]
    fn paths_outside_the_access_are_not_read_written_or_run() {
        let [writable, readable, other] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        for folder in [&writable, &readable, &other] {
            fs::write(folder.path().join("file"), "text").unwrap();
        }
        let [writable, readable, other] =
            [&writable, &readable, &other].map(|it| it.path().to_owned());
        let reach =
            ServerPathAccess { reads: vec![readable.clone()], writes: vec![writable.clone()] };
        let done = thread::spawn(move || {
            if let Err(why) = confine_thread(&reach) {
                return eprintln!("NOT TRIED: {why}");
            }
            let is_read = |folder: &Path| fs::read(folder.join("file")).is_ok();
            let is_written = |folder: &Path| fs::write(folder.join("new"), "x").is_ok();
            assert_eq!([&writable, &readable, &other].map(|it| is_read(it)), [true, true, false]);
            assert_eq!(
                [&writable, &readable, &other].map(|it| is_written(it)),
                [true, false, false]
            );
            fs::create_dir(writable.join("deep")).unwrap();
            fs::rename(writable.join("new"), writable.join("deep/newer")).unwrap();
            assert!(Command::new("/bin/true").status().is_err());
            // A new thread is confined, too.
            let deeper = thread::spawn(move || fs::read(other.join("file")).is_ok());
            assert!(!deeper.join().unwrap());
            assert!(
                fs::read_to_string("/proc/self/status").is_ok() && fs::read("/etc/passwd").is_ok()
            );
            assert!(fs::read("/etc/shadow").is_err());
        });
        done.join().unwrap();
    }
}

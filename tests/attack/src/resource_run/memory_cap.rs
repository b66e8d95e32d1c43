//! Limit for the server's memory, so that an attack that fills the memory ends the server and not
//! the machine.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Memory that the server may use, in bytes.
pub(super) const CAP_BYTES: u64 = 1 << 30;
/// Names of the cgroup files that limit memory, in version 2 and in version 1 of cgroups.
const LIMIT_FILES: [&str; 2] = ["memory.max", "memory.limit_in_bytes"];

/// Memory limit of a server. Dropping the value removes the limit's cgroup.
pub(super) enum ServerMemoryCap {
    /// Limits the memory by a new cgroup, for the server and all its programs together.
    Cgroup(PathBuf),
    /// Limits the memory by `RLIMIT_DATA`, for the server and each of its programs separately.
    DataLimit,
}

impl ServerMemoryCap {
    /// Creates a cgroup with the memory limit. If the user may not create cgroups, returns a limit
    /// by `RLIMIT_DATA`.
    pub(super) fn create() -> Self {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let name = format!("toolgate-attack-{}", std::process::id());
        for parent in memory_cgroups(&own) {
            let folder = parent.join(&name);
            if fs::create_dir(&folder).is_err() {
                continue;
            }
            let set_limit = |file: &&str| {
                let file = folder.join(file);
                file.exists() && fs::write(file, CAP_BYTES.to_string()).is_ok()
            };
            if LIMIT_FILES.iter().any(set_limit) {
                // Without it, the memory could move to the disk. The kernel may have no such file.
                _ = fs::write(folder.join("memory.swap.max"), "0");
                return Self::Cgroup(folder);
            }
            _ = fs::remove_dir(&folder);
        }
        Self::DataLimit
    }

    /// Returns a command to put before the command line of a server. The command sets the memory
    /// limit and executes the server in the same process.
    pub(super) fn wrapper(&self) -> Vec<String> {
        let words = match self {
            Self::Cgroup(folder) => [
                "echo $$ > \"$0\" && exec \"$@\"".to_owned(),
                folder.join("cgroup.procs").display().to_string(),
            ],
            Self::DataLimit => {
                [format!("ulimit -d {} && exec \"$@\"", CAP_BYTES >> 10), "sh".to_owned()]
            }
        };
        ["sh".to_owned(), "-c".to_owned()].into_iter().chain(words).collect()
    }
}

impl fmt::Display for ServerMemoryCap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = CAP_BYTES >> 20;
        match self {
            Self::Cgroup(folder) => {
                let folder = folder.display();
                write!(f, "{mib} MiB for the server and its programs, in the cgroup {folder}")
            }
            Self::DataLimit => {
                write!(f, "{mib} MiB of RLIMIT_DATA for the server, without a cgroup")
            }
        }
    }
}

impl Drop for ServerMemoryCap {
    fn drop(&mut self) {
        if let Self::Cgroup(folder) = self {
            remove_cgroup(folder);
        }
    }
}

/// Removes the cgroup `folder`, and the cgroups that the server's sandbox has left in it.
fn remove_cgroup(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_cgroup(&entry.path());
        }
    }
    _ = fs::remove_dir(folder);
}

/// Returns the folders in which this process may create a cgroup that limits memory. `own` is the
/// content of `/proc/self/cgroup`.
fn memory_cgroups(own: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let root = match controllers {
            "" => Path::new("/sys/fs/cgroup"),
            names if names.split(',').any(|name| name == "memory") => {
                Path::new("/sys/fs/cgroup/memory")
            }
            _ => continue,
        };
        // In a container, the own cgroup may be the root of what is mounted.
        folders.extend([root.join(path.trim_start_matches('/')), root.to_owned()]);
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_of_both_versions_are_found() {
        let own = "5:cpu:/a\n4:memory:/b/c\n0::/d\n";
        let expected = [
            "/sys/fs/cgroup/memory/b/c",
            "/sys/fs/cgroup/memory",
            "/sys/fs/cgroup/d",
            "/sys/fs/cgroup",
        ];
        assert_eq!(memory_cgroups(own), expected.map(PathBuf::from));
    }
}

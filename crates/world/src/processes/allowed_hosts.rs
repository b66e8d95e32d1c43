//! The hosts that a person allowed for the projects of a workspace. The server stores them in its
//! state folder, which programs do not see.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;

use super::ProcessRunner;
use crate::Root;

/// The maximum number of allowed hosts that are stored for one project.
const HOSTS_MAX: usize = 64;

/// The rules for the hosts that a person allowed, by project.
type AllowedHosts = BTreeMap<String, BTreeSet<String>>;

impl ProcessRunner {
    /// Returns the rules for the hosts that a person allowed for `project` in `workspace`. Blocks.
    pub fn allowed_hosts(&self, workspace: &Root, project: &str) -> Vec<String> {
        let Some(file) = self.allowed_hosts_file(workspace) else { return Vec::new() };
        read_allowed(&file).remove(project).unwrap_or_default().into_iter().collect()
    }

    /// Stores that a person allowed the host rules `hosts` for `project` in `workspace`. Blocks.
    ///
    /// # Errors
    /// The file cannot be written, or there is no state folder.
    pub fn remember_hosts(
        &self,
        workspace: &Root,
        project: &str,
        hosts: &[String],
    ) -> io::Result<()> {
        let file = self.allowed_hosts_file(workspace).ok_or(io::ErrorKind::NotFound)?;
        let folder = file.parent().ok_or(io::ErrorKind::NotFound)?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        // Another call or server may remember a host of this workspace at the same time.
        let mut options = fs::OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600);
        let lock = options.open(file.with_extension("lock"))?;
        retry_on_intr(|| flock(&lock, FlockOperation::LockExclusive))?;
        let mut all = read_allowed(&file);
        let known = all.entry(project.to_owned()).or_default();
        let room = HOSTS_MAX.saturating_sub(known.len());
        known.extend(hosts.iter().take(room).cloned());
        let mut written = tempfile::NamedTempFile::new_in(folder)?;
        written.write_all(&serde_json::to_vec_pretty(&all)?)?;
        written.persist(&file).map_err(|err| err.error)?;
        drop(lock);
        Ok(())
    }

    fn allowed_hosts_file(&self, workspace: &Root) -> Option<PathBuf> {
        let folder = self.sandbox().paths().allowed_hosts.clone()?;
        let hash = blake3::hash(workspace.path().as_os_str().as_encoded_bytes()).to_hex();
        Some(folder.join(format!("{hash}.json")))
    }
}

/// Reads a file of allowed hosts. Returns no hosts if the file is missing or damaged.
fn read_allowed(file: &std::path::Path) -> AllowedHosts {
    let text = fs::read(file).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use crate::sandbox::{Sandbox, SandboxPaths, SandboxSettings};

    use super::*;

    #[test]
    fn allowed_hosts_are_remembered_for_their_project_only() {
        let [state, one, other] = [(); 3].map(|()| tempfile::tempdir().expect("a folder"));
        let allowed_hosts = Some(state.path().join("allowed-hosts"));
        let paths = SandboxPaths { allowed_hosts, ..SandboxPaths::default() };
        let sandbox = Sandbox::new(&SandboxSettings::default(), paths).expect("it is valid");
        let processes = ProcessRunner::with_sandbox([], sandbox).expect("programs start");
        let [one, other] = [one, other].map(|folder| Root::open(folder.path()).expect("it opens"));
        processes.remember_hosts(&one, "cargo in .", &["a.example".to_owned()]).expect("written");
        processes.remember_hosts(&one, "cargo in .", &["b.example:8443".to_owned()]).expect("two");
        let hosts = processes.allowed_hosts(&one, "cargo in .");
        assert_eq!(hosts, ["a.example", "b.example:8443"]);
        assert!(processes.allowed_hosts(&one, "npm in .").is_empty());
        assert!(processes.allowed_hosts(&other, "cargo in .").is_empty());
    }

    #[test]
    fn hosts_that_are_allowed_at_the_same_time_are_all_remembered() {
        let [state, folder] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let allowed_hosts = Some(state.path().join("allowed-hosts"));
        let paths = SandboxPaths { allowed_hosts, ..SandboxPaths::default() };
        let sandbox = Sandbox::new(&SandboxSettings::default(), paths).expect("it is valid");
        let processes = ProcessRunner::with_sandbox([], sandbox).expect("programs start");
        let root = Root::open(folder.path()).expect("it opens");
        std::thread::scope(|scope| {
            for number in 0..16 {
                let (processes, root) = (&processes, &root);
                let project = format!("cargo in {}", number % 4);
                let host = format!("h{number}.example");
                scope.spawn(move || {
                    processes.remember_hosts(root, &project, &[host]).expect("written");
                });
            }
        });
        for number in 0..4 {
            let hosts = processes.allowed_hosts(&root, &format!("cargo in {number}"));
            assert_eq!(hosts.len(), 4, "{hosts:?}");
        }
    }
}

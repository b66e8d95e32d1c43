//! The files with which `git` and `ssh` in the sandbox connect to SSH servers: a configuration, the
//! keys of the servers, the agent socket, and the connecting program.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;

use super::capabilities::ServerEnvironmentVariables;
use super::ssh_connector::CONNECTOR_NAME;
use super::{ProgramConfinement, Sandbox, helper_executable};
use crate::forwarder::{ProgramHostAccess, RunSshAgent, SshRemote};

/// The file name of the agent socket. It is short, because the path of a socket may have only 107
/// bytes.
const AGENT_NAME: &str = "agent";

/// The folder with the files that one program needs to use SSH. Dropping this value removes the
/// folder.
pub(super) struct SshAccessFolder {
    /// The path of the folder, which is the same inside and outside the sandbox.
    pub(super) path: PathBuf,
    _folder: TempDir,
}

impl Sandbox {
    /// Prepares the files for the SSH servers that a program with `access` may use. Returns `None`
    /// if the program may use none. `variables` is the server's environment.
    pub(super) fn prepare_ssh(
        &self,
        inside: &ProgramConfinement,
        access: &ProgramHostAccess,
        variables: &ServerEnvironmentVariables,
    ) -> io::Result<Option<(RunSshAgent, SshAccessFolder)>> {
        // A program that may execute only some files cannot execute `ssh`.
        if inside.executables.is_some() {
            return Ok(None);
        }
        let variable = |name: &str| variables.get(OsStr::new(name)).map(Path::new);
        let agent = variable("SSH_AUTH_SOCK").filter(|agent| agent.is_absolute());
        let remotes = SshRemote::for_run(&self.0.ssh_remotes, access, variable("HOME"), agent)?;
        if remotes.is_empty() {
            return Ok(None);
        }
        let folder = self.create_run_folder(inside, variables, "toolgate-ssh-")?;
        let path = folder.path().canonicalize()?;
        let at = |name: &str| path.join(name);
        if !is_plain(&path) {
            return Err(io::Error::other(format!(
                "the folder {} cannot hold a configuration of ssh: its path contains other \
                 characters than letters, digits and `/._-`",
                path.display()
            )));
        }
        let known: String = remotes.iter().map(SshRemote::known_hosts).collect();
        fs::write(at("known_hosts"), known)?;
        fs::write(at("config"), ssh_config(&path))?;
        copy_helper(&at(CONNECTOR_NAME))?;
        let listener = UnixListener::bind(at(AGENT_NAME))?;
        let agent = RunSshAgent { listener, remotes: Arc::from(remotes) };
        Ok(Some((agent, SshAccessFolder { path, _folder: folder })))
    }
}

impl SshAccessFolder {
    /// Returns the environment variables that name the SSH command and the agent socket to
    /// programs.
    pub(super) fn variables(&self) -> [(OsString, OsString); 2] {
        let mut command = OsString::from("ssh -F ");
        command.push(self.path.join("config"));
        let agent = self.path.join(AGENT_NAME);
        [("GIT_SSH_COMMAND".into(), command), ("SSH_AUTH_SOCK".into(), agent.into())]
    }
}

/// Returns true if both a shell and `ssh` read `path` as one word, because it needs no quoting.
fn is_plain(path: &Path) -> bool {
    let is_plain = |b: &u8| b.is_ascii_alphanumeric() || b"/._-".contains(b);
    path.as_os_str().as_encoded_bytes().iter().all(is_plain)
}

/// Returns the configuration of `ssh` with the files in `folder`. All connections go through the
/// forwarder, which reports refused connections.
fn ssh_config(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "Host *\n\
         ProxyCommand {folder}/{CONNECTOR_NAME} %h %p\n\
         ProxyUseFdpass yes\n\
         IdentityAgent {folder}/{AGENT_NAME}\n\
         UserKnownHostsFile {folder}/known_hosts\n\
         GlobalKnownHostsFile /dev/null\n\
         StrictHostKeyChecking yes\n\
         UpdateHostKeys no\n\
         BatchMode yes\n\
         ControlPath none\n\
         ForwardAgent no\n"
    )
}

/// Copies the executable of sandbox helpers to `at`, where a program can execute it.
fn copy_helper(at: &Path) -> io::Result<()> {
    let mut helper = File::open(helper_executable::current_path())?;
    let mut copy = OpenOptions::new().write(true).create_new(true).mode(0o500).open(at)?;
    io::copy(&mut helper, &mut copy)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_a_shell_would_split_is_not_plain() {
        assert!(is_plain(Path::new("/tmp/toolgate-ssh-aB3_.x")));
        for path in ["/tmp/a b", "/tmp/%h", "/tmp/$HOME", "/tmp/'", "/tmp/ä"] {
            assert!(!is_plain(Path::new(path)), "{path}");
        }
    }
}

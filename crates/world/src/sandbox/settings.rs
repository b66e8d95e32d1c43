//! The settings of the sandbox.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::forwarder::{HostCredential, ProgramHostAccess, SshRemote};

/// Sandbox for the programs that tools start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxSettings {
    /// Access of programs to files and the network. With `read-only`, programs read the workspace
    /// and the system's programs. With `workspace`, programs can also write the workspace. With
    /// `network`, programs also use the machine's network. `off` runs programs without a sandbox. A
    /// `[[sandbox.for]]` table overrides this profile for some tools.
    pub profile: SandboxProfile,
    /// Effect if the system does not support a layer of the profile: `best` runs programs without
    /// this layer, and `strict` refuses to run programs.
    pub require: IncompleteSandboxPolicy,
    /// Additional files and folders that programs may read, for example a toolchain or a cache.
    /// Each path is absolute or starts with `~/`.
    pub read: Vec<String>,
    /// Additional folders that programs may write. Each path is absolute or starts with `~/`.
    /// toolgate's own state and cache folders stay hidden, even if they are inside one of these
    /// folders.
    pub write: Vec<String>,
    /// `true` allows programs to use Unix sockets. Sockets in the workspace and in the `read` and
    /// `write` paths may belong to unconfined programs.
    pub unix_sockets: bool,
    /// Hosts that programs may reach even if their profile has no network, for example
    /// `["packages.example.com", "*.mirror.example", "git.example.com:22"]`. Without a port, the
    /// ports 443 and 80 are allowed. A host that is named exactly may be in a private network.
    /// `git.example.com/acme/*` allows only the paths below `/acme/`.
    ///
    /// A preset stands for the hosts that your own settings of a package manager name. A preset
    /// also gives programs a package cache in toolgate's cache folder. The presets are `@npm`,
    /// `@pypi`, `@cargo`, `@go`, `@maven`, `@nuget`, `@debian` (without a cache), and `@git` for
    /// the remotes of the workspace's repository.
    pub hosts: Vec<String>,
    /// Credentials that programs use but never see, with one `[[sandbox.credentials]]` table for
    /// each. toolgate adds the credentials to the requests of all programs whose `hosts` allow the
    /// host.
    pub credentials: Vec<SandboxCredential>,
    /// SSH servers that programs use with keys of your SSH agent, with one `[[sandbox.ssh]]` table
    /// for each. Programs whose `hosts` allow the host get an agent socket and the variable
    /// `GIT_SSH_COMMAND`. Programs with an agent socket may also use other Unix sockets.
    pub ssh: Vec<SandboxSshRemote>,
    /// Whether `ci.restore` may reach the package registry from your own package-manager settings.
    /// `allow` allows the registry. `confirm` asks a person first, and allows the registry if nobody
    /// can be asked. `deny` allows only the hosts in `hosts`. This setting applies only if programs
    /// have the profile `workspace` and no `[[sandbox.for]]` table matches `ci.restore`.
    pub restore: RestoreRegistryAccess,
    /// Access of programs to the workspace's `.git` folder. A program that can write this folder
    /// can make git run other programs later, outside the sandbox. The git tools may always write
    /// the `.git` folder.
    pub git: GitFolderAccess,
    /// Memory limit for each run, in bytes. 0 means half of the machine's memory.
    pub memory_bytes: u64,
    /// Maximum number of processes and threads in each run, from 8 to 1000000.
    pub processes: u64,
    /// Limit for the processor time of each run, in percent of one processor. 0 means no limit. If
    /// the machine is busy, the server always has priority over runs.
    pub cpu_percent: u64,
    /// Profiles for the programs of some tools, with one `[[sandbox.for]]` table for each. The
    /// first table that matches a tool applies.
    #[serde(rename = "for")]
    pub rules: Vec<SandboxProfileRule>,
}

/// The profile for programs of some tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxProfileRule {
    /// Pattern of tool IDs, for example `ci.restore` or `git.*`.
    pub tools: String,
    /// Sandbox profile of the programs that the matching tools start.
    pub profile: SandboxProfile,
    /// Hosts that the programs of the matching tools may reach, instead of the hosts in
    /// `sandbox.hosts`. None by default.
    #[serde(default)]
    pub hosts: Vec<String>,
}

/// A header with a secret that toolgate adds to HTTPS requests of programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxCredential {
    /// Host that gets the header, written as in `sandbox.hosts`, for example
    /// `git.example.com/acme/*`. `hosts` must allow the host, too.
    pub host: String,
    /// Name of the header. Default: `Authorization`. toolgate replaces the value that a program
    /// sends.
    #[serde(default = "default_header")]
    pub header: String,
    /// Value of the header, with `${NAME}` for the server's environment variable `NAME`, for
    /// example `Bearer ${REGISTRY_TOKEN}`. The variable's value must have at least 8 bytes.
    /// toolgate redacts the value from results.
    pub value: String,
}

/// A host with an SSH server that programs use with keys of your SSH agent, for example for git.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxSshRemote {
    /// Name of the host, for example `git.example.com`, or `git.example.com:2222` for another port
    /// than 22. `hosts` must allow the host, too, without a path.
    pub host: String,
    /// Public keys of the server, for example `["ssh-ed25519 AAAAC3…"]`. `ssh-keygen -F HOST`
    /// prints the keys that you have accepted, after the host name.
    pub host_keys: Vec<String>,
    /// Keys of your agent that programs may use, as fingerprints or public keys, for example
    /// `["SHA256:…"]`. `ssh-add -l` prints the fingerprints. Programs see no other keys.
    pub keys: Vec<String>,
    /// Names with which programs may log in. Default: `git`.
    #[serde(default = "default_users")]
    pub users: Vec<String>,
    /// Socket of your SSH agent. The path is absolute or starts with `~/`. By default, the
    /// environment variable `SSH_AUTH_SOCK` of the server names the socket.
    #[serde(default)]
    pub agent: Option<String>,
}

/// Returns the default names for logging in.
fn default_users() -> Vec<String> {
    vec!["git".to_owned()]
}

/// Returns the default name of the header of a credential.
fn default_header() -> String {
    "Authorization".to_owned()
}

/// Access of a program to files and the network, from least to most.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxProfile {
    /// Read the workspace and the system's programs. No lasting writes, no network.
    ReadOnly,
    /// Read everything that `read-only` allows, and write the workspace.
    Workspace,
    /// Everything that `workspace` allows, and use of the machine's network.
    Network,
    /// No sandbox. Programs may do everything that the server may do.
    Off,
}

/// Access of a restore to the package registry of the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RestoreRegistryAccess {
    /// A restore may reach the registry.
    Allow,
    /// A restore may reach the registry if a person agrees, or if nobody can be asked.
    Confirm,
    /// A restore may reach only the hosts of `sandbox.hosts`.
    Deny,
}

/// Access of programs to the workspace's `.git`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GitFolderAccess {
    /// Programs can read `.git`, but not write it.
    Read,
    /// Programs can read and write `.git`.
    Write,
}

/// Reaction to an incomplete sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IncompleteSandboxPolicy {
    /// Run programs with the available layers. Results list the missing layers.
    Best,
    /// Do not run programs in an incomplete sandbox.
    Strict,
}

impl SandboxProfile {
    /// Returns the profile's name in settings and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::Workspace => "workspace",
            Self::Network => "network",
            Self::Off => "off",
        }
    }
}

impl SandboxProfile {
    /// Returns a short description of the profile's access.
    pub fn description(self) -> &'static str {
        match self {
            Self::ReadOnly => {
                "reads the workspace and the system's programs, writes only temporary files"
            }
            Self::Workspace => "reads and writes the workspace, without network access",
            Self::Network => "reads and writes the workspace, with the machine's network",
            Self::Off => "has the server's own rights",
        }
    }
}

/// The highest processor limit, in percent of one processor. No machine has more.
const CPU_PERCENT_MAX: u64 = 1_000_000;

impl SandboxSettings {
    /// Returns the folders outside the workspace that programs may write, as absolute paths. `home`
    /// is the user's home folder.
    pub fn writable_folders(&self, home: Option<&Path>) -> Vec<PathBuf> {
        self.write.iter().map(|path| expand_home(path, home)).collect()
    }

    /// Checks that all values are valid.
    ///
    /// # Errors
    /// A message with the invalid value and the accepted values.
    pub fn check(&self) -> Result<(), String> {
        for (name, paths) in [("read", &self.read), ("write", &self.write)] {
            for path in paths {
                let rest = path.strip_prefix("~/").or(path.strip_prefix('/')).unwrap_or_default();
                let is_plain = rest.split('/').all(|part| part != "..");
                if rest.trim_matches('/').is_empty() || !is_plain {
                    return Err(format!(
                        "sandbox.{name} has `{path}`; paths must be absolute or start with `~/`, \
                         without `..`, and not be `/`"
                    ));
                }
            }
        }
        if !(8..=1_000_000).contains(&self.processes) {
            return Err(format!(
                "sandbox.processes is {}; it must be 8 to 1000000",
                self.processes
            ));
        }
        if self.cpu_percent > CPU_PERCENT_MAX {
            return Err(format!(
                "sandbox.cpu_percent is {}; it must be 0 to {CPU_PERCENT_MAX}",
                self.cpu_percent
            ));
        }
        let own = self.access()?;
        self.host_credentials().map(drop)?;
        self.ssh_remotes().map(drop)?;
        let ruled = self.rules.iter().map(SandboxProfileRule::access);
        for access in ruled.chain([Ok(own)]) {
            access?.map_or(Ok(()), |access| self.check_ssh(&access))?;
        }
        const LEAST: u64 = 16 << 20;
        if self.memory_bytes != 0 && self.memory_bytes < LEAST {
            return Err(format!(
                "sandbox.memory_bytes is {}; it must be at least {LEAST}, or 0 for half of the machine's memory",
                self.memory_bytes
            ));
        }
        Ok(())
    }
}

/// Expands a leading `~/` in `path` to `home`.
pub(super) fn expand_home(path: &str, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(path),
    }
}

impl SandboxSettings {
    /// Returns the hosts that programs may reach, if there are any.
    ///
    /// # Errors
    /// A message with the invalid value.
    pub(super) fn access(&self) -> Result<Option<Arc<ProgramHostAccess>>, String> {
        host_access(&self.hosts, self.profile, "sandbox.hosts")
    }

    /// Returns the credentials that programs use but never see.
    ///
    /// # Errors
    /// A message with the invalid value.
    pub(super) fn host_credentials(&self) -> Result<Vec<HostCredential>, String> {
        let parse = |SandboxCredential { host, header, value }: &SandboxCredential| {
            let parsed = HostCredential::parse(host, header, value);
            parsed.map_err(|why| format!("in sandbox.credentials, {why}"))
        };
        self.credentials.iter().map(parse).collect()
    }

    /// Returns the SSH servers that programs may use.
    ///
    /// # Errors
    /// A message with the invalid value.
    pub(super) fn ssh_remotes(&self) -> Result<Vec<SshRemote>, String> {
        let parse = |remote: &SandboxSshRemote| {
            let SandboxSshRemote { host, host_keys, keys, users, agent } = remote;
            let parsed = SshRemote::parse(host, host_keys, keys, users, agent.as_deref());
            parsed.map_err(|why| format!("in sandbox.ssh, {why}"))
        };
        self.ssh.iter().map(parse).collect()
    }

    /// Checks that `access` limits the paths of no host in `ssh`.
    ///
    /// # Errors
    /// A message that names the host and the setting.
    pub fn check_ssh(&self, access: &ProgramHostAccess) -> Result<(), String> {
        self.ssh_remotes()?.iter().try_for_each(|remote| remote.check_paths(access))
    }
}

impl SandboxProfileRule {
    /// Returns the hosts that the programs may reach, if there are any.
    ///
    /// # Errors
    /// A message with the invalid value.
    pub(super) fn access(&self) -> Result<Option<Arc<ProgramHostAccess>>, String> {
        let setting = format!("`hosts` of the [[sandbox.for]] table for `{}`", self.tools);
        host_access(&self.hosts, self.profile, &setting)
    }
}

/// Parses the rules and presets in `hosts`, which programs with the profile `profile` may reach.
/// Returns `None` if `hosts` is empty. Fails if the profile already allows all hosts. `setting` is
/// the name of the setting for errors.
fn host_access(
    hosts: &[String],
    profile: SandboxProfile,
    setting: &str,
) -> Result<Option<Arc<ProgramHostAccess>>, String> {
    let access = ProgramHostAccess::parse(hosts, setting)?;
    match profile {
        SandboxProfile::Network | SandboxProfile::Off if access.is_some() => Err(format!(
            "{setting} has no effect with the profile `{}`, which allows all hosts; use the \
             profile `read-only` or `workspace`, or remove the hosts",
            profile.name()
        )),
        _ => Ok(access),
    }
}

impl Default for SandboxSettings {
    fn default() -> Self {
        Self {
            profile: SandboxProfile::Workspace,
            require: IncompleteSandboxPolicy::Best,
            read: Vec::new(),
            write: Vec::new(),
            unix_sockets: false,
            hosts: Vec::new(),
            credentials: Vec::new(),
            ssh: Vec::new(),
            restore: RestoreRegistryAccess::Confirm,
            git: GitFolderAccess::Read,
            memory_bytes: 0,
            processes: 1024,
            cpu_percent: 0,
            rules: Vec::new(),
        }
    }
}

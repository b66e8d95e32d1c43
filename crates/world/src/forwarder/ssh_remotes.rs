//! SSH servers that programs may use with keys of the user's SSH agent.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use toolgate_net::HostRule;

use super::ProgramHostAccess;
use super::ssh_keys::{SshPublicKey, parse_fingerprint};

/// The port of SSH servers.
const SSH_PORT: u16 = 22;
/// The port of HTTPS, which host rules without a port allow.
const DEFAULT_PORT: u16 = 443;

/// An SSH server that programs may use, and the keys with which they may log in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshRemote {
    host: String,
    port: u16,
    host_keys: Vec<SshPublicKey>,
    /// The fingerprints of the user's keys with which programs may log in.
    keys: Vec<String>,
    users: Vec<String>,
    /// The socket of the user's SSH agent. If the settings name no socket, `None` until a program
    /// starts.
    agent: Option<PathBuf>,
}

impl SshRemote {
    /// Creates a remote at `host`, a host name with or without a port. `host_keys` are the public
    /// keys of its server, and `keys` are public keys or fingerprints of the user's keys. Programs
    /// may log in as `users`. `agent` is the socket of the user's agent.
    ///
    /// # Errors
    /// A sentence that explains what is invalid.
    pub fn parse(
        host: &str,
        host_keys: &[String],
        keys: &[String],
        users: &[String],
        agent: Option<&str>,
    ) -> Result<Self, String> {
        let single = HostRule::parse(host)?.single_host();
        let (name, port) = single.ok_or_else(|| {
            format!("the host {host:?} is invalid: name one host, without `*.` and without a path")
        })?;
        let odd = |why: String| format!("for the host {host}, {why}");
        for (name, values) in [("host_keys", host_keys), ("keys", keys), ("users", users)] {
            if values.is_empty() {
                return Err(odd(format!("`{name}` is empty")));
            }
        }
        if let Some(agent) = agent.filter(|it| !it.starts_with('/') && !it.starts_with("~/")) {
            return Err(odd(format!(
                "`agent` is `{agent}`; the path must be absolute or start with `~/`"
            )));
        }
        let host_keys = host_keys.iter().map(|line| SshPublicKey::parse_verifiable(line));
        let keys = keys.iter().map(|key| parse_fingerprint(key));
        Ok(Self {
            host: name,
            port: port.unwrap_or(SSH_PORT),
            host_keys: host_keys.collect::<Result<_, _>>().map_err(odd)?,
            keys: keys.collect::<Result<_, _>>().map_err(odd)?,
            users: users.to_vec(),
            agent: agent.map(PathBuf::from),
        })
    }

    /// Returns the SSH servers among `remotes` that a program with `access` may use. `home` is the
    /// user's home folder. `agent` is the socket of the user's agent, unless a remote names its own
    /// socket.
    ///
    /// # Errors
    /// A remote has no agent, or a rule limits the paths on its host.
    pub(crate) fn for_run(
        remotes: &[Self],
        access: &ProgramHostAccess,
        home: Option<&Path>,
        agent: Option<&Path>,
    ) -> io::Result<Vec<Self>> {
        let used = remotes.iter().filter(|remote| remote.is_allowed_by(access));
        let with_agent = used.map(|remote| {
            remote.check_paths(access).map_err(io::Error::other)?;
            let named = remote.agent.as_deref().map(|named| expand_home(named, home));
            let agent = named.or_else(|| agent.map(Path::to_owned)).ok_or_else(|| {
                io::Error::other(format!(
                    "the host {} in sandbox.ssh needs an SSH agent: start toolgate with \
                     SSH_AUTH_SOCK, or set `agent`",
                    remote.host
                ))
            })?;
            Ok(Self { agent: Some(agent), ..remote.clone() })
        });
        with_agent.collect()
    }

    /// Checks that no rule of `access` limits the paths on this host, because toolgate cannot read
    /// the paths in an SSH connection.
    ///
    /// # Errors
    /// A sentence that names the host and the setting.
    pub fn check_paths(&self, access: &ProgramHostAccess) -> Result<(), String> {
        if !access.rules.has_paths_for(&self.host) {
            return Ok(());
        }
        let (host, setting) = (&self.host, &access.setting);
        Err(format!(
            "{setting} allows only some paths on {host}, but SSH connections hide their paths; \
             remove the path from the rule, or remove {host} from sandbox.ssh"
        ))
    }

    /// Returns the content of a `known_hosts` file with the keys of this server, one in each line.
    pub(crate) fn known_hosts(&self) -> String {
        let host = match self.port {
            SSH_PORT => self.host.clone(),
            port => format!("[{}]:{port}", self.host),
        };
        let mut lines = String::new();
        for key in &self.host_keys {
            // Writing to a string never fails.
            let _ = writeln!(lines, "{host} {}", key.line());
        }
        lines
    }

    /// Returns true if the server of this remote is `host`, a normalized name, on `port`.
    pub(super) fn is_at(&self, host: &str, port: u16) -> bool {
        self.host == host && self.port == port
    }

    /// Returns true if the server has the key `blob`.
    pub(super) fn has_host_key(&self, blob: &[u8]) -> bool {
        self.host_keys.iter().any(|key| key.blob() == blob)
    }

    /// Returns true if programs may log in with the key that has `fingerprint`.
    pub(super) fn has_key(&self, fingerprint: &str) -> bool {
        self.keys.iter().any(|key| key == fingerprint)
    }

    /// Returns true if programs may log in as `user`.
    pub(super) fn has_user(&self, user: &[u8]) -> bool {
        self.users.iter().any(|allowed| allowed.as_bytes() == user)
    }

    /// Returns the socket of the user's agent.
    pub(super) fn agent(&self) -> Option<&Path> {
        self.agent.as_deref()
    }

    /// Returns true if `access` allows the host of this remote on its SSH port or on port 443, the
    /// port that a rule without a port allows.
    fn is_allowed_by(&self, access: &ProgramHostAccess) -> bool {
        [self.port, DEFAULT_PORT].iter().any(|port| access.rules.allow(&self.host, *port))
    }
}

/// Expands a leading `~` in `path` to `home`.
fn expand_home(path: &Path, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST_KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl";

    fn remote(host: &str) -> Result<SshRemote, String> {
        let keys = [HOST_KEY.to_owned()];
        SshRemote::parse(host, &keys, &keys, &["git".to_owned()], None)
    }

    fn access(hosts: &[&str]) -> ProgramHostAccess {
        let hosts: Vec<_> = hosts.iter().map(|&host| host.to_owned()).collect();
        let access = ProgramHostAccess::parse(&hosts, "sandbox.hosts").unwrap().unwrap();
        ProgramHostAccess::clone(&access)
    }

    #[test]
    fn a_remote_is_one_host_with_its_keys_and_users() {
        let list = |values: &[&str]| values.iter().map(|&it| it.to_owned()).collect::<Vec<_>>();
        let (keys, git) = (list(&[HOST_KEY]), list(&["git"]));
        for (host, host_keys, keys, users, agent, why) in [
            ("*.example.com", &keys, &keys, &git, None, "name one host"),
            ("git.example.com/acme/*", &keys, &keys, &git, None, "without a path"),
            ("git.example.com", &list(&[]), &keys, &git, None, "`host_keys` is empty"),
            ("git.example.com", &keys, &list(&[]), &git, None, "`keys` is empty"),
            ("git.example.com", &keys, &keys, &list(&[]), None, "`users` is empty"),
            ("git.example.com", &keys, &list(&["ada@laptop"]), &git, None, "not a public key"),
            ("git.example.com", &keys, &keys, &git, Some("agent"), "must be absolute"),
        ] {
            let refusal = SshRemote::parse(host, host_keys, keys, users, agent).unwrap_err();
            assert!(refusal.contains(why), "{refusal}");
        }
        let known = |host: &str| remote(host).unwrap().known_hosts();
        assert_eq!(known("Git.example.com"), format!("git.example.com {HOST_KEY}\n"));
        assert_eq!(known("git.example.com:2222"), format!("[git.example.com]:2222 {HOST_KEY}\n"));
    }

    #[test]
    fn a_program_uses_the_remotes_whose_hosts_its_rules_allow() {
        let remotes = [remote("git.example.com").unwrap(), remote("other.example:2222").unwrap()];
        let agent = Some(Path::new("/run/agent"));
        let used = |hosts: &[&str]| {
            let used = SshRemote::for_run(&remotes, &access(hosts), None, agent).unwrap();
            used.iter().map(|remote| remote.host.clone()).collect::<Vec<_>>()
        };
        assert_eq!(used(&["git.example.com"]), ["git.example.com"]);
        assert_eq!(used(&["git.example.com:22"]), ["git.example.com"]);
        assert_eq!(used(&["*.example.com", "other.example"]), ["git.example.com", "other.example"]);
        assert_eq!(used(&["git.example.com:80", "other.example:22"]), [""; 0]);
        let refused = SshRemote::for_run(&remotes, &access(&["git.example.com"]), None, None);
        assert!(refused.unwrap_err().to_string().contains("needs an SSH agent"));
        let limited = access(&["git.example.com/acme/*"]);
        let refused = SshRemote::for_run(&remotes, &limited, None, agent).unwrap_err();
        assert!(refused.to_string().contains("allows only some paths on git.example.com"));
    }
}

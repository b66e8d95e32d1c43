//! Access to programs, the network, variables and secrets, which the server passes to upstreams.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::CancellationToken;
use toolgate_contract::{BoxFuture, KeepActiveGuard};
use toolgate_net::{ByteStream, HttpUrl};

/// Access of upstreams to the system: starts their programs and opens their connections. The
/// implementation decides which addresses are reachable and how programs are confined.
pub trait UpstreamSystemAccess: Send + Sync + 'static {
    /// Starts an upstream's program. Returns the reason if it cannot start.
    fn start<'a>(
        &'a self,
        program: &'a UpstreamProgramStart,
    ) -> BoxFuture<'a, Result<RunningUpstreamProgram, String>>;
    /// Connects to the network address `place`. Returns the reason if that fails.
    fn dial<'a>(
        &'a self,
        place: &'a NetworkAddress,
    ) -> BoxFuture<'a, Result<Box<dyn ByteStream>, String>>;
    /// Returns the value of the server's environment variable `name`, if the variable is set.
    fn variable(&self, name: &str) -> Option<String>;
    /// Returns the stored secret `name`, such as OAuth tokens, if there is one. Only the server's
    /// owner can read it.
    fn secret(&self, name: &str) -> Option<String>;
    /// Stores `secret` under `name`. With `None`, deletes it. Returns the reason if that fails.
    fn keep_secret(&self, name: &str, secret: Option<&str>) -> Result<(), String>;
    /// Locks the stored secret `name` across processes and servers that share it, until the
    /// returned guard is dropped. Returns the reason if that fails.
    fn hold_secret<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<KeepActiveGuard, String>>;
    /// Fetches the stored secret `name` from other servers that share it. By default, secrets are
    /// not shared.
    fn fetch_secret<'a>(&'a self, name: &'a str) -> BoxFuture<'a, ()> {
        let _ = name;
        Box::pin(std::future::ready(()))
    }
    /// Passes the stored secret `name`, or its deletion, to other servers that share it. Call this
    /// while the secret is locked. By default, secrets are not shared.
    fn share_secret<'a>(&'a self, name: &'a str) -> BoxFuture<'a, ()> {
        let _ = name;
        Box::pin(std::future::ready(()))
    }
    /// Parses the front matter of a `SKILL.md`. Returns the reason if it is invalid.
    fn front_matter(&self, text: &str) -> Result<Map<String, Value>, String>;
}

/// Program of an upstream that is to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamProgramStart {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Environment variables of the program in addition to inherited ones.
    pub env: BTreeMap<String, String>,
    /// Names of the environment variables that the program inherits.
    pub keep_env: Vec<String>,
    /// Working folder of the program, relative to the workspace.
    pub cwd: Option<String>,
    /// Name of the program's sandbox profile.
    pub sandbox: String,
    /// Hosts that the program may reach. Empty if the sandbox profile alone decides.
    pub hosts: Vec<String>,
}

/// Running program of an upstream, with its standard streams.
pub struct RunningUpstreamProgram {
    /// Standard input of the program.
    pub input: Box<dyn AsyncWrite + Send + Unpin>,
    /// Standard output of the program.
    pub output: Box<dyn UpstreamOutputReader>,
    /// Standard error of the program.
    pub errors: Box<dyn AsyncRead + Send + Unpin>,
    /// Token that is cancelled when the program has exited, even if its child processes continue.
    pub exited: CancellationToken,
    /// Function that returns the hosts that were refused to the program so far, in alphabetical
    /// order. `None` if its network is not limited to hosts.
    pub refused_hosts: Option<RefusedHostsFn>,
    /// Guard that stops the program and its child processes on drop.
    pub hold: KeepActiveGuard,
}

/// Function that returns the hosts that the sandbox has kept a running program from reaching.
pub type RefusedHostsFn = Arc<dyn Fn() -> Vec<UpstreamRefusedHost> + Send + Sync>;

/// A host that the sandbox kept an upstream's program from reaching.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamRefusedHost {
    /// The refused host, with its port.
    pub host: String,
    /// Number of times that the program tried to reach the host.
    pub tries: u64,
    /// The reason for the refusal, and the change of the settings that would allow the host.
    pub reason: String,
}

impl UpstreamRefusedHost {
    /// Returns a line such as `a.example:443 (2 tries): it is not in …`.
    pub(crate) fn summary(&self) -> String {
        let Self { host, tries, reason } = self;
        let tries = match tries {
            1 => "1 try".to_owned(),
            tries => format!("{tries} tries"),
        };
        format!("{host} ({tries}): {reason}")
    }

    /// Returns the hosts of `now` with the tries since `before`, an earlier state of the same
    /// program. Leaves out hosts without new tries.
    pub(crate) fn tries_since(before: &[Self], now: Vec<Self>) -> Vec<Self> {
        let known = |host: &str| before.iter().find(|it| it.host == host).map_or(0, |it| it.tries);
        let tries = |it: Self| Self { tries: it.tries.saturating_sub(known(&it.host)), ..it };
        now.into_iter().map(tries).filter(|it| it.tries > 0).collect()
    }
}

/// Standard output of an upstream's program. Implementations may support reads in a busy loop.
pub trait UpstreamOutputReader: AsyncRead + Send + Unpin {
    /// Reads into `piece` in a busy loop, without sleeping, until data arrives or the time `end` is
    /// reached. Returns true if anything was read. By default, reads nothing.
    fn read_busy(&self, end: Instant, piece: &mut ReadBuf<'_>) -> bool {
        let _ = (end, piece);
        false
    }
}

/// A network address to which a connection is opened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NetworkAddress {
    /// Host name or IP address, without the brackets of IPv6.
    pub host: String,
    /// TCP port of the address.
    pub port: u16,
    /// True if the connection to the address uses TLS.
    pub secure: bool,
    /// True if the address may be in a private network.
    pub private_network: bool,
    /// True if the host name may resolve to this machine.
    pub may_be_local: bool,
}

impl NetworkAddress {
    /// Returns the address of the server of `url`. With `private_network`, the address may be in a
    /// private network or on this machine.
    pub(crate) fn from_url(url: &HttpUrl, private_network: bool) -> Self {
        Self {
            host: url.host().to_owned(),
            port: url.port(),
            secure: url.is_secure(),
            private_network,
            may_be_local: private_network,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tries_of_a_call_are_counted_for_it() {
        let refused = |host: &str, tries| {
            let reason = "it is not in `hosts`".to_owned();
            UpstreamRefusedHost { host: host.to_owned(), tries, reason }
        };
        let before = [refused("a.example:443", 2), refused("b.example:443", 1)];
        let now = ["a.example:443", "b.example:443", "c.example:443"].map(|host| refused(host, 2));
        let new = UpstreamRefusedHost::tries_since(&before, now.to_vec());
        assert_eq!(new, [refused("b.example:443", 1), refused("c.example:443", 2)]);
        assert_eq!(new[0].summary(), "b.example:443 (1 try): it is not in `hosts`");
    }
}

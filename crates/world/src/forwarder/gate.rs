//! Decides whether a forwarder may connect to a host, and connects.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use toolgate_net::addresses::{is_own_host, is_private_network};
use toolgate_net::{HostRule, RequestPath, normalize_host};

use super::ProgramHostAccess;
use super::refused_hosts::RefusedHosts;
use super::ssh_remotes::SshRemote;
use super::tls_inspector::TlsInspector;

/// The time limit for looking up the addresses of a host.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit for connecting to a host, which covers the attempts at all its addresses.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// The time without success after which the next address of a host is tried at the same time (RFC
/// 8305).
const NEXT_ADDRESS_PAUSE: Duration = Duration::from_millis(250);
/// The idle time of a connection after which the kernel checks whether the server still exists.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// The maximum number of addresses of one host that are tried.
const ADDRESSES_MAX: usize = 16;
/// The maximum number of name lookups for one run of a program at the same time. Further lookups
/// wait.
const RUN_LOOKUPS_MAX: usize = 4;
/// The maximum number of name lookups of all runs at the same time. Each occupies a thread until
/// the system's resolver gives up, which can take longer than [`LOOKUP_TIMEOUT`].
static LOOKUPS: Semaphore = Semaphore::const_new(32);
/// The maximum number of characters of an invalid host name in a report.
const NAME_CHARS_MAX: usize = 80;
/// The maximum number of characters of a refused path in a report.
const PATH_CHARS_MAX: usize = 200;
/// The port of HTTPS, which host rules without a port allow.
const DEFAULT_PORT: u16 = 443;

/// The host and port that a program wants to reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ForwarderDestination {
    /// The host, normalized for comparison with host rules.
    pub(super) host: String,
    pub(super) port: u16,
}

/// The protocols that a tunnel may carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TunnelUse {
    /// TLS for the host of the tunnel.
    Tls,
    /// SSH, and no other protocol.
    Ssh,
    /// TLS for the host of the tunnel, and all other protocols except plain HTTP.
    Any,
}

/// The reason why a forwarder did not connect to a host.
#[derive(Debug)]
pub(super) enum ForwardFailure {
    /// The rules do not allow the host. The refused attempt has been counted.
    Refused(String),
    /// The rules allow the host, but no connection could be opened.
    Unreachable(String),
}

/// A lookup of a host's addresses in progress.
pub(super) type PendingHostLookup = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;

/// The function that looks up the addresses of a host.
pub(super) type HostLookupFn = Arc<dyn Fn(String) -> PendingHostLookup + Send + Sync>;

/// The rules for the hosts that one run of a program may reach, and the record of refused attempts.
pub(super) struct ForwarderHostPolicy {
    access: Arc<ProgramHostAccess>,
    refused: Arc<RefusedHosts>,
    lookup: HostLookupFn,
    /// The inspector of requests over TLS. `None` if no path is limited and no credential is added.
    inspector: Option<TlsInspector>,
    /// The SSH servers that the program may use.
    ssh_remotes: Arc<[SshRemote]>,
}

impl ForwarderHostPolicy {
    pub(super) fn new(
        access: Arc<ProgramHostAccess>,
        refused: Arc<RefusedHosts>,
        inspector: Option<TlsInspector>,
        ssh_remotes: Arc<[SshRemote]>,
    ) -> Self {
        let run_lookups = Arc::new(Semaphore::new(RUN_LOOKUPS_MAX));
        let lookup = move |host: String| -> PendingHostLookup {
            let run_lookups = run_lookups.clone();
            Box::pin(async move {
                let of_run = run_lookups.acquire_owned().await.map_err(io::Error::other)?;
                let of_all = LOOKUPS.acquire().await.map_err(io::Error::other)?;
                // A task of its own keeps both permits as long as the resolver's thread is busy,
                // even if nobody waits for the answer any more.
                let resolving = toolgate_net::spawn_task(async move {
                    let found = tokio::net::lookup_host((host, 0)).await;
                    drop((of_run, of_all));
                    found.map(|found| found.map(|address| address.ip()).collect::<Vec<_>>())
                });
                resolving.await.map_err(io::Error::other)?
            })
        };
        Self { access, refused, lookup: Arc::new(lookup), inspector, ssh_remotes }
    }

    /// Creates the rules of one forwarder. They allow the hosts in `access` and count attempts to
    /// reach other hosts in `refused`. `lookup` looks up the addresses of hosts.
    #[cfg(test)]
    pub(super) fn with_lookup(
        access: Arc<ProgramHostAccess>,
        refused: Arc<RefusedHosts>,
        lookup: HostLookupFn,
    ) -> Self {
        Self { access, refused, lookup, inspector: None, ssh_remotes: Arc::default() }
    }

    /// Returns the inspector of requests over TLS, if there is one.
    pub(super) fn inspector(&self) -> Option<&TlsInspector> {
        self.inspector.as_ref()
    }

    /// Returns true if each request to `target` is checked, because a rule limits its paths, or
    /// because the forwarder adds a credential.
    pub(super) fn inspects(&self, target: &ForwarderDestination) -> bool {
        if self.is_ssh(target) {
            return false;
        }
        self.limits_paths(target)
            || self.inspector.as_ref().is_some_and(|inspector| inspector.has_credential(target))
    }

    /// Returns true if the rules allow only some paths on `target`.
    pub(super) fn limits_paths(&self, target: &ForwarderDestination) -> bool {
        self.access.rules.restricts_paths(&target.host, target.port)
    }

    /// Checks that the rules allow requests for `path` to `target`.
    ///
    /// # Errors
    /// No rule allows `path`. The refused attempt is then counted.
    pub(super) fn check_path(
        &self,
        target: &ForwarderDestination,
        path: &str,
    ) -> Result<(), ForwardFailure> {
        if !self.limits_paths(target) {
            return Ok(());
        }
        let setting = &self.access.setting;
        let (why, allow) = match RequestPath::parse(path) {
            Ok(path) if self.access.rules.allow_path(&target.host, target.port, &path) => {
                return Ok(());
            }
            Ok(_) => {
                let rule = target.allowing_rule_for(path);
                let allow = rule.map(|rule| format!("add \"{rule}\" to {setting}"));
                (format!("its path is not in {setting}"), allow)
            }
            Err(why) => (format!("its path {why}"), None),
        };
        let shown: String =
            path.chars().take(PATH_CHARS_MAX).flat_map(char::escape_default).collect();
        Err(self.count(&format!("{target}{shown}"), why, allow))
    }

    /// Checks that the rules allow the destination `host` on `port`, and returns the destination.
    ///
    /// # Errors
    /// The rules do not allow this destination. The refused attempt is then counted.
    pub(super) fn admit(
        &self,
        host: &str,
        port: u16,
    ) -> Result<ForwarderDestination, ForwardFailure> {
        let rules = &self.access.rules;
        let setting = &self.access.setting;
        let Some(host) = normalize_host(host) else {
            let shown: String =
                host.chars().take(NAME_CHARS_MAX).flat_map(char::escape_default).collect();
            return Err(self.count(&shown, "it is not a valid host name".to_owned(), None));
        };
        let target = ForwarderDestination { host, port };
        if rules.allow(&target.host, port) {
            return Ok(target);
        }
        let why = match rules.allows_on_any_port(&target.host) {
            true => format!("port {port} is not in {setting}"),
            false => format!("it is not in {setting}"),
        };
        let allow = target.allowing_rule().map(|rule| format!("add \"{rule}\" to {setting}"));
        Err(self.count(&target.to_string(), why, allow))
    }

    /// Checks that a tunnel may lead to `host` on `port`, and returns this destination.
    ///
    /// # Errors
    /// The rules do not allow the destination, and it is not an SSH server that the program may
    /// use. The refused attempt is then counted.
    pub(super) fn admit_tunnel(
        &self,
        host: &str,
        port: u16,
    ) -> Result<ForwarderDestination, ForwardFailure> {
        let target = normalize_host(host).map(|host| ForwarderDestination { host, port });
        match target {
            Some(target) if self.is_ssh(&target) => Ok(target),
            _ => self.admit(host, port),
        }
    }

    /// Returns the protocols that a tunnel to `target` may carry.
    pub(super) fn tunnel_use(&self, target: &ForwarderDestination) -> TunnelUse {
        if self.is_ssh(target) {
            TunnelUse::Ssh
        } else if self.access.rules.names_port(&target.host, target.port) {
            TunnelUse::Any
        } else {
            TunnelUse::Tls
        }
    }

    /// Returns true if `target` is an SSH server that the program may use.
    fn is_ssh(&self, target: &ForwarderDestination) -> bool {
        self.ssh_remotes.iter().any(|remote| remote.is_at(&target.host, target.port))
    }

    /// Returns the port to compare with the host rules for `target`. This is 443 if only the SSH
    /// settings allow the port of `target`. A rule without a port allows an SSH server, too.
    fn ruled_port(&self, target: &ForwarderDestination) -> u16 {
        match self.access.rules.allow(&target.host, target.port) {
            true => target.port,
            false => DEFAULT_PORT,
        }
    }

    /// Counts a refused attempt to reach `target`, and returns the failure with the reason `why`.
    pub(super) fn refuse(&self, target: &ForwarderDestination, why: &str) -> ForwardFailure {
        self.count(&target.to_string(), why.to_owned(), None)
    }

    /// Connects to `target`. Looks up the addresses once, checks them, and connects to a checked
    /// address.
    pub(super) async fn connect(
        &self,
        target: &ForwarderDestination,
    ) -> Result<TcpStream, ForwardFailure> {
        let ForwarderDestination { host, port } = target;
        let addresses = self.addresses(target).await?;
        match timeout(CONNECT_TIMEOUT, connect_first(addresses, *port)).await {
            Ok(Ok(stream)) => {
                self.check_machine(target, &stream)?;
                prepare_stream(&stream);
                Ok(stream)
            }
            Ok(Err(err)) => {
                Err(ForwardFailure::Unreachable(format!("cannot connect to {host}:{port}: {err}")))
            }
            Err(_) => {
                let seconds = CONNECT_TIMEOUT.as_secs();
                let why = format!("connecting to {host}:{port} timed out after {seconds} s");
                Err(ForwardFailure::Unreachable(why))
            }
        }
    }

    /// Fails if `stream` is connected to this machine itself and only a wildcard rule allows
    /// `target`. A wildcard rule must not open services of this machine to the program.
    fn check_machine(
        &self,
        target: &ForwarderDestination,
        stream: &TcpStream,
    ) -> Result<(), ForwardFailure> {
        let rules = &self.access.rules;
        if rules.allows_by_exact_name(&target.host, self.ruled_port(target))
            || is_own_host(&target.host)
        {
            return Ok(());
        }
        let (Ok(own), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) else {
            let why = format!("the connection to {target} was lost");
            return Err(ForwardFailure::Unreachable(why));
        };
        // The kernel gives a connection to an address of this machine the same source address.
        if own.ip() != peer.ip() {
            return Ok(());
        }
        let why = format!("its address {} belongs to this machine", peer.ip());
        let allow = target.allowing_rule();
        let setting = &self.access.setting;
        let allow = allow.map(|rule| format!("add exactly \"{rule}\" to {setting}"));
        Err(self.count(&target.to_string(), why, allow))
    }

    /// Looks up the addresses of `target`, and returns those that the rules allow.
    async fn addresses(
        &self,
        target: &ForwarderDestination,
    ) -> Result<Vec<IpAddr>, ForwardFailure> {
        let ForwarderDestination { host, .. } = target;
        let found = match host.parse::<IpAddr>() {
            Ok(address) => vec![address],
            // Resolvers may look up these names on the network (RFC 6761).
            Err(_) if is_own_host(host) => {
                vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]
            }
            Err(_) => match timeout(LOOKUP_TIMEOUT, (self.lookup)(host.clone())).await {
                Ok(Ok(found)) => found,
                Ok(Err(err)) => {
                    return Err(ForwardFailure::Unreachable(format!(
                        "cannot look up {host}: {err}"
                    )));
                }
                Err(_) => {
                    let why = format!("the lookup of {host} timed out");
                    return Err(ForwardFailure::Unreachable(why));
                }
            },
        };
        let rules = &self.access.rules;
        let port = self.ruled_port(target);
        let (allowed, refused): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|address| rules.allows_at_address(host, port, *address));
        let Some(address) = refused.first().filter(|_| allowed.is_empty()) else {
            return Ok(allowed);
        };
        let why = format!("its address {address} is not public");
        let allow = is_private_network(*address).then(|| target.allowing_rule()).flatten();
        let setting = &self.access.setting;
        let allow = allow.map(|rule| format!("add exactly \"{rule}\" to {setting}"));
        Err(self.count(&target.to_string(), why, allow))
    }

    fn count(&self, host: &str, why: String, allow: Option<String>) -> ForwardFailure {
        let message = format!("toolgate refused the connection to {host}: {why}");
        self.refused.count(host, why, allow);
        ForwardFailure::Refused(message)
    }
}

/// Connects to the first of `addresses` that answers. If an address does not answer at once, the
/// next address is tried after a short pause.
pub(super) async fn connect_first(addresses: Vec<IpAddr>, port: u16) -> io::Result<TcpStream> {
    let mut addresses = addresses.into_iter().take(ADDRESSES_MAX);
    let mut attempts = JoinSet::new();
    let mut last_error = io::Error::new(io::ErrorKind::NotFound, "it has no address");
    loop {
        let next = addresses.next();
        let has_next = next.is_some();
        if let Some(address) = next {
            let target = SocketAddr::new(address, port);
            attempts.spawn(async move { TcpStream::connect(target).await });
        }
        let pause = if has_next { NEXT_ADDRESS_PAUSE } else { CONNECT_TIMEOUT };
        match timeout(pause, attempts.join_next()).await {
            Ok(Some(Ok(Ok(stream)))) => return Ok(stream),
            Ok(Some(Ok(Err(err)))) => last_error = err,
            Ok(Some(Err(err))) => last_error = io::Error::other(err),
            Ok(None) => return Err(last_error),
            // The next address is due, or the caller's time limit ends the wait.
            Err(_) => {}
        }
    }
}

/// Sets the options of a connection to a server. Ignores errors, because the connection works
/// without these options.
fn prepare_stream(stream: &TcpStream) {
    use rustix::net::sockopt;
    let _ = stream.set_nodelay(true);
    // A server that has vanished must not occupy a connection of a program that runs for days.
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(stream, KEEPALIVE_IDLE / 3);
    let _ = sockopt::set_tcp_keepcnt(stream, 3);
}

impl ForwarderDestination {
    /// Returns the text of a host rule that would allow this host and port. Returns `None` if no
    /// rule can allow them.
    fn allowing_rule(&self) -> Option<String> {
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let rule = match self.port {
            443 | 80 => host,
            port => format!("{host}:{port}"),
        };
        HostRule::parse(&rule).ok().map(|rule| rule.to_string())
    }

    /// Returns the text of a host rule that would allow `path` on this host and port: the path
    /// itself, or all paths below its first two segments. Returns `None` if no rule can allow it.
    fn allowing_rule_for(&self, path: &str) -> Option<String> {
        let rule = self.allowing_rule()?;
        let rule = match path.match_indices('/').nth(2) {
            Some((at, _)) => format!("{rule}{}/*", path.get(..at)?),
            None => format!("{rule}{path}"),
        };
        HostRule::parse(&rule).ok().map(|rule| rule.to_string())
    }
}

impl std::fmt::Display for ForwarderDestination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

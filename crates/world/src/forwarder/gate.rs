//! Decides whether a forwarder may connect to a host, and connects.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;
use toolgate_net::addresses::{is_own_host, is_private_network};
use toolgate_net::normalize_host;

use super::HostAccess;
use super::refused_hosts::RefusedHosts;

/// The time limit of a name lookup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit of connecting to all addresses of a host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// The maximum number of characters of an invalid host name in a report.
const NAME_CHARS_MAX: usize = 80;

/// The host and port that a program wants to reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ForwardTarget {
    /// The normalized host.
    pub(super) host: String,
    pub(super) port: u16,
}

/// The reason why a forwarder did not connect.
#[derive(Debug)]
pub(super) enum ForwardFailure {
    /// The rules do not allow it. It has been counted.
    Refused(String),
    /// The host is allowed, but cannot be reached.
    Unreachable(String),
}

/// A lookup in progress.
pub(super) type Lookup = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;

/// The function that looks up the addresses of a name.
pub(super) type HostLookup = Arc<dyn Fn(String) -> Lookup + Send + Sync>;

/// The rules of one run, and its refused hosts.
pub(super) struct ForwarderGate {
    access: Arc<HostAccess>,
    refused: Arc<RefusedHosts>,
    lookup: HostLookup,
}

impl ForwarderGate {
    pub(super) fn new(access: Arc<HostAccess>, refused: Arc<RefusedHosts>) -> Self {
        let lookup = |host: String| -> Lookup {
            Box::pin(async move {
                let found = tokio::net::lookup_host((host, 0)).await?;
                Ok(found.map(|address| address.ip()).collect())
            })
        };
        Self { access, refused, lookup: Arc::new(lookup) }
    }

    /// Creates a gate that looks up names with `lookup`.
    #[cfg(test)]
    pub(super) fn with_lookup(
        access: Arc<HostAccess>,
        refused: Arc<RefusedHosts>,
        lookup: HostLookup,
    ) -> Self {
        Self { access, refused, lookup }
    }

    /// Returns the target `host` on `port`, if the rules allow it.
    pub(super) fn admit(&self, host: &str, port: u16) -> Result<ForwardTarget, ForwardFailure> {
        let rules = &self.access.rules;
        let setting = &self.access.setting;
        let Some(host) = normalize_host(host) else {
            let shown: String =
                host.chars().take(NAME_CHARS_MAX).flat_map(char::escape_default).collect();
            return Err(self.count(&shown, "it is not a valid host name".to_owned(), None));
        };
        let target = ForwardTarget { host, port };
        if rules.allow(&target.host, port) {
            return Ok(target);
        }
        let why = match rules.name_host(&target.host) {
            true => format!("port {port} is not in {setting}"),
            false => format!("it is not in {setting}"),
        };
        let allow = target.allowing_rule().map(|rule| format!("add \"{rule}\" to {setting}"));
        Err(self.count(&target.to_string(), why, allow))
    }

    /// Returns true if a rule names the port of `target` explicitly, so that any protocol may be
    /// spoken there.
    pub(super) fn allows_any_protocol(&self, target: &ForwardTarget) -> bool {
        self.access.rules.name_port(&target.host, target.port)
    }

    /// Counts a refused try to reach `target` and returns the failure.
    pub(super) fn refuse(&self, target: &ForwardTarget, why: &str) -> ForwardFailure {
        self.count(&target.to_string(), why.to_owned(), None)
    }

    /// Connects to `target`. The addresses are looked up once and checked, and the connection is
    /// made to a checked address.
    pub(super) async fn connect(
        &self,
        target: &ForwardTarget,
    ) -> Result<TcpStream, ForwardFailure> {
        let ForwardTarget { host, port } = target;
        let addresses = self.addresses(target).await?;
        let mut last = None;
        let connecting = async {
            for address in addresses {
                match TcpStream::connect(SocketAddr::new(address, *port)).await {
                    Ok(stream) => return Some(stream),
                    Err(err) => last = Some(err),
                }
            }
            None
        };
        let connected = timeout(CONNECT_TIMEOUT, connecting).await;
        match connected {
            Ok(Some(stream)) => {
                // The stream works without it, only slower.
                let _ = stream.set_nodelay(true);
                Ok(stream)
            }
            Ok(None) => {
                let why =
                    last.map_or_else(|| "it has no address".to_owned(), |err| err.to_string());
                Err(ForwardFailure::Unreachable(format!("cannot connect to {host}:{port}: {why}")))
            }
            Err(_) => {
                let seconds = CONNECT_TIMEOUT.as_secs();
                let why = format!("connecting to {host}:{port} timed out after {seconds} s");
                Err(ForwardFailure::Unreachable(why))
            }
        }
    }

    /// Returns the addresses of `target` that the rules allow.
    async fn addresses(&self, target: &ForwardTarget) -> Result<Vec<IpAddr>, ForwardFailure> {
        let ForwardTarget { host, port } = target;
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
        let (allowed, refused): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|address| rules.allow_address(host, *port, *address));
        let Some(address) = refused.first().filter(|_| allowed.is_empty()) else {
            return Ok(allowed);
        };
        let why = format!("{address}, its address, is not public");
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

impl ForwardTarget {
    /// Returns the rule that would allow this target. `None` if no rule may.
    fn allowing_rule(&self) -> Option<String> {
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let rule = match self.port {
            443 | 80 => host,
            port => format!("{host}:{port}"),
        };
        toolgate_net::HostRule::parse(&rule).ok().map(|rule| rule.to_string())
    }
}

impl std::fmt::Display for ForwardTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

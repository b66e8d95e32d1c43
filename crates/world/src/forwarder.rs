//! Connects a confined program to the hosts that its rules allow, and to no other hosts.
//!
//! The program has a network namespace of its own, without a network. The sandbox helper opens a
//! listener there, on the loopback interface, and hands it to the server. The server serves an HTTP
//! proxy on it: it accepts connections in the program's network, and opens its own connections in
//! the machine's network. So no process of the namespace needs access to the machine's network.
//!
//! Each run has its own namespace, listener and forwarder.

mod connection;
mod credentials;
mod gate;
mod host_sources;
mod http_messages;
mod inspected_tunnel;
mod refused_hosts;
mod relay;
mod run_authority;
mod ssh_agent;
mod ssh_keys;
mod ssh_remotes;
mod tls_inspector;
mod tunnel;

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;
use toolgate_net::HostRules;

pub use credentials::HostCredential;
pub use host_sources::PackageHostSource;
pub use refused_hosts::RefusedHost;
pub use ssh_remotes::SshRemote;

pub(crate) use ssh_agent::RunSshAgent;
pub(crate) use tls_inspector::{TlsInspector, trust_variables};

use gate::ForwarderHostPolicy;
use refused_hosts::RefusedHosts;

/// The port on which a confined program finds the forwarder in its network namespace. The port is
/// below those that the kernel assigns, and above those that need privileges.
pub(crate) const FORWARDER_PORT: u16 = 29_517;
/// The maximum number of connections of one program to its forwarder at the same time. Further
/// connections wait.
const CONNECTIONS_MAX: usize = 256;
/// The pause after a connection could not be accepted, for example for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The hosts that a program may reach, and the name of the setting that lists them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramHostAccess {
    /// Rules that name the hosts that the program may reach.
    pub rules: HostRules,
    /// The package managers whose configuration names further allowed hosts. toolgate asks the
    /// package managers for these hosts before the program starts.
    pub sources: Vec<PackageHostSource>,
    /// The setting that contains the rules, for messages: for example `sandbox.hosts`.
    pub setting: String,
}

impl ProgramHostAccess {
    /// Creates the access that the rules and presets in `hosts` describe. Returns `None` if `hosts`
    /// is empty. `setting` is the name of the setting that contains `hosts`.
    ///
    /// # Errors
    /// A sentence about the first invalid rule or unknown preset, which names `setting`.
    pub fn parse(hosts: &[String], setting: &str) -> Result<Option<Arc<Self>>, String> {
        let odd = |why: String| format!("in {setting}, {why}");
        let (presets, rules): (Vec<&String>, Vec<&String>) =
            hosts.iter().partition(|host| host.starts_with('@'));
        let rules = HostRules::parse(&rules).map_err(odd)?;
        let sources = presets.into_iter().map(|preset| PackageHostSource::parse_preset(preset));
        let sources = sources.collect::<Result<Vec<_>, _>>().map_err(odd)?.concat();
        let access = || Arc::new(Self { rules, sources, setting: setting.to_owned() });
        Ok((!hosts.is_empty()).then(access))
    }

    /// Returns this access with the rules and package managers of `other` added. The name of the
    /// setting stays the same.
    #[must_use]
    pub fn merge(&self, other: &Self) -> Self {
        let mut sources = [&self.sources[..], &other.sources[..]].concat();
        sources.sort_unstable();
        sources.dedup();
        let rules = self.rules.clone().merge(&other.rules);
        Self { rules, sources, setting: self.setting.clone() }
    }
}

/// The network use of one run of a program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProgramNetworkUsage {
    /// `true` if the program reached the network through a forwarder.
    pub is_forwarded: bool,
    /// The hosts to which the forwarder refused connections.
    pub refused: Vec<RefusedHost>,
}

/// The proxy through which one run of a program reaches its allowed hosts. Dropping this value
/// closes all connections of the proxy.
pub(crate) struct NetworkForwarder {
    _serving: AbortOnDropHandle<()>,
    _agent: Option<AbortOnDropHandle<()>>,
    refused: Arc<RefusedHosts>,
}

impl NetworkForwarder {
    /// Starts a forwarder on `listener`, a listening socket in a program's network namespace.
    /// `inspector` checks requests over TLS if `access` limits paths or the program gets
    /// credentials. `agent` serves programs that may use SSH. Call this function in a Tokio
    /// runtime.
    pub(crate) fn start(
        listener: OwnedFd,
        access: &Arc<ProgramHostAccess>,
        inspector: Option<TlsInspector>,
        agent: Option<RunSshAgent>,
    ) -> io::Result<Self> {
        let listener = std::net::TcpListener::from(listener);
        listener.set_nonblocking(true)?;
        let runtime = Handle::try_current().map_err(io::Error::other)?;
        let listener = TcpListener::from_std(listener)?;
        let refused = Arc::new(RefusedHosts::default());
        let remotes = agent.as_ref().map(|agent| agent.remotes.clone()).unwrap_or_default();
        let gate = ForwarderHostPolicy::new(access.clone(), refused.clone(), inspector, remotes);
        let serving = AbortOnDropHandle::new(toolgate_net::spawn_task_on(
            &runtime,
            serve(listener, Arc::new(gate)),
        ));
        let agent = agent.map(|agent| agent.start(&runtime)).transpose()?;
        Ok(Self { _serving: serving, _agent: agent, refused })
    }

    /// Returns the program's network use so far: the hosts that the forwarder has refused.
    pub(crate) fn network_use(&self) -> ProgramNetworkUsage {
        ProgramNetworkUsage { is_forwarded: true, refused: self.refused.list() }
    }
}

/// Opens the listener of a forwarder on the loopback interface of this process's network namespace.
pub(crate) fn open_listener() -> io::Result<OwnedFd> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, FORWARDER_PORT));
    std::net::TcpListener::bind(address).map(OwnedFd::from)
}

/// Returns the environment variables that name the forwarder as proxy. Connections to the program's
/// own loopback interface bypass the forwarder, unless `rules` allow connections to the machine's
/// loopback interface.
pub(crate) fn proxy_variables(rules: &HostRules) -> impl Iterator<Item = (OsString, OsString)> {
    const PROXY_NAMES: [&str; 6] =
        ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
    const BYPASS_NAMES: [&str; 2] = ["NO_PROXY", "no_proxy"];
    let bypass = if rules.concerns_this_machine() { "" } else { "localhost,127.0.0.1,::1" };
    let proxy = format!("http://127.0.0.1:{FORWARDER_PORT}");
    let proxies = PROXY_NAMES.map(|name| (OsString::from(name), OsString::from(&proxy)));
    let bypasses = BYPASS_NAMES.map(|name| (OsString::from(name), OsString::from(bypass)));
    // Node's own HTTP client reads the variables only if this is set.
    let node = (OsString::from("NODE_USE_ENV_PROXY"), OsString::from("1"));
    proxies.into_iter().chain(bypasses).chain([node])
}

/// Accepts connections of a program until its forwarder is dropped.
async fn serve(listener: TcpListener, gate: Arc<ForwarderHostPolicy>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => {
                match accepted {
                    Ok((stream, _)) => {
                        connections.spawn(connection::serve_connection(stream, gate.clone()));
                    }
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;

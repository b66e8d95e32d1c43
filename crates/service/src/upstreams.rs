//! Gives upstreams access to this machine (programs, connections, secrets), and adds their tools to
//! the catalog.

pub(crate) mod credentials;
mod shared_credentials;
mod cache;
mod working_folder;
pub(crate) mod pins;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context as Polls, Poll};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::process::ChildStdout;
use toolgate_contract::{BoxFuture, KeepActiveGuard, PromptSource, ResourceSource, SkillSource};
use toolgate_host::{
    CatalogReadinessCheck, DynamicContentSources, Host, JobService, RejectedTool, UnavailableTool,
};
use toolgate_net::ByteStream;
use toolgate_net::addresses::{is_own_address, is_own_host, is_public};
use toolgate_toolsets::skills;
use toolgate_upstream::{
    NetworkAddress, RefusedHostsFn, RunningUpstreamProgram, UpstreamHost, UpstreamOutputReader,
    UpstreamProgramStart, UpstreamRefusedHost, UpstreamSettings, UpstreamSystemAccess, Upstreams,
};
use toolgate_world::Root;
use toolgate_world::dial;
use toolgate_world::forwarder::{ProgramHostAccess, RefusedHost};
use toolgate_world::processes::{
    self, PipedProgram, ProcessRunner, ProgramNetworkMonitor, ProgramStartRequest,
};
use toolgate_world::programs;
use toolgate_world::programs::ProgramLookupError;
use toolgate_world::sandbox::{SandboxProfile, SandboxSettings};

use crate::config::{Config, cache_folder};
pub(crate) use cache::UpstreamListingCache;
use credentials::CredentialStore;
use shared_credentials::SharedCredentials;
use working_folder::UpstreamWorkingFolder;

/// Time limit for connecting to an upstream, and for its TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Owner in the catalog of the tool that reads long results of upstreams. This name sorts before
/// all upstreams, whose names do not start with a dot.
const RESULTS_OWNER: &str = ".results";
/// Time for an upstream's program to exit before it is killed.
const EXIT_GRACE: Duration = Duration::from_secs(2);

/// Opens the upstreams of `config` for a server of the workspace `root`. `changes` reports changes
/// of their tools to clients.
///
/// # Errors
/// The settings of an upstream are invalid.
pub(crate) fn open_upstreams(
    root: &Root,
    processes: &ProcessRunner,
    config: &Config,
    changes: &toolgate_contract::ChangeFeed,
) -> anyhow::Result<OpenedUpstreams> {
    let world = upstream_world(root, processes, config);
    let folder = cache_folder().map(|cache| cache.join("upstreams"));
    let folder = folder.map(|folder| {
        let hash = blake3::hash(root.path().as_os_str().as_encoded_bytes()).to_hex();
        folder.join(&hash[..16])
    });
    let pins = (pins_file(root), config.pins.on_change);
    let cache = Arc::new(UpstreamListingCache::new(folder, pins, &config.upstream));
    let host: Arc<dyn UpstreamHost> = cache.clone();
    let upstreams = Upstreams::new(&config.upstream, world, host, changes.clone());
    Ok(OpenedUpstreams { upstreams: upstreams.map_err(|why| anyhow!(why))?, cache })
}

/// Opened upstreams, with the cache of their tool lists.
pub(crate) struct OpenedUpstreams {
    pub(crate) upstreams: Upstreams,
    pub(crate) cache: Arc<UpstreamListingCache>,
}

/// Returns the [`UpstreamSystemAccess`] for the upstreams of a server that serves `root` under
/// `config`.
pub(crate) fn upstream_world(
    root: &Root,
    processes: &ProcessRunner,
    config: &Config,
) -> Arc<dyn UpstreamSystemAccess> {
    Arc::new(LocalSystemAccess::new(root, processes, config))
}

/// Returns the path of the lock file with approved upstream tools in the workspace `root`.
fn pins_file(root: &Root) -> PathBuf {
    root.path().join(pins::LOCK_FILE_NAME)
}

/// Adds the tools of the `opened` upstreams to the catalog of `host`.
pub(crate) fn offer_tools(opened: OpenedUpstreams, host: &Arc<Host>) -> UpstreamCatalog {
    let OpenedUpstreams { upstreams, cache } = opened;
    cache.set_host(host);
    host.set_readiness(Arc::new(UpstreamReadiness(upstreams.clone())));
    if let Some(shared) = host.jobs().ok().and_then(JobService::shared_results) {
        upstreams.results().share_through(shared);
    }
    upstreams.offer();
    let catalog = UpstreamCatalog { upstreams, cache, host: Arc::downgrade(host) };
    catalog.offer_results();
    catalog
}

/// Upstreams whose tools are in the catalog of a host.
#[derive(Clone)]
pub(crate) struct UpstreamCatalog {
    pub(crate) upstreams: Upstreams,
    cache: Arc<UpstreamListingCache>,
    host: Weak<Host>,
}

impl UpstreamCatalog {
    /// Replaces the upstreams by those of `config`. If `restarts_programs` is true, also restarts
    /// the programs of unchanged upstreams. Returns the name of each changed upstream with a short
    /// text about the change.
    ///
    /// First withdraws the tools that the new settings remove, rename or leave out. Then calls
    /// `replace_gate`, so that each tool is called only through a gate that knows it.
    ///
    /// # Errors
    /// Settings are invalid. In that case nothing has changed.
    pub(crate) fn change_upstreams(
        &self,
        config: &Config,
        restarts_programs: bool,
        replace_gate: impl FnOnce(),
    ) -> Result<Vec<(String, &'static str)>, String> {
        let mut changes = self.upstreams.begin_change(&config.upstream)?;
        self.cache.set_pin_reaction(config.pins.on_change);
        replace_gate();
        let served: Vec<_> = self.upstreams.states().into_iter().map(|(name, _)| name).collect();
        self.cache.expect_listings(&config.upstream, &served);
        let restarts = |settings: &UpstreamSettings| restarts_programs && settings.url.is_none();
        changes.extend(self.upstreams.change(&config.upstream, restarts)?);
        if !changes.is_empty() {
            self.offer_results();
        }
        Ok(changes)
    }

    /// Adds the tool that reads long results to the catalog if there are upstreams, and removes the
    /// tool otherwise.
    fn offer_results(&self) {
        let Some(host) = self.host.upgrade() else { return };
        let tool = self.upstreams.results().tool();
        let tools = if self.upstreams.is_empty() { Vec::new() } else { vec![tool] };
        log_refused_tools(host.offer_tools(RESULTS_OWNER, tools));
    }
}

/// Logs a warning for each upstream tool that the catalog rejected.
fn log_refused_tools(refused: Vec<RejectedTool>) {
    for RejectedTool { owner, tool, reason: why } in refused {
        tracing::warn!("the tool `{tool}` of the upstream `{owner}` is not served: {why}");
    }
}

/// Sources of the resources, prompts and skills of all upstreams.
pub(crate) struct UpstreamContentSources(pub(crate) Upstreams);

impl DynamicContentSources for UpstreamContentSources {
    fn resources(&self) -> Vec<Arc<dyn ResourceSource>> {
        let results = (!self.0.is_empty()).then(|| self.0.results().resources());
        results.into_iter().chain(self.0.resources()).collect()
    }

    fn prompts(&self) -> Vec<Arc<dyn PromptSource>> {
        self.0.prompts()
    }

    fn skills(&self) -> Vec<Arc<dyn SkillSource>> {
        self.0.skills()
    }

    fn instructions(&self) -> Vec<(String, String)> {
        self.0.instructions()
    }

    fn end_session(&self, session: &str) {
        self.0.end_session(session);
    }
}

/// Readiness check of the server: tells whether the upstreams have listed their tools.
struct UpstreamReadiness(Upstreams);

impl CatalogReadinessCheck for UpstreamReadiness {
    fn is_complete(&self, name: Option<&str>) -> bool {
        self.0.are_listings_known(name)
    }

    fn wait_until_complete<'a>(&'a self, name: Option<&'a str>) -> BoxFuture<'a, ()> {
        self.0.wait_listed(name)
    }

    fn refresh(&self) {
        self.0.refresh_old();
    }

    fn missing_tool(&self, name: &str) -> Option<UnavailableTool> {
        let (spec, reason) = self.0.unreachable_tool(name)?;
        Some(UnavailableTool { spec, reason })
    }
}

/// Gives upstreams access to this machine: to folders, programs and the network.
struct LocalSystemAccess {
    root: Root,
    processes: ProcessRunner,
    search_path: String,
    credentials: CredentialStore,
    /// Credentials that the servers of a fleet share, if this server is part of a fleet.
    shared: Option<SharedCredentials>,
}

/// Standard output of an upstream's program, which is read from a pipe.
struct UpstreamProgramOutput(ChildStdout);

impl AsyncRead for UpstreamProgramOutput {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Polls<'_>,
        piece: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, piece)
    }
}

impl UpstreamOutputReader for UpstreamProgramOutput {
    fn read_busy(&self, end: Instant, piece: &mut ReadBuf<'_>) -> bool {
        // A failure here occurs again at the next read, which reports it.
        toolgate_net::poll_and_read(&self.0, end, piece).unwrap_or_default()
    }
}

impl UpstreamSystemAccess for LocalSystemAccess {
    fn start<'a>(
        &'a self,
        program: &'a UpstreamProgramStart,
    ) -> BoxFuture<'a, Result<RunningUpstreamProgram, String>> {
        Box::pin(async move {
            let UpstreamProgramStart { command, env, keep_env, cwd, sandbox, hosts } = program;
            let (name, args) = command.split_first().ok_or("`command` is empty")?;
            let workspace = self.open_folder_at(".")?;
            // The default folder is empty and private, so that nobody else can place files that
            // programs look for.
            let (cwd, empty) = match cwd {
                Some(cwd) => (self.open_folder_at(cwd)?, None),
                None => {
                    let empty = UpstreamWorkingFolder::create();
                    let empty =
                        empty.map_err(|err| format!("cannot create its working folder: {err}"))?;
                    (open_folder(empty.path())?, Some(empty))
                }
            };
            // A relative path to a program is resolved in the workspace.
            let path = self.processes.unwritable_path(&self.search_path, &self.root);
            let found = programs::ResolvedProgram::find(name, workspace.as_fd(), &path);
            let mut found = found.map_err(|why| self.missing_program(name, why))?;
            // The path must be absolute, because the working directory may differ.
            found.path = self.root.path().join(found.path);
            let mut variables = self.processes.environment(keep_env, &path);
            let own = env.iter().map(|(name, value)| (name.into(), value.into()));
            variables.extend(own.collect::<BTreeMap<OsString, OsString>>());
            let mut confinement =
                self.processes.sandbox().confinement_with(sandbox_profile(sandbox)?, &self.root);
            if let Some(confinement) = &mut confinement {
                confinement.hosts = ProgramHostAccess::parse(hosts, "`hosts` of the upstream")?;
            }
            if let (Some(confinement), Some(empty)) = (&mut confinement, &empty) {
                let folder = empty.path().canonicalize();
                let folder =
                    folder.map_err(|err| format!("cannot find its working folder: {err}"))?;
                confinement.visible_paths.push(folder);
            }
            let start = ProgramStartRequest {
                program: found,
                args: args.iter().map(OsString::from).collect(),
                cwd,
                env: variables,
                stdin: None,
                bounds: processes::ProgramRunLimits {
                    timeout: Duration::MAX,
                    grace: EXIT_GRACE,
                    memory_bytes_max: 0,
                    spool_bytes_max: 0,
                },
                confinement,
            };
            let opened = self.processes.open(start).await;
            let PipedProgram { stdin, stdout, stderr, ended, network, guard } =
                opened.map_err(|err| format!("cannot start `{name}`: {err}"))?;
            let input = Box::new(stdin);
            let output = Box::new(UpstreamProgramOutput(stdout));
            let errors = Box::new(stderr);
            Ok(RunningUpstreamProgram {
                input,
                output,
                errors,
                exited: ended,
                refused_hosts: (!hosts.is_empty()).then(|| list_refused_hosts(network)),
                hold: KeepActiveGuard::new((guard, empty)),
            })
        })
    }

    fn dial<'a>(
        &'a self,
        place: &'a NetworkAddress,
    ) -> BoxFuture<'a, Result<Box<dyn ByteStream>, String>> {
        Box::pin(async move {
            let addresses = resolve_addresses(place).await?;
            let mut why = format!("`{}` has no address", place.host);
            for address in addresses {
                let to = dial::DialAddress::Port(address.ip().to_string(), address.port());
                let tls_host = place.secure.then_some(place.host.as_str());
                match dial::dial_stream(&to, tls_host, CONNECT_TIMEOUT).await {
                    Ok(stream) => return Ok(stream),
                    Err(err) => why = format!("{address}: {err}"),
                }
            }
            Err(why)
        })
    }

    fn variable(&self, name: &str) -> Option<String> {
        Some(self.processes.variable(name)?.to_str()?.to_owned())
    }

    fn secret(&self, name: &str) -> Option<String> {
        self.credentials.read(name)
    }

    fn keep_secret(&self, name: &str, secret: Option<&str>) -> Result<(), String> {
        if self.shared.is_some() {
            self.credentials.mark_unshared(name)?;
        }
        self.credentials.store(name, secret)
    }

    fn hold_secret<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<KeepActiveGuard, String>> {
        Box::pin(async move {
            let here = self.credentials.lock(name).await?;
            let Some(shared) = &self.shared else { return Ok(here) };
            let everywhere = shared.lock(name).await?;
            self.fetch_from(shared, name).await;
            if self.credentials.is_unshared(name) {
                // The server could not share its last change.
                self.share_with(shared, name).await;
            }
            Ok(KeepActiveGuard::new((here, everywhere)))
        })
    }

    fn fetch_secret<'a>(&'a self, name: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Some(shared) = &self.shared {
                self.fetch_from(shared, name).await;
            }
        })
    }

    fn share_secret<'a>(&'a self, name: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Some(shared) = &self.shared {
                self.share_with(shared, name).await;
            }
        })
    }

    fn front_matter(&self, text: &str) -> Result<Map<String, Value>, String> {
        skills::front_matter(text)
    }
}

/// Returns a function that lists the hosts which the sandbox refused to the program that `network`
/// monitors.
fn list_refused_hosts(network: ProgramNetworkMonitor) -> RefusedHostsFn {
    Arc::new(move || {
        let refused = network.network_use().refused.into_iter();
        let convert = |it: RefusedHost| {
            let reason = it.reason();
            UpstreamRefusedHost { host: it.host, tries: it.tries, reason }
        };
        refused.map(convert).collect()
    })
}

#[allow(
    clippy::disallowed_methods,
    reason = "a folder that the owner names, or that belongs to the server"
)]
fn open_folder(path: &Path) -> Result<std::os::fd::OwnedFd, String> {
    let opened = fs::File::open(path);
    let opened = opened.map_err(|err| format!("cannot open {}: {err}", path.display()))?;
    Ok(opened.into())
}

impl LocalSystemAccess {
    fn new(root: &Root, processes: &ProcessRunner, config: &Config) -> Self {
        Self {
            root: root.clone(),
            processes: processes.clone(),
            search_path: processes.search_path(),
            credentials: CredentialStore::new(),
            shared: SharedCredentials::from_config(config, root.path()),
        }
    }

    /// Replaces the stored credential `name` by the version that a server of the fleet has shared
    /// last. Keeps the version of this server if it is newer and could not be shared yet.
    async fn fetch_from(&self, shared: &SharedCredentials, name: &str) {
        let Some(secret) = shared.read(name).await else { return };
        let secret = Some(secret.as_str()).filter(|secret| !secret.is_empty());
        let is_same = self.credentials.read(name).as_deref() == secret;
        if !is_same && self.credentials.is_newer_than(name, secret) {
            return;
        }
        if !is_same && let Err(why) = self.credentials.store(name, secret) {
            tracing::warn!("the sign-in `{name}` of another server cannot be stored here: {why}");
        }
        self.credentials.mark_shared(name);
    }

    /// Shares the stored credential `name`, or its deletion, with all servers of the fleet. A
    /// failure leaves the credential marked as not shared.
    async fn share_with(&self, shared: &SharedCredentials, name: &str) {
        if shared.store(name, self.credentials.read(name).as_deref()).await {
            self.credentials.mark_shared(name);
        }
    }

    fn missing_program(&self, name: &str, why: ProgramLookupError) -> String {
        if name.contains('/') {
            let at = self.root.path().join(name);
            let at = at.display();
            return match why {
                ProgramLookupError::Absent => format!("the program {at} does not exist"),
                ProgramLookupError::NotAFile => format!("{at} is not a file"),
                ProgramLookupError::NotExecutable => {
                    format!("{at} is not executable; run `chmod +x {at}`")
                }
            };
        }
        match programs::nearest_program(name, &self.search_path) {
            Some(nearest) => format!("there is no program `{name}`; did you mean `{nearest}`?"),
            None => format!("there is no program `{name}` in {}", self.search_path),
        }
    }

    /// Opens the folder at the path `at`, relative to the workspace, for an upstream. The folder
    /// may be outside of the workspace. Fails if it cannot be opened.
    fn open_folder_at(&self, at: &str) -> Result<std::os::fd::OwnedFd, String> {
        open_folder(&self.root.path().join(at))
    }
}

/// Resolves the host of `place` to the addresses that an upstream may use. Leaves out private
/// addresses that the settings do not permit. Fails if no address is permitted.
async fn resolve_addresses(place: &NetworkAddress) -> Result<Vec<SocketAddr>, String> {
    let NetworkAddress { host, port, private_network, may_be_local, .. } = place;
    if let Ok(address) = host.parse::<IpAddr>() {
        return match address.is_loopback() || *private_network || is_public(address) {
            true => Ok(vec![SocketAddr::new(address, *port)]),
            false => Err(private_network_error(&address.to_string())),
        };
    }
    let addresses = tokio::net::lookup_host((host.as_str(), *port)).await;
    let addresses = addresses.map_err(|err| format!("cannot resolve `{host}`: {err}"))?;
    let is_localhost = is_own_host(host);
    let mut refused = None;
    let mut allowed: Vec<_> = addresses.collect();
    allowed.retain(|address| {
        let ip = address.ip();
        let is_allowed = match is_own_address(ip) {
            true => is_localhost || *may_be_local,
            false => *private_network || is_public(ip),
        };
        if !is_allowed {
            refused = Some(ip);
        }
        is_allowed
    });
    match (allowed.is_empty(), refused) {
        (true, Some(ip)) if *private_network && is_own_address(ip) => {
            Err(format!("`{host}` is an address of this machine, which is not allowed here"))
        }
        (true, Some(ip)) => Err(private_network_error(&format!("{ip}, the address of `{host}`,"))),
        _ => Ok(allowed),
    }
}

fn private_network_error(address: &str) -> String {
    format!(
        "{address} is in a private network; to allow it, set `private_network = true` for this \
         upstream"
    )
}

/// Parses `name`, the value of an upstream's setting `sandbox`. The error lists the valid names.
pub(crate) fn sandbox_profile(name: &str) -> Result<SandboxProfile, String> {
    let profile = serde_json::from_value(Value::from(name));
    profile.map_err(|_| {
        format!("`sandbox` is `{name}`; it must be read-only, workspace, network or off")
    })
}

/// Checks the sandbox profile in an upstream's `settings`, and the hosts that its program may
/// reach. Fails if they are invalid or contradict each other.
fn check_hosts(settings: &UpstreamSettings, sandbox: &SandboxSettings) -> Result<(), String> {
    let profile = sandbox_profile(&settings.sandbox)?;
    let access = ProgramHostAccess::parse(&settings.hosts, "`hosts`")?;
    access.as_ref().map_or(Ok(()), |access| sandbox.check_ssh(access))?;
    match profile {
        SandboxProfile::Network | SandboxProfile::Off if access.is_some() => Err(format!(
            "`hosts` has no effect with `sandbox = \"{}\"`; set `sandbox = \"workspace\"`, or remove \
             the hosts",
            profile.name()
        )),
        _ => Ok(()),
    }
}

/// Checks the settings of all upstreams of `config`. Fails at the first invalid upstream.
pub(crate) fn check_upstreams(config: &Config) -> anyhow::Result<()> {
    for (name, settings) in &config.upstream {
        let checked = settings.check().and_then(|()| check_hosts(settings, &config.sandbox));
        checked.map_err(|why| anyhow!(why)).with_context(|| format!("[upstream.{name}]"))?;
    }
    toolgate_upstream::check(&config.upstream).map_err(|why| anyhow!(why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_resolves_to_this_machine_only_if_that_is_allowed() {
        // Only the resolver reads `127.1` as an address.
        let address = |host: &str, private_network, may_be_local| {
            let host = host.to_owned();
            NetworkAddress { host, port: 1, secure: true, private_network, may_be_local }
        };
        for (host, private_network, may_be_local, is_allowed) in [
            ("127.1", true, true, true),
            ("127.1", true, false, false),
            ("127.1", false, false, false),
            ("0", true, false, false),
            ("localhost", false, false, true),
            ("10.1", true, false, true),
            ("10.1", false, false, false),
        ] {
            let place = address(host, private_network, may_be_local);
            assert_eq!(resolve_addresses(&place).await.is_ok(), is_allowed, "{place:?}");
        }
    }
}

//! Folder of a gateway run: starts the gateway and its upstreams in it.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use toolgate_test_support::{checkout, tools};

use super::super::server::{ChaosServerProcess, MARKER_VARIABLE, logged_errors};

/// Environment variable with the role of an upstream process.
const ROLE_VARIABLE: &str = "CHAOS_ROLE";
/// Environment variable and value that mark the upstreams that are killed.
pub(super) const FRAGILE_ROLE: &str = "CHAOS_ROLE=fragile";
/// Time that the upstream over HTTP may take until it listens.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two checks of a condition that the run waits for.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Folder of a run that kills the upstreams of a gateway, and the executables in it.
pub(super) struct GatewayFolder {
    pub(super) folder: PathBuf,
    /// Text in the environment of every process of the run. The test finds the processes by this
    /// text.
    pub(super) marker: String,
    toolgate: PathBuf,
}

/// Upstream process that serves HTTP. Dropping it kills the process.
pub(super) struct HttpTestUpstream {
    pub(super) addr: SocketAddr,
    process: Child,
    marker: String,
}

impl GatewayFolder {
    /// Creates the folder, with a copy of the executable `toolgate`, because a build may replace
    /// the file during the run.
    pub(super) fn create(toolgate: &Path, seed: u64) -> anyhow::Result<Self> {
        let marker = format!("gateway-{seed:x}-{:x}", std::process::id());
        let folder = std::env::temp_dir().join(format!("toolgate-{marker}"));
        for name in ["served", "servers"] {
            let folder = folder.join(name);
            fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        let run = Self { toolgate: folder.join("toolgate"), folder, marker };
        fs::copy(toolgate, &run.toolgate).with_context(|| toolgate.display().to_string())?;
        Ok(run)
    }

    /// Starts the upstream that serves HTTP, on a free port.
    pub(super) fn start_web_upstream(&self) -> anyhow::Result<HttpTestUpstream> {
        // The upstream cannot choose a free port itself.
        let addr = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        HttpTestUpstream::start(addr, &self.marker)
    }

    /// Starts the gateway with all upstreams. One of them is the HTTP server at `web_upstream`.
    pub(super) fn start_gateway(
        &self,
        web_upstream: SocketAddr,
    ) -> anyhow::Result<ChaosServerProcess> {
        let settings = self.settings_file();
        fs::write(&settings, self.settings(web_upstream)?)?;
        let mut command = self.command();
        command.args(["serve", "--listen", "127.0.0.1:0", "--config"]).arg(settings);
        command.arg(self.folder.join("served"));
        ChaosServerProcess::start(&mut command, self.folder.join("servers/gateway.log"))
    }

    /// Starts a separate gateway over stdio, for one client.
    pub(super) fn start_own_gateway(&self) -> anyhow::Result<Child> {
        let mut command = self.command();
        command.args(["stdio", "--config"]).arg(self.settings_file());
        command.arg(self.folder.join("served"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.spawn().context("a gateway cannot be started")
    }

    /// Returns the lines about errors and panics in the log of the gateway.
    pub(super) fn logged_errors(&self) -> anyhow::Result<Vec<String>> {
        logged_errors(&self.folder.join("servers"))
    }

    fn settings_file(&self) -> PathBuf {
        self.folder.join("toolgate.toml")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.toolgate);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TOOLGATE_") {
                command.env_remove(name);
            }
        }
        command.env("XDG_STATE_HOME", self.folder.join("state"));
        command.env("XDG_CACHE_HOME", self.folder.join("cache"));
        command.env(MARKER_VARIABLE, &self.marker);
        command
    }

    fn settings(&self, web_upstream: SocketAddr) -> anyhow::Result<String> {
        let [node, everything] = everything_command();
        let odd = checkout().join("tests/upstreams/odd.py").display().to_string();
        let log = self.folder.join("odd.log").display().to_string();
        let program = |words: &[&str], role: &str| {
            let mut table = toml::Table::new();
            let words: Vec<_> = words.iter().copied().map(toml::Value::from).collect();
            table.insert("command".to_owned(), words.into());
            let mut env = toml::Table::new();
            for (name, value) in
                [(MARKER_VARIABLE, &*self.marker), (ROLE_VARIABLE, role), ("ODD_LOG", &log)]
            {
                env.insert(name.to_owned(), value.into());
            }
            table.insert("env".to_owned(), env.into());
            table
        };
        let everything_over_stdio = [&*node, &*everything, "stdio"];
        let odd_over_stdio = ["python3", &*odd];
        let mut upstreams = toml::Table::new();
        for (name, words, role) in [
            ("steady", &everything_over_stdio[..], "steady"),
            ("calm", &odd_over_stdio, "steady"),
            ("fragile", &odd_over_stdio, "fragile"),
            ("brittle", &everything_over_stdio, "fragile"),
        ] {
            upstreams.insert(name.to_owned(), program(words, role).into());
        }
        let url = format!("http://{web_upstream}/mcp");
        upstreams.insert("web".to_owned(), toml::toml! { url = url }.into());
        let mut settings = toml::toml! {
            [server]
            drain_ms = 500
            [tools]
            allow = ["*"]
        };
        settings.insert("upstream".to_owned(), upstreams.into());
        Ok(toml::to_string(&settings)?)
    }
}

/// Returns the command that starts the MCP project's server-everything: Node.js and the path of a
/// script.
fn everything_command() -> [String; 2] {
    let node = tools().join("node/node_modules/.bin/node");
    let script = "servers/node_modules/@modelcontextprotocol/server-everything/dist/index.js";
    [node.display().to_string(), tools().join(script).display().to_string()]
}

impl HttpTestUpstream {
    fn start(addr: SocketAddr, marker: &str) -> anyhow::Result<Self> {
        let [node, everything] = everything_command();
        let mut command = Command::new(node);
        command.args([&*everything, "streamableHttp"]).env("PORT", addr.port().to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process =
            command.env(MARKER_VARIABLE, marker).spawn().context("Node cannot be started")?;
        let upstream = Self { addr, process, marker: marker.to_owned() };
        let started = Instant::now();
        while TcpStream::connect(addr).is_err() {
            ensure!(started.elapsed() < START_TIMEOUT, "server-everything does not listen");
            sleep(POLL_INTERVAL);
        }
        Ok(upstream)
    }

    pub(super) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts a new upstream process at the address of this one, which has ended.
    pub(super) fn start_again(&self) -> anyhow::Result<Self> {
        Self::start(self.addr, &self.marker)
    }
}

impl Drop for HttpTestUpstream {
    fn drop(&mut self) {
        self.kill();
    }
}

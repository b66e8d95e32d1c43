//! The folder in which it happens, the gateway there, and what is behind it.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use toolgate_test_support::{checkout, tools};

use super::super::server::{MARKER, Server, complaints};

/// The variable by which upstreams are known that may be killed.
const ROLE: &str = "CHAOS_ROLE";
pub(super) const FRAGILE: &str = "CHAOS_ROLE=fragile";
/// How long a server in TypeScript may take to listen.
const LISTENING: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

pub(super) struct Stage {
    pub(super) folder: PathBuf,
    /// What stands in the environment of all that is ours.
    pub(super) marker: String,
    toolgate: PathBuf,
}

/// The upstream over HTTP.
pub(super) struct Web {
    pub(super) at: SocketAddr,
    process: Child,
    marker: String,
}

impl Stage {
    pub(super) fn set(toolgate: &Path, seed: u64) -> anyhow::Result<Self> {
        let marker = format!("gateway-{seed:x}-{:x}", std::process::id());
        let folder = std::env::temp_dir().join(format!("toolgate-{marker}"));
        for name in ["served", "servers"] {
            let folder = folder.join(name);
            fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        let stage = Self { toolgate: folder.join("toolgate"), folder, marker };
        fs::copy(toolgate, &stage.toolgate).with_context(|| toolgate.display().to_string())?;
        Ok(stage)
    }

    /// Starts the upstream over HTTP, somewhere.
    pub(super) fn web(&self) -> anyhow::Result<Web> {
        // It listens where it is told to, and cannot be told to look for a place.
        let at = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        Web::start(at, &self.marker)
    }

    /// Starts the gateway before all of them.
    pub(super) fn gateway(&self, web: SocketAddr) -> anyhow::Result<Server> {
        let served = self.folder.join("served");
        fs::write(self.file(), self.settings(web)?)?;
        let mut command = self.toolgate();
        command.args(["serve", "--listen", "127.0.0.1:0", "--config"]).arg(self.file()).arg(served);
        Server::start(&mut command, self.folder.join("servers/gateway.log"))
    }

    /// A gateway of a client's own, over its pipes.
    pub(super) fn own(&self) -> anyhow::Result<Child> {
        let mut command = self.toolgate();
        command.args(["stdio", "--config"]).arg(self.file()).arg(self.folder.join("served"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.spawn().context("a gateway cannot be started")
    }

    pub(super) fn complaints(&self) -> anyhow::Result<Vec<String>> {
        complaints(&self.folder.join("servers"))
    }

    fn file(&self) -> PathBuf {
        self.folder.join("toolgate.toml")
    }

    fn toolgate(&self) -> Command {
        let mut command = Command::new(&self.toolgate);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TOOLGATE_") {
                command.env_remove(name);
            }
        }
        command.env("XDG_STATE_HOME", self.folder.join("state"));
        command.env("XDG_CACHE_HOME", self.folder.join("cache")).env(MARKER, &self.marker);
        command
    }

    fn settings(&self, web: SocketAddr) -> anyhow::Result<String> {
        let [node, everything] = everything();
        let odd = checkout().join("tests/upstreams/odd.py").display().to_string();
        let log = self.folder.join("odd.log").display().to_string();
        let command = |words: &[&str], role: &str| {
            let mut table = toml::Table::new();
            let words: Vec<_> = words.iter().copied().map(toml::Value::from).collect();
            table.insert("command".to_owned(), words.into());
            let mut env = toml::Table::new();
            for (name, value) in [(MARKER, &*self.marker), (ROLE, role), ("ODD_LOG", &log)] {
                env.insert(name.to_owned(), value.into());
            }
            table.insert("env".to_owned(), env.into());
            table
        };
        let over_stdio = [&*node, &*everything, "stdio"];
        let mut upstream = toml::Table::new();
        upstream.insert("steady".to_owned(), command(&over_stdio, "steady").into());
        upstream.insert("calm".to_owned(), command(&["python3", &odd], "steady").into());
        upstream.insert("fragile".to_owned(), command(&["python3", &odd], "fragile").into());
        upstream.insert("brittle".to_owned(), command(&over_stdio, "fragile").into());
        let url = format!("http://{web}/mcp");
        upstream.insert("web".to_owned(), toml::toml! { url = url }.into());
        let mut settings = toml::toml! {
            [server]
            drain_ms = 500
            [tools]
            allow = ["*"]
            [search]
            enabled = false
        };
        settings.insert("upstream".to_owned(), upstream.into());
        Ok(toml::to_string(&settings)?)
    }
}

/// Node, and MCP's own server of everything.
fn everything() -> [String; 2] {
    let node = tools().join("node/node_modules/.bin/node");
    let name = "servers/node_modules/@modelcontextprotocol/server-everything/dist/index.js";
    [node.display().to_string(), tools().join(name).display().to_string()]
}

impl Web {
    fn start(at: SocketAddr, marker: &str) -> anyhow::Result<Self> {
        let [node, everything] = everything();
        let mut command = Command::new(node);
        command.args([&*everything, "streamableHttp"]).env("PORT", at.port().to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.env(MARKER, marker).spawn().context("node cannot be started")?;
        let web = Self { at, process, marker: marker.to_owned() };
        let begun = Instant::now();
        while TcpStream::connect(at).is_err() {
            ensure!(begun.elapsed() < LISTENING, "server-everything does not listen");
            sleep(LOOK);
        }
        Ok(web)
    }

    /// Kills it.
    pub(super) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// The same, at the same place.
    pub(super) fn again(&self) -> anyhow::Result<Self> {
        Self::start(self.at, &self.marker)
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.kill();
    }
}

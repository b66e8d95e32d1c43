//! What upstreams are handed of the world: programs that are started, and connections.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::CancellationToken;
use toolgate_contract::{BoxFuture, Hold};

/// Starts programs and connects; whoever serves decides what may be reached and how it is confined.
pub trait World: Send + Sync + 'static {
    /// Starts a program. The error says why not.
    fn start<'a>(&'a self, program: &'a Program) -> BoxFuture<'a, Result<Started, String>>;
    /// Connects to `place`. The error says why not.
    fn dial<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<Box<dyn Bytes>, String>>;
    /// What the server's own variable `name` is.
    fn variable(&self, name: &str) -> Option<String>;
    /// What is kept as `name`, where nobody but the server's owner reads it.
    fn secret(&self, name: &str) -> Option<String>;
    /// Keeps `secret` as `name`, or nothing any more. The error says why not.
    fn keep_secret(&self, name: &str, secret: Option<&str>) -> Result<(), String>;
    /// Waits until nobody else, of whatever process, holds what is kept as `name`. The error says
    /// why that cannot be.
    fn hold_secret<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Hold, String>>;
    /// What the front matter of `text`, a `SKILL.md`, says. The error says what is wrong with it.
    fn front_matter(&self, text: &str) -> Result<Map<String, Value>, String>;
}

/// A program to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// It and its arguments.
    pub command: Vec<String>,
    /// What of its environment is not the server's own.
    pub env: BTreeMap<String, String>,
    /// Which of the server's own variables it is given.
    pub keep_env: Vec<String>,
    /// The folder that it starts in, if not the one that is served.
    pub cwd: Option<String>,
    /// How it is confined, by the name of a profile.
    pub sandbox: String,
}

/// A program that runs.
pub struct Started {
    /// What it reads.
    pub input: Box<dyn AsyncWrite + Send + Unpin>,
    /// What it prints.
    pub output: Box<dyn Output>,
    /// What it says beside.
    pub errors: Box<dyn AsyncRead + Send + Unpin>,
    /// Cancelled when it has ended, also where something that it started has not.
    pub ended: CancellationToken,
    /// Ends it, and all it started, when dropped.
    pub hold: Hold,
}

/// What a program prints.
pub trait Output: AsyncRead + Send + Unpin {
    /// Reads into `piece` what comes until `end`, without sleeping, where that can be: whether
    /// anything did.
    fn look(&self, end: Instant, piece: &mut ReadBuf<'_>) -> bool {
        let _ = (end, piece);
        false
    }
}

/// Bytes both ways.
pub trait Bytes: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Bytes for T {}

/// Where something listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    /// A name or an address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Whether TLS is spoken there.
    pub secure: bool,
    /// Whether it may be in a private network.
    pub private_network: bool,
    /// Whether a name may lead to this machine that does not say so.
    pub near: bool,
}

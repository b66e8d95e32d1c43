//! The one place that starts programs, and sees each to its end with all it started.
//!
//! What may be started, by whom and with which environment is decided above;
//! here it is only made sure that nothing of a program outlives its run or the server,
//! even one that is killed, that its output never fills the memory, and that it inherits
//! nothing it was not given.

#![allow(clippy::disallowed_methods, reason = "programs and /proc are this module's to touch")]

mod program;
mod environment;
mod captured;
mod running;
mod family;
mod strays;
mod mark;
mod keeper;
mod spawn;
mod image;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolgate_contract::Stream;

pub(super) use image::{Child, HANDED, HELPER, Image, Streams, end};

pub use captured::{Captured, Piece};
pub use environment::refused_variable;
pub use mark::Mark;
pub(super) use mark::Tag;
pub use program::{Missing, Program, nearest};
pub use running::{Runs, Spoken};

use mark::Worn;
use spawn::Spawner;

use super::sandbox::{Held, Inside, Leavings, Sandbox};

/// Starts programs. Clones share one spawning thread.
#[derive(Clone)]
pub struct Processes(Arc<House>);

struct House {
    /// The server's own environment, as it was at start.
    environment: BTreeMap<OsString, OsString>,
    spawner: Spawner,
    sandbox: Sandbox,
    closing: CancellationToken,
    running: TaskTracker,
}

/// A program to run.
pub struct Start {
    /// Which, already found.
    pub program: Program,
    /// Its arguments; they reach it as they are.
    pub args: Vec<OsString>,
    /// The directory it starts in. A handle, so no rename can put another in its place.
    pub cwd: OwnedFd,
    /// Its whole environment.
    pub env: BTreeMap<OsString, OsString>,
    /// What it reads from standard input; `None` is the end of file at once.
    pub stdin: Option<Vec<u8>>,
    /// How much it may take.
    pub bounds: Bounds,
    /// How it is confined; `None` lets it do what the server may.
    pub inside: Option<Inside>,
}

/// How long a program may run and how much of what it prints is held.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// After this it is stopped.
    pub timeout: Duration,
    /// How long it may go on once it is asked to stop.
    pub grace: Duration,
    /// How much of each stream is held in memory.
    pub held_bytes_max: usize,
    /// How much of each stream is kept on disk when it is more than that.
    pub spool_bytes_max: u64,
}

/// A program that has run, and of which nothing runs any more.
pub struct Ended {
    /// How its process ended.
    pub status: ExitStatus,
    /// Why it was stopped, if it did not end by itself.
    pub stopped: Option<Stopped>,
    /// How long it ran.
    pub took: Duration,
    /// What it printed to standard output.
    pub stdout: Captured,
    /// What it printed to standard error.
    pub stderr: Captured,
    /// How it was confined.
    pub sandbox: Arc<Held>,
}

/// Why a program was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// Its time was over.
    TimedOut,
    /// Nobody wanted its result any more.
    Canceled,
}

impl Processes {
    /// Programs of a server whose own environment is `environment`.
    ///
    /// Makes this process the one that orphans of its programs fall to, so that
    /// no double fork escapes it.
    ///
    /// # Errors
    /// When the system lacks that, or has no thread to spare.
    pub fn new(environment: impl IntoIterator<Item = (OsString, OsString)>) -> io::Result<Self> {
        Self::confined(environment, Sandbox::none())
    }

    /// The same, with programs confined by `sandbox`.
    ///
    /// # Errors
    /// As [`new`](Self::new)'s.
    pub fn confined(
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        sandbox: Sandbox,
    ) -> io::Result<Self> {
        Self::begun(environment, sandbox, None)
    }

    /// The same, in the folder `workspace`, of which what servers left that were killed is taken
    /// away.
    ///
    /// # Errors
    /// As [`new`](Self::new)'s.
    pub fn confined_in(
        workspace: &Path,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        sandbox: Sandbox,
    ) -> io::Result<Self> {
        // That there is no such folder is told where it is opened.
        let leavings = sandbox.leavings(workspace).ok();
        leavings.iter().for_each(Leavings::sweep);
        Self::begun(environment, sandbox, leavings)
    }

    fn begun(
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        sandbox: Sandbox,
        leavings: Option<Leavings>,
    ) -> io::Result<Self> {
        family::adopt_orphans()?;
        Ok(Self(Arc::new(House {
            environment: environment.into_iter().collect(),
            spawner: Spawner::start(Mark::new()?, leavings)?,
            sandbox,
            closing: CancellationToken::new(),
            running: TaskTracker::new(),
        })))
    }

    /// The server's own variable `name`.
    pub fn variable(&self, name: &str) -> Option<&OsStr> {
        self.0.environment.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// The server's own environment, as it was at start.
    pub fn variables(&self) -> &BTreeMap<OsString, OsString> {
        &self.0.environment
    }

    /// How programs are confined.
    pub fn sandbox(&self) -> &Sandbox {
        &self.0.sandbox
    }

    /// Whether a program confined as `inside` sees the file that is called `named`.
    ///
    /// # Errors
    /// When nothing can be confined here.
    pub fn shows(&self, inside: &Inside, named: &Path) -> io::Result<bool> {
        self.0.sandbox.shows(inside, named, &self.0.environment)
    }

    /// The operating system and its version, as the kernel tells them.
    pub fn system(&self) -> String {
        let told = |name: &str| std::fs::read_to_string(format!("/proc/sys/kernel/{name}"));
        let told = ["ostype", "osrelease"].map(|name| told(name).unwrap_or_default());
        let told = told.map(|text| text.trim().to_owned()).join(" ");
        if told.trim().is_empty() { std::env::consts::OS.to_owned() } else { told }
    }

    /// Runs a program to its end, or stops it when its time is over or `cancel` is cancelled.
    ///
    /// `watch` sees all it prints as it comes. When this returns nothing the program
    /// started is left; when it is dropped, the same is done behind it.
    ///
    /// # Errors
    /// When the kernel does not start it, when it was killed and does not end, and with
    /// `Interrupted` when it was not wanted any more before it began.
    pub async fn run(
        &self,
        start: Start,
        cancel: &CancellationToken,
        watch: &(dyn Fn(Stream, &[u8]) + Send + Sync),
    ) -> io::Result<Ended> {
        running::run(self, start, cancel, watch).await
    }

    /// Starts a program that is spoken to for as long as it runs: until what is given back is
    /// dropped.
    ///
    /// # Errors
    /// When the kernel does not start it, and with `Interrupted` when the server stops.
    pub async fn open(&self, start: Start) -> io::Result<Spoken> {
        running::open(self, start).await
    }

    /// What all programs started here bear, to be known by when this server is gone.
    pub fn mark(&self) -> Mark {
        self.0.spawner.mark()
    }

    /// Kills what a server that is gone has left running; whether there was anything.
    ///
    /// Its keeper has done it, unless that was killed too. Blocks until nothing is left, for
    /// ten seconds at most. Does nothing for the mark of a server that is not gone: our own,
    /// or that of one we are a program of.
    pub fn end_left_by(&self, mark: Mark) -> bool {
        mark != self.mark() && !mark.is_on(Worn::ours()) && keeper::end_marked(mark)
    }

    /// Stops all that runs and waits until nothing is left.
    pub async fn close(&self) {
        self.0.closing.cancel();
        self.0.running.close();
        self.0.running.wait().await;
        self.0.sandbox.close();
    }
}

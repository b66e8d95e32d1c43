//! What a profile promises, and what of it this system does not hold.

use std::fmt;
use std::io;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::settings::Profile;
use super::step::{Failed, Step};

/// How a program was confined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Held {
    /// The profile it ran under.
    pub profile: Profile,
    /// What of that this system does not hold; nothing is missing where this is empty.
    pub missing: Arc<[Lacking]>,
}

/// A layer of the sandbox that this system lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Lacking {
    /// Which.
    pub layer: Layer,
    /// What came of trying.
    pub why: String,
}

/// What confines a program, each whatever the others do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// Namespaces of mounts and processes: it sees only what it is shown, and nothing of it is left.
    View,
    /// A `/proc` of its own.
    Proc,
    /// A namespace of networks: none is reached.
    Network,
    /// Landlock: what it may read, write and run, held a second time.
    Landlock,
    /// Filters of system calls.
    Seccomp,
    /// Control groups: processes and memory of a run together.
    Groups,
}

/// Why a program is not run: it would not be confined as is asked.
#[derive(Debug)]
pub(crate) struct Unheld(pub(crate) Held);

impl Layer {
    /// All, in the order in which they are told.
    pub const ALL: [Self; 6] =
        [Self::View, Self::Proc, Self::Network, Self::Landlock, Self::Seccomp, Self::Groups];

    /// Its name, as results have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::View => "view",
            Self::Proc => "proc",
            Self::Network => "network",
            Self::Landlock => "landlock",
            Self::Seccomp => "seccomp",
            Self::Groups => "groups",
        }
    }

    /// What is held by it, in a few words.
    pub fn holds(self) -> &'static str {
        match self {
            Self::View => {
                "files outside the view are not there; other processes are not seen, and nothing \
                 of a program is left when it ends"
            }
            Self::Proc => "/proc shows the program's own processes alone, and nothing there is set",
            Self::Network => "no network is reached but a loopback of the sandbox's own",
            Self::Landlock => "what may be read, written and run, held a second time",
            Self::Seccomp => {
                "no sockets of other families, no tracing, mounting, namespaces, io_uring, bpf or \
                 keys; no file that runs as its owner is made"
            }
            Self::Groups => "how many processes and how much memory a run has",
        }
    }

    /// The layer that failed where `step` did, if a program can be confined without it.
    pub(super) fn of(step: Step) -> Option<Self> {
        match step {
            Step::Spaces | Step::Ids | Step::Sources | Step::Root | Step::Enter => Some(Self::View),
            Step::Proc => Some(Self::Proc),
            Step::Network => Some(Self::Network),
            Step::Ground => Some(Self::Landlock),
            Step::Calls => Some(Self::Seccomp),
            Step::Groups => Some(Self::Groups),
            Step::Plan
            | Step::Folder
            | Step::Program
            | Step::Limits
            | Step::Rights
            | Step::Begin => None,
        }
    }
}

impl Held {
    /// What runs as the server does.
    pub(crate) fn off() -> Self {
        Self { profile: Profile::Off, missing: Arc::default() }
    }

    /// Whether all that its profile promises is held.
    pub fn is_whole(&self) -> bool {
        self.missing.is_empty()
    }

    /// It in a few words: `workspace`, `workspace (lacks network)`.
    pub(crate) fn told(&self) -> String {
        let profile = self.profile.name();
        if self.is_whole() {
            return profile.to_owned();
        }
        format!("{profile} (lacks {})", self.names())
    }

    /// What is missing, by name.
    pub fn names(&self) -> String {
        let names: Vec<_> = self.missing.iter().map(|lacking| lacking.layer.name()).collect();
        names.join(", ")
    }
}

impl fmt::Display for Unheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(Held { profile, missing }) = self;
        write!(f, "the sandbox `{}` is not whole here", profile.name())?;
        for Lacking { layer, why } in missing.iter() {
            write!(f, "; `{}` is missing: {why}", layer.name())?;
        }
        Ok(())
    }
}

impl std::error::Error for Unheld {}

/// What kept a confined program from beginning, as whoever started it is told.
pub(super) fn refused(failed: Failed) -> io::Error {
    match failed.step {
        // As it is told of a program that is not confined.
        Step::Begin => failed.why,
        _ => io::Error::other(failed),
    }
}

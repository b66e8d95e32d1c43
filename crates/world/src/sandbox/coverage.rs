//! The layers of the sandbox, and the layers that this system lacks.

use std::fmt;
use std::io;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::settings::SandboxProfile;
use super::setup_step::{SandboxSetupFailure, SandboxSetupStep};

/// The confinement of a program: its profile, and the layers that are missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SandboxCoverage {
    /// Profile that applies.
    pub profile: SandboxProfile,
    /// Layers of the profile that this system lacks. Empty if the confinement is complete.
    pub missing: Arc<[MissingSandboxLayer]>,
}

/// A sandbox layer that this system lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct MissingSandboxLayer {
    /// The missing layer.
    pub layer: SandboxLayer,
    /// The reason why the layer is missing.
    pub why: String,
}

/// Layer of the sandbox. Each layer works without the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SandboxLayer {
    /// Mount and process namespaces: only chosen files are visible, and no process outlives the
    /// program.
    View,
    /// A separate `/proc`.
    Proc,
    /// A network namespace without a network.
    Network,
    /// Landlock: a second check of reads, writes and execution.
    Landlock,
    /// System call filters.
    Seccomp,
    /// Control groups: limits on a run's processes and memory.
    Groups,
}

/// The error for a program that was not started, because its sandbox would be incomplete.
#[derive(Debug)]
pub struct IncompleteSandboxError(pub(crate) SandboxCoverage);

impl SandboxLayer {
    /// All layers of the sandbox, in the order in which they are listed.
    pub const ALL: [Self; 6] =
        [Self::View, Self::Proc, Self::Network, Self::Landlock, Self::Seccomp, Self::Groups];

    /// Returns the name of the sandbox layer in results.
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

    /// Returns a short description of the effect of the sandbox layer.
    pub fn effect(self) -> &'static str {
        match self {
            Self::View => {
                "hides other files and processes; stops all processes of a program when it ends"
            }
            Self::Proc => "shows only the program's own processes in /proc, which is read-only",
            Self::Network => "blocks every network except the sandbox's own loopback",
            Self::Landlock => "checks a second time which files may be read, written and run",
            Self::Seccomp => {
                "blocks other socket families, tracing, mounting, namespaces, io_uring, bpf, keys \
                 and set-user-ID files"
            }
            Self::Groups => "limits the processes and the memory of a run",
        }
    }

    /// Returns the sandbox layer that is missing on this system if the setup step `step` failed.
    /// Returns `None` if no program can be confined without that step.
    pub(super) fn from_step(step: SandboxSetupStep) -> Option<Self> {
        match step {
            SandboxSetupStep::Namespaces
            | SandboxSetupStep::UserIds
            | SandboxSetupStep::Sources
            | SandboxSetupStep::Root
            | SandboxSetupStep::Enter => Some(Self::View),
            SandboxSetupStep::Proc => Some(Self::Proc),
            SandboxSetupStep::Network => Some(Self::Network),
            SandboxSetupStep::Landlock => Some(Self::Landlock),
            SandboxSetupStep::Seccomp => Some(Self::Seccomp),
            SandboxSetupStep::Groups => Some(Self::Groups),
            SandboxSetupStep::Plan
            | SandboxSetupStep::Folder
            | SandboxSetupStep::Program
            | SandboxSetupStep::Limits
            | SandboxSetupStep::Rights
            | SandboxSetupStep::Start
            | SandboxSetupStep::NetworkTest => None,
        }
    }
}

impl SandboxCoverage {
    /// Returns the coverage of a program that runs without a sandbox.
    pub(crate) fn unconfined() -> Self {
        Self { profile: SandboxProfile::Off, missing: Arc::default() }
    }

    /// Returns `true` if no layer of the sandbox profile is missing.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }

    /// Returns the profile and the missing layers as a short text, such as `workspace` or
    /// `workspace (lacks network)`.
    pub fn summary(&self) -> String {
        let profile = self.profile.name();
        if self.is_complete() {
            return profile.to_owned();
        }
        format!("{profile} (lacks {})", self.missing_names())
    }

    /// Returns the names of the missing sandbox layers, separated by commas.
    pub fn missing_names(&self) -> String {
        let names: Vec<_> = self.missing.iter().map(|lacking| lacking.layer.name()).collect();
        names.join(", ")
    }
}

impl fmt::Display for IncompleteSandboxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(SandboxCoverage { profile, missing }) = self;
        write!(f, "the sandbox `{}` is incomplete here", profile.name())?;
        for MissingSandboxLayer { layer, why } in missing.iter() {
            write!(f, "; `{}` is missing: {why}", layer.name())?;
        }
        Ok(())
    }
}

impl std::error::Error for IncompleteSandboxError {}

/// Converts the setup failure `failed` to the error that the caller of the program receives.
pub(super) fn into_start_error(failed: SandboxSetupFailure) -> io::Error {
    match failed.step {
        // An unconfined program fails with the same error.
        SandboxSetupStep::Start => failed.cause,
        _ => io::Error::other(failed),
    }
}

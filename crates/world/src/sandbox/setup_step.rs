//! The steps of the sandbox setup, and the message about a failed step.

use std::fmt;
use std::io;

/// A step of setting up a program's sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SandboxSetupStep {
    /// Reads the plan of the confinement.
    Plan,
    /// Joins the control groups that limit memory and processes.
    Groups,
    /// Creates the namespaces of the sandbox.
    Namespaces,
    /// Maps the user id in a user namespace.
    UserIds,
    /// Opens the files and folders that the program will see.
    Sources,
    /// Builds the file tree that the program will see.
    Root,
    /// Mounts a separate `/proc`.
    Proc,
    /// Sets up a separate network.
    Network,
    /// Enters the file tree that the program will see.
    Enter,
    /// Opens the working directory.
    Folder,
    /// Finds the program in the file tree of the sandbox.
    Program,
    /// Sets the resource limits of the program.
    Limits,
    /// Drops the capabilities of the process (Linux privileges).
    Rights,
    /// Applies the Landlock rules.
    Landlock,
    /// Applies the system call filters.
    Seccomp,
    /// Executes the program.
    Start,
    /// Tests that a program reaches only the hosts that are allowed.
    NetworkTest,
}

const ALL_STEPS: [SandboxSetupStep; 17] = [
    SandboxSetupStep::Plan,
    SandboxSetupStep::Groups,
    SandboxSetupStep::Namespaces,
    SandboxSetupStep::UserIds,
    SandboxSetupStep::Sources,
    SandboxSetupStep::Root,
    SandboxSetupStep::Proc,
    SandboxSetupStep::Network,
    SandboxSetupStep::Enter,
    SandboxSetupStep::Folder,
    SandboxSetupStep::Program,
    SandboxSetupStep::Limits,
    SandboxSetupStep::Rights,
    SandboxSetupStep::Landlock,
    SandboxSetupStep::Seccomp,
    SandboxSetupStep::Start,
    SandboxSetupStep::NetworkTest,
];

/// The reason why a sandboxed program did not start.
#[derive(Debug)]
pub struct SandboxSetupFailure {
    /// The step of the sandbox setup that failed.
    pub step: SandboxSetupStep,
    /// The error that the system returned.
    pub cause: io::Error,
}

/// The length of a setup failure that is encoded for a pipe, in bytes.
pub(super) const FAILURE_BYTES: usize = 5;

impl SandboxSetupStep {
    /// Returns a description of the setup step.
    fn description(self) -> &'static str {
        match self {
            Self::Plan => "reading the request",
            Self::Groups => "joining the control groups",
            Self::Namespaces => "creating namespaces",
            Self::UserIds => "mapping the user ID",
            Self::Sources => "opening the paths that the sandbox makes visible",
            Self::Root => "building the view",
            Self::Proc => "mounting its own /proc",
            Self::Network => "setting up its own network",
            Self::Enter => "entering the view",
            Self::Folder => "entering the working directory",
            Self::Program => "finding the program in the view",
            Self::Limits => "setting limits",
            Self::Rights => "dropping privileges",
            Self::Landlock => "applying Landlock",
            Self::Seccomp => "filtering system calls",
            Self::Start => "beginning",
            Self::NetworkTest => "testing its network",
        }
    }

    /// Returns `result` with its error converted to a failure of this setup step.
    pub(super) fn check<T>(
        self,
        result: Result<T, impl Into<io::Error>>,
    ) -> Result<T, SandboxSetupFailure> {
        result.map_err(|err| SandboxSetupFailure { step: self, cause: err.into() })
    }
}

impl SandboxSetupFailure {
    pub(super) fn to_bytes(&self) -> [u8; FAILURE_BYTES] {
        let [a, b, c, d] = self.cause.raw_os_error().unwrap_or(libc::EINVAL).to_ne_bytes();
        [self.step as u8, a, b, c, d]
    }

    /// Decodes a setup failure. `None` if `bytes` is empty or invalid.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let &[step, a, b, c, d] = bytes else { return None };
        let step = *ALL_STEPS.get(usize::from(step))?;
        let why = io::Error::from_raw_os_error(i32::from_ne_bytes([a, b, c, d]));
        Some(Self { step, cause: why })
    }
}

impl fmt::Display for SandboxSetupFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step.description(), self.cause)
    }
}

impl std::error::Error for SandboxSetupFailure {}

//! The steps of the sandbox setup, and the message about a failed one.

use std::fmt;
use std::io;

/// A step of the sandbox setup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Step {
    Plan,
    Groups,
    Spaces,
    Ids,
    Sources,
    Root,
    Proc,
    Network,
    Enter,
    Folder,
    Program,
    Limits,
    Rights,
    Ground,
    Calls,
    Begin,
}

const STEPS: [Step; 16] = [
    Step::Plan,
    Step::Groups,
    Step::Spaces,
    Step::Ids,
    Step::Sources,
    Step::Root,
    Step::Proc,
    Step::Network,
    Step::Enter,
    Step::Folder,
    Step::Program,
    Step::Limits,
    Step::Rights,
    Step::Ground,
    Step::Calls,
    Step::Begin,
];

/// The reason why a program did not start.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) step: Step,
    pub(crate) why: io::Error,
}

/// The length of an encoded failure.
pub(super) const TOLD_BYTES: usize = 5;

impl Step {
    /// Returns a description of the step.
    fn doing(self) -> &'static str {
        match self {
            Self::Plan => "reading what is to be done",
            Self::Groups => "joining the groups that bound it",
            Self::Spaces => "making namespaces",
            Self::Ids => "keeping the user's number",
            Self::Sources => "opening what it is to see",
            Self::Root => "making what it sees",
            Self::Proc => "making its own /proc",
            Self::Network => "making its own network",
            Self::Enter => "entering what it sees",
            Self::Folder => "finding the folder it starts in",
            Self::Program => "finding the program in what it sees",
            Self::Limits => "setting limits",
            Self::Rights => "giving up rights",
            Self::Ground => "entering Landlock",
            Self::Calls => "filtering system calls",
            Self::Begin => "beginning",
        }
    }

    /// Attaches this step to the error of `result`.
    pub(super) fn done<T>(self, result: Result<T, impl Into<io::Error>>) -> Result<T, Failed> {
        result.map_err(|err| Failed { step: self, why: err.into() })
    }
}

impl Failed {
    pub(super) fn told(&self) -> [u8; TOLD_BYTES] {
        let [a, b, c, d] = self.why.raw_os_error().unwrap_or(libc::EINVAL).to_ne_bytes();
        [self.step as u8, a, b, c, d]
    }

    /// Decodes a failure. `None` if `told` is empty or invalid.
    pub(crate) fn heard(told: &[u8]) -> Option<Self> {
        let &[step, a, b, c, d] = told else { return None };
        let step = *STEPS.get(usize::from(step))?;
        let why = io::Error::from_raw_os_error(i32::from_ne_bytes([a, b, c, d]));
        Some(Self { step, why })
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step.doing(), self.why)
    }
}

impl std::error::Error for Failed {}

//! How a program ended and what it printed, as results say it.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use schemars::JsonSchema;
use serde::Serialize;
use toolgate_contract::{Ending, Text};

use super::shown::Extent;
use crate::world::sandbox::{Held, Layer, Profile};

/// What a program did.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Outcome {
    /// The exit code; 128 and the signal's number when a signal ended it, -1 when its time was
    /// over.
    pub(crate) exit_code: i32,
    /// The signal that ended it, e.g. `SIGSEGV`.
    pub(super) signal: Option<String>,
    /// Whether it was stopped because its time was over.
    pub(crate) timed_out: bool,
    /// How long it ran.
    pub(crate) duration_ms: u64,
    /// What it printed to standard output; its beginning and end if that was too much.
    pub(super) stdout: String,
    /// How much that is and how it is written.
    pub(super) stdout_extent: Extent,
    /// What it printed to standard error; its beginning and end if that was too much.
    pub(super) stderr: String,
    /// How much that is and how it is written.
    pub(super) stderr_extent: Extent,
    /// What to give exec_output to read what was left out; null when nothing was.
    pub(crate) output_id: Option<String>,
    /// How it was confined: the profile's name, or what of it this system lacks.
    pub(crate) sandbox: Confined,
}

/// How a program was confined, as results say it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Confined {
    /// All that this profile promises was held.
    Whole(Profile),
    /// Not all of it.
    Partly(Held),
}

impl Confined {
    pub(super) fn of(held: &Held) -> Self {
        if held.is_whole() { Self::Whole(held.profile) } else { Self::Partly(held.clone()) }
    }

    /// Whether it reached no network.
    pub(crate) fn is_offline(&self) -> bool {
        let profile = match self {
            Self::Whole(profile) => *profile,
            Self::Partly(held) => held.profile,
        };
        profile < Profile::Network
    }

    /// What a reader has to know of it. Control groups are had by few who are not root, and what
    /// they bound is bounded by process without: that is for whoever looks at the value.
    pub(crate) fn note(&self) -> Option<String> {
        let Self::Partly(held) = self else { return None };
        let missing = held.missing.iter().map(|it| it.layer);
        let names: Vec<_> = missing.filter(|it| *it != Layer::Groups).map(Layer::name).collect();
        let (profile, names) = (held.profile.name(), names.join(", "));
        let lacks = || format!("; the sandbox `{profile}` lacks {names} on this system");
        (!names.is_empty()).then(lacks)
    }
}

impl Outcome {
    /// The same for a reader; `longer` is how a program gets more time.
    pub(crate) fn text(&self, longer: &str) -> Text {
        let Self { exit_code, duration_ms, output_id, .. } = self;
        let id = output_id.as_deref();
        let mut body = self.stdout_extent.show(&self.stdout).into_owned();
        if !self.stderr.is_empty() {
            if !body.is_empty() && !body.ends_with('\n') {
                body.push('\n');
            }
            body.push_str("stderr:\n");
            body.push_str(&self.stderr_extent.show(&self.stderr));
        }
        let mut note = match (&self.signal, self.timed_out) {
            (_, true) => format!("timed out and was stopped after {duration_ms} ms; {longer}"),
            (Some(signal), false) => {
                format!("ended by {signal}, exit code {exit_code}, after {duration_ms} ms")
            }
            (None, false) => format!("exit code {exit_code} in {duration_ms} ms"),
        };
        note.extend(self.stdout_extent.note("stdout", id));
        note.extend(self.stderr_extent.note("stderr", id));
        note.extend(self.sandbox.note());
        Text::body(body).with_note(note)
    }

    /// Whether that is how it should end, where the exit codes in `success` say so.
    pub(crate) fn ending(&self, success: &[i32]) -> Ending {
        let is_own = self.signal.is_none() && !self.timed_out;
        if is_own && success.contains(&self.exit_code) {
            Ending::Done
        } else {
            Ending::ProgramFailed
        }
    }
}

/// The exit code of a program that ended with `status`, and the signal that ended it.
pub(super) fn exit(status: ExitStatus, timed_out: bool) -> (i32, Option<String>) {
    let code = match (timed_out, status.code(), status.signal()) {
        (true, _, _) => -1,
        (false, Some(code), _) => code,
        (false, None, signal) => 128 + signal.unwrap_or(0),
    };
    (code, status.signal().map(signal_name))
}

/// The name of a signal, as `kill -l` has it with `SIG` before.
fn signal_name(number: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
        "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
        "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    let name = usize::try_from(number - 1).ok().and_then(|index| NAMES.get(index));
    name.map_or_else(|| format!("SIG{number}"), |name| format!("SIG{name}"))
}

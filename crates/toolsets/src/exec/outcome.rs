//! The exit status and output of a program, as results show them.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use toolgate_contract::{ResultText, ToolRunStatus};

use super::output_extent::OutputStreamInfo;
use toolgate_world::forwarder::RefusedHost;
use toolgate_world::sandbox::{SandboxCoverage, SandboxLayer, SandboxProfile};

/// Fragments of messages that report a failed name resolution or connection, in lower case.
const NETWORK_ERRORS: [&str; 19] = [
    "could not resolve",
    "couldn't resolve",
    "name or service not known",
    "name resolution",
    "no address associated with hostname",
    "eai_again",
    "enotfound",
    "getaddrinfo",
    "network is unreachable",
    "enetunreach",
    "connection refused",
    "econnrefused",
    "couldn't connect to server",
    "could not connect to server",
    "no such host",
    "dns error",
    "failed to lookup address",
    "unknownhostexception",
    "unknown host",
];
/// The note about a program that failed because it did not use the proxy.
const BYPASS_NOTE: &str = "; programs reach the allowed hosts only through the proxy in HTTPS_PROXY \
                           and HTTP_PROXY, so a program that ignores it has no network and no DNS";
/// The maximum number of refused hosts that a note names. The structured result lists all of them.
const REFUSED_SHOWN_MAX: usize = 8;

/// The result of running a program.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ProgramRunResult {
    /// Exit code; 128 plus the signal's number if a signal ended the program, -1 if it timed out.
    pub(crate) exit_code: i32,
    /// Signal that ended the program, e.g. `SIGSEGV`.
    pub(super) signal: Option<String>,
    /// True if the program was stopped at its timeout.
    pub(crate) timed_out: bool,
    /// Run time.
    pub(crate) duration_ms: u64,
    /// Standard output; only its beginning and end if it is too long.
    pub(super) stdout: String,
    /// Length and encoding of `stdout`.
    pub(super) stdout_extent: OutputStreamInfo,
    /// Standard error; only its beginning and end if it is too long.
    pub(super) stderr: String,
    /// Length and encoding of `stderr`.
    pub(super) stderr_extent: OutputStreamInfo,
    /// Id for exec_output to read the part left out; null if nothing is left out, or if you cannot
    /// call exec_output.
    pub(crate) output_id: Option<String>,
    /// Name of the sandbox profile that the program ran in, and the layers that were missing, if
    /// any.
    pub(crate) sandbox: SandboxStatus,
    /// Refused hosts that the program tried to reach, if any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) refused_hosts: Vec<RefusedHost>,
    /// True if the program could reach only the hosts that the setting `hosts` allows.
    #[serde(skip)]
    pub(crate) is_forwarded: bool,
    /// Id of the tool that ran the program.
    #[serde(skip)]
    pub(super) tool: Arc<str>,
}

/// The sandbox that was in effect.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum SandboxStatus {
    /// The sandbox profile, with all layers in effect.
    Whole(SandboxProfile),
    /// The sandbox profile, with some layers missing.
    Partly(SandboxCoverage),
}

impl SandboxStatus {
    pub(super) fn from_coverage(coverage: &SandboxCoverage) -> Self {
        match coverage.is_complete() {
            true => Self::Whole(coverage.profile),
            false => Self::Partly(coverage.clone()),
        }
    }

    /// Returns true if the sandbox profile blocked the network.
    pub(crate) fn is_offline(&self) -> bool {
        self.profile() < SandboxProfile::Network
    }

    fn profile(&self) -> SandboxProfile {
        match self {
            Self::Whole(profile) => *profile,
            Self::Partly(coverage) => coverage.profile,
        }
    }

    /// Returns a note about missing sandbox layers, or `None` if none is missing.
    ///
    /// Control groups are not mentioned: few servers have them unless run as root, and limits per
    /// process apply instead. The structured result lists missing control groups.
    pub(crate) fn note(&self) -> Option<String> {
        let Self::Partly(coverage) = self else { return None };
        let missing = coverage.missing.iter().map(|it| it.layer);
        let names: Vec<_> =
            missing.filter(|it| *it != SandboxLayer::Groups).map(SandboxLayer::name).collect();
        let profile = coverage.profile.name();
        let names = names.join(", ");
        let note = || format!("; the sandbox `{profile}` lacks {names} on this system");
        (!names.is_empty()).then(note)
    }
}

impl ProgramRunResult {
    /// Formats the result as text. `longer` explains how to extend the timeout. `more` explains how
    /// to get the rest of a cut output, for a caller that cannot call `exec_output`, and may be
    /// empty.
    pub(crate) fn text(&self, longer: &str, more: &str) -> ResultText {
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
        let is_cut = self.stdout_extent.cut.is_some() || self.stderr_extent.cut.is_some();
        if is_cut && id.is_none() && !more.is_empty() {
            note.push_str(&format!("; {more}"));
        }
        note.extend(self.sandbox.note());
        note.extend(refusal_note(&self.refused_hosts));
        note.extend(self.offline_note());
        ResultText::from_body(body).with_note(note)
    }

    /// Returns a note if the program failed with a network error, and either had no network or did
    /// not use the proxy.
    pub(crate) fn offline_note(&self) -> Option<String> {
        let is_explained = self.exit_code == 0
            || !self.sandbox.is_offline()
            || !self.refused_hosts.is_empty()
            || !(has_network_error(&self.stderr) || has_network_error(&self.stdout));
        match (is_explained, self.is_forwarded) {
            (true, _) => None,
            (false, true) => Some(BYPASS_NOTE.to_owned()),
            (false, false) => Some(offline_note(&self.tool, self.sandbox.profile())),
        }
    }

    /// Classifies the end of the program. The run is a success if the program exited by itself with
    /// an exit code in `success`.
    pub(crate) fn ending(&self, success: &[i32]) -> ToolRunStatus {
        let is_own = self.signal.is_none() && !self.timed_out;
        if is_own && success.contains(&self.exit_code) {
            ToolRunStatus::Done
        } else {
            ToolRunStatus::ProgramFailed
        }
    }
}

/// Returns a note about the hosts `refused` by the sandbox's proxy, or `None` if there are none.
pub(crate) fn refusal_note(refused: &[RefusedHost]) -> Option<String> {
    let shown = refused.iter().take(REFUSED_SHOWN_MAX);
    let mut note: String =
        shown.map(|refused| format!("; refused host {}", refused.summary())).collect();
    let more = refused.len().saturating_sub(REFUSED_SHOWN_MAX);
    if more > 0 {
        note.push_str(&format!("; and {more} more refused hosts"));
    }
    (!note.is_empty()).then_some(note)
}

/// Returns the note for a program of the tool `tool` that failed because the sandbox profile
/// `profile` gives it no network.
fn offline_note(tool: &str, profile: SandboxProfile) -> String {
    format!(
        "; programs have no network here: to allow single hosts, the server's operator can add a \
         `[[sandbox.for]]` table with `tools = \"{tool}\"`, `profile = \"{}\"` and \
         `hosts = [\"HOST\"]`; the profile `network` allows all hosts",
        profile.name()
    )
}

/// Returns true if the `output` of a program reports a failed name resolution or connection.
fn has_network_error(output: &str) -> bool {
    let output = output.to_ascii_lowercase();
    NETWORK_ERRORS.iter().any(|error| output.contains(error))
}

/// Returns the exit code and the signal name of a program that ended with `status`. The code is -1
/// after a timeout, and 128 plus the signal's number after a signal.
pub(super) fn decode_exit(status: ExitStatus, timed_out: bool) -> (i32, Option<String>) {
    let code = match (timed_out, status.code(), status.signal()) {
        (true, _, _) => -1,
        (false, Some(code), _) => code,
        (false, None, signal) => 128 + signal.unwrap_or(0),
    };
    (code, status.signal().map(signal_name))
}

/// Returns the name of the signal `number` as in `kill -l`, with the prefix `SIG`.
fn signal_name(number: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
        "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
        "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    let name = usize::try_from(number - 1).ok().and_then(|index| NAMES.get(index));
    name.map_or_else(|| format!("SIG{number}"), |name| format!("SIG{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_name_resolutions_and_connections_are_network_errors() {
        for output in [
            "curl: (6) Could not resolve host: example.org",
            "npm error code EAI_AGAIN",
            "socket.gaierror: [Errno -3] Temporary failure in name resolution",
            "wget: unable to resolve: Name or service not known",
            "connect: Network is unreachable",
            "Error: connect ECONNREFUSED 127.0.0.1:5432",
            "dial tcp: lookup a.example: no such host",
            "Caused by: java.net.UnknownHostException: a.example",
            "curl: (7) Failed to connect to 192.0.2.7 port 80: Couldn't connect to server",
        ] {
            assert!(has_network_error(output), "{output}");
        }
        for output in ["", "KeyError: 'host'", "error: test failed"] {
            assert!(!has_network_error(output), "{output}");
        }
    }

    #[test]
    fn the_note_on_a_missing_network_names_every_required_setting() {
        let note = offline_note("exec.run", SandboxProfile::Workspace);
        for setting in ["tools = \"exec.run\"", "profile = \"workspace\"", "hosts = [\"HOST\"]"] {
            assert!(note.contains(setting), "{note}");
        }
    }
}

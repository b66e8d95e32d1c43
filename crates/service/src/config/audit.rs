//! Settings of the audit log.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_host::AuditArgumentDetail;

/// Audit log: one record for each call.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AuditSection {
    /// Destination of records: an absolute path, `stderr`, `off`, or `state` for
    /// `toolgate/audit.jsonl` in the user's state folder.
    pub to: String,
    /// Writes each record to disk before the server answers the call. After a power cut, no record
    /// of an answered call is missing, but every answer waits for the disk.
    pub strict: bool,
    /// File with the key that protects the log against changes: an absolute path, or `state` for
    /// `toolgate/audit.key` in the user's state folder. If the file is missing, toolgate creates
    /// it.
    pub key: String,
    /// Number of rotated log files to keep. The log file is rotated at 32 MiB.
    pub keep: u32,
    /// Arguments in the records: `none` (only their hash), `subject` (the path, command line,
    /// repository or URI, and the error message) or `redacted` (all arguments, with long texts
    /// cut). Secrets are redacted.
    pub arguments: ArgumentRecording,
}

/// Arguments of calls in the audit log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ArgumentRecording {
    /// Only the hash of the arguments.
    None,
    /// The path, command line, repository or URI, and the error message.
    #[default]
    Subject,
    /// All arguments, with long texts cut.
    Redacted,
}

impl From<ArgumentRecording> for AuditArgumentDetail {
    fn from(arguments: ArgumentRecording) -> Self {
        match arguments {
            ArgumentRecording::None => Self::None,
            ArgumentRecording::Subject => Self::Subject,
            ArgumentRecording::Redacted => Self::Redacted,
        }
    }
}

impl Default for AuditSection {
    fn default() -> Self {
        let state = || "state".to_owned();
        let arguments = ArgumentRecording::default();
        Self { to: state(), strict: false, key: state(), keep: 10, arguments }
    }
}

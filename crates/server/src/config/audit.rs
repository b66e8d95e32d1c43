//! Settings of the audit log.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Audit log: one record for each call.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AuditSection {
    /// Destination of records: an absolute path, `stderr`, `off`, or `state` for
    /// `toolgate/audit.jsonl` in the user's state folder.
    pub to: String,
    /// Writes each record to disk before its call is answered. A power cut then loses no record of
    /// an answered call, but every answer waits for the disk.
    pub strict: bool,
    /// Key file that seals the log: an absolute path, or `state` for `toolgate/audit.key` in the
    /// user's state folder. A missing key is created.
    pub key: String,
    /// Number of rotated log files to keep. The log file is rotated at 32 MiB.
    pub keep: u32,
}

impl Default for AuditSection {
    fn default() -> Self {
        let state = || "state".to_owned();
        Self { to: state(), strict: false, key: state(), keep: 10 }
    }
}

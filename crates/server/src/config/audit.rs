//! What is written of each call, and where.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where the record of each call goes.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Audit {
    /// An absolute path, `stderr`, `off`, or `state` for `toolgate/audit.jsonl` in the user's state folder.
    pub to: String,
    /// Whether no call is answered before its record is on the disk: none that a client knows of is missing after a power cut. Every answer then waits for the disk.
    pub strict: bool,
    /// Where the key is that a file is sealed with: an absolute path, or `state` for `toolgate/audit.key` in the user's state folder. It is made if there is none.
    pub key: String,
    /// How large a file grows before it is put aside, in bytes.
    pub file_bytes: u64,
    /// How many older files are kept.
    pub keep: u32,
}

impl Default for Audit {
    fn default() -> Self {
        let state = || "state".to_owned();
        Self { to: state(), strict: false, key: state(), file_bytes: 32 << 20, keep: 10 }
    }
}

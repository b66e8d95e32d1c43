//! Settings of servers whose callers have API keys.

use sha2::{Digest, Sha256};

/// Returns settings in which each caller in `names` has the API key `NAME-key`.
pub(crate) fn keys_of(names: &[&str]) -> String {
    let key = |name: &&str| {
        let digest = Sha256::digest(format!("{name}-key"));
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("[[keys]]\nname = \"{name}\"\nsha256 = \"{hex}\"\n")
    };
    names.iter().map(key).collect()
}

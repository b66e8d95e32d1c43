//! Computes digests of a server's settings, so that `toolgate fleet status` shows which servers of
//! a fleet have different settings.

use std::path::Path;

use serde_json::json;

use crate::config::{Config, key_file};
use crate::owned_files::{self, OwnedFileSymlinkPolicy};
use crate::upstreams::pins::LOCK_FILE_NAME;

/// Settings sections that may differ between the servers of a fleet, because they concern one
/// machine.
const LOCAL_SECTIONS: [&str; 6] = ["server", "listen", "log", "audit", "telemetry", "jobs"];
/// Settings sections that decide which calls each caller may make.
const POLICY_SECTIONS: [&str; 4] = ["policy", "tools", "scopes", "limits"];
/// Settings sections that decide who may call the server: API keys and OAuth issuers.
const KEY_SECTIONS: [&str; 2] = ["keys", "oauth"];
/// Largest key file or lock file with pins that is read, in bytes.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Number of hexadecimal digits of a settings digest.
const DIGITS: usize = 12;

/// Returns the digests of `config`, for the workspace at `root`, as a JSON object with the keys
/// `settings`, `policy`, `keys` and `pins`. A file that cannot be read counts as empty.
pub(crate) fn settings_digests(config: &Config, root: &Path) -> String {
    let mut sections = config.to_table();
    LOCAL_SECTIONS.iter().for_each(|name| drop(sections.remove(*name)));
    let policy = take_sections(&mut sections, &POLICY_SECTIONS);
    let keys = take_sections(&mut sections, &KEY_SECTIONS);
    let pins = take_sections(&mut sections, &["pins"]);
    let key_file = key_file::path(&config.server).ok().flatten();
    let key_file = key_file.map(|path| file_text(&path)).unwrap_or_default();
    let lock_file = file_text(&root.join(LOCK_FILE_NAME));
    json!({
        "settings": digest(&sections, ""),
        "policy": digest(&policy, ""),
        "keys": digest(&keys, &key_file),
        "pins": digest(&pins, &lock_file),
    })
    .to_string()
}

/// Removes the settings sections with the given `names` from `sections`, and returns the removed
/// sections.
fn take_sections(sections: &mut toml::Table, names: &[&str]) -> toml::Table {
    let taken = names.iter().filter_map(|name| Some(((*name).to_owned(), sections.remove(*name)?)));
    taken.collect()
}

fn file_text(path: &Path) -> String {
    owned_files::read_text(path, OwnedFileSymlinkPolicy::Followed, FILE_BYTES_MAX)
        .unwrap_or_default()
}

fn digest(sections: &toml::Table, file: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(toml::to_string(sections).unwrap_or_default().as_bytes());
    hasher.update(&[0]);
    hasher.update(file.as_bytes());
    hasher.finalize().to_hex()[..DIGITS].to_owned()
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test writes the file that is read")]
mod tests {
    use serde_json::Value;
    use tempfile::TempDir;

    use super::*;

    fn digests(text: &str, root: &TempDir) -> Value {
        let config: Config = toml::from_str(text).unwrap();
        serde_json::from_str(&settings_digests(&config, root.path())).unwrap()
    }

    #[test]
    fn a_changed_setting_changes_only_the_digest_of_its_part() {
        let root = TempDir::new().unwrap();
        let base = "[server]\nkeys_file = \"off\"\n";
        let before = digests(base, &root);
        let changed = |text: &str| -> Vec<String> {
            let after = digests(&format!("{base}{text}"), &root);
            let names = ["settings", "policy", "keys", "pins"].into_iter();
            names.filter(|name| after[name] != before[name]).map(str::to_owned).collect()
        };
        assert_eq!(changed("[log]\nlevel = \"debug\"\n"), Vec::<String>::new());
        assert_eq!(changed("[tools]\ndeny = [\"exec.*\"]\n"), ["policy"]);
        assert_eq!(changed("[[keys]]\nname = \"ci\"\nsha256 = \"0\"\n"), ["keys"]);
        assert_eq!(changed("[files]\nprotected = [\"x\"]\n"), ["settings"]);
        std::fs::write(root.path().join(LOCK_FILE_NAME), "changed").unwrap();
        assert_eq!(changed(""), ["pins"]);
    }
}

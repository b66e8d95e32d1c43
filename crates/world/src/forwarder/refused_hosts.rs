//! The hosts to which a forwarder refused connections, and how often.

use std::collections::BTreeMap;
use std::sync::Mutex;

use schemars::JsonSchema;
use serde::Serialize;
use toolgate_contract::lock_mutex;

/// The maximum number of refused hosts that a run reports. Further hosts are counted together.
const HOSTS_MAX: usize = 32;
/// The name of the entry that counts refused hosts beyond [`HOSTS_MAX`].
const OTHER_HOSTS: &str = "other hosts";

/// A refused host that a program tried to reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RefusedHost {
    /// Host and port, and the path if only some paths of the host are allowed.
    pub host: String,
    /// Number of tries.
    pub tries: u64,
    /// Reason for the refusal.
    pub why: String,
    /// Change of the settings that would allow the host; null if there is none.
    pub allow: Option<String>,
}

impl RefusedHost {
    /// Returns a line such as `a.example:443 (2 tries): it is not in sandbox.hosts; to allow it,
    /// …`.
    pub fn summary(&self) -> String {
        let Self { host, tries, .. } = self;
        let tries = match tries {
            1 => "1 try".to_owned(),
            tries => format!("{tries} tries"),
        };
        format!("{host} ({tries}): {}", self.reason())
    }

    /// Returns the reason for the refusal, and the change of the settings that would allow the
    /// host.
    pub fn reason(&self) -> String {
        let allow = self.allow.as_ref().map(|line| format!("; to allow it, {line}"));
        format!("{}{}", self.why, allow.unwrap_or_default())
    }
}

/// The hosts to which a forwarder refused connections during one run of a program.
#[derive(Debug, Default)]
pub(super) struct RefusedHosts(Mutex<BTreeMap<String, RefusedHost>>);

impl RefusedHosts {
    /// Adds one to the count of refused attempts of the program to reach `host`, with the reason
    /// `why`. `allow` is the change of the settings that would allow the host.
    pub(super) fn count(&self, host: &str, why: String, allow: Option<String>) {
        let mut all = lock_mutex(&self.0);
        let is_known = all.contains_key(host);
        let key = if is_known || all.len() < HOSTS_MAX { host } else { OTHER_HOSTS };
        let (why, allow) = match key {
            OTHER_HOSTS => ("too many different hosts were refused".to_owned(), None),
            _ => (why, allow),
        };
        if !all.contains_key(key) {
            tracing::debug!("refused a connection of a sandboxed program to {key}: {why}");
        }
        let entry = all.entry(key.to_owned());
        let entry =
            entry.or_insert_with(|| RefusedHost { host: key.to_owned(), tries: 0, why, allow });
        entry.tries = entry.tries.saturating_add(1);
    }

    /// Returns all refused hosts in alphabetical order.
    pub(super) fn list(&self) -> Vec<RefusedHost> {
        lock_mutex(&self.0).values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_are_counted_and_further_hosts_are_counted_together() {
        let refused = RefusedHosts::default();
        for _ in 0..3 {
            refused.count("a.example:443", "it is not allowed".to_owned(), None);
        }
        for number in 0..HOSTS_MAX + 5 {
            refused.count(&format!("b{number}.example:443"), "it is not allowed".to_owned(), None);
        }
        let all = refused.list();
        assert_eq!(all.len(), HOSTS_MAX + 1);
        assert_eq!((all[0].host.as_str(), all[0].tries), ("a.example:443", 3));
        let others = all.iter().find(|it| it.host == OTHER_HOSTS).unwrap();
        assert_eq!(others.tries, 6);
        assert_eq!(all[0].summary(), "a.example:443 (3 tries): it is not allowed");
    }
}

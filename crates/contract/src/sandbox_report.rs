//! Confinement of the programs that a call ran, for its audit record.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};

use crate::sync::lock_mutex;

/// The maximum number of refused hosts in a report about the sandbox.
const HOSTS_MAX: usize = 64;

/// The confinement of the programs that a call ran: their sandbox profiles, and the hosts that they
/// could not reach. Clones share the report.
#[derive(Clone, Default)]
pub struct SandboxReport(Arc<Mutex<SandboxReportState>>);

/// Sandbox profiles and refused hosts of the programs that a call ran.
#[derive(Default)]
struct SandboxReportState {
    profiles: BTreeSet<String>,
    refused_hosts: BTreeMap<String, String>,
}

impl SandboxReport {
    /// Adds the sandbox profile of a program. `how` is the profile's name and the layers of the
    /// sandbox that were missing.
    pub fn add_profile(&self, how: String) {
        lock_mutex(&self.0).profiles.insert(how);
    }

    /// Adds a host that a program could not reach. `summary` is a line about the refusal, which
    /// replaces an earlier line about the host. Drops hosts beyond a limit of 64.
    pub fn add_refused_host(&self, host: &str, summary: String) {
        let mut all = lock_mutex(&self.0);
        if all.refused_hosts.len() < HOSTS_MAX || all.refused_hosts.contains_key(host) {
            all.refused_hosts.insert(host.to_owned(), summary);
        }
    }

    /// Returns true if no program ran, and no program was refused access to a host.
    pub fn is_empty(&self) -> bool {
        let all = lock_mutex(&self.0);
        all.profiles.is_empty() && all.refused_hosts.is_empty()
    }

    /// Returns all sandbox profiles, each once, joined by `; `. Returns `None` if no program ran.
    pub fn summary(&self) -> Option<String> {
        let all = lock_mutex(&self.0);
        let words: Vec<_> = all.profiles.iter().map(String::as_str).collect();
        (!words.is_empty()).then(|| words.join("; "))
    }

    /// Returns a line about each host that a program could not reach.
    pub fn refused_hosts(&self) -> Vec<String> {
        lock_mutex(&self.0).refused_hosts.values().cloned().collect()
    }
}

impl fmt::Debug for SandboxReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ran")
    }
}

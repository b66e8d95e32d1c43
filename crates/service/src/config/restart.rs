//! Tells which changed settings a running server applies, and which need a restart.

use super::{AuditSection, Config, LimitsSection, LogSection, ServerSection};

/// Returns the settings with which a server continues to run when its configuration changes from
/// `in_force` to `next`. Also returns the names of changed settings that need a restart.
///
/// Sockets, stores and limits of connections are opened once. A running server keeps their
/// settings. All other settings come from `next`.
pub(crate) fn applied_settings(in_force: &Config, next: &Config) -> (Config, Vec<String>) {
    let running = in_force.clone();
    let applied = Config {
        server: ServerSection {
            trusted_proxies: next.server.trusted_proxies.clone(),
            forwarded_header: next.server.forwarded_header.clone(),
            ..running.server
        },
        listen: running.listen,
        limits: LimitsSection {
            message_bytes: running.limits.message_bytes,
            ..next.limits.clone()
        },
        // The schemas of envelopes are read once, as the RAGX contract demands.
        envelope: running.envelope,
        audit: AuditSection { arguments: next.audit.arguments, ..running.audit },
        log: LogSection { calls: running.log.calls, ..next.log.clone() },
        telemetry: running.telemetry,
        search: running.search,
        jobs: running.jobs,
        fleet: running.fleet,
        // A server for Synesthetic reads its assets once, as the contract demands.
        assets: match running.assets.owner.always_offered {
            true => running.assets,
            false => next.assets.clone(),
        },
        contracts: running.contracts,
        ..next.clone()
    };
    let waiting = changed_settings(&applied, next);
    (applied, waiting)
}

/// Difference between the settings of a running server and its next settings.
#[derive(Debug)]
pub struct SettingsDifference {
    /// Names of the changed settings that the server applies while it runs.
    pub applied: Vec<String>,
    /// Names of the changed settings that need a restart.
    pub waiting: Vec<String>,
}

/// Returns the names of the settings that differ between `in_force` and `next`: those that a
/// running server applies, and those that need a restart.
pub fn compare_settings(in_force: &Config, next: &Config) -> SettingsDifference {
    let (then, waiting) = applied_settings(in_force, next);
    SettingsDifference { applied: changed_settings(in_force, &then), waiting }
}

/// Returns the names of the settings that differ between `before` and `after`, such as
/// `policy.rules`, or `upstream.NAME` for a named table.
pub(crate) fn changed_settings(before: &Config, after: &Config) -> Vec<String> {
    let [before, after] = [before, after].map(Config::to_table);
    let mut changed = Vec::new();
    for (section, old, new) in differences(&before, &after) {
        match (old.and_then(toml::Value::as_table), new.and_then(toml::Value::as_table)) {
            (None, None) => changed.push(section.clone()),
            (old, new) => {
                let none = toml::Table::new();
                let settings = differences(old.unwrap_or(&none), new.unwrap_or(&none));
                changed.extend(settings.map(|(name, ..)| format!("{section}.{name}")));
            }
        }
    }
    changed
}

/// Returns each key whose value differs between the tables `before` and `after`, with both values.
/// A value is `None` if the table does not have the key.
fn differences<'t>(
    before: &'t toml::Table,
    after: &'t toml::Table,
) -> impl Iterator<Item = (&'t String, Option<&'t toml::Value>, Option<&'t toml::Value>)> {
    let added = after.keys().filter(|key| !before.contains_key(*key));
    let pairs = before.keys().chain(added).map(|key| (key, before.get(key), after.get(key)));
    pairs.filter(|(_, old, new)| old != new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        toml::from_str(text).expect("settings")
    }

    /// Returns the names of the settings that differ from `before` to `after`: first those that a
    /// running server applies, then those that need a restart.
    fn changes(before: &str, after: &str) -> (String, String) {
        let before = config(before);
        let (applied, waiting) = applied_settings(&before, &config(after));
        (changed_settings(&before, &applied).join(" "), waiting.join(" "))
    }

    #[test]
    fn rules_limits_tools_and_upstreams_are_applied_at_once() {
        let (applied, waiting) = changes(
            "[upstream.a]\nurl = \"https://a.example\"\n",
            "[upstream.b]\nurl = \"https://b.example\"\n[tools]\ndeny = [\"exec.*\"]\n\
             [limits]\ncalls = 9\n[log]\nlevel = \"debug\"\n[server]\ntrusted_proxies = [\"::1\"]\n\
             [[keys]]\nname = \"ci\"\nsha256 = \"0\"\n[[policy.rules]]\nname = \"r\"\neffect = \"deny\"\n",
        );
        assert_eq!(
            applied,
            "keys limits.calls log.level policy.rules server.trusted_proxies tools.deny upstream.a \
             upstream.b"
        );
        assert_eq!(waiting, "");
    }

    #[test]
    fn addresses_stores_and_sizes_of_messages_need_a_restart() {
        let (applied, waiting) = changes(
            "[jobs]\nto = \"off\"\n",
            "[server]\nlisten = \"127.0.0.1:1\"\ntls_key = \"/k\"\ntls_certificate = \"/c\"\n\
             [limits]\nmessage_bytes = 4096\n[audit]\nstrict = true\n[search]\ncache = \"memory\"\n\
             [[listen]]\naddr = \"127.0.0.1:2\"\ndialect = \"mira\"\n[files]\nprotected = [\"x\"]\n",
        );
        assert_eq!(applied, "files.protected");
        assert_eq!(
            waiting,
            "audit.strict jobs.to limits.message_bytes listen search.cache server.listen \
             server.tls_certificate server.tls_key"
        );
    }

    #[test]
    fn a_setting_that_is_set_back_to_the_running_value_needs_no_restart() {
        let running = config("[jobs]\nto = \"off\"\n");
        let (applied, waiting) = applied_settings(&running, &config("[jobs]\nto = \"/jobs\"\n"));
        assert_eq!(waiting, ["jobs.to"]);
        let (_, waiting) = applied_settings(&applied, &running);
        assert!(waiting.is_empty(), "{waiting:?}");
    }
}

//! One token issuer and its signing keys, which are fetched on demand, cached and refreshed.
//!
//! An unknown key id causes at most one fetch per minute, and never two fetches at once.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Deserialize;
use tokio::sync::watch;
use toolgate_toolsets::world::Fetch;
use toolgate_toolsets::world::fetch::Target;

use super::jwks::KeySet;
use crate::config::oauth;
use crate::session::locked;

/// Timeout for one answer of the issuer.
const WITHIN: Duration = Duration::from_secs(5);
/// Largest answer, in bytes. Longer ones are rejected.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// Shortest and longest cache time of keys, whatever the issuer's `Cache-Control`.
const FRESH: [Duration; 2] = [Duration::from_secs(5 * 60), Duration::from_secs(24 * 3600)];
/// Further time for which old keys are used if the issuer is unavailable.
const STALE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Shortest time between two fetches for unknown key ids.
const ANOTHER_AFTER: Duration = Duration::from_secs(60);
/// Shortest time between a failed fetch and the next one.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Token issuer with its cached keys.
pub(super) struct Issuer {
    pub(super) settings: oauth::Issuer,
    fetch: Fetch,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    held: Option<Held>,
    /// Time of the last failed fetch, if the last fetch failed.
    failed: Option<Instant>,
    /// Time of the last fetch for an unknown key id.
    missed: Option<Instant>,
    /// Closes when the running fetch has ended.
    asking: Option<watch::Receiver<()>>,
}

struct Held {
    keys: Arc<KeySet>,
    since: Instant,
    fresh: Duration,
}

/// Issuer metadata, as far as it is used.
#[derive(Deserialize)]
struct Metadata {
    issuer: String,
    jwks_uri: String,
}

impl Issuer {
    pub(super) fn new(settings: oauth::Issuer, fetch: Fetch) -> Arc<Self> {
        Arc::new(Self { settings, fetch, state: Mutex::default() })
    }

    /// Returns the cached keys. Starts a fetch if they are no longer fresh.
    pub(super) fn keys(self: &Arc<Self>) -> Option<Arc<KeySet>> {
        let mut state = locked(&self.state);
        let held = state.held.as_ref()?;
        let age = held.since.elapsed();
        if age > held.fresh.saturating_add(STALE_MAX) {
            return None;
        }
        let keys = held.keys.clone();
        if age > held.fresh {
            let _ = self.ask(&mut state);
        }
        Some(keys)
    }

    /// Fetches the keys and waits for the result. Does nothing if a fetch was made too recently.
    pub(super) async fn learn(self: &Arc<Self>) {
        let asking = self.ask(&mut locked(&self.state));
        if let Some(mut asking) = asking {
            // Nothing is sent on the channel; it closes at the end.
            while asking.changed().await.is_ok() {}
        }
    }

    /// Starts a fetch unless one is running or was made too recently. Returns a channel that closes
    /// at its end.
    ///
    /// The fetch has its own task, because its first caller may leave while others wait.
    fn ask(self: &Arc<Self>, state: &mut State) -> Option<watch::Receiver<()>> {
        if let Some(asking) = &state.asking {
            return Some(asking.clone());
        }
        if state.failed.is_some_and(|at| at.elapsed() < AGAIN_AFTER) {
            return None;
        }
        if state.held.as_ref().is_some_and(|held| held.since.elapsed() < held.fresh) {
            if state.missed.is_some_and(|at| at.elapsed() < ANOTHER_AFTER) {
                return None;
            }
            state.missed = Some(Instant::now());
        }
        let (done, asking) = watch::channel(());
        state.asking = Some(asking.clone());
        let issuer = self.clone();
        tokio::spawn(async move {
            let told = tokio::time::timeout(WITHIN, issuer.told()).await;
            let told = told.unwrap_or_else(|_| Err(format!("no answer within {WITHIN:?}")));
            issuer.take(told);
            drop(done);
        });
        Some(asking)
    }

    fn take(&self, told: Result<(KeySet, Duration), String>) {
        let name = &self.settings.issuer;
        let mut state = locked(&self.state);
        state.asking = None;
        state.failed = told.is_err().then(Instant::now);
        match told {
            Ok((keys, fresh)) => {
                tracing::info!("{name} has {} keys", keys.len());
                state.held = Some(Held { keys: Arc::new(keys), since: Instant::now(), fresh });
            }
            Err(why) => tracing::warn!("the keys of {name} are not to be had: {why}"),
        }
    }

    /// Fetches the keys and their cache time.
    async fn told(&self) -> Result<(KeySet, Duration), String> {
        let target = match &self.settings.jwks_uri {
            Some(url) => place(url)?,
            None => self.found().await?,
        };
        let (json, cache_control) = self.got(&target).await?;
        let keys = KeySet::read(&json).map_err(|why| format!("at {target}: {why}"))?;
        let said = cache_control.as_deref().and_then(max_age);
        Ok((keys, said.unwrap_or(FRESH[0]).clamp(FRESH[0], FRESH[1])))
    }

    /// Discovers the URL of the keys in the issuer's metadata.
    async fn found(&self) -> Result<Target, String> {
        let issuer = self.settings.issuer.as_str();
        let mut last = String::new();
        for url in well_known(issuer)? {
            let target = place(&url)?;
            let (json, _) = match self.got(&target).await {
                Ok(got) => got,
                Err(why) => {
                    last = why;
                    continue;
                }
            };
            let said: Metadata = serde_json::from_slice(&json)
                .map_err(|err| format!("what it says of itself cannot be read: {err}"))?;
            // Without this check, another server could present its own keys.
            if said.issuer != issuer {
                return Err("it says that it is another issuer".to_owned());
            }
            let target = place(&said.jwks_uri)?;
            if issuer.starts_with("https:") && !said.jwks_uri.starts_with("https:") {
                return Err("it says that its keys are where nothing is encrypted".to_owned());
            }
            return Ok(target);
        }
        Err(last)
    }

    /// Fetches `target`. Returns the body and the `Cache-Control` header.
    async fn got(&self, target: &Target) -> Result<(Vec<u8>, Option<String>), String> {
        let got = self.fetch.get(target, WITHIN, ANSWER_BYTES_MAX + 1).await;
        let got = got.map_err(|why| format!("at {target}: {why}"))?;
        if got.answered.status != 200 {
            return Err(format!("at {target}: the answer was {}", got.answered.status));
        }
        if got.answered.body.len() > ANSWER_BYTES_MAX {
            return Err(format!("at {target}: there are more than {ANSWER_BYTES_MAX} bytes"));
        }
        Ok((got.answered.body, got.cache_control))
    }
}

/// Parses `url` and requires https, or http on loopback.
pub(crate) fn place(url: &str) -> Result<Target, String> {
    let target = Target::whole(url).map_err(|why| format!("`{url}` {why}"))?;
    match target.is_private() {
        true => Ok(target),
        false => Err(format!("`{url}` is not encrypted; it must be https")),
    }
}

/// Returns the metadata URLs of `issuer` under OpenID Connect Discovery and RFC 8414.
fn well_known(issuer: &str) -> Result<[String; 2], String> {
    let bare = issuer.trim_end_matches('/');
    let (scheme, rest) = bare.split_once("://").ok_or("the issuer is no URL")?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    Ok([
        format!("{bare}/.well-known/openid-configuration"),
        format!("{scheme}://{authority}/.well-known/oauth-authorization-server{path}"),
    ])
}

/// Parses `max-age` of a `Cache-Control` header.
fn max_age(cache_control: &str) -> Option<Duration> {
    let mut words = cache_control.split(',').map(str::trim);
    let seconds = words.find_map(|word| word.strip_prefix("max-age=")?.parse().ok())?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_issuer_is_looked_for_where_both_standards_have_it() {
        let [first, second] = well_known("https://id.example/realms/a").unwrap();
        assert_eq!(first, "https://id.example/realms/a/.well-known/openid-configuration");
        assert_eq!(second, "https://id.example/.well-known/oauth-authorization-server/realms/a");
        let [first, second] = well_known("https://id.example/").unwrap();
        assert_eq!(first, "https://id.example/.well-known/openid-configuration");
        assert_eq!(second, "https://id.example/.well-known/oauth-authorization-server");
    }

    #[test]
    fn keys_are_asked_for_only_where_nobody_reads_along() {
        for url in ["https://id.example/keys?p=1", "http://localhost:8/keys", "http://[::1]/keys"] {
            assert!(place(url).is_ok(), "{url}");
        }
        for url in [
            "http://id.example/keys",
            "http://169.254.169.254/latest",
            "file:///etc/passwd",
            "javascript:alert(1)",
            "a:$(calc)",
            "https://user@id.example/keys",
            "/keys",
            "",
        ] {
            assert!(place(url).is_err(), "{url}");
        }
    }

    #[test]
    fn how_long_keys_may_be_kept_is_read_of_a_header() {
        assert_eq!(max_age("public, max-age=600"), Some(Duration::from_secs(600)));
        assert_eq!(max_age("no-store"), None);
        assert_eq!(max_age("max-age=many"), None);
    }
}

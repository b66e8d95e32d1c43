//! One token issuer and its signing keys, which are fetched on demand, cached and refreshed.
//!
//! An unknown key id causes at most one fetch per minute, and never two fetches at once.

use crate::config::oauth::encrypted_target;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Deserialize;
use tokio::sync::watch;
use toolgate_contract::{lock_mutex, strip_byte_order_mark_bytes};
use toolgate_net::HttpUrl;
use toolgate_world::HttpFetcher;

use super::jwks::JwkSet;
use crate::config::oauth;

/// Time limit for one answer of a token issuer.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest answer of a token issuer, in bytes. Longer answers are rejected.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// Shortest and longest time for which a token issuer's keys are cached, regardless of the
/// `Cache-Control` header.
const FRESH_RANGE: [Duration; 2] = [Duration::from_secs(5 * 60), Duration::from_secs(24 * 3600)];
/// Time for which expired signing keys are still used if the token issuer is unavailable.
const STALE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Shortest time between two fetches of an issuer's keys because of unknown key ids.
const UNKNOWN_KEY_PAUSE: Duration = Duration::from_secs(60);
/// Shortest time between a failed fetch of an issuer's keys and the next fetch.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// Token issuer with its cached signing keys.
pub(super) struct TokenIssuer {
    pub(super) settings: oauth::OAuthIssuerEntry,
    fetch: HttpFetcher,
    state: Mutex<TokenIssuerState>,
}

#[derive(Default)]
struct TokenIssuerState {
    cached: Option<CachedKeySet>,
    /// Time of the last fetch of keys, or `None` if that fetch succeeded.
    failed_at: Option<Instant>,
    /// Time of the last fetch of keys because of an unknown key id.
    unknown_key_at: Option<Instant>,
    /// Channel that closes when the running fetch of keys ends. `None` if no fetch is running.
    running_fetch: Option<watch::Receiver<()>>,
}

/// Signing keys of an issuer, with the time of their fetch and the time for which they are fresh.
struct CachedKeySet {
    keys: Arc<JwkSet>,
    fetched_at: Instant,
    fresh_for: Duration,
}

/// Fields of an OAuth issuer's metadata document that toolgate uses.
#[derive(Deserialize)]
struct TokenIssuerMetadata {
    issuer: String,
    jwks_uri: String,
}

impl TokenIssuer {
    pub(super) fn new(settings: oauth::OAuthIssuerEntry, fetch: HttpFetcher) -> Arc<Self> {
        Arc::new(Self { settings, fetch, state: Mutex::default() })
    }

    /// Returns the issuer's cached keys, or `None` if no keys are cached or the cached keys are too
    /// old. Starts a fetch in the background if the cached keys are no longer fresh.
    pub(super) fn keys(self: &Arc<Self>) -> Option<Arc<JwkSet>> {
        let mut state = lock_mutex(&self.state);
        let cached = state.cached.as_ref()?;
        let age = cached.fetched_at.elapsed();
        if age > cached.fresh_for.saturating_add(STALE_MAX) {
            return None;
        }
        let keys = cached.keys.clone();
        if age > cached.fresh_for {
            let _ = self.start_fetch(&mut state);
        }
        Some(keys)
    }

    /// Fetches the issuer's keys and waits until the fetch ends. Does nothing if the last fetch was
    /// too recent.
    pub(super) async fn refresh(self: &Arc<Self>) {
        let fetch = self.start_fetch(&mut lock_mutex(&self.state));
        if let Some(mut fetch) = fetch {
            // Nothing is sent on the channel; it closes at the end.
            while fetch.changed().await.is_ok() {}
        }
    }

    /// Starts a fetch of the issuer's keys, unless a fetch is already running. Returns a channel
    /// that closes when the fetch ends, or `None` if the last fetch was too recent.
    ///
    /// The fetch runs in a separate task, because the request that started it may end while other
    /// requests wait.
    fn start_fetch(self: &Arc<Self>, state: &mut TokenIssuerState) -> Option<watch::Receiver<()>> {
        if let Some(fetch) = &state.running_fetch {
            return Some(fetch.clone());
        }
        if state.failed_at.is_some_and(|at| at.elapsed() < RETRY_PAUSE) {
            return None;
        }
        let is_fresh = |cached: &CachedKeySet| cached.fetched_at.elapsed() < cached.fresh_for;
        if state.cached.as_ref().is_some_and(is_fresh) {
            if state.unknown_key_at.is_some_and(|at| at.elapsed() < UNKNOWN_KEY_PAUSE) {
                return None;
            }
            state.unknown_key_at = Some(Instant::now());
        }
        let (done, fetch) = watch::channel(());
        state.running_fetch = Some(fetch.clone());
        let issuer = self.clone();
        toolgate_net::spawn_task(async move {
            let result = tokio::time::timeout(FETCH_TIMEOUT, issuer.fetch_keys()).await;
            let late = |_| Err(format!("timed out after {} s", FETCH_TIMEOUT.as_secs()));
            issuer.store_result(result.unwrap_or_else(late));
            drop(done);
        });
        Some(fetch)
    }

    fn store_result(&self, result: Result<(JwkSet, Duration), String>) {
        let name = &self.settings.issuer;
        let mut state = lock_mutex(&self.state);
        state.running_fetch = None;
        state.failed_at = result.is_err().then(Instant::now);
        match result {
            Ok((keys, fresh)) => {
                let unit = if keys.len() == 1 { "key" } else { "keys" };
                tracing::info!("fetched {} {unit} of {name}", keys.len());
                state.cached = Some(CachedKeySet {
                    keys: Arc::new(keys),
                    fetched_at: Instant::now(),
                    fresh_for: fresh,
                });
            }
            Err(why) => tracing::warn!("cannot fetch the keys of {name}: {why}"),
        }
    }

    /// Fetches the issuer's keys. Returns the keys and the time for which they may be cached. The
    /// error is a reason for the log.
    async fn fetch_keys(&self) -> Result<(JwkSet, Duration), String> {
        let target = match &self.settings.jwks_uri {
            Some(url) => encrypted_target(url)?,
            None => self.discover_keys_target().await?,
        };
        let (json, cache_control) = self.fetch_document(&target).await?;
        let keys = JwkSet::parse(&json).map_err(|why| format!("at {target}: {why}"))?;
        let max_age = cache_control.as_deref().and_then(max_age);
        Ok((keys, max_age.unwrap_or(FRESH_RANGE[0]).clamp(FRESH_RANGE[0], FRESH_RANGE[1])))
    }

    /// Fetches the issuer's metadata, and returns the URL of the signing keys in it. The error is a
    /// reason for the log.
    async fn discover_keys_target(&self) -> Result<HttpUrl, String> {
        let issuer = self.settings.issuer.as_str();
        let mut last = String::new();
        for url in metadata_urls(issuer)? {
            let target = encrypted_target(&url)?;
            let (json, _) = match self.fetch_document(&target).await {
                Ok(document) => document,
                Err(why) => {
                    last = why;
                    continue;
                }
            };
            let metadata: TokenIssuerMetadata =
                serde_json::from_slice(strip_byte_order_mark_bytes(&json))
                    .map_err(|err| format!("the issuer's metadata is invalid: {err}"))?;
            // Without this check, another server could present its own keys.
            if metadata.issuer != issuer {
                return Err("the issuer's metadata names a different issuer".to_owned());
            }
            let target = encrypted_target(&metadata.jwks_uri)?;
            if issuer.starts_with("https:") && !metadata.jwks_uri.starts_with("https:") {
                return Err("the issuer's metadata names an unencrypted URL for keys".to_owned());
            }
            return Ok(target);
        }
        Err(last)
    }

    /// Fetches the document at `target` from the issuer. Returns the body, and the value of the
    /// `Cache-Control` header if there is one. Fails if the status of the answer is not 200, or the
    /// answer is too large.
    async fn fetch_document(&self, target: &HttpUrl) -> Result<(Vec<u8>, Option<String>), String> {
        let fetched = self.fetch.get(target, FETCH_TIMEOUT, ANSWER_BYTES_MAX + 1).await;
        let fetched = fetched.map_err(|why| format!("at {target}: {why}"))?;
        if fetched.response.status != 200 {
            return Err(format!("at {target}: the answer was {}", fetched.response.status));
        }
        if fetched.response.body.len() > ANSWER_BYTES_MAX {
            return Err(format!("at {target}: the answer has more than {ANSWER_BYTES_MAX} bytes"));
        }
        Ok((fetched.response.body, fetched.cache_control))
    }
}

/// Returns the two URLs at which `issuer` may publish its metadata: by OpenID Connect Discovery and
/// by RFC 8414. Fails if `issuer` is not a URL.
fn metadata_urls(issuer: &str) -> Result<[String; 2], String> {
    let url = HttpUrl::parse(issuer).map_err(|why| format!("the issuer {why}"))?;
    Ok([
        format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/')),
        url.well_known("oauth-authorization-server"),
    ])
}

/// Parses the duration `max-age` in the value of a `Cache-Control` header. Returns `None` if there
/// is none.
fn max_age(cache_control: &str) -> Option<Duration> {
    let mut words = cache_control.split(',').map(str::trim);
    let seconds = words.find_map(|word| word.strip_prefix("max-age=")?.parse().ok())?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metadata_urls_are_those_of_both_standards() {
        let [first, second] = metadata_urls("https://id.example/realms/a").unwrap();
        assert_eq!(first, "https://id.example/realms/a/.well-known/openid-configuration");
        assert_eq!(second, "https://id.example/.well-known/oauth-authorization-server/realms/a");
        let [first, second] = metadata_urls("https://id.example/").unwrap();
        assert_eq!(first, "https://id.example/.well-known/openid-configuration");
        assert_eq!(second, "https://id.example/.well-known/oauth-authorization-server");
    }

    #[test]
    fn keys_are_fetched_only_over_https_or_loopback() {
        for url in ["https://id.example/keys?p=1", "http://localhost:8/keys", "http://[::1]/keys"] {
            assert!(encrypted_target(url).is_ok(), "{url}");
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
            assert!(encrypted_target(url).is_err(), "{url}");
        }
    }

    #[test]
    fn the_cache_time_of_keys_is_the_max_age_of_the_header() {
        assert_eq!(max_age("public, max-age=600"), Some(Duration::from_secs(600)));
        assert_eq!(max_age("no-store"), None);
        assert_eq!(max_age("max-age=many"), None);
    }
}

//! Settings of the model that computes vectors.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::BearerToken;
use toolgate_net::HttpUrl;

/// The maximum number of texts in one request to an embedding endpoint. The largest known endpoints
/// accept no more.
const BATCH_MAX: usize = 2_048;
/// The maximum number of dimensions of a vector from an embedding endpoint.
const DIMENSIONS_MAX: usize = 16_384;

/// Embedding model that finds passages by meaning: a model in a folder, or one at an endpoint.
/// Without either, toolgate uses a small built-in model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EmbedderSettings {
    /// Folder of a sentence-transformers model of the BERT family, such as all-MiniLM-L6-v2, with
    /// `config.json`, `model.safetensors` and `tokenizer.json`. The model runs in this process, and
    /// no text leaves this machine.
    pub folder: Option<String>,
    /// URL of an OpenAI-compatible endpoint, such as `https://api.example/v1`. toolgate sends the
    /// indexed texts to the path `embeddings` below this URL.
    pub url: Option<String>,
    /// Name of the model at the endpoint.
    pub model: Option<String>,
    /// Number of dimensions of the endpoint's vectors.
    pub dimensions: Option<usize>,
    /// Asks the endpoint for vectors with `dimensions` dimensions. Only some models can shorten
    /// their vectors.
    pub shorten: bool,
    /// Environment variable with the endpoint's key. The key cannot be set in the settings file.
    pub key_env: Option<String>,
    /// Maximum number of texts in one request.
    pub batch: usize,
    /// Time limit of one request, in milliseconds. For the vector of a query, the limit is at most
    /// 1.5 seconds. After that, the search answers without the vector.
    pub timeout_ms: u64,
    /// Price of a million tokens at the endpoint.
    pub price: Option<DecimalMoneyAmount>,
    /// Maximum cost at the endpoint while the server runs, calculated from the price. toolgate
    /// estimates unknown costs, and starts no request that would exceed the limit.
    pub cost_max: Option<DecimalMoneyAmount>,
    /// The API key of the endpoint, once it was read from the environment.
    #[serde(skip)]
    #[schemars(skip)]
    pub key: Option<BearerToken>,
}

/// An amount of money, in any currency.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct DecimalMoneyAmount(pub f64);

impl PartialEq for DecimalMoneyAmount {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for DecimalMoneyAmount {}

impl fmt::Display for DecimalMoneyAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Default for EmbedderSettings {
    fn default() -> Self {
        Self {
            folder: None,
            url: None,
            model: None,
            dimensions: None,
            shorten: false,
            key_env: None,
            batch: 32,
            timeout_ms: 30_000,
            price: None,
            cost_max: None,
            key: None,
        }
    }
}

impl EmbedderSettings {
    /// Checks the settings of the embedding model.
    ///
    /// # Errors
    ///
    /// Fails if a value is invalid. The error describes a fix.
    pub fn check(&self) -> Result<(), String> {
        let invalid = |name: &str, why: &str| Err(format!("`search.embedder.{name}` {why}"));
        if self.folder.as_ref().is_some_and(|folder| folder.trim().is_empty()) {
            return invalid("folder", "is empty; set a folder with a model, or remove it");
        }
        if self.url.is_none() {
            let others = [
                ("model", self.model.is_some()),
                ("dimensions", self.dimensions.is_some()),
                ("shorten", self.shorten),
                ("key_env", self.key_env.is_some()),
                ("price", self.price.is_some()),
                ("cost_max", self.cost_max.is_some()),
            ];
            return match others.into_iter().find(|(_, is_set)| *is_set) {
                Some((name, _)) => invalid(name, "requires an endpoint; set `url`"),
                None => Ok(()),
            };
        }
        if self.folder.is_some() {
            return invalid("folder", "and `search.embedder.url` are both set; remove one");
        }
        let target = self.target().map_err(|why| format!("`search.embedder.url` {why}"))?;
        if self.model.as_ref().is_none_or(|model| model.trim().is_empty()) {
            return invalid("model", "is missing; set the model's name at the endpoint");
        }
        match self.dimensions {
            Some(1..=DIMENSIONS_MAX) => {}
            Some(other) => {
                let why = format!("is {other}; it must be from 1 to {DIMENSIONS_MAX}");
                return invalid("dimensions", &why);
            }
            None => {
                return invalid(
                    "dimensions",
                    "is missing; set the number of dimensions of its vectors",
                );
            }
        }
        if let Some(name) = &self.key_env {
            if name.is_empty() || name.contains(['=', '\0']) {
                return invalid("key_env", "is not a valid name of an environment variable");
            }
            if !target.is_encrypted_or_loopback() {
                let why = "would send the key unencrypted to another machine; give an `https` URL";
                return invalid("url", why);
            }
        }
        if !(1..=BATCH_MAX).contains(&self.batch) {
            let why = format!("is {}; it must be from 1 to {BATCH_MAX}", self.batch);
            return invalid("batch", &why);
        }
        if !(100..=600_000).contains(&self.timeout_ms) {
            let why = format!("is {}; it must be from 100 to 600000", self.timeout_ms);
            return invalid("timeout_ms", &why);
        }
        for (name, money) in [("price", self.price), ("cost_max", self.cost_max)] {
            if money.is_some_and(|DecimalMoneyAmount(amount)| !amount.is_finite() || amount < 0.0) {
                return invalid(name, "is not a valid amount; set a number of at least 0");
            }
        }
        if self.cost_max.is_some() && self.price.is_none() {
            let why = "requires `search.embedder.price`, the price of a million tokens";
            return invalid("cost_max", why);
        }
        Ok(())
    }

    /// Reads the API key from the environment variable that these settings name. `variable` looks
    /// up an environment variable.
    pub fn take_secrets<'v>(&mut self, variable: impl Fn(&str) -> Option<&'v str>) {
        let found = self.key_env.as_deref().and_then(variable);
        self.key = found.map(str::trim).filter(|key| !key.is_empty()).map(BearerToken::new);
    }

    /// Returns the URL of the endpoint from which vectors are requested. Fails if the URL is
    /// invalid.
    pub(super) fn target(&self) -> Result<HttpUrl, String> {
        let base = self.url.as_deref().unwrap_or_default();
        HttpUrl::parse_below(base, "/embeddings").map_err(|why| why.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(toml: &str, expected: &str) {
        let settings: EmbedderSettings = toml::from_str(toml).unwrap();
        assert_eq!(settings.check().err().as_deref().unwrap_or("valid"), expected);
    }

    #[test]
    fn an_invalid_value_is_an_error_that_names_its_setting() {
        const WHOLE: &str = "url = 'https://a.example/v1'\nmodel = 'm'\ndimensions = 4\n";
        let with = |more: &str| format!("{WHOLE}{more}");
        check("", "valid");
        check("folder = '/models/minilm'", "valid");
        check(WHOLE, "valid");
        check(&with("key_env = 'A_KEY'\nprice = 0.02\ncost_max = 5"), "valid");
        check(
            "folder = ' '",
            "`search.embedder.folder` is empty; set a folder with a model, or remove it",
        );
        check(
            &with("folder = '/m'"),
            "`search.embedder.folder` and `search.embedder.url` are both set; remove one",
        );
        check("model = 'm'", "`search.embedder.model` requires an endpoint; set `url`");
        check(
            "url = 'ftp://x'",
            "`search.embedder.url` does not start with `http://` or `https://`",
        );
        check(
            "url = 'http://x'",
            "`search.embedder.model` is missing; set the model's name at the endpoint",
        );
        check(
            "url = 'http://x'\nmodel = 'm'",
            "`search.embedder.dimensions` is missing; set the number of dimensions of its vectors",
        );
        check(
            "url = 'http://x'\nmodel = 'm'\ndimensions = 0",
            "`search.embedder.dimensions` is 0; it must be from 1 to 16384",
        );
        let with_key = "model = 'm'\ndimensions = 4\nkey_env = 'A_KEY'\nurl = ";
        check(
            &format!("{with_key}'http://other.example'"),
            "`search.embedder.url` would send the key unencrypted to another machine; give an `https` URL",
        );
        for loopback in ["http://localhost:1/v1", "http://127.0.0.1:1", "http://[::1]:1"] {
            check(&format!("{with_key}'{loopback}'"), "valid");
        }
        check(&with("batch = 0"), "`search.embedder.batch` is 0; it must be from 1 to 2048");
        check(
            &with("timeout_ms = 1"),
            "`search.embedder.timeout_ms` is 1; it must be from 100 to 600000",
        );
        check(
            &with("price = nan"),
            "`search.embedder.price` is not a valid amount; set a number of at least 0",
        );
        check(
            &with("cost_max = 1"),
            "`search.embedder.cost_max` requires `search.embedder.price`, the price of a million tokens",
        );
    }

    #[test]
    fn the_key_is_read_from_its_variable_and_never_shown() {
        let mut settings = EmbedderSettings { key_env: Some("A".to_owned()), ..Default::default() };
        settings.take_secrets(|name| (name == "A").then_some("sk-very-secret\n"));
        assert_eq!(settings.key.as_ref().map(BearerToken::as_str), Some("sk-very-secret"));
        let shown = format!("{settings:?} {}", serde_json::to_string(&settings).unwrap());
        assert!(!shown.contains("very"), "{shown}");
    }
}

//! Requests vectors from an OpenAI-compatible endpoint: in batches, with retries, and within a cost
//! limit. Searches do not wait long for an endpoint that does not answer.

#[cfg(test)]
mod tests;

use std::pin::Pin;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::json;
use tokio::time::sleep;
use toolgate_contract::{BearerToken, lock_mutex, strip_byte_order_mark_bytes};
use toolgate_search::embedder::{
    EmbedderUnavailable, EmbeddingResult, EmbeddingRole, EmbeddingUsage,
};
use toolgate_search::{Embedder, VectorSpace};

use super::settings::{DecimalMoneyAmount, EmbedderSettings};
use crate::counted::counted;
use toolgate_net::{HttpUrl, RetryBackoff, parse_retry_after};
use toolgate_world::HttpFetcher;
use toolgate_world::fetch::{CacheableHttpResponse, FetchedHttpResponse, JsonPostRequest};

/// The maximum number of attempts for a batch of chunks if the endpoint answers with an error. A
/// query has one attempt, because its search can continue without a vector.
const ATTEMPTS_MAX: u32 = 5;
/// The time limit for a request for a query's vector.
const QUERY_TIMEOUT: Duration = Duration::from_millis(1_500);
/// The time for which no query is sent after a query without an answer.
const SILENCE_PAUSE: Duration = Duration::from_secs(10);
/// The pause before the second attempt. The pause doubles before each further attempt.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest `Retry-After` time that is respected.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The maximum number of bytes that are read for each number in an answer.
const NUMBER_BYTES_MAX: usize = 32;
/// The maximum number of bytes that are read in addition to the numbers of the vectors.
const OVERHEAD_BYTES_MAX: usize = 64 << 10;
/// The longest error message of an endpoint that is shown, in characters.
const ERROR_CHARS_MAX: usize = 200;
/// An estimate of the bytes in a token. The estimate is low, so that the cost is overestimated
/// rather than underestimated.
const TOKEN_BYTES: u64 = 2;

/// Embedding model at an HTTP endpoint.
pub(super) struct EmbeddingEndpoint {
    space: VectorSpace,
    url: String,
    target: HttpUrl,
    model: String,
    shorten: bool,
    key: Option<BearerToken>,
    key_env: Option<String>,
    batch: usize,
    timeout: Duration,
    fetch: HttpFetcher,
    price: f64,
    cost_max: Option<DecimalMoneyAmount>,
    /// The number of tokens that were paid for, plus those reserved for running requests.
    tokens: Mutex<u64>,
    /// The reason and time of the last query that got no answer.
    last_silence: Mutex<Option<(String, Instant)>>,
    pause: Duration,
    silence_pause: Duration,
}

/// The reason why a batch has no vectors, and whether to try again.
enum EndpointError {
    /// The endpoint did not answer. The caller decides whether to try again.
    NoAnswer(String),
    /// The error is temporary: a later attempt may succeed, after a pause or after the time that
    /// the endpoint asks for.
    Temporary {
        why: String,
        retry_after: Option<Duration>,
    },
    Permanent(String),
}

impl EmbeddingEndpoint {
    /// Creates the endpoint of `settings`, which must have been checked.
    ///
    /// # Errors
    ///
    /// Fails if the key is missing in the environment, or the URL is invalid.
    pub(super) fn new(settings: &EmbedderSettings, fetch: &HttpFetcher) -> Result<Self, String> {
        let target = settings.target().map_err(|why| format!("`search.embedder.url` {why}"))?;
        if let Some(name) = &settings.key_env
            && settings.key.is_none()
        {
            return Err(format!(
                "the environment variable `{name}`, which `search.embedder.key_env` names, is not \
                 set; put the endpoint's key there"
            ));
        }
        let model = settings.model.clone().unwrap_or_default();
        let dimensions = settings.dimensions.unwrap_or_default();
        Ok(Self {
            space: VectorSpace { model: format!("{model}@{}", target.host()), dimensions },
            url: settings.url.clone().unwrap_or_default(),
            target,
            model,
            shorten: settings.shorten,
            key: settings.key.clone(),
            key_env: settings.key_env.clone(),
            batch: settings.batch,
            timeout: Duration::from_millis(settings.timeout_ms),
            fetch: fetch.clone(),
            price: settings.price.map_or(0.0, |DecimalMoneyAmount(price)| price),
            cost_max: settings.cost_max,
            tokens: Mutex::new(0),
            last_silence: Mutex::new(None),
            pause: PAUSE,
            silence_pause: SILENCE_PAUSE,
        })
    }

    async fn embed_texts(&self, texts: &[String], role: EmbeddingRole) -> EmbeddingResult {
        let mut vectors = Vec::with_capacity(texts.len());
        let mut usage = EmbeddingUsage::default();
        for texts in texts.chunks(self.batch) {
            let (batch, tokens) = self.request_batch(texts, role).await?;
            vectors.extend(batch);
            usage.tokens += tokens;
        }
        usage.cost = self.cost(usage.tokens);
        Ok((vectors, usage))
    }

    /// Requests the vectors of one batch, and tries again after temporary errors. Returns the
    /// vectors and the number of tokens used.
    async fn request_batch(
        &self,
        texts: &[String],
        role: EmbeddingRole,
    ) -> Result<(Vec<Vec<f32>>, u64), EmbedderUnavailable> {
        let mut backoff = RetryBackoff::new(self.pause, PAUSE_MAX);
        let mut attempts = 0;
        let time_limit = match role {
            EmbeddingRole::Chunk => self.timeout,
            EmbeddingRole::Query => self.timeout.min(QUERY_TIMEOUT),
        };
        if role == EmbeddingRole::Query
            && let Some(why) = self.silence_reason()
        {
            return Err(EmbedderUnavailable(why));
        }
        loop {
            attempts += 1;
            let (why, retry_after) = match self.request_once(texts, time_limit).await {
                Ok(batch) => return Ok(batch),
                Err(EndpointError::NoAnswer(why)) => {
                    // A time that is too short for a batch may suffice for a query, so only queries
                    // record this.
                    if role == EmbeddingRole::Query {
                        *lock_mutex(&self.last_silence) = Some((why.clone(), Instant::now()));
                    }
                    return Err(EmbedderUnavailable(why));
                }
                Err(EndpointError::Permanent(why)) => return Err(EmbedderUnavailable(why)),
                Err(EndpointError::Temporary { why, retry_after }) => (why, retry_after),
            };
            let pause = backoff.next_pause();
            let wait = retry_after.unwrap_or(pause).max(pause);
            let attempts_max = match role {
                EmbeddingRole::Chunk => ATTEMPTS_MAX,
                EmbeddingRole::Query => 1,
            };
            if attempts >= attempts_max {
                let times =
                    if attempts > 1 { format!(", {attempts} times") } else { String::new() };
                return Err(EmbedderUnavailable(format!("{why}{times}")));
            }
            if wait > PAUSE_MAX {
                let seconds = wait.as_secs();
                return Err(EmbedderUnavailable(format!(
                    "{why}, and asks to retry after {seconds} s"
                )));
            }
            sleep(wait).await;
        }
    }

    /// Returns the reason why no query is sent now. Returns `None` if queries are sent.
    fn silence_reason(&self) -> Option<String> {
        let last_silence = lock_mutex(&self.last_silence);
        let (why, since) = last_silence.as_ref()?;
        (since.elapsed() < self.silence_pause).then(|| why.clone())
    }

    async fn request_once(
        &self,
        texts: &[String],
        time_limit: Duration,
    ) -> Result<(Vec<Vec<f32>>, u64), EndpointError> {
        let estimate = texts.iter().map(|text| text.len() as u64 / TOKEN_BYTES + 1).sum();
        self.reserve_tokens(estimate)?;
        // An endpoint rejects an empty text, so a space stands for it.
        let non_empty = |text: &String| if text.is_empty() { " ".to_owned() } else { text.clone() };
        let input: Vec<_> = texts.iter().map(non_empty).collect();
        let mut request =
            json!({ "model": self.model, "input": input, "encoding_format": "float" });
        if self.shorten {
            request["dimensions"] = self.space.dimensions.into();
        }
        let post = JsonPostRequest {
            json: request.to_string().into_bytes(),
            key: self.key.as_ref().map(BearerToken::as_str),
            timeout: time_limit,
            answer_bytes_max: OVERHEAD_BYTES_MAX
                + texts.len() * (self.space.dimensions + 16) * NUMBER_BYTES_MAX,
        };
        let answer_bytes_max = post.answer_bytes_max;
        // A request without an answer may have cost the estimate.
        let answer = self.fetch.post_request(&self.target, post).await.map_err(|why| {
            let url = &self.url;
            let why = self.redact_key(&why);
            EndpointError::NoAnswer(format!("the endpoint {url} does not answer: {why}"))
        })?;
        *lock_mutex(&self.last_silence) = None;
        let CacheableHttpResponse {
            response: FetchedHttpResponse { status, body },
            retry_after,
            ..
        } = answer;
        if status != 200 {
            self.settle_tokens(estimate, 0);
            return Err(self.status_error(status, &body, retry_after.as_deref()));
        }
        if body.len() >= answer_bytes_max {
            return Err(self.invalid_answer_error(&format!("more than {answer_bytes_max} bytes")));
        }
        let body = strip_byte_order_mark_bytes(&body);
        let response: EmbeddingsResponse = serde_json::from_slice(body)
            .map_err(|err| self.invalid_answer_error(&err.to_string()))?;
        let tokens = response.usage.as_ref().map_or(estimate, |usage| usage.total_tokens);
        self.settle_tokens(estimate, tokens);
        let vectors = parse_vectors(response.data, texts.len(), self.space.dimensions)
            .map_err(|why| self.invalid_answer_error(&why))?;
        Ok((vectors, tokens))
    }

    /// Reserves `tokens` tokens of the cost limit.
    ///
    /// # Errors
    /// Fails if the reserved tokens would exceed the limit.
    fn reserve_tokens(&self, tokens: u64) -> Result<(), EndpointError> {
        let mut total = lock_mutex(&self.tokens);
        if let Some(cost_max) = self.cost_max
            && self.cost(*total + tokens) > cost_max.0
        {
            let spent = self.cost(*total);
            return Err(EndpointError::Permanent(format!(
                "requests to the endpoint {} have stopped: {spent:.4} of the limit {cost_max} in \
                 `search.embedder.cost_max` is spent; raise the limit, or restart the server",
                self.url
            )));
        }
        *total += tokens;
        Ok(())
    }

    /// Replaces a reservation of `estimate` tokens by the actual number `tokens`.
    fn settle_tokens(&self, estimate: u64, tokens: u64) {
        let mut total = lock_mutex(&self.tokens);
        *total = total.saturating_sub(estimate).saturating_add(tokens);
    }

    fn cost(&self, tokens: u64) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "token counts stay far below 2^53")]
        let millions = tokens as f64 / 1e6;
        millions * self.price
    }

    fn status_error(&self, status: u16, body: &[u8], retry_after: Option<&str>) -> EndpointError {
        let url = &self.url;
        // The message is not shown, because it may quote the key.
        if matches!(status, 401 | 403) {
            let fix = match &self.key_env {
                Some(name) => format!("check the key in the environment variable `{name}`"),
                None => "set `search.embedder.key_env` to the variable with its key".to_owned(),
            };
            return EndpointError::Permanent(format!(
                "the endpoint {url} denies access ({status}); {fix}"
            ));
        }
        let why = format!("the endpoint {url} answers {status}{}", self.error_message(body));
        match status {
            408 | 425 | 429 | 500..=599 => {
                let retry_after = retry_after.and_then(parse_retry_after);
                EndpointError::Temporary { why, retry_after }
            }
            _ => EndpointError::Permanent(why),
        }
    }

    /// Returns the error message in the endpoint's response `body`, shortened and without secrets.
    fn error_message(&self, body: &[u8]) -> String {
        /// Error response of an embedding endpoint.
        #[derive(Deserialize)]
        struct EmbeddingErrorResponse {
            error: EmbeddingErrorDetail,
        }
        /// Detail of an embedding endpoint's error: an object or a text.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum EmbeddingErrorDetail {
            Sentence(String),
            Object { message: String },
        }
        let Ok(EmbeddingErrorResponse { error }) =
            serde_json::from_slice(strip_byte_order_mark_bytes(body))
        else {
            return String::new();
        };
        let (EmbeddingErrorDetail::Sentence(message) | EmbeddingErrorDetail::Object { message }) =
            error;
        let message: String = self.redact_key(&message).chars().take(ERROR_CHARS_MAX).collect();
        format!(": {}", message.escape_debug())
    }

    fn invalid_answer_error(&self, why: &str) -> EndpointError {
        let url = &self.url;
        let why = self.redact_key(why);
        EndpointError::Permanent(format!("the endpoint {url} returned invalid vectors: {why}"))
    }

    fn redact_key(&self, text: &str) -> String {
        match &self.key {
            Some(key) => text.replace(key.as_str(), "[redacted]"),
            None => text.to_owned(),
        }
    }
}

impl Embedder for EmbeddingEndpoint {
    fn space(&self) -> &VectorSpace {
        &self.space
    }

    fn batch_max(&self) -> usize {
        self.batch
    }

    fn embed<'e>(
        &'e self,
        texts: &'e [String],
        role: EmbeddingRole,
    ) -> Pin<Box<dyn Future<Output = EmbeddingResult> + Send + 'e>> {
        Box::pin(self.embed_texts(texts, role))
    }
}

/// Response of an embedding endpoint with vectors.
#[derive(Deserialize)]
struct EmbeddingsResponse {
    data: Vec<EmbeddingResponseVector>,
    usage: Option<EmbeddingResponseUsage>,
}

/// Vector in the response of an embedding endpoint.
#[derive(Deserialize)]
struct EmbeddingResponseVector {
    /// The index of the embedded text. Default: the index of this vector in the list.
    index: Option<usize>,
    embedding: Vec<f32>,
}

/// Number of tokens that a request used, in the response of an embedding endpoint.
#[derive(Deserialize)]
struct EmbeddingResponseUsage {
    total_tokens: u64,
}

/// Returns the vectors in `data` in the order of the texts, scaled to length 1. Fails unless there
/// are `count` vectors of `dimensions` numbers.
fn parse_vectors(
    data: Vec<EmbeddingResponseVector>,
    count: usize,
    dimensions: usize,
) -> Result<Vec<Vec<f32>>, String> {
    if data.len() != count {
        let vectors = counted(data.len() as u64, "vector", "vectors");
        return Err(format!("{vectors} for {}", counted(count as u64, "text", "texts")));
    }
    let mut vectors = vec![Vec::new(); count];
    for (at, EmbeddingResponseVector { index, embedding }) in data.into_iter().enumerate() {
        let index = index.unwrap_or(at);
        let place = vectors.get_mut(index).filter(|place| place.is_empty());
        let Some(place) = place else {
            return Err(format!(
                "a vector for text {index}, which does not exist or already has one"
            ));
        };
        if embedding.len() != dimensions {
            let length = embedding.len();
            return Err(format!(
                "a vector of {length} numbers, where `search.embedder.dimensions` is {dimensions}"
            ));
        }
        let length = embedding.iter().map(|it| f64::from(*it) * f64::from(*it)).sum::<f64>().sqrt();
        if !length.is_normal() {
            return Err("a vector that is zero or contains a value that is not a number".to_owned());
        }
        #[allow(clippy::cast_possible_truncation, reason = "vectors are as exact as they are sent")]
        let unit = |number: f32| (f64::from(number) / length) as f32;
        *place = embedding.into_iter().map(unit).collect();
    }
    Ok(vectors)
}

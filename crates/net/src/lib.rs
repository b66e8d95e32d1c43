//! Parts that clients and servers of the network share: URLs, classes of IP addresses, rules about
//! reachable hosts, pauses between attempts, server-sent events, an HTTP client, and busy polling.
//!
//! This crate opens no connections. The HTTP client calls a function of its owner for each new
//! connection, so that the owner decides which addresses are reachable.

pub mod addresses;
mod url_paths;
mod host_rules;
mod backoff;
mod event_stream;
mod url;
mod http_client;
mod busy_polling;

pub use backoff::{RetryBackoff, parse_retry_after};
pub use busy_polling::{AnswerBusyPollState, BusyPollingReader, InputBusyPollState, poll_and_read};
pub use event_stream::{SseEvent, SseParser, TruncatedText};
pub use host_rules::{HostRule, HostRules, normalize_host};
pub use http_client::{ByteStream, HttpClient, HttpRequestFailure};
pub use url::{HttpUrl, HttpUrlError};
pub use url_paths::RequestPath;

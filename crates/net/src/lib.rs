//! Parts that clients and servers of the network share: URLs, classes of IP addresses, rules about
//! reachable hosts, pauses between attempts, server-sent events, an HTTP client, tasks, and the
//! scheduling of threads.
//!
//! This crate opens no connections. The HTTP client calls a function of its owner for each new
//! connection, so that the owner decides which addresses are reachable.

pub mod addresses;
mod url_paths;
mod host_rules;
mod backoff;
mod event_stream;
mod tasks;
mod url;
mod http_client;
mod scheduling;

pub use backoff::{RetryBackoff, parse_retry_after};
pub use event_stream::{SseEvent, SseParser, TruncatedText};
pub use host_rules::{HostRule, HostRules, normalize_host};
pub use http_client::{ByteStream, HttpClient, HttpRequestFailure};
pub use scheduling::busy_polling::{
    AnswerBusyPollState, BusyPollingReader, InputBusyPollState, poll_and_read,
};
pub use scheduling::code_pages::release_code_pages;
pub use scheduling::worker_pool::WorkerPool;
pub use tasks::{BlockingTask, spawn_blocking, spawn_task, spawn_task_on};
pub use url::{HttpUrl, HttpUrlError};
pub use url_paths::RequestPath;

//! Tests of the HTTP server with clients, proxies and unknown callers.

mod statuses;
mod sessions;
mod streams;
mod connections;
mod bodies;
mod strangers;
mod malformed;
mod halves;
mod card;

//! HTTP as clients, proxies and strangers speak it.

mod statuses;
mod sessions;
mod streams;
mod connections;
mod bodies;
mod strangers;
mod malformed;
mod halves;
mod card;

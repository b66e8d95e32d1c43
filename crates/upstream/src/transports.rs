//! Transports to upstreams, each in a file of its own.

mod refusals;
pub(crate) mod site;
pub(crate) mod http;
mod in_flight;
mod writer;
pub(crate) mod lines;
pub(crate) mod sse;
pub(crate) mod conversation;
pub(crate) mod websocket;

#[cfg(test)]
pub(crate) mod scripted;

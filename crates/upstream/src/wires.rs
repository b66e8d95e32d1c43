//! Transports to upstreams, one file each.

mod brisk;
pub(crate) mod events;
pub(crate) mod site;
pub(crate) mod http;
pub(crate) mod cut;
mod in_flight;
mod pen;
pub(crate) mod lines;
pub(crate) mod pool;
pub(crate) mod sse;
pub(crate) mod talk;
pub(crate) mod websocket;

#[cfg(test)]
pub(crate) mod scripted;

//! Listeners, routes and connections: HTTP exchanges, lines on streams and WebSockets.

pub(crate) mod duplex;
pub(crate) mod exchange;
pub(crate) mod lines;
pub(crate) mod listeners;
pub mod ready;
pub(crate) mod routes;
pub mod shutdown;
pub(crate) mod sockets;

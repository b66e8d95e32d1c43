//! HTTP as clients meet it: over real sockets on the loopback.

mod served;
mod upgrades;
mod talking;
mod slowness;
mod timeouts;
mod closing;
mod frames;
mod replies;

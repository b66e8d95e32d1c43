//! Tests of the HTTP server over real sockets on the loopback interface.

mod served;
mod upgrades;
mod talking;
mod slowness;
mod timeouts;
mod closing;
mod frames;
mod replies;

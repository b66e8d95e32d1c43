//! Tests of the Zyra dialect: jobs by path, progress over WebSockets and as events, conversations,
//! and the real Zyra.

mod accepting;
mod paths;
mod files;
mod sockets;
mod events;
mod conversation;
mod watchers;
mod seed;

//! Zyra's wire: jobs by path, their progress over sockets and as events, conversations, and the
//! real Zyra behind it.

mod accepting;
mod paths;
mod files;
mod sockets;
mod events;
mod conversation;
mod watchers;
mod seed;

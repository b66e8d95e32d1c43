//! Transports: stdio, HTTP, WebSockets and, for tests, memory.
//!
//! A transport splits its input into messages, limits their size, and reads no faster than they are
//! processed. It never parses the content of a message.

pub mod stdio;
pub mod http;
pub mod memory;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;

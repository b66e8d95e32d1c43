//! Transports: stdio, HTTP, WebSockets and, for tests, memory.
//!
//! A transport frames messages, caps their size before parsing, and passes back-pressure on. It
//! never reads a body's content.

mod adaptive_spin;
pub mod stdio;
pub mod http;
pub mod memory;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;

//! How bytes travel: stdio, HTTP, WebSockets and, for tests, memory.
//!
//! A transport frames, caps sizes before anything is parsed, and passes
//! back-pressure on. It never looks inside a body.

pub mod stdio;
pub mod http;
pub mod websocket;
pub mod memory;
mod rhythm;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;

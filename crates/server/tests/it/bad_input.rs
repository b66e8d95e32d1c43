//! Tests that invalid input is refused in bounded memory, and that the next message is served.

mod bytes;
mod arguments;
mod programs;
mod volume;

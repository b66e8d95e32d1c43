//! What is wrong is refused in words, costs no memory, and the next message is served.

mod bytes;
mod arguments;
mod programs;
mod volume;

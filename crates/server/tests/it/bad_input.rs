//! Invalid input is refused with a message and in bounded memory, and the next message is served.

mod bytes;
mod arguments;
mod programs;
mod volume;

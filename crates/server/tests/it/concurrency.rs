//! Calls side by side: none waits for another, and each can be ended alone.

mod answers;
mod cancelling;

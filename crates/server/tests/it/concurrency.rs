//! Concurrent calls: none delays another, and each can be cancelled alone.

mod answers;
mod cancelling;

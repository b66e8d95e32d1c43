//! Tests of concurrent calls: no call delays another, and each can be cancelled alone.

mod answers;
mod cancelling;

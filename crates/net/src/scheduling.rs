//! Scheduling of threads for quick answers, and release of memory in an idle server.
//!
//! Tokio and the kernel alone are slower here, or need more memory. All measures against this are in
//! this module. Each one is worth more than 10 % on a row of the performance page.
//! [`docs/design/dependencies.md`](../../../docs/design/dependencies.md) shows what each one alone
//! gains, and what was removed because it gained nothing.
//!
//! - [`busy_polling`]: a thread that waits for a quick peer polls for a moment before it sleeps.
//!   Saves one or two wake-ups for each call.
//! - [`worker_pool`]: each connection stays on one thread. Saves the wake-up of other threads.
//! - [`code_pages`]: an idle server returns the memory of its program code to the kernel, which
//!   reads the code from the file again.
//!
//! None of these measures uses processor time while the server is idle.

pub(crate) mod busy_polling;
pub(crate) mod worker_pool;
pub(crate) mod code_pages;

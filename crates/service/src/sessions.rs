//! Clients' sessions: calls in flight, streams, questions and subscriptions.

pub(crate) mod client;
pub(crate) mod detachable;
pub(crate) mod frame_actions;
pub(crate) mod idle_tracker;
pub(crate) mod job_streams;
pub(crate) mod notifications;
pub(crate) mod questions;
pub(crate) mod pending_envelope;
pub(crate) mod server_state;
pub(crate) mod session;
pub(crate) mod streams;
pub(crate) mod waiting_questions;

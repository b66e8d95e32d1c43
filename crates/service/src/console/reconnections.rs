//! Outcomes of the reconnections of upstreams that people asked for at the console.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::timeout;
use toolgate_contract::{BoxFuture, lock_mutex};

/// Longest time for which a console action waits for the outcome of a reconnection. After that
/// time, the page shows that the upstream is still connecting.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// State of the last reconnection of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReconnectionState {
    /// The server is still connecting to the upstream.
    Connecting,
    /// The upstream is connected again and offers this number of tools.
    Connected(usize),
    /// The upstream cannot be reached, or its tools cannot be listed, for this reason.
    Failed(String),
}

/// State of the last reconnection of each upstream, by the name of the upstream.
#[derive(Default)]
pub(crate) struct UpstreamReconnections(Mutex<HashMap<String, ReconnectionState>>);

impl UpstreamReconnections {
    /// Returns the state of the last reconnection of the upstream `name`, if there was one.
    pub(crate) fn state(&self, name: &str) -> Option<ReconnectionState> {
        lock_mutex(&self.0).get(name).cloned()
    }

    /// Runs `attempt`, a reconnection of the upstream `name`, in a task that records the outcome.
    /// Waits up to 10 seconds for the outcome. After that, returns while the task continues.
    pub(crate) async fn run(
        self: Arc<Self>,
        name: String,
        attempt: BoxFuture<'static, Result<usize, String>>,
    ) {
        self.set(&name, ReconnectionState::Connecting);
        let recorded = toolgate_net::spawn_task(async move {
            let state = match attempt.await {
                Ok(tools) => ReconnectionState::Connected(tools),
                Err(why) => ReconnectionState::Failed(why),
            };
            self.set(&name, state);
        });
        // The attempt ends within the timeouts of the upstream, and the page shows the outcome.
        let _ = timeout(WAIT_MAX, recorded).await;
    }

    fn set(&self, name: &str, state: ReconnectionState) {
        lock_mutex(&self.0).insert(name.to_owned(), state);
    }
}

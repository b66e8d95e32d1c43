//! Queries of the audit log's index, off the threads that serve requests.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;
use toolgate_host::AuditIndex;

use crate::sync::lock_mutex;

/// Longest wait of a page for the index. A new index of a long log takes longer.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Index of the audit log, opened when it is first needed.
pub(crate) struct AuditQueries {
    log: Option<PathBuf>,
    index: Arc<Mutex<Option<AuditIndex>>>,
}

impl AuditQueries {
    pub(crate) fn new(log: Option<PathBuf>) -> Self {
        Self { log, index: Arc::default() }
    }

    /// Updates the index and returns the result of `query`.
    ///
    /// # Errors
    /// The log is not a file, or the index cannot be read in time. The message is for people.
    pub(crate) async fn run<T: Send + 'static, E: Display>(
        &self,
        query: impl FnOnce(&AuditIndex) -> Result<T, E> + Send + 'static,
    ) -> Result<T, String> {
        let Some(log) = self.log.clone() else {
            return Err(
                "The audit log is not a file (setting audit.to), so there is no record of \
                        calls."
                    .to_owned(),
            );
        };
        let index = self.index.clone();
        let work = spawn_blocking(move || {
            let mut index = lock_mutex(&index);
            let open = match index.take() {
                Some(open) => Ok(open),
                None => AuditIndex::open(&log),
            };
            let mut open = open.map_err(|why| format!("The index cannot be opened: {why}"))?;
            let updated =
                open.update().map_err(|why| format!("The index cannot be updated: {why}"));
            let result = updated.and_then(|()| query(&open).map_err(|why| why.to_string()));
            // After an error, the next query opens the index again.
            if result.is_ok() {
                *index = Some(open);
            }
            result
        });
        match timeout(WAIT_MAX, work).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err("The index cannot be read.".to_owned()),
            Err(_) => Err("The index of the audit log is being built. Reload the page in a \
                           moment."
                .to_owned()),
        }
    }
}

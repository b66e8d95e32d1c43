//! Gives servers of a fleet access to the messages of client sessions that they share.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::time::{Instant, timeout};
use toolgate_contract::{Caller, lock_mutex};

use super::postgres::{
    FleetSessionMessages, NewSessionMessage, SessionDigest, SessionMessageNotifications,
    SessionMessageOutcome, StoredSessionMessage,
};
use super::store::JobStoreError;
use super::{JobService, JobServiceState};

/// Longest wait for the database while a request of a session is answered.
const WAIT_MAX: Duration = Duration::from_secs(3);
/// Time for which sessions continue without shared messages after the database did not answer.
const AWAY_TIME: Duration = Duration::from_secs(5);

/// Messages of client sessions that the servers of a fleet share. Sessions continue without these
/// messages while the database is unavailable.
pub struct SharedSessions {
    jobs: Weak<JobServiceState>,
    away_until: Mutex<Option<Instant>>,
}

impl JobService {
    /// Returns the messages of client sessions that servers of a fleet share, if this server is
    /// part of one.
    pub fn shared_sessions(&self) -> Option<SharedSessions> {
        let jobs = Arc::downgrade(&self.0);
        self.0.is_shared().then(|| SharedSessions { jobs, away_until: Mutex::default() })
    }
}

impl SharedSessions {
    /// Returns a receiver of notifications about sessions with new messages. Connects to the
    /// database if needed.
    ///
    /// # Errors
    /// The database is unavailable, or the server is stopping.
    pub async fn notifications(&self) -> Result<SessionMessageNotifications, JobStoreError> {
        Ok(self.open().await?.notifications())
    }

    /// Stores `message` of the session `session` of `caller`, and notifies the other servers. If the
    /// message changed the session's state, waits until they have probably received the
    /// notification. Logs a warning if the message is not stored.
    pub async fn publish(
        &self,
        session: &SessionDigest,
        caller: &Caller,
        message: NewSessionMessage,
    ) {
        let work = async { self.open().await?.publish(session, caller, message).await };
        if let Some(SessionMessageOutcome::Refused(why)) = self.run(work).await {
            tracing::warn!(
                caller = %caller.name,
                "a message of a session was not passed to the other servers of the fleet: {why}"
            );
        }
    }

    /// Returns the stored messages of the session, oldest first. Logs a warning and returns `None`
    /// if the database is unavailable.
    pub async fn messages(&self, session: &SessionDigest) -> Option<Vec<StoredSessionMessage>> {
        self.run(async { self.open().await?.messages(session).await }).await
    }

    async fn open(&self) -> Result<Arc<FleetSessionMessages>, JobStoreError> {
        let stopping = || JobStoreError("the server is stopping".to_owned());
        let jobs = self.jobs.upgrade().ok_or_else(stopping)?;
        jobs.store().await?;
        jobs.session_messages.get().cloned().ok_or_else(stopping)
    }

    /// Runs `work` for at most three seconds. Returns `None` if it fails, and for five seconds
    /// after that.
    async fn run<T>(&self, work: impl Future<Output = Result<T, JobStoreError>>) -> Option<T> {
        let lock = || lock_mutex(&self.away_until);
        if lock().is_some_and(|time| Instant::now() < time) {
            return None;
        }
        let result = timeout(WAIT_MAX, work).await;
        let result = result.unwrap_or_else(|_| Err(JobStoreError("it does not answer".to_owned())));
        *lock() = result.is_err().then(|| Instant::now() + AWAY_TIME);
        result
            .inspect_err(|err| {
                tracing::warn!(
                    "{err}; sessions of clients continue without messages that other servers of \
                     the fleet receive"
                );
            })
            .ok()
    }
}

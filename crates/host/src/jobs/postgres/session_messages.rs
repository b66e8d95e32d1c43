//! Passes messages of client sessions between the servers of a fleet, so that each server can
//! continue a session that another server opened.
//!
//! Servers store a message only if another server needs it. Calls are not stored.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::{sleep, timeout};
use tokio_postgres::Client;
use tokio_postgres::types::Type;
use toolgate_contract::Caller;
use toolgate_postgres::{PostgresError, SharedPostgresPool};

use super::changes::{FleetNotificationChannel, SessionTag};
use super::lease::FleetServerId;
use crate::jobs::store::JobStoreError;

/// Longest session message that is passed to other servers, in bytes.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Maximum number of stored messages of one caller to running calls. The same number applies to
/// messages that changed the state of sessions.
const MESSAGES_MAX: i64 = 1024;
/// Maximum total size of the messages to which [`MESSAGES_MAX`] applies, in bytes.
const MESSAGES_BYTES_MAX: i64 = 32 << 20;
/// Maximum number of ended sessions of one caller that are stored.
const ENDED_MAX: i64 = 65_536;
/// Name of the part of a session's state that a message changes which ends the session.
pub const SESSION_ENDED: &str = "ended";
/// Time for which a message for a running call is stored.
const CALL_MESSAGE_TIME: Duration = Duration::from_secs(60);
/// Time for which a message that changed the state of a session is stored. No session is resumed
/// after a longer time.
const STATE_MESSAGE_TIME: Duration = Duration::from_secs(24 * 3600);
/// Longest wait until other servers are notified of a changed state.
const NOTIFIED_WAIT: Duration = Duration::from_secs(1);
/// Time in which the other servers receive a notification that this server has received.
const RECEIVE_TIME: Duration = Duration::from_millis(10);

/// BLAKE3 digest of a session's id. Servers never store the id, because anyone with the id could
/// resume the session.
pub type SessionDigest = [u8; 32];

/// Messages of client sessions, which the servers of a fleet share.
pub(crate) struct FleetSessionMessages {
    pool: SharedPostgresPool,
    changes: Arc<FleetNotificationChannel>,
    workspace: String,
    server: FleetServerId,
}

/// A message of a client that other servers need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSessionMessage {
    /// Name of the part of the session's state that the message changed. Each part has only one
    /// message, the last one. `None` for a message to a running call.
    pub state: Option<String>,
    /// Message as the client sent it.
    pub content: Vec<u8>,
}

/// A message of a client that a server of the fleet has stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSessionMessage {
    /// Number of the message. Later messages of a session have higher numbers.
    pub id: i64,
    /// Name of the part of the session's state that the message changed. `None` for a message to a
    /// running call.
    pub state: Option<String>,
    /// Message as the client sent it.
    pub content: Vec<u8>,
    /// True if this server received the message from the client.
    pub is_own: bool,
}

/// Outcome of an attempt to pass a session's message to the other servers of a fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SessionMessageOutcome {
    /// The message is stored.
    Stored,
    /// The message is not stored, for the given reason.
    Refused(String),
}

/// Receiver of notifications about sessions with new messages.
pub struct SessionMessageNotifications(broadcast::Receiver<Option<(SessionTag, i64)>>);

impl SessionMessageNotifications {
    /// Waits until a session has a new message, and returns the tag of that session. Returns `None`
    /// if notifications were missed, so that each session may have new messages.
    pub async fn next(&mut self) -> Option<SessionTag> {
        match self.0.recv().await {
            Ok(change) => change.map(|(session, _)| session),
            Err(RecvError::Lagged(_)) => None,
            // The job store is gone, so nothing follows.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// Returns the first bytes of `session`, by which notifications name it.
pub fn session_tag(session: &SessionDigest) -> SessionTag {
    let mut first = [0; 8];
    first.copy_from_slice(&session[..8]);
    SessionTag::from_le_bytes(first)
}

impl FleetSessionMessages {
    pub(super) fn new(
        pool: SharedPostgresPool,
        changes: Arc<FleetNotificationChannel>,
        workspace: &str,
        server: FleetServerId,
    ) -> Self {
        Self { pool, changes, workspace: workspace.to_owned(), server }
    }

    /// Returns a receiver of the notifications that follow.
    pub(crate) fn notifications(&self) -> SessionMessageNotifications {
        SessionMessageNotifications(self.changes.session_messages())
    }

    /// Stores `message` of the session, which belongs to `caller`, and notifies the other servers.
    /// If the message changed the session's state, waits until they have probably received the
    /// notification, but at most about one second.
    ///
    /// The message is refused if it has more than 4 MiB. It is also refused if 1024 messages or 32 MiB
    /// of the caller's messages to running calls, or to the state of sessions, are stored. The end of
    /// a session is refused only if 65,536 ended sessions of the caller are stored.
    ///
    /// # Errors
    /// The database is unavailable.
    pub(crate) async fn publish(
        &self,
        session: &SessionDigest,
        caller: &Caller,
        message: NewSessionMessage,
    ) -> Result<SessionMessageOutcome, JobStoreError> {
        let bytes = message.content.len();
        if bytes > MESSAGE_BYTES_MAX {
            let why = format!("it has {bytes} bytes (the limit is {MESSAGE_BYTES_MAX})");
            return Ok(SessionMessageOutcome::Refused(why));
        }
        let mut heard = self.changes.session_messages();
        let lent = self.pool.acquire().await?;
        let work = self.insert(&lent.connection.client, session, caller, &message);
        let result = self.pool.with_timeout(self.pool.query_timeout, work).await;
        let Some(id) = lent.give_back(result)? else {
            let why = "too many messages of the caller's sessions are stored".to_owned();
            return Ok(SessionMessageOutcome::Refused(why));
        };
        let tag = session_tag(session);
        self.changes.notify_session(tag, id);
        if message.state.is_some() {
            let own = async {
                while !matches!(heard.recv().await, Ok(Some(change)) if change == (tag, id)) {}
            };
            let _ = timeout(NOTIFIED_WAIT, own).await;
            sleep(RECEIVE_TIME).await;
        }
        Ok(SessionMessageOutcome::Stored)
    }

    /// Returns the stored messages of the session, oldest first.
    ///
    /// # Errors
    /// The database is unavailable.
    pub(crate) async fn messages(
        &self,
        session: &SessionDigest,
    ) -> Result<Vec<StoredSessionMessage>, JobStoreError> {
        let lent = self.pool.acquire().await?;
        let work = self.select(&lent.connection.client, session);
        let result = self.pool.with_timeout(self.pool.query_timeout, work).await;
        Ok(lent.give_back(result)?)
    }

    /// Inserts `message`. Returns its number, or `None` if too many messages of `caller` are
    /// stored.
    async fn insert(
        &self,
        client: &Client,
        session: &SessionDigest,
        caller: &Caller,
        message: &NewSessionMessage,
    ) -> Result<Option<i64>, PostgresError> {
        // An ended session needs no other message.
        let sql = "WITH removed AS (DELETE FROM toolgate_fleet.session_messages \
                   WHERE session = $2 AND $10 AND state IS DISTINCT FROM $5) \
                   INSERT INTO toolgate_fleet.session_messages AS message \
                   (workspace, session, caller, server, state, content, until) \
                   SELECT $1, $2, $3, $4, $5, $6, now() + make_interval(secs => $7) \
                   WHERE (SELECT count(*) < $8 AND coalesce(sum(octet_length(content)), 0) < $9 \
                   FROM toolgate_fleet.session_messages \
                   WHERE workspace = $1 AND caller = $3 AND until > now() \
                   AND (state IS NULL) = ($5 IS NULL) AND coalesce(state = $11, false) = $10) \
                   ON CONFLICT (session, state) WHERE state IS NOT NULL DO UPDATE \
                   SET id = excluded.id, server = excluded.server, content = excluded.content, \
                   until = excluded.until RETURNING id";
        let keep = if message.state.is_some() { STATE_MESSAGE_TIME } else { CALL_MESSAGE_TIME };
        let session = session.as_slice();
        let content = message.content.as_slice();
        let state = &message.state;
        let keep = keep.as_secs_f64();
        // Keys and users of an identity provider may have the same name.
        let is_end = message.state.as_deref() == Some(SESSION_ENDED);
        let count_max = if is_end { ENDED_MAX } else { MESSAGES_MAX };
        let caller = format!("{} {}", caller.kind.as_str(), caller.name.replace('\0', ""));
        let params = [
            (&self.workspace as _, Type::TEXT),
            (&session as _, Type::BYTEA),
            (&caller as _, Type::TEXT),
            (&self.server as _, Type::INT8),
            (state as _, Type::TEXT),
            (&content as _, Type::BYTEA),
            (&keep as _, Type::FLOAT8),
            (&count_max as _, Type::INT8),
            (&MESSAGES_BYTES_MAX as _, Type::INT8),
            (&is_end as _, Type::BOOL),
            (&SESSION_ENDED as _, Type::TEXT),
        ];
        let row = client.query_typed_opt(sql, &params).await?;
        Ok(row.map(|row| row.try_get(0)).transpose()?)
    }

    async fn select(
        &self,
        client: &Client,
        session: &SessionDigest,
    ) -> Result<Vec<StoredSessionMessage>, PostgresError> {
        let sql = "SELECT id, state, content, server FROM toolgate_fleet.session_messages \
                   WHERE session = $1 AND workspace = $2 AND until > now() ORDER BY id LIMIT $3";
        let session = session.as_slice();
        let params = [
            (&session as _, Type::BYTEA),
            (&self.workspace as _, Type::TEXT),
            // The messages to calls and to the state, which have a limit each, and the end.
            (&(2 * MESSAGES_MAX + 1) as _, Type::INT8),
        ];
        let rows = client.query_typed(sql, &params).await?;
        let messages = rows.iter().map(|row| {
            Ok::<_, PostgresError>(StoredSessionMessage {
                id: row.try_get(0)?,
                state: row.try_get(1)?,
                content: row.try_get(2)?,
                is_own: row.try_get::<_, i64>(3)? == self.server,
            })
        });
        messages.collect()
    }
}

/// Removes the session messages of `workspace` that have expired.
pub(super) async fn remove_expired_messages(
    client: &Client,
    workspace: &str,
) -> Result<(), PostgresError> {
    let sql = "DELETE FROM toolgate_fleet.session_messages WHERE workspace = $1 AND until < now()";
    client.execute_typed(sql, &[(&workspace as _, Type::TEXT)]).await?;
    Ok(())
}

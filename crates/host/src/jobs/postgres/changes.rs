//! Sends and receives notifications about changed jobs.
//!
//! A notification says what to look at and carries no data. It is sent after the commit. After each
//! sending there is a pause in which further ones are gathered, because the database serializes
//! commits that notify. Notifications may be lost, for example behind a pooler in transaction mode.
//! So every wait for one has a limit, after which the waiter looks at the tables.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_postgres::types::Type;
use toolgate_contract::{JobId, lock_mutex};
use toolgate_postgres::{PostgresConnectionPool, SharedPostgresPool};

use super::known_runs::SharedJobRuns;
use super::lease::{FleetServerId, FleetServerRow};

/// PostgreSQL channel of the notifications between the servers of a fleet.
const CHANNEL: &str = "toolgate_fleet";
/// Pause after notifications were sent, in which further ones are gathered and then sent together.
const GATHER_TIME: Duration = Duration::from_millis(5);
/// Maximum number of notifications that wait to be sent. Further ones are dropped.
const PENDING_MAX: usize = 4096;
/// Maximum number of received notifications by which a slow waiter may be behind.
const RECEIVED_MAX: usize = 1024;
/// Pause before a lost connection for notifications is opened again.
const LISTEN_PAUSE: Duration = Duration::from_secs(1);
/// Longest wait before this server looks for requests of other servers without a notification.
const REQUEST_POLL: Duration = Duration::from_secs(1);
/// Longest wait before this server looks for jobs that other servers offer without a notification.
const OFFER_POLL: Duration = Duration::from_secs(1);

/// Subject of a notification between the servers of a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FleetNotificationSubject {
    /// The job with this id has changed.
    Job(JobId),
    /// Another server has requests about jobs of the server with this id.
    Requests(FleetServerId),
    /// Jobs of the workspace with this digest wait, and any server may claim them.
    Offer(WorkspaceNameDigest),
    /// The client session with this tag has a new message with this number.
    Session(SessionTag, i64),
}

/// Digest of a workspace's name, because notifications have a size limit.
type WorkspaceNameDigest = u64;

/// First bytes of the digest of a client session's id, because notifications have a size limit.
pub type SessionTag = u64;

impl FleetNotificationSubject {
    fn to_payload(self) -> String {
        match self {
            Self::Job(id) => format!("job {id}"),
            Self::Requests(server) => format!("requests {server}"),
            Self::Offer(workspace) => format!("offer {workspace}"),
            Self::Session(session, message) => format!("session {session} {message}"),
        }
    }

    fn parse(payload: &str) -> Option<Self> {
        match payload.split_once(' ')? {
            ("job", id) => id.parse().ok().map(Self::Job),
            ("requests", server) => server.parse().ok().map(Self::Requests),
            ("offer", workspace) => workspace.parse().ok().map(Self::Offer),
            ("session", message) => {
                let (session, message) = message.split_once(' ')?;
                Some(Self::Session(session.parse().ok()?, message.parse().ok()?))
            }
            // A newer server may send more.
            _ => None,
        }
    }
}

/// The notifications between this server and all other servers of the fleet.
pub(super) struct FleetNotificationChannel {
    outgoing: Arc<OutgoingFleetNotifications>,
    receivers: FleetNotificationReceivers,
    tasks: [JoinHandle<()>; 2],
}

/// Receivers of a server's notifications: those that wait for changed jobs, for requests of other
/// servers, for offered jobs, or for messages of client sessions.
#[derive(Clone)]
struct FleetNotificationReceivers {
    server: FleetServerId,
    workspace: WorkspaceNameDigest,
    changed_jobs: broadcast::Sender<JobId>,
    requests: Arc<Notify>,
    offers: Arc<Notify>,
    /// Channel of sessions with new messages, and the numbers of these messages. `None` means that
    /// notifications were missed.
    session_messages: broadcast::Sender<Option<(SessionTag, i64)>>,
    runs: SharedJobRuns,
}

#[derive(Default)]
struct OutgoingFleetNotifications {
    payloads: Mutex<BTreeSet<String>>,
    added: Notify,
}

impl FleetNotificationChannel {
    /// Starts to send and receive notifications for `server`, whose jobs are `runs`.
    pub(super) fn start(
        pool: &SharedPostgresPool,
        server: &FleetServerRow,
        runs: SharedJobRuns,
    ) -> Self {
        let outgoing = Arc::new(OutgoingFleetNotifications::default());
        let receivers = FleetNotificationReceivers {
            server: server.id,
            workspace: workspace_tag(&server.workspace),
            changed_jobs: broadcast::Sender::new(RECEIVED_MAX),
            requests: Arc::new(Notify::new()),
            offers: Arc::new(Notify::new()),
            session_messages: broadcast::Sender::new(RECEIVED_MAX),
            runs,
        };
        let send = toolgate_net::spawn_task(send_all(pool.clone(), outgoing.clone()));
        let receive = toolgate_net::spawn_task(receive_all(pool.clone(), receivers.clone()));
        Self { outgoing, receivers, tasks: [send, receive] }
    }

    /// Notifies all servers that the job has changed.
    pub(super) fn notify_job(&self, id: JobId) {
        self.outgoing.add(FleetNotificationSubject::Job(id));
    }

    /// Notifies `server` of requests about its jobs.
    pub(super) fn notify_requests(&self, server: FleetServerId) {
        self.outgoing.add(FleetNotificationSubject::Requests(server));
    }

    /// Notifies all servers that the session with the tag `session` has a new message.
    pub(super) fn notify_session(&self, session: SessionTag, message: i64) {
        self.outgoing.add(FleetNotificationSubject::Session(session, message));
    }

    /// Returns a receiver of the sessions that have new messages, with the numbers of these
    /// messages. `None` means that notifications were missed.
    pub(super) fn session_messages(&self) -> broadcast::Receiver<Option<(SessionTag, i64)>> {
        self.receivers.session_messages.subscribe()
    }

    /// Notifies all servers that jobs of this server's workspace wait.
    pub(super) fn offer_jobs(&self) {
        self.outgoing.add(FleetNotificationSubject::Offer(self.receivers.workspace));
    }

    /// Notifies all servers that jobs of this server's workspace wait, before it returns.
    pub(super) async fn offer_jobs_now(&self, pool: &PostgresConnectionPool) {
        send(pool, &[FleetNotificationSubject::Offer(self.receivers.workspace).to_payload()]).await;
    }

    /// Returns a future that waits until the job may have changed since this call, but no longer
    /// than `at_most`.
    pub(super) fn wait_for_job(
        &self,
        id: JobId,
        at_most: Duration,
    ) -> impl Future<Output = ()> + Send + '_ {
        let mut changed = self.receivers.changed_jobs.subscribe();
        async move {
            let seen = async {
                loop {
                    match changed.recv().await {
                        Ok(other) if other != id => {}
                        Ok(_) | Err(RecvError::Lagged(_)) => return,
                        // Unreachable: the sender lives in `self`.
                        Err(RecvError::Closed) => std::future::pending().await,
                    }
                }
            };
            let _ = timeout(at_most, seen).await;
        }
    }

    /// Waits until there may be requests about jobs of this server, but no longer than a second.
    pub(super) async fn wait_for_requests(&self) {
        let _ = timeout(REQUEST_POLL, self.receivers.requests.notified()).await;
    }

    /// Waits until jobs of other servers may wait, but no longer than a second.
    pub(super) async fn wait_for_offers(&self) {
        let _ = timeout(OFFER_POLL, self.receivers.offers.notified()).await;
    }
}

impl Drop for FleetNotificationChannel {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl OutgoingFleetNotifications {
    fn add(&self, change: FleetNotificationSubject) {
        let mut payloads = lock_mutex(&self.payloads);
        if payloads.len() < PENDING_MAX {
            payloads.insert(change.to_payload());
        }
        drop(payloads);
        self.added.notify_one();
    }

    /// Waits for notifications, and until the pause after `last_sent` has passed. Returns the
    /// notifications that were added meanwhile, or none if the previous call already returned them.
    async fn next_batch(&self, last_sent: Option<Instant>) -> Vec<String> {
        self.added.notified().await;
        let pause_end = last_sent.map(|sent| sent + GATHER_TIME);
        if let Some(end) = pause_end.filter(|end| *end > Instant::now()) {
            sleep_until(end).await;
        }
        self.take()
    }

    fn take(&self) -> Vec<String> {
        let mut payloads = lock_mutex(&self.payloads);
        std::mem::take(&mut *payloads).into_iter().collect()
    }
}

async fn send_all(pool: SharedPostgresPool, outgoing: Arc<OutgoingFleetNotifications>) {
    let mut last_sent = None;
    loop {
        let payloads = outgoing.next_batch(last_sent).await;
        if !payloads.is_empty() {
            send(&pool, &payloads).await;
            last_sent = Some(Instant::now());
        }
    }
}

/// Notifies all servers that jobs of the workspace `name` wait.
pub(super) async fn offer_jobs(pool: &PostgresConnectionPool, name: &str) {
    send(pool, &[FleetNotificationSubject::Offer(workspace_tag(name)).to_payload()]).await;
}

/// Sends notifications to the other servers. If the connection is busy or lost, waiting servers
/// find the change when they next query the database.
async fn send(pool: &PostgresConnectionPool, payloads: &[String]) {
    let Ok(lent) = pool.acquire().await else { return };
    let work = async {
        let sql = "SELECT pg_notify($1, payload) FROM unnest($2) AS payload";
        let params = [(&CHANNEL as _, Type::TEXT), (&payloads as _, Type::TEXT_ARRAY)];
        lent.connection.client.query_typed(sql, &params).await?;
        Ok(())
    };
    let result = pool.with_timeout(pool.query_timeout, work).await;
    let _ = lent.give_back(result);
}

async fn receive_all(pool: SharedPostgresPool, receivers: FleetNotificationReceivers) {
    loop {
        if let Ok(mut receiver) = pool.listen(CHANNEL).await {
            // Notifications before this moment were missed.
            lock_mutex(&receivers.runs).mark_all_possibly_claimed();
            receivers.requests.notify_one();
            receivers.offers.notify_one();
            let _ = receivers.session_messages.send(None);
            while let Some(payload) = receiver.receive().await {
                if let Some(change) = FleetNotificationSubject::parse(&payload) {
                    receivers.handle(change);
                }
            }
        }
        sleep(LISTEN_PAUSE).await;
    }
}

impl FleetNotificationReceivers {
    /// Wakes the tasks of this server that wait for the change.
    fn handle(&self, change: FleetNotificationSubject) {
        match change {
            FleetNotificationSubject::Job(id) => {
                if lock_mutex(&self.runs).suspect(id) {
                    self.requests.notify_one();
                }
                // Nobody may be waiting.
                let _ = self.changed_jobs.send(id);
            }
            FleetNotificationSubject::Requests(server) if server == self.server => {
                self.requests.notify_one();
            }
            FleetNotificationSubject::Offer(workspace) if workspace == self.workspace => {
                self.offers.notify_one();
            }
            FleetNotificationSubject::Session(session, message) => {
                // There may be no open session.
                let _ = self.session_messages.send(Some((session, message)));
            }
            FleetNotificationSubject::Requests(_) | FleetNotificationSubject::Offer(_) => {}
        }
    }
}

/// Returns the digest of the workspace `name` that notifications contain.
fn workspace_tag(name: &str) -> WorkspaceNameDigest {
    let digest = blake3::hash(name.as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&digest.as_bytes()[..8]);
    WorkspaceNameDigest::from_le_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_notification_is_sent_at_once_and_those_soon_after_it_together() {
        let outgoing = OutgoingFleetNotifications::default();
        let started = Instant::now();
        outgoing.add(FleetNotificationSubject::Requests(1));
        assert_eq!(outgoing.next_batch(None).await, ["requests 1"]);
        assert_eq!(started.elapsed(), Duration::ZERO);
        outgoing.add(FleetNotificationSubject::Requests(2));
        let (batch, ()) = tokio::join!(outgoing.next_batch(Some(started)), async {
            sleep(GATHER_TIME / 2).await;
            outgoing.add(FleetNotificationSubject::Requests(3));
        });
        assert_eq!(batch, ["requests 2", "requests 3"]);
        assert!(started.elapsed() >= GATHER_TIME, "{:?}", started.elapsed());
    }

    #[test]
    fn a_change_is_parsed_from_its_payload_and_other_payloads_are_ignored() {
        let changes = [
            FleetNotificationSubject::Job(JobId::from_bits(7)),
            FleetNotificationSubject::Requests(-7),
            FleetNotificationSubject::Offer(u64::MAX),
            FleetNotificationSubject::Session(u64::MAX, 7),
        ];
        for change in changes {
            assert_eq!(FleetNotificationSubject::parse(&change.to_payload()), Some(change));
        }
        for payload in ["", "job", "job x", "requests ", "offer -1", "session 1", "later 1"] {
            assert_eq!(FleetNotificationSubject::parse(payload), None, "{payload}");
        }
    }
}

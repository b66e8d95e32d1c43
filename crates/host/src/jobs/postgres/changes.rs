//! Sends and receives notifications about changed jobs.
//!
//! A notification says what to look at and carries no data. It is sent after the commit, and
//! several are gathered, because the database serializes commits that notify. Notifications may be
//! lost, for example behind a pooler in transaction mode. So every wait for one has a limit, after
//! which the waiter looks at the tables.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::types::Type;
use toolgate_contract::JobId;
use toolgate_postgres::SharedPool;

use super::lease::ServerId;

/// Channel of the notifications.
const CHANNEL: &str = "toolgate_fleet";
/// Time for which notifications are gathered.
const GATHER_TIME: Duration = Duration::from_millis(5);
/// Largest number of gathered notifications. Further ones are dropped.
const PENDING_MAX: usize = 4096;
/// Number of received notifications that a slow waiter may be behind.
const RECEIVED_MAX: usize = 1024;
/// Pause before a lost connection is opened again.
const LISTEN_PAUSE: Duration = Duration::from_secs(1);
/// Longest wait for requests of other servers.
const REQUEST_POLL: Duration = Duration::from_secs(1);

/// Subject of a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// The job has changed.
    Job(JobId),
    /// Another server has requests about jobs of the server with this id.
    Requests(ServerId),
}

impl Change {
    fn to_payload(self) -> String {
        match self {
            Self::Job(id) => format!("job {id}"),
            Self::Requests(server) => format!("requests {server}"),
        }
    }

    fn parse(payload: &str) -> Option<Self> {
        match payload.split_once(' ')? {
            ("job", id) => id.parse().ok().map(Self::Job),
            ("requests", server) => server.parse().ok().map(Self::Requests),
            // A newer server may send more.
            _ => None,
        }
    }
}

/// The notifications of this server and of all others.
pub(super) struct ChangeChannel {
    outgoing: Arc<OutgoingChanges>,
    changed_jobs: broadcast::Sender<JobId>,
    requests: Arc<Notify>,
    tasks: [JoinHandle<()>; 2],
}

#[derive(Default)]
struct OutgoingChanges {
    payloads: Mutex<BTreeSet<String>>,
    added: Notify,
}

impl ChangeChannel {
    /// Starts to send and receive notifications for the server `server`.
    pub(super) fn start(pool: &SharedPool, server: ServerId) -> Self {
        let outgoing = Arc::new(OutgoingChanges::default());
        let changed_jobs = broadcast::Sender::new(RECEIVED_MAX);
        let requests = Arc::new(Notify::new());
        let send = tokio::spawn(send_all(pool.clone(), outgoing.clone()));
        let receive = receive_all(pool.clone(), server, changed_jobs.clone(), requests.clone());
        Self { outgoing, changed_jobs, requests, tasks: [send, tokio::spawn(receive)] }
    }

    /// Notifies all servers that the job has changed.
    pub(super) fn notify_job(&self, id: JobId) {
        self.outgoing.add(Change::Job(id));
    }

    /// Notifies `server` of requests about its jobs.
    pub(super) fn notify_requests(&self, server: ServerId) {
        self.outgoing.add(Change::Requests(server));
    }

    /// Waits until the job may have changed, but no longer than `at_most`.
    pub(super) async fn wait_for_job(&self, id: JobId, at_most: Duration) {
        let mut changed = self.changed_jobs.subscribe();
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

    /// Waits until there may be requests about jobs of this server, but no longer than a second.
    pub(super) async fn wait_for_requests(&self) {
        let _ = timeout(REQUEST_POLL, self.requests.notified()).await;
    }
}

impl Drop for ChangeChannel {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl OutgoingChanges {
    fn add(&self, change: Change) {
        let mut payloads = self.payloads.lock().unwrap_or_else(PoisonError::into_inner);
        if payloads.len() < PENDING_MAX {
            payloads.insert(change.to_payload());
        }
        drop(payloads);
        self.added.notify_one();
    }

    fn take(&self) -> Vec<String> {
        let mut payloads = self.payloads.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *payloads).into_iter().collect()
    }
}

async fn send_all(pool: SharedPool, outgoing: Arc<OutgoingChanges>) {
    loop {
        outgoing.added.notified().await;
        sleep(GATHER_TIME).await;
        let payloads = outgoing.take();
        // The connection may be busy or lost. Waiters then find the change when they look.
        let Ok(lent) = pool.acquire().await else { continue };
        let work = async {
            let sql = "SELECT pg_notify($1, payload) FROM unnest($2) AS payload";
            let params = [(&CHANNEL as _, Type::TEXT), (&payloads as _, Type::TEXT_ARRAY)];
            lent.connection.client.query_typed(sql, &params).await?;
            Ok(())
        };
        let result = pool.with_timeout(pool.query_timeout, work).await;
        let _ = lent.give_back(result);
    }
}

async fn receive_all(
    pool: SharedPool,
    server: ServerId,
    changed_jobs: broadcast::Sender<JobId>,
    requests: Arc<Notify>,
) {
    loop {
        if let Ok(mut receiver) = pool.listen(CHANNEL).await {
            // Notifications before this moment were missed.
            requests.notify_one();
            while let Some(payload) = receiver.receive().await {
                match Change::parse(&payload) {
                    Some(Change::Job(id)) => {
                        // Nobody may be waiting.
                        let _ = changed_jobs.send(id);
                    }
                    Some(Change::Requests(to)) if to == server => requests.notify_one(),
                    Some(Change::Requests(_)) | None => {}
                }
            }
        }
        sleep(LISTEN_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_parsed_from_its_payload_and_other_payloads_are_ignored() {
        for change in [Change::Job(JobId::from_bits(7)), Change::Requests(-7)] {
            assert_eq!(Change::parse(&change.to_payload()), Some(change));
        }
        for payload in ["", "job", "job x", "requests ", "later 1"] {
            assert_eq!(Change::parse(payload), None, "{payload}");
        }
    }
}

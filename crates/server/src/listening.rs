//! Sends change notifications: to clients that request them, and to sessions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use toolgate_contract::{
    Answer, Beside, CallError, Caller, Change, Happened, Hold, Interest, Job, JobEvent, Request,
    Watch, Watched,
};
use toolgate_dialects::ListenTicket;
use toolgate_host::{Asked, Host};

use crate::session::locked;

/// Most resources that one client may subscribe to.
const WATCHED_MAX: usize = 1024;
/// Job changes that may wait to be sent.
const JOBS_WAITING: usize = 64;

/// Sends to `out` the changes in `interest` that the caller may see, until the receiver is gone.
pub(crate) async fn tell(
    host: &Arc<Host>,
    caller: &Caller,
    mut interest: Interest,
    ticket: &dyn ListenTicket,
    out: &mpsc::Sender<Bytes>,
) {
    // Subscribed first, so that no change is missed.
    let mut changes = host.listen();
    let _resources = watched(host, caller, &mut interest).await;
    let (told, mut jobs) = mpsc::channel(JOBS_WAITING);
    // Dropping the set ends the watchers.
    let _watches = jobs_watched(host, caller, &mut interest, &told).await;
    let _lists = host.watch_lists(&interest);
    if say(out, ticket.begin(&interest)).await.is_none() {
        return;
    }
    loop {
        let message = tokio::select! {
            change = changes.recv() => match change {
                Ok(change) if interest.is_in(&change) => ticket.changed(&change),
                Ok(_) => None,
                Err(RecvError::Lagged(_)) => {
                    if say_all(&interest, ticket, out).await.is_none() {
                        return;
                    }
                    None
                }
                Err(RecvError::Closed) => return,
            },
            Some(job) = jobs.recv() => ticket.job(&job),
        };
        if say(out, message).await.is_none() {
            return;
        }
    }
}

/// Subscribes to the resources of `interest`, and removes those that cannot be watched.
async fn watched(host: &Host, caller: &Caller, interest: &mut Interest) -> Vec<Hold> {
    let mut holds = Vec::new();
    let mut heard = interest.uris.clone();
    for uri in &interest.uris {
        let request = Request::WatchResource { uri: uri.clone() };
        let asked = Asked::plain(request, caller.clone(), "subscription");
        match host.answer(asked).await {
            Ok(Answer::Watched { hold, .. }) if holds.len() < WATCHED_MAX => holds.push(hold),
            _ => {
                heard.remove(uri);
            }
        }
    }
    interest.uris = heard;
    holds
}

/// Watches the jobs of `interest`, and removes those that the caller cannot see.
async fn jobs_watched(
    host: &Arc<Host>,
    caller: &Caller,
    interest: &mut Interest,
    told: &mpsc::Sender<Job>,
) -> JoinSet<()> {
    let mut watches = JoinSet::new();
    let mut heard = interest.jobs.clone();
    for id in &interest.jobs {
        let found = match host.jobs() {
            Ok(jobs) => jobs.get(Some(caller), id).await.ok(),
            Err(_) => None,
        };
        match found.filter(|_| watches.len() < WATCHED_MAX) {
            Some(job) => {
                let host = host.clone();
                let caller = caller.clone();
                let told = told.clone();
                watches.spawn(async move { watch_job(&host, &caller, &job, &told).await });
            }
            None => {
                heard.remove(id);
            }
        }
    }
    interest.jobs = heard;
    watches
}

/// Sends the job's status whenever an event changes it.
async fn watch_job(host: &Host, caller: &Caller, job: &Job, told: &mpsc::Sender<Job>) {
    let Ok(jobs) = host.jobs() else { return };
    let id = job.id.to_string();
    let Ok((_, mut watch)) = jobs.watch(Some(caller), &id, job.last_event).await else { return };
    while let Some(what) = next(watch.as_mut()).await {
        let now = match what {
            Watched::Event(event) if shows(&event) => jobs.get(Some(caller), &id).await.ok(),
            Watched::Event(_) => None,
            Watched::Ended(job) => Some(*job),
        };
        if let Some(now) = now
            && told.send(now).await.is_err()
        {
            return;
        }
    }
}

async fn next(watch: &mut dyn Watch) -> Option<Watched> {
    watch.next().await
}

/// Returns true if `event` changes the job's status. The end of a job is handled separately.
fn shows(event: &JobEvent) -> bool {
    match event.what {
        Happened::Started { .. } | Happened::Asks { .. } => true,
        Happened::Queued
        | Happened::Progress { .. }
        | Happened::Output { .. }
        | Happened::Log { .. }
        | Happened::Artefact(_)
        | Happened::Finished { .. } => false,
    }
}

/// Reports everything as changed, because some changes were missed.
async fn say_all(
    interest: &Interest,
    ticket: &dyn ListenTicket,
    out: &mpsc::Sender<Bytes>,
) -> Option<()> {
    let lists = [Change::Tools, Change::Prompts, Change::Resources];
    let uris = interest.uris.iter().map(|uri| Change::Resource(uri.as_str().into()));
    for change in lists.into_iter().chain(uris).filter(|change| interest.is_in(change)) {
        say(out, ticket.changed(&change)).await?;
    }
    Some(())
}

async fn say(out: &mpsc::Sender<Bytes>, message: Option<Bytes>) -> Option<()> {
    match message {
        Some(message) => out.send(message).await.ok(),
        None => Some(()),
    }
}

/// Notification subscriptions of a session: resources, and lists that the client has requested.
pub(crate) struct Subscribed {
    resources: Mutex<Resources>,
    interest: watch::Sender<Interest>,
}

/// Subscribed resources by URI. Each has a hold on its watcher while somebody receives
/// notifications.
#[derive(Default)]
struct Resources {
    held: HashMap<String, Option<Hold>>,
    /// Number of receivers.
    hearers: usize,
}

impl Default for Subscribed {
    fn default() -> Self {
        // Changes of the tool list are always sent: they cost no watcher.
        let interest = Interest { tools: true, ..Interest::default() };
        Self { resources: Mutex::default(), interest: watch::Sender::new(interest) }
    }
}

impl Subscribed {
    /// Adds the prompt or resource list to the subscriptions.
    pub(crate) fn to_lists(&self, prompts: bool, resources: bool) {
        self.interest.send_if_modified(|interest| {
            let before = (interest.prompts, interest.resources);
            interest.prompts |= prompts;
            interest.resources |= resources;
            before != (interest.prompts, interest.resources)
        });
    }

    /// Subscribes to the resource `uri`. `hold` keeps its watcher, and is dropped while nobody
    /// receives notifications.
    ///
    /// # Errors
    /// When the session has too many subscriptions.
    pub(crate) fn to(&self, uri: String, hold: Hold) -> Result<Answer, CallError> {
        let mut resources = locked(&self.resources);
        if resources.held.len() >= WATCHED_MAX && !resources.held.contains_key(&uri) {
            let message = format!(
                "a session may subscribe to {WATCHED_MAX} resources, and this one has; unsubscribe \
                 from one of them first"
            );
            return Err(CallError::NotAllowed { message });
        }
        let held = (resources.hearers > 0).then(|| hold.clone());
        resources.held.insert(uri.clone(), held);
        Ok(Answer::Watched { uri, hold })
    }

    /// Ends the subscription to the resource `uri`.
    pub(crate) fn not_to(&self, uri: &str) {
        locked(&self.resources).held.remove(uri);
    }

    /// Returns true if the session is subscribed to `change`.
    fn has(&self, change: &Change) -> bool {
        match change {
            Change::Tools | Change::Prompts | Change::Resources => {
                self.interest.borrow().is_in(change)
            }
            Change::Resource(uri) => locked(&self.resources).held.contains_key(&**uri),
        }
    }

    /// Returns all current subscriptions.
    fn now(&self) -> Interest {
        let uris = locked(&self.resources).held.keys().cloned().collect();
        Interest { uris, ..self.interest.borrow().clone() }
    }

    /// Sends to `out` the changes that the session subscribes to, now or later, until the receiver
    /// is gone.
    pub(crate) async fn tell(
        &self,
        host: &Host,
        (caller, session): (&Caller, Option<Arc<str>>),
        ticket: &dyn ListenTicket,
        out: &mpsc::Sender<Bytes>,
    ) {
        let mut changes = host.listen();
        let hearing = Hearing::begin(self);
        hearing.watch(host, caller, session).await;
        let mut wanted = self.interest.subscribe();
        let mut _lists = host.watch_lists(&wanted.borrow_and_update().clone());
        if say(out, ticket.begin(&self.now())).await.is_none() {
            return;
        }
        loop {
            let said = tokio::select! {
                change = changes.recv() => match change {
                    Ok(change) if self.has(&change) => say(out, ticket.changed(&change)).await,
                    Ok(_) => Some(()),
                    Err(RecvError::Lagged(_)) => say_all(&self.now(), ticket, out).await,
                    Err(RecvError::Closed) => None,
                },
                // `self` owns the sender, so this cannot fail.
                _ = wanted.changed() => {
                    _lists = host.watch_lists(&wanted.borrow_and_update().clone());
                    Some(())
                }
            };
            if said.is_none() {
                return;
            }
        }
    }
}

/// Receiver of notifications. While one exists, subscribed resources are watched.
struct Hearing<'s>(&'s Subscribed);

impl<'s> Hearing<'s> {
    fn begin(subscribed: &'s Subscribed) -> Self {
        locked(&subscribed.resources).hearers += 1;
        Self(subscribed)
    }

    /// Watches the subscribed resources that have no watcher.
    async fn watch(&self, host: &Host, caller: &Caller, session: Option<Arc<str>>) {
        let unheld = |(uri, hold): (&String, &Option<Hold>)| hold.is_none().then(|| uri.clone());
        let resources = &self.0.resources;
        let uris: Vec<_> = locked(resources).held.iter().filter_map(unheld).collect();
        for uri in uris {
            let request = Request::WatchResource { uri: uri.clone() };
            let beside = Beside { session: session.clone(), ..Beside::default() };
            let asked = Asked { beside, ..Asked::plain(request, caller.clone(), "subscription") };
            if let Ok(Answer::Watched { hold, .. }) = host.answer(asked).await
                && let Some(held) = locked(resources).held.get_mut(&uri)
            {
                *held = Some(hold);
            }
        }
    }
}

impl Drop for Hearing<'_> {
    fn drop(&mut self) {
        let mut resources = locked(&self.0.resources);
        resources.hearers -= 1;
        if resources.hearers == 0 {
            resources.held.values_mut().for_each(|hold| *hold = None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_subscribes_to_more_than_it_may_is_told_so() {
        let subscribed = Subscribed::default();
        let uri = |number: usize| format!("a://{number}");
        for number in 0..WATCHED_MAX {
            assert!(subscribed.to(uri(number), Hold::nothing()).is_ok());
        }
        assert!(subscribed.to(uri(0), Hold::nothing()).is_ok());
        let refused = subscribed.to(uri(WATCHED_MAX), Hold::nothing());
        assert!(matches!(refused, Err(CallError::NotAllowed { .. })));
        subscribed.not_to(&uri(1));
        assert!(subscribed.to(uri(WATCHED_MAX), Hold::nothing()).is_ok());
        let change = |number| Change::Resource(uri(number).into());
        assert!(subscribed.has(&change(WATCHED_MAX)) && !subscribed.has(&change(1)));
    }

    #[test]
    fn what_nobody_is_told_of_is_not_held() {
        let subscribed = Subscribed::default();
        let held = Arc::new(());
        let subscribe = |uri: &str| {
            assert!(subscribed.to(uri.to_owned(), Hold::of(held.clone())).is_ok());
        };
        subscribe("a://1");
        assert_eq!(Arc::strong_count(&held), 1);
        let first = Hearing::begin(&subscribed);
        let second = Hearing::begin(&subscribed);
        subscribe("a://2");
        drop(first);
        assert_eq!(Arc::strong_count(&held), 2);
        drop(second);
        assert_eq!(Arc::strong_count(&held), 1);
        assert!(subscribed.has(&Change::Resource("a://1".into())));
    }
}

//! Sends notifications of changes to clients that requested them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use toolgate_contract::{
    CallError, CallMetadata, Caller, ChangeFilter, HostAnswer, HostRequest, JobEvent, JobEventKind,
    JobEventStream, JobSnapshot, JobStreamItem, KeepActiveGuard, ServerChange, lock_mutex,
};
use toolgate_dialects::ChangeNotificationEncoder;
use toolgate_host::{Host, IncomingRequest};

use super::job_streams::send_some;

/// Maximum number of resources that one client may subscribe to.
const WATCHED_MAX: usize = 1024;
/// Maximum number of job changes that wait to be sent to a client. At this number, the tasks that
/// watch the jobs wait.
const JOBS_WAITING_MAX: usize = 64;

/// Sends the changes in `interest` that `caller` may see to `out`, until the receiver of `out` is
/// dropped.
pub(crate) async fn send_changes(
    host: &Arc<Host>,
    caller: &Caller,
    mut interest: ChangeFilter,
    encoder: &dyn ChangeNotificationEncoder,
    out: &mpsc::Sender<Bytes>,
) {
    // Subscribed first, so that no change is missed.
    let mut changes = host.subscribe();
    let _resources = watch_resources(host, caller, &mut interest).await;
    let (job_sender, mut jobs) = mpsc::channel(JOBS_WAITING_MAX);
    // Dropping the set ends the watchers.
    let _watches = watch_jobs(host, caller, &mut interest, &job_sender).await;
    let mut _lists = host.watch_lists(&interest);
    if send_some(out, encoder.encode_start(&interest)).await.is_none() {
        return;
    }
    loop {
        let message = tokio::select! {
            change = changes.recv() => match change {
                Ok(ServerChange::Tools) if !host.lists_follow_catalog(caller, None) => None,
                Ok(change) if interest.includes(&change) => {
                    if is_list_of_sources(&change) {
                        _lists = host.watch_lists(&interest);
                    }
                    encoder.encode_change(&change)
                }
                Ok(_) => None,
                Err(RecvError::Lagged(_)) => {
                    if send_all_changed(&interest, encoder, out).await.is_none() {
                        return;
                    }
                    None
                }
                Err(RecvError::Closed) => return,
            },
            Some(job) = jobs.recv() => encoder.encode_job(&job),
        };
        if send_some(out, message).await.is_none() {
            return;
        }
    }
}

/// Returns true if `change` concerns the list of prompts or resources. A reload of the settings may
/// have replaced the sources of these lists.
fn is_list_of_sources(change: &ServerChange) -> bool {
    matches!(change, ServerChange::Prompts | ServerChange::Resources)
}

/// Starts to watch the resources in `interest`. Removes a resource from `interest` if it cannot be
/// watched, or if there are too many. Returns guards that keep the watches active.
async fn watch_resources(
    host: &Host,
    caller: &Caller,
    interest: &mut ChangeFilter,
) -> Vec<KeepActiveGuard> {
    let mut holds = Vec::new();
    let mut watched = interest.uris.clone();
    for uri in &interest.uris {
        let request = HostRequest::WatchResource { uri: uri.clone() };
        let request = IncomingRequest::without_client(request, caller.clone(), "subscription");
        match host.answer(request).await {
            Ok(HostAnswer::Watched { hold, .. }) if holds.len() < WATCHED_MAX => holds.push(hold),
            _ => {
                watched.remove(uri);
            }
        }
    }
    interest.uris = watched;
    holds
}

/// Starts to watch the jobs in `interest`. Removes a job from `interest` if the caller cannot see
/// it, or if there are too many jobs. Sends changed jobs to `out`. Returns the tasks that watch the
/// jobs.
async fn watch_jobs(
    host: &Arc<Host>,
    caller: &Caller,
    interest: &mut ChangeFilter,
    out: &mpsc::Sender<JobSnapshot>,
) -> JoinSet<()> {
    let mut watches = JoinSet::new();
    let mut watched = interest.jobs.clone();
    for id in &interest.jobs {
        let found = match host.jobs() {
            Ok(jobs) => jobs.get(Some(caller), id).await.ok(),
            Err(_) => None,
        };
        match found.filter(|_| watches.len() < WATCHED_MAX) {
            Some(job) => {
                let host = host.clone();
                let caller = caller.clone();
                let out = out.clone();
                watches.spawn(async move { watch_job(&host, &caller, &job, &out).await });
            }
            None => {
                watched.remove(id);
            }
        }
    }
    interest.jobs = watched;
    watches
}

/// Sends a snapshot of `job` to `out` whenever an event changes the status of the job.
async fn watch_job(
    host: &Host,
    caller: &Caller,
    job: &JobSnapshot,
    out: &mpsc::Sender<JobSnapshot>,
) {
    let Ok(jobs) = host.jobs() else { return };
    let id = job.id.to_string();
    let Ok((_, mut watch)) = jobs.watch(Some(caller), &id, job.last_event).await else { return };
    while let Some(item) = next_event(watch.as_mut()).await {
        let now = match item {
            JobStreamItem::Event(event) if changes_status(&event) => {
                jobs.get(Some(caller), &id).await.ok()
            }
            JobStreamItem::Event(_) => None,
            JobStreamItem::Ended(job) => Some(*job),
        };
        if let Some(now) = now
            && out.send(now).await.is_err()
        {
            return;
        }
    }
}

async fn next_event(watch: &mut dyn JobEventStream) -> Option<JobStreamItem> {
    watch.next().await
}

/// Returns true if `event` changes the job's status. Returns false for the end of a job, which is
/// handled separately.
fn changes_status(event: &JobEvent) -> bool {
    match event.kind {
        JobEventKind::Started { .. } | JobEventKind::Asks { .. } => true,
        JobEventKind::Queued
        | JobEventKind::Progress { .. }
        | JobEventKind::Output { .. }
        | JobEventKind::Log { .. }
        | JobEventKind::Artefact(_)
        | JobEventKind::Finished { .. } => false,
    }
}

/// Notifies the client that everything in `interest` may have changed, because the server has
/// missed some changes. Returns `None` if the receiver of `out` was dropped.
async fn send_all_changed(
    interest: &ChangeFilter,
    encoder: &dyn ChangeNotificationEncoder,
    out: &mpsc::Sender<Bytes>,
) -> Option<()> {
    let lists = [ServerChange::Tools, ServerChange::Prompts, ServerChange::Resources];
    let uris = interest.uris.iter().map(|uri| ServerChange::Resource(uri.as_str().into()));
    for change in lists.into_iter().chain(uris).filter(|change| interest.includes(change)) {
        send_some(out, encoder.encode_change(&change)).await?;
    }
    Some(())
}

/// Changes about which a session's client wants notifications: of resources, and of lists that the
/// client has requested.
pub(crate) struct SessionSubscriptions {
    resources: Mutex<SubscribedResources>,
    interest: watch::Sender<ChangeFilter>,
}

/// Resources to which a session is subscribed, by URI. Each resource has a guard that keeps its
/// watch active, or `None` while nobody receives the session's notifications.
#[derive(Default)]
struct SubscribedResources {
    holds: HashMap<String, Option<KeepActiveGuard>>,
    /// Number of receivers of the session's notifications.
    receivers: usize,
}

impl Default for SessionSubscriptions {
    fn default() -> Self {
        // Changes of the tool list are always sent: they cost no watcher.
        let interest = ChangeFilter { tools: true, ..ChangeFilter::default() };
        Self { resources: Mutex::default(), interest: watch::Sender::new(interest) }
    }
}

impl SessionSubscriptions {
    /// Subscribes the session to changes of the list of prompts if `prompts` is true, and of the
    /// list of resources if `resources` is true.
    pub(crate) fn add_lists(&self, prompts: bool, resources: bool) {
        self.interest.send_if_modified(|interest| {
            let before = (interest.prompts, interest.resources);
            interest.prompts |= prompts;
            interest.resources |= resources;
            before != (interest.prompts, interest.resources)
        });
    }

    /// Subscribes the session to changes of the resource `uri`. `hold` keeps the watch of the
    /// resource active, and is dropped while nobody receives the session's notifications.
    ///
    /// # Errors
    /// The session has too many subscriptions.
    pub(crate) fn subscribe(
        &self,
        uri: String,
        hold: KeepActiveGuard,
    ) -> Result<HostAnswer, CallError> {
        let mut resources = lock_mutex(&self.resources);
        if resources.holds.len() >= WATCHED_MAX && !resources.holds.contains_key(&uri) {
            let message = format!(
                "too many subscriptions (the limit is {WATCHED_MAX} resources per session); \
                 unsubscribe from one of them first"
            );
            return Err(CallError::NotAllowed { message });
        }
        let kept = (resources.receivers > 0).then(|| hold.clone());
        resources.holds.insert(uri.clone(), kept);
        Ok(HostAnswer::Watched { uri, hold })
    }

    /// Ends the session's subscription to changes of the resource `uri`.
    pub(crate) fn unsubscribe(&self, uri: &str) {
        lock_mutex(&self.resources).holds.remove(uri);
    }

    /// Returns true if the session is subscribed to `change`.
    fn includes(&self, change: &ServerChange) -> bool {
        match change {
            ServerChange::Tools | ServerChange::Prompts | ServerChange::Resources => {
                self.interest.borrow().includes(change)
            }
            ServerChange::Resource(uri) => lock_mutex(&self.resources).holds.contains_key(&**uri),
        }
    }

    /// Returns everything to which the session is subscribed now.
    fn current_interest(&self) -> ChangeFilter {
        let uris = lock_mutex(&self.resources).holds.keys().cloned().collect();
        ChangeFilter { uris, ..self.interest.borrow().clone() }
    }

    /// Sends the changes to which the session is subscribed, now or later, to `out`, until the
    /// receiver of `out` is dropped.
    pub(crate) async fn send_changes(
        &self,
        host: &Host,
        (caller, session): (&Caller, Option<Arc<str>>),
        encoder: &dyn ChangeNotificationEncoder,
        out: &mpsc::Sender<Bytes>,
    ) {
        let mut changes = host.subscribe();
        let receiver = NotificationReceiverGuard::register(self);
        receiver.watch_resources(host, caller, session.clone()).await;
        let mut interest = self.interest.subscribe();
        let mut _lists = host.watch_lists(&interest.borrow_and_update().clone());
        if send_some(out, encoder.encode_start(&self.current_interest())).await.is_none() {
            return;
        }
        loop {
            let sent = tokio::select! {
                change = changes.recv() => match change {
                    Ok(ServerChange::Tools)
                        if !host.lists_follow_catalog(caller, session.as_ref()) =>
                    {
                        Some(())
                    }
                    Ok(change) if self.includes(&change) => {
                        if is_list_of_sources(&change) {
                            _lists = host.watch_lists(&interest.borrow().clone());
                        }
                        send_some(out, encoder.encode_change(&change)).await
                    }
                    Ok(_) => Some(()),
                    Err(RecvError::Lagged(_)) => send_all_changed(&self.current_interest(), encoder, out).await,
                    Err(RecvError::Closed) => None,
                },
                // `self` owns the sender, so this cannot fail.
                _ = interest.changed() => {
                    _lists = host.watch_lists(&interest.borrow_and_update().clone());
                    Some(())
                }
            };
            if sent.is_none() {
                return;
            }
        }
    }
}

/// Guard that exists while someone receives a session's notifications. While any such guard exists,
/// the subscribed resources are watched.
struct NotificationReceiverGuard<'s>(&'s SessionSubscriptions);

impl<'s> NotificationReceiverGuard<'s> {
    fn register(subscriptions: &'s SessionSubscriptions) -> Self {
        lock_mutex(&subscriptions.resources).receivers += 1;
        Self(subscriptions)
    }

    /// Starts watching the resources to which the session is subscribed and that are not watched
    /// yet.
    async fn watch_resources(&self, host: &Host, caller: &Caller, session: Option<Arc<str>>) {
        let unwatched =
            |(uri, hold): (&String, &Option<KeepActiveGuard>)| hold.is_none().then(|| uri.clone());
        let resources = &self.0.resources;
        let uris: Vec<_> = lock_mutex(resources).holds.iter().filter_map(unwatched).collect();
        for uri in uris {
            let request = HostRequest::WatchResource { uri: uri.clone() };
            let metadata = CallMetadata { session: session.clone(), ..CallMetadata::default() };
            let request = IncomingRequest {
                metadata,
                ..IncomingRequest::without_client(request, caller.clone(), "subscription")
            };
            if let Ok(HostAnswer::Watched { hold, .. }) = host.answer(request).await
                && let Some(kept) = lock_mutex(resources).holds.get_mut(&uri)
            {
                *kept = Some(hold);
            }
        }
    }
}

impl Drop for NotificationReceiverGuard<'_> {
    fn drop(&mut self) {
        let mut resources = lock_mutex(&self.0.resources);
        resources.receivers -= 1;
        if resources.receivers == 0 {
            resources.holds.values_mut().for_each(|hold| *hold = None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscription_beyond_the_limit_is_refused() {
        let subscriptions = SessionSubscriptions::default();
        let uri = |number: usize| format!("a://{number}");
        for number in 0..WATCHED_MAX {
            assert!(subscriptions.subscribe(uri(number), KeepActiveGuard::none()).is_ok());
        }
        assert!(subscriptions.subscribe(uri(0), KeepActiveGuard::none()).is_ok());
        let refusal = subscriptions.subscribe(uri(WATCHED_MAX), KeepActiveGuard::none());
        assert!(matches!(refusal, Err(CallError::NotAllowed { .. })));
        subscriptions.unsubscribe(&uri(1));
        assert!(subscriptions.subscribe(uri(WATCHED_MAX), KeepActiveGuard::none()).is_ok());
        let change = |number| ServerChange::Resource(uri(number).into());
        assert!(
            subscriptions.includes(&change(WATCHED_MAX)) && !subscriptions.includes(&change(1))
        );
    }

    #[test]
    fn a_resource_is_watched_only_while_a_receiver_exists() {
        let subscriptions = SessionSubscriptions::default();
        let hold = Arc::new(());
        let subscribe = |uri: &str| {
            assert!(
                subscriptions.subscribe(uri.to_owned(), KeepActiveGuard::new(hold.clone())).is_ok()
            );
        };
        subscribe("a://1");
        assert_eq!(Arc::strong_count(&hold), 1);
        let first = NotificationReceiverGuard::register(&subscriptions);
        let second = NotificationReceiverGuard::register(&subscriptions);
        subscribe("a://2");
        drop(first);
        assert_eq!(Arc::strong_count(&hold), 2);
        drop(second);
        assert_eq!(Arc::strong_count(&hold), 1);
        assert!(subscriptions.includes(&ServerChange::Resource("a://1".into())));
    }
}

//! Continues sessions that other servers of a fleet opened: passes messages that another server
//! needs to the fleet, and reads the messages of other servers.
//!
//! Messages that change the state of a session are kept, so that a server which resumes the session
//! knows the state. Answers to questions and cancellations are for the server that runs the call.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::task::AbortOnDropHandle;
use toolgate_contract::{Caller, HostRequest, MessageFrame, lock_mutex};
use toolgate_dialects::{Dialect, ParsedFrame, PendingHostRequest};
use toolgate_host::{
    NewSessionMessage, SESSION_ENDED, SessionDigest, SessionTag, StoredSessionMessage, session_tag,
};

use super::{HttpEndpoints, OpenHttpSession};
use crate::sessions::frame_actions::FrameAction;
use crate::sessions::session::{CallEventDestination, ClientSession};

/// Pause before this server tries again to connect to the database of the fleet.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Interval at which sessions with open questions look for messages, because notifications may be
/// lost.
const QUESTION_POLL: Duration = Duration::from_secs(1);
/// Number of polls after which all sessions look for messages with their next request.
const POLLS_UNTIL_ALL: u32 = 30;

/// Messages of one session that other servers received, as far as this server has read them.
pub(super) struct SharedSessionState {
    /// Digest of the session's id.
    digest: SessionDigest,
    /// True if other servers may have received messages that this server has not read.
    is_outdated: AtomicBool,
    /// Numbers of the messages that this server has read. `None` until it has read the state of a
    /// resumed session.
    read: tokio::sync::Mutex<Option<HashSet<i64>>>,
}

impl SharedSessionState {
    /// Returns the state of the session `id`. `is_resumed` is true if another server may have
    /// opened the session.
    pub(super) fn new(id: &str, is_resumed: bool) -> Arc<Self> {
        Arc::new(Self {
            digest: session_digest(id),
            is_outdated: AtomicBool::new(is_resumed),
            read: tokio::sync::Mutex::new((!is_resumed).then(HashSet::new)),
        })
    }
}

fn session_digest(id: &str) -> SessionDigest {
    *blake3::hash(id.as_bytes()).as_bytes()
}

impl HttpEndpoints {
    /// Returns the session `id` of `caller`, which is open at this server or resumed. Reads the
    /// messages of the session that other servers received. Returns `None` if there is no such
    /// session, or if it has ended.
    pub(super) async fn continue_session(
        &self,
        id: &str,
        caller: &Caller,
        dialect: &Arc<dyn Dialect>,
    ) -> Option<Arc<ClientSession>> {
        let found = self.find_session(id, caller, dialect.name());
        let session = found.or_else(|| self.resume_session(id, caller, dialect))?;
        self.read_shared_messages(id).await;
        // A message may have ended it.
        self.find_session(id, caller, dialect.name()).map(|_| session)
    }

    /// Reads the messages of the open session `id` that other servers received since the last
    /// time, and applies them.
    async fn read_shared_messages(&self, id: &str) {
        let Some(shared) = &self.shared_sessions else { return };
        let found = lock_mutex(&self.sessions)
            .get(id)
            .map(|slot| (slot.session.clone(), slot.shared.clone()));
        let Some((session, state)) = found else { return };
        // Other requests of the session wait here until its state is known.
        let mut read = state.read.lock().await;
        if !state.is_outdated.swap(false, Ordering::AcqRel) {
            return;
        }
        // If the client disconnects meanwhile, this future is dropped.
        let mut outdated = OutdatedOnDrop(Some(&state.is_outdated));
        // Without messages the session continues, and the next request tries again.
        let Some(messages) = shared.messages(&state.digest).await else { return };
        let is_new = |message: &StoredSessionMessage| match &*read {
            Some(known) => !message.is_own && !known.contains(&message.id),
            None => message.state.is_some(),
        };
        for message in messages.iter().filter(|message| is_new(message)) {
            self.apply_shared_message(id, &session, message).await;
        }
        *read = Some(messages.into_iter().map(|message| message.id).collect());
        outdated.0 = None;
    }

    async fn apply_shared_message(
        &self,
        id: &str,
        session: &Arc<ClientSession>,
        message: &StoredSessionMessage,
    ) {
        if message.state.as_deref() == Some(SESSION_ENDED) {
            self.sealer.end(id);
            lock_mutex(&self.sessions).remove(id);
            session.end("the session was ended");
            return session.release();
        }
        let frame = MessageFrame::from_line(message.content.clone());
        let reading = session.read_frame(&frame).await;
        match &reading {
            ParsedFrame::StateChange { .. }
            | ParsedFrame::Response { .. }
            | ParsedFrame::Cancel { .. }
            | ParsedFrame::Unwatch { .. } => drop(session.handle(reading)),
            ParsedFrame::Request(PendingHostRequest {
                request: HostRequest::WatchResource { .. },
                ..
            }) => {
                if let FrameAction::Run(calls) = session.handle(reading) {
                    let pending =
                        calls.begin(session, &CallEventDestination::Discard, &session.caller);
                    let session = session.clone();
                    // An upstream may answer slowly, and requests of the session do not wait.
                    toolgate_net::spawn_task(async move { pending.answer(&session).await });
                }
            }
            // No server passes on other messages.
            _ => {}
        }
    }

    /// Returns the message of the session that other servers need, if `reading`, which was parsed
    /// from `frame`, is one. Call this before the message is handled.
    pub(super) fn message_to_share(
        &self,
        session: &ClientSession,
        reading: &ParsedFrame,
        frame: &MessageFrame,
    ) -> Option<NewSessionMessage> {
        self.shared_sessions.as_ref()?;
        let state = match reading {
            ParsedFrame::StateChange { part, .. } => Some((*part).to_owned()),
            ParsedFrame::CloseSession(_) => Some(SESSION_ENDED.to_owned()),
            ParsedFrame::Unwatch { uri, .. }
            | ParsedFrame::Request(PendingHostRequest {
                request: HostRequest::WatchResource { uri },
                ..
            }) => Some(format!("watch {}", blake3::hash(uri.as_bytes()).to_hex())),
            ParsedFrame::Response { id, .. } if !session.has_question(id) => None,
            ParsedFrame::Cancel { key, .. } if !session.is_in_flight(key) => None,
            _ => return None,
        };
        Some(NewSessionMessage { state, content: frame.body.to_vec() })
    }

    /// Passes `message` of the session `id` of `caller` to the other servers of the fleet.
    pub(super) async fn share_message(
        &self,
        id: &str,
        caller: &Caller,
        message: NewSessionMessage,
    ) {
        if let Some(shared) = self.shared_sessions.clone() {
            let digest = session_digest(id);
            let caller = caller.clone();
            // The message is shared even if the client disconnects now.
            let sharing =
                toolgate_net::spawn_task(
                    async move { shared.publish(&digest, &caller, message).await },
                );
            let _ = sharing.await;
        }
    }

    /// Spawns a task that reads the messages which other servers receive for the open sessions of
    /// this server. The task ends when the returned handle is dropped. Returns `None` if this
    /// server shares no sessions.
    pub(crate) fn receive_shared_messages(self: &Arc<Self>) -> Option<AbortOnDropHandle<()>> {
        let shared = self.shared_sessions.clone()?;
        let endpoints = Arc::downgrade(self);
        Some(AbortOnDropHandle::new(toolgate_net::spawn_task(async move {
            let mut notifications = loop {
                match shared.notifications().await {
                    Ok(notifications) => break notifications,
                    Err(_) => sleep(RETRY_PAUSE).await,
                }
            };
            let mut polls = interval(QUESTION_POLL);
            polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut poll_number: u32 = 0;
            loop {
                let changed = tokio::select! {
                    session = notifications.next() => {
                        session.map_or(OutdatedSessions::All, OutdatedSessions::Tagged)
                    }
                    // The first poll is immediate: messages before it were not notified.
                    _ = polls.tick() => {
                        poll_number += 1;
                        match poll_number % POLLS_UNTIL_ALL {
                            1 => OutdatedSessions::All,
                            _ => OutdatedSessions::Asking,
                        }
                    }
                };
                let Some(endpoints) = endpoints.upgrade() else { return };
                let outdated = endpoints.mark_outdated(&changed);
                if !outdated.is_empty() {
                    // Messages of other sessions do not wait.
                    toolgate_net::spawn_task(async move {
                        for id in outdated {
                            endpoints.read_shared_messages(&id).await;
                        }
                    });
                }
            }
        })))
    }

    /// Marks the open sessions `changed` as outdated. Returns the ids of those whose messages must
    /// be read now. Other sessions read them with their next request.
    fn mark_outdated(&self, changed: &OutdatedSessions) -> Vec<String> {
        let sessions = lock_mutex(&self.sessions);
        let is_meant = |slot: &OpenHttpSession| match changed {
            OutdatedSessions::Tagged(tag) => *tag == session_tag(&slot.shared.digest),
            OutdatedSessions::Asking => slot.session.has_questions(),
            OutdatedSessions::All => true,
        };
        let mut outdated = Vec::new();
        for (id, slot) in sessions.iter().filter(|(_, slot)| is_meant(slot)) {
            slot.shared.is_outdated.store(true, Ordering::Release);
            if !matches!(changed, OutdatedSessions::All) || !slot.session.is_idle() {
                outdated.push(id.clone());
            }
        }
        outdated
    }
}

/// Selection of the open sessions that may lack messages which other servers received.
enum OutdatedSessions {
    /// Sessions with this tag.
    Tagged(SessionTag),
    /// Sessions with a question to the client that has no answer yet.
    Asking,
    /// All sessions.
    All,
}

/// Guard that marks a session as outdated on drop, because its messages were not read.
struct OutdatedOnDrop<'s>(Option<&'s AtomicBool>);

impl Drop for OutdatedOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(is_outdated) = self.0 {
            is_outdated.store(true, Ordering::Release);
        }
    }
}

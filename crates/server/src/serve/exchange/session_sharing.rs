//! Continues sessions that other servers of a fleet opened: passes messages that another server
//! needs to the fleet, and reads the messages of other servers.
//!
//! Messages that change the state of a session are kept, so that a server which resumes the session
//! knows the state. Answers to questions and cancellations are for the server that runs the call.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use toolgate_contract::{Caller, HostRequest, MessageFrame};
use toolgate_dialects::{Dialect, ParsedFrame, PendingHostRequest};
use toolgate_host::{
    NewSessionMessage, SessionDigest, SessionTag, StoredSessionMessage, session_tag,
};

use super::{HttpEndpoints, OpenHttpSession};
use crate::sessions::frame_actions::FrameAction;
use crate::sessions::session::{CallEventDestination, ClientSession};
use crate::sync::lock_mutex;

/// Part of the state that a message changes which ends its session.
const ENDED: &str = "ended";

/// Pause before this server tries again to connect to the database of the fleet.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

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
            digest: *blake3::hash(id.as_bytes()).as_bytes(),
            is_outdated: AtomicBool::new(is_resumed),
            read: tokio::sync::Mutex::new((!is_resumed).then(HashSet::new)),
        })
    }
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
        let session = match found.or_else(|| self.resume_session(id, caller, dialect)) {
            Some(session) if self.shared_sessions.is_none() => return Some(session),
            found => found?,
        };
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
        if !state.is_outdated.load(Ordering::Acquire) {
            return;
        }
        // Other requests of the session wait here until its state is known.
        let mut read = state.read.lock().await;
        if !state.is_outdated.swap(false, Ordering::AcqRel) {
            return;
        }
        match shared.messages(&state.digest).await {
            Some(messages) => {
                let is_resumed = read.is_none();
                let known = read.get_or_insert_default();
                let is_new = |message: &StoredSessionMessage| !known.contains(&message.id);
                let applies = |message: &StoredSessionMessage| match is_resumed {
                    true => message.state.is_some(),
                    false => !message.is_own && is_new(message),
                };
                for message in messages.iter().filter(|message| applies(message)) {
                    self.apply_shared_message(id, &session, message).await;
                }
                *known = messages.into_iter().map(|message| message.id).collect();
            }
            // The session continues without them, and the next request tries again.
            None => state.is_outdated.store(true, Ordering::Release),
        }
    }

    async fn apply_shared_message(
        &self,
        id: &str,
        session: &Arc<ClientSession>,
        message: &StoredSessionMessage,
    ) {
        if message.state.as_deref() == Some(ENDED) {
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
                    pending.answer(session).await;
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
            ParsedFrame::CloseSession(_) => Some(ENDED.to_owned()),
            ParsedFrame::Unwatch { uri, .. }
            | ParsedFrame::Request(PendingHostRequest {
                request: HostRequest::WatchResource { uri },
                ..
            }) => Some(format!("watch {uri}")),
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
        if let Some(shared) = &self.shared_sessions {
            let digest = *blake3::hash(id.as_bytes()).as_bytes();
            shared.publish(&digest, caller, message).await;
        }
    }

    /// Spawns a task that reads the messages which other servers receive for the open sessions of
    /// this server. The task ends when the returned handle is dropped. Returns `None` if this
    /// server shares no sessions.
    pub(crate) fn receive_shared_messages(self: &Arc<Self>) -> Option<AbortOnDropHandle<()>> {
        let shared = self.shared_sessions.clone()?;
        let endpoints = Arc::downgrade(self);
        Some(AbortOnDropHandle::new(tokio::spawn(async move {
            let mut notifications = loop {
                match shared.notifications().await {
                    Ok(notifications) => break notifications,
                    Err(_) => sleep(RETRY_PAUSE).await,
                }
            };
            loop {
                let changed = notifications.next().await;
                let Some(endpoints) = endpoints.upgrade() else { return };
                let outdated = endpoints.mark_outdated(changed);
                if !outdated.is_empty() {
                    // Messages of other sessions do not wait.
                    tokio::spawn(async move {
                        for id in outdated {
                            endpoints.read_shared_messages(&id).await;
                        }
                    });
                }
            }
        })))
    }

    /// Marks the open sessions with the tag `changed` as outdated, or all sessions with `None`.
    /// Returns the ids of those whose messages must be read now. Other sessions read them with
    /// their next request.
    fn mark_outdated(&self, changed: Option<SessionTag>) -> Vec<String> {
        let sessions = lock_mutex(&self.sessions);
        let is_meant = |slot: &OpenHttpSession| {
            changed.is_none_or(|changed| changed == session_tag(&slot.shared.digest))
        };
        let mut outdated = Vec::new();
        for (id, slot) in sessions.iter().filter(|(_, slot)| is_meant(slot)) {
            slot.shared.is_outdated.store(true, Ordering::Release);
            if changed.is_some() || !slot.session.is_idle() {
                outdated.push(id.clone());
            }
        }
        outdated
    }
}

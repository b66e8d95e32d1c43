//! Looks up, resumes and registers the sessions of HTTP clients.

use std::sync::Arc;
use std::time::Instant;

use toolgate_contract::{Caller, MessageFrame, Reply, lock_mutex};
use toolgate_dialects::{Dialect, FrameRefusal, ParsedFrame};

use super::eviction::evict_idle_session;
use super::session_sharing::SharedSessionState;
use super::{HttpEndpoints, OpenHttpSession};
use crate::sessions::client::random_id;
use crate::sessions::session::ClientSession;

impl HttpEndpoints {
    /// Returns the open session `id`, or `None` unless it belongs to `caller` and `dialect`.
    pub(super) fn find_session(
        &self,
        id: &str,
        caller: &Caller,
        dialect: &str,
    ) -> Option<Arc<ClientSession>> {
        let mut sessions = lock_mutex(&self.sessions);
        let slot = sessions.get_mut(id).filter(|slot| {
            let session = &slot.session;
            session.caller == *caller && session.dialect.name() == dialect
        })?;
        slot.last_used = Instant::now();
        Some(slot.session.clone())
    }

    /// Resumes the session `id` of `caller` from the sealed content of the id. Used if this server
    /// has forgotten the session, or if another replica with the same key opened it. Returns `None`
    /// if the id is invalid.
    pub(super) fn resume_session(
        &self,
        id: &str,
        caller: &Caller,
        dialect: &Arc<dyn Dialect>,
    ) -> Option<Arc<ClientSession>> {
        let opening = self.sealer.open(id, caller, dialect.name())?;
        let session = ClientSession::new(self.server.clone(), dialect.clone(), caller.clone());
        let ParsedFrame::OpenSession(_) = session.read(&MessageFrame::from_line(opening)) else {
            return None;
        };
        let mut sessions = lock_mutex(&self.sessions);
        // Another request may have resumed it meanwhile.
        if let Some(slot) = sessions.get(id) {
            return Some(slot.session.clone());
        }
        if sessions.len() >= self.bounds.sessions_max && !evict_idle_session(&mut sessions) {
            return None;
        }
        session.set_id(id);
        let shared = SharedSessionState::new(id, true);
        let slot = OpenHttpSession { session: session.clone(), last_used: Instant::now(), shared };
        sessions.insert(id.to_owned(), slot);
        Some(session)
    }

    /// Registers `session`, which the message `frame` opened, under an unguessable id, and adds the
    /// id to `reply`. If there are too many sessions, returns a refusal instead.
    pub(super) fn register_session(
        &self,
        reply: Reply,
        frame: Option<&MessageFrame>,
        session: Arc<ClientSession>,
    ) -> Reply {
        let dialect = session.dialect.clone();
        let mut sessions = lock_mutex(&self.sessions);
        if sessions.len() >= self.bounds.sessions_max && !evict_idle_session(&mut sessions) {
            let message = format!(
                "too many busy sessions (the limit is {}); try again later",
                self.bounds.sessions_max
            );
            return dialect.refuse(&FrameRefusal::Busy { message });
        }
        let sealed =
            frame.and_then(|frame| self.sealer.seal(&session.caller, dialect.name(), &frame.body));
        match sealed.map_or_else(random_id, Ok) {
            Ok(id) => {
                let reply = dialect.open_session(reply, &id);
                session.set_id(&id);
                let shared = SharedSessionState::new(&id, false);
                sessions.insert(id, OpenHttpSession { session, last_used: Instant::now(), shared });
                reply
            }
            Err(err) => {
                let message = format!("cannot open a session: {err}");
                dialect.refuse(&FrameRefusal::Busy { message })
            }
        }
    }
}

//! Open sessions: looks them up, resumes them and assigns their ids.

use std::sync::Arc;
use std::time::Instant;

use toolgate_contract::{Caller, Frame, Reply};
use toolgate_dialects::{Dialect, Reading, Refused};

use super::giving_up::give_up_the_most_silent;
use super::{Endpoints, Seat};
use crate::client::random_id;
use crate::session::{Session, locked};

impl Endpoints {
    /// Returns the open session `id`, if it belongs to `caller` and `dialect`.
    pub(super) fn seated(&self, id: &str, caller: &Caller, dialect: &str) -> Option<Arc<Session>> {
        let mut sessions = locked(&self.sessions);
        let seat = sessions.get_mut(id).filter(|seat| {
            let Session { caller: owner, dialect: spoken, .. } = seat.session.as_ref();
            owner == caller && spoken.name() == dialect
        })?;
        seat.heard = Instant::now();
        Some(seat.session.clone())
    }

    /// Resumes the session `id` of `caller` from its sealed id, after this server forgot it or if
    /// another replica with the same key opened it.
    pub(super) fn taken_up(
        &self,
        id: &str,
        caller: &Caller,
        dialect: &Arc<dyn Dialect>,
    ) -> Option<Arc<Session>> {
        let opening = self.sealed.open(id, caller, dialect.name())?;
        let session = Session::new(self.desk.clone(), dialect.clone(), caller.clone());
        let Reading::Opened(_) = session.read(&Frame::line(opening)) else { return None };
        let mut sessions = locked(&self.sessions);
        if sessions.len() >= self.bounds.sessions_max && !give_up_the_most_silent(&mut sessions) {
            return None;
        }
        session.is_known_as(id);
        let seat = Seat { session: session.clone(), heard: Instant::now() };
        sessions.insert(id.to_owned(), seat);
        Some(session)
    }

    /// Registers `session`, which `frame` opened, under an unguessable id. Refuses if there is no
    /// room.
    pub(super) fn seat(&self, reply: Reply, frame: Option<&Frame>, session: Arc<Session>) -> Reply {
        let dialect = session.dialect.clone();
        let mut sessions = locked(&self.sessions);
        if sessions.len() >= self.bounds.sessions_max && !give_up_the_most_silent(&mut sessions) {
            let message = format!(
                "as many sessions as may are open ({}), and all are at work; come back later",
                self.bounds.sessions_max
            );
            return dialect.refuse(&Refused::Busy { message });
        }
        let sealed =
            frame.and_then(|frame| self.sealed.seal(&session.caller, dialect.name(), &frame.body));
        match sealed.map_or_else(random_id, Ok) {
            Ok(id) => {
                let reply = dialect.open_session(reply, &id);
                session.is_known_as(&id);
                sessions.insert(id, Seat { session, heard: Instant::now() });
                reply
            }
            Err(err) => {
                let message = format!("no session could be opened: {err}");
                dialect.refuse(&Refused::Busy { message })
            }
        }
    }
}

//! Sessions of people who have signed in to the console.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use data_encoding::HEXLOWER;
use toolgate_contract::{Caller, FrameMetadata, lock_mutex};

use crate::config::ApiKeyDigest;
use crate::sessions::waiting_questions::{InteractiveCallDescription, WaitingQuestion};

/// Name of the cookie of console sessions.
const COOKIE: &str = "toolgate_console";
/// Maximum duration of a console session, after which the person must sign in again.
const LIFETIME: Duration = Duration::from_secs(8 * 3600);
/// Time without use after which a console session ends. Requests that a page makes by itself do not
/// count as use.
const IDLE_MAX: Duration = Duration::from_secs(3600);
/// Maximum number of console sessions. At this number, a new session ends the session with the
/// oldest last request.
const SESSIONS_MAX: usize = 256;
/// Role of a caller that may look at the console.
const VIEW_ROLE: &str = "console";
/// Role of a caller that may look at the console and act there.
const ACT_ROLE: &str = "admin";

/// Rights of a console session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConsoleRole {
    /// The signed-in person may look at every page of the console, but not act.
    Viewer,
    /// The signed-in person may look at every page of the console and act: call tools, answer
    /// questions and approve pins.
    Admin,
}

impl ConsoleRole {
    /// Returns the rights of `caller` at the console, or `None` if the caller may not sign in.
    pub(crate) fn for_caller(caller: &Caller) -> Option<Self> {
        let has = |wanted: &str| caller.roles.iter().any(|role| **role == *wanted);
        match (has(ACT_ROLE), has(VIEW_ROLE)) {
            (true, _) => Some(Self::Admin),
            (false, true) => Some(Self::Viewer),
            (false, false) => None,
        }
    }
}

/// Console session of a signed-in person.
pub(crate) struct ConsoleSession {
    pub(crate) caller: Caller,
    pub(crate) role: ConsoleRole,
    /// Token that each form of the session repeats, and that other sites cannot know.
    pub(crate) csrf: String,
    /// Digest of the key or token with which the person signed in. `None` after signing in with a
    /// one-time link.
    pub(crate) credential: Option<ApiKeyDigest>,
    opened: Instant,
    last_used: Mutex<Instant>,
}

impl ConsoleSession {
    /// Returns true if the signed-in person may act, not only view.
    pub(crate) fn may_act(&self) -> bool {
        self.role == ConsoleRole::Admin
    }

    /// Returns true if the signed-in person may answer the question `waiting` in place of the
    /// client.
    ///
    /// Forms with fields can only be answered at the client. A caller cannot confirm calls made
    /// under the same name, because an agent that holds the key would confirm its own calls.
    pub(crate) fn may_answer(&self, waiting: &WaitingQuestion) -> bool {
        self.may_act() && waiting.question.is_for_consent() && !self.has_made(&waiting.call)
    }

    /// Returns true if the person signed in with a key or token, and a client with the same caller
    /// name made `call`.
    pub(crate) fn has_made(&self, call: &InteractiveCallDescription) -> bool {
        self.credential.is_some() && self.caller.name == call.caller
    }

    fn is_over(&self, now: Instant) -> bool {
        let idle = now.saturating_duration_since(*lock_mutex(&self.last_used));
        now.saturating_duration_since(self.opened) > LIFETIME || idle > IDLE_MAX
    }
}

/// All open console sessions, by the hash of their cookie.
#[derive(Default)]
pub(crate) struct ConsoleSessions(Mutex<HashMap<blake3::Hash, Arc<ConsoleSession>>>);

impl ConsoleSessions {
    /// Opens a console session for `caller`, and returns the value of its cookie.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(crate) fn open(
        &self,
        caller: Caller,
        role: ConsoleRole,
        credential: Option<ApiKeyDigest>,
    ) -> anyhow::Result<String> {
        let cookie = random_token()?;
        let now = Instant::now();
        let csrf = random_token()?;
        let last_used = Mutex::new(now);
        let session = ConsoleSession { caller, role, csrf, credential, opened: now, last_used };
        let mut sessions = lock_mutex(&self.0);
        sessions.retain(|_, session| !session.is_over(now));
        if sessions.len() >= SESSIONS_MAX {
            let oldest = sessions.iter().min_by_key(|(_, one)| *lock_mutex(&one.last_used));
            if let Some(oldest) = oldest.map(|(hash, _)| *hash) {
                sessions.remove(&oldest);
            }
        }
        sessions.insert(blake3::hash(cookie.as_bytes()), Arc::new(session));
        Ok(cookie)
    }

    /// Returns the console session of the request `head`, or `None` if there is no session. If
    /// `is_use` is true, the session's idle time starts again. Requests that a page makes by itself
    /// do not count as use.
    pub(crate) fn find(&self, head: &FrameMetadata, is_use: bool) -> Option<Arc<ConsoleSession>> {
        let hash = blake3::hash(session_cookie(head)?.as_bytes());
        let mut sessions = lock_mutex(&self.0);
        let session = sessions.get(&hash)?.clone();
        let now = Instant::now();
        if session.is_over(now) {
            sessions.remove(&hash);
            return None;
        }
        if is_use {
            *lock_mutex(&session.last_used) = now;
        }
        Some(session)
    }

    /// Ends the console session of the request `head`.
    pub(crate) fn end(&self, head: &FrameMetadata) {
        if let Some(cookie) = session_cookie(head) {
            lock_mutex(&self.0).remove(&blake3::hash(cookie.as_bytes()));
        }
    }
}

/// Returns the value of a `Set-Cookie` header with the session cookie `value`. An empty value
/// removes the cookie. If `is_secure` is true, browsers send the cookie only over TLS.
pub(crate) fn cookie_header(value: &str, is_secure: bool) -> String {
    let secure = if is_secure { "; Secure" } else { "" };
    let age = if value.is_empty() { 0 } else { LIFETIME.as_secs() };
    format!("{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age}{secure}")
}

/// Returns the value of the console's session cookie. Returns `None` if there is no cookie. Also
/// returns `None` if several cookies have the same name, because another server on the host may
/// have set a cookie.
fn session_cookie(head: &FrameMetadata) -> Option<&str> {
    let mut values = head
        .header("cookie")
        .filter_map(|value| std::str::from_utf8(value).ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='));
    let first = values.next();
    first.filter(|_| values.next().is_none())
}

/// Returns 32 random bytes in hexadecimal digits, for a cookie or a form's token. Fails if the
/// system has no random numbers.
fn random_token() -> anyhow::Result<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(HEXLOWER.encode(&bytes))
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, Method};
    use jiff::Timestamp;
    use serde_json::json;
    use toolgate_contract::ClientQuestion;

    use super::*;
    use crate::config::digest;

    fn head(cookie: &str) -> FrameMetadata {
        let mut headers = HeaderMap::new();
        headers.insert("cookie", HeaderValue::from_str(cookie).expect("a header"));
        let path = "/".to_owned();
        FrameMetadata::Http { method: Method::GET, path, query: String::new(), headers }
    }

    #[test]
    fn a_session_is_found_by_its_only_cookie() {
        let sessions = ConsoleSessions::default();
        let cookie = sessions.open(Caller::local(), ConsoleRole::Admin, None).expect("a session");
        assert!(sessions.find(&head(&format!("a=b; {COOKIE}={cookie}")), true).is_some());
        let twice = format!("{COOKIE}=x; {COOKIE}={cookie}");
        assert!(sessions.find(&head(&twice), true).is_none());
        assert!(sessions.find(&head(&format!("{COOKIE}=x")), true).is_none());
        sessions.end(&head(&format!("{COOKIE}={cookie}")));
        assert!(sessions.find(&head(&format!("{COOKIE}={cookie}")), true).is_none());
    }

    #[test]
    fn a_key_cannot_confirm_the_calls_that_were_made_with_it() {
        let waiting = |caller: &str, schema| WaitingQuestion {
            number: 0,
            call: InteractiveCallDescription {
                caller: caller.into(),
                subject: "files.write".to_owned(),
            },
            question: ClientQuestion::Form { message: "Do it?".to_owned(), schema },
            since: Timestamp::UNIX_EPOCH,
        };
        let sessions = ConsoleSessions::default();
        let open = |role| {
            let key = Some(digest(b"key"));
            let cookie = sessions.open(Caller::from_name("ada"), role, key).expect("a session");
            sessions.find(&head(&format!("{COOKIE}={cookie}")), true).expect("the session")
        };
        let (admin, viewer) = (open(ConsoleRole::Admin), open(ConsoleRole::Viewer));
        assert!(admin.may_answer(&waiting("bob", json!({}))));
        assert!(!admin.may_answer(&waiting("ada", json!({}))));
        assert!(!viewer.may_answer(&waiting("bob", json!({}))));
        let fields = json!({ "properties": { "name": { "type": "string" } } });
        assert!(!admin.may_answer(&waiting("bob", fields)));
    }

    #[test]
    fn the_number_of_sessions_is_bounded() {
        let sessions = ConsoleSessions::default();
        let open = || sessions.open(Caller::local(), ConsoleRole::Viewer, None).expect("a session");
        let first = open();
        for _ in 0..SESSIONS_MAX {
            open();
        }
        assert_eq!(lock_mutex(&sessions.0).len(), SESSIONS_MAX);
        assert!(sessions.find(&head(&format!("{COOKIE}={first}")), true).is_none());
    }
}

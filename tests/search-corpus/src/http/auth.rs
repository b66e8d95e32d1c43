//! Who a request is from, before anything else looks at it.

use crate::http::{Next, Request, Response, Status};
use crate::store::Sessions;

/// Lets a request through only if its token belongs to a session that is alive.
pub struct AuthMiddleware {
    sessions: Sessions,
    realm: String,
}

impl AuthMiddleware {
    pub fn new(sessions: Sessions, realm: &str) -> Self {
        Self { sessions, realm: realm.to_owned() }
    }

    /// Answers 401 where nobody, or nobody we know, is asking.
    pub async fn handle(&self, mut request: Request, next: Next) -> Response {
        let Some(token) = bearer(&request) else {
            return self.challenge("a bearer token is needed");
        };
        match self.sessions.find(token).await {
            Some(session) if session.is_alive() => {
                request.set_user(session.user);
                next.run(request).await
            }
            Some(_) => self.challenge("the session has expired"),
            None => self.challenge("the token is not known"),
        }
    }

    fn challenge(&self, why: &str) -> Response {
        Response::new(Status::UNAUTHORIZED)
            .header("www-authenticate", &format!("Bearer realm=\"{}\"", self.realm))
            .body(why)
    }
}

/// The token in the `Authorization` header.
fn bearer(request: &Request) -> Option<&str> {
    request.header("authorization")?.strip_prefix("Bearer ")
}

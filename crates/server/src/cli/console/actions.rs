//! Actions that `toolgate console` takes at the console of a running server.

use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use form_urlencoded::Serializer;
use http::header::{CONTENT_TYPE, COOKIE, HeaderValue, LOCATION, SET_COOKIE};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use serde_json::Value;
use tokio::time::timeout;
use toolgate_contract::printable::escape_line;
use toolgate_service::console::{OneTimeLinkKey, SIGN_IN_PATH};
use toolgate_world::fetch::open_http_client;

use crate::cli::remote::{RemoteKeyArgs, not_answered, parse_server_url};
use crate::cli::{complain, print};

/// Time limit for each answer of the server to a request of `toolgate console`.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);
/// URL path on the server that ends a console session.
const SIGN_OUT_PATH: &str = "/console/sign-out";
/// Largest answer of the server to `toolgate console`, in bytes. A larger answer is an error.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Attribute that marks the notice of a failed reconnection in the HTML of a console page.
const FAILED_OUTCOME: &str = "data-outcome=\"failed\"";

/// Action that `toolgate console` takes at a running server.
pub(super) enum ConsoleAction<'a> {
    /// Lists the calls that wait for a confirmation.
    Waiting,
    /// Answers the confirmation with this number: `allow` or `refuse`.
    Answer(u64, &'static str),
    /// Reconnects the upstream with this name.
    Reconnect(&'a str),
}

/// Session of this command at the console of a running server.
struct ConsoleCommandSession<'a> {
    origin: &'a str,
    cookie: HeaderValue,
}

/// Signs in at the console of the server `origin`, performs `action`, and signs out. If `needs_key`
/// is true, signs in with the caller's API key, which is in the environment variable that `key`
/// names. Otherwise signs in with a one-time link.
pub(super) async fn take(
    action: &ConsoleAction<'_>,
    origin: &str,
    needs_key: bool,
    key: &RemoteKeyArgs,
) -> anyhow::Result<()> {
    let credential = match needs_key {
        true => ("key", key.value()?),
        false => ("token", OneTimeLinkKey::open_or_create()?.new_token()?),
    };
    let session = ConsoleCommandSession::open(origin, credential).await?;
    let state = session.state().await?;
    let csrf = state["csrf"].as_str().context("the server sent no token for forms")?;
    let done = session.act(action, &state, csrf).await;
    // The server keeps few sessions. Without this, commands would end that of a person in a
    // browser.
    if let Err(err) = session.post(SIGN_OUT_PATH, csrf, Vec::new()).await {
        complain(&format!("the session stays open for up to an hour: {err:#}"));
    }
    done
}

/// Prints a line for each call that waits for a confirmation: its number, time, caller, tool and
/// question. `state` is the console's state as JSON.
fn print_waiting(state: &Value) -> anyhow::Result<()> {
    let waiting = state["waiting"].as_array().context("the server sent no list")?;
    if waiting.is_empty() {
        complain("no call waits for your confirmation");
    }
    for one in waiting {
        let field = |name: &str| escape_line(one[name].as_str().unwrap_or_default()).into_owned();
        let number = one["number"].as_u64().unwrap_or_default();
        let (since, caller) = (field("since"), field("caller"));
        let (tool, question) = (field("tool"), field("question"));
        print(&format!("{number}  {since}  {caller}  {tool}  {question}\n"))?;
    }
    Ok(())
}

impl<'a> ConsoleCommandSession<'a> {
    /// Opens a console session at the server `origin`: submits the sign-in form with one field and
    /// its value, an API key or a one-time token. Fails if the server refuses.
    async fn open(origin: &'a str, (field, value): (&str, String)) -> anyhow::Result<Self> {
        let body = Serializer::new(String::new()).append_pair(field, &value).finish();
        let response = send(origin, SIGN_IN_PATH, None, Some(body)).await?;
        if response.status() != StatusCode::SEE_OTHER {
            let status = response.status();
            bail!("the server refused to sign in ({status}): {}", notice(&text(response).await?));
        }
        let cookie = response.headers().get(SET_COOKIE).and_then(|cookie| cookie.to_str().ok());
        let cookie = cookie.and_then(|cookie| cookie.split(';').next());
        let cookie = HeaderValue::from_str(cookie.context("the server opened no session")?)?;
        Ok(Self { origin, cookie })
    }

    /// Requests the console's state as JSON: the CSRF token that every form repeats, and the calls
    /// that wait for a confirmation.
    async fn state(&self) -> anyhow::Result<Value> {
        let response = send(self.origin, "/console/questions", Some(&self.cookie), None).await?;
        serde_json::from_str(&text(response).await?).context("the server is of another version")
    }

    /// Performs `action` at the console and prints the result. `state` is the console's state as
    /// JSON, and `csrf` the token that every form repeats. Fails if the server refuses.
    async fn act(
        &self,
        action: &ConsoleAction<'_>,
        state: &Value,
        csrf: &str,
    ) -> anyhow::Result<()> {
        let (path, fields) = match action {
            ConsoleAction::Waiting => return print_waiting(state),
            ConsoleAction::Answer(number, choice) => {
                (format!("/console/questions/{number}/answer"), vec![("choice", *choice)])
            }
            ConsoleAction::Reconnect(name) => {
                let name: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
                (format!("/console/upstreams/{name}/restart"), Vec::new())
            }
        };
        let response = self.post(&path, csrf, fields).await?;
        if response.status() != StatusCode::SEE_OTHER {
            let status = response.status();
            let why = notice(&text(response).await?);
            bail!("the server refused the action ({status}): {why}");
        }
        match action {
            ConsoleAction::Waiting | ConsoleAction::Answer(..) => complain("done"),
            ConsoleAction::Reconnect(_) => {
                let page = response.headers().get(LOCATION).and_then(|page| page.to_str().ok());
                let page = page.context("the server names no page with the outcome")?.to_owned();
                self.print_outcome(&page).await?;
            }
        }
        Ok(())
    }

    /// Prints the outcome of a reconnection, which the console shows on the page at the path
    /// `page`.
    ///
    /// # Errors
    /// The reconnection failed.
    async fn print_outcome(&self, page: &str) -> anyhow::Result<()> {
        let page = text(send(self.origin, page, Some(&self.cookie), None).await?).await?;
        let outcome = notice(&page);
        if page.contains(FAILED_OUTCOME) {
            bail!("{outcome}");
        }
        complain(&outcome);
        Ok(())
    }

    async fn post(
        &self,
        path: &str,
        csrf: &str,
        fields: Vec<(&str, &str)>,
    ) -> anyhow::Result<Response<Incoming>> {
        let mut body = Serializer::new(String::new());
        body.append_pair("csrf", csrf).extend_pairs(fields);
        send(self.origin, path, Some(&self.cookie), Some(body.finish())).await
    }
}

/// Submits `form` to the console at `path`, or requests the page at `path` if `form` is `None`.
/// Fails if the server does not answer within 30 s.
async fn send(
    origin: &str,
    path: &str,
    cookie: Option<&HeaderValue>,
    form: Option<String>,
) -> anyhow::Result<Response<Incoming>> {
    let url = parse_server_url(&format!("{origin}{path}"))?;
    let uri = url.uri().clone();
    let form_type = "application/x-www-form-urlencoded";
    let mut request = match form {
        Some(form) => {
            Request::post(uri).header(CONTENT_TYPE, form_type).body(Full::new(Bytes::from(form)))?
        }
        None => Request::get(uri).body(Full::new(Bytes::new()))?,
    };
    if let Some(cookie) = cookie {
        request.headers_mut().insert(COOKIE, cookie.clone());
    }
    let response = timeout(ANSWER_TIME_MAX, open_http_client().send(request)).await;
    let response = response.with_context(|| format!("{origin} did not respond in time"))?;
    response.map_err(|failure| not_answered(failure, url.authority()))
}

async fn text(response: Response<Incoming>) -> anyhow::Result<String> {
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect();
    let body = timeout(ANSWER_TIME_MAX, body).await.context("the answer is incomplete")?;
    let body =
        body.map_err(|err| anyhow::Error::from_boxed(err).context("the answer is incomplete"))?;
    Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned())
}

/// Returns the text of the notice on a console page, without its HTML.
fn notice(page: &str) -> String {
    let notice = page.split_once("class=\"notice\"").and_then(|(_, rest)| rest.split_once('>'));
    let text = notice.and_then(|(_, rest)| rest.split_once("</p>")).map_or("", |(text, _)| text);
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
    escape_line(&text.replace("&amp;", "&")).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notice_of_a_page_is_its_text() {
        let page =
            "<h1>Not done</h1><p class=\"notice\" role=\"alert\">a &lt;b&gt; &amp; c</p><p>x</p>";
        assert_eq!(notice(page), "a <b> & c");
        assert_eq!(notice("<p>nothing</p>"), "");
    }
}

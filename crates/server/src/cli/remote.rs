//! Lists and calls tools at a running server, with a protocol revision of MCP that has no sessions.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::time::timeout;
use toolgate_contract::{
    ResultText, ToolId, ToolOutput, ToolResultFormat, ToolRunStatus, exact_json, fold_name,
};
use toolgate_dialects::mcp::{META_RESULTS, McpRevision, SessionModel};
use toolgate_net::{HttpRequestFailure, HttpUrl, HttpUrlError, SseParser};
use toolgate_service::config;
use toolgate_world::fetch::open_http_client;

use super::follow::{ProgressDisplay, ProgressUpdate};

/// Time limit for the answer of a running server. No built-in tool takes longer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(900);
/// Time limit for the answer to a health check.
const HEALTH_TIME_MAX: Duration = Duration::from_secs(5);
/// Largest answer of a running server that is accepted, in bytes.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// Default environment variable with the caller's API key.
const KEY_VARIABLE: &str = "TOOLGATE_KEY";
/// Maximum number of pages of a tool list that are requested from a running server.
const PAGES_MAX: usize = 1000;
/// Progress token that toolgate sends with a call. The server's notifications about the progress of
/// the call repeat this token.
const PROGRESS_TOKEN: u64 = 1;

/// A running server, with the caller's API key.
pub(super) struct RemoteServer<'a> {
    /// URL of the server's MCP endpoint.
    pub(super) url: &'a str,
    /// The caller's API key for the server, if there is one.
    key: Option<RemoteServerKey>,
}

/// The caller's API key for a running server, and the environment variable that contains it.
struct RemoteServerKey {
    value: String,
    variable: String,
}

/// A JSON-RPC request to a running server.
struct RemoteServerRequest<'a> {
    method: &'static str,
    /// Name of the called tool, which the header `Mcp-Name` repeats.
    name: Option<&'a str>,
    /// Fields of the request's `params` besides `_meta`.
    params: Vec<(&'static str, Value)>,
}

/// Command-line options for the API key of a running server.
#[derive(clap::Args)]
pub(super) struct RemoteKeyArgs {
    /// Environment variable with your API key, instead of TOOLGATE_KEY
    #[arg(long, value_name = "NAME", requires = "url")]
    key_env: Option<String>,
}

impl RemoteKeyArgs {
    /// Returns the API key from the environment variable that the options name.
    ///
    /// # Errors
    /// The variable is not set.
    pub(super) fn value(&self) -> anyhow::Result<String> {
        let RemoteServer { key, .. } = self.remote("")?;
        let variable = self.key_env.as_deref().unwrap_or(KEY_VARIABLE);
        let key = key.with_context(|| format!("set the variable {variable} to a key"))?;
        Ok(key.value)
    }

    /// Returns the server at `url`, with the API key from the environment if there is one. Fails if
    /// the options name a variable that is not set.
    pub(super) fn remote<'a>(&self, url: &'a str) -> anyhow::Result<RemoteServer<'a>> {
        let variable = self.key_env.as_deref().unwrap_or(KEY_VARIABLE);
        let environment = config::environment();
        let found =
            environment.into_iter().find(|(key, value)| key == variable && !value.is_empty());
        let key = match (found, &self.key_env) {
            (None, None) => None,
            (None, Some(name)) => bail!("the variable {name} of --key-env is not set"),
            (Some((_, value)), _) => match value.into_string() {
                Ok(value) => Some(RemoteServerKey { value, variable: variable.to_owned() }),
                Err(_) => bail!("the value of {variable} is not a valid key"),
            },
        };
        Ok(RemoteServer { url, key })
    }
}

/// Calls `tool` at the server `remote`. Returns the tool's output, or the message of the refusal.
///
/// Shows progress and log lines on the display `follow`. Dropping the future cancels the call.
pub(super) async fn call_remote_tool(
    remote: &RemoteServer<'_>,
    tool: &str,
    input: Value,
    follow: Option<&ProgressDisplay>,
) -> anyhow::Result<Result<ToolOutput, String>> {
    // MCP folds tool ids. Any other name is sent unchanged.
    let name = ToolId::foreign(tool)
        .map_or_else(|| tool.to_owned(), |id| fold_name(id.as_str()).into_owned());
    let RemoteServer { url, key } = remote;
    let endpoint = parse_server_url(url)?;
    let request = RemoteServerRequest {
        method: "tools/call",
        name: Some(&name),
        params: vec![("name", json!(name)), ("arguments", input)],
    };
    let call = send_request(&endpoint, key.as_ref(), request, follow);
    let answer = timeout(ANSWER_TIME_MAX, call).await;
    let answer = answer.with_context(|| format!("{url} did not respond in time"))??;
    if let Some(error) = answer.get("error") {
        let message = error["message"].as_str().unwrap_or("the server refused the call");
        return Ok(Err(message.to_owned()));
    }
    parse_outcome(&answer["result"])
}

/// Lists the tools that the server `remote` offers to the caller, as entries of `tools/list`. Fails
/// if the server refuses or does not answer in time.
pub(super) async fn list_remote_tools(remote: &RemoteServer<'_>) -> anyhow::Result<Vec<Value>> {
    let RemoteServer { url, key } = remote;
    let endpoint = parse_server_url(url)?;
    let mut tools = Vec::new();
    let mut cursor: Option<Value> = None;
    for _ in 0..PAGES_MAX {
        let params = cursor.take().map(|cursor| ("cursor", cursor)).into_iter().collect();
        let request = RemoteServerRequest { method: "tools/list", name: None, params };
        let answer =
            timeout(ANSWER_TIME_MAX, send_request(&endpoint, key.as_ref(), request, None)).await;
        let answer = answer.with_context(|| format!("{url} did not respond in time"))??;
        if let Some(error) = answer.get("error") {
            let message = error["message"].as_str().unwrap_or("it gave no reason");
            bail!("{url} refused to list its tools: {message}");
        }
        let result = &answer["result"];
        let page =
            result["tools"].as_array().context("the server's answer has no list of tools")?;
        tools.extend(page.iter().cloned());
        match result.get("nextCursor") {
            Some(next @ Value::String(_)) => cursor = Some(next.clone()),
            Some(_) | None => return Ok(tools),
        }
    }
    bail!("{url} lists its tools on more than {PAGES_MAX} pages")
}

/// Sends a health check request to `url`. Fails unless the server answers with a status of 2xx.
pub(super) async fn check_health(url: &str) -> anyhow::Result<()> {
    let target = parse_server_url(url)?;
    let request = Request::get(target.uri().clone()).body(Full::new(Bytes::new()))?;
    let response = timeout(HEALTH_TIME_MAX, open_http_client().send(request)).await;
    let seconds = HEALTH_TIME_MAX.as_secs();
    let response = response.with_context(|| format!("{url} did not respond within {seconds} s"))?;
    let status = response.map_err(|failure| not_answered(failure, target.authority()))?.status();
    if !status.is_success() {
        bail!("{url} answered {status}");
    }
    Ok(())
}

/// Converts the failure of a request to `server` into an error that names the server.
pub(super) fn not_answered(failure: HttpRequestFailure, server: &str) -> anyhow::Error {
    match failure {
        // A server that answers a TLS handshake is running.
        HttpRequestFailure::NotSent(why)
            if ["TLS", "certificate"].iter().any(|it| why.contains(it)) =>
        {
            anyhow!(why).context(format!("cannot connect to {server}"))
        }
        HttpRequestFailure::NotSent(why) => anyhow!(why)
            .context(format!("cannot connect to {server}; is `toolgate serve` running?")),
        HttpRequestFailure::Lost(why) => anyhow!(why).context("the server closed the connection"),
    }
}

/// Parses the URL of a server, such as `http://127.0.0.1:8000/mcp`. Fails if it contains a
/// password.
pub(super) fn parse_server_url(url: &str) -> anyhow::Result<HttpUrl> {
    let expected = "a URL such as http://127.0.0.1:8000/mcp";
    HttpUrl::parse(url).map_err(|why| match why {
        HttpUrlError::UserInfo => {
            anyhow!("--url must not contain a user name or password; write {expected}")
        }
        why => anyhow!("--url is not {expected}: it {why}"),
    })
}

/// Sends one request to the server at `url` and returns the JSON-RPC message that answers it. Fails
/// if the server does not answer, or refuses the API key.
async fn send_request(
    url: &HttpUrl,
    key: Option<&RemoteServerKey>,
    request: RemoteServerRequest<'_>,
    follow: Option<&ProgressDisplay>,
) -> anyhow::Result<Value> {
    let request = http_request(url, key, request, follow.is_some())?;
    let server = url.authority();
    let response = open_http_client().send(request).await;
    let response = response.map_err(|failure| not_answered(failure, server))?;
    let status = response.status();
    if status == StatusCode::UNAUTHORIZED {
        match key {
            None => bail!(
                "{server} needs a credential; set the variable {KEY_VARIABLE} to your key or \
                 token, or name another variable with --key-env"
            ),
            Some(RemoteServerKey { variable, .. }) => {
                bail!(
                    "{server} refused the credential in {variable}: it is unknown, revoked or expired. \
                     The server's operator can list keys with `toolgate key list` and create one with \
                     `toolgate key new NAME`"
                )
            }
        }
    }
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let streams = kind.is_some_and(|kind| kind.starts_with("text/event-stream"));
    let is_page = kind.is_some_and(|kind| kind.starts_with("text/html"));
    let mut body = Limited::new(response.into_body(), ANSWER_BYTES_MAX);
    let (answer, text) = if streams {
        last_event(&mut body, follow).await?
    } else {
        let body = body.collect().await.map_err(broke_off)?.to_bytes();
        let text = String::from_utf8_lossy(&body).into_owned();
        (exact_json::parse(&text).ok(), text)
    };
    answer.filter(is_answer).with_context(|| {
        if url.path() == "/" {
            let scheme = url.uri().scheme_str().unwrap_or("http");
            return format!("{server} answered {status}; MCP is at {scheme}://{server}/mcp");
        }
        if is_page {
            return format!(
                "{server} answered {status} with an HTML page, not with MCP; check the URL"
            );
        }
        let start: String = text.trim().chars().take(500).collect();
        format!("{server} answered {status}, which is not an MCP answer: {start}")
    })
}

/// Converts `request` into an HTTP request. If `with_progress` is true, the request asks the server
/// for progress and log lines.
fn http_request(
    url: &HttpUrl,
    key: Option<&RemoteServerKey>,
    request: RemoteServerRequest<'_>,
    with_progress: bool,
) -> anyhow::Result<Request<Full<Bytes>>> {
    let RemoteServerRequest { method, name, params: fields } = request;
    let revision = McpRevision::newest(SessionModel::Stateless).name;
    let mut meta = json!({
        "io.modelcontextprotocol/protocolVersion": revision,
        "io.modelcontextprotocol/clientInfo": {
            "name": "toolgate",
            "version": env!("CARGO_PKG_VERSION"),
        },
        "io.modelcontextprotocol/clientCapabilities": {},
        META_RESULTS: ToolResultFormat::Both,
    });
    if with_progress {
        meta["progressToken"] = json!(PROGRESS_TOKEN);
        meta["io.modelcontextprotocol/logLevel"] = json!("info");
    }
    let mut params = exact_json::object([("_meta", meta)]);
    for (field, value) in fields {
        params[field] = value;
    }
    let mut body = json!({ "jsonrpc": "2.0", "id": 1, "method": method });
    body["params"] = params;
    let request = Request::post(url.uri().clone())
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", revision)
        .header("mcp-method", method);
    let request = match name {
        Some(name) => request.header("mcp-name", name),
        None => request,
    };
    let request = match key {
        None => request,
        Some(RemoteServerKey { value, variable }) => {
            let credential = HeaderValue::try_from(format!("Bearer {value}"));
            let credential =
                credential.map_err(|_| anyhow!("the value of {variable} is not a valid key"))?;
            request.header(AUTHORIZATION, credential)
        }
    };
    request
        .body(Full::new(Bytes::from(body.to_string())))
        .with_context(|| format!("`{}` is not a valid tool name", name.unwrap_or_default()))
}

/// Reads an event stream to its end. Returns the text of the last event, and the same text as JSON,
/// or `None` if it is not JSON. Shows the notifications in earlier events on the display `follow`.
async fn last_event(
    body: &mut Limited<Incoming>,
    follow: Option<&ProgressDisplay>,
) -> anyhow::Result<(Option<Value>, String)> {
    let mut events = SseParser::new(ANSWER_BYTES_MAX);
    let mut last = None;
    while let Some(frame) = body.frame().await {
        let Ok(bytes) = frame.map_err(broke_off)?.into_data() else { continue };
        for event in events.parse(&bytes) {
            let text = event.data;
            if text.is_empty() {
                continue;
            }
            let message = exact_json::parse(&text).ok();
            let update = message.as_ref().and_then(update_from_notification);
            if let (Some(follow), Some(update)) = (follow, update) {
                follow.show(update).await;
            }
            last = Some((message, text));
        }
    }
    let (message, text) = last.unwrap_or_default();
    Ok((message, text))
}

/// Converts an MCP notification about progress, or with a log line, into an update for the display.
/// Returns `None` for other messages.
fn update_from_notification(message: &Value) -> Option<ProgressUpdate> {
    let params = message.get("params")?;
    match message.get("method")?.as_str()? {
        "notifications/progress" if params["progressToken"] == PROGRESS_TOKEN => {
            let message = params["message"].as_str().map(str::to_owned);
            Some(ProgressUpdate::progress(
                params["progress"].as_f64()?,
                params["total"].as_f64(),
                message,
            ))
        }
        "notifications/message" => {
            let level = serde_json::from_value(params["level"].clone()).ok()?;
            let data = &params["data"];
            let message = data.as_str().map_or_else(|| data.to_string(), str::to_owned);
            Some(ProgressUpdate::Log { level, message })
        }
        _ => None,
    }
}

fn broke_off(err: Box<dyn std::error::Error + Send + Sync>) -> anyhow::Error {
    anyhow::Error::from_boxed(err).context("the answer is incomplete")
}

/// Returns true if `message` is the answer to the call: it has the call's id, and either a result
/// or an error.
fn is_answer(message: &Value) -> bool {
    let has = |field| message.get(field).is_some();
    match message.get("id") {
        Some(id) => *id == 1 && has("result") != has("error"),
        None => has("error"),
    }
}

fn parse_outcome(result: &Value) -> anyhow::Result<Result<ToolOutput, String>> {
    match result.get("resultType").and_then(Value::as_str) {
        None | Some("complete") => {}
        Some(other) => {
            bail!("the server sent an answer that `toolgate call` does not support: `{other}`")
        }
    }
    let blocks = result["content"].as_array().context("the server's result has no content")?;
    let texts: Vec<_> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
    let failed = result["isError"] == true;
    let structured = result.get("structuredContent");
    if failed && structured.is_none() {
        return Ok(Err(texts.join("\n")));
    }
    let text = match texts.split_first() {
        Some((body, [])) => ResultText::from_body(*body),
        Some((body, notes)) => ResultText::from_body(*body).with_note(notes.join("\n")),
        None => ResultText::default(),
    };
    let ending = if failed { ToolRunStatus::ProgramFailed } else { ToolRunStatus::Done };
    Ok(Ok(ToolOutput::new(structured.cloned().unwrap_or_default(), text, ending)))
}

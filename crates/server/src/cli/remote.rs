//! Calls a tool at a running server, in the stateless revision of MCP.

mod events;

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use toolgate::config;
use toolgate_contract::{CallEnding, ResultText, ToolId, ToolOutput, exact_json, fold_name};
use toolgate_dialects::mcp::{ProtocolEra, Revision};
use toolgate_world::dial::{CertificateTrust, DialAddress, TlsClient, dial};

use super::follow::{WorkDisplay, WorkUpdate};
use events::EventParser;

/// Timeout of the connection.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
/// Timeout of the answer. No built-in tool takes longer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(900);
/// Timeout of a health check.
const HEALTH_TIME_MAX: Duration = Duration::from_secs(5);
/// Largest answer to accept.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// Default environment variable of the key.
const KEY_VARIABLE: &str = "TOOLGATE_KEY";
/// Progress token of the call.
const PROGRESS_TOKEN: u64 = 1;

/// A running server, with the caller's key.
pub(super) struct RemoteServer<'a> {
    /// URL of the MCP endpoint.
    pub(super) url: &'a str,
    /// The caller's key for this server.
    key: Option<RemoteKey>,
}

/// A key, and the name of the environment variable that contains it.
struct RemoteKey {
    value: String,
    variable: String,
}

/// Options for the key of a running server.
#[derive(clap::Args)]
pub(super) struct RemoteKeyArgs {
    /// Environment variable with your key, instead of TOOLGATE_KEY
    #[arg(long, value_name = "NAME", requires = "url")]
    key_env: Option<String>,
}

impl RemoteKeyArgs {
    /// Returns the server at `url` with the key from the environment.
    pub(super) fn remote<'a>(&self, url: &'a str) -> anyhow::Result<RemoteServer<'a>> {
        let variable = self.key_env.as_deref().unwrap_or(KEY_VARIABLE);
        let environment = config::environment();
        let found =
            environment.into_iter().find(|(key, value)| key == variable && !value.is_empty());
        let key = match (found, &self.key_env) {
            (None, None) => None,
            (None, Some(name)) => bail!("the variable {name} of --key-env is not set"),
            (Some((_, value)), _) => match value.into_string() {
                Ok(value) => Some(RemoteKey { value, variable: variable.to_owned() }),
                Err(_) => bail!("the value of {variable} is not a valid key"),
            },
        };
        Ok(RemoteServer { url, key })
    }
}

/// Calls `tool` at the server `remote`. Returns its output or its refusal.
///
/// Progress and log lines are shown in `follow`. Dropping the future cancels the call.
pub(super) async fn call_remote_tool(
    remote: &RemoteServer<'_>,
    tool: &str,
    input: Value,
    follow: Option<&WorkDisplay>,
) -> anyhow::Result<Result<ToolOutput, String>> {
    // MCP folds tool ids. Any other name is sent unchanged.
    let name = ToolId::foreign(tool)
        .map_or_else(|| tool.to_owned(), |id| fold_name(id.as_str()).into_owned());
    let RemoteServer { url, key } = remote;
    let endpoint = ServerEndpoint::parse(url)?;
    let answer =
        timeout(ANSWER_TIME_MAX, endpoint.call_tool(key.as_ref(), &name, input, follow)).await;
    let answer = answer.with_context(|| format!("{url} did not respond in time"))??;
    if let Some(error) = answer.get("error") {
        let message = error["message"].as_str().unwrap_or("the server refused the call");
        return Ok(Err(message.to_owned()));
    }
    parse_outcome(&answer["result"])
}

/// Fails unless the server answers a request for `url` with a status of 2xx.
pub(super) async fn check_health(url: &str) -> anyhow::Result<()> {
    let endpoint = ServerEndpoint::parse(url)?;
    let status = timeout(HEALTH_TIME_MAX, endpoint.get_status()).await;
    let seconds = HEALTH_TIME_MAX.as_secs();
    let status = status.with_context(|| format!("{url} did not respond within {seconds} s"))??;
    if !status.is_success() {
        bail!("{url} answered {status}");
    }
    Ok(())
}

/// A two-way byte stream.
trait RemoteStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> RemoteStream for T {}

/// Parsed URL of a server.
struct ServerEndpoint {
    /// `HOST:PORT` as in the URL.
    authority: String,
    is_secure: bool,
    host: String,
    port: u16,
    path: String,
}

impl ServerEndpoint {
    fn parse(url: &str) -> anyhow::Result<Self> {
        let expected = "a URL such as http://127.0.0.1:8000/mcp";
        // An invalid URL is not repeated, because it may contain a password.
        let uri: Uri =
            url.parse().with_context(|| format!("the URL is invalid; write {expected}"))?;
        let authority =
            uri.authority().with_context(|| format!("the URL has no host; write {expected}"))?;
        if authority.as_str().contains('@') {
            bail!("the URL must not contain a user name or password; write {expected}");
        }
        let is_secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            Some(_) | None => bail!("`{url}` is not {expected}"),
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Ok(Self {
            authority: authority.as_str().to_owned(),
            is_secure,
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(if is_secure { 443 } else { 80 }),
            path: path.to_owned(),
        })
    }

    /// Connects to the server, with TLS for an `https` URL.
    async fn connect(&self) -> anyhow::Result<Box<dyn RemoteStream>> {
        let address = DialAddress::Port(self.host.clone(), self.port);
        let stream = dial(&address, CONNECT_TIME_MAX).await.map_err(|why| anyhow!(why))?;
        if !self.is_secure {
            return Ok(Box::new(stream));
        }
        // Loading the system's certificates reads files.
        let secure =
            tokio::task::spawn_blocking(|| TlsClient::new(&CertificateTrust::System)).await?;
        let secure = secure.map_err(|why| anyhow!(why))?;
        let stream = timeout(CONNECT_TIME_MAX, secure.connect(stream, &self.host)).await;
        Ok(Box::new(stream.context("the TLS handshake timed out")??))
    }

    /// Gets the path of the URL, and returns the status of the answer.
    async fn get_status(&self) -> anyhow::Result<StatusCode> {
        let request = Request::get(&self.path).header("host", &self.authority);
        let request = request.body(Full::new(Bytes::new()))?;
        let mut sender = self.open_connection().await?;
        let response = sender.send_request(request).await;
        Ok(response.context("the server closed the connection")?.status())
    }

    /// Opens an HTTP connection.
    async fn open_connection(&self) -> anyhow::Result<SendRequest<Full<Bytes>>> {
        let server = &self.authority;
        let stream = self
            .connect()
            .await
            .with_context(|| format!("cannot connect to {server}; is `toolgate serve` running?"))?;
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }

    /// Sends one call and returns the JSON-RPC message that answers it.
    async fn call_tool(
        &self,
        key: Option<&RemoteKey>,
        tool: &str,
        input: Value,
        follow: Option<&WorkDisplay>,
    ) -> anyhow::Result<Value> {
        let revision = Revision::newest(ProtocolEra::Stateless).name;
        let mut meta = json!({
            "io.modelcontextprotocol/protocolVersion": revision,
            "io.modelcontextprotocol/clientInfo": {
                "name": "toolgate",
                "version": env!("CARGO_PKG_VERSION"),
            },
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        if follow.is_some() {
            meta["progressToken"] = json!(PROGRESS_TOKEN);
            meta["io.modelcontextprotocol/logLevel"] = json!("info");
        }
        let params =
            exact_json::object([("_meta", meta), ("name", json!(tool)), ("arguments", input)]);
        let mut body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call" });
        body["params"] = params;
        let request = Request::post(&self.path)
            .header("host", &self.authority)
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", revision)
            .header("mcp-method", "tools/call")
            .header("mcp-name", tool);
        let request = match key {
            None => request,
            Some(RemoteKey { value, variable }) => {
                let credential = HeaderValue::try_from(format!("Bearer {value}"));
                let credential = credential
                    .map_err(|_| anyhow!("the value of {variable} is not a valid key"))?;
                request.header(AUTHORIZATION, credential)
            }
        };
        let request = request
            .body(Full::new(Bytes::from(body.to_string())))
            .with_context(|| format!("`{tool}` is not a valid tool name"))?;

        let server = &self.authority;
        let mut sender = self.open_connection().await?;
        let response =
            sender.send_request(request).await.context("the server closed the connection")?;
        let status = response.status();
        if status == StatusCode::UNAUTHORIZED {
            match key {
                None => bail!(
                    "{server} needs a credential; set the variable {KEY_VARIABLE} to your key or \
                     token, or name another variable with --key-env"
                ),
                Some(RemoteKey { variable, .. }) => {
                    bail!("{server} refused the credential in {variable}")
                }
            }
        }
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let streams = kind.is_some_and(|kind| kind.starts_with("text/event-stream"));
        let mut body = Limited::new(response.into_body(), ANSWER_BYTES_MAX);
        let (answer, text) = if streams {
            last_event(&mut body, follow).await?
        } else {
            let body = body.collect().await.map_err(broke_off)?.to_bytes();
            let text = String::from_utf8_lossy(&body).into_owned();
            (exact_json::parse(&text).ok(), text)
        };
        answer.filter(is_answer).with_context(|| {
            let start: String = text.trim().chars().take(500).collect();
            let suggestion = match self.path.as_str() {
                "/" => format!("; did you mean http://{server}/mcp?"),
                _ => String::new(),
            };
            format!("{server} answered {status}, which is not an MCP answer: {start}{suggestion}")
        })
    }
}

/// Returns the message in the last event of a stream, and its text. Shows the notifications before
/// it.
async fn last_event(
    body: &mut Limited<Incoming>,
    follow: Option<&WorkDisplay>,
) -> anyhow::Result<(Option<Value>, String)> {
    let mut events = EventParser::default();
    let mut last = None;
    while let Some(frame) = body.frame().await {
        let Ok(bytes) = frame.map_err(broke_off)?.into_data() else { continue };
        for text in events.parse(&bytes) {
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

/// Converts a notification into an update for the display.
fn update_from_notification(message: &Value) -> Option<WorkUpdate> {
    let params = message.get("params")?;
    match message.get("method")?.as_str()? {
        "notifications/progress" if params["progressToken"] == PROGRESS_TOKEN => {
            let message = params["message"].as_str().map(str::to_owned);
            Some(WorkUpdate::progress(
                params["progress"].as_f64()?,
                params["total"].as_f64(),
                message,
            ))
        }
        "notifications/message" => {
            let level = serde_json::from_value(params["level"].clone()).ok()?;
            let data = &params["data"];
            let message = data.as_str().map_or_else(|| data.to_string(), str::to_owned);
            Some(WorkUpdate::Log { level, message })
        }
        _ => None,
    }
}

fn broke_off(err: Box<dyn std::error::Error + Send + Sync>) -> anyhow::Error {
    anyhow::Error::from_boxed(err).context("the answer is incomplete")
}

/// Returns true if the message is the answer to the call: it has the call's id, and either a result
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
    let ending = if failed { CallEnding::ProgramFailed } else { CallEnding::Done };
    Ok(Ok(ToolOutput::new(structured.cloned().unwrap_or_default(), text, ending)))
}

//! Tests with the client of the Rust SDK, `rmcp`: every revision over both transports, against both
//! servers.
//!
//! `rmcp` has no method for a ping, so the tests send it as a plain request. `rmcp` also resumes a
//! lost stream by itself, so that the tests only see the answer.
#![allow(deprecated, reason = "what the newest revision takes away the older ones have")]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientConfig, ClientRequest, CreateMessageRequestParams,
    CreateMessageResult, ElicitRequestParams, ElicitResult, ElicitationAction, ErrorData,
    GetPromptRequestParams, ListRootsResult, LoggingLevel, LoggingMessageNotificationParam,
    PingRequest, ProgressNotificationParam, ProtocolVersion, ReadResourceRequestParams,
    ResourceContents, ResourceUpdatedNotificationParam, Root, SamplingMessage, ServerNotification,
    SetLevelRequestParams, SubscribeRequestParams, SubscriptionFilter, UnsubscribeRequestParams,
};
use rmcp::service::{NotificationContext, RequestContext, RunningService};
use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use rmcp::{ClientHandler, ClientLifecycleMode, ClientServiceExt, RoleClient, ServiceError};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::rig::ClientTestServers;
use crate::support::{MODERN, PATIENCE, ProcessMarker, TempWorkspace, binary, path, sleeps};

const FORMS_SINCE: &str = "2025-06-18";
const SOUND_SINCE: &str = "2025-03-26";
const ROOT: &str = "file:///a/folder";
const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";

/// Checks `revision` against both servers over both transports, all at once.
pub(super) fn check(revision: &'static str) {
    let rig = ClientTestServers::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let workspace = &rig.workspace;
        let home = rig.toolgate.home();
        // The configuration is given explicitly, and so trusted.
        let config = workspace.path("toolgate.toml");
        let root = workspace.root().to_owned();
        let toolgate = [binary().into(), "stdio".into(), root, "--config".into(), config];
        let everything = || [ClientTestServers::example(), "stdio".into()];
        tokio::join!(
            check_workspace(
                RmcpConnection::start(revision, &toolgate, home).await,
                workspace,
                "stdio"
            ),
            check_workspace(
                RmcpConnection::at(revision, &rig.toolgate.url()).await,
                workspace,
                "http"
            ),
            check_example(RmcpConnection::start(revision, &everything(), home).await),
            check_example(RmcpConnection::at(revision, &rig.everything.url()).await),
        );
    });
}

/// Notification that the Rust SDK's client received from the server.
#[derive(Debug, Clone, PartialEq)]
enum RmcpNotification {
    Progress(f64, Option<f64>),
    Log(LoggingLevel),
    Updated(String),
    Tools,
}

/// Simulated user of the Rust SDK's client, and the messages of the forms that the user was shown.
#[derive(Clone)]
struct RmcpTestUser {
    revision: &'static str,
    messages: Arc<Mutex<Vec<String>>>,
    reply: Arc<Mutex<ElicitResult>>,
    notification: mpsc::UnboundedSender<RmcpNotification>,
}

impl ClientHandler for RmcpTestUser {
    fn get_info(&self) -> ClientConfig {
        let capabilities = json!({ "elicitation": {}, "sampling": {}, "roots": {} });
        let client = json!({ "name": "rust-driver", "version": "1" });
        ClientConfig::new(from_json(capabilities), from_json(client))
            .with_protocol_version(version(self.revision))
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let ElicitRequestParams::FormElicitationParams { message, .. } = request else {
            panic!("not a form: {request:?}");
        };
        self.messages.lock().unwrap().push(message);
        Ok(self.reply.lock().unwrap().clone())
    }

    async fn create_message(
        &self,
        _params: CreateMessageRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        let reply = SamplingMessage::assistant_text("a reply");
        Ok(CreateMessageResult::new(reply, "none".to_owned()).with_stop_reason("endTurn"))
    }

    async fn list_roots(
        &self,
        _context: RequestContext<RoleClient>,
    ) -> Result<ListRootsResult, ErrorData> {
        Ok(ListRootsResult::new(vec![Root::new(ROOT)]))
    }

    async fn on_progress(
        &self,
        params: ProgressNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        self.record(RmcpNotification::Progress(params.progress, params.total));
    }

    async fn on_logging_message(
        &self,
        params: LoggingMessageNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        self.record(RmcpNotification::Log(params.level));
    }

    async fn on_resource_updated(
        &self,
        params: ResourceUpdatedNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        self.record(RmcpNotification::Updated(params.uri));
    }

    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.record(RmcpNotification::Tools);
    }
}

impl RmcpTestUser {
    fn record(&self, notification: RmcpNotification) {
        // The receiver is gone once the client has disconnected.
        let _ = self.notification.send(notification);
    }
}

/// Connection of the Rust SDK's client to a server.
struct RmcpConnection {
    running: RunningService<RoleClient, RmcpTestUser>,
    notification: mpsc::UnboundedReceiver<RmcpNotification>,
    revision: &'static str,
}

impl RmcpConnection {
    /// Starts a server over stdio and connects to it.
    async fn start(revision: &'static str, args: &[PathBuf], home: &Path) -> Self {
        let mut command = Command::new(&args[0]);
        command.args(&args[1..]).env_clear().env("PATH", path()).env("HOME", home);
        let transport = TokioChildProcess::new(command).unwrap();
        let (person, notification) = Self::person(revision);
        let running = person.serve_with_lifecycle(transport, lifecycle(revision)).await.unwrap();
        Self::new(running, notification, revision)
    }

    /// Connects to the server at `url`.
    async fn at(revision: &'static str, url: &str) -> Self {
        let transport = StreamableHttpClientTransport::from_uri(url.to_owned());
        let (person, notification) = Self::person(revision);
        let running = person.serve_with_lifecycle(transport, lifecycle(revision)).await.unwrap();
        Self::new(running, notification, revision)
    }

    fn person(revision: &'static str) -> (RmcpTestUser, mpsc::UnboundedReceiver<RmcpNotification>) {
        let (sender, notification) = mpsc::unbounded_channel();
        let messages = Arc::default();
        let reply = Arc::new(Mutex::new(accept_content(json!({}))));
        (RmcpTestUser { revision, messages, reply, notification: sender }, notification)
    }

    fn new(
        running: RunningService<RoleClient, RmcpTestUser>,
        notification: mpsc::UnboundedReceiver<RmcpNotification>,
        revision: &'static str,
    ) -> Self {
        let info = running.peer_info().unwrap();
        assert_eq!(info.protocol_version, version(revision));
        assert!(info.server_info.is_some(), "{info:?}");
        Self { running, notification, revision }
    }

    async fn call(&self, tool: &'static str, arguments: Value) -> CallToolResult {
        self.try_call(tool, arguments).await.unwrap()
    }

    async fn try_call(
        &self,
        tool: &'static str,
        arguments: Value,
    ) -> Result<CallToolResult, ServiceError> {
        let params = CallToolRequestParams::new(tool).with_arguments(from_json(arguments));
        timeout(PATIENCE, self.running.call_tool(params)).await.expect("the call is answered")
    }

    async fn read(&self, uri: &str) -> Result<ResourceContents, ServiceError> {
        let params: ReadResourceRequestParams = from_json(json!({ "uri": uri }));
        Ok(self.running.read_resource(params).await?.contents.remove(0))
    }

    /// Returns the messages of a prompt as JSON.
    async fn prompt(&self, name: &str, arguments: Value) -> Result<String, ServiceError> {
        let params = GetPromptRequestParams::new(name).with_arguments(from_json(arguments));
        Ok(serde_json::to_string(&self.running.get_prompt(params).await?.messages).unwrap())
    }

    fn set_reply(&self, reply: ElicitResult) {
        *self.running.service().reply.lock().unwrap() = reply;
    }

    fn messages(&self) -> Vec<String> {
        self.running.service().messages.lock().unwrap().clone()
    }

    /// Waits for the next notification for which `fits` returns true, and returns it.
    async fn next_notification(
        &mut self,
        fits: impl Fn(&RmcpNotification) -> bool,
    ) -> RmcpNotification {
        let next = async {
            loop {
                let notification = self.notification.recv().await.expect("the client is connected");
                if fits(&notification) {
                    return notification;
                }
            }
        };
        timeout(PATIENCE, next).await.expect("the notification comes")
    }

    /// Disconnects. Checks that a server over stdio then exits by itself.
    async fn leave(self) {
        let left = timeout(Duration::from_secs(2), self.running.cancel()).await;
        left.expect("the server exits in time").unwrap();
    }
}

async fn check_workspace(mut peer: RmcpConnection, workspace: &TempWorkspace, transport: &str) {
    let root = format!("file://{}", workspace.root().canonicalize().unwrap().display());
    let readme = json!({ "path": "README.md" });

    let pong = peer.running.send_request(ClientRequest::PingRequest(PingRequest::default())).await;
    match peer.revision {
        MODERN => assert_eq!(code(pong), -32601),
        _ => assert!(pong.is_ok(), "{pong:?}"),
    }

    let tools = peer.running.list_all_tools().await.unwrap();
    let names: Vec<_> = tools.iter().map(|tool| tool.name.as_ref()).collect();
    assert!(names.len() > 7 && names.contains(&"exec_run") && names.is_sorted(), "{names:?}");

    let result = peer.call("files_read", readme.clone()).await;
    assert!(
        result.is_error != Some(true) && text(&result).contains(TempWorkspace::README),
        "{result:?}"
    );
    let result = peer.call("files_read", json!({ "path": "none.txt" })).await;
    assert!(result.is_error == Some(true) && text(&result).contains("none.txt"), "{result:?}");
    assert_eq!(code(peer.try_call("no_such_tool", json!({})).await), -32602);

    let script = "for n in 1 2 3; do echo $n; sleep 0.15; done";
    peer.call("exec_run", json!({ "command": script, "shell": true })).await;
    let first = peer
        .next_notification(|notification| matches!(notification, RmcpNotification::Progress(..)))
        .await;
    while let Ok(RmcpNotification::Progress(progress, _)) = peer.notification.try_recv() {
        assert!(
            matches!(first, RmcpNotification::Progress(before, _) if before < progress),
            "{progress}"
        );
    }

    let resources = peer.running.list_all_resources().await.unwrap();
    assert!(resources.iter().any(|one| one.uri == format!("{root}/dot.png")), "{resources:?}");
    let templates = peer.running.list_all_resource_templates().await.unwrap();
    let files = format!("{root}/{{+path}}");
    assert!(templates.iter().any(|one| one.uri_template == files), "{templates:?}");
    let read = peer.read(&format!("{root}/README.md")).await.unwrap();
    assert_eq!(text_in(&read), TempWorkspace::README);
    let dot = peer.read(&format!("{root}/dot.png")).await.unwrap();
    let ResourceContents::BlobResourceContents { blob, mime_type, .. } = dot else {
        panic!("{dot:?}");
    };
    assert_eq!((blob.as_str(), mime_type.as_deref()), ("iVBORw0KGgoA/w==", Some("image/png")));
    // By the template: its folder is not listed.
    let hidden = peer.read(&format!("{root}/folder/a%20file.txt")).await.unwrap();
    assert_eq!(text_in(&hidden), "in a folder\n");
    let missing = if peer.revision == MODERN { -32602 } else { -32002 };
    assert_eq!(code(peer.read(&format!("{root}/none.txt")).await), missing);

    let watched = format!("watched-{transport}.txt");
    workspace.put(&watched, "before");
    let uri = format!("{root}/{watched}");
    if peer.revision == MODERN {
        let filter = SubscriptionFilter::builder().resource_subscription(&uri).build();
        let mut subscription = peer.running.listen(filter.clone()).await.unwrap();
        assert_eq!(*subscription.acknowledged(), filter);
        workspace.put(&watched, "after it");
        let update = timeout(PATIENCE, subscription.next()).await.expect("it is told").unwrap();
        let Some(ServerNotification::ResourceUpdatedNotification(update)) = update else {
            panic!("{update:?}");
        };
        assert_eq!(update.params.uri, uri);
        subscription.cancel().await.unwrap();
    } else {
        let params: SubscribeRequestParams = from_json(json!({ "uri": uri }));
        peer.running.subscribe(params).await.unwrap();
        workspace.put(&watched, "after it");
        peer.next_notification(|notification| {
            *notification == RmcpNotification::Updated(uri.clone())
        })
        .await;
        let params: UnsubscribeRequestParams = from_json(json!({ "uri": uri }));
        peer.running.unsubscribe(params).await.unwrap();
    }
    assert_eq!(text_in(&peer.read(&uri).await.unwrap()), "after it");

    let prompts = peer.running.list_all_prompts().await.unwrap();
    assert!(prompts.iter().any(|prompt| prompt.name == "explain"), "{prompts:?}");
    let messages = peer.prompt("explain", readme.clone()).await.unwrap();
    assert!(messages.contains("README.md"), "{messages}");
    assert_eq!(code(peer.prompt("explain", json!({})).await), -32602);
    let found = peer.running.complete_prompt_simple("explain", "path", "READ").await.unwrap();
    assert_eq!(found[0], "README.md");
    let found = peer.running.complete_resource_simple(&files, "path", "folder/").await.unwrap();
    assert!(found.concat().contains("a%20file.txt"), "{found:?}");

    check_confirmation(&peer, workspace, transport).await;

    if peer.revision == MODERN {
        // Skills are an extension, and extensions came with this revision.
        let skills = peer.running.list_all_skills().await.unwrap();
        assert!(skills.iter().any(|skill| skill.uri == "skill://tea/SKILL.md"), "{skills:?}");
    }

    let marker = ProcessMarker::new();
    let params = CallToolRequestParams::new("exec_run").with_arguments(from_json(sleeps(&marker)));
    tokio::select! {
        done = peer.running.call_tool(params) => panic!("{done:?}"),
        // Dropping a call cancels it.
        () = wait_until_holds(|| !marker.pids().is_empty()) => {}
    }
    wait_until_holds(|| marker.pids().is_empty()).await;
    assert!(text(&peer.call("files_read", readme).await).contains(TempWorkspace::README));
    peer.leave().await;
}

/// Runs a program that needs a confirmation twice: the simulated user first accepts, and then
/// declines.
async fn check_confirmation(peer: &RmcpConnection, workspace: &TempWorkspace, transport: &str) {
    let touch = |word: &str| {
        let name = format!("{word}-{transport}");
        let made = workspace.path(&name);
        let arguments = json!({ "command": "touch", "args": [name] });
        async move { (peer.call("exec_run", arguments).await, made.exists()) }
    };
    let (result, made) = touch("yes").await;
    if peer.revision < FORMS_SINCE {
        // Without forms there can be no confirmation, so nothing is run.
        assert!(result.is_error == Some(true) && !made && peer.messages().is_empty(), "{result:?}");
        return;
    }
    assert!(result.is_error != Some(true) && made, "{result:?}");
    assert!(
        matches!(&peer.messages()[..], [message] if message.contains("yes-")),
        "{:?}",
        peer.messages()
    );
    peer.set_reply(ElicitResult::new(ElicitationAction::Decline));
    let (result, made) = touch("no").await;
    assert!(result.is_error == Some(true) && !made, "{result:?}");
    assert_eq!(peer.messages().len(), 2);
}

async fn check_example(mut peer: RmcpConnection) {
    peer.running.list_all_tools().await.unwrap();
    let kind = |result: &CallToolResult| {
        serde_json::to_value(&result.content[0]).unwrap()["type"].as_str().unwrap().to_owned()
    };
    let valid = peer.call("test_audio_content", json!({})).await;
    assert_eq!(kind(&valid) == "audio", peer.revision >= SOUND_SINCE, "{valid:?}");

    peer.call("test_tool_with_progress", json!({})).await;
    for progress in [0.0, 50.0, 100.0] {
        let notification = peer
            .next_notification(|notification| {
                matches!(notification, RmcpNotification::Progress(..))
            })
            .await;
        assert_eq!(notification, RmcpNotification::Progress(progress, Some(100.0)));
    }

    // In the stateless revision each request has its own level.
    let mut params = CallToolRequestParams::new("test_tool_with_logging");
    if peer.revision == MODERN {
        params.meta = Some(from_json(json!({ LOG_LEVEL: "info" })));
    } else {
        let level: SetLevelRequestParams = from_json(json!({ "level": "info" }));
        peer.running.set_level(level).await.unwrap();
    }
    peer.running.call_tool(params).await.unwrap();
    for _ in 0..3 {
        let notification = peer
            .next_notification(|notification| matches!(notification, RmcpNotification::Log(_)))
            .await;
        assert_eq!(notification, RmcpNotification::Log(LoggingLevel::Info));
    }

    let result = peer.call("test_sampling", json!({ "prompt": "Say something" })).await;
    assert_eq!(text(&result), "LLM response: a reply");
    let result = peer.call("test_input_required_result_list_roots", json!({})).await;
    assert!(text(&result).contains(ROOT), "{result:?}");

    peer.set_reply(accept_content(json!({ "username": "ada", "email": "ada@example.com" })));
    let result = peer.call("test_elicitation", json!({ "message": "Who?" })).await;
    if peer.revision < FORMS_SINCE {
        assert!(result.is_error == Some(true) && peer.messages().is_empty(), "{result:?}");
    } else {
        assert!(text(&result).contains("ada@example.com"), "{result:?}");
        peer.set_reply(accept_content(json!({ "name": "Ada", "color": "red" })));
        let result = peer.call("test_input_required_result_multi_round", json!({})).await;
        assert_eq!((text(&result).as_str(), peer.messages().len()), ("Ada likes red", 3));
        let result = peer.call("test_input_required_result_multiple_inputs", json!({})).await;
        assert_eq!(text(&result), "Answered: client_roots, greeting, user_name");
    }

    if peer.revision == MODERN {
        let filter = SubscriptionFilter::builder().tools_list_changed().build();
        let mut subscription = peer.running.listen(filter).await.unwrap();
        peer.call("test_trigger_tool_change", json!({})).await;
        let update = timeout(PATIENCE, subscription.next()).await.expect("it is told").unwrap();
        assert!(
            matches!(update, Some(ServerNotification::ToolListChangedNotification(_))),
            "{update:?}"
        );
    } else {
        peer.call("test_trigger_tool_change", json!({})).await;
        peer.next_notification(|notification| *notification == RmcpNotification::Tools).await;
    }

    let result = peer.call("test_reconnection", json!({})).await;
    assert_eq!(text(&result), "The client came back for this");
    let messages =
        peer.prompt("test_prompt_with_arguments", json!({ "arg1": "a", "arg2": "b" })).await;
    assert!(messages.unwrap().contains("arg1='a', arg2='b'"));
    let read = peer.read("test://template/7/data").await.unwrap();
    assert!(text_in(&read).contains("\"id\":\"7\""), "{read:?}");
    let result = peer.call("test_error_handling", json!({})).await;
    assert_eq!(result.is_error, Some(true), "{result:?}");
    peer.leave().await;
}

/// Returns the connection mode for `revision`: a handshake in older revisions, or discovery in the
/// newest.
fn lifecycle(revision: &str) -> ClientLifecycleMode {
    match revision {
        MODERN => ClientLifecycleMode::Auto {
            preferred_versions: vec![version(MODERN)],
            legacy_version: None,
        },
        _ => ClientLifecycleMode::Initialize,
    }
}

fn version(revision: &str) -> ProtocolVersion {
    from_json(json!(revision))
}

fn accept_content(content: Value) -> ElicitResult {
    ElicitResult::new(ElicitationAction::Accept).with_content(content)
}

/// Deserializes a type of the SDK that has no constructor.
fn from_json<T: DeserializeOwned>(json: Value) -> T {
    serde_json::from_value(json).unwrap()
}

fn text(result: &CallToolResult) -> String {
    result.content.iter().filter_map(|block| Some(block.as_text()?.text.as_str())).collect()
}

fn text_in(contents: &ResourceContents) -> &str {
    let ResourceContents::TextResourceContents { text, .. } = contents else {
        panic!("not a text: {contents:?}");
    };
    text
}

#[track_caller]
fn code<T: std::fmt::Debug>(refused: Result<T, ServiceError>) -> i32 {
    match refused {
        Err(ServiceError::McpError(err)) => err.code.0,
        other => panic!("not refused: {other:?}"),
    }
}

async fn wait_until_holds(holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, wait).await.expect("the condition holds in time");
}
